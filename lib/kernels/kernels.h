/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels and their parameters, for the code that launches them, the device code, and software that stands in for both.
 * Every kernel takes one parameter, a struct by value. Plain C and CUDA C++ alike; addresses are 64-bit numbers.
 *
 *   pki_wait            1 CTA, 32 threads                struct pki_wait_args
 *   pki_ll              as many as its message has CTAs, PKI_LL_THREADS     struct pki_ll_args
 *   pki_ll_row          any grid, PKI_LL_THREADS         struct pki_ll_row_args
 *   pki_serve           any grid, PKI_SERVE_THREADS      struct pki_serve_args
 *   pki_unpack          any grid, PKI_UNPACK_THREADS     struct pki_unpack_args
 *   pki_move            any grid, PKI_MOVE_THREADS       struct pki_move_args
 *   pki_scale           any grid, PKI_SCALE_THREADS      struct pki_scale_args
 *   pki_reduce_<type>   any grid, PKI_REDUCE_THREADS     struct pki_reduce_args
 *   pki_turn            1 CTA, 32 threads                struct pki_fused_args
 *   pki_exchange        any grid, PKI_FUSED_THREADS      struct pki_fused_args
 *   pki_fold            any grid, PKI_FUSED_THREADS      struct pki_fused_args
 *   pki_relay           any grid, PKI_FUSED_THREADS      struct pki_fused_args
 *   pki_twoshot         grid as on all other ranks, PKI_FUSED_THREADS   struct pki_fused_args
 *   pki_twoshot_any     the same, for all types and operations
 *   pki_push            grid as on all other ranks, PKI_PUSH_THREADS    struct pki_fused_args
 *   pki_push_sum        grid as on all other ranks, PKI_PUSH_THREADS    struct pki_fused_args
 *   pki_pair_exchange   any grid, PKI_FUSED_THREADS      struct pki_fused_args
 *   pki_pair_<type>     any grid, PKI_FUSED_THREADS      struct pki_fused_args; f32, f16, bf16
 *   pki_replay_<name>   any grid, PKI_FUSED_THREADS      struct pki_fused_args; exchange, fold, pair_exchange, pair_<type>
 *
 * <type> is the name of a type (pk_dtype_name). Only pki_twoshot uses dynamic shared memory: with PKI_BULK_BYTES of it parts
 * of an allreduce of two ranks go by bulk copies, where the code has them. None needs its CTAs to run at the same time, with two
 * exceptions: a pair kernel with `quiet` and several CTAs, whose CTA 0 may keep its place until the others have ended, so that it
 * needs a second place; and pki_move where one op can start only when another of its launch is done.
 */
#ifndef PKI_KERNELS_H
#define PKI_KERNELS_H

#include <stdint.h>

#include "tuning/tuning.h"

#define PKI_KERNEL_WAIT "pki_wait"
#define PKI_KERNEL_SERVE "pki_serve"
#define PKI_KERNEL_LL "pki_ll"
#define PKI_KERNEL_LL_ROW "pki_ll_row"
#define PKI_KERNEL_UNPACK "pki_unpack"
#define PKI_KERNEL_MOVE "pki_move"
#define PKI_KERNEL_SCALE "pki_scale"
#define PKI_KERNEL_REDUCE "pki_reduce_" /* the type's name behind it */
#define PKI_KERNEL_TURN "pki_turn"
#define PKI_KERNEL_EXCHANGE "pki_exchange"
#define PKI_KERNEL_FOLD "pki_fold"
#define PKI_KERNEL_RELAY "pki_relay"
#define PKI_KERNEL_PUSH "pki_push"
#define PKI_KERNEL_PUSH_SUM "pki_push_sum"
#define PKI_KERNEL_TWOSHOT "pki_twoshot"
#define PKI_KERNEL_TWOSHOT_ANY "pki_twoshot_any"
#define PKI_KERNEL_PAIR_EXCHANGE "pki_pair_exchange"
#define PKI_KERNEL_PAIR_SUM "pki_pair_" /* the type's name behind it */
#define PKI_KERNEL_REPLAY "pki_replay_" /* the name of what it does behind it, without "pki_" */

/* What the typed kernels do, as the first values of pk_op_t say it. An average is a sum with a divisor. */
#define PKI_KERNEL_SUM 0u
#define PKI_KERNEL_PROD 1u
#define PKI_KERNEL_MIN 2u
#define PKI_KERNEL_MAX 3u

/* pki_wait: return when every word has its value. Reads are acquiring, system scope. */

struct pki_wait_word {
    uint64_t address; /* of a 32-bit word, host or device */
    uint32_t value;
    uint32_t equal; /* 1: until word == value. 0: until (int32_t)(word - value) >= 0 */
};

struct pki_wait_args {
    struct pki_wait_word words[PKI_WAIT_WORDS_MAX];
    uint32_t n;
    uint32_t reserved;
};

/*
 * pki_ll: one message. pki_ll_row: n of them; CTAs first to first + ctas - 1 of the grid, after the last one the first again, do
 * an op, and each CTA its ops in their order, so one that has a send behind a receive waits before it sends. A slot is an array
 * of pairs of cells, 16 bytes each:
 *     uint32_t data_low, flag, data_high, flag
 * Pair k carries bytes [8 k, 8 k + 8) of the message, zero-padded; a message of 0 bytes still uses one pair. A 16-byte store is
 * not one event for a reader in another GPU, but each 8-byte half is: so both halves carry the flag.
 *   send: writes all pairs; it waits for nothing, since the receiver has granted the slot.
 *   recv: until both flags of a pair are `flag`, takes its data.
 * At the end *done = flag: the source may be reused (send), the data is in place for what follows in the stream (recv).
 * A cell keeps the flag of the last message that was long enough to reach it, so a flag must not come back to a slot while any
 * cell may hold it: count up, and skip 0. A receiver looks at abort_flag occasionally, its warps by turns, and
 * returns, without writing *done, when it is not 0.
 */

struct pki_ll_args_op {
    uint64_t user;
    uint64_t slot;
    uint64_t done; /* address of a 32-bit word; 0: none */
    uint32_t bytes;
    uint32_t flag;
    uint16_t send; /* 1: send, 0: recv */
    uint16_t ctas; /* of this message: at least 1, at most the grid */
    uint16_t first;
    uint16_t reserved;
    uint64_t arrived; /* with more than one CTA: address of a 32-bit word in this GPU's memory, 0 before and after */
};

struct pki_ll_head {
    uint64_t abort_flag; /* address of a 32-bit word; 0: none */
    uint32_t n;
    uint32_t reserved;
};

struct pki_ll_args { /* parameters of a launch cost time: apart from the row's */
    struct pki_ll_head head;
    struct pki_ll_args_op ops[1];
};

struct pki_ll_row_args {
    struct pki_ll_head head;
    struct pki_ll_args_op ops[PKI_LL_ROW_OPS];
};

/*
 * pki_unpack: bytes [src + src_offset, + bytes) go to dst + dst_offset, for each of n fragments, cut into `ctas` shares each,
 * `blocks` = n * ctas in all, which the CTAs of the grid take in turn. Any alignment; fragments do not overlap in the target. The
 * source is host memory that the GPU sees.
 */

struct pki_unpack_fragment {
    uint64_t src_offset, bytes, dst_offset;
};

struct pki_unpack_args {
    uint64_t src, dst;
    struct pki_unpack_fragment fragments[PKI_UNPACK_FRAGMENTS];
    uint32_t n, ctas, blocks, reserved;
};

/*
 * pki_move: each of n ops, once its start word is open ((int32_t)(word - start_value) >= 0, acquiring, system scope), copies
 * `bytes` bytes from src to dst, any number at any alignment, and behind them sets its done word (releasing, system scope):
 * whoever acquires that sees the copy, and may write into the source. Ops move as they open, in any order, and one that stays
 * closed holds up none of the others. An op has a share for every PKI_MOVE_SHARE_BYTES, rounded up, but at least one and at most
 * one for each CTA of the grid. The shares lie woven into one another; op i gives its share s to CTA (i * shares + s) % grid,
 * which does what it has of all ops that are open, and then looks again. CTAs count themselves off in `arrived`, the last one
 * sets the done word. An op of 0 bytes that tells nobody needs none: the kernel only waits for its start word.
 * A CTA that sees abort_flag to be not 0 ends where it is. An op that has not all its bytes by then is not told to be done; its
 * `arrived` may hold anything. Source, target and words of an op are memory of any GPU or the host's, mapped here; no op writes
 * what another of the launch reads or writes.
 */

struct pki_move_args_op {
    uint64_t src, dst, bytes;
    uint64_t start, done; /* addresses of 32-bit words; 0: it may start at once, it tells nobody */
    uint64_t arrived;     /* address of a 32-bit word in this GPU's memory, 0 before and after, of this op alone meanwhile */
    uint32_t start_value, done_value;
};

struct pki_move_args {
    uint64_t abort_flag; /* address of a 32-bit word; 0: none */
    uint32_t n;
    uint32_t reserved;
    struct pki_move_args_op ops[PKI_MOVE_OPS];
};

/*
 * pki_scale: dst[i] = src[i] * factor, of any type; floats of 16 and 8 bits in f32; rounded to nearest even once; integers
 * wrap. The two do not overlap. Pointers are aligned to the element; when both are aligned to 16 bytes, vectors are used.
 */

struct pki_scale_args {
    uint64_t dst, src;
    uint64_t factor; /* address of an element; 0: `value` */
    uint64_t value;  /* the element, in the first bytes */
    uint64_t count;  /* elements */
    uint32_t type;   /* pk_dtype_t */
    uint32_t reserved;
};

/*
 * pki_reduce_<type>: dst[i] = srcs[0][i] op srcs[1][i] op ... srcs[n - 1][i], left to right; floats of 16 and 8 bits in f32,
 * rounded to nearest even once at the end; integers wrap; NaN wins. A divisor above 1 divides the result before it is rounded,
 * integers toward 0. dst may be one of the sources, and must not overlap them otherwise. Pointers are aligned to the element;
 * when all are aligned to 16 bytes, vectors are used.
 */

struct pki_reduce_args {
    uint64_t dst;
    uint64_t srcs[PKI_REDUCE_SOURCES];
    uint64_t count; /* elements */
    uint32_t n;
    uint32_t op; /* PKI_KERNEL_SUM .. */
    uint32_t divisor;
    uint32_t reserved;
};

/*
 * pki_serve: returns as pki_wait does, and meanwhile does what the CPU orders. So operations whose bytes the CPU moves have
 * their kernels in their streams when the call returns, and the CPU has the driver to ask for nothing (docs/design/0052).
 *
 * Orders stand in PKI_SERVE_LANES rings of a board in host memory; heads[lane] counts those that have been written. A lane's
 * orders are done one behind another. An order has `units`, which CTAs take by compare and swap of the lane's `next` (the
 * order's number above, the unit's below); who ends the last one opens the order's words, counts it in ended[lane], and makes
 * `next` the next order's first unit. All kernels that serve a board take part, whatever their grids, and leave at once when
 * their words are open; when *abort_flag is not 0 behind the last order, or at once if it was so when they began. Of several
 * CTAs the first one alone asks the host, for all answer to it one after another: it tells the others in `slot`, which is its
 * launch's own while the kernel runs: how many orders there are, and, by its number, that they are to leave. Alone it does
 * both.
 *
 *   PKI_ORDER_COPY    `count` bytes from srcs[0] to dst
 *   PKI_ORDER_REDUCE  as pki_reduce_<type>: dst, srcs, count, n, op, divisor
 *   PKI_ORDER_SCALE   as pki_scale: dst, srcs[0], count; factor, and value where that is 0
 *   PKI_ORDER_WORDS   nothing but its words
 */

#define PKI_SERVE_LANES 3u

enum pki_order_kind { PKI_ORDER_COPY, PKI_ORDER_REDUCE, PKI_ORDER_SCALE, PKI_ORDER_WORDS };

#define PKI_ORDER_DONE 2u /* words of an order */

struct pki_order {
    uint32_t kind, type; /* pk_dtype_t */
    uint32_t units, ndone;
    uint64_t unit;                 /* bytes of a unit, or elements; the last one may have fewer */
    uint64_t done[PKI_ORDER_DONE]; /* addresses of 32-bit words; the first ndone */
    uint32_t done_value[PKI_ORDER_DONE];
    uint64_t factor, value;
    struct pki_reduce_args work;
    uint32_t width; /* bytes of what `unit` and work.count count */
    uint32_t reserved[7];
};

struct pki_serve_state { /* of a lane; in the GPU's memory, all 0 at first */
    uint64_t next;
    uint32_t finished; /* units of the order */
    uint32_t reserved;
};

struct pki_serve_slot { /* in the GPU's memory; anything at first, but in `left` not the number of a launch to come */
    uint32_t heads[PKI_SERVE_LANES];
    uint32_t left;
};

struct pki_serve_board {
    uint32_t heads[16]; /* a line of their own, one a lane */
    uint32_t ended[16];
    struct pki_order orders[PKI_SERVE_LANES][PKI_SERVE_ORDERS];
};

struct pki_serve_args {
    uint64_t board, states; /* addresses; the second of PKI_SERVE_LANES of them */
    uint64_t slot, abort_flag;
    uint32_t launch, reserved; /* its number */
    struct pki_wait_args wait;
};

/*
 * Fused collectives: one kernel on each rank, which writes into the others' inboxes and reads its own. Nothing waits for a CPU.
 *
 * A rank's inbox has two halves for each other rank. Every operation has a number, its epoch, the same on all ranks and one more
 * than the last one's, or several that follow one another; an epoch uses the halves of its parity. Before a rank writes epoch
 * e + 2 it has finished e + 1, for which it needed word from every other rank's e + 1; and that one began only when the rank's e
 * had ended, reads and all. So no half is overwritten while it is read, provided that
 *   - every operation hears from every other rank, which is what the headers are for, and
 *   - a rank's kernels run one after another, whatever streams they are in: each begins when state->ended has reached
 *     `ended_before`.
 * Where a rank has not heard from all in e + 1, because it did the operation in another way (`careful`, or state->unproven is
 * e + 1), it writes nothing into the half before every other rank says in `begun` that it has come to e + 1 or beyond.
 *
 * A half:
 *   at 0                    header: pairs of cells (see pki_ll), flag = epoch: sig in the lower half and `reach` in the upper; of
 *                           pki_twoshot and pki_push also where the reader has the writer's IN, and its OUT or in it the place of
 *                           its block, mapped
 *   at PKI_FUSED_BEGUN      in half 0 alone: the epoch that the writer has begun last
 *   at PKI_FUSED_FLAGS      pki_twoshot, pki_push: for each CTA two words, PKI_FUSED_FLAG_BYTES apart: its parts, its results are
 *                           there (= epoch)
 *   at PKI_FUSED_CELLS      pki_exchange, pki_fold, pki_pair_*: pairs of cells; pki_relay: PKI_FUSED_RELAY_PAIRS of the reader's
 *                           part, and at PKI_FUSED_RELAY_RESULTS as many of the writer's result
 *   at PKI_FUSED_PARTS      pki_twoshot: PKI_FUSED_PIECE bytes at most of the reader's part, pieces of equal length
 *   at PKI_FUSED_RESULTS    pki_twoshot: as many of the writer's result
 *   at PKI_FUSED_PARTS      pki_push: rings, in all PKI_FUSED_PUSH_BYTES
 *   at PKI_FUSED_MARKS      PKI_FUSED_RING_MARKS marks of each ring, PKI_FUSED_MARK_BYTES apart
 * Cells and marks are never used for anything else: what looks like a flag is one.
 *
 * Rings carry a block from each rank to each other one, in chunks. There are n = PKI_PUSH_RINGS for each CTA of the grid,
 * numbered through. A ring has the area divided by n, rounded down to whole KiB. Chunks have as many bytes as make one round of
 * all rings suffice, in multiples of PKI_FUSED_GRAIN, but at most half of a ring and PKI_FUSED_CHUNK: chunk c goes through ring
 * c % n as its turn t = c / n, by slot t % (ring / chunk). A mark is a 64-bit word, count << 32 | epoch, which the other side
 * writes: in the reader's half how many chunks are there, in the writer's half (where that rank writes) how many have been taken,
 * which is kept only where the writer needs it.
 *   marks of ring r: 2 r there, 2 r + 1 taken
 *
 * pki_turn: ends when state->ended has reached `ended_before`, or abort_flag is not 0, and says nothing. What follows it in its
 *   stream holds no multiprocessors before its turn.
 * pki_exchange: block p of IN (at in + p * in_stride, `bytes` long) goes to each rank p in `send`, block p of OUT comes from each
 *   rank p in `recv`. This rank in `recv`: it copies its own.
 * pki_fold: as pki_exchange with the blocks of IN; OUT = the blocks for this rank, its own among them, folded in rank order,
 *   where `recv` is not 0 (then it names all other ranks).
 * pki_relay, for sums: allreduce as pki_twoshot by way of the inboxes, with parts of ceil(pairs / size) pairs of cells and pieces
 *   of PKI_FUSED_RELAY_PAIRS.
 * pki_twoshot, for sums: part p of the data is folded by rank p. Where in_stride is not 0, that is block p of IN, which goes to
 *   the beginning of OUT; else bytes from p * ceil(elements / size) on, a part being rounded up to 16 bytes, which go to the same
 *   place in OUT. The results go to the ranks in `results`. All ranks have the same grid.
 *   When all of them say `reach`, a rank reads the parts from the others' IN and writes the results into their OUT; nobody ends
 *   before all have. Else all goes by way of the inboxes, in pieces: piece k of all parts has epoch `epoch` + k.
 * pki_push: as pki_exchange. When all ranks say `reach`, each writes its blocks to where the headers say that they belong; nobody
 *   ends before all have. Else through rings: a chunk of OUT is written when all ranks in `recv` have sent it.
 * pki_push_sum: as pki_fold for sums, through rings as pki_push, whatever `reach` says. A chunk of OUT is written when all
 *   ranks have sent theirs.
 *
 * pki_pair_exchange, pki_pair_<type>: as pki_exchange, and as pki_fold for sums, among two ranks. With `quiet` such a kernel may
 *   leave out words->done: where words->followed, which it reads when it begins or before, has come to its epoch. Then the
 *   program has put another kernel of the communicator behind it in the same stream; a later one that says so of itself says it
 *   of all before. CTA 0 asks; where it has to tell, it stays until the others of its grid have ended and tells for all.
 *
 * With `clear` pki_exchange, of 0 bytes then, also sets all cells, marks and headers of the epoch's halves to 0, and
 * state->fallen.
 *
 * pki_replay_<name>: as pki_<name>, in graphs: an epoch and a turn for each replay, from pki_fused_replays behind the state. The
 *   inbox is another one than that of kernels that are launched one by one, and so are state and words, which may be this GPU's
 *   memory. A rank's replays run one after another, and all ranks' in the same order. No rank does an operation in another way:
 *   fall is 0 in all entries, `careful`, `quiet`, `clear` and `early` are 0; `epoch` and `ended_before` are not looked at. Epochs
 *   go on with PKI_FUSED_EPOCHS_BEGIN behind the last number. In each, one further pair of each half that the operation does not
 *   use is emptied, so that none keeps a flag for 2^32 epochs.
 *
 * When it has ended, CTA c sets words->done[c] to the last of its epochs and adds 1 to state->ended. While it waits it looks
 * occasionally at abort_flag, and leaves when it is not 0, saying nothing; and at words->fall: when the operation's entry is the
 * epoch, it is done in another way. Then CTA 0 sets words->came to the epoch, and all end, as above, when words->release is it,
 * and set state->unproven to the last of their epochs before they add to state->ended. CTA 0 says meanwhile in
 * words->missing[p] = epoch that it waits for rank p's header (0: it is here), and in words->differs[p] = epoch << 32 | sig that
 * p's is another operation; then it waits until it is aborted.
 */

#define PKI_FUSED_BEGUN 64u
#define PKI_FUSED_FLAGS 1024u
#define PKI_FUSED_FLAG_BYTES 64u
#define PKI_FUSED_CELLS 8192u
#define PKI_FUSED_RELAY_PARTS PKI_FUSED_CELLS
#define PKI_FUSED_RELAY_RESULTS (PKI_FUSED_RELAY_PARTS + 16 * PKI_FUSED_RELAY_PAIRS)
#define PKI_FUSED_PARTS (PKI_FUSED_CELLS + 2 * PKI_FUSED_PAIR_BYTES)
#define PKI_FUSED_RESULTS (PKI_FUSED_PARTS + PKI_FUSED_PIECE)
#define PKI_FUSED_PUSH_BYTES (2 * PKI_FUSED_PIECE)
#define PKI_FUSED_MARKS (PKI_FUSED_PARTS + PKI_FUSED_PUSH_BYTES)
#define PKI_FUSED_RING_MARKS 2u
#define PKI_FUSED_MARK_BYTES 32u
#define PKI_FUSED_MARKS_BYTES (PKI_FUSED_CTAS * PKI_PUSH_RINGS * PKI_FUSED_RING_MARKS * PKI_FUSED_MARK_BYTES)
#define PKI_FUSED_HALF (PKI_FUSED_MARKS + PKI_FUSED_MARKS_BYTES)

#define PKI_PUSH_THREADS (64 * PKI_PUSH_RINGS) /* of each ring one warp sends and one receives */

struct pki_fused_words { /* host memory that the GPU sees */
    uint64_t differs[PKI_FUSED_RANKS];
    uint32_t missing[PKI_FUSED_RANKS];
    uint32_t reserved[8];
    uint32_t followed; /* an epoch: see pki_pair_exchange */
    uint32_t reserved_too[15];
    uint32_t done[PKI_FUSED_CTAS];
    uint32_t fall[PKI_FUSED_FALLS], came[PKI_FUSED_FALLS], release[PKI_FUSED_FALLS];
};

struct pki_fused_state { /* memory of this rank's GPU, aligned to its size, 0 at first */
    uint32_t ended, unproven;
    uint32_t left;   /* abort_flag was seen; */
    uint32_t fallen; /* and that the operation with this epoch is done in another way: for warps that have not asked themselves */
};

#define PKI_FUSED_EPOCHS_BEGIN 2u /* even; 0 is what an empty cell holds */
#define PKI_FUSED_REPLAYS 64u     /* bytes behind the state: */

struct pki_fused_replays { /* 0 at first */
    uint32_t epoch;        /* of the last replay */
    uint32_t ended;        /* CTAs of this one */
};

struct pki_fused_args {
    uint64_t in, out;
    uint64_t in_stride, out_stride;  /* bytes from one rank's block to the next */
    uint64_t bytes;                  /* of a block */
    uint64_t inbox;                  /* of this rank: half h of the p-th other rank at inbox + (2 p + h) * PKI_FUSED_HALF */
    uint64_t peers[PKI_FUSED_RANKS]; /* where this rank's half 0 is in rank p's inbox, mapped here */
    uint64_t words;                  /* struct pki_fused_words */
    uint64_t abort_flag;             /* address of a 32-bit word */
    uint64_t state;                  /* struct pki_fused_state */
    uint32_t ended_before;
    uint32_t epoch;
    uint32_t rank, size;
    uint32_t send, recv; /* bit p: rank p */
    uint32_t sig;
    uint32_t op, divisor; /* as in pki_reduce_args */
    uint32_t type;        /* pk_dtype_t, of sums. pki_relay, pki_twoshot, pki_push_sum: PK_F32, PK_F16 or PK_BF16 */
    /* for who launches: it may be launched before what is ahead of it in the stream has ended, where a GPU can */
    uint32_t early;
    uint32_t fence; /* 1: everything written is visible to all before `done` is set */
    uint32_t clear;
    uint32_t careful;
    /* reach: all others have what they need of IN and OUT mapped, aligned to 16 bytes. results: pki_twoshot */
    uint32_t reach, results;
    uint32_t epochs; /* of the operation */
    uint32_t entry;  /* its own of words->fall, came and release */
    uint32_t quiet;
    uint32_t replayed;                                              /* for who launches: the kernel is pki_replay_<name> */
    uint64_t in_there[PKI_FUSED_RANKS], out_there[PKI_FUSED_RANKS]; /* for rank p's header, if `reach` */
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that wait, each for a word of its own, in one launch. Layout: kernels.h. */
#include "kernels/words.cuh"

namespace
{

/* Of an op, this CTA's if it is less than n. */
struct move_share {
    uint32_t n, mine;
};

__device__ __forceinline__ move_share share_of(const pki_move_args &args, uint32_t op)
{
    uint64_t bytes = args.ops[op].bytes, whole = bytes > 0 ? (bytes - 1) / PKI_MOVE_SHARE_BYTES + 1 : 1;
    uint32_t n = whole < gridDim.x ? (uint32_t)whole : gridDim.x;

    return { n, (blockIdx.x + gridDim.x - op * n % gridDim.x) % gridDim.x };
}

/*
 * Whoever opened the signal may have written the source just before, in another GPU. One lane has acquired the word, and the
 * barrier behind it orders all loads of the CTA. They are relaxed ones of system scope: L2 answers them, this GPU's or the
 * peer's, and never L1, where a line of an earlier transfer from the same place may be; and volatile, so that the compiler leaves
 * them behind the barrier. Never ld.nc: the source changes while the kernel runs.
 */
__device__ __forceinline__ void load_far(const uint4 *from, uint4 *word)
{
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word->x), "=r"(word->y), "=r"(word->z), "=r"(word->w)
                 : "l"(from)
                 : "memory");
}

__device__ __forceinline__ void load_far(const uint2 *from, uint2 *word)
{
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(word->x), "=r"(word->y) : "l"(from) : "memory");
}

__device__ __forceinline__ void load_far(const uint32_t *from, uint32_t *word)
{
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(*word) : "l"(from) : "memory");
}

__device__ __forceinline__ void load_far(const uint16_t *from, uint16_t *word)
{
    asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(*word) : "l"(from) : "memory");
}

__device__ __forceinline__ void load_far(const uint8_t *from, uint8_t *word)
{
    uint32_t wide;

    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(wide) : "l"(from) : "memory");
    *word = (uint8_t)wide;
}

/* What the threads of a CTA hear of the abort word while they copy, each at its own pace. */
struct move_watch {
    uint64_t abort_flag;
    volatile uint32_t *left; /* shared memory */
};

__device__ __forceinline__ bool must_leave(const move_watch &watch, uint32_t batch)
{
    if (threadIdx.x == 0 && batch % PKI_MOVE_BATCHES_A_LOOK == 0 && is_aborted(watch.abort_flag))
        *watch.left = 1;
    return *watch.left != 0;
}

/* What a thread has before it: words at `from`, and every `step` bytes from there to `end`. Each goes `apart` bytes further. */
struct move_way {
    uint64_t from, end, step, apart;
};

/* As many at a time as there are, up to Count. False: aborted meanwhile. */
template <typename Word, int Count> __device__ __forceinline__ bool move_words(move_way way, const move_watch &watch)
{
    uint32_t batch = 0;

#pragma unroll 1
    for (; way.from + (Count - 1) * way.step < way.end;) {
        Word word[Count];
        uint64_t to = way.from + way.apart;

        if (Count == PKI_MOVE_WORDS && must_leave(watch, ++batch))
            return false;
#pragma unroll
        for (int i = 0; i < Count; i++, way.from += way.step)
            load_far((const Word *)way.from, &word[i]);
#pragma unroll
        for (int i = 0; i < Count; i++, to += way.step)
            *(Word *)to = word[i];
    }
    if constexpr (Count > 1)
        return move_words<Word, Count / 2>(way, watch);
    return true;
}

/* Bytes up to `head` and from `tail` on, less than 16 each: by the last warp, which has no words of a short op to move. */
__device__ __forceinline__ void move_edges(const pki_move_args_op &op, uint64_t head, uint64_t tail)
{
    uint32_t lane = PKI_MOVE_THREADS - 1 - threadIdx.x;
    uint64_t at = lane < 16 ? lane : tail + lane - 16, end = lane < 16 ? head : op.bytes;
    uint8_t byte;

    if (lane >= 32 || at >= end)
        return;
    load_far((const uint8_t *)op.src + at, &byte);
    ((uint8_t *)op.dst)[at] = byte;
}

template <typename Word>
__device__ __forceinline__ bool move_as(const pki_move_args_op &op, const move_share &share, const move_watch &watch)
{
    uint64_t head = (0 - op.dst) % sizeof(Word), tail;

    head = head < op.bytes ? head : op.bytes;
    tail = op.bytes - (op.bytes - head) % sizeof(Word);
    if (sizeof(Word) > 1 && share.mine == 0)
        move_edges(op, head, tail);
    return move_words<Word, PKI_MOVE_WORDS>({ op.src + head + (share.mine * PKI_MOVE_THREADS + threadIdx.x) * sizeof(Word),
                                              op.src + tail, share.n * PKI_MOVE_THREADS * sizeof(Word), op.dst - op.src },
                                            watch);
}

/* In the longest words that are aligned in source and target alike. */
__device__ __forceinline__ bool move_bytes(const pki_move_args_op &op, const move_share &share, const move_watch &watch)
{
    uint64_t apart = op.src ^ op.dst;

    if (apart % sizeof(uint4) == 0)
        return move_as<uint4>(op, share, watch);
    if (apart % sizeof(uint2) == 0)
        return move_as<uint2>(op, share, watch);
    if (apart % sizeof(uint32_t) == 0)
        return move_as<uint32_t>(op, share, watch);
    if (apart % sizeof(uint16_t) == 0)
        return move_as<uint16_t>(op, share, watch);
    return move_as<uint8_t>(op, share, watch);
}

/*
 * By thread 0, behind the barrier of all that have moved the share. The fence orders their stores before the count; whoever
 * counts last has seen all the others' counts, and its release orders all of it before the done word. With one share the release
 * alone does.
 */
__device__ __forceinline__ void tell(const pki_move_args_op &op, uint32_t shares)
{
    if (shares > 1) {
        __threadfence_system();
        if (atomicInc((unsigned *)op.arrived, shares - 1) != shares - 1)
            return;
    }
    if (op.done != 0)
        store_release(op.done, op.done_value);
}

/* False: aborted. */
__device__ __forceinline__ bool move_op(const pki_move_args &args, uint32_t i, const move_watch &watch)
{
    const pki_move_args_op &op = args.ops[i];
    move_share share = share_of(args, i);
    bool whole = move_bytes(op, share, watch);

    if (!__syncthreads_and(whole))
        return false;
    if (threadIdx.x == 0)
        tell(op, share.n);
    return true;
}

/* The functions below are for the first warp; bit i stands for op i. */

__device__ __forceinline__ uint64_t ops_of_both(bool lower, bool upper)
{
    uint32_t low = __ballot_sync(~0u, lower), high = __ballot_sync(~0u, upper);

    return (uint64_t)high << 32 | low;
}

__device__ __forceinline__ bool has_share(const pki_move_args &args, uint32_t op)
{
    move_share share = share_of(args, op < args.n ? op : 0);

    return op < args.n && share.mine < share.n;
}

__device__ __forceinline__ bool may_start(const pki_move_args &args, uint64_t waiting, uint32_t i)
{
    if ((waiting >> i & 1) == 0)
        return false;
    return args.ops[i].start == 0 || (int32_t)(load_acquire(args.ops[i].start) - args.ops[i].start_value) >= 0;
}

__device__ __forceinline__ void find_shares(const pki_move_args &args, uint64_t *waiting)
{
    uint64_t mine = ops_of_both(has_share(args, threadIdx.x), has_share(args, threadIdx.x + 32));

    if (threadIdx.x == 0)
        *waiting = mine;
    __syncwarp();
}

/* The ops of `waiting` that are open, one at least, go to *open_now; 0: none waits, or aborted. The abort word is on its way
 * while the others are asked for. */
__device__ __forceinline__ void wait_for_ops(const pki_move_args &args, uint64_t *waiting, uint64_t *open_now)
{
    uint64_t wanted = *waiting, open = 0;

    while (wanted != 0) {
        bool aborted = is_aborted(args.abort_flag), lower = may_start(args, wanted, threadIdx.x),
             upper = may_start(args, wanted, threadIdx.x + 32);

        open = ops_of_both(lower, upper);
        if (__any_sync(~0u, aborted))
            open = wanted = 0;
        if (open != 0 || wanted == 0)
            break;
        __nanosleep(PKI_MOVE_SLEEP_NS * __popcll(wanted));
    }
    __syncwarp();
    if (threadIdx.x == 0) {
        *waiting = wanted & ~open;
        *open_now = open;
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(PKI_MOVE_THREADS, 2) pki_move(const __grid_constant__ pki_move_args args)
{
    __shared__ volatile uint32_t left;
    __shared__ uint64_t waiting, open_now; /* the first warp's; all read the second */

    if (threadIdx.x == 0)
        left = 0;
    if (threadIdx.x < 32)
        find_shares(args, &waiting);
    for (;;) {
        uint64_t open;

        if (threadIdx.x < 32)
            wait_for_ops(args, &waiting, &open_now);
        __syncthreads();
        open = open_now;
        if (open == 0)
            return;
        for (; open != 0; open &= open - 1) { /* each ends behind a barrier: all have read open_now */
            if (!move_op(args, __ffsll((long long)open) - 1, { args.abort_flag, &left }))
                return;
        }
    }
}

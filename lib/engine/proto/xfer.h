/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers between this rank and a peer, and the peer itself. Locked.
 *
 * xfer   one transfer: posted, matched, moved
 * peer   the other end: its control channel, its ways, what has arrived before it was asked for
 */
#ifndef PKI_ENGINE_XFER_H
#define PKI_ENGINE_XFER_H

#include "engine/mem/region.h"
#include "tuning/tuning.h"

struct pki_task;

#define PKI_CTRL_DATA_MAX ((size_t)256 << 20)
#define PKI_LL_RING_BYTES (7680u << 10)  /* for low-latency messages, of a pair and direction */
#define PKI_LL_UNIT 128u                 /* places in it are multiples of this */
#define PKI_LL_MESSAGES 128u             /* in it at a time */
#define PKI_IFACES_MAX 4

enum pki_xfer_state {
    PKI_XFER_UNPOSTED,  /* receive: a dependency may still use the buffer. send: no byte of it is ready */
    PKI_XFER_SAY,       /* the next message (EAGER, RTS or CTS) has not gone out: no room, or its turn has not come */
    PKI_XFER_WAIT,      /* send: for the grant. receive: for data */
    PKI_XFER_MOVE,      /* send: granted; chunks go as they become ready */
    PKI_XFER_DONE
};

/* Whoever made a transfer: it goes on when bytes of it have moved. */
struct pki_xfer_user {
    /* `done` bytes in all may be read, or overwritten; `ended`: and the transfer is gone. */
    void (*progressed)(struct pki_task *task, uint32_t step, size_t done, bool ended);
    /* Host, of a transfer that combines: work these bytes, which belong at `at`, into the step's own operand. */
    pk_result_t (*combine)(struct pki_task *task, uint32_t step, size_t at, const void *payload, size_t bytes);
};

struct pki_xfer {
    struct pki_list match;  /* peer->sends or peer->recvs while it can be matched */
    struct pki_list active; /* engine->active while it must be looked at in every progress */
    struct pki_engine *engine;
    struct pki_peer *peer;
    struct pki_task *task;
    const struct pki_xfer_user *user;
    uint32_t step;          /* of the task's plan */
    bool is_send;
    bool rts_seen;          /* send: RTS has been sent. receive: RTS has arrived */
    bool ll;                /* a low-latency message: signal_slot is its place in the ring, signal_value its flag */
    bool in_stream;         /* a stream moves it; only completion is watched here */
    bool quiet;             /* send: the receiver's grant is looked for before RTS is said */
    bool joined;            /* its start signal opens no later than that of the pair's transfer before it */
    bool opened;            /* receive: the buffer is free */
    bool by_bounce;         /* send: the receiver gives slots, a piece at a time */
    bool bounce;            /* send: pieces go through slots of this rank */
    bool direct;            /* by_bounce: the transport's devices reach this rank's GPU memory, and no slot here is needed */
    bool by_ctrl;           /* send: as DATA, whatever the way could do */
    bool combines;          /* to a RECV_REDUCE on the host: DATA is combined as it comes */
    bool may_get;           /* and the receiver could get it, too, when it granted */
    bool remote_mapped;     /* `remote` is memory of this process */
    bool eager_put;         /* send: moved without a grant */
    bool cts_local;         /* receive: granted to the transport alone */
    bool gets;             /* the receiver combines straight from the sender's memory */
    bool coop, piece_out, all_moved; /* both ends move it; this one is at a piece; it has moved the last one */
    bool asks;              /* receive: what was offered cannot be fetched any more, and the sender has not been told yet */
    struct pki_ep *path;    /* send, granted, or offered */
    enum pki_xfer_state state;
    enum pki_mem_kind kind;
    uint8_t flags;          /* PKI_MSG_FLAG_* */
    uint16_t index;
    uint32_t sig;
    uint64_t op;
    char *addr;
    size_t bytes, chunk;
    size_t ready;           /* send: bytes that may be read */
    size_t issued, done;    /* bytes handed over; bytes finished, in order */
    size_t reported;        /* send: bytes that FIN has announced */
    uint64_t remote;        /* send, granted: where to. receive, offered: where from */
    int signal_slot;        /* -1: none */
    uint32_t signal_value;
    struct pki_signal start, finish; /* of the slot: buffer free; last byte in place. Of the cell: bytes ready; taken */
    struct pki_signal_slot *cell; /* send: offered there. receive: the offer was taken. NULL: neither, or not yet */
    uint32_t cell_value;        /* that opens its start and done */
    struct pki_put puts[PKI_XFER_PUTS_FEW];
    struct pki_put *more;   /* [PKI_XFER_PUTS] instead, if it has_more; NULL: not made. Like `puts` it lives as long as the engine */
    bool has_more;
    unsigned puts_head, puts_tail;
    uint32_t region;        /* granted or offered: of this rank; 0: none */
    struct pki_bounce *bounce_state;
    void *kept;             /* receive into GPU memory: an eager message that came before the buffer was free */
    int slot;               /* pinned memory for a low-latency kernel to read; -1: none */
    int own_signal;         /* receive: `finish` is this word of the rank's own; -1: it is the slot's */
};

struct pki_unexpected { /* a message that nobody had asked for */
    struct pki_list node;
    struct pki_msg msg;
    unsigned char payload[];
};

/* Low-latency messages that this rank, as receiver, has granted, oldest first; a message's flag names its entry. */
struct pki_ll_ring {
    uint32_t flag; /* of the last one */
    uint32_t oldest, live;
    uint32_t head, tail; /* in units: where the next begins, where the oldest does */
    struct {
        uint32_t flag, end;
        bool over;
    } entries[PKI_LL_MESSAGES];
};

struct pki_slots { /* signal slots of one pair that this rank, as receiver, hands out */
    uint16_t free[PKI_SIGNAL_SLOTS];
    uint32_t value[PKI_SIGNAL_SLOTS]; /* last value handed out */
    int nfree;
};

struct pki_graph_slot {
    uint16_t slot;
    uint64_t granted; /* how often it was */
};

/* Why a rank has left in good order: with nothing unfinished of its own. The numbers travel. */
enum pki_shutdown { PKI_SHUTDOWN_DESTROYED = 0, PKI_SHUTDOWN_ABORTED = 1, PKI_SHUTDOWN_ENDED = 2, PKI_SHUTDOWN_FINALIZED = 3, PKI_SHUTDOWN_NONE };

struct pki_peer {
    /* what every message needs */
    struct pki_ep *ctrl;
    size_t eager_max;               /* longest transfer of host memory that travels in the control channel without a grant */
    size_t eager_coll;              /* the same of a collective's step */
    size_t eager_out;               /* eager bytes sent and not yet credited */
    size_t eager_in;                /* eager bytes consumed and not yet credited back */
    uint64_t sends_begun[2], recvs_begun[2]; /* matching numbers; [1]: captured operations */
    struct pki_list sends, unexpected_queue, recvs;

    int rank;
    int neps;
    struct pki_ep *eps[PKI_IFACES_MAX]; /* all endpoints; control channel and ways are among them */
    struct pki_ep *path[2][2];      /* [source kind][target kind] */
    int side_fd;
    bool gone;                      /* sent its shutdown message, or died */
    uint64_t gone_ns;               /* when that was first looked at; 0: not yet */
    enum pki_shutdown shutdown;     /* which shutdown message; NONE: none has been heard, */
    uint32_t last_coll;             /* else the number of the last collective that began there */
    bool unreported;                /* of this engine's failure: there was no room */
    uint64_t meeting_ns, budget_ns; /* that sends in streams may still spend on waits in vain for this peer's grants; as of when */
    uint64_t coll_heard;            /* highest number of a collective it has spoken of */
    uint64_t answered, answered_number; /* stragglers.c: the last question that it answered; the collective it had come to by then, */
    int answered_waits;                 /* and the rank that it waited for, -1: none */
    size_t eager_put_max, eager_put_credit; /* longest transfer that may move without a grant; most bytes of such */
    size_t eager_put_out;           /* bytes of those that have been sent and not yet credited */
    size_t eager_put_in;            /* bytes of those that have been received and not yet credited back */
    struct pki_slots signals;
    struct pki_graph_slot *graph_slots; /* of those the ones that captured collectives share: that of the pair's k-th receive */
    uint32_t ngraph_slots;
    _Atomic uint32_t *let_go;       /* [2 * PKI_PAIR_SLOTS], watchdog.c's; NULL without a GPU */
    struct pki_ll_ring lls;
    uint32_t room_ns;               /* how long to wait for room there */
    uint32_t ll_call, ll_first;     /* the last call that took a place there, and its first message */
    bool ll_by_kernel;              /* its last low-latency message was sent by a kernel: the next one will hardly need this CPU */
    char *ll_remote;                /* the peer's ring for this rank, mapped here */
    char *ll_held;                  /* where that memory begins, if the peer is of this process: see ll.c */
    struct pki_export ll_exported;
    uint64_t ll_mapping;
    struct pki_import *imports;
    uint32_t nimports, imports_cap;
    uint32_t *reported;             /* [entry]: the id of our region there that the peer has been told of */
    uint32_t reported_cap;
    uint32_t exporting, exported_pieces; /* a description in the middle of being sent */
};

/* The cell of a step of a collective, in either direction, and which step of which collective it is. */
#define PKI_STEPS_A_COLLECTIVE 16 /* of a pair and direction; those of plans with more share cells with the next collectives */
static inline int pki_cell_of_step(uint64_t number, unsigned index)
{
    return PKI_SIGNAL_SLOTS + PKI_CELLS + (int)((number * PKI_STEPS_A_COLLECTIVE + index) % PKI_CELLS);
}

/* A step without bytes, of a barrier: peers whose barrier is in a CUDA stream wait for a word, which their GPU sees (stream/barrier.c). A stream
 * writes it itself. */
static inline void pki_barrier_arrive(struct pki_peer *peer, uint64_t number, unsigned index)
{
    _Atomic uint32_t *word = peer->ctrl->signals_theirs != NULL ? &peer->ctrl->signals_theirs[pki_cell_of_step(number, index)].moved : NULL;
    uint32_t seen = word != NULL ? atomic_load_explicit(word, memory_order_relaxed) : 0;

    while (word != NULL && (int32_t)((uint32_t)number - seen) > 0 && !atomic_compare_exchange_weak(word, &seen, (uint32_t)number))
        ; /* a stream may have come to a later barrier */
}

/* ctrl.c: messages of a peer */
pk_result_t pki_ctrl_send(struct pki_peer *peer, const struct pki_msg *msg, const void *payload, struct pki_engine *engine);
bool pki_ctrl_poll(struct pki_engine *engine, struct pki_peer *peer);
/* Take an unexpected message that speaks of `xfer`; NULL when there is none. The caller frees it. */
struct pki_unexpected *pki_ctrl_take(struct pki_xfer *xfer);
void pki_ctrl_consumed(struct pki_engine *engine, struct pki_peer *peer, size_t payload);
/* The same of bytes that went before a CTS. */
void pki_ctrl_eager_put_consumed(struct pki_engine *engine, struct pki_peer *peer, size_t bytes);

/* xfer.c, send.c, recv.c */
struct pki_xfer *pki_xfer_new(struct pki_engine *engine, int peer, bool is_send);
void pki_xfer_free(struct pki_xfer *xfer);
void pki_xfers_release(struct pki_engine *engine); /* the memory of all of them, free or not */
void pki_xfer_activate(struct pki_xfer *xfer);
void pki_xfer_advance(struct pki_xfer *xfer);
static inline size_t pki_xfer_eager_max(const struct pki_xfer *xfer)
{
    return (xfer->flags & PKI_MSG_FLAG_COLL) != 0 ? xfer->peer->eager_coll : xfer->peer->eager_max;
}

/* Neither eager nor too long, and nobody has asked for a grant: the sender has the credit to go ahead, or else says RTS. */
static inline bool pki_xfer_is_eager_put(const struct pki_xfer *xfer)
{
    return xfer->bytes <= xfer->peer->eager_put_max && xfer->bytes > pki_xfer_eager_max(xfer) && !xfer->rts_seen &&
           xfer->peer->path[PKI_MEM_HOST][PKI_MEM_HOST] == xfer->peer->ctrl && (xfer->flags & PKI_MSG_FLAG_CAPTURED) == 0;
}

/* How many chunks `bytes` of it are. */
static inline size_t pki_xfer_chunks(const struct pki_xfer *xfer, size_t bytes)
{
    return bytes == 0 ? 0 : (bytes - 1) / xfer->chunk + 1;
}

void pki_xfer_post(struct pki_xfer *xfer);
/* All of it by one copy in this queue, into or out of the peer's memory, whichever side moves it. */
pk_result_t pki_xfer_put(struct pki_xfer *xfer, struct pki_queue *queue);
void pki_xfer_progressed(struct pki_xfer *xfer);
void pki_send_advance(struct pki_xfer *xfer);
bool pki_send_rts(struct pki_xfer *xfer); /* says RTS. False: there was no room */
void pki_send_cts_arrived(struct pki_xfer *xfer, const struct pki_msg *grant);
/* Sends to this peer that have waited long for a grant, and were silent so far, say what they are: the peer may expect another transfer. */
void pki_send_overdue_rts(struct pki_peer *peer, uint64_t now);
void pki_send_put_done(struct pki_put *put);
void pki_recv_advance(struct pki_xfer *xfer);
void pki_recv_message(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload);
/* The buffer is free: the receive may be matched, or its signal opened. */
void pki_recv_open(struct pki_xfer *xfer);
/* The peer's message disagrees; `bytes` is what it says of the length. */
void pki_xfer_mismatch(struct pki_xfer *xfer, const struct pki_msg *msg, size_t bytes);
struct pki_ll_op pki_ll_send_op(struct pki_xfer *xfer);
void pki_send_ats_arrived(struct pki_xfer *xfer, const struct pki_msg *msg);
void pki_put_failed(struct pki_xfer *xfer, pk_result_t result);
/* Is it that the transport cannot put any more? The bytes go otherwise then. */
bool pki_put_refused(const struct pki_xfer *xfer, pk_result_t result);

/* coop.c: long transfers of host memory that both ends move */
void pki_coop_reserve(struct pki_xfer *xfer);                                /* receive: take a slot for the grant, if it may be shared */
pk_result_t pki_coop_offer(struct pki_xfer *xfer);                           /* send */
void pki_coop_get(struct pki_xfer *xfer);                                    /* receive */
void pki_coop_get_done(struct pki_xfer *xfer, const struct pki_put *get);    /* receive: a piece of what is pulled has landed */
bool pki_coop_may_get(const struct pki_xfer *xfer);                          /* receive that combines */
bool pki_coop_pays(const struct pki_xfer *xfer);                             /* send, granted; else it goes through the control channel */
/* Two copies through the control channel take less time than one by the kernel, as of now. */
bool pki_coop_is_near(const struct pki_xfer *xfer);
/* All ranks move as much as any other at the same time: nobody has time to help. */
bool pki_coop_is_even(const struct pki_xfer *xfer);
void pki_coop_offered(struct pki_xfer *xfer, const struct pki_msg *offer);   /* receive */
void pki_coop_advance(struct pki_xfer *xfer);
void pki_coop_piece_done(struct pki_xfer *xfer);
/* The kernel does not copy for the receiver any more: it asks for DATA, and the sender hears of it. */
void pki_coop_ask_for_data(struct pki_xfer *xfer);
void pki_coop_left(struct pki_xfer *xfer); /* receive: the sender has gone over to DATA */
void pki_coop_data_asked(struct pki_xfer *xfer, const struct pki_msg *grant);
void pki_coop_ended(struct pki_xfer *xfer); /* all is in place and both know */

struct pki_bounce_pool {     /* slots of one direction, and the queue that copies between them and GPU memory */
    char *memory;            /* NULL: not made yet */
    uint8_t free[PKI_BOUNCE_BUFFERS];
    int nfree;
    struct pki_queue queue;
};

/* bounce.c: through slots of pinned host memory */
void pki_bounce_send(struct pki_xfer *xfer); /* advances xfer->done */
void pki_bounce_placed(struct pki_xfer *xfer, const struct pki_msg *msg);
void pki_bounce_put_done(struct pki_xfer *xfer, struct pki_put *put);
bool pki_bounce_low_latency(struct pki_xfer *xfer);
char *pki_bounce_low_latency_source(const struct pki_xfer *xfer);
void pki_bounce_give(struct pki_xfer *xfer);
void pki_bounce_requested(struct pki_xfer *xfer, const struct pki_msg *msg);
void pki_bounce_landed(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload);
void pki_bounce_recv(struct pki_xfer *xfer);
void pki_bounce_eager(struct pki_xfer *xfer, const void *payload);
void pki_bounce_unexpected(struct pki_xfer *xfer);
void pki_bounce_poll(struct pki_xfer *xfer);
void pki_bounce_leave(struct pki_xfer *xfer);
bool pki_bounce_idle(struct pki_engine *engine);
/* May a copy from or to the host be put into this queue now? */
static inline bool pki_may_copy(struct pki_queue *queue, size_t bytes)
{
    return queue->device->ops->clear(queue, bytes < pki_tuning.gpu.engine_copy_bytes);
}

/* The queue for copies from host memory (up) or to it; NULL: the engine has failed. */
struct pki_queue *pki_bounce_queue(struct pki_engine *engine, bool up);
void pki_bounce_close(struct pki_engine *engine);
/* Under sm_policy NONE the one copy inside the GPU that an exchange out of place has to make, of a rank's own block, goes through the
 * host: by copy engines, where any other copy would be a kernel. */
bool pki_bounce_copies(const struct pki_engine *engine, enum pki_coll coll, const struct pki_plan *plan);
/* Through one slot of those of sends, which the queue's order alone guards: nothing else uses it. */
pk_result_t pki_bounce_copy(struct pki_engine *engine, const struct pki_queue *queue, int slot, char *dst, const char *src, size_t bytes);

/* self.c: a transfer from this rank to itself */
void pki_self_advance(struct pki_xfer *xfer);

/* ll.c */
/* The ring of messages from `peer` in the memory of `owner`, which has none of its own; `size`: behind all rings. */
size_t pki_ll_ring_at(int owner, int peer);
void pki_ll_unimport(struct pki_peer *peer);
/* Gives up its memory, and that of peers in the same process: the last that has it frees it. */
void pki_ll_close(struct pki_engine *engine);
bool pki_ll_take(struct pki_ll_ring *ring, size_t bytes, int *place, uint32_t *flag); /* false: no room now */
void pki_ll_give(struct pki_ll_ring *ring, uint32_t flag); /* again: nothing happens */
/* As pki_ll_take; waits for a moment for messages of this peer that are about to end. */
bool pki_ll_take_soon(struct pki_engine *engine, struct pki_peer *peer, size_t bytes, int *place, uint32_t *flag);
uint32_t pki_ll_ctas(const struct pki_engine *engine, size_t bytes);
uint32_t pki_ll_most_ctas(const struct pki_engine *engine); /* of one launch */
uint64_t *pki_ll_slot(struct pki_engine *engine, int peer, int place);
uint32_t *pki_ll_arrived(struct pki_engine *engine, int peer, bool send, uint32_t flag);
uint32_t *pki_ll_moved(struct pki_engine *engine, const struct pki_xfer *xfer); /* the word of the moving kernel's for this transfer */

/* side.c: frames on the socket beside the control channel */
void pki_side_send_forget(struct pki_engine *engine, struct pki_peer *peer, uint32_t id); /* a hint: it may get lost */
pk_result_t pki_side_send_export(struct pki_engine *engine, struct pki_peer *peer, uint32_t id, const struct pki_export *exported);
void pki_side_poll(struct pki_engine *engine, struct pki_peer *peer);
/* Unlocked, nothing is taken: has the peer failed, or died, as far as can be seen? */
pk_result_t pki_side_peek(const struct pki_engine *engine, const struct pki_peer *peer);
void pki_side_tell_all(struct pki_engine *engine); /* that it has failed */
void pki_side_send_shutdown(struct pki_engine *engine, enum pki_shutdown why); /* once */
/* Those that had no room for the news of this engine's failure. */
void pki_side_tell_again(struct pki_engine *engine);
void pki_side_message(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg, const void *payload);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers between this rank and a peer, and the peer itself. Locked.
 *
 * xfer   one transfer: posted, matched, moved
 * peer   the other end: its control channel, its ways, what has arrived before it was asked for
 */
#ifndef PKI_ENGINE_XFER_H
#define PKI_ENGINE_XFER_H

#include "engine/core/region.h"
#include "tuning/tuning.h"

struct pki_task;
struct pki_protocol;

#define PKI_IFACES_MAX 4

/* How far a transfer has come, and by which protocol. Only pki_xfer_enter changes it. */
enum pki_xfer_state {
    PKI_XFER_UNPOSTED,  /* A receive's buffer may still be in use, or a send has no byte that is ready. */
    PKI_XFER_LOOK,      /* A send looks for its grant before it says RTS. */
    PKI_XFER_SAY,       /* The next message (EAGER, RTS or CTS) has not gone out: there is no room, or its turn has not come. */
    PKI_XFER_WAIT,      /* A send waits for its grant, or a receive for data or for a signal. */
    PKI_XFER_LOCAL,     /* A receive has posted its buffer and told nobody: an eager put comes to it. */
    PKI_XFER_ASK,       /* A receive cannot fetch what was offered, and has yet to tell the sender. */
    PKI_XFER_MOVE,      /* A send is granted, and goes as its path and memory demand, chunk by chunk. */
    PKI_XFER_EAGER_PUT, /* A send goes by puts though nobody has granted it. */
    PKI_XFER_DATA,      /* A send is granted, and goes as DATA messages whatever its path could do. */
    PKI_XFER_COOP,      /* Both ends move pieces of it. */
    PKI_XFER_GET,       /* The receiver reads it from the sender's memory and combines it. */
    PKI_XFER_STREAM,    /* A stream moves it, and only its end is watched here. */
    PKI_XFER_DONE       /* All of it is in place, and both ends know or will. */
};

/* Slots of pinned memory on the way of a send. */
enum pki_xfer_slots {
    PKI_SLOTS_NONE,
    PKI_SLOTS_HERE,  /* this rank's */
    PKI_SLOTS_THERE, /* the receiver's, which gives one for each piece */
    PKI_SLOTS_BOTH
};

enum pki_xfer_piece { PKI_PIECE_NONE, PKI_PIECE_OUT, PKI_PIECE_LAST /* all of them have been moved */ };

/* Whoever made a transfer: it goes on when bytes of it have moved. */
struct pki_xfer_user {
    /* `done` bytes in all may be read, or overwritten; `ended`: and the transfer is gone. */
    void (*progressed)(struct pki_task *task, uint32_t step, size_t done, bool ended);
    /* Host, of a transfer that combines: work these bytes, which belong at `at`, into the step's own operand. */
    pk_result_t (*combine)(struct pki_task *task, uint32_t step, size_t at, const void *payload, size_t bytes);
};

/* What of a transfer transports are moving: a ring, [tail, head) of which are theirs. */
struct pki_xfer_puts {
    struct pki_put few[PKI_XFER_PUTS_FEW];
    struct pki_put *more; /* [PKI_XFER_PUTS_OF_MESSAGE] instead, if n says so; NULL: not made. It lives as long as the engine */
    uint8_t n;            /* that may be in flight; 0: PKI_XFER_PUTS_FEW */
    unsigned head, tail;
};

/* Which transfer of the pair it is: what each of its messages says (proto/xfer.c makes them). */
struct pki_xfer_id {
    uint8_t flags; /* PKI_MSG_FLAG_* */
    uint16_t index;
    uint32_t sig;
    uint64_t op;
};

/* The words by which both ends, or their streams, tell one another (proto/grant.c, proto/recv.c; cells: proto/offer.c). */
struct pki_xfer_signals {
    int slot; /* -1: none */
    uint32_t value;
    bool ll;                         /* a low-latency message: slot is its place in the ring, value its flag */
    bool joined;                     /* its start signal opens no later than that of the pair's transfer before it */
    struct pki_signal start, finish; /* of the slot: buffer free; last byte in place. Of the cell: bytes ready; taken */
    struct pki_signal_slot *cell;    /* send: offered there. receive: the offer was taken. NULL: neither, or not yet */
    uint32_t cell_value;             /* that opens its start and done */
    int own;                         /* receive: `finish` is this word of the rank's own; -1: it is the slot's */
};

/* Pinned memory on its way (proto/bounce.c). */
struct pki_xfer_bounce {
    enum pki_xfer_slots slots; /* send: through which its pieces go */
    bool direct;               /* slots: the transport's devices reach this rank's GPU memory, and no slot here is needed */
    struct pki_bounce *state;
    void *kept; /* receive into GPU memory: an eager message that came before the buffer was free */
    int slot;   /* for a low-latency kernel to read; -1: none */
};

/* Both ends move it, or the receiver reads and combines it (proto/coop.c). */
struct pki_xfer_coop {
    enum pki_xfer_piece piece; /* COOP, GET: what this end is at */
    bool combines;             /* to a RECV_REDUCE on the host: DATA is combined as it comes */
    bool may_get;              /* and the receiver could get it, too, when it granted */
};

/* The peer's memory (proto/grant.c, proto/offer.c). */
struct pki_xfer_there {
    uint64_t remote; /* send, granted: where to. receive, offered: where from */
    bool mapped;     /* `remote` is memory of this process */
    uint32_t region; /* granted or offered: of this rank; 0: none */
};

/* Whoever made it. */
struct pki_xfer_maker {
    const struct pki_xfer_user *calls;
    struct pki_task *task;
    uint32_t step; /* of the task's plan */
};

/* What transports have of it. */
struct pki_xfer_moves {
    struct pki_xfer_puts puts;
    struct pki_recv recv; /* receive: what has been posted */
};

struct pki_xfer {
    struct pki_list match;  /* peer->sends or peer->recvs while it can be matched */
    struct pki_list active; /* engine->proto.active while it must be looked at in every progress */
    struct pki_engine *engine;
    struct pki_peer *peer;
    struct pki_xfer_maker user;
    const struct pki_protocol *protocol;
    struct pki_ep *path; /* send, granted, or offered */
    enum pki_xfer_state state;
    enum pki_mem_kind kind;
    bool is_send;
    bool rts_seen; /* send: RTS has been sent. receive: RTS has arrived */
    bool opened;   /* receive: the buffer is free */
    struct pki_xfer_id id;
    char *addr;
    size_t bytes, chunk;
    size_t ready;        /* send: bytes that may be read */
    size_t issued, done; /* bytes handed over; bytes finished, in order */
    size_t reported;     /* send: bytes that FIN has announced */
    struct pki_xfer_there there;
    struct pki_xfer_signals signals;
    struct pki_xfer_coop coop;
    struct pki_xfer_bounce bounce;
    struct pki_xfer_moves moves;
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

struct pki_graph_slots { /* of the pair's, those that captured collectives share: that of its k-th receive (mem/graphs.c) */
    struct pki_graph_slot *at;
    uint32_t n;
};

/* Why a rank has left in good order: with nothing unfinished of its own. The numbers travel. */
enum pki_shutdown {
    PKI_SHUTDOWN_DESTROYED = 0,
    PKI_SHUTDOWN_ABORTED = 1,
    PKI_SHUTDOWN_ENDED = 2,
    PKI_SHUTDOWN_FINALIZED = 3,
    PKI_SHUTDOWN_NONE
};

/* Eager messages of a pair (channel/ctrl.c). */
struct pki_peer_eager {
    size_t max;  /* longest transfer of host memory that travels in the control channel without a grant */
    size_t coll; /* the same of a collective's step */
    size_t out;  /* eager bytes sent and not yet credited */
    size_t in;   /* eager bytes consumed and not yet credited back */
};

/* Eager puts of a pair (proto/send.c, channel/ctrl.c). */
struct pki_peer_eager_put {
    size_t max;    /* longest transfer that may move without a grant */
    size_t credit; /* most bytes of such */
    size_t out;    /* bytes of those that have been sent and not yet credited */
    size_t in;     /* bytes of those that have been received and not yet credited back */
};

/* Low-latency messages of a pair (proto/ll.c). */
struct pki_peer_ll {
    struct pki_ll_ring ring;
    uint32_t room_ns;     /* how long to wait for room there */
    uint32_t call, first; /* the last call that took a place there, and its first message */
    bool by_kernel;       /* its last message was sent by a kernel: the next one will hardly need this CPU */
    char *remote;         /* the peer's ring for this rank, mapped here */
    char *held;           /* where that memory begins, if the peer is of this process */
    struct pki_export exported;
    uint64_t mapping;
};

/* How far a peer is, as it has said (channel/ctrl.c, progress/stragglers.c). */
struct pki_peer_heard {
    uint64_t coll;             /* highest number of a collective it has spoken of */
    uint64_t answered, number; /* the last question that it answered; the collective it had come to by then, */
    int waits;                 /* and the rank that it waited for, -1: none */
};

/* Time that sends in streams may still spend on waits in vain for a peer's grants; as of when (stream/transfer.c). */
struct pki_peer_meeting {
    uint64_t left_ns, since_ns;
};

struct pki_peer {
    /* what every message needs */
    struct pki_ep *ctrl;
    struct pki_peer_eager eager;
    uint64_t sends_begun[2], recvs_begun[2]; /* matching numbers; [1]: captured operations */
    struct pki_list sends, unexpected_queue, recvs;

    int rank;
    int neps;
    struct pki_ep *eps[PKI_IFACES_MAX]; /* all endpoints; control channel and ways are among them */
    struct pki_ep *path[2][2];          /* [source kind][target kind] */
    int side_fd;
    bool gone;                  /* sent its shutdown message, or died */
    uint64_t gone_ns;           /* when that was first looked at; 0: not yet */
    enum pki_shutdown shutdown; /* which shutdown message; NONE: none has been heard, */
    uint32_t last_coll;         /* else the number of the last collective that began there */
    bool unreported;            /* of this engine's failure: there was no room */
    struct pki_peer_heard heard;
    struct pki_peer_eager_put eager_put;
    struct pki_peer_meeting meeting;
    struct pki_slots signals;
    struct pki_graph_slots graph_slots;
    _Atomic uint32_t *let_go; /* [2 * PKI_PAIR_SLOTS], watchdog.c's; NULL without a GPU */
    struct pki_peer_ll ll;
    struct pki_peer_regions regions;
};

static inline bool pki_xfer_slots_here(const struct pki_xfer *xfer)
{
    return (xfer->bounce.slots & PKI_SLOTS_HERE) != 0;
}

static inline bool pki_xfer_slots_there(const struct pki_xfer *xfer)
{
    return (xfer->bounce.slots & PKI_SLOTS_THERE) != 0;
}

/* The cell of a step of a collective, in either direction, and which step of which collective it is. */
static inline int pki_cell_of_step(uint64_t number, unsigned index)
{
    return PKI_SIGNAL_SLOTS + PKI_CELLS + (int)((number * PKI_STEPS_A_COLLECTIVE + index) % PKI_CELLS);
}

/* A step without bytes, of a barrier: peers whose barrier is in a CUDA stream wait for a word, which their GPU sees
 * (stream/barrier.c). A stream writes it itself. */
static inline void pki_barrier_arrive(struct pki_peer *peer, uint64_t number, unsigned index)
{
    _Atomic uint32_t *word =
        peer->ctrl->signals_theirs != NULL ? &peer->ctrl->signals_theirs[pki_cell_of_step(number, index)].moved : NULL;
    uint32_t seen = word != NULL ? atomic_load_explicit(word, memory_order_relaxed) : 0;

    while (word != NULL && (int32_t)((uint32_t)number - seen) > 0 && !atomic_compare_exchange_weak(word, &seen, (uint32_t)number))
        ; /* a stream may have come to a later barrier */
}

#define PKI_BOUNCE_POOL_BYTES (((size_t)PKI_BOUNCE_BUFFERS + 1) * PKI_BOUNCE_BYTES)

struct pki_bounce_pool { /* slots of one direction, and the queue that copies between them and GPU memory */
    char *memory;        /* NULL: not made yet */
    uint8_t free[PKI_BOUNCE_BUFFERS];
    int nfree;
    struct pki_queue queue;
};

#endif

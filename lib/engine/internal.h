/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's own objects. All functions here are called with the engine locked unless they say otherwise.
 *
 * task   one operation of the API: a plan with the state of its steps, or a single transfer
 * xfer   one transfer between this rank and a peer: posted, matched, moved
 * peer   the other end: its lane, its ways, what has arrived before it was asked for
 */
#ifndef PKI_ENGINE_INTERNAL_H
#define PKI_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "util/clock.h"
#include "util/log.h"

#define PKI_EAGER_MAX 8192u              /* bytes of host memory that travel in the lane without a grant, unless the transport knows better */
#define PKI_EAGER_MAX_SHM (32u << 10)    /* the same between ranks of a host, where a grant costs as much as the longer copy */
#define PKI_EAGER_CREDIT (256u << 10)    /* eager bytes a peer may have sent that nobody asked for yet */
#define PKI_LANE_PIECE 16384u            /* bytes of a DATA message that is worked on as it comes */
#define PKI_LANE_MAX ((size_t)256 << 20)
#define PKI_SHARE_MIN (64u << 10)        /* below, memory of one host goes through the lane; from there on both ends move pieces */
#define PKI_HOST_CHUNK (512u << 10)      /* granularity of dependencies between steps on the host */
#define PKI_HOST_PUT (4u << 20)          /* most that one put of host memory moves: the lock is held so long */
#define PKI_HOST_WORK (1u << 20)         /* the same for copies and reductions by the CPU, of a round of progress */
#define PKI_DEVICE_CHUNK (16u << 20)     /* the same on a GPU, for plans with reductions */
#define PKI_XFER_PUTS 2                  /* chunks of one transfer in flight */
#define PKI_IFACES_MAX 4
#define PKI_GRANT_NS 20000u              /* how long a send in a stream looks for its grant at most */
#define PKI_REGION_GENERATION (1u << 20) /* ids are an entry's number plus a multiple of this */
#define PKI_REGIONS_MAX (PKI_REGION_GENERATION - 2)
#define PKI_REGIONS_KEPT 1024u           /* more only while transfers need them */
#define PKI_EXPORT_PIECES_MAX 65536u     /* descriptors of one region */
#define PKI_LL_SLOTS 16                  /* low-latency slots a pair and direction */
#define PKI_STAGE_BYTES (512u << 10)     /* one slot of pinned memory, and the longest piece */
#define PKI_STAGE_SLOTS 16               /* of each direction, made when first used */
#define PKI_STAGE_PIECES 4               /* of one transfer in flight */

enum pki_xfer_state {
    PKI_XFER_UNPOSTED,  /* receive: a dependency may still use the buffer. send: no byte of it is ready */
    PKI_XFER_SAY,       /* the next message (EAGER, WANT or GRANT) has not gone out: no room, or its turn has not come */
    PKI_XFER_WAIT,      /* send: for the grant. receive: for data */
    PKI_XFER_MOVE,      /* send: granted; chunks go as they become ready */
    PKI_XFER_DONE
};

/* Part of a transfer on its way through slots (stage.c). */
struct pki_piece {
    size_t offset, len;
    int slot;                /* of this rank; -1: none */
    int word;
    struct pki_gate copied;  /* the GPU's copy into or out of the slot has ended */
    const char *src;         /* send: what is put */
    uint64_t remote;         /* send: where to */
    size_t moved;            /* bytes gone or come as DATA messages */
    bool asked;              /* send: ASK is out */
    bool placed;             /* send: `remote` is known. receive: SLOT is out */
    bool copying, filled;    /* filled: send: may be put. receive: has come */
    bool moving, ended;
    struct pki_put put;
};

struct pki_stage {
    struct pki_list node;    /* engine->stages or spare_stages */
    struct pki_piece pieces[2 * PKI_STAGE_PIECES]; /* receive: so many may be in slots, and as many more asked for */
    unsigned head, tail;
};

struct pki_stage_pool {      /* slots of one direction, and the queue that copies between them and GPU memory */
    char *memory;            /* NULL: not made yet */
    uint8_t free[PKI_STAGE_SLOTS];
    int nfree;
    struct pki_queue queue;
};

struct pki_xfer {
    struct pki_list match;  /* peer->sends or peer->recvs while it can be matched */
    struct pki_list active; /* engine->active while it must be looked at in every progress */
    struct pki_engine *engine;
    struct pki_peer *peer;
    struct pki_task *task;
    uint32_t step;          /* of the task's plan */
    bool is_send;
    bool wanted;            /* send: WANT has been sent. receive: WANT has arrived */
    bool ll;                /* moves through a low-latency slot */
    bool in_stream;         /* a stream moves it; only completion is watched here */
    bool opened;            /* receive: the buffer is free */
    bool staged;            /* send: the receiver gives slots, a piece at a time */
    bool bounce;            /* send: pieces go through slots of this rank */
    bool in_lane;           /* send: as DATA, whatever the way could do */
    bool combines;          /* to a RECV_REDUCE on the host: DATA is combined as it comes */
    bool fetch;             /* and the receiver can get it, too */
    bool remote_mapped;     /* `remote` is memory of this process */
    bool pulls;             /* the receiver combines straight from the sender's memory */
    bool shared, piece_out, all_moved; /* both ends move it; this one is at a piece; it has moved the last one */
    struct pki_ep *way;     /* send, granted, or offered */
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
    size_t told;            /* send: bytes that FIN has announced */
    uint64_t remote;        /* send, granted: where to. receive, offered: where from */
    int gate_slot;          /* -1: none */
    uint32_t gate_value;
    struct pki_gate start, finish; /* of the slot: buffer free; last byte in place */
    struct pki_put puts[PKI_XFER_PUTS];
    unsigned puts_head, puts_tail;
    uint32_t region;        /* granted or offered: of this rank; 0: none */
    struct pki_stage *stage;
    void *kept;             /* receive into GPU memory: an eager message that came before the buffer was free */
    int slot;               /* pinned memory for a low-latency kernel to read; -1: none */
    int own_word;           /* receive: `finish` is this word of the rank's own; -1: it is the slot's */
};

struct pki_arrival { /* a message that nobody had asked for */
    struct pki_list node;
    struct pki_msg msg;
    unsigned char payload[];
};

struct pki_import { /* a peer's region, mapped */
    uint32_t id;
    struct pki_export exported;
    uint32_t pieces_here; /* descriptors that have come */
    bool mapped;
    uint64_t remote;
};

struct pki_slots { /* gate or low-latency slots of one pair that this rank, as receiver, hands out */
    uint16_t free[PKI_GATE_SLOTS];
    uint32_t value[PKI_GATE_SLOTS]; /* last value handed out */
    int nfree;
};

struct pki_peer {
    int rank;
    struct pki_ep *eps[PKI_IFACES_MAX]; /* all endpoints; lane and ways are among them */
    int neps;
    struct pki_ep *lane;
    struct pki_ep *way[2][2];       /* [source kind][target kind] */
    size_t eager_max;               /* longest transfer of host memory that travels in the lane without a grant */
    int side_fd;
    bool gone;                      /* said goodbye, or died */
    bool gone_before;               /* and that was known a whole round of progress ago */
    bool untold;                    /* of this engine's failure: there was no room */
    uint64_t sends_begun[2], recvs_begun[2]; /* matching numbers; [1]: captured operations */
    uint32_t patience_ns;           /* how long a send in a stream looks for this peer's grant */
    uint64_t coll_heard;            /* highest number of a collective it has spoken of */
    uint64_t answered, answered_number; /* late.c: the last question that it answered; the collective it had come to by then, */
    int answered_waits;                 /* and the rank that it waited for, -1: none */
    struct pki_list sends, recvs;
    struct pki_list arrivals;
    size_t eager_out;               /* eager bytes sent and not yet credited */
    size_t eager_in;                /* eager bytes consumed and not yet credited back */
    struct pki_slots gates, lls;
    uint64_t *ll_remote;            /* the peer's slots for this rank, mapped here */
    struct pki_export ll_exported;
    uint64_t ll_mapping;
    struct pki_import *imports;
    uint32_t nimports, imports_cap;
    uint32_t *told;                 /* [entry]: the id of our region there that the peer has been told of */
    uint32_t told_cap;
    uint32_t exporting, exported_pieces; /* a description in the middle of being sent */
};

struct pki_region { /* an allocation of this rank that peers may map */
    uint32_t id;      /* entry + 1, and the generation in the upper bits */
    uint32_t next;    /* entry + 1 of the next with this hash; 0: none */
    uint32_t busy;    /* transfers that have been granted in it; captured ones for good */
    uint64_t used;    /* when last; 0: the entry is free */
    struct pki_mem mem;
    struct pki_export exported;
    struct pki_iface *iface;
};

struct pki_shared { /* memory of pk_mem_alloc */
    uintptr_t base;
    size_t bytes;
    uint64_t buffer_id;
    int fd;
};

struct pki_graph_memory {
    struct pki_list node;
    void *ptr;
    size_t bytes;
};

struct pki_registration {
    struct pki_list node;
    char *ptr;
    size_t bytes;
    struct pki_mem mem;
};

/* Local gates: words that the caller's streams and the CPU share. */
struct pki_words {
    _Atomic uint32_t *words; /* one a cache line */
    uint32_t *value;
    uint16_t *free;
    int nfree, n;
};

enum pki_task_mode {
    PKI_TASK_CPU,    /* the engine starts it at once and the caller (or host stream) waits for `ended` */
    PKI_TASK_GATED,  /* a CUDA stream opens `ready` and waits for `release` */
    PKI_TASK_STREAM  /* the CUDA stream does the transfer itself */
};

struct pki_step_state {
    size_t bytes;      /* length of the step's block */
    size_t done;       /* bytes finished */
    struct pki_xfer *xfer;
    size_t landed;          /* RECV_REDUCE: bytes that have come */
    bool reduced;           /* RECV_REDUCE: they are combined as they come, without landing */
    struct pki_gate finish; /* work on a GPU in flight */
    int finish_slot;
    size_t finish_bytes;    /* done will be this when it opens */
    bool started, complete, queued, starved; /* starved: no word was left for the work, or no time */
};

/* A collective whose buffers are of two kinds of memory (mixed.c). */
struct pki_mixed {
    bool over;               /* the receive buffer has everything */
    bool active, shadows_in; /* the send buffer has the shadow; else the receive buffer */
    const void *user_in;
    void *user_out;
    size_t in_bytes, out_bytes;
    uint32_t block;          /* of the receive buffer, being copied out */
    size_t issued;           /* bytes of the copy */
    int word;
    struct pki_gate ended;   /* the last piece has been copied */
};

/* fused.c */
struct pki_fused {
    bool on;
    char *inbox;                     /* of this rank, at the end of ll_memory */
    uint64_t remote[PKI_FUSED_RANKS]; /* [rank]: where this rank writes in its inbox, mapped here */
    struct pki_fused_words *words;   /* registered with the GPU; NULL without fused collectives */
    uint32_t epoch;                  /* the last that was handed out */
    bool skipped;                    /* this rank has done the last one in another way */
    uint32_t ctas_launched;
    struct pki_list waiting;         /* tasks that have an epoch and no kernel yet, in order */
    int indirect;                    /* tasks that the engine will launch, not the call itself */
    struct pki_queue queue;          /* for those */
};

struct pki_task {
    struct pki_list node;      /* engine->tasks, from start to end */
    struct pki_list waiting;   /* the caller's list of blocking ones */
    struct pki_list in_stream; /* host stream's queue */
    struct pki_engine *engine;
    struct pki_request request;
    const char *name;
    uint64_t number;
    uint32_t sig;
    enum pki_mem_kind kind;
    enum pki_task_mode mode;
    struct pki_queue queue;    /* the caller's CUDA stream */
    bool after_stream;         /* starts when the stream has nothing more to do */
    enum pki_wait_how how;
    struct pki_gate ready;     /* opened by the stream when it comes to the operation */
    struct pki_gate release;   /* the stream waits for it; the engine opens it at the end */
    int ready_slot, release_slot;
    struct pki_host_stream *stream;
    uint64_t group;            /* of the process: operations that were started together */
    atomic_bool may_start;     /* host stream: everything before it has ended */
    bool counted; /* among those in CUDA streams of the process */
    bool started, holds_wait, direct, few_queues, waited;
    bool running;              /* its steps are being looked at */
    bool more_work;            /* on the host: some step is starved */
    atomic_bool ended;
    pk_result_t result;
    uint64_t begun_ns, deadline_ns;
    bool warned;
    unsigned questions;        /* late.c: asked about it so far */
    uint64_t asked;            /* the number of the last one that there was time to answer */
    uint64_t asking, asking_ns; /* the last one */
    struct pki_xfer *xfer;     /* send, recv */
    size_t *lengths;           /* the layout's arrays */
    struct pki_plan_entry *entry;
    const struct pki_plan *plan; /* the entry's */
    const uint32_t *dependents, *dependents_first;
    struct pki_step_state *steps;
    uint32_t *ready_steps;     /* stack of steps to look at */
    uint32_t nready, remaining;
    uint32_t next_send;        /* steps before it hold no first send that has yet to be issued */
    char *scratch;
    size_t scratch_stride;
    struct pki_mixed mixed;
    struct pki_list turn;      /* fused: engine->fused.waiting */
    uint32_t epoch, last_epoch, clear_epoch;
    int ctas;
    bool calm, careful, indirect, launched, fallen; /* fallen: a rank does it in another way, so all do */
};

/* The last collectives that began here: what a peer says of one that has ended must agree too. */
#define PKI_SEEN_MAX 64

struct pki_coll_seen {
    uint64_t number;
    uint32_t sig;
    size_t count;
};

struct pki_plan_entry { /* the plan cache */
    struct pki_list node; /* engine->plans, the one used last in front */
    const struct pki_algorithm *algorithm;
    bool in_place;
    int root;
    unsigned users; /* tasks */
    struct pki_plan *plan;
    struct pki_program *program; /* quick_coll.c's, or NULL */
    uint32_t *dependents, *dependents_first; /* reversed dependencies: of step i, [first[i], first[i + 1]) */
};

struct pki_scratch {
    char *ptr;
    size_t bytes;
    bool busy;
    enum pki_mem_kind kind;
};

#define PKI_QUICK_SCRATCH (64u << 10)
#define PKI_STREAM_OPERATIONS 512 /* in CUDA streams at a time; each has two words while it lasts */
#define PKI_PLANS_MAX 128 /* plans that are kept; those in use come on top */
#define PKI_SCRATCH_MAX 64

struct pki_engine {
    atomic_flag lock;
    struct pki_engine_config config;
    struct pki_device *host, *gpu;
    struct pki_peer *peers;
    struct pki_iface *ifaces[PKI_IFACES_MAX];
    int nifaces;
    struct pki_list tasks, active, registrations, captured;
    struct pki_list graph_memory; /* scratch memory of captured collectives */
    struct pki_list free_xfers, spent_xfers; /* spent: finished in this round of progress */
    struct pki_list ended;     /* tasks to free at the end of the round */
    struct pki_list slabs;
    struct pki_queue work;     /* the library's queue for copies and reductions on the GPU; never waits */
    struct pki_queue late;     /* and for sends that the caller's stream could not do itself */
    bool queues_open;
    struct pki_stage_pool out, in; /* slots of sends and of receives */
    struct pki_list stages, spare_stages;
    size_t work_left;          /* bytes that the CPU may copy or reduce in this round of progress */
    unsigned puts_out;         /* moves that transports have and have not finished */
    struct pki_words words;
    _Atomic uint32_t *abort_word;
    char *ll_memory;
    struct pki_fused fused;
    struct pki_region *regions;
    uint32_t nregions, regions_cap;
    uint32_t region_buckets[256];
    uint32_t region_looked;     /* the next to be looked at whether it is still there */
    uint64_t region_clock;
    bool region_holes;          /* some entry may be free */
    struct pki_list retired;    /* mappings to be closed when nothing is under way and they are many */
    uint32_t nretired;
    size_t retired_bytes;
    struct pki_shared *shared; /* by address */
    uint32_t nshared, shared_cap;
    struct pki_list plans;
    int nplans;
    struct pki_scratch scratch[PKI_SCRATCH_MAX];
    char *quick_scratch; /* PKI_QUICK_SCRATCH bytes, once they were needed */
    uint64_t coll_number, coll_captured;
    uint64_t questions;        /* late.c */
    struct pki_coll_seen seen[PKI_SEEN_MAX]; /* [number % PKI_SEEN_MAX] */
    pk_stats_t stats;
    atomic_int failed;         /* pk_result_t; the record is written before it */
    pk_error_info_t error;
    atomic_int untold;         /* peers that still have to hear of the failure */
    bool spin, collapsed;
    atomic_uint idle_rounds;   /* a hint when to look around; written without the lock too */
    uint64_t checked_ns;       /* when peers and deadlines were last looked at */
    atomic_int watched;        /* graphs may wait for peers, whose end somebody has to notice */
    atomic_int async_tasks;    /* the service thread's business */
    atomic_int calm_tasks;     /* those of them that need to be looked at only now and then */
    unsigned calm_calls;
    atomic_int drivers;        /* threads that wait for a stream and see to it themselves */
    struct pki_list in_service;
};

/* engine.c */
void pki_engine_lock(struct pki_engine *engine);
bool pki_engine_trylock(struct pki_engine *engine);
void pki_engine_unlock(struct pki_engine *engine);
/* Advance everything. True when something moved. */
bool pki_engine_progress(struct pki_engine *engine);
/* Wait, 50 ms at most, until the library's own copies and kernels have ended. */
void pki_engine_drain(struct pki_engine *engine);
/* Unlocked: progress until no operation is unfinished. */
void pki_engine_wait_all(struct pki_engine *engine);
/* Unlocked: what a thread does that has found nothing to do `idle` times in a row. */
void pki_engine_backoff(struct pki_engine *engine, unsigned idle);
/* doze.c. Unlocked: sleep until a message comes, 10 ms at most. False: it cannot be, or somebody else is at work. */
bool pki_engine_doze(struct pki_engine *engine);
/* Wake the thread that does; locked or not, while the lanes are open. */
void pki_engine_rouse(struct pki_engine *engine);
/* Unlocked: a driver goes. */
void pki_engine_leave(struct pki_engine *engine);
/* Unlocked: progress until *done. */
void pki_engine_wait(struct pki_engine *engine, const atomic_bool *done);
/* Make the engine unusable; the calling thread's error record becomes the engine's. `tell`: the peers do not know yet. */
void pki_engine_poison(struct pki_engine *engine, pk_result_t code, bool tell);
/* Something with a peer has failed: poison, unless the peers' sockets tell of an earlier and better reason. */
void pki_engine_blame(struct pki_engine *engine, pk_result_t code, const struct pki_where *where, const char *what, size_t done,
                      size_t bytes);
struct pki_where pki_engine_where(const struct pki_engine *engine, int peer, const struct pki_task *task);

/* Look at sockets and deadlines in the next round, if it is time to. */
static inline void pki_engine_look_soon(struct pki_engine *engine)
{
    atomic_store_explicit(&engine->idle_rounds, 63, memory_order_relaxed);
}

/* The oldest unfinished operation, for texts; may be NULL. */
struct pki_task *pki_engine_first_task(const struct pki_engine *engine);

/* lane.c: messages of a peer */
pk_result_t pki_lane_send(struct pki_peer *peer, const struct pki_msg *msg, const void *payload, struct pki_engine *engine);
bool pki_lane_poll(struct pki_engine *engine, struct pki_peer *peer);
/* Take an early arrival that speaks of `xfer`; NULL when there is none. The caller frees it. */
struct pki_arrival *pki_lane_take(struct pki_xfer *xfer);
void pki_lane_consumed(struct pki_engine *engine, struct pki_peer *peer, size_t payload);

/* xfer.c, send.c, recv.c */
struct pki_xfer *pki_xfer_new(struct pki_engine *engine, int peer, bool is_send);
void pki_xfer_free(struct pki_xfer *xfer);
void pki_xfer_activate(struct pki_xfer *xfer);
void pki_xfer_advance(struct pki_xfer *xfer);
/* How many chunks `bytes` of it are. */
static inline size_t pki_xfer_chunks(const struct pki_xfer *xfer, size_t bytes)
{
    return bytes == 0 ? 0 : (bytes - 1) / xfer->chunk + 1;
}

void pki_xfer_post(struct pki_xfer *xfer);
void pki_xfer_progressed(struct pki_xfer *xfer);
void pki_send_advance(struct pki_xfer *xfer);
void pki_send_granted(struct pki_xfer *xfer, const struct pki_msg *grant);
void pki_send_put_done(struct pki_put *put);
void pki_recv_advance(struct pki_xfer *xfer);
void pki_recv_message(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload);
/* The buffer is free: the receive may be matched, or its gate opened. */
void pki_recv_open(struct pki_xfer *xfer);
/* The peer's message disagrees; `bytes` is what it says of the length. */
void pki_xfer_mismatch(struct pki_xfer *xfer, const struct pki_msg *msg, size_t bytes);
struct pki_ll_op pki_ll_send_op(struct pki_xfer *xfer);
void pki_send_taken(struct pki_xfer *xfer, const struct pki_msg *msg);
void pki_put_failed(struct pki_xfer *xfer, pk_result_t result);

/* share.c: long transfers of host memory that both ends move */
void pki_share_lend(struct pki_xfer *xfer);                                  /* receive: take a slot for the grant, if it may be shared */
pk_result_t pki_share_offer(struct pki_xfer *xfer);                          /* send */
void pki_share_pull(struct pki_xfer *xfer);                                  /* receive */
void pki_share_fetched(struct pki_xfer *xfer, const struct pki_put *get);    /* receive: a piece of what is pulled has landed */
bool pki_share_may_fetch(const struct pki_xfer *xfer);                       /* receive that combines */
/* All ranks move as much as any other at the same time: nobody has time to help. */
bool pki_share_is_even(const struct pki_xfer *xfer);
void pki_share_offered(struct pki_xfer *xfer, const struct pki_msg *offer);  /* receive */
void pki_share_advance(struct pki_xfer *xfer);
void pki_share_piece_done(struct pki_xfer *xfer);
void pki_share_ended(struct pki_xfer *xfer); /* all is in place and both know */

/* quick.c and quick_coll.c (with quick_program.c), unlocked: short blocking operations of host memory without a task. NOT: nothing has
 * happened. BEGUN: it goes on as a task in `blocking`, or, where that is empty, has failed. */
enum pki_quick { PKI_QUICK_NOT, PKI_QUICK_DONE, PKI_QUICK_BEGUN };
enum pki_quick pki_quick_run(struct pki_engine *engine, const struct pki_request *request, struct pki_list *blocking);
enum pki_quick pki_quick_coll(struct pki_engine *engine, const struct pki_request *request, struct pki_list *blocking);

/* stage.c: through slots of pinned host memory */
/* What comes into GPU memory from this peer is staged: no transport reaches it. */
static inline bool pki_stage_receives(const struct pki_engine *engine, const struct pki_peer *peer)
{
    return peer->way[PKI_MEM_DEVICE][PKI_MEM_DEVICE] == NULL && peer->rank != engine->config.rank;
}
void pki_stage_send(struct pki_xfer *xfer); /* advances xfer->done */
void pki_stage_placed(struct pki_xfer *xfer, const struct pki_msg *msg);
void pki_stage_put_done(struct pki_xfer *xfer, struct pki_put *put);
bool pki_stage_low_latency(struct pki_xfer *xfer);
char *pki_stage_low_latency_source(const struct pki_xfer *xfer);
void pki_stage_give(struct pki_xfer *xfer);
void pki_stage_asked(struct pki_xfer *xfer, const struct pki_msg *msg);
void pki_stage_landed(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload);
void pki_stage_recv(struct pki_xfer *xfer);
void pki_stage_eager(struct pki_xfer *xfer, const void *payload);
void pki_stage_kept(struct pki_xfer *xfer);
void pki_stage_watch(struct pki_xfer *xfer);
void pki_stage_leave(struct pki_xfer *xfer);
bool pki_stage_idle(struct pki_engine *engine);
/* The queue for copies from host memory (up) or to it; NULL: the engine has failed. */
struct pki_queue *pki_stage_queue(struct pki_engine *engine, bool up);
void pki_stage_close(struct pki_engine *engine);
/* Under sm_policy NONE the one copy inside the GPU that an exchange out of place has to make, of a rank's own block, goes through the
 * host: by copy engines, where any other copy would be a kernel. */
bool pki_stage_copies(const struct pki_engine *engine, enum pki_coll coll, const struct pki_plan *plan);
/* *queue: the one it is done in. */
pk_result_t pki_stage_copy(struct pki_engine *engine, char *dst, const char *src, size_t bytes, struct pki_queue **queue);
#define PKI_STAGE_COPY_MAX (32u << 20) /* of one call: a launch queue is not long */

/* mixed.c. The middle two: false: not yet, ask again. */
void pki_mixed_choose(struct pki_task *task, const enum pki_mem_kind kinds[2], const size_t bytes[2]);
bool pki_mixed_before(struct pki_task *task, char *shadow);
bool pki_mixed_after(struct pki_task *task);
size_t pki_mixed_bytes(const struct pki_task *task); /* of the shadow, beside the scratch memory */

/* self.c: a transfer from this rank to itself */
void pki_self_advance(struct pki_xfer *xfer);

/* region.c */
pk_result_t pki_region_tell(struct pki_engine *engine, struct pki_peer *peer, const void *addr, size_t bytes, uint32_t *id,
                            uint64_t *offset); /* PK_IN_PROGRESS: the socket is full */
/* Memory of pk_mem_alloc; and it is no more. */
pk_result_t pki_region_tell_host(struct pki_engine *engine, struct pki_peer *peer, const struct pki_mem *mem, uint32_t *id);
void pki_region_withdraw(struct pki_engine *engine, const struct pki_mem *mem);
/* A granted transfer keeps its region from being forgotten until it has ended. 0: none. */
void pki_region_hold(struct pki_engine *engine, uint32_t id);
void pki_region_drop(struct pki_engine *engine, uint32_t id);
static inline uint32_t pki_region_index(uint32_t id)
{
    return (id & (PKI_REGION_GENERATION - 1)) - 1;
}
void pki_region_close_all(struct pki_engine *engine); /* the peers' too */
void pki_export_release(struct pki_export *exported);
bool pki_region_registered(struct pki_engine *engine, const void *ptr, size_t bytes);

/* import.c: a peer's regions */
/* Where region `id` of the peer is mapped here; [offset, offset + bytes) must lie in it. */
pk_result_t pki_region_map(struct pki_engine *engine, struct pki_peer *peer, uint32_t id, uint64_t offset, uint64_t bytes,
                           uint64_t *remote);
/* The same for the host memory that a GRANT or OFFER names. `here`: where this process has it mapped, else its address at the peer. */
pk_result_t pki_region_map_host(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg, bool here,
                                uint64_t *remote);
/* A description has come: keep it until it is mapped. Takes over its descriptors. */
pk_result_t pki_region_arrived(struct pki_engine *engine, struct pki_peer *peer, uint32_t id, const struct pki_export *exported);
/* NULL: this region has not been described. */
struct pki_import *pki_region_import(struct pki_peer *peer, uint32_t id);
/* The peer's memory is gone, or it needs the entry. */
void pki_region_forgotten(struct pki_engine *engine, struct pki_peer *peer, uint32_t id);
bool pki_region_retired_many(const struct pki_engine *engine);
void pki_region_close_retired(struct pki_engine *engine); /* nothing waits in a stream now */
void pki_region_close_imports(struct pki_peer *peer);

/* shared.c: let a GRANT or OFFER name the transfer's memory as a region that the peer knows. PK_ERR_UNSUPPORTED, without a record: it is
 * not of pk_mem_alloc. */
pk_result_t pki_shared_tell(struct pki_xfer *xfer, struct pki_msg *msg);
void pki_shared_close_all(struct pki_engine *engine);

/* side.c: frames on the socket beside the lane */
void pki_side_send_forget(struct pki_engine *engine, struct pki_peer *peer, uint32_t id); /* a hint: it may get lost */
pk_result_t pki_side_send_export(struct pki_engine *engine, struct pki_peer *peer, uint32_t id, const struct pki_export *exported);
void pki_side_poll(struct pki_engine *engine, struct pki_peer *peer);
void pki_side_check_left(struct pki_engine *engine, struct pki_peer *peer); /* a peer that said goodbye is still waited for */
void pki_side_tell_all(struct pki_engine *engine, bool failed);
/* Those that had no room for the news of this engine's failure. */
void pki_side_tell_again(struct pki_engine *engine);
void pki_side_message(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg, const void *payload);

/* task.c, plan_run.c */
static inline bool pki_task_in_cuda_stream(const struct pki_task *task)
{
    return task->request.stream.kind == PK_STREAM_KIND_CUDA;
}

/* Checked and with its plan, but not to be started: for what is captured. */
pk_result_t pki_task_make(struct pki_engine *engine, const struct pki_request *request, struct pki_task **task);
pk_result_t pki_task_new(struct pki_engine *engine, const struct pki_request *request, struct pki_task **task);
bool pki_task_start(struct pki_task *task); /* false: it cannot yet, ask again */
void pki_task_end(struct pki_task *task, pk_result_t result);
void pki_task_free(struct pki_task *task);
void pki_task_stir(struct pki_task *task); /* it needs the CPU from now on */
/* Does it copy or reduce inside the gpu? The library's own queue does that. */
bool pki_task_needs_kernel(const struct pki_task *task);
/* A collective that began without a task: the steps in `done` (a bit each) are complete, scratch is engine->quick_scratch. */
pk_result_t pki_task_resume(struct pki_engine *engine, const struct pki_request *request, uint64_t number, uint64_t done,
                            struct pki_list *blocking);
void pki_plan_resume(struct pki_task *task, uint64_t done);
uint32_t pki_task_fingerprint(const struct pki_request *request, int size);
size_t pki_plan_scratch_stride(const struct pki_plan *plan, const struct pki_request *request); /* bytes of a block; 0: none */
bool pki_plan_run(struct pki_task *task); /* false: it cannot start yet */
void pki_task_mismatch(struct pki_task *task, int peer, uint32_t their_sig);
/* Is what a peer says of collective `number` another one than the one that began here? Then the engine has failed. */
bool pki_task_contradicts(struct pki_engine *engine, int peer, uint64_t number, uint32_t their_sig);
/* Host, RECV_REDUCE: combine what has just come with the step's own operand, from where it is. */
pk_result_t pki_plan_reduce_from(struct pki_task *task, uint32_t step, size_t at, const void *payload, size_t bytes);
/* How many of `bytes` the CPU may copy or reduce now: whole pages, unless it is all of them. */
size_t pki_plan_ration(struct pki_engine *engine, size_t bytes);
void pki_plan_xfer_progress(struct pki_task *task, uint32_t step, size_t done, bool ended);
char *pki_plan_block(const struct pki_task *task, struct pki_ref ref, size_t *bytes);
/* Do bytes [from, from + len) of a COPY, a REDUCE or the reduction of a RECV_REDUCE. */
pk_result_t pki_plan_work(struct pki_task *task, uint32_t step, size_t from, size_t len, const struct pki_queue *queue);
bool pki_plan_poll(struct pki_task *task);
pk_result_t pki_plan_prepare(struct pki_task *task);
void pki_plan_release(struct pki_task *task);
void pki_plan_abandon(struct pki_task *task); /* free the transfers of an unfinished plan */

/* plan_cache.c: the plan for a request; the task gives it back. */
pk_result_t pki_plan_take(struct pki_engine *engine, const struct pki_request *request, struct pki_plan_entry **entry);
void pki_plan_give(struct pki_engine *engine, struct pki_plan_entry *entry);
void pki_plans_close(struct pki_engine *engine);

/* words.c */
pk_result_t pki_words_open(struct pki_engine *engine);
void pki_words_close(struct pki_engine *engine);
int pki_words_take(struct pki_engine *engine, struct pki_gate *gate); /* -1: none left */
void pki_words_give(struct pki_engine *engine, int slot);
_Atomic uint32_t *pki_words_ll(struct pki_engine *engine, int peer, bool send, int slot);
void pki_slots_init(struct pki_slots *slots, int n);
int pki_slots_take(struct pki_slots *slots);
void pki_slots_give(struct pki_slots *slots, int slot);

/* cuda_stream.c: tasks in the caller's CUDA stream, three phases so that a group's do not block one another */
pk_result_t pki_stream_admit(struct pki_task *task); /* before anything is posted: may it wait in this stream, how */
void pki_stream_begin(struct pki_task *task);        /* "ready" and "my buffer is free" */
void pki_stream_move(struct pki_task *task);         /* what the stream itself moves */
void pki_stream_end(struct pki_task *task, struct pki_list *made); /* waits, for all of `made` in the same stream at once */
void pki_stream_left(struct pki_task *task);         /* the task has ended: its wait is over */
void pki_stream_waits(uint64_t *pending, uint64_t *most); /* of the process */
bool pki_streams_wait(void); /* may a stream of the process wait for a peer because of an operation? Graphs are not counted */

/* capture.c */
/* Nothing has happened when this refuses; the others follow as engine.h says. */
pk_result_t pki_capture_check(struct pki_engine *engine, const struct pki_request *requests, int n, struct pki_capture **out);
pk_result_t pki_capture_post(struct pki_engine *engine, struct pki_capture *capture);
pk_result_t pki_capture_record(struct pki_engine *engine, struct pki_capture *capture);
void pki_capture_drop(struct pki_engine *engine, struct pki_capture *capture);
/* Is one of them in a stream that is being captured? *error: they cannot be told, or are mixed. */
bool pki_capture_wanted(struct pki_engine *engine, const struct pki_request *requests, int n, pk_result_t *error);

/* Let streams that wait in replayed graphs go. */
void pki_capture_release(struct pki_engine *engine);
void pki_capture_close(struct pki_engine *engine);

/* fused.c */
size_t pki_fused_inbox_bytes(const struct pki_engine *engine);
pk_result_t pki_fused_open(struct pki_engine *engine, char *inbox);
void pki_fused_close(struct pki_engine *engine);
void pki_fused_reach(struct pki_engine *engine, int peer, uint64_t inbox); /* the peer's inbox is mapped here */
int pki_fused_ctas(const struct pki_engine *engine, const struct pki_request *request);
bool pki_task_is_fused(const struct pki_task *task);
void pki_fused_made(struct pki_task *task);   /* a fused one: will the call itself launch it (direct)? */
void pki_fused_forget(struct pki_task *task); /* it waits for no turn any more */
bool pki_fused_all_direct(const struct pki_engine *engine);
void pki_fused_enroll(struct pki_task *task); /* any collective */
pk_result_t pki_fused_launch(struct pki_task *task, const struct pki_queue *queue);
void pki_fused_look(struct pki_task *task);   /* launch it in the library's queue if it is its turn */
void pki_fused_fall(struct pki_task *task);   /* another rank does the operation by an ordinary plan */
void pki_fused_left(struct pki_task *task);   /* the task ends */
bool pki_fused_waits_for(const struct pki_task *task, int peer);
bool pki_fused_poll(struct pki_task *task, bool *ended); /* true: something has changed */

/* ll.c */
void pki_ll_unimport(struct pki_engine *engine, struct pki_peer *peer);
uint64_t *pki_ll_slot(struct pki_engine *engine, int peer, int slot);

/* service.c: unlocked */
void pki_service_attach(struct pki_engine *engine);
void pki_service_detach(struct pki_engine *engine); /* the thread no longer touches it on return */
pk_result_t pki_service_wake(void);

/* late.c: look at deadlines; a WHO or HERE has come; the rank to blame for the oldest operation, -1 when there is none */
void pki_late_check(struct pki_engine *engine, uint64_t now);
void pki_late_message(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg);
int pki_engine_missing(struct pki_engine *engine);

/* host_stream.c */
void pki_host_stream_append(struct pki_host_stream *stream, struct pki_task *task);
void pki_host_stream_ended(struct pki_host_stream *stream, struct pki_task *task);

#endif

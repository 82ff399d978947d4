/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's own objects: its tasks (task.h), the transfers that they are made of and the peers of those (xfer.h), memory that
 * peers map (region.h), and here the engine that holds them all. All functions are called with the engine locked unless they say otherwise.
 */
#ifndef PKI_ENGINE_INTERNAL_H
#define PKI_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/mem/region.h"
#include "engine/plan/task.h"
#include "engine/proto/xfer.h"
#include "tuning/tuning.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/log.h"

struct pki_unfreed { /* GPU memory that could not be freed when it should */
    struct pki_list node;
    void *ptr;
    size_t bytes;
};

#define PKI_GRAPH_SCRATCHES 32 /* each at least twice as long as those before it */

struct pki_graph_scratch { /* that collectives in graphs share (mem/graphs.c) */
    char *ptr; /* NULL: unused entry */
    size_t bytes;
    int users; /* graphs, and calls that capture */
};

/* Local signals: words that the caller's streams and the CPU share. */
struct pki_signals {
    _Atomic uint32_t *words; /* one a cache line */
    _Atomic uint32_t *exposed;  /* [slot]: what lets the stream go that waits for it; 0: none does */
    uint32_t *value;
    uint16_t *free;
    int nfree, n;
};

/* stream/branch.h */
struct pki_branch {
    struct pki_queue queue;
    void *stream; /* the caller's that it belongs to while it has users */
    int users;    /* tasks */
    bool waits;   /* for a peer: it is counted among the process's streams that do (core/waiting.c) */
    int slot;     /* of pinned memory; -1: none yet */
};

#define PKI_BRANCHES 2

#define PKI_SIGNALS_A_BATCH 64

/* The transfer that a call has put into a stream last. */
struct pki_stream_last {
    const struct pki_peer *peer; /* NULL: none */
    uint64_t op;
    void *stream;
};

/* Word operations of a call for a caller's stream, not handed to the driver yet (stream/signals.c). */
struct pki_signal_batch {
    bool used, waits, copied;
    bool asked, idle;          /* nothing is before it in the stream, if that has been asked */
    struct pki_queue queue;
    enum pki_wait_how how;
    struct pki_signal_op ops[PKI_SIGNALS_A_BATCH];
    int n, deferred;           /* deferred: the last so many tell of copies that the stream has already */
    size_t behind;             /* bytes of those */
    struct pki_stream_last received;
};

/* Low-latency messages of a call for a caller's stream, not launched yet (stream/ll_row.c). Sends before receives. */
struct pki_ll_row {
    struct pki_queue queue;
    struct pki_ll_op ops[PKI_LL_OPS_MAX];
    int n, sends, ctas;
};

/* Transfers for the moving kernel, not launched yet (stream/move.c). */
struct pki_move_row {
    struct pki_move_op ops[PKI_MOVE_OPS_MAX];
    int n, ctas;
};

struct pki_failure {
    atomic_bool claimed;    /* somebody writes the record, or has */
    atomic_bool unsent;     /* the peers have not been told, for want of the lock */
    pk_error_info_t error;
    atomic_int unreported;  /* peers that still have to hear of the failure */
    uint64_t coll;          /* the first collective that did not end with PK_OK; 0: there is none */
    int accuser;            /* 1 + a rank that has waited for this one until its deadline; 0: none */
    atomic_bool aborted;    /* by this rank, whatever failed before */
};

/* watchdog.c's alone: since when the lock has been seen in the same hands. */
struct pki_watchdog {
    uint32_t turn;
    uint64_t since_ns;
};

#define PKI_MSG_KINDS (PKI_MSG_SIDE + 1)

/* What a message is for. A kind that no peer sends is the transfer's, which does not expect it. */
struct pki_handler {
    /* It speaks of no transfer. */
    void (*take)(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg, const void *payload);
    /* The transfer that it speaks of. NULL: it is kept. */
    void (*go_on)(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload);
    /* Nobody will ask for it: it is not kept. NULL: somebody will. */
    bool (*is_void)(const struct pki_peer *peer, const struct pki_msg *msg);
};

/* What the lower folders tell those above, which they do not know: handlers.c. */
struct pki_handlers {
    struct pki_handler messages[PKI_MSG_KINDS]; /* by kind; 0: of any other kind */
    /* A region of the peer, or, without `exported`, more descriptors of it. Takes the descriptors over if it succeeds. */
    pk_result_t (*described)(struct pki_engine *engine, struct pki_peer *peer, uint32_t id, const struct pki_export *exported,
                             const int *fds, int n);
    void (*forgotten)(struct pki_engine *engine, struct pki_peer *peer, uint32_t id);
    /* A message of an agreement. PK_ERR_INTERNAL: it is none. */
    pk_result_t (*agreement)(struct pki_engine *engine, struct pki_peer *peer, const unsigned char *bytes, size_t n);
    int (*missing)(struct pki_engine *engine); /* the rank to blame for the oldest operation; -1: none is */
    void (*ended)(struct pki_task *task);      /* it is in no list any more, and has its result */
};

struct pki_engine {
    /* what every message needs */
    atomic_flag lock;
    bool spin, collapsed;
    bool calls_kernel;         /* a message may be a system call at which a cancelled thread ends: a transport between hosts is open */
    atomic_int failed;         /* pk_result_t; failure.error is written before it */
    _Atomic uint32_t turns;    /* times that the lock was taken and given back: odd while somebody has it */
    struct pki_device *host, *gpu;
    struct pki_peer *peers;
    struct pki_list tasks, active;
    pk_stats_t stats;
    const struct pki_handlers *handlers;

    struct pki_watchdog held;
    struct pki_engine_config config;
    int ordinal, connections;  /* of the GPU; its hardware queues, */
    int channels;              /* and those for copies to and from peers */
    int places;                /* CTAs of this process that may wait on it at a time */
    struct pki_iface *ifaces[PKI_IFACES_MAX];
    int nifaces;
    struct pki_list registrations;
    struct pki_list unfreed;
    struct pki_list graphs;    /* with captured operations */
    struct pki_list graph_holds; /* those of graphs that are gone, to be given back */
    unsigned graphs_gone;      /* how many of the process have been seen to be gone */
    void *turn;                /* that captured collectives have one after another; NULL: there was none yet */
    struct pki_graph_scratch graph_scratch[PKI_GRAPH_SCRATCHES];
    int idle_scratch;          /* of those: made, and without users */
    struct pki_list free_xfers, spent_xfers; /* spent: finished in this round of progress */
    struct pki_list ended;     /* tasks to free at the end of the round */
    struct pki_list spare_tasks;
    int nspare_tasks;
    struct pki_list slabs;
    struct pki_queue work;     /* the library's queue for copies and reductions on the GPU; never waits */
    struct pki_queue deferred; /* and for sends that the caller's stream could not do itself */
    bool queues_open;
    struct pki_branch branches[PKI_BRANCHES];
    struct pki_bounce_pool out, in; /* slots of sends and of receives */
    struct pki_list bounce_states, spare_bounces;
    bool in_inline;            /* a thread is inside a collective without a task, and has given up the lock for a moment */
    bool shutdown_sent;
    bool flushes;              /* this rank ends its operations, and calls no more */
    size_t work_left;          /* bytes that the CPU may copy or reduce in this round of progress */
    unsigned puts_out;         /* moves that transports have and have not finished */
    struct pki_signals signals;
    struct pki_signal_batch batch;
    struct pki_ll_row ll_row;
    struct pki_move_row move_row;
    uint32_t ll_call;          /* counts calls: which low-latency messages are of this one */
    _Atomic uint32_t *abort_word;
    char *ll_memory;
    struct pki_fused fused;
    struct pki_switchml *switchml; /* the aggregator, or NULL */
    int switched;              /* allreduces that it has begun: one at most */
    struct pki_region *regions;
    uint32_t nregions, regions_cap;
    uint32_t region_buckets[256];
    uint32_t region_looked;     /* the next to be looked at whether it is still there */
    uint64_t region_clock;
    bool region_holes;          /* some entry may be free */
    struct pki_list retired;    /* mappings to be closed when nothing is under way and they are many */
    uint32_t nretired, nretired_vmm;
    size_t retired_bytes;
    bool described;             /* peers have described memory that is not mapped yet */
    bool mapping_blocked;       /* one of them, or one of another engine's, kept a peer's memory from being mapped */
    struct pki_shm_alloc *shm_allocs; /* by address */
    uint32_t nshm_allocs, shm_allocs_cap;
    struct pki_list plans;
    int nplans;
    struct pki_plan_entry *recent_plans[PKI_PLANS_RECENT]; /* [root % PKI_PLANS_RECENT]: the last taken, in the list too, or NULL */
    struct pki_scratch scratch[PKI_SCRATCH_MAX];
    char *inline_scratch; /* once it was needed, inline_bytes long */
    size_t inline_bytes;
    uint64_t coll_number, coll_captured;
    uint64_t questions;        /* stragglers.c */
    struct pki_coll_seen seen[PKI_SEEN_MAX]; /* [number % PKI_SEEN_MAX] */
    struct pki_failure failure;
    struct pki_survivor *survivor; /* survive.c; NULL: no rank has spoken of an agreement yet */
    atomic_uint idle_rounds;   /* a hint when to look around; written without the lock too */
    uint64_t checked_ns;       /* when peers and deadlines were last looked at */
    atomic_int watched;        /* graphs may wait for peers, whose end somebody has to notice */
    atomic_int async_tasks;    /* the service thread's business */
    atomic_int device_driven_tasks; /* those of them that need to be looked at only now and then */
    unsigned device_driven_calls;
    atomic_int drivers;        /* threads that wait for a stream and see to it themselves */
    bool needs_background;     /* it has control channels that the service thread looks at */
    atomic_bool recovering;    /* some of them are being recovered; read without the lock too, like the next */
    _Atomic uint64_t background_ns; /* when they were last looked at */
    struct pki_list in_service;
    int visitors;              /* service.c's, by its lock: threads that advance it now */
    bool leaving;
};

/* engine.c */
void pki_engine_lock(struct pki_engine *engine);
bool pki_engine_trylock(struct pki_engine *engine);
void pki_engine_unlock(struct pki_engine *engine);
/* How many of `bytes` the CPU may copy or reduce now: whole pages, unless it is all of them. */
size_t pki_engine_ration(struct pki_engine *engine, size_t bytes);

/* progress/progress.c */
/* Advance everything. True when something moved. */
bool pki_engine_progress(struct pki_engine *engine);
void pki_engine_free_ended(struct pki_engine *engine); /* transfers and tasks that have ended; the rest of progress does */
/* Wait, 50 ms at most, until the library's own copies and kernels have ended. */
void pki_engine_drain(struct pki_engine *engine);
/* channel/note.c: notes of one endpoint of a pair, carried by another. */
void pki_note_open(struct pki_engine *engine);
void pki_note_carry(const struct pki_peer *peer);
/* Is there a control channel that somebody must look at though nothing waits here? And look: control channels recover even while this rank waits elsewhere. */
bool pki_note_needs_background(const struct pki_engine *engine);
void pki_note_background(struct pki_engine *engine);

/* progress/left.c: a peer that sent its shutdown message is still waited for */
void pki_engine_check_left(struct pki_engine *engine, struct pki_peer *peer);

/* progress/wait.c. Unlocked: progress until *done. */
void pki_engine_wait(struct pki_engine *engine, const atomic_bool *done);
/* Unlocked: progress until no operation is unfinished. */
void pki_engine_wait_all(struct pki_engine *engine);
/* Unlocked: what a thread does that has found nothing to do `idle` times in a row. */
void pki_engine_backoff(struct pki_engine *engine, unsigned idle);
/* Who waits may keep the CPU: it is this rank's own, and nothing comes by way of the kernel, whose threads would want it. */
bool pki_engine_spins(const struct pki_engine *engine);

/* progress/sleep.c. Unlocked: sleep until a message comes for any of these engines, 10 ms at most. `naps`: how often the caller has slept in vain. False: it
 * cannot be, or somebody else is at work. */
bool pki_engines_sleep(const struct pki_awaited *first, unsigned naps);
/* Wake the thread that does; locked or not, while the control channels are open. */
void pki_engine_wake(struct pki_engine *engine);
#define PKI_DRAIN_NS (50 * PKI_NS_PER_MS)
#define PKI_SETTLE_NS (5 * PKI_NS_PER_MS) /* how long what is over in a stream may take to be seen */
void pki_engine_collapse(struct pki_engine *engine); /* collapse.c, locked: of a failed one, once */
void pki_graphs_release(struct pki_engine *engine); /* there too: streams that wait in replayed graphs go on */
bool pki_engine_lock_within(struct pki_engine *engine, uint64_t ns); /* false: somebody else has it all the time */
/* Locked: where nothing of this rank is unfinished the others are told that it leaves. */
bool pki_engine_send_shutdown(struct pki_engine *engine, enum pki_shutdown why);
/* Unlocked: a driver goes. */
void pki_engine_leave(struct pki_engine *engine);

/* channel/failure.c */
/* Make the engine unusable; the calling thread's error record becomes the engine's. `tell`: the peers do not know yet. */
void pki_engine_poison(struct pki_engine *engine, pk_result_t code, bool tell);
/* Unlocked, where the lock cannot be had: the peers are told by whoever has it next. */
void pki_engine_poison_unlocked(struct pki_engine *engine, pk_result_t code);
void pki_failure_tell_rest(struct pki_engine *engine); /* the peers that have not heard of it */
/* Something with a peer has failed: poison with the endpoint's cause, unless the peers' sockets tell of an earlier and better reason. Without an
 * endpoint, or a cause there, with what this thread has just recorded. */
void pki_engine_attribute_failure(struct pki_engine *engine, pk_result_t code, const struct pki_where *where, const struct pki_ep *ep, size_t done,
                      size_t bytes);
struct pki_where pki_engine_where(const struct pki_engine *engine, int peer, const struct pki_task *task);

/* Look at sockets and deadlines in the next round, if it is time to. */
static inline void pki_engine_check_soon(struct pki_engine *engine)
{
    atomic_store_explicit(&engine->idle_rounds, 63, memory_order_relaxed);
}

extern const struct pki_handlers pki_handlers; /* handlers.c */

/* A collective with this number has not ended with PK_OK. */
static inline void pki_engine_coll_failed(struct pki_engine *engine, uint64_t number)
{
    if (number > 0 && (engine->failure.coll == 0 || number < engine->failure.coll))
        engine->failure.coll = number;
}

/* The oldest unfinished operation, for texts; may be NULL. */
struct pki_task *pki_engine_first_task(const struct pki_engine *engine);

/* core/signals.c */
pk_result_t pki_signals_open(struct pki_engine *engine);
void pki_signals_close(struct pki_engine *engine);
int pki_signals_take(struct pki_engine *engine, struct pki_signal *signal); /* -1: none left */
void pki_signals_give(struct pki_engine *engine, int slot);
void pki_signals_expose(struct pki_engine *engine, int slot, const struct pki_signal *signal); /* a stream waits for it, until it is given back */
void pki_signals_release_all(struct pki_engine *engine); /* unlocked: streams that wait for such words */
void pki_signals_release_barriers(struct pki_engine *engine); /* unlocked: those that wait in a barrier */
_Atomic uint32_t *pki_signals_ll(struct pki_engine *engine, int peer, bool send, uint32_t flag);
void pki_slots_init(struct pki_slots *slots, int n);
int pki_slots_take(struct pki_slots *slots);
int pki_slots_take_new(struct pki_slots *slots); /* one that only this has handed out; */
void pki_slots_give_new(struct pki_slots *slots, int slot); /* and it is to be given back as such */
void pki_slots_give(struct pki_slots *slots, int slot);

/* What comes into GPU memory from this peer goes through bounce buffers: no transport reaches it. */
static inline bool pki_bounce_receives(const struct pki_engine *engine, const struct pki_peer *peer)
{
    return peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] == NULL && peer->rank != engine->config.rank;
}

/* And a kernel fetches it from the slots. */
static inline bool pki_bounce_unpacks(const struct pki_engine *engine)
{
    return engine->config.unpack_kernel && engine->config.sm_policy != PK_SM_NONE;
}

/* An EAGER message to this peer takes along what is owed to it, and one from it brings what it has consumed. */
static inline uint64_t pki_credit_to_return(const struct pki_peer *peer)
{
    return peer->ctrl->iface->eager_credits ? peer->eager_in : 0;
}

static inline void pki_credit_arrived(struct pki_peer *peer, const struct pki_msg *msg)
{
    if (peer->ctrl->iface->eager_credits)
        peer->eager_out -= msg->bytes < peer->eager_out ? msg->bytes : peer->eager_out;
}

/* watchdog.c */
/* A stream of this rank waits for a word of the pair's slots to come to `value`: `done` of its own, `start` of the peer's; of cells the other. */
static inline void pki_watchdog_note(struct pki_peer *peer, bool theirs, int slot, uint32_t value)
{
    if (peer->let_go != NULL)
        atomic_store_explicit(&peer->let_go[theirs ? PKI_PAIR_SLOTS + slot : slot], value, memory_order_relaxed);
}

/* The signal is opened, unless it is open. */
static inline void pki_watchdog_open(_Atomic uint32_t *word, uint32_t value)
{
    if ((int32_t)(value - atomic_load(word)) > 0)
        atomic_store(word, value);
}

/* Unlocked too: waits for signal slots, in streams and in replays, go on; a replay's next one when this is called again. */
void pki_watchdog_open_slots(const struct pki_engine *engine);
/* Unlocked, the engine has failed: all streams and kernels that wait for peers or for this rank's CPU go on. */
void pki_watchdog_release(struct pki_engine *engine);
void pki_watchdog_check(struct pki_engine *engine, uint64_t now); /* unlocked, by one thread */

/* service.c: unlocked */
void pki_service_attach(struct pki_engine *engine);
void pki_service_detach(struct pki_engine *engine); /* the thread no longer touches it on return */
/* Each engine of the process, which stays meanwhile; or none, when the lock is not to be had within the time. */
void pki_service_each(void (*visit)(struct pki_engine *engine), uint64_t ns);
pk_result_t pki_service_wake(void);
pk_result_t pki_service_start(void); /* the thread exists from now on, while there are engines */
pk_result_t pki_service_hold(void);  /* or until it is let go */
void pki_service_let_go(void);

#endif

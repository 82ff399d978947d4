/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's own objects: its tasks (task.h), the transfers that they are made of and the peers of those (xfer.h), memory that
 * peers map (region.h), and here the engine that holds them all. All functions are called with the engine locked unless they say otherwise.
 */
#ifndef PKI_ENGINE_INTERNAL_H
#define PKI_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/core/region.h"
#include "engine/core/task.h"
#include "engine/core/xfer.h"
#include "tuning/tuning.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/log.h"

struct pki_unfreed { /* GPU memory that could not be freed when it should */
    struct pki_list node;
    void *ptr;
    size_t bytes;
};

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
    struct pki_ll_op ops[PKI_LL_ROW_OPS];
    int n, sends, ctas;
};

/* Transfers for the moving kernel, not launched yet (stream/move.c). */
struct pki_move_row {
    struct pki_move_op ops[PKI_MOVE_OPS];
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

#define PKI_MSG_KINDS (PKI_MSG_UNSWITCHED + 1)

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
    /* What transports have told by events so far: it comes before the news of a peer, which sent them behind it. */
    void (*take_events)(struct pki_engine *engine);
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
    struct pki_aggregator aggregator;
    struct pki_regions regions;
    struct pki_mappings mappings;
    struct pki_shm_allocs shm_allocs;
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
/* For texts. */
struct pki_where pki_engine_where(const struct pki_engine *engine, int peer, const struct pki_task *task);
void pki_task_set_device_driven(struct pki_task *task); /* kernels see to it: it needs to be looked at only now and then */
void pki_task_set_cpu_driven(struct pki_task *task); /* it needs the CPU from now on */

/* Look at sockets and deadlines in the next round, if it is time to. */
static inline void pki_engine_check_soon(struct pki_engine *engine)
{
    atomic_store_explicit(&engine->idle_rounds, 63, memory_order_relaxed);
}

/* A collective with this number has not ended with PK_OK. */
static inline void pki_engine_coll_failed(struct pki_engine *engine, uint64_t number)
{
    if (number > 0 && (engine->failure.coll == 0 || number < engine->failure.coll))
        engine->failure.coll = number;
}

/* The oldest unfinished operation, for texts; may be NULL. */
struct pki_task *pki_engine_first_task(const struct pki_engine *engine);

/* signals.c */
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

/* progress/watchdog.c */
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

/* waiting.c, unlocked: streams of the process that may wait for peers, by the GPU's ordinal and the handle */
bool pki_waiting_enter(int device, void *stream); /* for one operation more; false: the list of streams is full, it is not in it */
void pki_waiting_leave(int device, void *stream, bool listed);
int pki_waiting_limit(const struct pki_engine *engine); /* of streams with value waits; 0: none may have any */
void pki_waiting_count(struct pki_task *task); /* locked: a stream may wait for it from now on */
const atomic_int *pki_waiting_streams(int device); /* how many there are on the GPU; NULL: not counted */
bool pki_waiting_hold(int device, void *stream, int limit); /* listed: a value wait, if then no more than `limit` streams have one */
void pki_waiting_drop(int device, void *stream);
/* listed: a channel for copies to and from peers, if then no more than `limit` streams of the GPU have one; until given. */
bool pki_waiting_take_channel(int device, void *stream, int limit);
void pki_waiting_give_channel(int device, void *stream);
/* listed: a kernel that waits, until the stream's operations have ended; of one warp (0), or a low-latency one of so many CTAs. False: no room.
 * places: as below */
bool pki_waiting_occupy(int device, void *stream, int ctas, int places);
/* Of the GPU's `places` for CTAs that wait, `most` or fewer for the fused collectives of one communicator; 0: there are none left. */
int pki_waiting_reserve(int device, int places, int most);
void pki_waiting_return(int device, int ctas);
/* So many operations more, or fewer, have copies for the library's own queues of the GPU; are there any? */
void pki_waiting_copies(int device, int by);
bool pki_waiting_has_copies(int device);

void pki_stream_waits(uint64_t *pending, uint64_t *most); /* value waits of the process: streams that have one */
bool pki_streams_wait(void); /* may a stream of the process wait for a peer because of an operation? Graphs are not counted (core/waiting.c) */
/* True: none may, and none begins to until release. For calls of the driver that wait for all work of a GPU and keep other threads out meanwhile. */
bool pki_streams_hold(void);
void pki_streams_release(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What each folder keeps in an engine: whose it is stands over each structure, and other folders call its functions. Locked. */
#ifndef PKI_ENGINE_PARTS_H
#define PKI_ENGINE_PARTS_H

#include "engine/core/region.h"
#include "engine/core/task.h"
#include "engine/core/xfer.h"

/* watchdog.c's alone: since when the lock has been seen in the same hands. */
struct pki_watchdog {
    uint32_t turn;
    uint64_t since_ns;
};

/* core/engine.c */
struct pki_lock {
    atomic_flag flag;
    _Atomic uint32_t turns; /* times that it was taken and given back: odd while somebody has it */
    struct pki_watchdog held;
};

/* life.c: one of each transport. */
struct pki_ifaces {
    struct pki_iface *at[PKI_IFACES_MAX];
    int n;
    bool call_kernel; /* a message may be a system call at which a cancelled thread ends: a transport between hosts is open */
};

/* core/waiting.c: what the GPU has room for. */
struct pki_gpu_limits {
    int ordinal;     /* of the GPU */
    int connections; /* its hardware queues, */
    int channels;    /* and those for copies to and from peers */
    int places;      /* CTAs of this process that may wait on it at a time */
};

/* The last collectives that began here: what a peer says of one that has ended must agree too. */
#define PKI_SEEN_MAX 64

struct pki_coll_seen {
    uint64_t number;
    uint32_t sig;
    size_t count;
};

/* channel/mismatch.c */
struct pki_colls {
    uint64_t number, captured;               /* of the last one that began, and of the last that was captured */
    struct pki_coll_seen seen[PKI_SEEN_MAX]; /* [number % PKI_SEEN_MAX] */
};

struct pki_unfreed { /* GPU memory that could not be freed when it should */
    struct pki_list node;
    void *ptr;
    size_t bytes;
};

struct pki_graph_scratch { /* that collectives in graphs share (mem/graphs.c) */
    char *ptr;             /* NULL: unused entry */
    size_t bytes;
    int users; /* graphs, and calls that capture */
};

/* mem/ */
struct pki_engine_mem {
    struct pki_list registrations;
    struct pki_regions regions;
    struct pki_mappings mappings;
    struct pki_shm_allocs shm_allocs;
    struct pki_list graphs;      /* with captured operations */
    struct pki_list graph_holds; /* those of graphs that are gone, to be given back */
    unsigned graphs_gone;        /* how many of the process have been seen to be gone */
    void *graph_turn;            /* that captured collectives have one after another; NULL: there was none yet */
    struct pki_graph_scratch graph_scratch[PKI_GRAPH_SCRATCHES];
    int idle_scratch; /* of those: made, and without users */
};

/* proto/ */
struct pki_engine_proto {
    struct pki_list active;                  /* transfers that must be looked at in every round of progress */
    struct pki_list free_xfers, spent_xfers; /* spent: finished in this round */
    struct pki_list slabs;
    unsigned puts_out;         /* moves that transports have and have not finished */
    struct pki_queue work;     /* the library's queue for copies and reductions on the GPU; never waits */
    struct pki_queue deferred; /* and for sends that the caller's stream could not do itself */
    bool queues_open;
    /* Orders for kernels that serve; none: every peer's GPU is reached, or kernels are not allowed */
    struct pki_queue lanes[PKI_LANES];
    struct pki_queue beside;        /* a stream for such kernels that must not stand behind others of their group */
    struct pki_bounce_pool out, in; /* slots of sends and of receives */
    struct pki_list bounce_states, spare_bounces;
    uint32_t ll_call; /* counts calls: which low-latency messages are of this one */
    char *ll_memory;
};

/* plan/task.c */
struct pki_tasks {
    struct pki_list all;   /* that have begun and not ended */
    struct pki_list ended; /* to be freed at the end of the round of progress */
    struct pki_list spare;
    int nspare;
};

/* plan/ */
struct pki_engine_plans {
    struct pki_list all;
    int n;
    struct pki_plan_entry *recent[PKI_PLANS_RECENT]; /* [root % PKI_PLANS_RECENT]: the last taken, in the list too, or NULL */
    struct pki_scratch scratch[PKI_SCRATCH_MAX];
    struct pki_list unfreed;
    struct pki_aggregator aggregator;
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

/* What the stream has yet to do before it comes to the words of a batch. */
enum pki_before {
    PKI_BEFORE_UNKNOWN,  /* It has not been asked. */
    PKI_BEFORE_NOTHING,  /* Nothing: the CPU may open a word itself. */
    PKI_BEFORE_SOMETHING /* Something, or it gets something with this batch. */
};

/* Word operations of a call for a caller's stream, not handed to the driver yet (stream/signals.c). */
struct pki_signal_batch {
    bool used, waits, copied;
    enum pki_before before;
    struct pki_queue queue;
    enum pki_wait_how how;
    int ctas; /* of kernels that serve */
    struct pki_signal_op ops[PKI_SIGNALS_A_BATCH];
    int n, deferred; /* deferred: the last ones, as many as this, tell of copies that the stream has already */
    size_t behind;   /* bytes of those */
    struct pki_stream_last received;
};

/* Low-latency messages of a call for a caller's stream, not launched yet (stream/ll_row.c). Sends before receives. */
struct pki_ll_row {
    struct pki_queue queue;
    struct pki_ll_op ops[PKI_LL_ROW_OPS];
    int n, sends, ctas;
};

/* Transfers of a call for the moving kernel, not launched yet, and behind them words it waits for (stream/move_row.c). */
struct pki_move_row {
    struct pki_queue queue;
    struct pki_move_op ops[PKI_MOVE_OPS];
    int n, ctas;
};

/* stream/: what the call that is being made has yet to hand to the driver, and the branches. */
struct pki_engine_stream {
    struct pki_signal_batch batch;
    struct pki_ll_row ll_row;
    struct pki_move_row move_row;
    struct pki_branch branches[PKI_BRANCHES];
};

/* inline/coll.c */
struct pki_engine_inline {
    bool running;  /* a thread is inside a collective without a task, and has given up the lock for a moment */
    char *scratch; /* once it was needed, `bytes` long */
    size_t bytes;
};

/* progress/progress.c, and questions: progress/stragglers.c */
struct pki_engine_rounds {
    size_t work_left;    /* bytes that the CPU may copy or reduce in this round of progress */
    atomic_uint idle;    /* rounds: a hint when to look around; written without the lock too */
    uint64_t checked_ns; /* when peers and deadlines were last looked at */
    uint64_t questions;  /* that have been asked */
};

/* progress/service.c */
struct pki_engine_service {
    struct pki_list node;
    atomic_int watched;             /* graphs may wait for peers, whose end somebody has to notice */
    atomic_int async_tasks;         /* the service thread's business */
    atomic_int device_driven_tasks; /* those of them that need to be looked at only occasionally */
    unsigned device_driven_calls;
    atomic_int drivers;             /* threads that wait for a stream and see to it themselves */
    bool needs_background;          /* it has control channels that the service thread looks at */
    atomic_bool recovering;         /* some of them are being recovered; read without the lock too, like the next */
    _Atomic uint64_t background_ns; /* when they were last looked at */
    int visitors;                   /* by the thread's own lock: threads that advance it now */
    bool leaving;
};

#endif

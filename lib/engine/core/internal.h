/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's own objects: its tasks (task.h), the transfers that they are made of and the peers of those (xfer.h), memory that
 * peers map (region.h), what each folder keeps (parts.h), and here the engine that holds them all. All functions
 * are called with the engine locked unless they say otherwise.
 */
#ifndef PKI_ENGINE_INTERNAL_H
#define PKI_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/core/parts.h"
#include "engine/core/region.h"
#include "engine/core/task.h"
#include "engine/core/xfer.h"
#include "tuning/tuning.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/log.h"

/* Local signals: words that the caller's streams and the CPU share. */
struct pki_signals {
    _Atomic uint32_t *words;   /* one a cache line */
    _Atomic uint32_t *exposed; /* [slot]: what lets the stream go that waits for it; 0: none does */
    uint32_t *value;
    uint16_t *free;
    int nfree, n;
    _Atomic uint32_t *abort_word; /* kernels that wait look at it */
};

struct pki_failure {
    atomic_bool claimed; /* somebody writes the record, or has */
    atomic_bool unsent;  /* the peers have not been told, for want of the lock */
    pk_error_info_t error;
    atomic_int unreported; /* peers that still have to hear of the failure */
    uint64_t coll;         /* the first collective that did not end with PK_OK; 0: there is none */
    int accuser;           /* 1 + a rank that has waited for this one until its deadline; 0: none */
    int straggler;         /* 1 + the rank that was late at a deadline, by what all have said; 0: none is known to be */
    atomic_bool aborted;   /* by this rank, whatever failed before */
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
    int (*missing)(struct pki_engine *engine); /* the rank that holds up the oldest operation; -1: none is */
    void (*ended)(struct pki_task *task);      /* it is in no list any more, and has its result */
};

/* How far the engine has come. Only pki_engine_enter changes it. */
enum pki_phase {
    PKI_PHASE_CALLS,    /* The program calls operations. */
    PKI_PHASE_FLUSHES,  /* This rank ends its operations, and calls no more. */
    PKI_PHASE_COLLAPSED /* It has failed, and every stream and thread that waited has been let go. */
};

struct pki_engine {
    /* what every message needs */
    struct pki_lock lock;
    atomic_int failed; /* pk_result_t; failure.error is written before it */
    enum pki_phase phase;
    bool shutdown_sent;
    struct pki_device *host, *gpu;
    struct pki_peer *peers;
    struct pki_tasks tasks;
    struct pki_engine_proto proto;
    pk_stats_t stats;
    const struct pki_handlers *handlers;

    struct pki_engine_config config;
    struct pki_gpu_limits limits;
    struct pki_ifaces ifaces;
    struct pki_signals signals;
    struct pki_failure failure;
    struct pki_colls colls;
    struct pki_survivor *survivor; /* survive.c; NULL: no rank has spoken of an agreement yet */
    struct pki_engine_mem mem;
    struct pki_engine_plans plans;
    struct pki_fused fused;
    struct pki_engine_stream stream;
    struct pki_engine_inline inlined;
    struct pki_engine_rounds rounds;
    struct pki_engine_service service;
};

/* engine.c */
void pki_engine_lock(struct pki_engine *engine);
bool pki_engine_trylock(struct pki_engine *engine);
void pki_engine_unlock(struct pki_engine *engine);
/* How many of `bytes` the CPU may copy or reduce now: whole pages, unless it is all of them. */
size_t pki_engine_ration(struct pki_engine *engine, size_t bytes);
/* For texts. */
struct pki_where pki_engine_where(const struct pki_engine *engine, int peer, const struct pki_task *task);
const char *pki_task_name(const struct pki_task *task); /* of the operation, as texts and logs have it */
void pki_task_set_device_driven(struct pki_task *task); /* kernels see to it: it needs to be looked at only occasionally */
void pki_task_set_cpu_driven(struct pki_task *task);    /* it needs the CPU from now on */

/* Look at sockets and deadlines in the next round, if it is time to. */
static inline void pki_engine_check_soon(struct pki_engine *engine)
{
    atomic_store_explicit(&engine->rounds.idle, PKI_CHECK_ROUNDS - 1, memory_order_relaxed);
}

/* A collective with this number has not ended with PK_OK. */
static inline void pki_engine_coll_failed(struct pki_engine *engine, uint64_t number)
{
    if (number > 0 && (engine->failure.coll == 0 || number < engine->failure.coll))
        engine->failure.coll = number;
}

static inline void pki_engine_enter(struct pki_engine *engine, enum pki_phase phase)
{
    if (engine->phase != PKI_PHASE_COLLAPSED) /* nothing comes after it */
        engine->phase = phase;
}

/* The oldest unfinished operation, for texts; may be NULL. */
struct pki_task *pki_engine_first_task(const struct pki_engine *engine);

/* signals.c */
pk_result_t pki_signals_open(struct pki_engine *engine);
void pki_signals_close(struct pki_engine *engine);
int pki_signals_take(struct pki_engine *engine, struct pki_signal *signal); /* -1: none left */
void pki_signals_give(struct pki_engine *engine, int slot);
/* a stream waits for it, until it is given back */
void pki_signals_expose(struct pki_engine *engine, int slot, const struct pki_signal *signal);
void pki_signals_release_all(struct pki_engine *engine);      /* unlocked: streams that wait for such words */
void pki_signals_release_barriers(struct pki_engine *engine); /* unlocked: those that wait in a barrier */
_Atomic uint32_t *pki_signals_ll(struct pki_engine *engine, int peer, bool send, uint32_t flag);
void pki_slots_init(struct pki_slots *slots, int n);
int pki_slots_take(struct pki_slots *slots);
int pki_slots_take_new(struct pki_slots *slots);            /* one that only this has handed out; */
void pki_slots_give_new(struct pki_slots *slots, int slot); /* and it is to be given back as such */
void pki_slots_give(struct pki_slots *slots, int slot);

/* progress/watchdog.c */
/* A stream of this rank waits for a word of the pair's slots to come to `value`: `done` of its own, `start` of the peer's; of
 * cells the other. */
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
/* for one operation more; false: the list of streams is full, it is not in it */
bool pki_waiting_enter(int device, void *stream);
void pki_waiting_leave(int device, void *stream, bool listed);
int pki_waiting_limit(const struct pki_engine *engine); /* of streams with value waits; 0: none may have any */
const atomic_int *pki_waiting_streams(int device);      /* how many there are on the GPU; NULL: not counted */
/* listed: a value wait, if then no more than `limit` streams have one */
bool pki_waiting_hold(int device, void *stream, int limit);
void pki_waiting_drop(int device, void *stream);
/* listed: a channel for copies to and from peers, if then no more than `limit` streams of the GPU have one; until given. */
bool pki_waiting_take_channel(int device, void *stream, int limit);
void pki_waiting_give_channel(int device, void *stream);
/* listed: a kernel that waits, until the stream's operations have ended; of one warp (0), or a low-latency one of `ctas`. False:
 * no room. places: as below */
bool pki_waiting_occupy(int device, void *stream, int ctas, int places);
/* Of the GPU's `places` for CTAs that wait, `most` or fewer for the fused collectives of one communicator; 0: there are none
 * left. */
int pki_waiting_reserve(int device, int places, int most);
void pki_waiting_return(int device, int ctas);
/* `by` operations more have copies for the library's own queues of the GPU, or fewer if it is negative. */
void pki_waiting_copies(int device, int by);
bool pki_waiting_has_copies(int device);

bool pki_waiting_has_few_queues(const struct pki_engine *engine);

/* claims.c: the same for one operation. What it has stays until it is given up. */
void pki_claims_count(struct pki_task *task);                  /* a stream may wait for it from now on; before the next three */
bool pki_claims_wait(struct pki_task *task, int limit);        /* as pki_waiting_hold */
bool pki_claims_kernel(const struct pki_task *task, int ctas); /* as pki_waiting_occupy */
bool pki_claims_channel(struct pki_task *task, int limit);     /* as pki_waiting_take_channel */
void pki_claims_copies(struct pki_task *task);                 /* it has copies for the library's own queues */
void pki_claims_give_up(struct pki_task *task);

void pki_stream_waits(uint64_t *pending, uint64_t *most); /* value waits of the process: streams that have one */
/* may a stream of the process wait for a peer because of an operation? Graphs are not counted (core/waiting.c) */
bool pki_streams_wait(void);
/* True: none may, and none begins to until release. For calls of the driver that wait for all work of a GPU and keep other
 * threads out meanwhile. */
bool pki_streams_hold(void);
void pki_streams_release(void);

#endif

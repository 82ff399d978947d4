/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks, each an operation of the API: a plan with the state of its steps, or a single transfer. How they are made, run and
 * ended, and how they join streams. Locked, unless it says otherwise.
 */
#ifndef PKI_ENGINE_TASK_H
#define PKI_ENGINE_TASK_H

#include "engine/engine.h"
#include "tuning/tuning.h"

struct pki_fused_words;
struct pki_branch;
struct pki_host_stream;
struct pki_peer;
struct pki_xfer;

/* Who does an operation, and what its stream has to do with it. Only pki_task_enter changes it. */
enum pki_task_mode {
    PKI_TASK_CPU,          /* The engine does it at once, and the caller (or host stream) waits for `ended`. */
    PKI_TASK_AFTER_STREAM, /* The engine does it when the CUDA stream has nothing more to do, and the caller waits for `ended`. */
    PKI_TASK_SIGNALLED,    /* The engine does it, between two signals: a CUDA stream opens `ready` and waits for `release`. */
    PKI_TASK_BARRIER,      /* The engine does it behind `ready`, but its CUDA stream waits for the words of its peers alone. */
    PKI_TASK_STREAM        /* The CUDA stream does it itself. */
};

enum pki_step_progress {
    PKI_STEP_WAITS,   /* No transfer has been made for it. */
    PKI_STEP_BEGUN,   /* A transfer moves its bytes, or has moved them. */
    PKI_STEP_COMPLETE /* All of it is done. */
};

struct pki_step_state {
    size_t bytes; /* length of the step's block */
    size_t done;  /* bytes finished */
    struct pki_xfer *xfer;
    size_t landed;            /* RECV_REDUCE: bytes that have come */
    struct pki_signal finish; /* work on a GPU in flight */
    int finish_slot;
    size_t finish_bytes; /* done will be this when it opens */
    enum pki_step_progress progress;
    bool queued;    /* on the stack of steps to look at */
    bool reduced;   /* RECV_REDUCE: its bytes are combined as they come, without landing */
    bool starved;   /* no word was left for the work, or no time */
    uint8_t branch; /* 1, 2: in task->cuda.branches[branch - 1], which has not been joined */
};

/* A collective whose buffers are of two kinds of memory (mixed.c). */
struct pki_mixed {
    bool over;                    /* the receive buffer has everything */
    bool staging_in, staging_out; /* which of the buffers has a staging copy: none of them, one, or both */
    const void *user_in;
    void *user_out;
    size_t in_bytes, out_bytes;
    uint32_t block; /* of the receive buffer, being copied out */
    size_t issued;  /* bytes of the copy */
    int word;
    struct pki_signal ended; /* the last piece has been copied */
};

/* A sum of elements that are multiplied first (scaled.c). */
struct pki_scaled {
    const void *user_in;
    bool fetched;   /* the factor is here where it is needed, */
    uint64_t value; /* in these bytes */
    size_t done;    /* by the CPU */
    int word;
    struct pki_signal ended; /* the GPU has fetched it, or multiplied */
};

/* An allreduce by the aggregator (switched.c): packets, and then operations within the operation, one after another. */
enum pki_switched_part {
    PKI_SWITCHED_PACKETS,
    PKI_SWITCHED_AGREE,  /* have all ranks all sums? Only where they may go on without the aggregator */
    PKI_SWITCHED_UNFIT,  /* units that fit no packet */
    PKI_SWITCHED_OWNERS, /* who has the sums of which units? */
    PKI_SWITCHED_ALL     /* the whole sum, without the aggregator */
};

#define PKI_SWITCHED_NUMBERS 4 /* of collectives that such an allreduce takes: its own, and at most three within it */

struct pki_switched {
    bool begun;
    enum pki_switched_part part;
    uint64_t number;       /* of the last one that was begun: its own, or of one within it */
    int32_t complete;      /* AGREE: 1 where all have all sums */
    void *memory;          /* UNFIT: copies of the units, OWNERS: a rank for each unit */
    struct pki_task *rest; /* the one within it */
};

/* The aggregator of the communicator. */
struct pki_aggregator {
    struct pki_switchml *switchml; /* NULL: there is none */
    bool fallback;                 /* PK_SWITCHML_FALLBACK */
    atomic_int running;            /* allreduces that have begun: one at most. Changed with the lock; who waits looks without */
    _Atomic uint64_t lost;         /* the allreduce in which some rank has given it up; 0: none has. Later ones go without it */
    uint32_t untold;               /* bit r: rank r has still to hear that this one has */
};

/* reach.c: where the other ranks have the buffers of a fused collective mapped */
struct pki_reach {
    bool all;   /* all have what they need */
    bool asked; /* some of them were asked to map it */
    uint32_t regions[2];
    uint64_t in[PKI_FUSED_RANKS], out[PKI_FUSED_RANKS];
};

/* host.c: inboxes in host memory */
struct pki_fused_mapping {
    char *at; /* NULL: there is none */
    size_t bytes;
    bool is_registered;
};

/* Slots of a peer's receives (proto/bounce.c), which this rank's GPU fills. */
struct pki_far_slots {
    struct pki_fused_mapping here; /* registered when they are first used */
    uint64_t there;                /* their address in the peer's process */
};

struct pki_fused_host {
    bool used;                                       /* on all ranks or on none; else they are in memory of the GPUs */
    int fd;                                          /* of `memory`, until all peers have it; -1 */
    struct pki_fused_mapping memory;                 /* this rank's inbox */
    struct pki_fused_mapping parts[PKI_FUSED_RANKS]; /* what this rank writes of the others' */
    struct pki_fused_mapping slots;                  /* of this rank's receives, behind `memory`; registered by their pool */
    struct pki_far_slots far[PKI_FUSED_RANKS];
    char *state; /* struct pki_fused_state, in memory of the GPU */
};

/* fused.c */
struct pki_fused {
    bool on;
    char *inbox; /* of this rank, at the end of ll_memory or in host.memory */
    char *state; /* struct pki_fused_state */
    struct pki_fused_host host;
    uint64_t remote[PKI_FUSED_RANKS]; /* [rank]: where this rank writes in its inbox, mapped here */
    struct pki_fused_words *words;    /* registered with the GPU; NULL without fused collectives */
    uint32_t epoch;                   /* the last that was handed out */
    uint32_t entries;                 /* of words->fall, handed out; those of unfinished operations are different ones */
    bool skipped;                     /* this rank has done the last one in another way */
    uint32_t ctas_launched;
    uint32_t quiet;     /* kernels that could be; one in some still tells the CPU */
    uint64_t begun_ns;  /* the operation launched last: when it was called */
    bool soon;          /* the next one was called soon after it */
    int share;          /* of the GPU's places, this process's */
    int places;         /* CTAs of its kernels that there is always room for; pki_waiting_reserve's */
    int replay_places;  /* and of those in graphs; 0: none have been asked for, or there were none */
    char *replay_inbox; /* of those (capture_fused.c); NULL: there is none yet */
    void *last_stream;  /* the kernel launched last: its stream, CTAs and last epoch */
    int last_ctas;
    uint32_t last_epoch;
    uint32_t fresh_epoch;    /* when all of words->done were set to the latest */
    struct pki_list waiting; /* tasks that have an epoch and no kernel yet, in order */
    int indirect;            /* tasks that the engine will launch, not the call itself */
    struct pki_queue queue;  /* for those */
};

/* Of a plan that is one step, which a kernel on each rank does, or an aggregator. */
struct pki_executor {
    void (*look)(struct pki_task *task);              /* start it, if it can be now */
    bool (*poll)(struct pki_task *task, bool *ended); /* true: something has changed */
    bool (*waits_for)(const struct pki_task *task, int peer);
    void (*stop)(struct pki_task *task); /* its buffers are the caller's, ended or not. NULL: they are */
    void (*drop)(struct pki_task *task); /* what it has of its own; NULL: nothing */
    void (*fall)(struct pki_task *task); /* a rank does it by an ordinary plan: so do all. NULL: none can */
    bool (*awaits)(const struct pki_task *task, uint64_t number); /* what is within it and has not begun. NULL: nothing is */
};

/* What an operation counts for among the streams of the process (core/waiting.c). */
enum pki_counted {
    PKI_COUNTED_NOT,      /* No stream waits for it. */
    PKI_COUNTED_UNLISTED, /* A stream may wait for it, which found no place in the list of streams. */
    PKI_COUNTED_LISTED    /* A stream may wait for it, which is in the list. */
};

struct pki_claims {
    enum pki_counted counted;
    bool holds_wait;  /* a value wait of its stream */
    bool has_channel; /* its stream has copies of this task */
    bool copies;      /* it has copies for the library's own queues */
};

/* An operation's place in the caller's CUDA stream (stream/join.c). */
struct pki_cuda_place {
    struct pki_queue queue; /* the stream */
    enum pki_wait_how how;
    int ctas;                  /* of the kernel that serves while the stream waits */
    struct pki_signal ready;   /* opened by the stream when it comes to the operation */
    struct pki_signal release; /* the stream waits for it; the engine opens it at the end */
    int ready_slot, release_slot;
    struct pki_branch *branches[2]; /* of the stream, or NULL; the second is for plans in rounds */
    struct pki_task *other_end;     /* of a message to the own rank that this one's stream copies (stream/self.c) */
    struct pki_claims claims;
    bool waited;          /* the waits with which its call ends are in the stream */
    bool beside_messages; /* a collective in a group with messages */
    bool works;           /* the stream copies or reduces for it, and opens `ready` behind that */
};

/* An operation's place in a host stream (stream/host_stream.c). */
struct pki_host_place {
    struct pki_list node; /* of the stream's queue */
    struct pki_host_stream *stream;
    uint64_t group;        /* of the process: operations that were started together */
    atomic_bool may_start; /* everything before it has ended */
};

/* What has been asked about an operation that does not end (progress/stragglers.c). */
struct pki_inquiry {
    unsigned questions;         /* so far */
    uint64_t asked;             /* the number of the last one that there was time to answer */
    uint64_t asking, asking_ns; /* the last one */
    bool warned;                /* a line in the log says so */
};

/* A plan that is being done (plan/run.c, plan/steps.c; made by plan/prepare.c). */
struct pki_run {
    const struct pki_executor *executor; /* NULL: the steps are done one by one */
    struct pki_plan_entry *entry;
    struct pki_step_state *steps;
    uint32_t *ready_steps; /* stack of steps to look at */
    uint32_t nready, remaining;
    uint32_t next_send;  /* steps before it hold no first send that has yet to be issued */
    uint32_t unreported; /* not fused, though it could be: bit p, rank p has yet to be told */
    char *scratch;
    size_t scratch_stride;
    bool running;   /* its steps are being looked at */
    bool more_work; /* on the host: some step is starved */
};

/* A fused collective's kernel (fused/fused.c). */
enum pki_fused_stage {
    PKI_FUSED_NOWHERE, /* It waits for no turn: it is no fused collective, or has left before its kernel was launched. */
    PKI_FUSED_BY_CALL, /* The call itself will launch the kernel. */
    PKI_FUSED_BY_CPU,  /* The engine will, when it is its turn. */
    PKI_FUSED_LAUNCHED /* It is in a stream. */
};

struct pki_fused_turn {
    struct pki_list turn; /* engine->fused.waiting */
    enum pki_fused_stage stage;
    uint32_t epoch, last_epoch, clear_epoch, entry_number;
    struct pki_reach reach;
    int ctas;
    bool heard_of; /* another rank has said that it has an ordinary plan */
    bool careful;  /* this rank has done the collective before it in another way */
    bool fallen;   /* a rank does it in another way, so all do */
};

struct pki_task {
    struct pki_list node;    /* engine->tasks.all, from start to end */
    struct pki_list waiting; /* the caller's list of blocking ones */
    struct pki_engine *engine;
    struct pki_request request;
    size_t *lengths; /* the layout's arrays */
    uint64_t number;
    uint32_t sig;
    enum pki_mem_kind kind;
    enum pki_task_mode mode;
    bool started;
    bool device_driven; /* kernels see to it: pki_task_set_device_driven */
    atomic_bool ended;
    pk_result_t result;
    uint64_t begun_ns, deadline_ns;
    struct pki_xfer *xfer;       /* send, recv */
    const struct pki_plan *plan; /* collectives: that of run.entry */
    struct pki_run run;
    struct pki_cuda_place cuda;
    struct pki_host_place host;
    struct pki_inquiry inquiry;
    struct pki_mixed mixed;
    struct pki_scaled scaled;
    struct pki_switched switched;
    struct pki_fused_turn fused;
};

struct pki_plan_entry {   /* the plan cache */
    struct pki_list node; /* engine->plans.all, the one used last in front */
    const struct pki_algorithm *algorithm;
    bool in_place;
    int root;
    unsigned users; /* tasks */
    struct pki_plan *plan;
    size_t stride, stride_in, stride_out; /* of scratch, and the lengths it was made for */
    pk_dtype_t stride_type;
    struct pki_program *program; /* inline/coll.c's, or NULL */
    struct pki_moment *moments;  /* stream/collective.c's, or NULL */
    uint32_t nmoments;
    uint32_t *dependents, *dependents_first; /* reversed dependencies: of step i, [first[i], first[i + 1]) */
};

struct pki_scratch {
    char *ptr;
    size_t bytes;
    bool busy;
    enum pki_mem_kind kind;
};

static inline bool pki_task_in_cuda_stream(const struct pki_task *task)
{
    return task->request.stream.kind == PK_STREAM_KIND_CUDA;
}

/* The stream does it itself. */
static inline bool pki_task_is_direct(const struct pki_task *task)
{
    return task->mode == PKI_TASK_STREAM;
}

static inline void pki_task_enter(struct pki_task *task, enum pki_task_mode mode)
{
    task->mode = mode;
}

/* Some buffer has a staging copy. */
static inline bool pki_task_is_mixed(const struct pki_task *task)
{
    return task->mixed.staging_in || task->mixed.staging_out;
}

static inline bool pki_task_is_fused(const struct pki_task *task)
{
    return task->plan != NULL && task->plan->nsteps == 1 && task->plan->steps[0].kind == PKI_STEP_FUSED;
}

static inline bool pki_task_is_switched(const struct pki_task *task)
{
    return task->request.what == PKI_DO_COLL && task->request.algorithm == &pki_switchml_algorithm;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks, each an operation of the API: a plan with the state of its steps, or a single transfer. How they are made, run and ended, and
 * how they join streams. Locked, unless it says otherwise.
 */
#ifndef PKI_ENGINE_TASK_H
#define PKI_ENGINE_TASK_H

#include "engine/engine.h"

struct pki_fused_words;
struct pki_branch;
struct pki_host_stream;
struct pki_peer;
struct pki_xfer;

enum pki_task_mode {
    PKI_TASK_CPU,    /* the engine starts it at once and the caller (or host stream) waits for `ended` */
    PKI_TASK_SIGNALLED, /* a CUDA stream opens `ready` and waits for `release` */
    PKI_TASK_STREAM  /* the CUDA stream does the transfer itself */
};

struct pki_step_state {
    size_t bytes;      /* length of the step's block */
    size_t done;       /* bytes finished */
    struct pki_xfer *xfer;
    size_t landed;          /* RECV_REDUCE: bytes that have come */
    bool reduced;           /* RECV_REDUCE: they are combined as they come, without landing */
    struct pki_signal finish; /* work on a GPU in flight */
    int finish_slot;
    size_t finish_bytes;    /* done will be this when it opens */
    bool started, complete, queued, starved; /* starved: no word was left for the work, or no time */
    bool branched;          /* in the branch of the caller's stream, which has not been joined */
};

/* A collective whose buffers are of two kinds of memory (mixed.c). */
struct pki_mixed {
    bool over;               /* the receive buffer has everything */
    bool active, staging_in, staging_out; /* which of the buffers has a staging copy: one of them, or both */
    const void *user_in;
    void *user_out;
    size_t in_bytes, out_bytes;
    uint32_t block;          /* of the receive buffer, being copied out */
    size_t issued;           /* bytes of the copy */
    int word;
    struct pki_signal ended; /* the last piece has been copied */
};

/* A sum of elements that are multiplied first (scaled.c). */
struct pki_scaled {
    const void *user_in;
    bool fetched;            /* the factor is here where it is needed, */
    uint64_t value;          /* in these bytes */
    size_t done;             /* by the CPU */
    int word;
    struct pki_signal ended; /* the GPU has fetched it, or multiplied */
};

/* An allreduce by the aggregator (switched.c). */
struct pki_switched {
    bool begun;
    float *units;            /* that do not fit: copies, */
    struct pki_task *rest;   /* which this one sums */
};

/* reach.c: where the other ranks have the buffers of a fused collective mapped */
struct pki_reach {
    bool all; /* all have what they need */
    bool asked; /* some of them were asked to map it */
    uint32_t regions[2];
    uint64_t in[PKI_FUSED_RANKS], out[PKI_FUSED_RANKS];
};

/* fused.c */
struct pki_fused {
    bool on;
    char *inbox;                     /* of this rank, at the end of ll_memory */
    uint64_t remote[PKI_FUSED_RANKS]; /* [rank]: where this rank writes in its inbox, mapped here */
    struct pki_fused_words *words;   /* registered with the GPU; NULL without fused collectives */
    uint32_t epoch;                  /* the last that was handed out */
    uint32_t entries;                /* of words->fall, handed out; those of unfinished operations are different ones */
    bool skipped;                    /* this rank has done the last one in another way */
    uint32_t ctas_launched;
    uint32_t quiet;                  /* kernels that could be; one in some still tells the CPU */
    uint64_t begun_ns;               /* the operation launched last: when it was called */
    bool soon;                       /* the next one was called soon after it */
    int share;                       /* of the GPU's places, this process's */
    int places;                      /* CTAs of its kernels that there is always room for; pki_waiting_reserve's */
    int replay_places;               /* and of those in graphs; 0: none have been asked for, or there were none */
    char *replay_inbox;              /* of those (capture_fused.c); NULL: there is none yet */
    void *last_stream;               /* the kernel launched last: its stream, CTAs and last epoch */
    int last_ctas;
    uint32_t last_epoch;
    uint32_t fresh_epoch;            /* when all of words->done were set to the latest */
    struct pki_list waiting;         /* tasks that have an epoch and no kernel yet, in order */
    int indirect;                    /* tasks that the engine will launch, not the call itself */
    struct pki_queue queue;          /* for those */
};

/* Of a plan that is one step, which a kernel on each rank does, or an aggregator. */
struct pki_executor {
    void (*look)(struct pki_task *task);              /* start it, if it can be now */
    bool (*poll)(struct pki_task *task, bool *ended); /* true: something has changed */
    bool (*waits_for)(const struct pki_task *task, int peer);
    void (*drop)(struct pki_task *task);              /* what it has of its own; NULL: nothing */
    void (*fall)(struct pki_task *task);              /* a rank does it by an ordinary plan: so do all. NULL: none can */
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
    struct pki_signal ready;   /* opened by the stream when it comes to the operation */
    struct pki_signal release; /* the stream waits for it; the engine opens it at the end */
    int ready_slot, release_slot;
    struct pki_host_stream *stream;
    uint64_t group;            /* of the process: operations that were started together */
    atomic_bool may_start;     /* host stream: everything before it has ended */
    bool counted, listed; /* among those of the process for which a stream may wait; with its stream (core/waiting.c) */
    bool started, holds_wait, direct, few_queues, waited;
    bool copies;               /* in the library's own queues: among those of the process (core/waiting.c) */
    bool has_channel;          /* its stream has copies of this task (core/waiting.c) */
    bool by_signals;           /* a barrier: its stream does not wait for the engine */
    bool beside_messages;      /* a collective in a group with messages */
    bool works;                /* the caller's stream copies or reduces for it, and opens `ready` behind that */
    struct pki_branch *branch; /* of the caller's stream, or NULL */
    bool running;              /* its steps are being looked at */
    bool more_work;            /* on the host: some step is starved */
    atomic_bool ended;
    pk_result_t result;
    uint64_t begun_ns, deadline_ns;
    bool warned;
    unsigned questions;        /* stragglers.c: asked about it so far */
    uint64_t asked;            /* the number of the last one that there was time to answer */
    uint64_t asking, asking_ns; /* the last one */
    struct pki_xfer *xfer;     /* send, recv */
    struct pki_task *other_end; /* of a message to the own rank that this one's stream copies (stream/self.c) */
    size_t *lengths;           /* the layout's arrays */
    const struct pki_executor *executor; /* NULL: the steps are done one by one */
    struct pki_plan_entry *entry;
    const struct pki_plan *plan; /* the entry's */
    const uint32_t *dependents, *dependents_first;
    struct pki_step_state *steps;
    uint32_t *ready_steps;     /* stack of steps to look at */
    uint32_t nready, remaining;
    uint32_t next_send;        /* steps before it hold no first send that has yet to be issued */
    uint32_t next_recv;        /* of an ordered plan: nor a receive that has yet to end */
    char *scratch;
    size_t scratch_stride;
    struct pki_mixed mixed;
    struct pki_scaled scaled;
    struct pki_switched switched;
    struct pki_list turn;      /* fused: engine->fused.waiting */
    uint32_t epoch, last_epoch, clear_epoch, entry_number;
    struct pki_reach reach;
    int ctas;
    uint32_t unreported;       /* not fused, though it could be: bit p, rank p has yet to be told */
    bool heard_of;             /* another rank has said that it has an ordinary plan */
    bool device_driven, careful, indirect, launched, fallen; /* fallen: a rank does it in another way, so all do */
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

#define PKI_STREAM_OPERATIONS 512 /* in CUDA streams at a time; each has two words while it lasts */
#define PKI_SCRATCH_MAX 64

static inline bool pki_task_in_cuda_stream(const struct pki_task *task)
{
    return task->request.stream.kind == PK_STREAM_KIND_CUDA;
}

static inline bool pki_task_is_fused(const struct pki_task *task)
{
    return task->plan != NULL && task->plan->nsteps == 1 && task->plan->steps[0].kind == PKI_STEP_FUSED;
}

static inline bool pki_task_is_switched(const struct pki_task *task)
{
    return task->request.what == PKI_DO_COLL && task->request.algorithm == &pki_switchml_algorithm;
}

/* agree.c */
uint32_t pki_task_fingerprint(const struct pki_request *request, int size);
void pki_task_mismatch(struct pki_task *task, int peer, uint32_t their_sig);
/* Is what a peer says of collective `number` another one than the one that began here? Then the engine has failed. */
bool pki_task_contradicts(struct pki_engine *engine, int peer, uint64_t number, uint32_t their_sig);
/* Give a collective its number; peers may have spoken of it already, and disagree. */
void pki_task_number(struct pki_task *task);

/* task.c */
/* Checked and with its plan; it has no place in a stream yet. */
pk_result_t pki_task_make(struct pki_engine *engine, const struct pki_request *request, struct pki_task **task);
/* Give the task its number and place; from here on it ends through pki_task_end. */
pk_result_t pki_task_enroll(struct pki_task *task);
void pki_task_end(struct pki_task *task, pk_result_t result);
void pki_task_free(struct pki_task *task);
void pki_tasks_close(struct pki_engine *engine); /* frees those that are kept for later */
void pki_task_set_device_driven(struct pki_task *task); /* kernels see to it: it needs to be looked at only now and then */
void pki_task_set_cpu_driven(struct pki_task *task); /* it needs the CPU from now on */
/* plan/policy.c */
/* A message whose other end is this rank's too. */
bool pki_task_is_to_self(const struct pki_task *task);
pk_result_t pki_task_check_policy(struct pki_task *task); /* may the GPU do it, and may a kernel, if it needs one? */
/* Does it copy or reduce inside the gpu? The library's own queue does that. */
bool pki_task_needs_kernel(const struct pki_task *task);
/* How far a collective has come that began without a task; a bit a step. Its scratch is engine->inline_scratch. */
struct pki_begun {
    uint64_t number;
    uint64_t done; /* complete */
};

/* plan/start.c */
bool pki_task_start(struct pki_task *task); /* false: it cannot yet, ask again */
pk_result_t pki_task_resume(struct pki_engine *engine, const struct pki_request *request, const struct pki_begun *begun,
                            struct pki_list *blocking);

/* plan/prepare.c */
/* The transfer of a SEND, RECV or RECV_REDUCE, made and not posted; NULL: the engine has failed. */
struct pki_xfer *pki_plan_xfer(struct pki_task *task, uint32_t step);
char *pki_plan_block(const struct pki_task *task, struct pki_ref ref, size_t *bytes);
size_t pki_plan_scratch_stride(const struct pki_plan *plan, const struct pki_request *request); /* bytes of a block; 0: none */
pk_result_t pki_plan_prepare(struct pki_task *task);
void pki_plan_release(struct pki_task *task);
void pki_plan_abandon(struct pki_task *task); /* free the transfers of an unfinished plan */

/* plan/steps.c */
void pki_plan_queue(struct pki_task *task, uint32_t step); /* it is to be looked at */
uint32_t pki_plan_next_recv(const struct pki_task *task, uint32_t from); /* the first receive from there on that has not ended */
/* A step's own bytes have moved, to `done` in all; the steps that depend on it are looked at next. */
void pki_plan_step_done(struct pki_task *task, uint32_t step, size_t done, bool ended);

/* scratch.c */
size_t pki_scratch_bytes(const struct pki_task *task);
/* PK_IN_PROGRESS: so many collectives are at work that this one has to wait for one of them. */
pk_result_t pki_scratch_take(struct pki_task *task);
void pki_scratch_give(struct pki_task *task);
void pki_scratch_take_inline(struct pki_task *task); /* the task's and engine->inline_scratch change places */
void pki_scratch_close(struct pki_engine *engine); /* what could not be freed before */

/* plan/run.c */
bool pki_plan_run(struct pki_task *task); /* false: it cannot start yet */
void pki_plan_resume(struct pki_task *task, const struct pki_begun *begun);
bool pki_plan_poll(struct pki_task *task);
void pki_plan_tell(struct pki_task *task); /* `unreported` ranks that this one has an ordinary plan */

/* plan/work.c */
/* Do bytes [from, from + len) of a COPY, a REDUCE or the reduction of a RECV_REDUCE. */
pk_result_t pki_plan_work(struct pki_task *task, uint32_t step, size_t from, size_t len, const struct pki_queue *queue);
/* Do, or let the GPU do, what can be done now of a step whose first `avail` bytes may be worked on; `all`: nothing can come on top. */
void pki_plan_look_at_work(struct pki_task *task, uint32_t step, size_t avail, bool all);
/* Host, RECV_REDUCE: combine what has just come with the step's own operand, from where it is. */
pk_result_t pki_plan_reduce_from(struct pki_task *task, uint32_t step, size_t at, const void *payload, size_t bytes);

/* plan/cache.c: the plan for a request; the task gives it back. */
pk_result_t pki_plan_take(struct pki_engine *engine, const struct pki_request *request, struct pki_plan_entry **entry);
void pki_plan_give(struct pki_engine *engine, struct pki_plan_entry *entry);
void pki_plans_close(struct pki_engine *engine);

/* inline/coll.c (with inline/program.c), unlocked: a short blocking collective of host memory without a task. NOT: nothing has happened.
 * BEGUN: it goes on as a task in `blocking`, or, where that is empty, has failed. */
enum pki_inline { PKI_INLINE_NOT, PKI_INLINE_DONE, PKI_INLINE_BEGUN };
enum pki_inline pki_inline_coll(struct pki_engine *engine, const struct pki_request *request, struct pki_list *blocking);

/* mixed.c. The middle two: false: not yet, ask again. */
void pki_mixed_choose(struct pki_task *task, const enum pki_mem_kind kinds[2], const size_t bytes[2]);
bool pki_mixed_before(struct pki_task *task, size_t scratch_at); /* from there on the scratch is its own */
bool pki_mixed_after(struct pki_task *task);
size_t pki_mixed_bytes(const struct pki_task *task); /* of the staging copy, beside the scratch memory */

/* scaled.c: of a request that is `scaled`; of others nothing happens. The plan reads from the scratch memory what is multiplied
 * there first. */
void pki_scaled_choose(struct pki_task *task);
size_t pki_scaled_bytes(const struct pki_task *task); /* beside the other scratch memory */
bool pki_scaled_before(struct pki_task *task);        /* as pki_mixed_before, and after it */
void pki_scaled_place(struct pki_task *task);         /* from now on the plan's IN is there */
/* The same, and let a queue of the GPU multiply now; its kernel is counted. */
pk_result_t pki_scaled_queue(struct pki_task *task, const struct pki_queue *queue, uint64_t *kernels);

/* stream/join.c: tasks in the caller's CUDA stream, three phases so that a group's do not block one another */
pk_result_t pki_stream_admit(struct pki_task *task); /* before anything is posted: may it wait in this stream, how */
void pki_stream_begin(struct pki_task *task);        /* posted and, where the peer has been as fast, matched */
void pki_stream_open(struct pki_task *task);         /* "ready" and "my buffer is free": from the last task to the first */
void pki_stream_launch(struct pki_task *task);       /* a fused collective's kernel */
void pki_stream_end(struct pki_task *task, struct pki_list *made); /* waits, for all of `made` in the same stream at once */
void pki_stream_copies(struct pki_task *task);       /* copies of callers' streams must not stand before its own */
void pki_stream_left(struct pki_task *task);         /* the task has ended: its wait is over */
void pki_stream_waits(uint64_t *pending, uint64_t *most); /* value waits of the process: streams that have one (core/waiting.c) */
/* As pki_streams_wait and pki_streams_hold, and no graph of this engine's ever will wait (import.c). */
bool pki_streams_are_idle(const struct pki_engine *engine);
bool pki_streams_hold_idle(const struct pki_engine *engine);
void pki_stream_look_for_cts(struct pki_xfer *xfer);
/* The copy of a transfer whose signal the stream has waited for, and the word behind it. */
pk_result_t pki_stream_put(struct pki_task *task, struct pki_xfer *xfer, bool joined);

/* stream/signals.c */
void pki_stream_arrive(const struct pki_task *task, struct pki_signal signal); /* open it when the stream comes here */
void pki_stream_wait(const struct pki_task *task, struct pki_signal signal);
void pki_stream_before_wait(const struct pki_task *task); /* which a copy will follow: what peers need for it to end goes first */
void pki_stream_before_last_wait(const struct pki_task *task); /* with which the call ends */
/* joined: whoever waits for the last copy before this one waits for this one too. */
void pki_stream_before_copy(const struct pki_task *task, bool joined);
void pki_stream_copied(const struct pki_task *task, struct pki_signal done, size_t bytes);
void pki_stream_worked(const struct pki_task *task); /* something was put into the stream without these functions */
void pki_stream_flush(struct pki_engine *engine);
void pki_stream_restart(struct pki_engine *engine); /* flushed, and nothing is known of any stream */

/* stream/ll_row.c: low-latency messages of a call, for one launch; in the stream they come behind the words of the batch. To be launched before
 * anything that waits. */
void pki_ll_row_add(struct pki_task *task, const struct pki_ll_op *op);
void pki_ll_row_launch(struct pki_engine *engine);

/* stream/collective.c: the phases of a collective; begin sets task->direct */
void pki_stream_plan_begin(struct pki_task *task);
void pki_stream_plan_open(struct pki_task *task);
void pki_stream_plan_move(struct pki_task *task);
void pki_stream_plan_end(const struct pki_task *task); /* waits */
void pki_stream_plan_close(struct pki_task *task); /* and behind them */
bool pki_streams_wait(void); /* may a stream of the process wait for a peer because of an operation? Graphs are not counted (core/waiting.c) */
/* True: none may, and none begins to until release. For calls of the driver that wait for all work of a GPU and keep other threads out meanwhile. */
bool pki_streams_hold(void);
void pki_streams_release(void);

/* core/waiting.c, unlocked: streams of the process that may wait for peers, by the GPU's ordinal and the handle */
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

/* capture.c */
/* Nothing has happened when this refuses; the others follow as engine.h says. */
pk_result_t pki_capture_check(struct pki_engine *engine, const struct pki_request *requests, int n, struct pki_capture **out);
pk_result_t pki_capture_post(struct pki_engine *engine, struct pki_capture *capture);
pk_result_t pki_capture_record(struct pki_engine *engine, struct pki_capture *capture);
void pki_capture_drop(struct pki_engine *engine, struct pki_capture *capture);
/* Is one of them in a stream that is being captured? *error: they cannot be told, or are mixed. */
bool pki_capture_wanted(struct pki_engine *engine, const struct pki_request *requests, int n, pk_result_t *error);

/* mem/graphs.c */
/* What is of graphs that are gone is given back; calls nothing of the driver. */
void pki_graphs_reap(struct pki_engine *engine);
void pki_graphs_tidy(struct pki_engine *engine); /* and, in a call, scratch memory that no graph needs is freed */
/* Unlocked, at the end: after a failure until replays that were launched have ended, which the service thread lets go. */
void pki_graphs_wait(struct pki_engine *engine);
void pki_graphs_close(struct pki_engine *engine);
/* Their memory, behind that of the words, whose giving back waits for replays that are still under way. */
void pki_graphs_free(struct pki_engine *engine);

/* capture_fused.c */
size_t pki_capture_fused_bytes(const struct pki_engine *engine); /* of GPU memory, for such collectives in graphs */

/* fused.c */
size_t pki_fused_inbox_bytes(const struct pki_engine *engine);
pk_result_t pki_fused_open(struct pki_engine *engine, char *inbox);
void pki_fused_close(struct pki_engine *engine);
void pki_fused_reach(struct pki_engine *engine, int peer, uint64_t inbox); /* the peer's inbox is mapped here */
/* fused/args.c */
uint32_t pki_fused_ranks(const struct pki_engine *engine, bool own); /* a bit for each, this rank's too or not */
void pki_fused_fill(const struct pki_task *task, struct pki_fused_args *args); /* of its buffers, all that args say */
/* fused/rules.c: of a request that is fused */
/* By a kernel that graphs can replay? The same on all ranks. */
bool pki_fused_is_replayed(const struct pki_engine *engine, const struct pki_request *request);
size_t pki_fused_bytes(const struct pki_request *request); /* of a block */
enum pki_fused_kernel pki_fused_kernel(const struct pki_engine *engine, const struct pki_request *request);
int pki_fused_ctas(const struct pki_engine *engine, const struct pki_request *request);
uint32_t pki_fused_epochs(const struct pki_engine *engine, const struct pki_request *request);
void pki_fused_made(struct pki_task *task);   /* a fused one: will the call itself launch it (direct)? */
void pki_fused_forget(struct pki_task *task); /* it waits for no turn any more */
bool pki_fused_all_direct(const struct pki_engine *engine);
void pki_fused_enroll(struct pki_task *task); /* any collective */
pk_result_t pki_fused_launch(struct pki_task *task, const struct pki_queue *queue);
void pki_fused_left(struct pki_task *task);   /* the task ends */

/* switched.c */
bool pki_switched_is_busy(const struct pki_engine *engine); /* packets may be on their way */
int pki_switched_fd(const struct pki_engine *engine);       /* where they show; -1: it is not busy */
const char *pki_switched_name(const struct pki_engine *engine); /* of the aggregator */
extern const struct pki_executor pki_switched_executor;

/* reach.c */
void pki_reach_find(struct pki_task *task); /* of a fused one */
void pki_reach_drop(struct pki_task *task);
void pki_reach_message(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg);

/* stragglers.c: look at deadlines; a WHO or HERE has come; the rank to blame for the oldest operation, -1 when there is none */
void pki_stragglers_check(struct pki_engine *engine, uint64_t now);
void pki_stragglers_message(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg);
int pki_engine_missing(struct pki_engine *engine);

/* host_stream.c */
void pki_host_stream_append(struct pki_host_stream *stream, struct pki_task *task);
void pki_host_stream_ended(struct pki_host_stream *stream, struct pki_task *task);

#endif

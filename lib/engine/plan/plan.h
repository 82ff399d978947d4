/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: tasks, and the plans that they run. Locked. */
#ifndef PKI_ENGINE_PLAN_H
#define PKI_ENGINE_PLAN_H

#include "engine/proto/proto.h"

/* task.c */
/* Checked and with its plan; it has no place in a stream yet. */
pk_result_t pki_task_make(struct pki_engine *engine, const struct pki_request *request, struct pki_task **task);
/* Give the task its number and place; from here on it ends through pki_task_end. */
pk_result_t pki_task_enroll(struct pki_task *task);
void pki_task_end(struct pki_task *task, pk_result_t result);
void pki_task_free(struct pki_task *task);
void pki_tasks_close(struct pki_engine *engine); /* frees those that are kept for later */

/* policy.c */
/* A message whose other end is this rank's too. */
bool pki_task_is_to_self(const struct pki_task *task);
pk_result_t pki_task_check_policy(struct pki_task *task); /* may the GPU do it, and may a kernel, if it needs one? */
/* Does it copy or reduce inside the gpu? The library's own queue does that. */
bool pki_task_needs_kernel(const struct pki_task *task);
/* How far a collective has come that began without a task; a bit a step. Its scratch is engine->inlined.scratch. */
struct pki_begun {
    uint64_t number;
    uint64_t done; /* complete */
};

/* start.c */
bool pki_task_start(struct pki_task *task); /* false: it cannot yet, ask again */
pk_result_t pki_task_resume(struct pki_engine *engine, const struct pki_request *request, const struct pki_begun *begun,
                            struct pki_list *blocking);

/* prepare.c */
/* The transfer of a SEND, RECV or RECV_REDUCE, made and not posted; NULL: the engine has failed. */
struct pki_xfer *pki_plan_xfer(struct pki_task *task, uint32_t step);
char *pki_plan_block(const struct pki_task *task, struct pki_ref ref, size_t *bytes);
size_t pki_plan_scratch_stride(const struct pki_plan *plan, const struct pki_request *request); /* bytes of a block; 0: none */
pk_result_t pki_plan_prepare(struct pki_task *task);
void pki_plan_release(struct pki_task *task);
void pki_plan_abandon(struct pki_task *task); /* free the transfers of an unfinished plan */

/* steps.c */
void pki_plan_queue(struct pki_task *task, uint32_t step); /* it is to be looked at */
/* A step's own bytes have moved, to `done` in all; the steps that depend on it are looked at next. */
void pki_plan_step_done(struct pki_task *task, uint32_t step, size_t done, bool ended);

/* scratch.c */
size_t pki_scratch_bytes(const struct pki_task *task);
/* PK_IN_PROGRESS: too many collectives are at work: this one has to wait for one of them. */
pk_result_t pki_scratch_take(struct pki_task *task);
void pki_scratch_give(struct pki_task *task);
void pki_scratch_take_inline(struct pki_task *task); /* engine->inlined.scratch becomes the task's */
void pki_scratch_close(struct pki_engine *engine);   /* what could not be freed before */

/* run.c */
bool pki_plan_run(struct pki_task *task); /* false: it cannot start yet */
void pki_plan_resume(struct pki_task *task, const struct pki_begun *begun);
bool pki_plan_poll(struct pki_task *task);
void pki_plan_tell(struct pki_task *task); /* `unreported` ranks that this one has an ordinary plan */

/* work.c */
/* Do bytes [from, from + len) of a COPY, a REDUCE or the reduction of a RECV_REDUCE. */
pk_result_t pki_plan_work(struct pki_task *task, uint32_t step, size_t from, size_t len, const struct pki_queue *queue);
/* Do, or let the GPU do, what can be done now of a step whose first `avail` bytes may be worked on; `all`: nothing can come on
 * top. */
void pki_plan_look_at_work(struct pki_task *task, uint32_t step, size_t avail, bool all);
/* Host, RECV_REDUCE: combine what has just come with the step's own operand, from where it is. */
pk_result_t pki_plan_reduce_from(struct pki_task *task, uint32_t step, size_t at, const void *payload, size_t bytes);

/* cache.c: the plan for a request; the task gives it back. */
pk_result_t pki_plan_take(struct pki_engine *engine, const struct pki_request *request, struct pki_plan_entry **entry);
void pki_plan_give(struct pki_engine *engine, struct pki_plan_entry *entry);
void pki_plans_close(struct pki_engine *engine);

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

/* switched.c */
bool pki_switched_is_busy(const struct pki_engine *engine);     /* packets may be on their way */
int pki_switched_fd(const struct pki_engine *engine);           /* where they show; -1: it is not busy */
const char *pki_switched_name(const struct pki_engine *engine); /* of the aggregator */
extern const struct pki_executor pki_switched_executor;
bool pki_switched_is_turn(const struct pki_task *task); /* none that was called before it is left */
bool pki_switched_waits(const struct pki_task *task);   /* for packets: it has begun, and no operation within it */
void pki_switched_message(struct pki_engine *engine, const struct pki_msg *msg);
/* All ranks are there, and the aggregator does not do its part: true where the allreduce goes on without it. */
bool pki_switched_gives_up(struct pki_task *task, uint64_t now, uint64_t span);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Barriers in the caller's CUDA stream: each step is a word, in the cell of the step, that the sender's stream writes and the
 * receiver's waits for. Its value is the collective's number, so a cell needs no agreement before it is used again. The messages
 * of the plan go as well, by the engines, when the streams have come to it: for ranks that do the barrier without a stream, and
 * to know when it has ended. No stream waits for them.
 */
#include "engine/stream/collective.h"
#include "engine/stream/stream.h"

/* Another stream has yet to come to a barrier that used the same cells: it would write them back to an older number. */
static bool is_far_ahead(const struct pki_task *task)
{
    const struct pki_list *tasks = &task->engine->tasks.all;

    for (const struct pki_list *n = tasks->next; n != tasks; n = n->next) {
        const struct pki_task *other = pki_container_of(n, struct pki_task, node);

        if (other->mode == PKI_TASK_BARRIER && task->number - other->number >= PKI_CELLS / PKI_STEPS_A_COLLECTIVE / 2)
            return true;
    }
    return false;
}

bool pki_stream_barrier_suits(const struct pki_task *task)
{
    const struct pki_engine *e = task->engine;

    if (task->plan == NULL || task->request.algorithm->coll != PKI_COLL_BARRIER || pki_task_is_fused(task) ||
        task->cuda.beside_messages || !pki_plan_has_moments(task) || is_far_ahead(task))
        return false;
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        const struct pki_step *step = &task->plan->steps[i];

        if ((step->kind != PKI_STEP_SEND && step->kind != PKI_STEP_RECV) || e->peers[step->peer].ctrl == NULL ||
            e->peers[step->peer].ctrl->signals_mine == NULL)
            return false;
    }
    return true;
}

void pki_stream_barrier_put(const struct pki_task *task)
{
    const struct pki_engine *e = task->engine;

    for (uint32_t m = 0; m < task->run.entry->nmoments; m++) {
        const struct pki_moment *moment = &task->run.entry->moments[m];
        const struct pki_step *step = &task->plan->steps[moment->step];
        const struct pki_ep *ctrl = e->peers[step->peer].ctrl;
        int cell = pki_cell_of_step(task->number, step->pair_index);

        if (moment->kind == PKI_MOMENT_SEND)
            pki_stream_arrive(task, (struct pki_signal){ &ctrl->signals_theirs[cell].moved, (uint32_t)task->number });
        else if (moment->kind == PKI_MOMENT_DONE)
            pki_stream_wait(task, (struct pki_signal){ &ctrl->signals_mine[cell].moved, (uint32_t)task->number });
    }
}

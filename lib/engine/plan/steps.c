/* SPDX-License-Identifier: Apache-2.0 */
/* Which steps of a plan are to be looked at, because something they depend on has moved. */
#include "engine/plan/plan.h"

void pki_plan_queue(struct pki_task *task, uint32_t i)
{
    if (task->steps[i].queued || task->steps[i].complete)
        return;
    task->steps[i].queued = true;
    task->ready_steps[task->nready++] = i;
}

static void queue_dependents(struct pki_task *task, uint32_t i)
{
    for (uint32_t d = task->dependents_first[i]; d < task->dependents_first[i + 1]; d++)
        pki_plan_queue(task, task->dependents[d]);
}

static bool receives(const struct pki_step *step)
{
    return step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE;
}

uint32_t pki_plan_next_recv(const struct pki_task *task, uint32_t i)
{
    while (i < task->plan->nsteps && (!receives(&task->plan->steps[i]) || task->steps[i].complete))
        i++;
    return i;
}

/* A receive of an ordered plan has ended: those that waited for it are all from the rank whose turn it is now. */
static void queue_next_recv(struct pki_task *task)
{
    uint32_t first = pki_plan_next_recv(task, task->next_recv);

    for (uint32_t k = first; k < task->plan->nsteps && task->plan->steps[k].peer == task->plan->steps[first].peer; k = pki_plan_next_recv(task, k + 1))
        pki_plan_queue(task, k);
}

void pki_plan_step_done(struct pki_task *task, uint32_t i, size_t done, bool ended)
{
    struct pki_step_state *state = &task->steps[i];

    state->done = done;
    if (ended && !state->complete) {
        state->complete = true;
        task->remaining--;
        task->engine->stats.steps++;
        if (task->plan->ordered && receives(&task->plan->steps[i]))
            queue_next_recv(task);
    }
    queue_dependents(task, i);
}

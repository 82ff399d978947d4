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

void pki_plan_step_done(struct pki_task *task, uint32_t i, size_t done, bool ended)
{
    struct pki_step_state *state = &task->steps[i];

    state->done = done;
    if (ended && !state->complete) {
        state->complete = true;
        task->remaining--;
        task->engine->stats.steps++;
    }
    queue_dependents(task, i);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Which steps of a plan are to be looked at, because something they depend on has moved. */
#include "engine/plan/plan.h"

void pki_plan_queue(struct pki_task *task, uint32_t i)
{
    if (task->run.steps[i].queued || task->run.steps[i].progress == PKI_STEP_COMPLETE)
        return;
    task->run.steps[i].queued = true;
    task->run.ready_steps[task->run.nready++] = i;
}

static void queue_dependents(struct pki_task *task, uint32_t i)
{
    for (uint32_t d = task->run.entry->dependents_first[i]; d < task->run.entry->dependents_first[i + 1]; d++)
        pki_plan_queue(task, task->run.entry->dependents[d]);
}

void pki_plan_step_done(struct pki_task *task, uint32_t i, size_t done, bool ended)
{
    struct pki_step_state *state = &task->run.steps[i];

    state->done = done;
    if (ended && state->progress != PKI_STEP_COMPLETE) {
        state->progress = PKI_STEP_COMPLETE;
        task->run.remaining--;
        task->engine->stats.steps++;
    }
    queue_dependents(task, i);
}

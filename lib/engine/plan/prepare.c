/* SPDX-License-Identifier: Apache-2.0 */
/* Before a plan runs and after it: its blocks in memory, the state of its steps. */
#include <stdlib.h>

#include "engine/plan/plan.h"
#include "util/dtype.h"

char *pki_plan_block(const struct pki_task *task, struct pki_ref ref, size_t *bytes)
{
    size_t size = pki_dtype_bytes(task->request.dtype), first, count;
    uintptr_t base = (uintptr_t)task->request.in;

    pki_layout_block(&task->request.layout, task->plan, ref, &first, &count);
    *bytes = count * size;
    if (ref.buffer == PKI_BUF_SCRATCH)
        base = (uintptr_t)task->run.scratch + ref.index * task->run.scratch_stride;
    else if (ref.buffer == PKI_BUF_OUT)
        base = (uintptr_t)task->request.out;
    return (char *)(base + first * size);
}

static size_t step_bytes(const struct pki_task *task, const struct pki_step *step)
{
    size_t bytes;

    (void)pki_plan_block(task, step->kind == PKI_STEP_SEND ? step->src : step->dst, &bytes);
    return bytes;
}

size_t pki_plan_scratch_stride(const struct pki_plan *plan, const struct pki_request *r)
{
    size_t longest;

    if (plan->scratch_blocks == 0)
        return 0;
    longest = pki_layout_scratch(&r->layout, plan) * pki_dtype_bytes(r->dtype);
    return longest > 0 ? (longest + 255) / 256 * 256 : 256;
}

/* Most often that of the last operation. */
static size_t scratch_stride(struct pki_plan_entry *entry, const struct pki_request *r)
{
    const struct pki_layout *l = &r->layout;
    bool cut = l->in_counts == NULL && l->out_counts == NULL;

    if (!cut || entry->stride_in != l->in_total || entry->stride_out != l->out_total || entry->stride_type != r->dtype) {
        entry->stride = pki_plan_scratch_stride(entry->plan, r);
        entry->stride_in = cut ? l->in_total : SIZE_MAX;
        entry->stride_out = l->out_total;
        entry->stride_type = r->dtype;
    }
    return entry->stride;
}

pk_result_t pki_plan_prepare(struct pki_task *task)
{
    struct pki_plan_entry *entry = NULL;
    pk_result_t result = pki_plan_take(task->engine, &task->request, &entry);

    if (result != PK_OK)
        return result;
    task->run.entry = entry;
    task->plan = entry->plan;
    task->run.remaining = task->plan->nsteps;
    task->run.steps = calloc((size_t)task->plan->nsteps + 1, sizeof *task->run.steps + sizeof *task->run.ready_steps);
    task->run.ready_steps = (uint32_t *)(void *)(task->run.steps + task->plan->nsteps + 1);
    if (task->run.steps == NULL)
        result = pki_fail(PK_ERR_MEMORY, NULL, "no memory for %u steps", task->plan->nsteps);
    if (result != PK_OK) {
        pki_plan_release(task);
        return result;
    }
    task->run.scratch_stride = scratch_stride(entry, &task->request);
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        task->run.steps[i].bytes = step_bytes(task, &task->plan->steps[i]);
    return PK_OK;
}

void pki_plan_release(struct pki_task *task)
{
    if (task->plan == NULL)
        return;
    pki_scratch_give(task);
    free(task->run.steps);
    task->run.steps = NULL;
    task->run.ready_steps = NULL;
    pki_plan_give(task->engine, task->run.entry);
    task->run.entry = NULL;
    task->plan = NULL;
}

void pki_plan_abandon(struct pki_task *task)
{
    if (task->run.executor != NULL && task->run.executor->stop != NULL)
        task->run.executor->stop(task);
    pki_scratch_give(task);
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        if (task->run.steps[i].xfer != NULL)
            pki_xfer_free(task->run.steps[i].xfer);
        task->run.steps[i].xfer = NULL;
    }
}

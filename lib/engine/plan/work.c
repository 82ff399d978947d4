/* SPDX-License-Identifier: Apache-2.0 */
/* The local work of a plan, copies and reductions: by the CPU, rationed, or queued on the GPU. */
#include "engine/plan/plan.h"
#include "tuning/tuning.h"
#include "util/copy.h"
#include "util/dtype.h"

/* An average is a sum that the last of its steps divides. */
static pk_op_t step_op(const struct pki_task *task, const struct pki_step *step)
{
    if (task->request.op != PK_AVG)
        return task->request.op;
    return step->final ? PKI_SUM_DIVIDED(task->plan->size) : PK_SUM;
}

static pk_result_t copy(const struct pki_task *task, uint32_t i, char *dst, const char *src, size_t len,
                        const struct pki_queue *queue)
{
    if (task->kind == PKI_MEM_DEVICE || task->run.steps[i].bytes < pki_tuning.cpu.around_bytes || dst == src)
        return queue->device->ops->copy(queue, dst, src, len);
    pki_copy_around(dst, src, len);
    return PK_OK;
}

pk_result_t pki_plan_work(struct pki_task *task, uint32_t i, size_t from, size_t len, const struct pki_queue *queue)
{
    const struct pki_step *step = &task->plan->steps[i];
    const struct pki_device_ops *ops = queue->device->ops;
    pk_op_t op = step_op(task, step);
    size_t bytes, size = pki_dtype_bytes(task->request.dtype);
    const void *srcs[PKI_REDUCE_SOURCES];
    char *dst = pki_plan_block(task, step->dst, &bytes) + from;

    if (step->kind == PKI_STEP_COPY)
        return copy(task, i, dst, pki_plan_block(task, step->src, &bytes) + from, len, queue);
    if (step->kind == PKI_STEP_RECV_REDUCE) {
        srcs[0] = pki_plan_block(task, step->src, &bytes) + from;
        srcs[1] = pki_plan_block(task, step->landing, &bytes) + from;
        return ops->reduce(queue, dst, srcs, 2, len / size, task->request.dtype, op);
    }
    if (step->operands > PKI_REDUCE_SOURCES)
        return pki_fail(PK_ERR_INTERNAL, NULL, "a reduction of %u blocks at once", step->operands);
    for (uint32_t k = 0; k < step->operands; k++)
        srcs[k] = pki_plan_block(task, task->plan->operands[step->first_operand + k], &bytes) + from;
    return ops->reduce(queue, dst, srcs, (int)step->operands, len / size, task->request.dtype, op);
}

pk_result_t pki_plan_reduce_from(struct pki_task *task, uint32_t i, size_t at, const void *payload, size_t bytes)
{
    const struct pki_step *step = &task->plan->steps[i];
    size_t whole, size = pki_dtype_bytes(task->request.dtype);
    const void *srcs[2] = { pki_plan_block(task, step->src, &whole) + at, payload };

    task->run.steps[i].reduced = true;
    return pki_reduce_host(pki_plan_block(task, step->dst, &whole) + at, srcs, 2, bytes / size, task->request.dtype,
                           step_op(task, step));
}

/* Not more at a time than others can wait for: peers for this rank's part in their transfers, another thread for the lock. */
static void work_on_host(struct pki_task *task, uint32_t i, size_t avail)
{
    struct pki_step_state *state = &task->run.steps[i];
    struct pki_queue queue = { .device = task->engine->host };
    size_t some = pki_engine_ration(task->engine, avail - state->done);
    pk_result_t result = PK_OK;

    state->starved = some < avail - state->done;
    task->run.more_work |= state->starved;
    if (some > 0)
        result = pki_plan_work(task, i, state->done, some, &queue);
    if (result != PK_OK)
        pki_engine_poison(task->engine, result, true);
    else if (some > 0 || !state->starved)
        pki_plan_step_done(task, i, state->done + some, state->done + some == state->bytes);
}

static pk_result_t copy_by_host(struct pki_task *task, uint32_t i, size_t *end)
{
    const struct pki_step *step = &task->plan->steps[i];
    size_t from = task->run.steps[i].done, bytes;
    char *dst = pki_plan_block(task, step->dst, &bytes), *src = pki_plan_block(task, step->src, &bytes);

    if (*end - from > pki_tuning.gpu.bounce_copy_bytes)
        *end = from + pki_tuning.gpu.bounce_copy_bytes;
    if (pki_bounce_queue(task->engine, false) == NULL)
        return (pk_result_t)atomic_load(&task->engine->failed);
    return pki_bounce_copy(task->engine, &task->engine->proto.out.queue, PKI_BOUNCE_BUFFERS, dst + from, src + from, *end - from);
}

/* One piece in flight a step; the next when its word has been seen. */
static void work_on_gpu(struct pki_task *task, uint32_t i, size_t avail)
{
    struct pki_engine *e = task->engine;
    struct pki_step_state *state = &task->run.steps[i];
    struct pki_signal_op opened = { .kind = PKI_SIGNAL_WRITE };
    bool by_host = pki_bounce_copies(e, task->request.algorithm->coll, task->plan);
    struct pki_queue *queue = by_host ? &e->proto.out.queue : pki_queue_for(task, PKI_LANE_WORK);
    pk_result_t result;

    if (state->finish_bytes > state->done)
        return;
    state->starved = !queue->device->ops->clear(queue, true);
    if (!state->starved) {
        state->finish_slot = pki_signals_take(e, &state->finish);
        state->starved = state->finish_slot < 0;
    }
    if (state->starved)
        return; /* looked at again by pki_plan_poll */
    opened.signal = state->finish;
    if (by_host)
        result = copy_by_host(task, i, &avail);
    else {
        e->stats.kernels++;
        result = pki_plan_work(task, i, state->done, avail - state->done, queue);
    }
    if (result == PK_OK)
        result = queue->device->ops->signals(queue, &opened, 1, PKI_WAIT_VALUE);
    if (result != PK_OK) {
        pki_engine_poison(e, result, true);
        return;
    }
    state->finish_bytes = avail;
}

void pki_plan_look_at_work(struct pki_task *task, uint32_t i, size_t avail, bool all)
{
    struct pki_step_state *state = &task->run.steps[i];

    if (state->bytes == 0 && all)
        pki_plan_step_done(task, i, 0, true);
    else if (avail <= state->done)
        return;
    else if (task->kind == PKI_MEM_HOST)
        work_on_host(task, i, avail);
    else
        work_on_gpu(task, i, avail);
}

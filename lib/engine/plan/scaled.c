/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of elements that each rank multiplies by a factor of its own first (pk_op_create_premul). The products lie in scratch
 * memory, and from there an ordinary sum takes them, whatever the algorithm: nothing else in the library knows of factors. Who
 * puts the plan, or the kernel that is the plan, into a queue puts the multiplication before it; where the engine runs the plan
 * it is done when the plan is started.
 */
#include "engine/plan/plan.h"
#include "util/dtype.h"

static size_t in_bytes(const struct pki_task *task)
{
    return task->request.in_count * pki_dtype_bytes(task->request.dtype);
}

void pki_scaled_choose(struct pki_task *task)
{
    task->scaled.user_in = task->request.in;
    task->scaled.word = -1;
}

size_t pki_scaled_bytes(const struct pki_task *task)
{
    return task->request.scaled ? (in_bytes(task) + 255) / 256 * 256 : 0;
}

static char *products(const struct pki_task *task)
{
    return task->run.scratch + task->run.scratch_stride * task->plan->scratch_blocks + pki_mixed_bytes(task);
}

void pki_scaled_place(struct pki_task *task)
{
    if (task->request.scaled)
        task->request.in = products(task);
}

/* Of mixed memory the staging copy, which has been filled. */
static const void *source(const struct pki_task *task)
{
    return task->mixed.staging_in ? task->request.in : task->scaled.user_in;
}

pk_result_t pki_scaled_queue(struct pki_task *task, const struct pki_queue *queue, uint64_t *kernels)
{
    const struct pki_request *r = &task->request;
    pk_result_t result;

    if (!r->scaled || r->in_count == 0)
        return PK_OK;
    result = queue->device->ops->scale(queue, products(task), source(task), r->in_count, r->dtype, &r->factor);
    pki_scaled_place(task);
    *kernels += result == PK_OK;
    return result;
}

/* True once, when what was put into a queue of the library with the word behind it has ended. */
static bool has_ended(struct pki_task *task)
{
    struct pki_scaled *s = &task->scaled;

    if (s->word < 0 || !pki_signal_is_open(&s->ended))
        return false;
    pki_signals_give(task->engine, s->word);
    s->word = -1;
    return true;
}

static void put_word(struct pki_task *task, const struct pki_queue *queue, pk_result_t result)
{
    struct pki_engine *e = task->engine;
    const struct pki_signal_op ended = { .kind = PKI_SIGNAL_WRITE, .signal = task->scaled.ended };

    if (result == PK_OK)
        result = queue->device->ops->signals(queue, &ended, 1, PKI_WAIT_VALUE);
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
}

static bool scale_on_gpu(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    struct pki_scaled *s = &task->scaled;
    struct pki_queue *queue = pki_queue_for(task, PKI_LANE_WORK);

    if (has_ended(task)) {
        pki_scaled_place(task);
        return true;
    }
    if (s->word >= 0 || !queue->device->ops->clear(queue, true))
        return false;
    s->word = pki_signals_take(e, &s->ended);
    if (s->word < 0)
        return false;
    put_word(task, queue, pki_scaled_queue(task, queue, &e->stats.kernels));
    return false;
}

/* The CPU multiplies, and the factor may be in the GPU's memory. */
static bool fetch_factor(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    struct pki_scaled *s = &task->scaled;
    const struct pki_factor *factor = &task->request.factor;
    size_t width = pki_dtype_bytes(task->request.dtype);
    struct pki_queue *queue;

    if (factor->at == NULL)
        s->value = factor->value;
    s->fetched = s->fetched || factor->at == NULL || has_ended(task);
    if (s->fetched || s->word >= 0)
        return s->fetched;
    queue = pki_bounce_queue(e, false);
    if (queue == NULL || !pki_may_copy(queue, width))
        return false;
    s->word = pki_signals_take(e, &s->ended);
    if (s->word >= 0) {
        put_word(task, queue, e->gpu->ops->copy(queue, &s->value, factor->at, width));
        e->stats.copies++;
    }
    return false;
}

/* As much as others can wait for. */
static bool scale_on_host(struct pki_task *task)
{
    struct pki_scaled *s = &task->scaled;
    struct pki_engine *e = task->engine;
    size_t width = pki_dtype_bytes(task->request.dtype), some = pki_engine_ration(e, in_bytes(task) - s->done);
    const struct pki_factor factor = { .value = s->value };
    pk_result_t result = pki_scale_host(products(task) + s->done, (const char *)source(task) + s->done, some / width,
                                        task->request.dtype, &factor);

    if (result != PK_OK) {
        pki_engine_poison(e, result, true);
        return false;
    }
    s->done += some;
    task->run.more_work = s->done < in_bytes(task);
    if (!task->run.more_work)
        pki_scaled_place(task);
    return !task->run.more_work;
}

bool pki_scaled_before(struct pki_task *task)
{
    if (!task->request.scaled || task->request.in_count == 0 || pki_task_is_fused(task))
        return true;
    if (task->kind == PKI_MEM_DEVICE)
        return scale_on_gpu(task);
    return fetch_factor(task) && scale_on_host(task);
}

pk_result_t pki_engine_check_factor(struct pki_engine *e, const void *factor, pk_dtype_t dtype)
{
    size_t width = pki_dtype_bytes(dtype);
    struct pki_mem mem = { .kind = PKI_MEM_HOST };
    pk_result_t result = PK_OK;

    if (e->gpu == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "scalar %p in GPU memory: the communicator has no gpu (config.device)", factor);
    pki_engine_lock(e);
    result = e->gpu->ops->classify(e->gpu, factor, width, &mem);
    pki_engine_unlock(e);
    if (result == PK_OK && mem.kind != PKI_MEM_DEVICE)
        result = pki_fail(PK_ERR_ARG, NULL, "scalar %p is not memory of the gpu, as the operation says", factor);
    if (result == PK_OK && (uintptr_t)factor % width != 0)
        result = pki_fail(PK_ERR_ARG, NULL, "scalar %p is not aligned to its %zu bytes", factor, width);
    return result;
}

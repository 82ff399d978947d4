/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a plan. A step is looked at when something it depends on has moved; it does what has become possible and, when its own
 * bytes move, the steps that depend on it are looked at next. The same on the host and on a GPU: there local work is queued and a
 * word says when it has ended.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"
#include "util/dtype.h"

/* ---- blocks ---- */

char *pki_plan_block(const struct pki_task *task, struct pki_ref ref, size_t *bytes)
{
    size_t size = pki_dtype_bytes(task->request.dtype), first, count;
    uintptr_t base = (uintptr_t)task->request.in;

    pki_layout_block(&task->request.layout, task->plan, ref, &first, &count);
    *bytes = count * size;
    if (ref.buffer == PKI_BUF_SCRATCH)
        base = (uintptr_t)task->scratch + ref.index * task->scratch_stride;
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

/* ---- preparation ---- */

static struct pki_scratch *free_scratch(struct pki_engine *e, enum pki_mem_kind kind, size_t bytes)
{
    struct pki_scratch *empty = NULL;

    for (int i = 0; i < PKI_SCRATCH_MAX; i++) {
        struct pki_scratch *s = &e->scratch[i];

        if (s->ptr != NULL && !s->busy && s->kind == kind && s->bytes >= bytes)
            return s;
        if (!s->busy && (empty == NULL || s->ptr == NULL))
            empty = s;
    }
    return empty;
}

/* PK_IN_PROGRESS: so many collectives are at work that this one has to wait for one of them. */
static pk_result_t take_scratch(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    size_t bytes = task->scratch_stride * task->plan->scratch_blocks + pki_mixed_bytes(task);
    struct pki_scratch *s = task->scratch == NULL && bytes > 0 ? free_scratch(e, task->kind, bytes) : NULL;
    struct pki_device *device = task->kind == PKI_MEM_DEVICE ? e->gpu : e->host;
    void *ptr;
    pk_result_t result;

    if (task->scratch != NULL || bytes == 0)
        return PK_OK;
    if (s == NULL)
        return PK_IN_PROGRESS;
    if (s->ptr == NULL || s->kind != task->kind || s->bytes < bytes) {
        if (s->ptr != NULL) {
            struct pki_device *old = s->kind == PKI_MEM_DEVICE ? e->gpu : e->host;

            old->ops->free(old, s->ptr);
            s->ptr = NULL;
        }
        result = device->ops->alloc(device, bytes, &ptr);
        if (result != PK_OK)
            return result;
        *s = (struct pki_scratch){ .ptr = ptr, .bytes = bytes, .kind = task->kind };
    }
    s->busy = true;
    task->scratch = s->ptr;
    return PK_OK;
}

static void give_scratch(struct pki_task *task)
{
    for (int i = 0; i < PKI_SCRATCH_MAX; i++)
        if (task->scratch != NULL && task->engine->scratch[i].ptr == task->scratch)
            task->engine->scratch[i].busy = false;
    task->scratch = NULL;
}

size_t pki_plan_scratch_stride(const struct pki_plan *plan, const struct pki_request *r)
{
    size_t longest;

    if (plan->scratch_blocks == 0)
        return 0;
    longest = pki_layout_scratch(&r->layout, plan) * pki_dtype_bytes(r->dtype);
    return longest > 0 ? (longest + 255) / 256 * 256 : 256;
}

pk_result_t pki_plan_prepare(struct pki_task *task)
{
    struct pki_plan_entry *entry = NULL;
    pk_result_t result = pki_plan_take(task->engine, &task->request, &entry);

    if (result != PK_OK)
        return result;
    task->entry = entry;
    task->plan = entry->plan;
    task->dependents = entry->dependents;
    task->dependents_first = entry->dependents_first;
    task->remaining = task->plan->nsteps;
    task->steps = calloc((size_t)task->plan->nsteps + 1, sizeof *task->steps);
    task->ready_steps = malloc(((size_t)task->plan->nsteps + 1) * sizeof *task->ready_steps);
    if (task->steps == NULL || task->ready_steps == NULL)
        result = pki_fail(PK_ERR_MEMORY, NULL, "no memory for %u steps", task->plan->nsteps);
    if (result != PK_OK) {
        pki_plan_release(task);
        return result;
    }
    task->scratch_stride = pki_plan_scratch_stride(task->plan, &task->request);
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        task->steps[i].bytes = step_bytes(task, &task->plan->steps[i]);
    return PK_OK;
}

void pki_plan_release(struct pki_task *task)
{
    if (task->plan == NULL)
        return;
    give_scratch(task);
    free(task->steps);
    free(task->ready_steps);
    task->steps = NULL;
    task->ready_steps = NULL;
    pki_plan_give(task->engine, task->entry);
    task->entry = NULL;
    task->plan = NULL;
}

void pki_plan_abandon(struct pki_task *task)
{
    give_scratch(task);
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        if (task->steps[i].xfer != NULL)
            pki_xfer_free(task->steps[i].xfer);
        task->steps[i].xfer = NULL;
    }
}

/* ---- running ---- */

static void queue_step(struct pki_task *task, uint32_t i)
{
    if (task->steps[i].queued || task->steps[i].complete)
        return;
    task->steps[i].queued = true;
    task->ready_steps[task->nready++] = i;
}

static void queue_dependents(struct pki_task *task, uint32_t i)
{
    for (uint32_t d = task->dependents_first[i]; d < task->dependents_first[i + 1]; d++)
        queue_step(task, task->dependents[d]);
}

static size_t chunk_bytes(const struct pki_task *task)
{
    if (task->kind == PKI_MEM_HOST)
        return PKI_HOST_CHUNK;
    if (task->plan->ordered)
        return SIZE_MAX;
    return pki_coll_shape(task->request.algorithm->coll)->reduces ? PKI_DEVICE_CHUNK : SIZE_MAX;
}

/* How many of the step's bytes its dependencies allow; *all: they have ended. */
static size_t available(const struct pki_task *task, uint32_t i, bool *all)
{
    const struct pki_step *step = &task->plan->steps[i];
    size_t bytes = task->steps[i].bytes, least = bytes;

    *all = true;
    for (uint32_t d = 0; d < step->deps; d++) {
        const struct pki_step_state *dep = &task->steps[task->plan->deps[step->first_dep + d]];

        if (dep->complete)
            continue;
        *all = false;
        if (dep->done < least)
            least = dep->done;
    }
    if (!*all && step->whole)
        least = 0;
    if (!*all && least == bytes && bytes > 0) /* the last byte waits for the end of them all: plan.h */
        least = bytes - 1;
    if (least < bytes) /* whole chunks on a GPU, whole elements on the host */
        least -= least % (task->kind == PKI_MEM_DEVICE ? chunk_bytes(task) : 16);
    return least;
}

static struct pki_xfer *make_xfer(struct pki_task *task, uint32_t i)
{
    const struct pki_step *step = &task->plan->steps[i];
    struct pki_step_state *state = &task->steps[i];
    bool is_send = step->kind == PKI_STEP_SEND;
    struct pki_ref ref = is_send ? step->src : step->kind == PKI_STEP_RECV_REDUCE ? step->landing : step->dst;
    struct pki_xfer *xfer = pki_xfer_new(task->engine, step->peer, is_send);
    size_t bytes;

    if (xfer == NULL) {
        pki_engine_poison(task->engine, PK_ERR_MEMORY, true);
        return NULL;
    }
    xfer->addr = pki_plan_block(task, ref, &bytes);
    xfer->bytes = state->bytes;
    xfer->chunk = chunk_bytes(task);
    xfer->task = task;
    xfer->step = i;
    xfer->kind = task->kind;
    xfer->combines = step->kind == PKI_STEP_RECV_REDUCE && task->kind == PKI_MEM_HOST;
    xfer->flags = PKI_MSG_FLAG_COLL;
    xfer->index = (uint16_t)step->pair_index;
    xfer->op = task->number;
    xfer->sig = task->sig;
    xfer->state = PKI_XFER_SAY;
    state->xfer = xfer;
    state->started = true;
    return xfer;
}

static void look_at_send(struct pki_task *task, uint32_t i, size_t avail, bool all)
{
    struct pki_step_state *state = &task->steps[i];

    if (!all && (avail == 0 || state->bytes <= task->engine->peers[task->plan->steps[i].peer].eager_max)) /* a short one goes in the lane, whole */
        return;
    if (!state->started) {
        struct pki_xfer *xfer = make_xfer(task, i);

        if (xfer == NULL)
            return;
        xfer->ready = avail;
        pki_xfer_post(xfer);
    } else if (state->xfer != NULL && state->xfer->ready < avail) {
        state->xfer->ready = avail;
        pki_xfer_advance(state->xfer);
    }
}

/* GPU memory is granted before it is free: the gate holds the sender back. */
static bool granted_early(const struct pki_task *task, const struct pki_step *step)
{
    return task->kind == PKI_MEM_DEVICE && !pki_stage_receives(task->engine, &task->engine->peers[step->peer]);
}

static void look_at_recv(struct pki_task *task, uint32_t i, bool all)
{
    struct pki_step_state *state = &task->steps[i];

    if (!state->started && (all || granted_early(task, &task->plan->steps[i]))) {
        struct pki_xfer *xfer = make_xfer(task, i);

        if (xfer == NULL)
            return;
        xfer->opened = all;
        pki_xfer_post(xfer);
    } else if (state->xfer != NULL && all && !state->xfer->opened) {
        pki_recv_open(state->xfer);
    }
}

static void step_done(struct pki_task *task, uint32_t i, size_t done, bool ended)
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

/* An average is a sum that the last of its steps divides. */
static pk_op_t step_op(const struct pki_task *task, const struct pki_step *step)
{
    if (task->request.op != PK_AVG)
        return task->request.op;
    return step->final ? PKI_SUM_DIVIDED(task->plan->size) : PK_SUM;
}

pk_result_t pki_plan_work(struct pki_task *task, uint32_t i, size_t from, size_t len, const struct pki_queue *queue)
{
    const struct pki_step *step = &task->plan->steps[i];
    const struct pki_device_ops *ops = queue->device->ops;
    pk_op_t op = step_op(task, step);
    size_t bytes, size = pki_dtype_bytes(task->request.dtype);
    const void *srcs[PKI_REDUCE_MAX];
    char *dst = pki_plan_block(task, step->dst, &bytes) + from;

    if (task->kind == PKI_MEM_DEVICE)
        task->engine->stats.kernels++;
    if (step->kind == PKI_STEP_COPY)
        return ops->copy(queue, dst, pki_plan_block(task, step->src, &bytes) + from, len);
    if (step->kind == PKI_STEP_RECV_REDUCE) {
        srcs[0] = pki_plan_block(task, step->src, &bytes) + from;
        srcs[1] = pki_plan_block(task, step->landing, &bytes) + from;
        return ops->reduce(queue, dst, srcs, 2, len / size, task->request.dtype, op);
    }
    if (step->operands > PKI_REDUCE_MAX)
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

    task->steps[i].reduced = true;
    return pki_reduce_host(pki_plan_block(task, step->dst, &whole) + at, srcs, 2, bytes / size, task->request.dtype, step_op(task, step));
}

#define RATION_UNIT ((size_t)4096)

size_t pki_plan_ration(struct pki_engine *e, size_t bytes)
{
    size_t most = e->work_left / RATION_UNIT * RATION_UNIT;
    size_t some = bytes <= e->work_left ? bytes : most;

    e->work_left = bytes > some ? 0 : e->work_left - some; /* what is left of it would do for nothing */
    if (bytes > some || some >= PKI_HOST_CHUNK) /* rounds are long then */
        pki_engine_look_soon(e);
    return some;
}

/* Not more at a time than others can wait for: peers for this rank's part in their transfers, another thread for the lock. */
static void work_on_host(struct pki_task *task, uint32_t i, size_t avail)
{
    struct pki_step_state *state = &task->steps[i];
    struct pki_queue queue = { .device = task->engine->host };
    size_t some = pki_plan_ration(task->engine, avail - state->done);
    pk_result_t result = PK_OK;

    state->starved = some < avail - state->done;
    task->more_work |= state->starved;
    if (some > 0)
        result = pki_plan_work(task, i, state->done, some, &queue);
    if (result != PK_OK)
        pki_engine_poison(task->engine, result, true);
    else if (some > 0 || !state->starved)
        step_done(task, i, state->done + some, state->done + some == state->bytes);
}

static pk_result_t copy_by_host(struct pki_task *task, uint32_t i, size_t *end, struct pki_queue **queue)
{
    const struct pki_step *step = &task->plan->steps[i];
    size_t from = task->steps[i].done, bytes;
    char *dst = pki_plan_block(task, step->dst, &bytes), *src = pki_plan_block(task, step->src, &bytes);

    if (*end - from > PKI_STAGE_COPY_MAX)
        *end = from + PKI_STAGE_COPY_MAX;
    return pki_stage_copy(task->engine, dst + from, src + from, *end - from, queue);
}

/* One piece in flight a step; the next when its word has been seen. */
static void work_on_gpu(struct pki_task *task, uint32_t i, size_t avail)
{
    struct pki_engine *e = task->engine;
    struct pki_step_state *state = &task->steps[i];
    struct pki_word_op opened = { .kind = PKI_WORD_WRITE };
    struct pki_queue *queue = &e->work;
    pk_result_t result;

    if (state->finish_bytes > state->done)
        return;
    state->finish_slot = pki_words_take(e, &state->finish);
    state->starved = state->finish_slot < 0;
    if (state->starved)
        return; /* looked at again by pki_plan_poll */
    opened.gate = state->finish;
    if (pki_stage_copies(e, task->request.algorithm->coll, task->plan))
        result = copy_by_host(task, i, &avail, &queue);
    else
        result = pki_plan_work(task, i, state->done, avail - state->done, queue);
    if (result == PK_OK)
        result = e->gpu->ops->words(queue, &opened, 1, PKI_WAIT_VALUE);
    if (result != PK_OK) {
        pki_engine_poison(e, result, true);
        return;
    }
    state->finish_bytes = avail;
}

static void look_at_work(struct pki_task *task, uint32_t i, size_t avail, bool all)
{
    struct pki_step_state *state = &task->steps[i];

    if (state->bytes == 0 && all)
        step_done(task, i, 0, true);
    else if (avail <= state->done)
        return;
    else if (task->kind == PKI_MEM_HOST)
        work_on_host(task, i, avail);
    else
        work_on_gpu(task, i, avail);
}

static void look_at(struct pki_task *task, uint32_t i)
{
    const struct pki_step *step = &task->plan->steps[i];
    struct pki_step_state *state = &task->steps[i];
    bool all;
    size_t avail = available(task, i, &all);

    switch ((enum pki_step_kind)step->kind) {
    case PKI_STEP_SEND:
        look_at_send(task, i, avail, all);
        return;
    case PKI_STEP_RECV:
        look_at_recv(task, i, all);
        return;
    case PKI_STEP_RECV_REDUCE:
        look_at_recv(task, i, all);
        if (state->landed > state->done || (all && state->landed == state->bytes && state->xfer == NULL && state->started))
            look_at_work(task, i, state->landed, all && state->landed == state->bytes);
        return;
    case PKI_STEP_COPY:
    case PKI_STEP_REDUCE:
        look_at_work(task, i, avail, all);
        return;
    case PKI_STEP_FUSED:
        pki_fused_look(task);
        return;
    }
}

/* Look at steps until none can move now. A look may finish others at once; `running` keeps that from nesting. */
static void drain(struct pki_task *task)
{
    if (task->running)
        return;
    task->running = true;
    while (task->nready > 0 && atomic_load_explicit(&task->engine->failed, memory_order_relaxed) == PK_OK) {
        uint32_t i = task->ready_steps[--task->nready];

        task->steps[i].queued = false;
        if (!task->steps[i].complete)
            look_at(task, i);
    }
    task->running = false;
    if (task->remaining == 0 && atomic_load_explicit(&task->engine->failed, memory_order_relaxed) == PK_OK && pki_mixed_after(task))
        pki_task_end(task, PK_OK);
}

void pki_plan_resume(struct pki_task *task, uint64_t done)
{
    struct pki_engine *e = task->engine;
    pk_result_t result = task->scratch_stride > 0 ? take_scratch(task) : PK_OK;

    if (result != PK_OK) {
        pki_engine_poison(e, result == PK_IN_PROGRESS ? PK_ERR_INTERNAL : result, true);
        return;
    }
    if (task->scratch_stride > 0)
        memcpy(task->scratch, e->quick_scratch, task->scratch_stride * task->plan->scratch_blocks);
    for (uint32_t i = task->plan->nsteps; i-- > 0;) {
        struct pki_step_state *state = &task->steps[i];

        if ((done >> i & 1) == 0) {
            queue_step(task, i);
            continue;
        }
        state->started = state->complete = true;
        state->done = state->landed = state->bytes;
        task->remaining--;
    }
    drain(task);
}

/* Nobody waits for it: peers are spoken to first, and what they answer comes meanwhile. */
static bool is_private(const struct pki_task *task, uint32_t i)
{
    return task->kind == PKI_MEM_HOST && task->plan->steps[i].kind == PKI_STEP_COPY &&
           task->dependents_first[i] == task->dependents_first[i + 1];
}

bool pki_plan_run(struct pki_task *task)
{
    pk_result_t result = take_scratch(task);

    if (result == PK_IN_PROGRESS)
        return false;
    if (result != PK_OK) {
        pki_engine_poison(task->engine, result, true);
        return false;
    }
    if (!pki_mixed_before(task, task->scratch + task->scratch_stride * task->plan->scratch_blocks))
        return false;
    for (uint32_t i = task->plan->nsteps; i-- > 0;) /* a stack: what comes last is looked at first */
        if (is_private(task, i))
            queue_step(task, i);
    for (uint32_t i = task->plan->nsteps; i-- > 0;)
        queue_step(task, i);
    drain(task);
    return true;
}

void pki_plan_xfer_progress(struct pki_task *task, uint32_t i, size_t done, bool ended)
{
    if (task->plan->steps[i].kind == PKI_STEP_RECV_REDUCE && !task->steps[i].reduced) {
        task->steps[i].landed = done;
        queue_step(task, i);
    } else {
        step_done(task, i, done, ended);
    }
    drain(task);
}

static bool poll_fused(struct pki_task *task)
{
    bool ended, moved = pki_fused_poll(task, &ended);

    if (ended) {
        step_done(task, 0, task->steps[0].bytes, true);
        drain(task);
    }
    return moved;
}

bool pki_plan_poll(struct pki_task *task)
{
    bool moved = false, on_host = task->kind == PKI_MEM_HOST;

    if (pki_task_is_fused(task))
        return poll_fused(task);
    task->more_work = false;
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        struct pki_step_state *state = &task->steps[i];

        if (state->starved && (on_host || task->engine->words.nfree > 0)) {
            queue_step(task, i);
            moved = true;
        }
        if (state->complete || state->finish_bytes <= state->done || !pki_gate_is_open(&state->finish))
            continue;
        pki_words_give(task->engine, state->finish_slot);
        step_done(task, i, state->finish_bytes, state->finish_bytes == state->bytes);
        queue_step(task, i);
        moved = true;
    }
    if (moved || task->remaining == 0)
        drain(task);
    return moved || task->mixed.over; /* then the task is in another list */
}

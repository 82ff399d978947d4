/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a plan. A step is looked at when something it depends on has moved; it does what has become possible and, when its own
 * bytes move, the steps that depend on it are looked at next. The same on the host and on a GPU: there local work is queued and a
 * word says when it has ended.
 */
#include <string.h>

#include "engine/plan/plan.h"

/* Does what this step moves, or what it works on, go through slots of this rank? */
static bool goes_by_bounce(const struct pki_task *task, const struct pki_step *step)
{
    struct pki_engine *e = task->engine;
    bool moves = step->kind == PKI_STEP_SEND || step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE;

    return moves ? pki_bounce_receives(e, &e->peers[step->peer]) : e->in.memory != NULL;
}

/* Both ends of a transfer have the same. */
static size_t chunk_bytes(const struct pki_task *task, const struct pki_step *step)
{
    const struct pki_tuning_pair *pair = &task->engine->config.agreed->pair;

    if (task->kind == PKI_MEM_HOST)
        return pair->host_chunk_bytes;
    if (!pki_coll_shape(task->request.algorithm->coll)->reduces)
        return SIZE_MAX;
    return goes_by_bounce(task, step) ? pair->bounce_chunk_bytes : pair->device_chunk_bytes;
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
        least -= least % (task->kind == PKI_MEM_DEVICE ? chunk_bytes(task, step) : 16);
    return least;
}

static void progressed(struct pki_task *task, uint32_t i, size_t done, bool ended);

static const struct pki_xfer_user step_user = { .progressed = progressed, .combine = pki_plan_reduce_from };

struct pki_xfer *pki_plan_xfer(struct pki_task *task, uint32_t i)
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
    xfer->chunk = chunk_bytes(task, step);
    xfer->task = task;
    xfer->user = &step_user;
    xfer->step = i;
    xfer->kind = task->kind;
    xfer->combines = step->kind == PKI_STEP_RECV_REDUCE && task->kind == PKI_MEM_HOST;
    xfer->flags = PKI_MSG_FLAG_COLL;
    xfer->index = (uint16_t)step->pair_index;
    xfer->op = task->number;
    xfer->sig = task->sig;
    pki_xfer_enter(xfer, PKI_XFER_SAY);
    state->xfer = xfer;
    state->started = true;
    return xfer;
}

static void look_at_send(struct pki_task *task, uint32_t i, size_t avail, bool all)
{
    struct pki_step_state *state = &task->steps[i];

    if (!all && (avail == 0 || state->bytes <= task->engine->peers[task->plan->steps[i].peer].eager_coll)) /* a short one goes in the control channel, whole */
        return;
    if (!state->started) {
        struct pki_xfer *xfer = pki_plan_xfer(task, i);

        if (xfer == NULL)
            return;
        xfer->ready = avail;
        pki_xfer_post(xfer);
    } else if (state->xfer != NULL && state->xfer->ready < avail) {
        state->xfer->ready = avail;
        pki_xfer_advance(state->xfer);
    }
}

/* GPU memory is granted before it is free: the signal holds the sender back. */
static bool granted_before_it_began(const struct pki_task *task, const struct pki_step *step)
{
    return task->kind == PKI_MEM_DEVICE && !pki_bounce_receives(task->engine, &task->engine->peers[step->peer]);
}

static void look_at_recv(struct pki_task *task, uint32_t i, bool all)
{
    struct pki_step_state *state = &task->steps[i];

    if (!state->started && (all || granted_before_it_began(task, &task->plan->steps[i]))) {
        struct pki_xfer *xfer = pki_plan_xfer(task, i);

        if (xfer == NULL)
            return;
        xfer->opened = all;
        pki_xfer_post(xfer);
    } else if (state->xfer != NULL && all && !state->xfer->opened) {
        pki_recv_open(state->xfer);
    }
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
            pki_plan_look_at_work(task, i, state->landed, all && state->landed == state->bytes);
        return;
    case PKI_STEP_COPY:
    case PKI_STEP_REDUCE:
        pki_plan_look_at_work(task, i, avail, all);
        return;
    case PKI_STEP_FUSED:
    case PKI_STEP_SWITCH:
        task->executor->look(task);
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
        if (!task->steps[i].complete && !task->direct) /* else the stream does it */
            look_at(task, i);
    }
    task->running = false;
    if (task->remaining == 0 && task->unreported == 0 &&
        atomic_load_explicit(&task->engine->failed, memory_order_relaxed) == PK_OK && pki_mixed_after(task))
        pki_task_end(task, PK_OK);
}

void pki_plan_resume(struct pki_task *task, const struct pki_begun *begun)
{
    struct pki_engine *e = task->engine;
    pk_result_t result = task->scratch_stride > 0 ? pki_scratch_take(task) : PK_OK;

    if (result != PK_OK) {
        pki_engine_poison(e, result == PK_IN_PROGRESS ? PK_ERR_INTERNAL : result, true);
        return;
    }
    if (task->scratch_stride > 0)
        pki_scratch_take_inline(task);
    for (uint32_t i = task->plan->nsteps; i-- > 0;) {
        struct pki_step_state *state = &task->steps[i];

        if ((begun->done >> i & 1) == 0) {
            pki_plan_queue(task, i);
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
    pk_result_t result;

    if (pki_task_is_switched(task) && !pki_switched_is_turn(task)) /* the one before it may still need scratch memory */
        return false;
    result = pki_scratch_take(task);
    if (result == PK_IN_PROGRESS)
        return false;
    if (result != PK_OK) {
        pki_engine_poison(task->engine, result, true);
        return false;
    }
    if (!pki_mixed_before(task, task->scratch_stride * task->plan->scratch_blocks) || !pki_scaled_before(task))
        return false;
    for (uint32_t i = task->plan->nsteps; i-- > 0;) /* a stack: what comes last is looked at first */
        if (is_private(task, i))
            pki_plan_queue(task, i);
    for (uint32_t i = task->plan->nsteps; i-- > 0;)
        pki_plan_queue(task, i);
    drain(task);
    return true;
}

static void progressed(struct pki_task *task, uint32_t i, size_t done, bool ended)
{
    if (ended)
        task->steps[i].xfer = NULL;
    if (task->plan->steps[i].kind == PKI_STEP_RECV_REDUCE && !task->steps[i].reduced && !task->direct) {
        task->steps[i].landed = done;
        pki_plan_queue(task, i);
    } else {
        pki_plan_step_done(task, i, done, ended);
    }
    drain(task);
}

static bool poll_executor(struct pki_task *task)
{
    bool ended, moved = task->executor->poll(task, &ended);

    if (ended)
        pki_plan_step_done(task, 0, task->steps[0].bytes, true);
    if (ended || (task->executor != NULL && task->remaining == 0)) /* a copy to the receive buffer takes a while */
        drain(task);
    return moved || task->mixed.over;
}

/* The caller's stream has done all of this rank's own work. */
static void end_work(struct pki_task *task)
{
    task->works = false;
    task->remaining--;
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (task->plan->steps[i].kind == PKI_STEP_COPY || task->plan->steps[i].kind == PKI_STEP_REDUCE)
            pki_plan_step_done(task, i, task->steps[i].bytes, true);
    drain(task);
}

/* True: it has ended, perhaps, and is in another list. */
static bool poll_direct(struct pki_task *task)
{
    if (task->works && pki_signal_is_open(&task->ready)) {
        end_work(task);
        return true;
    }
    if (task->remaining > 0 || task->unreported != 0)
        return false;
    drain(task);
    return true;
}

void pki_plan_tell(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    struct pki_msg msg = { .kind = PKI_MSG_PLAN, .flags = PKI_MSG_FLAG_COLL, .sig = task->sig, .op = task->number };

    for (int i = 0; i < e->config.size; i++)
        if ((task->unreported >> i & 1) != 0 && pki_ctrl_send(&e->peers[i], &msg, NULL, e) == PK_OK)
            task->unreported &= ~(1u << i);
}

bool pki_plan_poll(struct pki_task *task)
{
    bool moved = false, polls = false, on_host = task->kind == PKI_MEM_HOST;

    if (task->executor != NULL)
        return poll_executor(task);
    if (task->unreported != 0) {
        pki_plan_tell(task);
        moved = task->unreported == 0; /* it may end below */
    }
    if (task->direct)
        return poll_direct(task) || moved;
    task->more_work = false;
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        struct pki_step_state *state = &task->steps[i];

        if (state->starved && (on_host ? task->engine->work_left > 0 : task->engine->signals.nfree > 0)) {
            pki_plan_queue(task, i);
            polls = true;
            moved |= on_host; /* a queue of the GPU that stands still may do so until others have had their turn */
        }
        if (state->complete || state->finish_bytes <= state->done || !pki_signal_is_open(&state->finish))
            continue;
        pki_signals_give(task->engine, state->finish_slot);
        pki_plan_step_done(task, i, state->finish_bytes, state->finish_bytes == state->bytes);
        pki_plan_queue(task, i);
        moved = true;
    }
    if (moved || polls || task->remaining == 0)
        drain(task);
    return moved || task->mixed.over; /* then the task is in another list */
}

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

    return moves ? pki_bounce_receives(e, &e->peers[step->peer]) : e->proto.in.memory != NULL;
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
    size_t bytes = task->run.steps[i].bytes, least = bytes;

    *all = true;
    for (uint32_t d = 0; d < step->deps; d++) {
        const struct pki_step_state *dep = &task->run.steps[task->plan->deps[step->first_dep + d]];

        if (dep->progress == PKI_STEP_COMPLETE)
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
    struct pki_step_state *state = &task->run.steps[i];
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
    xfer->user.task = task;
    xfer->user.calls = &step_user;
    xfer->user.step = i;
    xfer->kind = task->kind;
    xfer->coop.combines = step->kind == PKI_STEP_RECV_REDUCE && task->kind == PKI_MEM_HOST;
    xfer->id.flags = PKI_MSG_FLAG_COLL;
    xfer->id.index = (uint16_t)step->pair_index;
    xfer->id.op = task->number;
    xfer->id.sig = task->sig;
    pki_xfer_enter(xfer, PKI_XFER_SAY);
    state->xfer = xfer;
    state->progress = PKI_STEP_BEGUN;
    return xfer;
}

static void look_at_send(struct pki_task *task, uint32_t i, size_t avail, bool all)
{
    struct pki_step_state *state = &task->run.steps[i];
    const struct pki_peer *peer = &task->engine->peers[task->plan->steps[i].peer];

    if (!all && (avail == 0 || state->bytes <= peer->eager.coll)) /* a short one goes in the control channel, whole */
        return;
    if (state->progress == PKI_STEP_WAITS) {
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
    struct pki_step_state *state = &task->run.steps[i];

    if (state->progress == PKI_STEP_WAITS && (all || granted_before_it_began(task, &task->plan->steps[i]))) {
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
    struct pki_step_state *state = &task->run.steps[i];
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
        if (state->landed > state->done ||
            (all && state->landed == state->bytes && state->xfer == NULL && state->progress == PKI_STEP_BEGUN))
            pki_plan_look_at_work(task, i, state->landed, all && state->landed == state->bytes);
        return;
    case PKI_STEP_COPY:
    case PKI_STEP_REDUCE:
        pki_plan_look_at_work(task, i, avail, all);
        return;
    case PKI_STEP_FUSED:
    case PKI_STEP_SWITCH:
        task->run.executor->look(task);
        return;
    }
}

/* Look at steps until none can move now. A look may finish others at once; `running` keeps that from nesting. */
static void drain(struct pki_task *task)
{
    if (task->run.running)
        return;
    task->run.running = true;
    while (task->run.nready > 0 && atomic_load_explicit(&task->engine->failed, memory_order_relaxed) == PK_OK) {
        uint32_t i = task->run.ready_steps[--task->run.nready];

        task->run.steps[i].queued = false;
        if (task->run.steps[i].progress != PKI_STEP_COMPLETE && !pki_task_is_direct(task)) /* else the stream does it */
            look_at(task, i);
    }
    task->run.running = false;
    if (task->run.remaining == 0 && task->run.unreported == 0 &&
        atomic_load_explicit(&task->engine->failed, memory_order_relaxed) == PK_OK && pki_mixed_after(task))
        pki_task_end(task, PK_OK);
}

void pki_plan_resume(struct pki_task *task, const struct pki_begun *begun)
{
    pki_scratch_take_inline(task);
    for (uint32_t i = task->plan->nsteps; i-- > 0;) {
        struct pki_step_state *state = &task->run.steps[i];

        if ((begun->done >> i & 1) == 0) {
            pki_plan_queue(task, i);
            continue;
        }
        state->progress = PKI_STEP_COMPLETE;
        state->done = state->landed = state->bytes;
        task->run.remaining--;
    }
    drain(task);
}

/* Nobody waits for it: peers are spoken to first, and what they answer comes meanwhile. */
static bool is_private(const struct pki_task *task, uint32_t i)
{
    return task->kind == PKI_MEM_HOST && task->plan->steps[i].kind == PKI_STEP_COPY &&
           task->run.entry->dependents_first[i] == task->run.entry->dependents_first[i + 1];
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
    if (!pki_mixed_before(task, task->run.scratch_stride * task->plan->scratch_blocks) || !pki_scaled_before(task))
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
        task->run.steps[i].xfer = NULL;
    if (task->plan->steps[i].kind == PKI_STEP_RECV_REDUCE && !task->run.steps[i].reduced && !pki_task_is_direct(task)) {
        task->run.steps[i].landed = done;
        pki_plan_queue(task, i);
    } else {
        pki_plan_step_done(task, i, done, ended);
    }
    drain(task);
}

static bool poll_executor(struct pki_task *task)
{
    bool ended, moved = task->run.executor->poll(task, &ended);

    if (ended)
        pki_plan_step_done(task, 0, task->run.steps[0].bytes, true);
    if (ended || (task->run.executor != NULL && task->run.remaining == 0)) /* a copy to the receive buffer takes a while */
        drain(task);
    return moved || task->mixed.over;
}

/* The caller's stream has done all of this rank's own work. */
static void end_work(struct pki_task *task)
{
    task->cuda.works = false;
    task->run.remaining--;
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (task->plan->steps[i].kind == PKI_STEP_COPY || task->plan->steps[i].kind == PKI_STEP_REDUCE)
            pki_plan_step_done(task, i, task->run.steps[i].bytes, true);
    drain(task);
}

/* True: it has ended, perhaps, and is in another list. */
static bool poll_direct(struct pki_task *task)
{
    if (task->cuda.works && pki_signal_is_open(&task->cuda.ready)) {
        end_work(task);
        return true;
    }
    if (task->run.remaining > 0 || task->run.unreported != 0)
        return false;
    drain(task);
    return true;
}

void pki_plan_tell(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    struct pki_msg msg = { .kind = PKI_MSG_PLAN, .flags = PKI_MSG_FLAG_COLL, .sig = task->sig, .op = task->number };

    for (int i = 0; i < e->config.size; i++)
        if ((task->run.unreported >> i & 1) != 0 && pki_ctrl_send(&e->peers[i], &msg, NULL, e) == PK_OK)
            task->run.unreported &= ~(1u << i);
}

bool pki_plan_poll(struct pki_task *task)
{
    bool moved = false, polls = false, on_host = task->kind == PKI_MEM_HOST;

    if (task->run.executor != NULL)
        return poll_executor(task);
    if (task->run.unreported != 0) {
        pki_plan_tell(task);
        moved = task->run.unreported == 0; /* it may end below */
    }
    if (pki_task_is_direct(task))
        return poll_direct(task) || moved;
    task->run.more_work = false;
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        struct pki_step_state *state = &task->run.steps[i];

        if (state->starved && (on_host ? task->engine->rounds.work_left > 0 : task->engine->signals.nfree > 0)) {
            pki_plan_queue(task, i);
            polls = true;
            moved |= on_host; /* a queue of the GPU that stands still may do so until others have had their turn */
        }
        if (state->progress == PKI_STEP_COMPLETE || state->finish_bytes <= state->done || !pki_signal_is_open(&state->finish))
            continue;
        pki_signals_give(task->engine, state->finish_slot);
        pki_plan_step_done(task, i, state->finish_bytes, state->finish_bytes == state->bytes);
        pki_plan_queue(task, i);
        moved = true;
    }
    if (moved || polls || task->run.remaining == 0)
        drain(task);
    return moved || task->mixed.over; /* then the task is in another list */
}

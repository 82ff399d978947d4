/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives that the caller's stream does by itself: where all peers' grants are here when the call is made, and no operation of the process has
 * copies left for the library's own queues (cuda_stream.c), the plan's steps go into the stream as into a graph, in an order in which no
 * rank's stream stands for ever (coll/order.h): words that say "my buffer is free", waits for the peers', copies, words behind them, waits
 * for what comes. No CPU is on the way then. Otherwise the operation is gated, and the grants that have been exchanged by then serve it all
 * the same: how the other ranks do it is their own affair.
 *
 * Plans with work of their own, copies inside the GPU and reductions, stay with the engine, which lets copies and kernels overlap.
 */
#include "coll/order.h"
#include "engine/internal.h"

static bool suits(const struct pki_task *task, uint32_t i)
{
    const struct pki_engine *e = task->engine;
    const struct pki_step *step = &task->plan->steps[i];

    return (step->kind == PKI_STEP_SEND || step->kind == PKI_STEP_RECV) && task->steps[i].bytes > 0 && step->peer != e->config.rank &&
           e->peers[step->peer].way[PKI_MEM_DEVICE][PKI_MEM_DEVICE] != NULL;
}

/* In a group it must not hold up the other operations, which other ranks may have begun before it. Scratch memory is taken when the stream has come
 * to the operation: else each one in the queue would hold some. */
static bool can_be_done_by_stream(const struct pki_task *task)
{
    if (task->plan == NULL || task->group != 0 || task->kind != PKI_MEM_DEVICE || task->scratch_stride > 0 || task->few_queues || task->mixed.active ||
        task->plan->ordered || task->plan->nsteps == 0 || pki_waiting_has_copies(task->engine->ordinal))
        return false;
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (!suits(task, i))
            return false;
    return true;
}

/* Kept with the plan. */
static bool has_moments(const struct pki_task *task)
{
    struct pki_plan_entry *entry = task->entry;

    return entry->moments != NULL ||
           pki_plan_order(task->request.algorithm, task->plan, &entry->moments, &entry->nmoments) == PK_OK;
}

static bool post_all(struct pki_task *task, enum pki_step_kind kind)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        struct pki_xfer *xfer;

        if (task->plan->steps[i].kind != kind)
            continue;
        xfer = pki_plan_xfer(task, i);
        if (xfer == NULL) /* the engine has failed */
            return false;
        xfer->ready = 0; /* not before the stream comes to it */
        pki_xfer_post(xfer);
    }
    return true;
}

/* Until one is missing: with that the rest does not matter. */
static void look_for_grants(const struct pki_task *task)
{
    bool here = true;

    for (uint32_t i = 0; i < task->plan->nsteps && here; i++) {
        struct pki_xfer *xfer = task->steps[i].xfer;

        if (xfer == NULL || !xfer->is_send)
            continue;
        pki_stream_look_for_grant(xfer);
        here = xfer->state == PKI_XFER_MOVE;
    }
}

static bool is_matched(const struct pki_task *task)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        const struct pki_xfer *xfer = task->steps[i].xfer;

        if (xfer == NULL || xfer->gate_slot < 0 || (xfer->is_send && (xfer->state != PKI_XFER_MOVE || xfer->bounce || xfer->staged)))
            return false;
    }
    return true;
}

void pki_stream_plan_begin(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    if (!can_be_done_by_stream(task) || !has_moments(task) || !post_all(task, PKI_STEP_RECV))
        return;
    for (int i = 0; i < e->config.size; i++)
        if (e->peers[i].lane != NULL)
            (void)pki_lane_poll(e, &e->peers[i]);
    if (!post_all(task, PKI_STEP_SEND))
        return;
    look_for_grants(task);
    task->direct = is_matched(task);
}

void pki_stream_plan_open(const struct pki_task *task)
{
    for (uint32_t m = 0; m < task->entry->nmoments; m++) {
        const struct pki_moment *moment = &task->entry->moments[m];

        if (moment->kind == PKI_MOMENT_OPEN && moment->level == 0)
            pki_stream_arrive(task, &task->steps[moment->step].xfer->start);
    }
}

/* Sends of one level, from moment `m` on: all waits, then all copies. Returns the first moment after them. */
static uint32_t send_all(struct pki_task *task, uint32_t m, pk_result_t *result)
{
    const struct pki_moment *moments = task->entry->moments;
    uint32_t end = m;

    pki_stream_before_wait(task);
    for (; end < task->entry->nmoments && moments[end].kind == PKI_MOMENT_SEND && moments[end].level == moments[m].level; end++)
        pki_stream_wait(task, &task->steps[moments[end].step].xfer->start);
    for (uint32_t k = m; k < end && *result == PK_OK; k++)
        *result = pki_stream_put(task, task->steps[moments[k].step].xfer, false);
    return end;
}

/* The waits with which a plan ends are left to the end phase. */
static uint32_t end_of_moving(const struct pki_task *task)
{
    uint32_t n = task->entry->nmoments;

    while (n > 0 && task->entry->moments[n - 1].kind == PKI_MOMENT_DONE)
        n--;
    return n;
}

void pki_stream_plan_move(struct pki_task *task)
{
    uint32_t end = end_of_moving(task), m = 0;
    pk_result_t result = PK_OK;

    while (m < end && result == PK_OK) {
        const struct pki_moment *moment = &task->entry->moments[m];
        const struct pki_xfer *xfer = task->steps[moment->step].xfer;

        if (moment->kind == PKI_MOMENT_SEND) {
            m = send_all(task, m, &result);
            continue;
        }
        if (moment->kind == PKI_MOMENT_DONE)
            pki_stream_wait(task, &xfer->finish);
        else if (moment->level > 0) /* OPEN */
            pki_stream_arrive(task, &xfer->start);
        m++;
    }
    if (result != PK_OK)
        pki_engine_poison(task->engine, result, true);
}

void pki_stream_plan_end(const struct pki_task *task)
{
    for (uint32_t m = end_of_moving(task); m < task->entry->nmoments; m++)
        pki_stream_wait(task, &task->steps[task->entry->moments[m].step].xfer->finish);
}

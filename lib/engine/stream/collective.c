/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives in the caller's stream: the call puts the whole plan there, in an order in which no rank's stream stands for ever
 * (coll/order.h). Of each pair of ranks whoever came second moves what goes between them, or each what it sends where they have
 * met (offer.h). A level at a time: first what peers need from this rank, then the copies, then waits for what the peers move.
 * Work on this GPU that takes long goes into a branch (branch.h), beside the copies.
 *
 * Where some step cannot be done so, because a peer has host memory or memory that cannot be mapped, the engine does the
 * operation, with the grants and offers that have been exchanged by then.
 */
#include "engine/proto/offer.h"
#include "engine/stream/branch.h"
#include "engine/stream/collective.h"
#include "engine/stream/move.h"
#include "engine/stream/stream.h"

static bool is_transfer(const struct pki_step *step)
{
    return step->kind == PKI_STEP_SEND || step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE;
}

static bool suits(const struct pki_task *task, uint32_t i)
{
    const struct pki_engine *e = task->engine;
    const struct pki_step *step = &task->plan->steps[i];

    if (step->kind == PKI_STEP_FUSED)
        return false;
    if (!is_transfer(step))
        return true;
    return step->peer != e->config.rank && e->peers[step->peer].path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] != NULL &&
           e->peers[step->peer].ctrl->signals_mine != NULL;
}

/* In a group with messages it must not hold them up, which other ranks may have begun before it. */
static bool can_be_done_by_stream(const struct pki_task *task)
{
    if (task->plan == NULL || task->cuda.beside_messages || task->kind != PKI_MEM_DEVICE || pki_task_is_mixed(task) ||
        task->plan->nsteps == 0 || pki_waiting_has_few_queues(task->engine) ||
        pki_waiting_has_copies(task->engine->limits.ordinal))
        return false;
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (!suits(task, i))
            return false;
    return true;
}

bool pki_plan_has_moments(const struct pki_task *task)
{
    struct pki_plan_entry *entry = task->run.entry;

    return entry->moments != NULL ||
           pki_plan_order(task->request.algorithm, task->plan, &entry->moments, &entry->nmoments) == PK_OK;
}

static bool post_all(struct pki_task *task, bool sends)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        const struct pki_step *step = &task->plan->steps[i];
        struct pki_xfer *xfer;

        if (!is_transfer(step) || (step->kind == PKI_STEP_SEND) != sends)
            continue;
        xfer = pki_plan_xfer(task, i);
        if (xfer == NULL) /* the engine has failed */
            return false;
        xfer->ready = 0; /* not before the stream comes to it */
        if (sends)
            pki_xfer_enter(xfer, PKI_XFER_LOOK);
        pki_xfer_post(xfer);
    }
    return true;
}

/* Until one is missing: with that the others do not matter. */
static void look_for_cts(const struct pki_task *task)
{
    bool here = true;

    for (uint32_t i = 0; i < task->plan->nsteps && here; i++) {
        struct pki_xfer *xfer = task->run.steps[i].xfer;

        if (xfer == NULL || !xfer->is_send)
            continue;
        pki_stream_look_for_cts(xfer);
        here = pki_xfer_is_granted(xfer);
    }
}

static void offer_rest(const struct pki_task *task)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        struct pki_xfer *xfer = task->run.steps[i].xfer;

        if (xfer != NULL && xfer->is_send)
            pki_offer_or_rts(xfer);
    }
}

static bool is_settled(const struct pki_xfer *xfer)
{
    if (xfer->signals.cell != NULL)
        return true;
    return xfer->is_send ? pki_xfer_is_granted(xfer) && xfer->bounce.slots == PKI_SLOTS_NONE : xfer->signals.slot >= 0;
}

static bool all_settled(const struct pki_task *task)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (is_transfer(&task->plan->steps[i]) && task->run.steps[i].bytes > 0 &&
            (task->run.steps[i].xfer == NULL || !is_settled(task->run.steps[i].xfer)))
            return false;
    return true;
}

/* The CPU learns of the end of this rank's own work by a word at the end. */
static bool has_work(const struct pki_task *task)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (task->plan->steps[i].kind != PKI_STEP_SEND && task->plan->steps[i].kind != PKI_STEP_RECV)
            return true;
    return false;
}

/* Without kernels the own block goes through the host. */
static bool is_by_host(const struct pki_task *task)
{
    return pki_bounce_copies(task->engine, task->request.algorithm->coll, task->plan);
}

static size_t longest_work(const struct pki_task *task)
{
    size_t longest = 0;

    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (!is_transfer(&task->plan->steps[i]) && task->run.steps[i].bytes > longest)
            longest = task->run.steps[i].bytes;
    return longest;
}

/* What has come without bytes, while the stream was not known to do the plan, waits for nothing more. */
static void end_empty(struct pki_task *task)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        const struct pki_step_state *state = &task->run.steps[i];

        if (task->plan->steps[i].kind == PKI_STEP_RECV_REDUCE && state->bytes == 0 && state->xfer == NULL)
            pki_plan_step_done(task, i, 0, true);
    }
}

bool pki_stream_plan_begin(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    bool direct = false;

    if (!can_be_done_by_stream(task) || !pki_plan_has_moments(task) || pki_scratch_take(task) != PK_OK)
        return false;
    pki_scaled_place(task);
    if (has_work(task))
        task->cuda.branches[0] = pki_branch_take(e, task->cuda.queue.handle);
    if (task->cuda.branches[0] != NULL && task->plan->ordered && !is_by_host(task))
        task->cuda.branches[1] = pki_branch_take(e, task); /* no stream has this address */
    if (is_by_host(task) && (task->cuda.branches[0] == NULL || longest_work(task) > pki_tuning.gpu.branch_copy_bytes))
        return false;
    task->run.running = true; /* what ends at once lets no other step begin */
    if (post_all(task, false)) {
        for (int i = 0; i < e->config.size; i++)
            if (e->peers[i].ctrl != NULL)
                (void)pki_ctrl_poll(e, &e->peers[i]);
        if (post_all(task, true)) {
            look_for_cts(task);
            offer_rest(task);
            direct = all_settled(task);
        }
    }
    if (direct)
        end_empty(task);
    task->run.running = false;
    task->cuda.works = direct && has_work(task);
    task->run.remaining += task->cuda.works;
    return direct;
}

/* ---- into the stream ---- */

/* NULL: it has no bytes, and goes without the stream. */
static struct pki_xfer *xfer_of(const struct pki_task *task, const struct pki_moment *m)
{
    return task->run.steps[m->step].bytes > 0 ? task->run.steps[m->step].xfer : NULL;
}

/* Nothing in the plan goes on with it. */
static bool is_private(const struct pki_task *task, uint32_t i)
{
    return task->plan->steps[i].kind == PKI_STEP_COPY && task->plan->steps[i].deps == 0 &&
           task->run.entry->dependents_first[i] == task->run.entry->dependents_first[i + 1];
}

static void fail_on(const struct pki_task *task, pk_result_t result)
{
    if (result != PK_OK)
        pki_engine_poison(task->engine, result, true);
}

static void work_in(struct pki_task *task, uint32_t i, struct pki_queue *queue)
{
    size_t bytes = task->run.steps[i].bytes;

    if (is_by_host(task)) {
        fail_on(task, pki_branch_copy(task, i));
        return;
    }
    fail_on(task, pki_plan_work(task, i, 0, bytes, queue));
    task->engine->stats.kernels++;
}

static bool is_branched(const struct pki_task *task, uint32_t i)
{
    return task->cuda.branches[0] != NULL && (task->run.steps[i].bytes >= pki_tuning.gpu.work_inline_bytes || is_by_host(task));
}

static bool is_in_use(const struct pki_task *task, int branch)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (task->run.steps[i].branch == branch)
            return true;
    return false;
}

static void join(struct pki_task *task, int branch)
{
    pki_stream_flush(task->engine);
    fail_on(task, pki_branch_join(task, task->cuda.branches[branch - 1]));
    pki_stream_worked(task);
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (task->run.steps[i].branch == branch)
            task->run.steps[i].branch = 0;
}

/* What this step depends on may be in branches. But for `except`. */
static void join_but(struct pki_task *task, uint32_t i, int except)
{
    const struct pki_step *step = &task->plan->steps[i];

    for (uint32_t d = 0; d < step->deps; d++) {
        int branch = task->run.steps[task->plan->deps[step->first_dep + d]].branch;

        if (branch != 0 && branch != except)
            join(task, branch);
    }
}

static void join_for(struct pki_task *task, uint32_t i)
{
    join_but(task, i, 0);
}

/* Behind what the step depends on, else beside all other work. */
static int choose_branch(const struct pki_task *task, uint32_t i)
{
    const struct pki_step *step = &task->plan->steps[i];

    for (uint32_t d = 0; d < step->deps; d++)
        if (task->run.steps[task->plan->deps[step->first_dep + d]].branch != 0)
            return task->run.steps[task->plan->deps[step->first_dep + d]].branch;
    return task->cuda.branches[1] != NULL && is_in_use(task, 1) ? 2 : 1;
}

static void work(struct pki_task *task, uint32_t i)
{
    int branch;

    if (task->run.steps[i].bytes == 0)
        return;
    if (!is_branched(task, i)) {
        join_for(task, i);
        pki_stream_flush(task->engine);
        work_in(task, i, &task->cuda.queue);
        pki_stream_worked(task);
        return;
    }
    branch = choose_branch(task, i);
    join_but(task, i, branch);
    pki_stream_flush(task->engine);
    fail_on(task, pki_branch_fork(task, task->cuda.branches[branch - 1]));
    work_in(task, i, &task->cuda.branches[branch - 1]->queue);
    task->run.steps[i].branch = (uint8_t)branch;
}

/* Nothing of this rank is in the way. But what goes in rounds waits for its own. */
static bool is_open_at_once(const struct pki_task *task, const struct pki_moment *moment)
{
    if (moment->kind != PKI_MOMENT_OPEN)
        return false;
    return task->plan->steps[moment->step].deps == 0 && (!task->plan->ordered || moment->level == 0);
}

/* Before a peer is told that IN is ready. */
static void scale(struct pki_task *task)
{
    if (!task->request.scaled)
        return;
    pki_stream_flush(task->engine);
    fail_on(task, pki_scaled_queue(task, &task->cuda.queue, &task->engine->stats.kernels));
    pki_stream_worked(task);
}

void pki_stream_plan_open(struct pki_task *task)
{
    scale(task);
    for (uint32_t m = 0; m < task->run.entry->nmoments; m++) {
        const struct pki_moment *moment = &task->run.entry->moments[m];
        const struct pki_xfer *xfer = is_open_at_once(task, moment) ? xfer_of(task, moment) : NULL;

        if (xfer != NULL && !pki_offer_moves(xfer))
            pki_stream_arrive(task, pki_offer_start(xfer));
    }
}

/* The moments of one kind at one level. */
struct run {
    uint32_t from, to;
};

static struct run next_run(const struct pki_task *task, uint32_t from)
{
    const struct pki_moment *m = task->run.entry->moments;
    struct run run = { from, from };

    while (run.to < task->run.entry->nmoments && m[run.to].kind == m[from].kind && m[run.to].level == m[from].level)
        run.to++;
    return run;
}

static void say_ready(struct pki_task *task, struct run sends)
{
    for (uint32_t k = sends.from; k < sends.to; k++) {
        const struct pki_xfer *xfer = xfer_of(task, &task->run.entry->moments[k]);

        join_for(task, task->run.entry->moments[k].step);
        if (xfer != NULL && !pki_offer_moves(xfer))
            pki_stream_arrive(task, pki_offer_start(xfer));
    }
}

/* Does it end on no rank before all ranks have come to it? */
static bool is_together(const struct pki_task *task)
{
    const struct pki_shape *shape = pki_coll_shape(task->request.algorithm->coll);

    return !shape->rooted && !shape->counts;
}

/* The rule (rule.h) for all that is moved here at once: the copies may stand in a row, or not. */
static bool goes_beside(struct pki_task *task, struct run run)
{
    bool in_process = false;
    size_t longest = 0;
    int waiting = 0;

    for (uint32_t k = run.from; k < run.to; k++) {
        const struct pki_xfer *xfer = xfer_of(task, &task->run.entry->moments[k]);

        if (xfer == NULL || !pki_offer_moves(xfer))
            continue;
        waiting += !pki_signal_is_open(&xfer->signals.start);
        longest = xfer->bytes > longest ? xfer->bytes : longest;
        in_process = in_process || pki_move_in_process(xfer);
    }
    if (longest == 0 || !pki_move_by_kernel(task->engine))
        return false;
    return longest <= PKI_LL_MAX_BYTES || in_process || (waiting > 1 && !is_together(task)) || !pki_move_take_channel(task);
}

/* All waits, then all copies. */
static void move_all(struct pki_task *task, struct run run)
{
    bool beside = goes_beside(task, run);

    pki_stream_before_wait(task);
    for (uint32_t k = run.from; k < run.to; k++) {
        const struct pki_xfer *xfer = xfer_of(task, &task->run.entry->moments[k]);

        if (xfer == NULL || !pki_offer_moves(xfer))
            continue;
        join_for(task, task->run.entry->moments[k].step);
        if (!beside)
            pki_stream_wait(task, xfer->signals.start);
    }
    for (uint32_t k = run.from; k < run.to; k++) {
        struct pki_xfer *xfer = xfer_of(task, &task->run.entry->moments[k]);

        if (xfer == NULL || !pki_offer_moves(xfer))
            continue;
        if (beside)
            pki_move_row_add(task, xfer);
        else
            fail_on(task, pki_stream_put(task, xfer, false));
    }
    if (beside)
        pki_stream_flush(task->engine);
}

static void wait_all(const struct pki_task *task, struct run run)
{
    for (uint32_t k = run.from; k < run.to; k++) {
        const struct pki_xfer *xfer = xfer_of(task, &task->run.entry->moments[k]);

        if (xfer != NULL && !pki_offer_moves(xfer))
            pki_stream_wait(task, pki_offer_finish(xfer));
    }
}

/* What a plan ends with is left to the end phase: waits, and in front of them copies. */
static uint32_t first_of_last_level(const struct pki_task *task)
{
    const struct pki_moment *m = task->run.entry->moments;
    uint32_t n = task->run.entry->nmoments, first = n;

    while (first > 0 && m[first - 1].level == m[n - 1].level &&
           (m[first - 1].kind == PKI_MOMENT_DONE || m[first - 1].kind == PKI_MOMENT_FREE))
        first--;
    return first;
}

static void open_or_work(struct pki_task *task, const struct pki_moment *moment)
{
    const struct pki_xfer *xfer = moment->kind == PKI_MOMENT_OPEN ? xfer_of(task, moment) : NULL;

    if (moment->kind == PKI_MOMENT_WORK && !is_private(task, moment->step)) {
        work(task, moment->step);
    } else if (xfer != NULL && !pki_offer_moves(xfer) && !is_open_at_once(task, moment)) {
        join_for(task, moment->step);
        pki_stream_arrive(task, pki_offer_start(xfer));
    }
}

static void work_privately(struct pki_task *task)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (is_private(task, i))
            work(task, i);
}

void pki_stream_plan_move(struct pki_task *task)
{
    const struct pki_moment *moments = task->run.entry->moments;
    uint32_t last = first_of_last_level(task);

    if (task->cuda.branches[0] != NULL)
        work_privately(task);
    for (struct run run = { 0, 0 }; run.from < task->run.entry->nmoments; run.from = run.to) {
        run = next_run(task, run.from);
        if (moments[run.from].kind == PKI_MOMENT_SEND)
            say_ready(task, run);
        if (moments[run.from].kind == PKI_MOMENT_SEND || moments[run.from].kind == PKI_MOMENT_DONE)
            move_all(task, run);
        if (moments[run.from].kind >= PKI_MOMENT_OPEN)
            for (uint32_t k = run.from; k < run.to; k++)
                open_or_work(task, &moments[k]);
        else if (moments[run.from].kind != PKI_MOMENT_SEND && run.from < last)
            wait_all(task, run);
    }
    if (task->cuda.branches[0] == NULL)
        work_privately(task);
    pki_stream_flush(task->engine);
}

void pki_stream_plan_end(const struct pki_task *task)
{
    wait_all(task, (struct run){ first_of_last_level(task), task->run.entry->nmoments });
}

void pki_stream_plan_close(struct pki_task *task)
{
    if (!task->cuda.works)
        return;
    for (int branch = 1; branch <= 2; branch++)
        if (is_in_use(task, branch))
            join(task, branch);
    pki_stream_arrive(task, task->cuda.ready);
}

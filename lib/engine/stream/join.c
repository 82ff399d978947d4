/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations in the caller's CUDA stream: when a call has returned, all that they take is in queues of GPUs, here or at the peers
 * that call later (docs/design/0041). Messages between GPU memory are moved by the stream of whoever came second (offer.h,
 * move.h), collectives likewise (collective.c), barriers are words (barrier.c), and the rest is one kernel a rank
 * (engine/fused/fused.c).
 *
 * What is left is signalled: the stream opens `ready` when it comes to the operation and waits for `release`, and the engine
 * works in between. That is host memory at either end, memory of a peer that cannot be mapped, sums of long blocks, and messages
 * beside collectives in one group. Copies of the library's own queues, which do that, never wait. While the process has any left,
 * of an operation among more than two ranks, no stream copies by itself: a copy that waits there may share a channel with them.
 *
 * A pending wait by a stream memory operation holds one of the process's hardware queues, and what the driver puts into that
 * queue behind it, of any stream, stands still. With few streams it avoids such queues; with 64 some were stuck behind two waits.
 * So where kernels are allowed waits are kernels, of one warp or the moving one, which are counted too: a GPU has room for 128
 * kernels at a time. (They hold a queue once something is put behind them: docs/design/0024.) Elsewhere value waits are counted
 * and refused beyond half of the queues: up to 3 of 8 hurt 16 other streams not at all, with 4 some stand still, with 6 all
 * kernels do (docs/design/0002). With one or two queues whatever follows a wait in its stream holds up the kernels of all
 * streams, though not copies to a peer: there a send never waits in the stream before its copy, and what needs a kernel of the
 * library is done inside the call.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "engine/proto/offer.h"
#include "engine/stream/branch.h"
#include "engine/stream/collective.h"
#include "engine/stream/move.h"
#include "engine/stream/self.h"
#include "engine/stream/serve.h"
#include "engine/stream/stream.h"

/* Let operations of this and other communicators end. */
static pk_result_t step_back(struct pki_engine *e)
{
    (void)pki_engine_progress(e);
    if (atomic_load(&e->failed) != PK_OK)
        return pki_engine_status(e);
    pki_engine_unlock(e); /* abort may want it */
    sched_yield();
    pki_engine_lock(e);
    return PK_OK;
}

/* As many kernels wait on the GPU as may. What does not end, because peers are late, is waited for ever more briefly. */
static pk_result_t wait_by_kernel(struct pki_task *task)
{
    static _Atomic uint32_t timeout_ns = PKI_ROOM_NS;
    struct pki_engine *e = task->engine;
    uint64_t until = 0;

    task->cuda.how = PKI_WAIT_KERNEL;
    while (!pki_claims_kernel(task, 0)) {
        pk_result_t result = step_back(e);

        if (result != PK_OK)
            return result;
        if (until == 0)
            until = pki_now_ns() + atomic_load(&timeout_ns);
        if (pki_now_ns() < until)
            continue;
        atomic_store(&timeout_ns, atomic_load(&timeout_ns) / 2 + 1);
        return pki_fail(PK_ERR_UNSUPPORTED, NULL,
                        "%s in a cuda stream: %d kernels that wait for peers are in streams of this process, as many as a gpu "
                        "has room for; with more, no other kernel could start",
                        pki_task_name(task), PKI_WAITING_KERNELS);
    }
    atomic_store(&timeout_ns, PKI_ROOM_NS);
    return PK_OK;
}

static pk_result_t choose_wait(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    int limit = pki_waiting_limit(e); /* which hold channels of copies, too: docs/design/0035 */

    if (pki_claims_wait(task, limit)) {
        task->cuda.how = PKI_WAIT_VALUE;
        return PK_OK;
    }
    if (e->config.sm_policy != PK_SM_NONE)
        return wait_by_kernel(task);
    if (limit == 0)
        return pki_fail(PK_ERR_NEEDS_SM, NULL,
                        "%s in a cuda stream: with CUDA_DEVICE_MAX_CONNECTIONS=%d a waiting stream stops every "
                        "kernel of the process, so the wait needs a kernel; set it to 8 or more, or allow kernels",
                        pki_task_name(task), e->limits.connections);
    return pki_fail(
        PK_ERR_NEEDS_SM, NULL,
        "%s in a cuda stream: operations are pending in %d streams, as many as %d hardware queues "
        "and %d copy queues allow (CUDA_DEVICE_MAX_CONNECTIONS, CUDA_DEVICE_MAX_COPY_CONNECTIONS); one more needs a kernel to "
        "wait",
        pki_task_name(task), limit, e->limits.connections, e->limits.channels);
}

/* The operation begins when the stream has come to its end, and the call waits for it. */
static void do_within_call(struct pki_task *task)
{
    static atomic_bool said;

    if (!atomic_exchange(&said, true))
        pki_log(PKI_LOG_WARN, NULL,
                "with CUDA_DEVICE_MAX_CONNECTIONS=%d reductions and copies inside the gpu are done within the call: "
                "set it to 8 or more",
                task->engine->limits.connections);
    pki_task_enter(task, PKI_TASK_AFTER_STREAM);
    task->request.stream = PK_BLOCKING;
}

/* Room for one more operation. A stream's launch queue has some 1,000 places, and the driver keeps whoever fills it, with the
 * lock: so half as many operations as there are words for, if others have begun that will end. */
static bool has_room(const struct pki_engine *e)
{
    return e->signals.nfree >= 2 + 2 * PKI_STREAM_OPERATIONS ||
           (e->signals.nfree >= 2 + PKI_STREAM_OPERATIONS && pki_list_empty(&e->tasks.all));
}

/* Operations that are pending in streams have used up the words: let some end first. */
static pk_result_t take_signals(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    while (!has_room(e)) {
        pk_result_t result;

        if (pki_list_empty(&e->tasks.all)) /* what holds them is in this very group and cannot end before it has begun */
            return pki_fail(PK_ERR_UNSUPPORTED, NULL,
                            "%s: a group has room for %d operations of a communicator in cuda streams: end it and begin another",
                            pki_task_name(task), PKI_STREAM_OPERATIONS);
        result = step_back(e);
        if (result != PK_OK)
            return result;
    }
    task->cuda.ready_slot = pki_signals_take(e, &task->cuda.ready);
    task->cuda.release_slot = pki_signals_take(e, &task->cuda.release);
    pki_signals_expose(e, task->cuda.release_slot, &task->cuda.release);
    return PK_OK;
}

pk_result_t pki_stream_admit(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    pk_result_t result;

    if (e->gpu == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "%s: a cuda stream, but the communicator has no gpu (config.device)",
                        pki_task_name(task));
    task->cuda.queue = (struct pki_queue){ .device = e->gpu, .handle = task->request.stream.handle };
    if (pki_task_is_fused(task) && pki_fused_all_direct(e) && (!task->request.scaled || pki_scratch_take(task) == PK_OK)) {
        pki_task_enter(task, PKI_TASK_STREAM); /* its kernel needs nobody */
        return PK_OK;
    }
    if (task->kind == PKI_MEM_DEVICE && pki_task_needs_kernel(task) && e->limits.connections <= PKI_FEW_QUEUES) {
        do_within_call(task);
        return PK_OK;
    }
    pki_claims_count(task);
    result = choose_wait(task);
    if (result == PK_OK)
        result = take_signals(task);
    if (result != PK_OK)
        pki_stream_left(task);
    return result;
}

void pki_stream_copies(struct pki_task *task)
{
    if (task->engine->config.size == 2 || task->engine->gpu == NULL || pki_task_is_fused(task) || pki_task_is_to_self(task) ||
        task->cuda.how == PKI_WAIT_SERVE)
        return;
    if (task->kind != PKI_MEM_DEVICE && !pki_task_is_mixed(task))
        return;
    pki_claims_copies(task);
}

static void failed(struct pki_task *task, pk_result_t result)
{
    if (result != PK_OK)
        pki_engine_poison(task->engine, result, true);
}

static bool moves_itself(const struct pki_task *task)
{
    return task->request.what != PKI_DO_COLL && task->kind == PKI_MEM_DEVICE && task->xfer->bytes > 0 &&
           !pki_task_is_to_self(task) && !pki_bounce_receives(task->engine, task->xfer->peer);
}

/* Receives of one group from one peer in one stream are free at the same moment: the sender has to wait for the first only. Their
 * words are written from the last to the first (pki_stream_open), so that none is written when the sender is past it. */
static bool begin_receive(struct pki_task *task)
{
    struct pki_xfer *xfer = task->xfer;
    struct pki_signal_batch *b = &task->engine->stream.batch;
    bool direct;

    xfer->signals.joined =
        b->received.peer == xfer->peer && b->received.op + 1 == xfer->id.op && b->received.stream == task->cuda.queue.handle;
    pki_xfer_post(xfer);
    direct = xfer->signals.slot >= 0 || (xfer->signals.cell != NULL && !task->cuda.beside_messages);
    if (xfer->state != PKI_XFER_WAIT) /* granted later: who knows what has been opened by then */
        xfer->signals.joined = false;
    if (xfer->signals.slot >= 0 && !xfer->signals.ll && xfer->there.region == 0) /* no peer can map it: through the host */
        pki_stream_copies(task);
    b->received.peer = direct && !xfer->signals.ll ? xfer->peer : NULL;
    b->received.op = xfer->id.op;
    b->received.stream = task->cuda.queue.handle;
    return direct;
}

static bool begin_send(struct pki_task *task)
{
    struct pki_xfer *xfer = task->xfer;

    xfer->ready = 0; /* not before the stream comes to it */
    (void)pki_ctrl_poll(task->engine, xfer->peer);
    pki_xfer_enter(xfer, PKI_XFER_LOOK); /* most receivers of GPU memory grant it unasked */
    pki_xfer_post(xfer);
    pki_stream_look_for_cts(xfer);
    pki_offer_or_rts(xfer);
    if (xfer->signals.cell != NULL)
        return true;
    if (!pki_xfer_is_granted(xfer) || xfer->bounce.slots != PKI_SLOTS_NONE || (!xfer->signals.ll && task->cuda.beside_messages))
        return false;
    if (!xfer->signals.ll)
        pki_region_tell_soon(xfer);
    if (pki_waiting_has_few_queues(task->engine) && !pki_signal_is_open(&xfer->signals.start) &&
        !pki_move_by_kernel(task->engine))
        return false;
    return xfer->signals.ll || !pki_waiting_has_copies(task->engine->limits.ordinal);
}

/* Kernels at both ends see to a low-latency message, and whoever wants its place looks for its end (pki_ll_take_soon). */
static bool is_device_driven(const struct pki_task *task)
{
    const struct pki_xfer *xfer = task->xfer;

    return pki_task_is_direct(task) && xfer != NULL && xfer->signals.ll && (xfer->is_send || xfer->peer->ll.by_kernel);
}

void pki_stream_begin(struct pki_task *task)
{
    bool direct = pki_task_is_direct(task);

    if (pki_stream_self_begin(task))
        return;
    if (moves_itself(task)) {
        pki_task_enter(task, PKI_TASK_STREAM); /* low-latency slots may be granted */
        direct = task->xfer->is_send ? begin_send(task) : begin_receive(task);
    } else if (!direct && task->plan != NULL) {
        pki_task_enter(task, PKI_TASK_SIGNALLED);
        direct = pki_stream_plan_begin(task);
    }
    pki_task_enter(task, direct ? PKI_TASK_STREAM : pki_stream_barrier_suits(task) ? PKI_TASK_BARRIER : PKI_TASK_SIGNALLED);
    task->started = direct;
    pki_serve_choose(task);
    if (!pki_task_is_direct(task))
        pki_stream_copies(task);
    if (is_device_driven(task))
        pki_task_set_device_driven(task);
    if (task->request.what == PKI_DO_SEND && !pki_task_is_direct(task))
        pki_stream_arrive(task, task->cuda.ready);
    else if (task->request.what == PKI_DO_SEND && task->xfer->signals.cell != NULL)
        pki_stream_arrive(task, pki_offer_start(task->xfer));
}

void pki_stream_open(struct pki_task *task)
{
    if (!pki_task_is_direct(task))
        pki_stream_arrive(task, task->cuda.ready);
    else if (task->xfer != NULL && !task->xfer->signals.ll && !pki_offer_moves(task->xfer))
        pki_stream_arrive(task, pki_offer_start(task->xfer));
    else if (task->plan != NULL && !pki_task_is_fused(task))
        pki_stream_plan_open(task);
}

static void receive_ll(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    struct pki_xfer *xfer = task->xfer;
    struct pki_ll_op op = { .user = xfer->addr,
                            .bytes = (uint32_t)xfer->bytes,
                            .flag = xfer->signals.value,
                            .slot = pki_ll_slot(e, xfer->peer->rank, xfer->signals.slot),
                            .done = xfer->signals.finish.word,
                            .ctas = pki_ll_ctas(e, xfer->bytes),
                            .arrived = pki_ll_arrived(e, xfer->peer->rank, false, xfer->signals.value) };

    pki_ll_row_add(task, &op);
}

/* What the stream has to wait for at the end of this task. */
static void wait_for(struct pki_task *task)
{
    if (task->mode == PKI_TASK_BARRIER)
        return;
    if (!pki_task_is_direct(task))
        pki_stream_wait(task, task->cuda.release);
    else if (task->xfer != NULL && !task->xfer->signals.ll && !pki_offer_moves(task->xfer))
        pki_stream_wait(task, pki_offer_finish(task->xfer));
    else if (task->xfer != NULL && task->cuda.branches[0] != NULL) {
        pki_stream_flush(task->engine);
        failed(task, pki_branch_join(task, task->cuda.branches[0]));
    } else if (task->plan != NULL && !pki_task_is_fused(task))
        pki_stream_plan_end(task);
}

void pki_stream_wait_for_all(struct pki_task *any, struct pki_list *made)
{
    pki_stream_before_last_wait(any);
    for (struct pki_list *node = made->next; node != made; node = node->next) {
        struct pki_task *task = pki_container_of(node, struct pki_task, waiting);

        if (!pki_task_in_cuda_stream(task) || task->cuda.queue.handle != any->cuda.queue.handle || task->cuda.waited)
            continue;
        task->cuda.waited = true;
        wait_for(task);
    }
}

/* A fused collective. */
void pki_stream_launch(struct pki_task *task)
{
    pki_stream_flush(task->engine); /* behind all that the group's sends and receives open or move for the peers */
    failed(task, pki_fused_launch(task, &task->cuda.queue));
}

void pki_stream_end(struct pki_task *task, struct pki_list *made)
{
    if (pki_task_is_direct(task) && task->xfer != NULL && !task->xfer->is_send && task->xfer->signals.ll) {
        receive_ll(task);
        return;
    }
    pki_ll_row_launch(task->engine);
    if (!task->cuda.waited)
        pki_stream_wait_for_all(task, made);
    if (pki_task_is_direct(task) && task->plan != NULL && !pki_task_is_fused(task))
        pki_stream_plan_close(task);
}

void pki_stream_left(struct pki_task *task)
{
    pki_claims_give_up(task);
    pki_branch_leave(task);
    if (task->request.stream.kind != PK_STREAM_KIND_CUDA)
        return;
    if (task->cuda.release_slot >= 0)
        pki_signal_open(&task->cuda.release);
    pki_signals_give(task->engine, task->cuda.ready_slot);
    pki_signals_give(task->engine, task->cuda.release_slot);
    task->cuda.ready_slot = task->cuda.release_slot = -1;
}

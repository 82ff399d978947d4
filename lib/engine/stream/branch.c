/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/proto/bounce.h"
#include "engine/stream/branch.h"
#include "engine/stream/stream.h"

/* When it is first used: from the streams that the device has made for that. */
static bool is_open(struct pki_engine *e, struct pki_branch *b)
{
    if (b->queue.device != NULL)
        return true;
    b->slot = -1;
    return e->gpu->ops->queue_open(e->gpu, &b->queue) == PK_OK;
}

struct pki_branch *pki_branch_take(struct pki_engine *e, void *stream)
{
    struct pki_branch *found = NULL;

    for (int i = 0; i < PKI_BRANCHES; i++) {
        struct pki_branch *b = &e->stream.branches[i];

        if (b->users > 0 && b->stream == stream) {
            found = b;
            break;
        }
        if (b->users == 0 && found == NULL)
            found = b;
    }
    if (found == NULL || !is_open(e, found))
        return NULL;
    found->stream = stream;
    found->users++;
    return found;
}

static void leave(struct pki_branch *b, int ordinal)
{
    if (b->waits) {
        pki_waiting_drop(ordinal, b->queue.handle);
        pki_waiting_leave(ordinal, b->queue.handle, true);
    }
    b->waits = false;
    b->users--;
}

void pki_branch_leave(struct pki_task *task)
{
    for (int i = 0; i < 2; i++)
        if (task->cuda.branches[i] != NULL)
            leave(task->cuda.branches[i], task->engine->limits.ordinal);
    task->cuda.branches[0] = task->cuda.branches[1] = NULL;
}

/* Its value wait holds a channel as the caller's streams' do. */
static bool may_wait(struct pki_engine *e, struct pki_branch *b)
{
    bool listed = pki_waiting_enter(e->limits.ordinal, b->queue.handle);

    b->waits = listed && pki_waiting_hold(e->limits.ordinal, b->queue.handle, pki_waiting_limit(e));
    if (!b->waits)
        pki_waiting_leave(e->limits.ordinal, b->queue.handle, listed);
    return b->waits;
}

static pk_result_t put(const struct pki_task *task, struct pki_branch *branch)
{
    struct pki_queue *queue = &branch->queue;
    const struct pki_device_ops *ops = queue->device->ops;
    const struct pki_signal_op wait = { PKI_SIGNAL_WAIT, task->xfer->signals.start },
                               write = { PKI_SIGNAL_WRITE, task->xfer->signals.finish };
    pk_result_t result = pki_branch_fork(task, branch);

    if (result == PK_OK)
        result = ops->signals(queue, &wait, 1, PKI_WAIT_VALUE);
    if (result == PK_OK)
        result = pki_xfer_put(task->xfer, queue);
    if (result == PK_OK)
        result = ops->signals(queue, &write, 1, PKI_WAIT_VALUE);
    return result;
}

bool pki_branch_put(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    struct pki_branch *b = pki_branch_take(e, task); /* no stream has this address */
    pk_result_t result;

    if (b == NULL)
        return false;
    task->cuda.branches[0] = b;
    if (!may_wait(e, b)) {
        pki_branch_leave(task);
        return false;
    }
    pki_stream_flush(e);
    result = put(task, b);
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    pki_xfer_enter(task->xfer, PKI_XFER_STREAM);
    pki_xfer_activate(task->xfer);
    return true;
}

pk_result_t pki_branch_fork(const struct pki_task *task, const struct pki_branch *branch)
{
    return task->cuda.queue.device->ops->follow(&branch->queue, &task->cuda.queue);
}

pk_result_t pki_branch_join(const struct pki_task *task, const struct pki_branch *branch)
{
    return task->cuda.queue.device->ops->follow(&task->cuda.queue, &branch->queue);
}

pk_result_t pki_branch_copy(struct pki_task *task, uint32_t i)
{
    struct pki_engine *e = task->engine;
    struct pki_branch *b = task->cuda.branches[0];
    const struct pki_step *step = &task->plan->steps[i];
    size_t bytes = 0;
    char *dst = pki_plan_block(task, step->dst, &bytes), *src = pki_plan_block(task, step->src, &bytes);

    if (b->slot < 0)
        b->slot = pki_bounce_buffer_take(e, &e->proto.out);
    if (b->slot < 0)
        return pki_fail(PK_ERR_MEMORY, NULL, "%s: no pinned memory for a copy inside the gpu", pki_task_name(task));
    return pki_bounce_copy(e, &b->queue, b->slot, dst, src, bytes);
}

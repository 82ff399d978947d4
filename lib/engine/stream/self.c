/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/stream/self.h"
#include "engine/stream/stream.h"

static bool suits(const struct pki_task *task)
{
    return pki_task_in_cuda_stream(task) && pki_task_is_to_self(task) && task->kind == PKI_MEM_DEVICE && task->xfer->bytes > 0;
}

/* What differs in length is left to the engine, which says so. */
static bool is_other_end(const struct pki_task *task, const struct pki_task *other)
{
    return suits(other) && other->mode == PKI_TASK_SIGNALLED && other->number == task->number &&
           other->xfer->is_send != task->xfer->is_send && other->xfer->bytes == task->xfer->bytes;
}

static struct pki_task *other_end(const struct pki_task *task)
{
    const struct pki_list *all = &task->engine->tasks.all;

    for (struct pki_list *n = all->next; n != all; n = n->next)
        if (is_other_end(task, pki_container_of(n, struct pki_task, node)))
            return pki_container_of(n, struct pki_task, node);
    return NULL;
}

/* The engine may have done so, when the stream had come to it. */
static void post(struct pki_task *task)
{
    if (!pki_list_empty(&task->xfer->match))
        return;
    task->started = task->xfer->opened = true;
    task->xfer->ready = task->xfer->bytes;
    pki_xfer_post(task->xfer);
}

bool pki_stream_self_begin(struct pki_task *task)
{
    struct pki_task *other = suits(task) ? other_end(task) : NULL;
    struct pki_xfer *send;

    if (other == NULL)
        return false;
    send = task->xfer->is_send ? task->xfer : other->xfer;
    send->signals.slot = pki_signals_take(task->engine, &send->signals.finish);
    if (send->signals.slot < 0)
        return false;
    send->issued = send->bytes;
    pki_task_enter(task, PKI_TASK_SIGNALLED);
    task->cuda.other_end = other;
    post(other);
    post(task);
    return true;
}

void pki_stream_self_put(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    struct pki_task *other = task->cuda.other_end;
    const struct pki_xfer *send = task->xfer->is_send ? task->xfer : other->xfer;
    const struct pki_xfer *recv = task->xfer->is_send ? other->xfer : task->xfer;
    bool is_one_stream = other->cuda.queue.handle == task->cuda.queue.handle;
    pk_result_t result;

    if (!is_one_stream) {
        pki_stream_before_wait(task);
        pki_stream_wait(task, other->cuda.ready);
    }
    pki_stream_before_copy(task, false);
    result = e->gpu->ops->copy(&task->cuda.queue, recv->addr, send->addr, send->bytes);
    if (result != PK_OK) {
        pki_engine_poison(e, result, true);
        return;
    }
    e->stats.kernels++;
    if (!is_one_stream)
        pki_stream_copied(task, other->cuda.release, 0);
    pki_stream_copied(task, send->signals.finish, send->bytes);
    task->cuda.waited = true;
    other->cuda.waited |= is_one_stream;
}

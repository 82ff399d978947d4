/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers for the moving kernel, gathered for one launch, and where copies have channels.
 *
 * What the stream waits for at the end of the call is left to the same kernel. A second one behind it could not start before
 * this one has ended, and what cannot start holds up its hardware queue: with CUDA_DEVICE_MAX_CONNECTIONS=1 every stream.
 * So a row may have waits alone.
 */
#include "engine/stream/move.h"
#include "engine/stream/stream.h"
#include "tuning/tuning.h"

bool pki_move_by_kernel(const struct pki_engine *e)
{
    return e->config.sm_policy != PK_SM_NONE && e->proto.ll_memory != NULL;
}

bool pki_move_in_process(const struct pki_xfer *xfer)
{
    const struct pki_ep *path = xfer->peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE];

    return path != NULL && path->same_process;
}

bool pki_move_take_channel(struct pki_task *task)
{
    return pki_claims_channel(task, task->engine->limits.channels - 1);
}

/* Those of the kernel's CTAs that this one asks for. */
static int ctas_of(size_t bytes)
{
    size_t ctas = (bytes + PKI_MOVE_SHARE_BYTES - 1) / PKI_MOVE_SHARE_BYTES;

    return ctas == 0 ? 1 : ctas < (size_t)pki_tuning.gpu.move_ctas ? (int)ctas : pki_tuning.gpu.move_ctas;
}

void pki_move_row_add(struct pki_task *task, struct pki_xfer *xfer)
{
    struct pki_engine *e = task->engine;
    struct pki_move_row *row = &e->stream.move_row;
    uintptr_t here = (uintptr_t)xfer->addr, there = (uintptr_t)xfer->there.remote;

    if (row->n == PKI_MOVE_OPS || row->queue.handle != task->cuda.queue.handle)
        pki_stream_flush(e);
    pki_stream_worked(task);
    row->queue = task->cuda.queue;
    row->ops[row->n++] = (struct pki_move_op){ .src = (const void *)(xfer->is_send ? here : there), /* NOLINT: mapped */
                                               .dst = (void *)(xfer->is_send ? there : here),       /* NOLINT */
                                               .bytes = xfer->bytes,
                                               .start = xfer->signals.start,
                                               .done = xfer->signals.finish,
                                               .arrived = pki_ll_moved(e, xfer) };
    row->ctas += ctas_of(xfer->bytes);
    e->stats.moves++;
    pki_xfer_enter(xfer, PKI_XFER_STREAM);
    pki_xfer_activate(xfer);
}

bool pki_move_row_is_open(const struct pki_engine *e)
{
    return e->stream.move_row.n > 0;
}

bool pki_move_row_wait(const struct pki_task *task, struct pki_signal signal)
{
    struct pki_move_row *row = &task->engine->stream.move_row;

    if (row->n == 0 || row->n == PKI_MOVE_OPS || row->queue.handle != task->cuda.queue.handle ||
        task->cuda.how != PKI_WAIT_KERNEL)
        return false;
    row->ops[row->n++] = (struct pki_move_op){ .start = signal };
    return true;
}

void pki_move_row_of_waits(struct pki_engine *e, const struct pki_queue *queue, const struct pki_signal_op *waits, int n)
{
    struct pki_move_row *row = &e->stream.move_row;

    _Static_assert(PKI_MOVE_OPS >= PKI_SIGNALS_A_BATCH, "all waits of a batch find a place");
    row->queue = *queue;
    for (row->n = 0; row->n < n; row->n++)
        row->ops[row->n] = (struct pki_move_op){ .start = waits[row->n].signal };
    row->ctas = 1;
}

/* As many as find a place beside all that waits on this GPU. */
static int ctas_that_fit(struct pki_engine *e, const struct pki_move_row *row)
{
    int most = (int)pki_ll_most_ctas(e), ctas = row->ctas < most ? row->ctas : most;

    while (!pki_waiting_occupy(e->limits.ordinal, row->queue.handle, ctas, e->limits.places) && ctas > 1)
        ctas /= 2;
    return ctas;
}

void pki_move_row_launch(struct pki_engine *e)
{
    struct pki_move_row *row = &e->stream.move_row;
    pk_result_t result;

    if (row->n == 0)
        return;
    result = e->gpu->ops->move(&row->queue, row->ops, row->n, ctas_that_fit(e, row), e->signals.abort_word);
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    e->stats.kernels++;
    row->n = row->ctas = 0;
}

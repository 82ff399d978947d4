/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers for the moving kernel, gathered for one launch, and where copies have channels. */
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

    if (row->n == PKI_MOVE_OPS)
        pki_move_row_launch(task);
    row->ops[row->n++] = (struct pki_move_op){ .src = (const void *)(xfer->is_send ? here : there), /* NOLINT: mapped */
                                               .dst = (void *)(xfer->is_send ? there : here),       /* NOLINT */
                                               .bytes = xfer->bytes, .start = xfer->signals.start, .done = xfer->signals.finish,
                                               .arrived = pki_ll_moved(e, xfer) };
    row->ctas += ctas_of(xfer->bytes);
    e->stats.moves++;
    pki_xfer_enter(xfer, PKI_XFER_STREAM);
    pki_xfer_activate(xfer);
}

/* As many as find a place beside all that waits on this GPU. */
static int ctas_that_fit(struct pki_task *task, int ctas)
{
    struct pki_engine *e = task->engine;
    int most = (int)pki_ll_most_ctas(e);

    ctas = ctas < most ? ctas : most;
    while (!pki_waiting_occupy(e->limits.ordinal, task->cuda.queue.handle, ctas, e->limits.places) && ctas > 1)
        ctas /= 2;
    return ctas;
}

void pki_move_row_launch(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    struct pki_move_row *row = &e->stream.move_row;
    pk_result_t result;

    if (row->n == 0)
        return;
    pki_stream_flush(e);
    result = e->gpu->ops->move(&task->cuda.queue, row->ops, row->n, ctas_that_fit(task, row->ctas), e->signals.abort_word);
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    pki_stream_worked(task);
    e->stats.kernels++;
    row->n = row->ctas = 0;
}

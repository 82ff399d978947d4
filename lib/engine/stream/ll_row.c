/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency messages of a group are one launch: a launch costs the CPU more than a short message takes, and so does the end
 * of one kernel and the start of the next on the GPU.
 *
 * Sends wait for nothing, and their peers' receives wait for them: no CTA of a send may have to wait for one of a receive. So
 * both are in one launch only where each message has its own CTAs, sends first.
 */
#include "engine/stream/stream.h"

/* One message more: is it still a row that may be launched at once? */
static bool belongs(const struct pki_engine *e, const struct pki_ll_row *row, const struct pki_task *task,
                    const struct pki_ll_op *op)
{
    bool mixed = row->sends > 0 && (row->sends < row->n || !op->send);

    if (row->queue.handle != task->cuda.queue.handle || row->n == PKI_LL_ROW_OPS || (op->send && row->sends < row->n))
        return false;
    return !mixed || (row->ctas + (int)op->ctas <= (int)pki_ll_most_ctas(e) &&
                      pki_waiting_occupy(e->limits.ordinal, row->queue.handle, row->ctas + (int)op->ctas, e->limits.places));
}

void pki_ll_row_add(struct pki_task *task, const struct pki_ll_op *op)
{
    struct pki_engine *e = task->engine;
    struct pki_ll_row *row = &e->stream.ll_row;

    if (row->n > 0 && !belongs(e, row, task, op))
        pki_ll_row_launch(e);
    row->queue = task->cuda.queue;
    row->ops[row->n++] = *op;
    row->sends += op->send;
    row->ctas += (int)op->ctas;
}

/* Receives hold their CTAs until the peers have sent: as many as one message of the row may, if all are too many beside other
 * streams. */
static int ctas_of(const struct pki_engine *e, const struct pki_ll_row *row)
{
    int all = row->ctas < (int)pki_ll_most_ctas(e) ? row->ctas : (int)pki_ll_most_ctas(e);
    int most = 1;

    if (row->sends > 0 || row->n == 1 || pki_waiting_occupy(e->limits.ordinal, row->queue.handle, all, e->limits.places))
        return all;
    for (int i = 0; i < row->n; i++)
        most = (int)row->ops[i].ctas > most ? (int)row->ops[i].ctas : most;
    return most;
}

void pki_ll_row_launch(struct pki_engine *e)
{
    struct pki_ll_row *row = &e->stream.ll_row;
    pk_result_t result;

    if (row->n == 0)
        return;
    pki_stream_flush(e); /* peers may wait for these words */
    result = e->gpu->ops->ll(&row->queue, row->ops, row->n, ctas_of(e, row), e->signals.abort_word);
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    e->stats.kernels++;
    row->n = row->sends = row->ctas = 0;
}

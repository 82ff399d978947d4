/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that a call puts into the caller's stream are collected and handed to the driver in one call where order allows it: each
 * call costs a microsecond, and so does each of its own in the stream. What is collected is in the stream's order; a copy or
 * kernel may go in front of "done" words of earlier copies alone.
 */
#include "engine/stream/move.h"
#include "engine/stream/stream.h"

/* More waits at the end than one kernel of theirs takes go to the moving one, which takes more: two in a row hold the queue. */
static void leave_waits(struct pki_engine *e)
{
    struct pki_signal_batch *b = &e->stream.batch;
    int first = b->n;

    while (first > 0 && b->ops[first - 1].kind != PKI_SIGNAL_WRITE)
        first--;
    if (b->how != PKI_WAIT_KERNEL || b->n - first <= PKI_WAIT_WORDS_MAX || pki_move_row_is_open(e))
        return;
    pki_move_row_of_waits(e, &b->queue, b->ops + first, b->n - first);
    b->n = first;
    b->waits = false;
    for (int i = 0; i < first; i++)
        b->waits = b->waits || b->ops[i].kind != PKI_SIGNAL_WRITE;
}

static void hand_over(struct pki_engine *e)
{
    struct pki_signal_batch *b = &e->stream.batch;
    const struct pki_serving serving = { e->proto.lanes, b->ctas, e->signals.abort_word };
    pk_result_t result;

    if (b->n == 0)
        return;
    b->queue.serving = &serving;
    result = b->queue.device->ops->signals(&b->queue, b->ops, b->n, b->how);
    b->queue.serving = NULL;
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    if (b->waits && b->how != PKI_WAIT_VALUE)
        e->stats.kernels++;
    b->n = b->deferred = b->ctas = 0;
    b->behind = 0;
    b->waits = false;
}

void pki_stream_flush(struct pki_engine *e)
{
    leave_waits(e);
    hand_over(e);
    pki_move_row_launch(e); /* behind the words */
}

void pki_stream_restart(struct pki_engine *e)
{
    pki_ll_row_launch(e);
    e->proto.ll_call++;
    pki_stream_flush(e);
    e->stream.batch.used = false;
    e->stream.batch.received.peer = NULL;
}

static struct pki_signal_batch *batch_of(const struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    struct pki_signal_batch *b = &e->stream.batch;

    if (b->used && b->queue.handle == task->cuda.queue.handle && b->how == task->cuda.how)
        return b;
    pki_stream_flush(e);
    b->used = true;
    b->before = PKI_BEFORE_UNKNOWN;
    b->copied = false;
    b->queue = task->cuda.queue;
    b->how = task->cuda.how;
    return b;
}

static void add(const struct pki_task *task, enum pki_signal_kind kind, struct pki_signal signal)
{
    struct pki_signal_batch *b = batch_of(task);

    if (b->n == PKI_SIGNALS_A_BATCH || pki_move_row_is_open(task->engine))
        pki_stream_flush(task->engine);
    b->ops[b->n++] = (struct pki_signal_op){ kind, signal };
    b->before = PKI_BEFORE_SOMETHING;
}

void pki_stream_arrive(const struct pki_task *task, struct pki_signal signal)
{
    struct pki_signal_batch *b = batch_of(task);

    if (b->before == PKI_BEFORE_UNKNOWN)
        b->before = b->queue.device->ops->idle(&b->queue) ? PKI_BEFORE_NOTHING : PKI_BEFORE_SOMETHING;
    if (b->before == PKI_BEFORE_NOTHING)
        pki_signal_open(&signal);
    else
        add(task, PKI_SIGNAL_WRITE, signal);
}

void pki_stream_wait(const struct pki_task *task, struct pki_signal signal)
{
    struct pki_signal_batch *b = batch_of(task);

    if (pki_signal_is_open(&signal) || pki_move_row_wait(task, signal))
        return;
    add(task, PKI_SIGNAL_WAIT, signal);
    b->waits = true;
    b->ctas = task->cuda.ctas > b->ctas ? task->cuda.ctas : b->ctas;
}

void pki_stream_before_wait(const struct pki_task *task)
{
    if (batch_of(task)->deferred > 0)
        pki_stream_flush(task->engine);
}

/* A word and a wait in one call with no copy between the last wait and them: the peer sees the word late (measured,
 * docs/design/0015). */
void pki_stream_before_last_wait(const struct pki_task *task)
{
    struct pki_signal_batch *b = batch_of(task);

    if (!b->copied && !b->waits)
        pki_stream_flush(task->engine);
}

void pki_stream_before_copy(const struct pki_task *task, bool joined)
{
    struct pki_signal_batch *b = batch_of(task);

    if (b->n > b->deferred || pki_move_row_is_open(task->engine) || (b->behind >= pki_tuning.gpu.behind_bytes && !joined))
        pki_stream_flush(task->engine);
    b->copied = true;
    b->before = PKI_BEFORE_SOMETHING;
}

void pki_stream_worked(const struct pki_task *task)
{
    struct pki_signal_batch *b = batch_of(task);

    b->copied = true;
    b->before = PKI_BEFORE_SOMETHING;
}

void pki_stream_copied(const struct pki_task *task, struct pki_signal done, size_t bytes)
{
    struct pki_signal_batch *b = batch_of(task);

    add(task, PKI_SIGNAL_WRITE, done);
    b->deferred++;
    b->behind += bytes;
}

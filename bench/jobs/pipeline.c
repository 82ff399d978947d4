/* SPDX-License-Identifier: Apache-2.0 */
/* Stages one behind the other. A rank is a stage and has all its layers; micro-batches go one forward, one backward in turns. */
#include "jobs.h"

#include <stdio.h>

enum { RECV_FORWARD, SEND_FORWARD, RECV_BACKWARD, SEND_BACKWARD, KINDS }; /* each a channel of its own */

static const char *unfit(const struct jobs_run *run)
{
    return run->world.size < 2 ? "needs 2 ranks or more" : NULL;
}

static size_t tokens_in_piece(const struct jobs_options *o)
{
    return o->tokens > o->pieces ? o->tokens / o->pieces : 1;
}

static void add(struct jobs_run *run, enum jobs_kind kind, int peer, int origin, int tag, float *memory)
{
    struct jobs_transfer *t = jobs_transfer(run, kind, &run->world, tokens_in_piece(&run->options) * run->options.hidden);

    t->to = t->from = peer;
    t->origin = origin;
    t->tag = tag;
    t->source = t->result = memory;
    t->forwards = origin != run->world.rank;
}

/* Transfers of piece i: KINDS * i and on, whatever the stage. At the ends some of them are never begun, and are empty. */
static void prepare(struct jobs_run *run)
{
    int stage = run->world.rank, last = run->world.size - 1;
    size_t bytes = tokens_in_piece(&run->options) * run->options.hidden * sizeof(float);

    for (unsigned i = 0; i < run->options.pieces; i++) {
        float *there = jobs_alloc(run, bytes), *back = jobs_alloc(run, bytes);
        int forward = 2 * (int)i, backward = 2 * (int)i + 1;

        add(run, JOBS_RECV, stage - 1, 0, forward, there);
        add(run, JOBS_SEND, stage + 1, 0, forward, there);
        add(run, JOBS_RECV, stage + 1, last, backward, back);
        add(run, JOBS_SEND, stage - 1, last, backward, back);
        if (stage == 0)
            run->transfers[KINDS * i + RECV_FORWARD].count = 0;
        if (stage == last)
            run->transfers[KINDS * i + RECV_BACKWARD].count = 0;
    }
}

static double forward_flops(const struct jobs_run *run)
{
    const struct jobs_options *o = &run->options;

    return 24.0 * o->layers * (double)o->hidden * o->hidden * (double)tokens_in_piece(o);
}

static void come(struct jobs_run *run, int piece, int kind)
{
    jobs_begin(run, KINDS * piece + kind, kind);
    jobs_wait(run, kind);
}

static void forward(struct jobs_run *run, int piece)
{
    if (run->world.rank > 0)
        come(run, piece, RECV_FORWARD);
    jobs_compute(run, forward_flops(run));
    if (run->world.rank < run->world.size - 1)
        jobs_begin(run, KINDS * piece + SEND_FORWARD, SEND_FORWARD);
}

static void backward(struct jobs_run *run, int piece)
{
    if (run->world.rank < run->world.size - 1)
        come(run, piece, RECV_BACKWARD);
    jobs_compute(run, 2 * forward_flops(run));
    if (run->world.rank > 0)
        jobs_begin(run, KINDS * piece + SEND_BACKWARD, SEND_BACKWARD);
}

static void step(struct jobs_run *run)
{
    int pieces = (int)run->options.pieces, behind = run->world.size - 1 - run->world.rank;
    int warm = behind < pieces ? behind : pieces;

    for (int i = 0; i < warm; i++)
        forward(run, i);
    for (int i = warm; i < pieces; i++) {
        forward(run, i);
        backward(run, i - warm);
    }
    for (int i = pieces - warm; i < pieces; i++)
        backward(run, i);
    jobs_wait(run, SEND_FORWARD);
    jobs_wait(run, SEND_BACKWARD);
}

/* Even where communication takes no time, stages wait for the first piece to come and for the last to go. */
static void note(const struct jobs_run *run, char text[JOBS_TEXT_BYTES])
{
    double idle = run->world.size - 1;

    snprintf(text, JOBS_TEXT_BYTES, "%u micro-batches; of the share %.1f %% is the bubble", run->options.pieces,
             100 * idle / (run->options.pieces + idle));
}

const struct jobs_pattern jobs_pipeline = { unfit, prepare, step, note };

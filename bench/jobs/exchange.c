/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns in which tokens go from rank to rank: round the ring, and to their experts. */
#include "jobs.h"

#include <stdio.h>
#include <stdlib.h>

static const char *unfit(const struct jobs_run *run)
{
    return run->world.size < 2 ? "needs 2 ranks or more" : NULL;
}

/* ---- Sequence parallel: hop k brings the keys and values of the rank k before ---- */

static void sequence_prepare(struct jobs_run *run)
{
    int rank = run->world.rank, n = run->world.size;
    size_t count = 2 * (size_t)run->options.tokens * run->options.hidden;
    float *last = jobs_alloc(run, count * sizeof *last);

    for (int hop = 1; hop < n; hop++) {
        struct jobs_transfer *t = jobs_transfer(run, JOBS_SENDRECV, &run->world, count);

        t->to = (rank + 1) % n;
        t->from = (rank + n - 1) % n;
        t->origin = (rank + n - hop) % n;
        t->tag = 0;
        t->forwards = hop > 1;
        t->source = last;
        t->result = last = jobs_alloc(run, count * sizeof *last);
    }
}

/* Once round: attention to one block while the next one comes. `times`: the work, and how often what comes. */
static void round_trip(struct jobs_run *run, int times)
{
    double tokens = run->options.tokens, hidden = run->options.hidden;

    for (int hop = 0; hop < run->world.size; hop++) {
        if (hop + 1 < run->world.size)
            for (int i = 0; i < times; i++)
                jobs_begin(run, hop, 0);
        jobs_compute(run, times * 4 * tokens * tokens * hidden);
        jobs_wait(run, 0);
    }
}

static void sequence_step(struct jobs_run *run)
{
    double tokens = run->options.tokens, hidden = run->options.hidden;

    for (unsigned l = 0; l < run->options.layers; l++) {
        jobs_compute(run, 24 * tokens * hidden * hidden);
        round_trip(run, 1);
    }
    /* Backward the gradients of keys and values go round with them. */
    for (unsigned l = 0; l < run->options.layers; l++) {
        round_trip(run, 2);
        jobs_compute(run, 48 * tokens * hidden * hidden);
    }
}

const struct jobs_pattern jobs_sequence = { unfit, sequence_prepare, sequence_step, NULL };

/* ---- Experts: transfer 0 takes the tokens to theirs, 1 brings them back ---- */

/* Tokens for the expert `distance` ranks on: a ramp, so that blocks are uneven and all ranks have as much to do. */
static size_t tokens_for(const struct jobs_run *run, int distance)
{
    size_t n = (size_t)run->world.size;

    return run->options.tokens * 2 * (size_t)(distance + 1) / (n * (n + 1));
}

static size_t *running_sum(const size_t *counts, int n)
{
    size_t *offsets = calloc((size_t)n, sizeof *offsets);

    if (offsets == NULL)
        abort();
    for (int i = 1; i < n; i++)
        offsets[i] = offsets[i - 1] + counts[i - 1];
    return offsets;
}

static void expert_prepare(struct jobs_run *run)
{
    int rank = run->world.rank, n = run->world.size;
    size_t *going = calloc((size_t)n, sizeof *going), *coming = calloc((size_t)n, sizeof *coming);
    size_t bytes = (size_t)run->options.tokens * run->options.hidden * sizeof(float);
    float *own = jobs_alloc(run, bytes), *others = jobs_alloc(run, bytes), *back = jobs_alloc(run, bytes);
    struct jobs_transfer *t;

    if (going == NULL || coming == NULL)
        abort();
    for (int p = 0; p < n; p++) {
        going[p] = tokens_for(run, (p - rank + n) % n) * run->options.hidden;
        coming[p] = tokens_for(run, (rank - p + n) % n) * run->options.hidden;
    }
    t = jobs_transfer(run, JOBS_ALLTOALLV, &run->world, 0);
    *t = (struct jobs_transfer){ .kind = t->kind,
                                 .group = t->group,
                                 .source = own,
                                 .result = others,
                                 .send_counts = going,
                                 .send_offsets = running_sum(going, n),
                                 .recv_counts = coming,
                                 .recv_offsets = running_sum(coming, n) };
    t = jobs_transfer(run, JOBS_ALLTOALLV, &run->world, 0);
    *t = run->transfers[0];
    t->forwards = true;
    t->source = others;
    t->result = back;
    t->send_counts = coming;
    t->send_offsets = run->transfers[0].recv_offsets;
    t->recv_counts = going;
    t->recv_offsets = run->transfers[0].send_offsets;
}

static void to_experts_and_back(struct jobs_run *run, double factor)
{
    double hidden = run->options.hidden;

    jobs_compute(run, factor * 8 * run->options.tokens * hidden * hidden); /* attention, at home */
    jobs_begin(run, 0, 0);
    jobs_wait(run, 0);
    jobs_compute(run, factor * 16 * run->options.tokens * hidden * hidden);
    jobs_begin(run, 1, 0);
    jobs_wait(run, 0);
}

static void expert_step(struct jobs_run *run)
{
    for (unsigned l = 0; l < run->options.layers; l++)
        to_experts_and_back(run, 1);
    for (unsigned l = 0; l < run->options.layers; l++)
        to_experts_and_back(run, 2);
}

static void expert_note(const struct jobs_run *run, char text[JOBS_TEXT_BYTES])
{
    double most = (double)tokens_for(run, run->world.size - 1) * run->options.hidden * sizeof(float);

    snprintf(text, JOBS_TEXT_BYTES, "%u tokens a batch, the largest message %.1f KB", run->options.tokens, most * 1e-3);
}

const struct jobs_pattern jobs_expert = { unfit, expert_prepare, expert_step, expert_note };

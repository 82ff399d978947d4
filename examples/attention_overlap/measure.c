/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same layers in four ways, in turns within each round, so that the machine's mood is the same for all: the attention alone, the
 * communication alone, one after the other, and the attention of a layer while the keys and values of the next are on their way.
 */
#include "attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum way { ATTENTION, COMMUNICATION, IN_TURN, OVERLAPPED, WAYS };

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void fetch_begin(struct job *job, struct gather *library, int layer)
{
    library->begin(library->state, job->gathered[layer], shape_part(&job->shape));
}

/* Before what is begun next. */
static void fetch(struct job *job, struct gather *library, int layer)
{
    if (job->compute->join == NULL) {
        library->fetch(library->state, job->gathered[layer], shape_part(&job->shape));
        return;
    }
    fetch_begin(job, library, layer);
    job->compute->join(job->compute_state);
}

static void attend_begin(struct job *job, int layer)
{
    job->compute->begin(job->compute_state, job->queries[layer], job->gathered[layer], job->outputs[layer]);
}

/* Of the attention, and of the communication if there is any beside it. */
static void wait_for_both(struct job *job, struct gather *library, bool communication)
{
    job->compute->end(job->compute_state, communication ? library->poke : NULL, library->state);
    if (communication)
        library->end(library->state);
}

static void run(struct job *job, struct gather *library, enum way way)
{
    int layers = job->shape.layers;
    void (*join)(void *state) = job->compute->join;

    if (way == OVERLAPPED)
        fetch(job, library, 0);
    for (int layer = 0; layer < layers; layer++) {
        bool next = way == OVERLAPPED && layer + 1 < layers;

        if (way == IN_TURN || way == COMMUNICATION)
            fetch(job, library, layer);
        if (way == COMMUNICATION)
            continue;
        if (next)
            fetch_begin(job, library, layer + 1);
        attend_begin(job, layer);
        if (join != NULL)
            join(job->compute_state);
        else
            wait_for_both(job, library, next);
    }
    if (join != NULL)
        wait_for_both(job, library, true);
}

/* The time of the slowest rank. */
static double timed(struct job *job, struct gather *library, enum way way)
{
    double begun, mine, slowest;

    must(pk_barrier(job->comm, PK_BLOCKING), "pk_barrier");
    begun = now_ms();
    run(job, library, way);
    mine = now_ms() - begun;
    must(pk_allreduce(&mine, &slowest, 1, PK_F64, PK_MAX, job->comm, PK_BLOCKING), "pk_allreduce");
    return slowest;
}

static void bar(const struct job *job, int round)
{
    int all = job->warmup + job->rounds, filled = 40 * (round + 1) / all;

    if (job->shape.rank != 0 || !isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r[%.*s%*s] round %d of %d", filled, "########################################", 40 - filled, "", round + 1,
            all);
    if (round + 1 == all)
        fprintf(stderr, "\r\033[K");
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, int n, bool *unquiet)
{
    qsort(values, (size_t)n, sizeof *values, by_size);
    *unquiet |= values[3 * n / 4] > 1.5 * values[n / 4];
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void measure(struct job *job)
{
    static double samples[LIBRARIES_MAX][WAYS][ROUNDS_MAX];

    for (int round = -job->warmup; round < job->rounds; round++) {
        for (int l = 0; l < job->library_count; l++)
            for (int turn = 0; turn < WAYS; turn++) {
                int way = (turn + round + job->warmup) % WAYS;
                double ms = timed(job, &job->libraries[l], (enum way)way);

                if (round >= 0)
                    samples[l][way][round] = ms;
            }
        bar(job, round + job->warmup);
    }
    for (int l = 0; l < job->library_count; l++) {
        struct times *t = &job->times[l];

        t->attention = median(samples[l][ATTENTION], job->rounds, &t->unquiet);
        t->communication = median(samples[l][COMMUNICATION], job->rounds, &t->unquiet);
        t->in_turn = median(samples[l][IN_TURN], job->rounds, &t->unquiet);
        t->overlapped = median(samples[l][OVERLAPPED], job->rounds, &t->unquiet);
    }
}

void run_overlapped(struct job *job, struct gather *library)
{
    run(job, library, OVERLAPPED);
}

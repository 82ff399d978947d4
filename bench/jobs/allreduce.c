/* SPDX-License-Identifier: Apache-2.0 */
/* Sums as jobs: one after another, each begun by all ranks together, a line a job, then the statistics of all. */
#include "jobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct table_column columns[] = {
    { "job", "job", "", 6, -1 },
    { "library", "library", "", 9, -1 },
    { "duration_ns", "duration", "(ns)", 14, 0 },
    { "goodput_gbit_per_s", "goodput", "(Gb/s)", 10, 3 },
    { "wrong", "#wrong", "", 7, 0 },
    { NULL, NULL, NULL, 0, 0 },
};

static const size_t type_bytes[JOBS_TYPES] = { 4, 4, 8, 8 };

size_t jobs_type_bytes(enum jobs_type type)
{
    return type_bytes[type];
}

static void open_table(struct jobs_run *run)
{
    const struct jobs_options *o = &run->options;
    char library[JOBS_TEXT_BYTES], about[512];

    library_describe(run, library);
    if (run->world.rank != 0)
        return;
    snprintf(
        about, sizeof about,
        "allreduce: %zu elements of %s (%.3f MB), sum; %u jobs after %u to warm up\n%s, %d ranks on %ld CPUs, %s memory\n"
        "a job begins behind a barrier and lasts until the slowest rank has its result; goodput: bits of one rank's data / duration",
        o->numel, jobs_type_names[o->type], (double)(o->numel * type_bytes[o->type]) * 1e-6, o->steps, o->warmup, library,
        run->world.size, sysconf(_SC_NPROCESSORS_ONLN), o->cuda ? "cuda" : "host");
    run->table = table_open("pickle-perf-jobs", about, columns, o->csv_path, o->json_path);
}

static int64_t term(int rank, unsigned job, size_t i)
{
    return (int64_t)(((unsigned)rank * 7 + job * 5 + (unsigned)i * 3) % 31);
}

static void store(void *out, size_t i, enum jobs_type type, int64_t number)
{
    switch (type) {
    case JOBS_F32:
        ((float *)out)[i] = (float)number;
        break;
    case JOBS_INT32:
        ((int32_t *)out)[i] = (int32_t)number;
        break;
    case JOBS_F64:
        ((double *)out)[i] = (double)number;
        break;
    default:
        ((int64_t *)out)[i] = number;
        break;
    }
}

/* The data of `rank`, or what all ranks' come to (-1). */
static void make(const struct jobs_run *run, void *out, int rank, unsigned job)
{
    for (size_t i = 0; i < run->options.numel; i++) {
        int64_t sum = 0;

        for (int r = 0; rank < 0 && r < run->world.size; r++)
            sum += term(r, job, i);
        store(out, i, run->options.type, rank < 0 ? sum : term(rank, job, i));
    }
}

struct buffers {
    void *source, *result, *host, *expected;
};

static uint64_t check(struct jobs_run *run, const struct buffers *b, unsigned job)
{
    size_t width = type_bytes[run->options.type], bytes = run->options.numel * width;
    uint64_t wrong = 0;

    make(run, b->expected, -1, job);
    jobs_get(run, b->host, b->result, bytes);
    if (memcmp(b->host, b->expected, bytes) == 0)
        return 0;
    for (size_t at = 0; at < bytes; at += width)
        wrong += memcmp((char *)b->host + at, (char *)b->expected + at, width) != 0;
    return wrong;
}

static double run_job(struct jobs_run *run, const struct buffers *b, unsigned job, uint64_t *wrong)
{
    const struct jobs_options *o = &run->options;
    size_t bytes = o->numel * type_bytes[o->type];
    double begin, took_us;

    make(run, b->host, run->world.rank, job);
    jobs_put(run, b->source, b->host, bytes);
    memset(b->host, 0xff, bytes);
    jobs_put(run, b->result, b->host, bytes);
    jobs_barrier(run);
    begin = now_us();
    library_allreduce(run, b->source, b->result, o->numel, o->type);
    took_us = jobs_worst(run, now_us() - begin);
    *wrong = (uint64_t)jobs_total(run, (double)check(run, b, job));
    return took_us * 1e3;
}

static void row(struct jobs_run *run, const char *name, double duration_ns, double goodput, double wrong)
{
    if (run->world.rank == 0)
        table_row(run->table,
                  (struct table_cell[]){ TABLE_TEXT(name), TABLE_TEXT(library_name), TABLE_NUMBER(duration_ns),
                                         TABLE_NUMBER(goodput), TABLE_NUMBER(wrong) },
                  NULL);
}

struct statistics {
    double min, max, median, mean, deviation;
};

static struct statistics statistics_of(double *samples, unsigned n)
{
    struct statistics s = { .median = median(samples, n) };

    s.min = samples[0];
    s.max = samples[n - 1];
    for (unsigned i = 0; i < n; i++)
        s.mean += samples[i] / n;
    for (unsigned i = 0; i < n; i++)
        s.deviation += (samples[i] - s.mean) * (samples[i] - s.mean) / n;
    s.deviation = sqrt(s.deviation);
    return s;
}

static void summary(struct jobs_run *run, double *durations, double *goodputs)
{
    struct statistics d = statistics_of(durations, run->options.steps), g = statistics_of(goodputs, run->options.steps);
    double wrong = (double)run->wrong;

    row(run, "min", d.min, g.min, wrong);
    row(run, "max", d.max, g.max, wrong);
    row(run, "median", d.median, g.median, wrong);
    row(run, "mean", d.mean, g.mean, wrong);
    row(run, "stddev", d.deviation, g.deviation, wrong);
}

void jobs_allreduce(struct jobs_run *run)
{
    const struct jobs_options *o = &run->options;
    size_t bytes = o->numel * type_bytes[o->type];
    struct buffers b = { jobs_alloc(run, bytes), jobs_alloc(run, bytes), malloc(bytes), malloc(bytes) };
    double *durations = calloc(o->steps, sizeof *durations), *goodputs = calloc(o->steps, sizeof *goodputs);
    uint64_t wrong;

    if (b.host == NULL || b.expected == NULL || durations == NULL || goodputs == NULL)
        abort();
    open_table(run);
    for (unsigned i = 0; i < o->warmup; i++) {
        run_job(run, &b, i, &wrong);
        run->wrong += wrong;
    }
    for (unsigned i = 0; i < o->steps; i++) {
        char name[16];

        durations[i] = run_job(run, &b, o->warmup + i, &wrong);
        goodputs[i] = (double)bytes * 8 / durations[i];
        run->wrong += wrong;
        snprintf(name, sizeof name, "%u", i + 1);
        row(run, name, durations[i], goodputs[i], (double)wrong);
    }
    summary(run, durations, goodputs);
    free(durations);
    free(goodputs);
    free(b.host);
    free(b.expected);
}

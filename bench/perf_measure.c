/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times. A sample is one operation, or several where one is too short for the clock; the number of operations in a sample is agreed on
 * by all ranks. In a CUDA stream samples lie between events, up to IN_FLIGHT operations behind one another, so that the launches overlap
 * as they do in a program.
 */
#include "perf.h"

#include <stdlib.h>

#include "timing.h"

#define IN_FLIGHT 64u
#define SHORT_BLOCKING_US 2.0
#define SHORT_STREAM_US 100.0
#define OPERATIONS_A_SAMPLE 10u

/* Sorts the samples. */
void perf_sort_out(double *samples, size_t n, struct perf_times *times)
{
    times->median_us = median(samples, n);
    times->p99_us = samples[(n * 99 + 99) / 100 - 1];
    times->min_us = samples[0];
    times->max_us = samples[n - 1];
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

void perf_worst(struct perf_run *run, struct perf_times *times)
{
    struct perf_times *all = calloc((size_t)run->size, sizeof *all);

    if (all == NULL)
        abort();
    perf_share(run, times, all, sizeof *all);
    for (int r = 0; r < run->size; r++) {
        times->median_us = larger(times->median_us, all[r].median_us);
        times->p99_us = larger(times->p99_us, all[r].p99_us);
        times->min_us = larger(times->min_us, all[r].min_us);
        times->max_us = larger(times->max_us, all[r].max_us);
    }
    free(all);
}

unsigned perf_warm_up(struct perf_run *run, const struct perf_size *size)
{
    struct perf_times guess = { 0 };
    unsigned warmup = run->options.warmup;
    double begin = now_us();

    for (unsigned i = 0; i < warmup; i++) {
        perf_post(run, size);
        if (i % IN_FLIGHT == IN_FLIGHT - 1)
            perf_finish(run);
    }
    perf_finish(run);
    if (warmup == 0)
        return 1;
    guess.median_us = (now_us() - begin) / warmup;
    perf_worst(run, &guess);
    if (guess.median_us < (run->options.ending == PERF_BLOCKING ? SHORT_BLOCKING_US : SHORT_STREAM_US))
        return OPERATIONS_A_SAMPLE;
    return 1;
}

static void sample_by_clock(struct perf_run *run, const struct perf_size *size, unsigned chunk, double *samples)
{
    for (unsigned i = 0; i < run->options.iterations; i++) {
        double begin = now_us();

        for (unsigned k = 0; k < chunk; k++)
            perf_post(run, size);
        perf_finish(run);
        samples[i] = (now_us() - begin) / chunk;
    }
}

static void sample_by_events(struct perf_run *run, const struct perf_size *size, unsigned chunk, double *samples)
{
    gpu_event_t events[IN_FLIGHT + 1];
    unsigned batch = IN_FLIGHT / chunk;
    unsigned n = run->options.iterations;

    for (unsigned e = 0; e <= batch; e++)
        events[e] = gpu_event_new();
    for (unsigned first = 0; first < n; first += batch) {
        unsigned now = n - first < batch ? n - first : batch;

        gpu_event_record(events[0], run->stream.handle);
        for (unsigned i = 0; i < now; i++) {
            for (unsigned k = 0; k < chunk; k++)
                perf_post(run, size);
            gpu_event_record(events[i + 1], run->stream.handle);
        }
        perf_finish(run);
        for (unsigned i = 0; i < now; i++)
            samples[first + i] = gpu_event_elapsed_us(events[i], events[i + 1]) / chunk;
    }
    for (unsigned e = 0; e <= batch; e++)
        gpu_event_free(events[e]);
}

/* Samples count posts; the times to be told are one way, of one message. */
static double messages_in_post(const struct perf_run *run, const struct perf_size *size)
{
    if (run->options.op != PERF_SENDRECV || run->options.pattern == PERF_BIDIR)
        return 1;
    return run->options.pattern == PERF_PINGPONG ? 2 : perf_window(run, size);
}

void perf_measure(struct perf_run *run, const struct perf_size *size, unsigned chunk, struct perf_times *times)
{
    unsigned n = run->options.iterations;
    double *samples = calloc(n, sizeof *samples);
    char token = 0;
    char *tokens = calloc(1, (size_t)run->size);

    if (samples == NULL || tokens == NULL)
        abort();
    perf_share(run, &token, tokens, 1);
    if (!perf_takes_part(run))
        ;
    else if (run->stream.kind == PK_STREAM_KIND_CUDA)
        sample_by_events(run, size, chunk, samples);
    else
        sample_by_clock(run, size, chunk, samples);
    for (unsigned i = 0; i < n; i++)
        samples[i] /= messages_in_post(run, size);
    perf_sort_out(samples, n, times);
    free(tokens);
    free(samples);
}

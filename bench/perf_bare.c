/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare copy: cuIpcOpenMemHandle once, then cuMemcpyAsync from the own buffer into the peer's, nothing else. It is the most that
 * copy engines can do, measured in the same run as what it is compared with.
 */
#include "perf.h"

#include <stdlib.h>

#define BATCH 16u

struct perf_bare {
    void *peer_buffer; /* the other rank's recv_buffer, mapped here */
    gpu_stream_t stream;
    gpu_event_t events[BATCH + 1];
};

/* With two ranks, each opens the other's buffer. */
struct perf_bare *perf_bare_open(struct perf_run *run)
{
    struct perf_bare *bare = calloc(1, sizeof *bare);
    gpu_ipc_t *handles = calloc((size_t)run->size, sizeof *handles);
    gpu_ipc_t own;

    if (bare == NULL || handles == NULL)
        abort();
    gpu_ipc_export(run->recv_buffer, &own);
    perf_share(run, &own, handles, sizeof own);
    bare->peer_buffer = gpu_ipc_open(&handles[1 - run->rank]);
    bare->stream = gpu_stream_new();
    for (unsigned e = 0; e <= BATCH; e++)
        bare->events[e] = gpu_event_new();
    free(handles);
    return bare;
}

void perf_bare_close(struct perf_run *run, struct perf_bare *bare)
{
    char token = 0;
    char tokens[2];

    for (unsigned e = 0; e <= BATCH; e++)
        gpu_event_free(bare->events[e]);
    gpu_stream_free(bare->stream);
    gpu_ipc_close(bare->peer_buffer);
    free(bare);
    /* Nobody frees a buffer that is still mapped elsewhere. */
    perf_share(run, &token, tokens, 1);
}

static void batch(struct perf_run *run, struct perf_bare *bare, size_t bytes, unsigned n, double *samples)
{
    int code;

    gpu_event_record(bare->events[0], bare->stream);
    for (unsigned i = 0; i < n; i++) {
        gpu_copy_async(bare->peer_buffer, run->send_buffer, bytes, bare->stream);
        gpu_event_record(bare->events[i + 1], bare->stream);
    }
    code = gpu_stream_sync(bare->stream);
    if (code != 0) {
        fprintf(stderr, "pickle-perf: bare copy: %s\n", gpu_error(code));
        exit(1);
    }
    for (unsigned i = 0; i < n; i++)
        samples[i] = gpu_event_elapsed_us(bare->events[i], bare->events[i + 1]);
}

void perf_bare_measure(struct perf_run *run, struct perf_bare *bare, size_t bytes, struct perf_times *times)
{
    const struct perf_options *o = &run->options;
    double warm[BATCH];
    double *samples = calloc(o->iterations, sizeof *samples);
    bool both = o->op == PERF_SENDRECV && o->pattern == PERF_BIDIR;
    char token = 0;
    char tokens[2];

    if (samples == NULL)
        abort();
    if (both || run->rank == 0)
        batch(run, bare, bytes, o->warmup < BATCH ? o->warmup : BATCH, warm);
    perf_share(run, &token, tokens, 1);
    for (unsigned first = 0; (both || run->rank == 0) && first < o->iterations; first += BATCH)
        batch(run, bare, bytes, o->iterations - first < BATCH ? o->iterations - first : BATCH, samples + first);
    perf_sort_out(samples, o->iterations, times);
    free(samples);
    perf_worst(run, times);
}

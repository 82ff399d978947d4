/* SPDX-License-Identifier: Apache-2.0 */
/* Bare copies from the own buffer into the peer's, of two ranks. */
#include "perf.h"

#include <stdlib.h>

#include "bare.h"

static void *peer_buffer; /* the other rank's recv_buffer, mapped here; NULL: not open */
static gpu_stream_t stream;

void perf_bare_open(struct perf_run *run)
{
    gpu_ipc_t own, handles[2];

    gpu_ipc_export(run->recv_buffer, &own);
    perf_share(run, &own, handles, sizeof own);
    peer_buffer = gpu_ipc_open(&handles[1 - run->rank]);
    stream = gpu_stream_new();
}

void perf_bare_close(struct perf_run *run)
{
    char tokens[2];

    if (peer_buffer == NULL)
        return;
    gpu_stream_free(stream);
    gpu_ipc_close(peer_buffer);
    perf_share(run, "", tokens, 1); /* nobody frees a buffer that is still mapped elsewhere */
}

void perf_bare_measure(struct perf_run *run, size_t bytes, struct perf_times *times)
{
    const struct perf_options *o = &run->options;
    double *samples = calloc(o->iterations, sizeof *samples);
    bool copies = run->rank == 0 || (o->op == PERF_SENDRECV && o->pattern == PERF_BIDIR);
    char tokens[2];

    if (samples == NULL)
        abort();
    if (copies)
        bare_copies_us(peer_buffer, run->send_buffer, bytes, o->warmup < BARE_COPIES ? o->warmup : BARE_COPIES, stream, NULL);
    perf_share(run, "", tokens, 1);
    for (unsigned first = 0; copies && first < o->iterations; first += BARE_COPIES)
        bare_copies_us(peer_buffer, run->send_buffer, bytes,
                       o->iterations - first < BARE_COPIES ? o->iterations - first : BARE_COPIES, stream, samples + first);
    perf_sort_out(samples, o->iterations, times);
    free(samples);
    perf_worst(run, times);
}

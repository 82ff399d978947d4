/* SPDX-License-Identifier: Apache-2.0 */
/* Checking: every rank fills its source with data of its own, and knows what must be in its result. */
#include "perf.h"

#include <stdlib.h>
#include <string.h>

#define AT_ONCE ((size_t)8 << 10) /* elements */
#define WIDTH_MAX 8
#define POISON 0x5a

/* Where data is made and looked at: the staging copy of what is on the GPU. */
static char *seen(const struct perf_run *run, char *buffer)
{
    return run->options.cuda ? run->staging : buffer;
}

static size_t end_of(const size_t *counts, const size_t *offsets, int blocks)
{
    return blocks > 0 ? offsets[blocks - 1] + counts[blocks - 1] : 0;
}

static size_t source_bytes(const struct perf_run *run)
{
    return end_of(run->layout.send_counts, run->layout.send_offsets, perf_source_blocks(run)) * pk_dtype_size(run->options.dtype);
}

static size_t result_bytes(const struct perf_run *run)
{
    return end_of(run->layout.recv_counts, run->layout.recv_offsets, perf_result_blocks(run)) * pk_dtype_size(run->options.dtype);
}

/* First the result: in place it is where the source goes then. */
static void fill(struct perf_run *run, unsigned iteration)
{
    size_t width = pk_dtype_size(run->options.dtype);
    char *source = perf_source(run);
    char *out = seen(run, source);

    if (run->options.cuda)
        gpu_fill(perf_result(run), POISON, result_bytes(run));
    else
        memset(perf_result(run), POISON, result_bytes(run));
    for (int b = 0; b < perf_source_blocks(run); b++)
        perf_data(run, out + run->layout.send_offsets[b] * width, run->layout.send_counts[b], run->rank,
                  perf_operation(run->options.op)->source == PERF_PARTS ? b : 0, iteration, 0);
    if (run->options.cuda && source_bytes(run) > 0)
        gpu_copy(source, run->staging, source_bytes(run));
}

static uint64_t count_wrong(const char *got, const char *expected, size_t bytes, size_t width)
{
    uint64_t wrong = 0;

    if (memcmp(got, expected, bytes) == 0)
        return 0;
    for (size_t at = 0; at < bytes; at += width)
        wrong += memcmp(got + at, expected + at, width) != 0;
    return wrong;
}

static uint64_t check_block(const struct perf_run *run, const char *got, size_t count, struct perf_origin_block origin,
                            unsigned iteration)
{
    static char expected[AT_ONCE * WIDTH_MAX];
    size_t width = pk_dtype_size(run->options.dtype);
    uint64_t wrong = 0;

    for (size_t at = 0; at < count; at += AT_ONCE) {
        size_t now = count - at < AT_ONCE ? count - at : AT_ONCE;

        perf_data(run, expected, now, origin.from, origin.index, iteration, at);
        wrong += count_wrong(got + at * width, expected, now * width, width);
    }
    return wrong;
}

uint64_t perf_check(struct perf_run *run, const struct perf_size *size, unsigned iteration)
{
    size_t width = pk_dtype_size(run->options.dtype);
    size_t bytes;
    const char *got;
    uint64_t wrong = 0;
    int root = run->root;

    if (!perf_takes_part(run))
        return 0;
    fill(run, iteration);
    perf_post(run, size);
    perf_finish(run);
    run->root = root; /* whose operation it was */
    bytes = result_bytes(run);
    got = seen(run, perf_result(run));
    if (run->options.cuda && bytes > 0) {
        memset(run->staging, 0, bytes);
        gpu_copy(run->staging, perf_result(run), bytes);
    }
    for (int b = 0; b < perf_result_blocks(run); b++)
        wrong += check_block(run, got + run->layout.recv_offsets[b] * width, run->layout.recv_counts[b], perf_origin_of(run, b),
                             iteration);
    perf_pass_root(run);
    return wrong;
}

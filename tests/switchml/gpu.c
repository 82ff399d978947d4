/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks with GPUs whose allreduces an aggregator sums (drive.py runs one): each kind of memory for either buffer, blocking,
 * in host streams and in CUDA streams, with packets of floats that do not fit.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

enum kind { PAGEABLE, PINNED, DEVICE, KINDS };

#define MOST 300000

static struct gpu_rank self;
static float *buffers[2][KINDS], *host;
static pk_stream_t streams[3];
static unsigned cases;

/* Whole numbers, so that sums are exact; with `unfit` some that no scale fits. */
static float number(int rank, size_t i, bool unfit)
{
    if (unfit && i / 1000 % 5 == 2)
        return i % 2 == 0 ? INFINITY : FLT_MAX / 4;
    return (float)((int)(i * 7 + (size_t)rank * 13) % 1000 - 500);
}

static void move(void *to, const void *from, size_t count)
{
    if (count > 0)
        gpu_copy(to, from, count * sizeof(float));
}

static void reduce(int in, int out, size_t count, int stream, bool unfit)
{
    float *from = buffers[0][in], *to = in == out && count % 2 == 1 ? from : buffers[1][out];

    for (size_t i = 0; i < count; i++)
        host[i] = number(self.rank, i, unfit);
    move(from, host, count);
    must_be_ok(pk_allreduce(from, to, count, PK_F32, PK_SUM, self.comm, streams[stream]), "pk_allreduce");
    if (stream == 1)
        must_be_ok(pk_stream_synchronize(streams[1]), "pk_stream_synchronize");
    if (stream == 2 && !stream_idle_within(self.stream, 25000, NULL))
        report(false, "rank %d: the stream does not end", self.rank);
    must_be_ok(pk_comm_async_error(self.comm), "pk_comm_async_error");
    move(host, to, count);
    cases++;
    for (size_t i = 0; i < count; i++)
        if (host[i] != number(0, i, unfit) + number(1, i, unfit)) {
            report(false, "rank %d: memory %d to %d, stream %d: element %zu of %zu is %g", self.rank, in, out, stream, i, count,
                   (double)host[i]);
            return;
        }
}

static int rank_main(void)
{
    static const size_t counts[] = { 0, 1, 257, 5000, MOST };
    pk_explanation_t how = { .struct_size = sizeof how };

    gpu_rank_open(&self, PK_SM_NONE, 30000);
    streams[0] = PK_BLOCKING;
    must_be_ok(pk_stream_create(&streams[1]), "pk_stream_create");
    streams[2] = self.in_stream;
    host = malloc(MOST * sizeof *host);
    for (int b = 0; b < 2; b++) {
        buffers[b][PAGEABLE] = malloc(MOST * sizeof(float));
        buffers[b][PINNED] = gpu_host_alloc(MOST * sizeof(float));
        buffers[b][DEVICE] = gpu_alloc(MOST * sizeof(float));
    }
    must_be_ok(pk_explain(self.comm, PK_OP_ALLREDUCE, 1000, PK_F32, PK_MEM_DEVICE, 0, 0, &how), "pk_explain");
    report(strcmp(how.algorithm, "switchml") == 0 && how.sms == 0, "rank %d: algorithm %s, %d multiprocessors", self.rank,
           how.algorithm, how.sms);
    for (int in = 0; in < KINDS; in++)
        for (int out = 0; out < KINDS; out++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (int s = 0; s < 3; s++)
                    reduce((in + self.rank) % KINDS, out, counts[c], s, (c + (size_t)s) % 2 == 1);
    must_be_ok(pk_stream_destroy(streams[1]), "pk_stream_destroy");
    gpu_rank_close(&self);
    report(true, "rank %d: %u allreduces", self.rank, cases);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "gpu", 120000, "allreduces of GPU memory by an aggregator");
}

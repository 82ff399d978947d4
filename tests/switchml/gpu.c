/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four ranks with GPUs whose allreduces an aggregator sums (drive.py runs one); where there are fewer GPUs ranks share them. Each
 * kind of memory for either buffer, blocking, in host streams and in CUDA streams, whole numbers and floats, with packets of
 * floats that do not fit; GPU memory of up to 4 MiB.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

enum kind { PAGEABLE, PINNED, DEVICE, KINDS };
enum type { INT32, FLOAT, UNFIT, TYPES };

#define RANKS 4
#define SHORT 5000 /* elements; all kinds of memory */
#define MOST 1048576

static struct gpu_rank self;
static void *buffers[2][KINDS];
static union {
    float f;
    uint32_t i;
} * host;
static pk_stream_t streams[3];
static unsigned cases;

/* Whole numbers, so that sums are exact; UNFIT: with some that no scale fits. */
static float number(int rank, size_t i, enum type type)
{
    if (type == UNFIT && i / 1000 % 5 == 2)
        return i % 2 == 0 ? INFINITY : 0x1p125f;
    return (float)((int)(i * 7 + (size_t)rank * 13) % 1000 - 500);
}

/* They wrap. */
static uint32_t integer(int rank, size_t i)
{
    return (uint32_t)(i * 2654435761u + (size_t)rank * 40503u);
}

static bool is_right(size_t i, enum type type)
{
    uint32_t whole = 0;
    float sum = 0;

    for (int r = 0; r < RANKS; r++) {
        whole += integer(r, i);
        sum += number(r, i, type);
    }
    return type == INT32 ? host[i].i == whole : host[i].f == sum;
}

static void move(void *to, const void *from, size_t count)
{
    if (count > 0)
        gpu_copy(to, from, 4 * count);
}

static void reduce(int in, int out, size_t count, int stream, enum type type)
{
    void *from = buffers[0][in], *to = in == out && count % 2 == 1 ? from : buffers[1][out];

    for (size_t i = 0; i < count; i++)
        if (type == INT32)
            host[i].i = integer(self.rank, i);
        else
            host[i].f = number(self.rank, i, type);
    move(from, host, count);
    must_be_ok(pk_allreduce(from, to, count, type == INT32 ? PK_INT32 : PK_F32, PK_SUM, self.comm, streams[stream]),
               "pk_allreduce");
    if (stream == 1)
        must_be_ok(pk_stream_synchronize(streams[1]), "pk_stream_synchronize");
    if (stream == 2 && !stream_idle_within(self.stream, 25000, NULL))
        report(false, "rank %d: the stream does not end", self.rank);
    must_be_ok(pk_comm_async_error(self.comm), "pk_comm_async_error");
    memset(host, 0xff, 4 * count);
    move(host, to, count);
    cases++;
    for (size_t i = 0; i < count; i++)
        if (!is_right(i, type)) {
            report(false, "rank %d: memory %d to %d, stream %d, type %d: element %zu of %zu is %08x", self.rank, in, out, stream,
                   (int)type, i, count, host[i].i);
            return;
        }
}

static void open_rank(void)
{
    gpu_rank_open(&self, PK_SM_NONE, 60000);
    streams[0] = PK_BLOCKING;
    must_be_ok(pk_stream_create(&streams[1]), "pk_stream_create");
    streams[2] = self.in_stream;
    host = malloc(MOST * sizeof *host);
    for (int b = 0; b < 2; b++) {
        buffers[b][PAGEABLE] = malloc(4 * SHORT);
        buffers[b][PINNED] = gpu_host_alloc(4 * SHORT);
        buffers[b][DEVICE] = gpu_alloc(4 * (size_t)MOST);
    }
}

static int rank_main(void)
{
    static const size_t counts[] = { 0, 1, 257, SHORT - 1, SHORT }, longer[] = { 65536, 300001, MOST };
    pk_explanation_t how = { .struct_size = sizeof how };

    open_rank();
    must_be_ok(pk_explain(self.comm, PK_OP_ALLREDUCE, 1000, PK_F32, PK_MEM_DEVICE, 0, 0, &how), "pk_explain");
    report(strcmp(how.algorithm, "switchml") == 0 && how.sms == 0, "rank %d: algorithm %s, %d multiprocessors", self.rank,
           how.algorithm, how.sms);
    for (int in = 0; in < KINDS; in++)
        for (int out = 0; out < KINDS; out++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (int s = 0; s < 3; s++)
                    reduce((in + self.rank) % KINDS, out, counts[c], s, (enum type)((c + (size_t)s) % TYPES));
    for (size_t c = 0; c < sizeof longer / sizeof *longer; c++)
        for (int s = 0; s < 3; s += 2)
            for (int type = INT32; type < TYPES; type++)
                reduce(DEVICE, DEVICE, longer[c], s, (enum type)type);
    must_be_ok(pk_stream_destroy(streams[1]), "pk_stream_destroy");
    gpu_rank_close(&self);
    report(true, "rank %d: %u allreduces", self.rank, cases);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(1))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "gpu", .size = RANKS, .timeout_ms = 240000 }, "%d ranks, %d GPUs", RANKS,
                gpu_count());
    return report_end();
}

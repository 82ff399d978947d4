/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of a sum that are longer than what goes in one copy (16 MiB), by less than what goes in a queue of its own (1 MiB): the last copy is not
 * there before the first. New data each turn, so that what was there before is not right.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

#define TURNS 8
#define BLOCK (((size_t)16 << 20) + ((size_t)512 << 10))
#define COUNT (2 * BLOCK / sizeof(int32_t))

static int32_t value(int turn, int rank, size_t i)
{
    return (int32_t)(i % 1000) * (turn + 1) + rank;
}

static int rank_main(void)
{
    struct gpu_rank self;
    int32_t *host = malloc(COUNT * sizeof *host), *in, *out;

    setenv("PK_ALGORITHM", "direct", 1);
    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    in = gpu_alloc(COUNT * sizeof *in);
    out = gpu_alloc(COUNT * sizeof *out);
    for (int turn = 0; turn < TURNS; turn++) {
        size_t wrong = 0;

        for (size_t i = 0; i < COUNT; i++)
            host[i] = value(turn, self.rank, i);
        gpu_copy(in, host, COUNT * sizeof *in);
        must_be_ok(pk_allreduce(in, out, COUNT, PK_INT32, PK_SUM, self.comm, self.in_stream), "pk_allreduce");
        report(stream_idle_within(self.stream, 60000, NULL), "turn %d: rank %d: the sum has ended", turn, self.rank);
        gpu_copy(host, out, COUNT * sizeof *out);
        for (size_t i = 0; i < COUNT; i++)
            wrong += host[i] != value(turn, 0, i) + value(turn, 1, i);
        report(wrong == 0, "turn %d: rank %d: %zu of %zu numbers are wrong", turn, self.rank, wrong, COUNT);
    }
    free(host);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "tail", 100000, "the last copy of a block is not there before the first");
}

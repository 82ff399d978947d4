/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives queued one behind the other in two streams of one communicator, none waited for by the CPU, while ranks come late now and
 * then: a rank's stream may do one of them itself and its peer's engine the same one. Each takes what the one before it has left, in the
 * same memory, and what each has made is kept by a copy in the stream: a peer that writes too early, or scratch memory that two of them
 * use at once, shows. And copies that wait in these streams must not hold up those for which the streams wait: with more ranks than two
 * there are more streams with copies than hardware queues.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu_rank.h"

#define STREAMS 2
#define TURNS 15 /* 3^15 is exact in a float */
#define BLOCK 6000
#define RANKS_MOST 4

struct row {
    gpu_stream_t stream;
    size_t count;           /* of sums */
    float *sums, *gathered; /* gathered: a block of BLOCK from each rank */
    float *kept[TURNS];
};

static void sometimes_late(const struct gpu_rank *self, int call)
{
    unsigned x = (unsigned)(call * 7919 + self->rank * 104729 + 12345);

    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    if (x % 4 == 0)
        usleep(x / 4 % 1500);
}

static void row_open(const struct gpu_rank *self, struct row *row, size_t count)
{
    size_t bytes = (size_t)self->size * BLOCK * sizeof(float);
    float *ones = malloc(count * sizeof *ones);

    if (ones == NULL)
        abort();
    for (size_t i = 0; i < count; i++)
        ones[i] = 1;
    row->stream = gpu_stream_new();
    row->count = count;
    row->sums = gpu_alloc(count * sizeof(float));
    row->gathered = gpu_alloc(bytes);
    gpu_fill(row->gathered, 0, bytes);
    gpu_copy(row->sums, ones, count * sizeof *ones);
    for (int t = 0; t < TURNS; t++)
        row->kept[t] = gpu_alloc(bytes);
    free(ones);
}

static void queue_turn(const struct gpu_rank *self, struct row *row, int turn)
{
    pk_stream_t stream = PK_CUDA_STREAM(row->stream);
    float *own = row->gathered + (size_t)self->rank * BLOCK;

    must_be_ok(pk_allreduce(row->sums, row->sums, row->count, PK_F32, PK_SUM, self->comm, stream), "pk_allreduce");
    sometimes_late(self, 2 * turn);
    gpu_copy_async(own, row->sums + row->count - BLOCK, BLOCK * sizeof(float), row->stream);
    must_be_ok(pk_allgather(own, row->gathered, BLOCK, PK_F32, self->comm, stream), "pk_allgather");
    sometimes_late(self, 2 * turn + 1);
    gpu_copy_async(row->kept[turn], row->gathered, (size_t)self->size * BLOCK * sizeof(float), row->stream);
}

static int wrong_in(const float *device, size_t count, float wanted)
{
    float *host = malloc(count * sizeof *host);
    int wrong = 0;

    if (host == NULL)
        abort();
    gpu_copy(host, device, count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        wrong += host[i] != wanted;
    free(host);
    return wrong;
}

static void row_check(const struct gpu_rank *self, const struct row *row, int s)
{
    float wanted = 1;

    for (int t = 0; t < TURNS; t++) {
        int wrong;

        wanted *= (float)self->size;
        wrong = wrong_in(row->kept[t], (size_t)self->size * BLOCK, wanted);
        if (!report(wrong == 0, "rank %d, stream %d, turn %d: %d gathered elements are wrong", self->rank, s, t, wrong))
            return;
    }
    report(wrong_in(row->sums, row->count, wanted) == 0, "rank %d, stream %d: the last sums", self->rank, s);
}

static int rank_main(void)
{
    static const size_t counts[STREAMS] = { 40000, 70001 };
    struct row rows[STREAMS];
    struct gpu_rank self;

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    for (int s = 0; s < STREAMS; s++)
        row_open(&self, &rows[s], counts[s]);
    ranks_meet();
    for (int t = 0; t < TURNS; t++)
        for (int s = 0; s < STREAMS; s++)
            queue_turn(&self, &rows[s], t);
    for (int s = 0; s < STREAMS; s++) {
        if (!stream_idle_within(rows[s].stream, 20000, NULL)) {
            report(false, "rank %d: stream %d does not end", self.rank, s);
            gpu_show_pending(self.comm);
            exit(1);
        }
        row_check(&self, &rows[s], s);
    }
    gpu_rank_close(&self);
    return report_end();
}

static void drive(int ranks, const char *algorithm)
{
    if (algorithm != NULL)
        setenv("PK_ALGORITHM", algorithm, 1);
    else
        unsetenv("PK_ALGORITHM");
    ranks_drive(&(struct ranks_turn){ .role = "row", .size = ranks, .timeout_ms = 60000 }, "%d ranks, algorithm %s", ranks,
                algorithm != NULL ? algorithm : "by default");
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (int ranks = 2; ranks <= RANKS_MOST; ranks++) { /* more than GPUs share them */
        drive(ranks, "direct");
        drive(ranks, "staggered");
    }
    drive(2, NULL);
    return report_end();
}

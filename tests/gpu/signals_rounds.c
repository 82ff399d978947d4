/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums by `staggered`, of 2 to 4 ranks that share the GPUs there are: right for all lengths, in place and not. And in rounds: on the software
 * driver, where copies come late at random and the CPU may look at GPU memory, nothing of a round has come while something of the
 * round before has not (docs/design/0005).
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu_rank.h"

#define RANKS_MOST 4
#define PIECES 2
#define PIECE ((size_t)128 << 10) /* floats: more than a low-latency message */
#define TURNS 8

static float part(int rank, size_t i)
{
    return (float)(1 + (i * 7 + (size_t)rank * 13) % 31);
}

static float sum(int size, size_t i)
{
    float all = 0;

    for (int rank = 0; rank < size; rank++)
        all += part(rank, i);
    return all;
}

static void parts_to_gpu(float *device, int rank, size_t count)
{
    float *host = malloc((count + 1) * sizeof *host);

    if (host == NULL)
        abort();
    for (size_t i = 0; i < count; i++)
        host[i] = part(rank, i);
    gpu_copy(device, host, count * sizeof *host);
    free(host);
}

/* How many of the sums from element `first` on are wrong. */
static size_t wrong_sums(const float *device, int size, size_t first, size_t count)
{
    float *host = malloc((count + 1) * sizeof *host);
    size_t wrong = 0;

    if (host == NULL)
        abort();
    gpu_copy(host, device, count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        wrong += host[i] != sum(size, first + i);
    free(host);
    return wrong;
}

static void must_end(const struct gpu_rank *self, const char *what)
{
    if (stream_idle_within(self->stream, 60000, NULL))
        return;
    report(false, "rank %d: %s does not end", self->rank, what);
    exit(1);
}

/* `block`: floats of a rank. */
static void sums_are_right(struct gpu_rank *self, size_t block, bool in_place)
{
    size_t count = block * (size_t)self->size, first = block * (size_t)self->rank, wrong;
    float *in = gpu_alloc(count * sizeof *in + 4), *out = in_place ? in : gpu_alloc(count * sizeof *out + 4);

    parts_to_gpu(in, self->rank, count);
    must_be_ok(pk_allreduce(in, out, count, PK_F32, PK_SUM, self->comm, self->in_stream), "pk_allreduce");
    must_end(self, "pk_allreduce");
    wrong = wrong_sums(out, self->size, 0, count);
    report(wrong == 0, "rank %d of %d: allreduce of %zu, in place %d: %zu are wrong", self->rank, self->size, count, in_place,
           wrong);

    parts_to_gpu(in, self->rank, count);
    out = in_place ? in + first : out;
    ranks_meet(); /* nobody writes what is still read */
    must_be_ok(pk_reduce_scatter(in, out, block, PK_F32, PK_SUM, self->comm, self->in_stream), "pk_reduce_scatter");
    must_end(self, "pk_reduce_scatter");
    wrong = wrong_sums(out, self->size, first, block);
    report(wrong == 0, "rank %d of %d: reduce_scatter of %zu, in place %d: %zu are wrong", self->rank, self->size, block,
           in_place, wrong);
    ranks_meet();
    gpu_free(in);
    if (!in_place)
        gpu_free(out);
}

static int all_lengths(void)
{
    static const size_t blocks[] = { 1, 5, 129, 4096, PIECES * PIECE, 333337 };
    struct gpu_rank self;

    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        for (int in_place = 0; in_place < 2; in_place++)
            sums_are_right(&self, blocks[i], in_place == 1);
    gpu_rank_close(&self);
    return report_end();
}

/* ---- rounds ---- */

/* Where what comes in round `round` of the second half belongs. */
static const volatile float *place(const struct gpu_rank *self, const float *out, int round)
{
    int hop = 1 + round % (self->size - 1), piece = round / (self->size - 1);
    int from = (self->rank + self->size - hop) % self->size;

    return out + (size_t)(from * PIECES + piece) * PIECE;
}

/* OUT was all zeros, and no sum is zero. */
static int too_early(const struct gpu_rank *self, const float *out)
{
    int early = 0;

    for (int round = 1; round < PIECES * (self->size - 1); round++) {
        float here = place(self, out, round)[0], before;

        atomic_thread_fence(memory_order_seq_cst);
        before = place(self, out, round - 1)[PIECE - 1];
        early += here != 0 && before == 0;
    }
    return early;
}

static int rounds(void)
{
    struct gpu_rank self;
    size_t count;
    float *in, *out;
    int early = 0, looks = 0;

    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    count = PIECE * PIECES * (size_t)self.size;
    in = gpu_alloc(count * sizeof *in);
    out = gpu_alloc(count * sizeof *out);
    parts_to_gpu(in, self.rank, count);
    for (int turn = 0; turn < TURNS; turn++) {
        gpu_fill(out, 0, count * sizeof *out);
        ranks_meet();
        must_be_ok(pk_allreduce(in, out, count, PK_F32, PK_SUM, self.comm, self.in_stream), "pk_allreduce");
        for (; !stream_idle_within(self.stream, 0, NULL) && looks < 10000000; looks++)
            early += too_early(&self, out);
        ranks_meet();
    }
    report(early == 0, "rank %d: in %d of %d looks something had come before its round", self.rank, early, looks);
    gpu_rank_close(&self);
    return report_end();
}

static void drive(const char *role, int ranks)
{
    setenv("PK_ALGORITHM", "staggered", 1);
    ranks_drive(&(struct ranks_turn){ .role = role, .size = ranks, .timeout_ms = 100000 }, "%s, %d ranks", role, ranks);
}

int main(void)
{
    if (ranks_role() != NULL)
        return ranks_role()[0] == 'r' ? rounds() : all_lengths();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (int ranks = 2; ranks <= RANKS_MOST; ranks++)
        drive("lengths", ranks);
    if (gpu_is_software()) {
        setenv("FAKECUDA_PROTECT", "0", 1);
        setenv("FAKECUDA_JITTER_US", "1000", 1);
        setenv("FAKECUDA_DEVICES", "4", 1);
        drive("rounds", RANKS_MOST);
    }
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The exchanges of a pattern, and whether they brought what they should. */
#include "jobs.h"

#include <stdlib.h>

#define POISON (-1.0f)

struct jobs_transfer *jobs_transfer(struct jobs_run *run, enum jobs_kind kind, const struct jobs_group *group, size_t count)
{
    struct jobs_transfer *all = realloc(run->transfers, ((size_t)run->transfer_count + 1) * sizeof *all);
    struct jobs_transfer *made;

    if (all == NULL)
        abort();
    run->transfers = all;
    made = &all[run->transfer_count];
    *made = (struct jobs_transfer){ .kind = kind, .group = group, .count = count, .tag = run->transfer_count };
    run->transfer_count++;
    return made;
}

static size_t sum(const size_t *counts, int n)
{
    size_t all = 0;

    for (int i = 0; i < n; i++)
        all += counts[i];
    return all;
}

static size_t source_count(const struct jobs_transfer *t)
{
    size_t n = (size_t)t->group->size;

    switch (t->kind) {
    case JOBS_REDUCE_SCATTER:
        return n * t->count;
    case JOBS_ALLTOALLV:
        return sum(t->send_counts, t->group->size);
    case JOBS_RECV:
        return 0;
    default:
        return t->count;
    }
}

static size_t result_count(const struct jobs_transfer *t)
{
    size_t n = (size_t)t->group->size;

    switch (t->kind) {
    case JOBS_ALLGATHER:
        return n * t->count;
    case JOBS_ALLTOALLV:
        return sum(t->recv_counts, t->group->size);
    case JOBS_SEND:
        return 0;
    default:
        return t->count;
    }
}

/* Elements that have to leave a rank at least. */
static double leaving(const struct jobs_transfer *t)
{
    double n = t->group->size, count = (double)t->count;

    switch (t->kind) {
    case JOBS_ALLREDUCE:
        return 2 * (n - 1) / n * count;
    case JOBS_ALLGATHER:
    case JOBS_REDUCE_SCATTER:
        return (n - 1) * count;
    case JOBS_ALLTOALLV:
        return (double)(source_count(t) - t->send_counts[t->group->rank]);
    case JOBS_RECV:
        return 0;
    default:
        return count;
    }
}

void jobs_begin(struct jobs_run *run, int transfer, int channel)
{
    const struct jobs_transfer *t = &run->transfers[transfer];

    if ((run->parts & JOBS_COMMUNICATE) == 0)
        return;
    run->sent_bytes += leaving(t) * sizeof(float);
    library_begin(run, t, channel);
}

void jobs_wait(struct jobs_run *run, int channel)
{
    if ((run->parts & JOBS_COMMUNICATE) != 0)
        library_wait(run, channel);
}

/* Element i of the source of `rank`: small whole numbers, whose sums are exact. */
static float value(int rank, int tag, unsigned iteration, size_t i)
{
    return (float)(((unsigned)rank * 7 + (unsigned)tag * 11 + iteration * 5 + (unsigned)i * 3 + (unsigned)(i >> 6)) % 31);
}

/* Blocks of alltoallv are told apart by the rank that they are for. */
static int block_tag(const struct jobs_transfer *t, int member)
{
    return t->tag + 17 * (t->group->members[member] + 1);
}

static void fill_source(const struct jobs_transfer *t, float *out, int rank, unsigned iteration)
{
    if (t->kind != JOBS_ALLTOALLV) {
        for (size_t i = 0; i < source_count(t); i++)
            out[i] = value(rank, t->tag, iteration, i);
        return;
    }
    for (int p = 0; p < t->group->size; p++)
        for (size_t i = 0; i < t->send_counts[p]; i++)
            out[t->send_offsets[p] + i] = value(rank, block_tag(t, p), iteration, i);
}

static float *scratch(size_t count)
{
    float *out = malloc((count + 1) * sizeof *out);

    if (out == NULL)
        abort();
    return out;
}

/* Results first: what is forwarded is a result elsewhere. */
void jobs_fill(struct jobs_run *run, unsigned iteration)
{
    for (int k = 0; k < run->transfer_count; k++) {
        const struct jobs_transfer *t = &run->transfers[k];
        float *out = scratch(result_count(t));

        for (size_t i = 0; i < result_count(t); i++)
            out[i] = POISON;
        jobs_put(run, t->result, out, result_count(t) * sizeof *out);
        free(out);
    }
    for (int k = 0; k < run->transfer_count; k++) {
        const struct jobs_transfer *t = &run->transfers[k];
        float *out = scratch(source_count(t));

        if (!t->forwards) {
            fill_source(t, out, run->world.rank, iteration);
            jobs_put(run, t->source, out, source_count(t) * sizeof *out);
        }
        free(out);
    }
}

static float sum_of_all(const struct jobs_transfer *t, unsigned iteration, size_t i)
{
    float all = 0;

    for (int m = 0; m < t->group->size; m++)
        all += value(t->group->members[m], t->tag, iteration, i);
    return all;
}

/* What comes back (`origin` this rank) is what it had sent there, else the block that the other had for this one. */
static void expect_blocks(const struct jobs_transfer *t, int rank, float *out, unsigned iteration)
{
    for (int p = 0; p < t->group->size; p++)
        for (size_t i = 0; i < t->recv_counts[p]; i++)
            out[t->recv_offsets[p] + i] = t->forwards ? value(rank, block_tag(t, p), iteration, i)
                                                      : value(t->group->members[p], block_tag(t, t->group->rank), iteration, i);
}

static void expect(const struct jobs_transfer *t, int rank, float *out, unsigned iteration)
{
    size_t first = t->kind == JOBS_REDUCE_SCATTER ? (size_t)t->group->rank * t->count : 0;

    if (t->kind == JOBS_ALLTOALLV) {
        expect_blocks(t, rank, out, iteration);
        return;
    }
    for (size_t i = 0; i < result_count(t); i++) {
        switch (t->kind) {
        case JOBS_ALLREDUCE:
        case JOBS_REDUCE_SCATTER:
            out[i] = sum_of_all(t, iteration, first + i);
            break;
        case JOBS_ALLGATHER:
            out[i] = value(t->group->members[i / t->count], t->tag, iteration, i % t->count);
            break;
        default:
            out[i] = value(t->origin, t->tag, iteration, i);
            break;
        }
    }
}

uint64_t jobs_check(struct jobs_run *run, unsigned iteration)
{
    uint64_t wrong = 0;

    for (int k = 0; k < run->transfer_count; k++) {
        const struct jobs_transfer *t = &run->transfers[k];
        size_t count = result_count(t);
        float *expected = scratch(count), *got = scratch(count);

        expect(t, run->world.rank, expected, iteration);
        jobs_get(run, got, t->result, count * sizeof *got);
        for (size_t i = 0; i < count; i++)
            wrong += got[i] != expected[i];
        free(expected);
        free(got);
    }
    return wrong;
}

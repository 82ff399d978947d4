/* SPDX-License-Identifier: Apache-2.0 */
#include "turns.h"

#include <stdlib.h>
#include <string.h>

#define ROOT 1

static int32_t value(int rank, size_t i)
{
    return rank * 1000003 + (int32_t)(i % 100000);
}

static int32_t sum(const struct turn_loop *l, size_t i)
{
    int32_t all = 0;

    for (int r = 0; r < l->size; r++)
        all += value(r, i);
    return all;
}

/* ---- lengths and results ---- */

static size_t one(const struct turn_loop *l)
{
    return l->count;
}

static size_t every(const struct turn_loop *l)
{
    return l->count * (size_t)l->size;
}

static size_t one_at_root(const struct turn_loop *l)
{
    return l->rank == ROOT % l->size ? l->count : 0;
}

static size_t every_at_root(const struct turn_loop *l)
{
    return l->rank == ROOT % l->size ? every(l) : 0;
}

static bool is_from_before(const struct turn_loop *l, size_t i)
{
    return l->out[i] == value((l->rank + l->size - 1) % l->size, i);
}

static bool is_from_root(const struct turn_loop *l, size_t i)
{
    return l->out[i] == value(ROOT % l->size, i);
}

static bool is_sum(const struct turn_loop *l, size_t i)
{
    return l->out[i] == sum(l, i);
}

static bool is_part_of_sum(const struct turn_loop *l, size_t i)
{
    return l->out[i] == sum(l, (size_t)l->rank * l->count + i);
}

static bool is_gathered(const struct turn_loop *l, size_t i)
{
    return l->out[i] == value((int)(i / l->count), i % l->count);
}

static bool is_exchanged(const struct turn_loop *l, size_t i)
{
    return l->out[i] == value((int)(i / l->count), (size_t)l->rank * l->count + i % l->count);
}

static bool is_scattered(const struct turn_loop *l, size_t i)
{
    return l->out[i] == value(ROOT % l->size, (size_t)l->rank * l->count + i);
}

/* ---- operations ---- */

static pk_result_t p2p(struct turn_loop *l)
{
    pk_result_t result = pk_group_start(), ended;

    if (result == PK_OK)
        result = pk_send(l->in, l->count, PK_INT32, (l->rank + 1) % l->size, l->comm, l->stream);
    if (result == PK_OK)
        result = pk_recv(l->out, l->count, PK_INT32, (l->rank + l->size - 1) % l->size, l->comm, l->stream);
    ended = pk_group_end();
    return result != PK_OK ? result : ended;
}

static pk_result_t barrier(struct turn_loop *l)
{
    return pk_barrier(l->comm, l->stream);
}

static pk_result_t broadcast(struct turn_loop *l)
{
    return pk_broadcast(l->in, l->out, l->count, PK_INT32, ROOT % l->size, l->comm, l->stream);
}

static pk_result_t reduce(struct turn_loop *l)
{
    return pk_reduce(l->in, l->out, l->count, PK_INT32, PK_SUM, ROOT % l->size, l->comm, l->stream);
}

static pk_result_t allreduce(struct turn_loop *l)
{
    return pk_allreduce(l->in, l->out, l->count, PK_INT32, PK_SUM, l->comm, l->stream);
}

static pk_result_t reduce_scatter(struct turn_loop *l)
{
    return pk_reduce_scatter(l->in, l->out, l->count, PK_INT32, PK_SUM, l->comm, l->stream);
}

static pk_result_t allgather(struct turn_loop *l)
{
    return pk_allgather(l->in, l->out, l->count, PK_INT32, l->comm, l->stream);
}

static pk_result_t alltoall(struct turn_loop *l)
{
    return pk_alltoall(l->in, l->out, l->count, PK_INT32, l->comm, l->stream);
}

static pk_result_t gather(struct turn_loop *l)
{
    return pk_gather(l->in, l->out, l->count, PK_INT32, ROOT % l->size, l->comm, l->stream);
}

static pk_result_t scatter(struct turn_loop *l)
{
    return pk_scatter(l->in, l->out, l->count, PK_INT32, ROOT % l->size, l->comm, l->stream);
}

#define SIZE_MOST 64

static const size_t *counts_of(const struct turn_loop *l, size_t counts[SIZE_MOST])
{
    for (int r = 0; r < l->size; r++)
        counts[r] = l->count;
    return counts;
}

static pk_result_t allgatherv(struct turn_loop *l)
{
    size_t counts[SIZE_MOST];

    return pk_allgatherv(l->in, l->count, l->out, counts_of(l, counts), NULL, PK_INT32, l->comm, l->stream);
}

static pk_result_t gatherv(struct turn_loop *l)
{
    size_t counts[SIZE_MOST];

    return pk_gatherv(l->in, l->count, l->out, counts_of(l, counts), NULL, PK_INT32, ROOT % l->size, l->comm, l->stream);
}

static pk_result_t scatterv(struct turn_loop *l)
{
    size_t counts[SIZE_MOST];

    return pk_scatterv(l->in, counts_of(l, counts), NULL, l->out, l->count, PK_INT32, ROOT % l->size, l->comm, l->stream);
}

static pk_result_t alltoallv(struct turn_loop *l)
{
    size_t counts[SIZE_MOST];

    counts_of(l, counts);
    return pk_alltoallv(l->in, counts, NULL, l->out, counts, NULL, PK_INT32, l->comm, l->stream);
}

const struct turn turns[] = {
    { "p2p", p2p, is_from_before, one },
    { "barrier", barrier, NULL, one },
    { "broadcast", broadcast, is_from_root, one },
    { "reduce", reduce, is_sum, one_at_root },
    { "allreduce", allreduce, is_sum, one },
    { "reduce_scatter", reduce_scatter, is_part_of_sum, one },
    { "allgather", allgather, is_gathered, every },
    { "alltoall", alltoall, is_exchanged, every },
    { "gather", gather, is_gathered, every_at_root },
    { "scatter", scatter, is_scattered, one },
    { "allgatherv", allgatherv, is_gathered, every },
    { "gatherv", gatherv, is_gathered, every_at_root },
    { "scatterv", scatterv, is_scattered, one },
    { "alltoallv", alltoallv, is_exchanged, every },
};

const size_t turns_count = sizeof turns / sizeof turns[0];

const struct turn *turn_named(const char *name)
{
    for (size_t i = 0; i < turns_count; i++)
        if (strcmp(turns[i].name, name) == 0)
            return &turns[i];
    return NULL;
}

bool turn_open(struct turn_loop *l, pk_comm_t *comm, pk_stream_t stream, int rank, int size, size_t count)
{
    *l = (struct turn_loop){ .comm = comm, .stream = stream, .rank = rank, .size = size, .count = count };
    l->in = malloc(count * (size_t)size * sizeof *l->in);
    l->out = malloc(count * (size_t)size * sizeof *l->out);
    if (size > SIZE_MOST || l->in == NULL || l->out == NULL) {
        turn_close(l);
        return false;
    }
    for (size_t i = 0; i < count * (size_t)size; i++)
        l->in[i] = value(rank, i);
    return true;
}

void turn_close(struct turn_loop *l)
{
    free(l->in);
    free(l->out);
    l->in = l->out = NULL;
}

pk_result_t turn_run(const struct turn *turn, struct turn_loop *l)
{
    pk_result_t result;

    memset(l->out, 0xff, l->count * (size_t)l->size * sizeof *l->out);
    result = turn->run(l);
    if (result == PK_OK && l->stream.kind == PK_STREAM_KIND_HOST)
        result = pk_stream_synchronize(l->stream);
    return result;
}

bool turn_was_right(const struct turn *turn, const struct turn_loop *l)
{
    for (size_t i = 0; turn->is_right != NULL && i < turn->length(l); i++)
        if (!turn->is_right(l, i))
            return false;
    return true;
}

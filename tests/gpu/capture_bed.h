/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs that capture collectives share: every collective by number, its buffers, and the right results. */
#ifndef CAPTURE_BED_H
#define CAPTURE_BED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"
#include "gpu_vmm.h"

enum operation {
    BROADCAST,
    REDUCE,
    ALLREDUCE,
    REDUCE_SCATTER,
    ALLGATHER,
    ALLTOALL,
    GATHER,
    SCATTER,
    ALLGATHERV,
    BARRIER,
    OPERATIONS
};

static const char *const names[] = { "broadcast", "reduce", "allreduce", "reduce_scatter", "allgather",
                                     "alltoall",  "gather", "scatter",   "allgatherv",     "barrier" };

#define N ((size_t)20011)
#define REPLAYS 20
#define UNTOUCHED (-1.0f)

struct bed {
    struct gpu_rank self;
    float *in, *out, *host; /* N * (size + 1) elements each */
    size_t elements;
    unsigned wrong;
};

static inline void bed_open(struct bed *bed)
{
    gpu_rank_open(&bed->self, PK_SM_DEFAULT, 20000);
    bed->elements = N * (size_t)(bed->self.size + 1);
    bed->in = gpu_alloc(bed->elements * sizeof(float));
    bed->out = gpu_alloc(bed->elements * sizeof(float));
    bed->host = malloc(bed->elements * sizeof(float));
    if (bed->host == NULL)
        exit(2);
}

static inline float given(int rank, int turn, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13 + (size_t)turn * 5) % 32);
}

static inline float total(int size, int turn, size_t i)
{
    float sum = 0;

    for (int r = 0; r < size; r++)
        sum += given(r, turn, i);
    return sum;
}

static inline float wanted(const struct bed *bed, enum operation op, int root, int turn, size_t i)
{
    int rank = bed->self.rank, size = bed->self.size, block = (int)(i / N);

    switch (op) {
    case BROADCAST:
        return i < N ? given(root, turn, i) : UNTOUCHED;
    case REDUCE:
        return i < N && rank == root ? total(size, turn, i) : UNTOUCHED;
    case ALLREDUCE:
        return i < N ? total(size, turn, i) : UNTOUCHED;
    case REDUCE_SCATTER:
        return i < N ? total(size, turn, (size_t)rank * N + i) : UNTOUCHED;
    case ALLGATHER:
    case ALLGATHERV:
        return block < size ? given(block, turn, i % N) : UNTOUCHED;
    case GATHER:
        return block < size && rank == root ? given(block, turn, i % N) : UNTOUCHED;
    case ALLTOALL:
        return block < size ? given(block, turn, (size_t)rank * N + i % N) : UNTOUCHED;
    case SCATTER:
        return i < N ? given(root, turn, (size_t)rank * N + i) : UNTOUCHED;
    default:
        return UNTOUCHED;
    }
}

static inline pk_result_t call(struct gpu_rank *self, enum operation op, const float *in, float *out, int root)
{
    size_t lengths[RANKS_MAX];
    pk_comm_t *comm = self->comm;
    pk_stream_t stream = self->in_stream;

    for (int r = 0; r < self->size; r++)
        lengths[r] = N;
    switch (op) {
    case BROADCAST:
        return pk_broadcast(in, out, N, PK_F32, root, comm, stream);
    case REDUCE:
        return pk_reduce(in, out, N, PK_F32, PK_SUM, root, comm, stream);
    case ALLREDUCE:
        return pk_allreduce(in, out, N, PK_F32, PK_SUM, comm, stream);
    case REDUCE_SCATTER:
        return pk_reduce_scatter(in, out, N, PK_F32, PK_SUM, comm, stream);
    case ALLGATHER:
        return pk_allgather(in, out, N, PK_F32, comm, stream);
    case ALLTOALL:
        return pk_alltoall(in, out, N, PK_F32, comm, stream);
    case GATHER:
        return pk_gather(in, out, N, PK_F32, root, comm, stream);
    case SCATTER:
        return pk_scatter(in, out, N, PK_F32, root, comm, stream);
    case ALLGATHERV:
        return pk_allgatherv(in, N, out, lengths, NULL, PK_F32, comm, stream);
    default:
        return pk_barrier(comm, stream);
    }
}

static inline gpu_graph_t end_capture(const struct gpu_rank *self, const char *what)
{
    gpu_graph_t graph;
    int code = gpu_capture_end(self->stream, &graph);

    if (code == 0 && graph != NULL)
        return graph;
    report(false, "rank %d: %s: the capture ended: %s", self->rank, what, gpu_error(code));
    exit(1);
}

static inline void prepare(struct bed *bed, int turn)
{
    for (size_t i = 0; i < bed->elements; i++)
        bed->host[i] = given(bed->self.rank, turn, i);
    gpu_copy(bed->in, bed->host, bed->elements * sizeof(float));
    for (size_t i = 0; i < bed->elements; i++)
        bed->host[i] = UNTOUCHED;
    gpu_copy(bed->out, bed->host, bed->elements * sizeof(float));
}

static inline void must_end(const struct gpu_rank *self, const char *what)
{
    if (stream_idle_within(self->stream, 60000, NULL))
        return;
    report(false, "rank %d: %s: the replay does not end", self->rank, what);
    exit(1);
}

static inline void verify(struct bed *bed, enum operation op, int root, int turn)
{
    size_t i = 0;

    gpu_copy(bed->host, bed->out, bed->elements * sizeof(float));
    while (i < bed->elements && bed->host[i] == wanted(bed, op, root, turn, i))
        i++;
    if (i < bed->elements && bed->wrong++ < 5)
        report(false, "rank %d: replay %d of %s: wrong at %zu: %g", bed->self.rank, turn, names[op], i, (double)bed->host[i]);
}

/* Else a collective is one kernel, short as they are here. */
static inline bool by_plan(void)
{
    return getenv("PK_ALGORITHM") != NULL;
}

static inline pk_stats_t stats_of(const struct gpu_rank *self)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    must_be_ok(pk_comm_stats(self->comm, &stats), "pk_comm_stats");
    return stats;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective by its number, for checks that are the same for all. */
#include "conform.h"

#include <string.h>

const struct coll_facts coll_facts[COLLS] = {
    { PK_OP_ALLGATHER, "allgather", .out_many = true },
    { PK_OP_ALLREDUCE, "allreduce", .reduces = true },
    { PK_OP_REDUCE_SCATTER, "reduce_scatter", .in_many = true, .reduces = true },
    { PK_OP_BROADCAST, "broadcast", .rooted = true, .in_at_root = true },
    { PK_OP_REDUCE, "reduce", .rooted = true, .out_at_root = true, .reduces = true },
    { PK_OP_ALLTOALL, "alltoall", .in_many = true, .out_many = true },
    { PK_OP_GATHER, "gather", .out_many = true, .rooted = true, .out_at_root = true },
    { PK_OP_SCATTER, "scatter", .in_many = true, .rooted = true, .in_at_root = true },
    { PK_OP_BARRIER, "barrier", .no_data = true },
    { PK_OP_ALLGATHERV, "allgatherv", .out_many = true, .v = true },
    { PK_OP_ALLTOALLV, "alltoallv", .in_many = true, .out_many = true, .v = true },
    { PK_OP_GATHERV, "gatherv", .out_many = true, .rooted = true, .out_at_root = true, .v = true },
    { PK_OP_SCATTERV, "scatterv", .in_many = true, .rooted = true, .in_at_root = true, .v = true },
};

bool coll_has_in(const struct coll_facts *f, int rank, int root)
{
    return !f->no_data && (!f->in_at_root || rank == root);
}

bool coll_has_out(const struct coll_facts *f, int rank, int root)
{
    return !f->no_data && (!f->out_at_root || rank == root);
}

pk_result_t coll_call(const struct coll_args *a)
{
    switch (a->facts->op) {
    case PK_OP_BARRIER:
        return pk_barrier(a->comm, a->stream);
    case PK_OP_ALLGATHER:
        return pk_allgather(a->in, a->out, a->count, a->dtype, a->comm, a->stream);
    case PK_OP_ALLREDUCE:
        return pk_allreduce(a->in, a->out, a->count, a->dtype, a->reduction, a->comm, a->stream);
    case PK_OP_REDUCE_SCATTER:
        return pk_reduce_scatter(a->in, a->out, a->count, a->dtype, a->reduction, a->comm, a->stream);
    case PK_OP_BROADCAST:
        return pk_broadcast(a->in, a->out, a->count, a->dtype, a->root, a->comm, a->stream);
    case PK_OP_REDUCE:
        return pk_reduce(a->in, a->out, a->count, a->dtype, a->reduction, a->root, a->comm, a->stream);
    case PK_OP_ALLTOALL:
        return pk_alltoall(a->in, a->out, a->count, a->dtype, a->comm, a->stream);
    case PK_OP_GATHER:
        return pk_gather(a->in, a->out, a->count, a->dtype, a->root, a->comm, a->stream);
    case PK_OP_SCATTER:
        return pk_scatter(a->in, a->out, a->count, a->dtype, a->root, a->comm, a->stream);
    case PK_OP_ALLGATHERV:
        return pk_allgatherv(a->in, a->count, a->out, a->out_counts, a->out_offsets, a->dtype, a->comm, a->stream);
    case PK_OP_ALLTOALLV:
        return pk_alltoallv(a->in, a->in_counts, a->in_offsets, a->out, a->out_counts, a->out_offsets, a->dtype, a->comm,
                            a->stream);
    case PK_OP_GATHERV:
        return pk_gatherv(a->in, a->count, a->out, a->out_counts, a->out_offsets, a->dtype, a->root, a->comm, a->stream);
    case PK_OP_SCATTERV:
        return pk_scatterv(a->in, a->in_counts, a->in_offsets, a->out, a->count, a->dtype, a->root, a->comm, a->stream);
    default:
        return PK_ERR_INTERNAL;
    }
}

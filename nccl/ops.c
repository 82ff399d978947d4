/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: checked, described, called at once or queued in the group. */
#include "dtype.h"
#include "error.h"
#include "group.h"
#include "names.h"
#include "reduction.h"

static pk_result_t call_collective(const struct pkn_operation *o, pk_comm_t *comm, pk_stream_t stream)
{
    const struct pkn_table *pk = pkn_pk();

    switch (o->call) {
    case PKN_CALL_BROADCAST:
        return pk->pk_broadcast(o->in, o->out, o->count, o->dtype, o->other, comm, stream);
    case PKN_CALL_REDUCE:
        return pk->pk_reduce(o->in, o->out, o->count, o->dtype, o->op, o->other, comm, stream);
    case PKN_CALL_ALLREDUCE:
        return pk->pk_allreduce(o->in, o->out, o->count, o->dtype, o->op, comm, stream);
    case PKN_CALL_REDUCE_SCATTER:
        return pk->pk_reduce_scatter(o->in, o->out, o->count, o->dtype, o->op, comm, stream);
    case PKN_CALL_ALLGATHER:
        return pk->pk_allgather(o->in, o->out, o->count, o->dtype, comm, stream);
    case PKN_CALL_ALLTOALL:
        return pk->pk_alltoall(o->in, o->out, o->count, o->dtype, comm, stream);
    case PKN_CALL_GATHER:
        return pk->pk_gather(o->in, o->out, o->count, o->dtype, o->other, comm, stream);
    case PKN_CALL_SCATTER:
        return pk->pk_scatter(o->in, o->out, o->count, o->dtype, o->other, comm, stream);
    case PKN_CALL_SEND:
    case PKN_CALL_RECV:
        break;
    }
    return PK_ERR_INTERNAL;
}

pk_result_t pkn_operation_call(const struct pkn_job *job)
{
    const struct pkn_operation *o = &job->operation;
    const pk_stream_t stream = PK_CUDA_STREAM(o->stream);

    if (o->call == PKN_CALL_SEND)
        return pkn_pk()->pk_send(o->in, o->count, o->dtype, o->other, job->comm->pk, stream);
    if (o->call == PKN_CALL_RECV)
        return pkn_pk()->pk_recv(o->out, o->count, o->dtype, o->other, job->comm->pk, stream);
    return call_collective(o, job->comm->pk, stream);
}

/* What the program passed, in NCCL's words. */
struct arguments {
    const void *in;
    void *out;
    size_t count;
    pkn_dtype_t dtype;
    pkn_op_t op;
    int other;
    pkn_stream_t stream;
};

static bool reduces(enum pkn_call call)
{
    return call == PKN_CALL_REDUCE || call == PKN_CALL_ALLREDUCE || call == PKN_CALL_REDUCE_SCATTER;
}

static bool has_other(enum pkn_call call)
{
    return call != PKN_CALL_ALLREDUCE && call != PKN_CALL_REDUCE_SCATTER && call != PKN_CALL_ALLGATHER &&
           call != PKN_CALL_ALLTOALL;
}

static pkn_result_t describe(struct pkn_comm *comm, const struct arguments *a, struct pkn_operation *o)
{
    pkn_result_t result = pkn_dtype(a->dtype, &o->dtype);

    if (result == PKN_SUCCESS && has_other(o->call) && (a->other < 0 || a->other >= comm->size))
        result =
            pkn_fail(PKN_INVALID_ARGUMENT, "%s %d of %d ranks", o->call <= PKN_CALL_RECV ? "peer" : "root", a->other, comm->size);
    if (result == PKN_SUCCESS && reduces(o->call))
        result = pkn_reduction_keep(comm, a->op, a->dtype, &o->op, &o->kept);
    return result;
}

/* A collective of nothing is none, on no rank. */
static bool moves_nothing(enum pkn_call call, size_t count)
{
    return count == 0 && call > PKN_CALL_RECV;
}

static pkn_result_t submit(struct pkn_comm *comm, enum pkn_call call, const struct arguments *a)
{
    struct pkn_job job = {
        .phase = PKN_PHASE_OPERATION,
        .comm = comm,
        .operation = { .call = call, .in = a->in, .out = a->out, .count = a->count, .other = a->other, .stream = a->stream }
    };
    pkn_result_t result = pkn_comm_use(comm);

    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    result = describe(comm, a, &job.operation);
    if (result == PKN_SUCCESS && !moves_nothing(call, a->count)) {
        if (pkn_group_is_open())
            return pkn_group_submit(&job);
        result = pkn_from_pk(pkn_operation_call(&job));
    }
    pkn_reduction_release(comm, job.operation.kept);
    pkn_comm_release(comm);
    return pkn_group_refuse(result);
}

pkn_result_t pncclReduce(const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_op_t op, int root, pkn_comm_t comm,
                         pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_REDUCE, &(struct arguments){ in, out, count, dtype, op, root, stream });
}
PKN_TWIN(Reduce);

pkn_result_t pncclBcast(void *buffer, size_t count, pkn_dtype_t dtype, int root, pkn_comm_t comm, pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_BROADCAST, &(struct arguments){ buffer, buffer, count, dtype, PKN_SUM, root, stream });
}
PKN_TWIN(Bcast);

pkn_result_t pncclBroadcast(const void *in, void *out, size_t count, pkn_dtype_t dtype, int root, pkn_comm_t comm,
                            pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_BROADCAST, &(struct arguments){ in, out, count, dtype, PKN_SUM, root, stream });
}
PKN_TWIN(Broadcast);

pkn_result_t pncclAllReduce(const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_op_t op, pkn_comm_t comm,
                            pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_ALLREDUCE, &(struct arguments){ in, out, count, dtype, op, 0, stream });
}
PKN_TWIN(AllReduce);

pkn_result_t pncclReduceScatter(const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_op_t op, pkn_comm_t comm,
                                pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_REDUCE_SCATTER, &(struct arguments){ in, out, count, dtype, op, 0, stream });
}
PKN_TWIN(ReduceScatter);

pkn_result_t pncclAllGather(const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_comm_t comm, pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_ALLGATHER, &(struct arguments){ in, out, count, dtype, PKN_SUM, 0, stream });
}
PKN_TWIN(AllGather);

pkn_result_t pncclAlltoAll(const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_comm_t comm, pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_ALLTOALL, &(struct arguments){ in, out, count, dtype, PKN_SUM, 0, stream });
}
PKN_TWIN(AlltoAll);

pkn_result_t pncclGather(const void *in, void *out, size_t count, pkn_dtype_t dtype, int root, pkn_comm_t comm,
                         pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_GATHER, &(struct arguments){ in, out, count, dtype, PKN_SUM, root, stream });
}
PKN_TWIN(Gather);

pkn_result_t pncclScatter(const void *in, void *out, size_t count, pkn_dtype_t dtype, int root, pkn_comm_t comm,
                          pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_SCATTER, &(struct arguments){ in, out, count, dtype, PKN_SUM, root, stream });
}
PKN_TWIN(Scatter);

pkn_result_t pncclSend(const void *in, size_t count, pkn_dtype_t dtype, int peer, pkn_comm_t comm, pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_SEND, &(struct arguments){ in, NULL, count, dtype, PKN_SUM, peer, stream });
}
PKN_TWIN(Send);

pkn_result_t pncclRecv(void *out, size_t count, pkn_dtype_t dtype, int peer, pkn_comm_t comm, pkn_stream_t stream)
{
    return submit(comm, PKN_CALL_RECV, &(struct arguments){ NULL, out, count, dtype, PKN_SUM, peer, stream });
}
PKN_TWIN(Recv);

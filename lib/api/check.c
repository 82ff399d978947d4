/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"
#include "util/dtype.h"

pk_result_t pki_check_own(const pk_comm_t *comm, const struct pki_where *call)
{
    if (comm == NULL)
        return pki_fail(PK_ERR_ARG, call, "comm is null");
    if (!pki_fork_is_ours(comm->stamp))
        return pki_fail(PK_ERR_UNSUPPORTED, call, "the communicator belongs to the parent process: it was made before a fork");
    return PK_OK;
}

pk_result_t pki_check_comm(pk_comm_t *comm, struct pki_where *call)
{
    pk_result_t state = pki_check_own(comm, call);

    if (state != PK_OK)
        return state;
    call->rank = pki_comm_placed(comm) ? comm->rank : -1;
    state = pki_comm_state(comm);
    if (state == PK_IN_PROGRESS)
        return pki_fail(PK_ERR_ARG, call, "the communicator is still being made (pk_comm_async_error tells when it is ready)");
    return state;
}

pk_result_t pki_check_open(pk_comm_t *comm, struct pki_where *call)
{
    pk_result_t result = pki_check_comm(comm, call);

    if (result == PK_OK && atomic_load(&comm->state) == PKI_COMM_FINALIZED)
        result = pki_fail(PK_ERR_ARG, call, "the communicator was finalized (pk_comm_finalize)");
    return result;
}

pk_result_t pki_check_peer(const pk_comm_t *comm, int peer, struct pki_where *call)
{
    if (peer < 0 || peer >= comm->size)
        return pki_fail(PK_ERR_ARG, call, "peer %d of %d ranks", peer, comm->size);
    call->peer = peer;
    if (pki_is_hole(comm, peer))
        return pki_fail(PK_ERR_PEER, call, "nobody is rank %d of %d: that rank is dead (PK_SHRINK_KEEP_RANKS)", peer, comm->size);
    call->peer = -1;
    return PK_OK;
}

pk_result_t pki_check_full(const pk_comm_t *comm, struct pki_where *call)
{
    if (!pki_has_holes(comm))
        return PK_OK;
    call->peer = pki_first_hole(comm);
    return pki_fail(PK_ERR_PEER, call,
                    "nobody is rank %d of %d: a collective wants all (pk_comm_grow fills holes, pk_comm_shrink closes them)",
                    call->peer, comm->size);
}

pk_result_t pki_check_dtype(pk_dtype_t dtype, const struct pki_where *call)
{
    return pki_dtype_bytes(dtype) > 0 ? PK_OK : pki_fail(PK_ERR_ARG, call, "dtype is %d", (int)dtype);
}

pk_result_t pki_check_stream(pk_stream_t stream, const struct pki_where *call)
{
    if (stream.kind > PK_STREAM_KIND_CUDA)
        return pki_fail(PK_ERR_ARG, call, "stream.kind is %lu", (unsigned long)stream.kind);
    if (stream.kind == PK_STREAM_KIND_HOST && stream.handle == NULL)
        return pki_fail(PK_ERR_ARG, call, "the host stream is null");
    if (stream.kind == PK_STREAM_KIND_HOST && !pki_host_stream_is_ours(stream.handle))
        return pki_fail(PK_ERR_UNSUPPORTED, call, "the host stream belongs to the parent process: it was made before a fork");
    return PK_OK;
}

pk_result_t pki_check_common(pk_comm_t *comm, pk_dtype_t dtype, pk_stream_t stream, struct pki_where *call)
{
    pk_result_t result = pki_check_open(comm, call);

    if (result == PK_OK)
        result = pki_check_dtype(dtype, call);
    if (result == PK_OK)
        result = pki_check_stream(stream, call);
    return result;
}

pk_result_t pki_check_count(size_t count, size_t multiple, pk_dtype_t dtype, const struct pki_where *call)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, pki_dtype_bytes(dtype) * multiple, &bytes) || bytes > PTRDIFF_MAX)
        return pki_fail(PK_ERR_ARG, call, "count %zu is more than memory can hold", count);
    return PK_OK;
}

pk_result_t pki_check_buffer(const void *buf, size_t count, pk_dtype_t dtype, const char *name, const struct pki_where *call)
{
    if (count > 0 && buf == NULL)
        return pki_fail(PK_ERR_ARG, call, "%s is null with a count of %zu", name, count);
    return pki_check_count(count, 1, dtype, call);
}

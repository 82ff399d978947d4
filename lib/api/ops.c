/* SPDX-License-Identifier: Apache-2.0 */
/* Sends, receives and collectives: checked and described. */
#include "api/api.h"
#include "util/dtype.h"

static pk_result_t check_common(pk_comm_t *comm, pk_dtype_t dtype, pk_stream_t stream, struct pki_where *call)
{
    pk_result_t result = pki_check_comm(comm, call);

    if (result == PK_OK)
        result = pki_check_dtype(dtype, call);
    if (result == PK_OK)
        result = pki_check_stream(stream, call);
    return result;
}

static pk_result_t p2p(bool is_send, const void *in, void *out, size_t count, pk_dtype_t dtype, int peer, pk_comm_t *comm,
                       pk_stream_t stream)
{
    struct pki_where call = PKI_CALL(is_send ? "send" : "recv");
    struct pki_request request = { .what = is_send ? PKI_DO_SEND : PKI_DO_RECV,
                                   .peer = peer,
                                   .in = in,
                                   .out = out,
                                   .count = count,
                                   .dtype = dtype,
                                   .stream = stream };
    pk_result_t result = check_common(comm, dtype, stream, &call);

    if (result == PK_OK)
        result = pki_check_buffer(is_send ? in : out, count, 1, dtype, "buf", &call);
    if (result == PK_OK && (peer < 0 || peer >= comm->size))
        result = pki_fail(PK_ERR_ARG, &call, "peer %d of %d ranks", peer, comm->size);
    if (result == PK_OK && peer == comm->rank && stream.kind == PK_STREAM_KIND_BLOCKING && !pki_in_group())
        result = pki_fail(PK_ERR_ARG, &call, "to wait for oneself outside a group never ends");
    if (result != PK_OK)
        return pki_submit_refused(result);
    if (is_send)
        request.in_count = count;
    else
        request.out_count = count;
    return pki_submit(comm, &request);
}

pk_result_t pk_send(const void *buf, size_t count, pk_dtype_t dtype, int peer, pk_comm_t *comm, pk_stream_t stream)
{
    return p2p(true, buf, NULL, count, dtype, peer, comm, stream);
}

pk_result_t pk_recv(void *buf, size_t count, pk_dtype_t dtype, int peer, pk_comm_t *comm, pk_stream_t stream)
{
    return p2p(false, NULL, buf, count, dtype, peer, comm, stream);
}

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    return x < y + b_bytes && y < x + a_bytes;
}

/* Buffers of a collective: in place as the operation says, or apart. */
static pk_result_t check_overlap(struct pki_request *r, const char *in_place_at, const struct pki_where *call)
{
    size_t size = pki_dtype_bytes(r->dtype);

    r->in_place = r->in == in_place_at;
    if (!r->in_place && overlap(r->in, r->in_count * size, r->out, r->out_count * size))
        return pki_fail(PK_ERR_ARG, call, "sendbuf and recvbuf overlap other than in place");
    return PK_OK;
}

static pk_result_t choose_and_submit(pk_comm_t *comm, struct pki_request *r, enum pki_coll coll)
{
    r->algorithm = pki_comm_choose(comm, coll);
    if (r->algorithm == NULL)
        return pki_submit_refused(PK_ERR_UNSUPPORTED);
    return pki_submit(comm, r);
}

pk_result_t pk_allgather(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_comm_t *comm, pk_stream_t stream)
{
    struct pki_where call = PKI_CALL("allgather");
    struct pki_request r = {
        .what = PKI_DO_COLL, .in = sendbuf, .out = recvbuf, .in_count = count, .count = count, .dtype = dtype, .stream = stream
    };
    pk_result_t result = check_common(comm, dtype, stream, &call);

    if (result == PK_OK)
        result = pki_check_buffer(sendbuf, count, (size_t)comm->size, dtype, "sendbuf", &call);
    if (result == PK_OK)
        result = pki_check_buffer(recvbuf, count, (size_t)comm->size, dtype, "recvbuf", &call);
    if (result == PK_OK) {
        r.out_count = count * (size_t)comm->size;
        result = check_overlap(&r, (char *)recvbuf + (size_t)comm->rank * count * pki_dtype_bytes(dtype), &call);
    }
    return result != PK_OK ? pki_submit_refused(result) : choose_and_submit(comm, &r, PKI_COLL_ALLGATHER);
}

pk_result_t pk_allreduce(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_op_t op, pk_comm_t *comm,
                         pk_stream_t stream)
{
    struct pki_where call = PKI_CALL("allreduce");
    struct pki_request r = { .what = PKI_DO_COLL,
                             .in = sendbuf,
                             .out = recvbuf,
                             .in_count = count,
                             .out_count = count,
                             .count = count,
                             .dtype = dtype,
                             .op = op,
                             .stream = stream };
    pk_result_t result = check_common(comm, dtype, stream, &call);

    if (result == PK_OK)
        result = pki_check_buffer(sendbuf, count, 1, dtype, "sendbuf", &call);
    if (result == PK_OK)
        result = pki_check_buffer(recvbuf, count, 1, dtype, "recvbuf", &call);
    if (result == PK_OK)
        result = pki_check_reduction(dtype, op, &call);
    if (result == PK_OK)
        result = check_overlap(&r, recvbuf, &call);
    return result != PK_OK ? pki_submit_refused(result) : choose_and_submit(comm, &r, PKI_COLL_ALLREDUCE);
}

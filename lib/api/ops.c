/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives: checked and described. */
#include "api/api.h"
#include "util/dtype.h"
#include "util/noinline.h"

/* Nothing to refuse, nothing to record: the engine may be asked whether the message goes at once, without a description. Else
 * what is special about the call is found out below, with a text. */
static inline bool is_plain(const void *buf, size_t count, pk_dtype_t dtype, int peer, const pk_comm_t *comm, pk_stream_t stream)
{
    size_t width = pki_dtype_bytes(dtype);

    return comm != NULL && pki_check_ready(comm) && stream.kind == PK_STREAM_KIND_BLOCKING && peer >= 0 && peer < comm->size &&
           peer != comm->rank && buf != NULL && width > 0 && count <= UINT32_MAX && !pki_in_group();
}

static pk_result_t submit(bool is_send, const void *in, void *out, size_t count, pk_dtype_t dtype, int peer, pk_comm_t *comm,
                          pk_stream_t stream)
{
    struct pki_where call = PKI_CALL(is_send ? "send" : "recv");
    const uint64_t timeout_ms = pki_take_timeout(&stream);
    struct pki_request request = { .what = is_send ? PKI_DO_SEND : PKI_DO_RECV,
                                   .peer = peer,
                                   .in = in,
                                   .out = out,
                                   .count = count,
                                   .dtype = dtype,
                                   .stream = stream,
                                   .timeout_ms = timeout_ms };
    pk_result_t result = pki_check_common(comm, dtype, stream, &call);

    if (result == PK_OK)
        result = pki_check_buffer(is_send ? in : out, count, dtype, "buf", &call);
    if (result == PK_OK)
        result = pki_check_peer(comm, peer, &call);
    if (result == PK_OK && peer == comm->rank && stream.kind == PK_STREAM_KIND_BLOCKING && !pki_in_group())
        result = pki_fail(PK_ERR_ARG, &call, "a blocking operation with this rank itself needs a group");
    if (result != PK_OK)
        return pki_submit_refused(result);
    if (is_send)
        request.in_count = count;
    else
        request.out_count = count;
    return pki_submit(comm, &request);
}

static PKI_NOINLINE pk_result_t p2p(bool is_send, const void *in, void *out, size_t count, pk_dtype_t dtype, int peer,
                                    pk_comm_t *comm, pk_stream_t stream)
{
    const int cancel = pki_cancel_hold();

    return pki_leave(cancel, submit(is_send, in, out, count, dtype, peer, comm, stream));
}

pk_result_t pk_send(const void *buf, size_t count, pk_dtype_t dtype, int peer, pk_comm_t *comm, pk_stream_t stream)
{
    if (is_plain(buf, count, dtype, peer, comm, stream) &&
        pki_engine_send_inline(comm->engine, peer, buf, count * pki_dtype_bytes(dtype)))
        return PK_OK;
    return p2p(true, buf, NULL, count, dtype, peer, comm, stream);
}

pk_result_t pk_recv(void *buf, size_t count, pk_dtype_t dtype, int peer, pk_comm_t *comm, pk_stream_t stream)
{
    if (is_plain(buf, count, dtype, peer, comm, stream) &&
        pki_engine_recv_inline(comm->engine, peer, buf, count * pki_dtype_bytes(dtype)))
        return PK_OK;
    return p2p(false, NULL, buf, count, dtype, peer, comm, stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives: checked and described. */
#include "api/api.h"

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
    pk_result_t result = pki_check_common(comm, dtype, stream, &call);

    if (result == PK_OK)
        result = pki_check_buffer(is_send ? in : out, count, dtype, "buf", &call);
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

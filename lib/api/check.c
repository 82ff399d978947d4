/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"
#include "util/dtype.h"

pk_result_t pki_check_comm(pk_comm_t *comm, const char *call)
{
    pk_result_t state;

    if (comm == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "%s: comm is null", call);
    state = pki_comm_state(comm);
    if (state == PK_IN_PROGRESS)
        return pki_fail(PK_ERR_ARG, NULL, "%s: the communicator is still being made (pk_comm_async_error tells when it is ready)", call);
    return state;
}

pk_result_t pki_check_dtype(pk_dtype_t dtype, const char *call)
{
    return pki_dtype_bytes(dtype) > 0 ? PK_OK : pki_fail(PK_ERR_ARG, NULL, "%s: dtype is %d", call, (int)dtype);
}

pk_result_t pki_check_stream(pk_stream_t stream, const char *call)
{
    if (stream.kind > PK_STREAM_KIND_CUDA)
        return pki_fail(PK_ERR_ARG, NULL, "%s: stream.kind is %lu", call, (unsigned long)stream.kind);
    if (stream.kind == PK_STREAM_KIND_HOST && stream.handle == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "%s: the host stream is null", call);
    return PK_OK;
}

pk_result_t pki_check_buffer(const void *buf, size_t count, size_t multiple, pk_dtype_t dtype, const char *name, const char *call)
{
    size_t size = pki_dtype_bytes(dtype);

    if (count > 0 && buf == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "%s: %s is null with a count of %zu", call, name, count);
    if (count > PTRDIFF_MAX / size / multiple)
        return pki_fail(PK_ERR_ARG, NULL, "%s: count %zu is more than memory can hold", call, count);
    return PK_OK;
}

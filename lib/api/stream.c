/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

static pk_result_t check(pk_stream_t stream, const char *call)
{
    if (stream.kind != PK_STREAM_KIND_HOST || stream.handle == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "%s: not a host stream", call);
    return pki_check_stream(stream, &(struct pki_where)PKI_CALL(call));
}

pk_result_t pk_stream_create(pk_stream_t *stream)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = stream == NULL ? pki_fail(PK_ERR_ARG, NULL, "pk_stream_create: stream is null") : PK_OK;
    struct pki_host_stream *s = NULL;

    if (result == PK_OK)
        result = pki_host_stream_open(&s);
    if (result == PK_OK)
        *stream = (pk_stream_t){ PK_STREAM_KIND_HOST, s };
    return pki_leave(cancel, result);
}

pk_result_t pk_stream_synchronize(pk_stream_t stream)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = check(stream, "pk_stream_synchronize");

    return pki_leave(cancel, result != PK_OK ? result : pki_host_stream_wait(stream.handle));
}

pk_result_t pk_stream_query(pk_stream_t stream)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = check(stream, "pk_stream_query");

    if (result == PK_OK)
        result = pki_host_stream_idle(stream.handle) ? pki_host_stream_error(stream.handle) : PK_IN_PROGRESS;
    return pki_leave(cancel, result);
}

pk_result_t pk_stream_destroy(pk_stream_t stream)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = check(stream, "pk_stream_destroy");

    if (result == PK_OK) {
        pki_group_forgo(NULL, stream.handle);
        result = pki_host_stream_wait(stream.handle);
        pki_host_stream_close(stream.handle);
    }
    return pki_leave(cancel, result);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

static pk_result_t check(pk_comm_t *comm, const void *ptr, size_t bytes, struct pki_where *call)
{
    pk_result_t result = pki_check_comm(comm, call);

    if (result == PK_OK && (ptr == NULL || bytes == 0))
        result = pki_fail(PK_ERR_ARG, call, "%s", ptr == NULL ? "ptr is null" : "no bytes");
    return result;
}

pk_result_t pk_register(pk_comm_t *comm, void *ptr, size_t bytes)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("register");
    pk_result_t result = check(comm, ptr, bytes, &call);

    if (result == PK_OK && bytes > UINTPTR_MAX - (uintptr_t)ptr)
        result = pki_fail(PK_ERR_ARG, &call, "%zu bytes at %p go beyond the end of the address space", bytes, ptr);
    return pki_leave(cancel, result != PK_OK ? result : pki_engine_register(comm->engine, ptr, bytes));
}

pk_result_t pk_deregister(pk_comm_t *comm, void *ptr, size_t bytes)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("deregister");
    pk_result_t result = check(comm, ptr, bytes, &call);

    return pki_leave(cancel, result != PK_OK ? result : pki_engine_deregister(comm->engine, ptr, bytes));
}

pk_result_t pk_mem_alloc(pk_comm_t *comm, size_t bytes, void **ptr)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("mem_alloc");
    pk_result_t result = check(comm, ptr, bytes, &call);

    return pki_leave(cancel, result != PK_OK ? result : pki_engine_mem_alloc(comm->engine, bytes, ptr));
}

pk_result_t pk_mem_free(pk_comm_t *comm, void *ptr)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("mem_free");
    pk_result_t result = PK_OK;

    if (comm == NULL || ptr != NULL)
        result = check(comm, ptr, 1, &call);
    if (result == PK_OK && ptr != NULL)
        result = pki_engine_mem_free(comm->engine, ptr);
    return pki_leave(cancel, result);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

static pk_result_t check(pk_comm_t *comm, const void *ptr, size_t bytes, const char *name)
{
    struct pki_where call = PKI_CALL(name);
    pk_result_t result = pki_check_comm(comm, &call);

    if (result == PK_OK && (ptr == NULL || bytes == 0))
        result = pki_fail(PK_ERR_ARG, &call, "%s", ptr == NULL ? "ptr is null" : "no bytes");
    return result;
}

pk_result_t pk_register(pk_comm_t *comm, void *ptr, size_t bytes)
{
    pk_result_t result = check(comm, ptr, bytes, "register");

    return result != PK_OK ? result : pki_engine_register(comm->engine, ptr, bytes);
}

pk_result_t pk_deregister(pk_comm_t *comm, void *ptr, size_t bytes)
{
    pk_result_t result = check(comm, ptr, bytes, "deregister");

    return result != PK_OK ? result : pki_engine_deregister(comm->engine, ptr, bytes);
}

pk_result_t pk_mem_alloc(pk_comm_t *comm, size_t bytes, void **ptr)
{
    pk_result_t result = check(comm, ptr, bytes, "mem_alloc");

    return result != PK_OK ? result : pki_engine_mem_alloc(comm->engine, bytes, ptr);
}

pk_result_t pk_mem_free(pk_comm_t *comm, void *ptr)
{
    pk_result_t result;

    if (comm != NULL && ptr == NULL)
        return PK_OK;
    result = check(comm, ptr, 1, "mem_free");
    return result != PK_OK ? result : pki_engine_mem_free(comm->engine, ptr);
}

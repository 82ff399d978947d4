/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

static pk_result_t check(pk_comm_t *comm, const void *ptr, size_t bytes, const char *call)
{
    pk_result_t result = pki_check_comm(comm, call);

    if (result == PK_OK && (ptr == NULL || bytes == 0))
        result = pki_fail(PK_ERR_ARG, NULL, "%s: %s", call, ptr == NULL ? "ptr is null" : "no bytes");
    return result;
}

pk_result_t pk_register(pk_comm_t *comm, void *ptr, size_t bytes)
{
    pk_result_t result = check(comm, ptr, bytes, "pk_register");

    return result != PK_OK ? result : pki_engine_register(comm->engine, ptr, bytes);
}

pk_result_t pk_deregister(pk_comm_t *comm, void *ptr, size_t bytes)
{
    pk_result_t result = check(comm, ptr, bytes, "pk_deregister");

    return result != PK_OK ? result : pki_engine_deregister(comm->engine, ptr, bytes);
}

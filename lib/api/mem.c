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

static pk_result_t alloc_device(pk_comm_t *comm, size_t bytes, void **ptr)
{
    struct pki_where call = PKI_CALL("mem_alloc_device");
    struct pki_device_info info = { .ordinal = -1 };
    pk_result_t result = comm != NULL ? pki_check_comm(comm, &call) : PK_OK;

    if (result == PK_OK && (ptr == NULL || bytes == 0))
        result = pki_fail(PK_ERR_ARG, &call, "%s", ptr == NULL ? "ptr is null" : "no bytes");
    if (result == PK_OK && comm != NULL && comm->device == NULL)
        result = pki_fail(PK_ERR_UNSUPPORTED, &call, "the communicator has no gpu (config.device)");
    if (result != PK_OK)
        return result;
    if (comm != NULL)
        comm->device->ops->info(comm->device, &info);
    return pki_device_cuda_mem_alloc(info.ordinal, bytes, ptr);
}

pk_result_t pk_mem_alloc_device(pk_comm_t *comm, size_t bytes, void **ptr)
{
    const int cancel = pki_cancel_hold();

    return pki_leave(cancel, alloc_device(comm, bytes, ptr));
}

/* Memory of a GPU is the process's; the communicator need not be sound, nor there. */
static pk_result_t mem_free(pk_comm_t *comm, void *ptr)
{
    struct pki_where call = PKI_CALL("mem_free");
    pk_result_t result = ptr != NULL ? pki_device_cuda_mem_free(ptr) : PK_OK;

    if (result != PK_IN_PROGRESS && (ptr != NULL || comm != NULL))
        return result;
    if (comm == NULL && ptr != NULL)
        return pki_fail(PK_ERR_ARG, &call, "comm is null, and %p is not memory of pk_mem_alloc_device", ptr);
    result = check(comm, ptr, 1, &call);
    return result != PK_OK ? result : pki_engine_mem_free(comm->engine, ptr);
}

pk_result_t pk_mem_free(pk_comm_t *comm, void *ptr)
{
    const int cancel = pki_cancel_hold();

    return pki_leave(cancel, mem_free(comm, ptr));
}

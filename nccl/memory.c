/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory, registrations and windows. A window of no special kind is a registration, and its handle may come back as
 * either. */
#include "memory.h"

#include <stdlib.h>

#include "comm.h"
#include "cuda.h"
#include "error.h"
#include "group.h"
#include "names.h"

struct pkn_registration {
    void *buffer;
    size_t bytes;
    struct pkn_registration *next;
};

/* ---- memory ---- */

pkn_result_t pncclMemAlloc(void **ptr, size_t bytes)
{
    const struct pkn_table *pk = pkn_pk();

    if (ptr == NULL)
        return pkn_fail(PKN_INVALID_ARGUMENT, "ptr is NULL");
    if (pk == NULL)
        return PKN_SYSTEM_ERROR;
    *ptr = NULL;
    return bytes > 0 ? pkn_from_pk(pk->pk_mem_alloc_device(NULL, bytes, ptr)) : PKN_SUCCESS;
}
PKN_TWIN(MemAlloc);

pkn_result_t pncclMemFree(void *ptr)
{
    const struct pkn_table *pk = pkn_pk();

    if (pk == NULL)
        return PKN_SYSTEM_ERROR;
    return ptr != NULL ? pkn_from_pk(pk->pk_mem_free(NULL, ptr)) : PKN_SUCCESS;
}
PKN_TWIN(MemFree);

/* ---- registrations ---- */

/* Operations use the memory as any other. */
static bool is_no_error(pk_result_t result)
{
    return result == PK_ERR_UNSUPPORTED || result == PK_ERR_MEMORY || result == PK_ERR_SYSTEM;
}

/* Where it cannot be, there is no handle and no error, as NCCL has it. */
static pkn_result_t add(struct pkn_comm *comm, void *buffer, size_t bytes, struct pkn_registration **made)
{
    struct pkn_registration *r;
    pk_result_t result = pkn_pk()->pk_register(comm->pk, buffer, bytes);

    *made = NULL;
    if (is_no_error(result))
        return PKN_SUCCESS;
    if (result != PK_OK)
        return pkn_from_pk(result);
    r = malloc(sizeof *r);
    if (r == NULL) {
        (void)pkn_pk()->pk_deregister(comm->pk, buffer, bytes);
        return pkn_fail(PKN_SYSTEM_ERROR, "no memory for a registration");
    }
    *r = (struct pkn_registration){ .buffer = buffer, .bytes = bytes };
    pthread_mutex_lock(&comm->lock);
    r->next = comm->registrations;
    comm->registrations = r;
    pthread_mutex_unlock(&comm->lock);
    *made = r;
    return PKN_SUCCESS;
}

static struct pkn_registration *take(struct pkn_comm *comm, const void *handle)
{
    struct pkn_registration **at = &comm->registrations, *found;

    pthread_mutex_lock(&comm->lock);
    while (*at != NULL && *at != handle)
        at = &(*at)->next;
    found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&comm->lock);
    return found;
}

/* Pools are deregistered after the communicator was finalized, or has failed. */
static pkn_result_t drop(struct pkn_comm *comm, void *handle)
{
    struct pkn_registration *found;
    pkn_result_t result;

    if (handle == NULL)
        return PKN_SUCCESS;
    result = pkn_comm_hold(comm);
    if (result != PKN_SUCCESS)
        return result;
    found = take(comm, handle);
    if (found == NULL)
        result = pkn_fail(PKN_INVALID_ARGUMENT, "the communicator has no registration or window %p", handle);
    else
        (void)pkn_pk()->pk_deregister(comm->pk, found->buffer, found->bytes);
    free(found);
    pkn_comm_release(comm);
    return result;
}

void pkn_registrations_free(struct pkn_comm *comm)
{
    while (comm->registrations != NULL) {
        struct pkn_registration *r = comm->registrations;

        comm->registrations = r->next;
        if (comm->pk != NULL)
            (void)pkn_pk()->pk_deregister(comm->pk, r->buffer, r->bytes);
        free(r);
    }
}

pkn_result_t pncclCommRegister(pkn_comm_t comm, void *buffer, size_t bytes, void **handle)
{
    struct pkn_registration *made = NULL;
    pkn_result_t result;

    if (buffer == NULL || handle == NULL || bytes == 0)
        return pkn_fail(PKN_INVALID_ARGUMENT, "ncclCommRegister: %s", bytes == 0 ? "size is 0" : "buff or handle is NULL");
    result = pkn_comm_use(comm);
    if (result != PKN_SUCCESS)
        return result;
    result = add(comm, buffer, bytes, &made);
    pkn_comm_release(comm);
    if (result == PKN_SUCCESS)
        *handle = made;
    return result;
}
PKN_TWIN(CommRegister);

pkn_result_t pncclCommDeregister(pkn_comm_t comm, void *handle)
{
    return drop(comm, handle);
}
PKN_TWIN(CommDeregister);

/* ---- windows ---- */

/* As NCCL where it has no symmetric windows: the window is NULL, which is no error; the last error says why. */
static pkn_result_t open_window(struct pkn_job *job)
{
    if (job->window.symmetric) {
        (void)pkn_fail(PKN_INVALID_USAGE, "libpickle has no symmetric windows (NCCL_WIN_COLL_SYMMETRIC): there is none, and "
                                          "operations use the memory as any other");
        return PKN_SUCCESS;
    }
    return add(job->comm, job->window.buffer, job->window.bytes, job->window.made);
}

static pkn_result_t check_window(const void *buffer, size_t bytes, pkn_window_t *window, int flags)
{
    if (buffer == NULL || window == NULL || bytes == 0)
        return pkn_fail(PKN_INVALID_ARGUMENT, "ncclCommWindowRegister: %s", bytes == 0 ? "size is 0" : "buff or win is NULL");
    if ((flags & ~PKN_WINDOW_SYMMETRIC) != 0)
        return pkn_fail(PKN_INVALID_ARGUMENT, "ncclCommWindowRegister: the flags 0x%x are not known", (unsigned)flags);
    return PKN_SUCCESS;
}

pkn_result_t pncclCommWindowRegister(pkn_comm_t comm, void *buffer, size_t bytes, pkn_window_t *window, int flags)
{
    const struct pkn_job job = {
        .phase = PKN_PHASE_BEFORE,
        .comm = comm,
        .run = open_window,
        .window = { .buffer = buffer, .bytes = bytes, .made = window, .symmetric = (flags & PKN_WINDOW_SYMMETRIC) != 0 }
    };
    pkn_result_t result = check_window(buffer, bytes, window, flags);

    if (result == PKN_SUCCESS)
        result = pkn_comm_use(comm);
    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    *window = NULL;
    return pkn_group_submit(&job);
}
PKN_TWIN(CommWindowRegister);

pkn_result_t pncclCommWindowDeregister(pkn_comm_t comm, pkn_window_t window)
{
    return drop(comm, window);
}
PKN_TWIN(CommWindowDeregister);

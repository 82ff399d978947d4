/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators end: finalize, destroy, abort. */
#include "comm.h"
#include "error.h"
#include "group.h"
#include "names.h"

/* ---- finalize ---- */

/* A failure names the operation that this rank then had unfinished. */
static bool lost_an_operation(void)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    return pkn_pk()->pk_last_error(&info) != PK_OK || info.op[0] != '\0';
}

/* NCCL's finalize is no error where a peer has left in good order or given up: what is unfinished is given up with it, and the library's log
 * says so. A peer that has died is an error. Programs ask for the state after it: that of a communicator which has ended, unless an
 * operation of this rank had failed before. */
static pkn_result_t flush(struct pkn_comm *comm, void *arg)
{
    pk_result_t before, result;

    (void)arg;
    if (comm->pk == NULL)
        return PKN_SUCCESS;
    before = pkn_pk()->pk_comm_async_error(comm->pk);
    result = pkn_pk()->pk_comm_finalize(comm->pk);
    if (result != PK_ERR_ABORTED) {
        atomic_store(&comm->end, pkn_from_pk(result));
        return pkn_from_pk(result);
    }
    atomic_store(&comm->end, before != PK_OK && lost_an_operation() ? pkn_from_pk(before) : PKN_SUCCESS);
    return PKN_SUCCESS;
}

static pkn_result_t finalize(struct pkn_job *job)
{
    pkn_result_t result;

    if (atomic_exchange(&job->comm->finalized, true))
        return pkn_fail(PKN_INVALID_ARGUMENT, "the communicator is finalized already");
    if (job->comm->blocking)
        return flush(job->comm, NULL);
    result = pkn_comm_in_background(job->comm, flush, NULL);
    return result == PKN_SUCCESS ? PKN_IN_PROGRESS : result;
}

pkn_result_t pncclCommFinalize(pkn_comm_t comm)
{
    const struct pkn_job job = { .phase = PKN_PHASE_AFTER, .comm = comm, .run = finalize };
    pkn_result_t result = pkn_comm_use(comm);

    if (result == PKN_REMOTE_ERROR)
        result = pkn_comm_hold(comm);
    return result == PKN_SUCCESS ? pkn_group_submit(&job) : pkn_group_refuse(result);
}
PKN_TWIN(CommFinalize);

/* ---- destroy and abort ---- */

/* What is unfinished ends first, while there is a handle by which another thread may abort it. One that is still being made
 * would wait for ranks that may never come. */
static pkn_result_t destroy(struct pkn_job *job)
{
    struct pkn_comm *comm = job->comm;

    if (!atomic_load(&comm->ready) && pkn_comm_state(comm) == PKN_IN_PROGRESS)
        pkn_comm_stop(comm);
    else if (atomic_load(&comm->ready) && !atomic_exchange(&comm->finalized, true))
        (void)flush(comm, NULL);
    pkn_comm_disown(comm);
    return PKN_SUCCESS;
}

/* Local: what waits is released, here and on the other ranks. Calls that are inside end by themselves, and the last one frees
 * the communicator. */
static pkn_result_t abort_now(struct pkn_job *job)
{
    pkn_comm_stop(job->comm);
    pkn_comm_disown(job->comm);
    return PKN_SUCCESS;
}

static pkn_result_t give_up(pkn_comm_t comm, pkn_result_t (*run)(struct pkn_job *job))
{
    const struct pkn_job job = { .phase = PKN_PHASE_AFTER, .comm = comm, .run = run };
    pkn_result_t result;

    if (comm == NULL)
        return PKN_SUCCESS;
    result = pkn_comm_hold(comm);
    return result == PKN_SUCCESS ? pkn_group_submit(&job) : pkn_group_refuse(result);
}

pkn_result_t pncclCommDestroy(pkn_comm_t comm)
{
    return give_up(comm, destroy);
}
PKN_TWIN(CommDestroy);

pkn_result_t pncclCommAbort(pkn_comm_t comm)
{
    return give_up(comm, abort_now);
}
PKN_TWIN(CommAbort);

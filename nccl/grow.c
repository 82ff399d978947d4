/* SPDX-License-Identifier: Apache-2.0 */
/* Taking ranks in. Those of the communicator pass it and no rank, those that join pass an id and the number that they want. */
#include <string.h>

#include "comm.h"
#include "config.h"
#include "cuda.h"
#include "error.h"
#include "group.h"
#include "names.h"

/* ---- the id ---- */

/* An id that has not served any call is given back. */
static void keep(struct pkn_comm *comm, const pk_unique_id_t *id)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->has_grow_id)
        (void)pkn_pk()->pk_unique_id_release(&comm->grow_id);
    comm->has_grow_id = id != NULL;
    if (id != NULL)
        comm->grow_id = *id;
    pthread_mutex_unlock(&comm->lock);
}

void pkn_grow_forget(struct pkn_comm *comm)
{
    keep(comm, NULL);
}

pkn_result_t pncclCommGetUniqueId(pkn_comm_t comm, pkn_id_t *id)
{
    pk_unique_id_t made;
    pkn_result_t result = id != NULL ? pkn_comm_use(comm) : pkn_fail(PKN_INVALID_ARGUMENT, "uniqueId is NULL");

    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    result = pkn_from_pk(pkn_pk()->pk_comm_get_unique_id(comm->pk, &made));
    if (result == PKN_SUCCESS) {
        keep(comm, &made);
        memcpy(id, &made, sizeof *id);
    }
    pkn_comm_release(comm);
    return pkn_group_refuse(result);
}
PKN_TWIN(CommGetUniqueId);

/* ---- the call ---- */

static pk_result_t call_grow(const struct pkn_job *job, pk_comm_t **made, const pk_comm_config_t *config)
{
    struct pkn_comm *parent = job->make.parent;
    pk_result_t result = pkn_pk()->pk_comm_grow(parent->pk, job->make.ranks - parent->size, &job->make.id, made, config);

    if (result != PK_ERR_ARG) { /* it is used up */
        pthread_mutex_lock(&parent->lock);
        parent->has_grow_id = parent->has_grow_id && memcmp(&parent->grow_id, &job->make.id, sizeof parent->grow_id) != 0;
        pthread_mutex_unlock(&parent->lock);
    }
    return result;
}

static pk_result_t call_join(const struct pkn_job *job, pk_comm_t **made, const pk_comm_config_t *config)
{
    return pkn_pk()->pk_comm_join(made, job->make.rank, &job->make.id, config);
}

/* A parent that is held becomes the job's. */
static pkn_result_t submit(struct pkn_job *job, int device, const struct pkn_settings *settings)
{
    job->comm = pkn_comm_new(device, settings);
    if (job->comm == NULL) {
        if (job->make.parent != NULL)
            pkn_comm_release(job->make.parent);
        return pkn_group_refuse(PKN_SYSTEM_ERROR);
    }
    (void)pkn_comm_hold(job->comm);
    *job->make.out = job->comm;
    return pkn_group_submit(job);
}

/* Rank 0 needs the id, the program's or the one that it has made here last. */
static pkn_result_t find_id(struct pkn_comm *comm, const pkn_id_t *given, pk_unique_id_t *id)
{
    bool found = given != NULL;

    if (comm->rank != 0)
        return PKN_SUCCESS;
    pthread_mutex_lock(&comm->lock);
    if (found)
        memcpy(id, given, sizeof *id);
    else if (comm->has_grow_id)
        *id = comm->grow_id;
    found = found || comm->has_grow_id;
    pthread_mutex_unlock(&comm->lock);
    return found ? PKN_SUCCESS
                 : pkn_fail(PKN_INVALID_ARGUMENT, "rank 0 has made no id: ncclCommGetUniqueId of this communicator makes one");
}

static pkn_result_t check_old(const struct pkn_comm *comm, int ranks, int rank)
{
    if (rank != -1)
        return pkn_fail(PKN_INVALID_ARGUMENT, "rank is %d: a rank of the communicator keeps its own, and passes -1", rank);
    if (ranks <= comm->size)
        return pkn_fail(PKN_INVALID_ARGUMENT, "nRanks is %d, and the communicator has %d already", ranks, comm->size);
    return PKN_SUCCESS;
}

static pkn_result_t grow(struct pkn_comm *comm, const pkn_id_t *id, pkn_config_t *config, struct pkn_job *job)
{
    struct pkn_settings settings;
    pkn_result_t result = pkn_comm_use(comm);

    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    result = check_old(comm, job->make.ranks, job->make.rank);
    if (result == PKN_SUCCESS)
        result = find_id(comm, id, &job->make.id);
    if (result == PKN_SUCCESS)
        result = pkn_config_read(config, &comm->settings, &settings);
    if (result != PKN_SUCCESS) {
        pkn_comm_release(comm);
        return pkn_group_refuse(result);
    }
    job->make.call = call_grow;
    job->make.parent = comm;
    return submit(job, comm->device, &settings);
}

static pkn_result_t join(const pkn_id_t *id, pkn_config_t *config, struct pkn_job *job)
{
    struct pkn_settings settings;
    int device = 0;
    pkn_result_t result = pkn_pk() != NULL ? PKN_SUCCESS : PKN_SYSTEM_ERROR;

    if (result == PKN_SUCCESS && id == NULL)
        result = pkn_fail(PKN_INVALID_ARGUMENT, "a rank that joins needs an id, of ncclCommGetUniqueId");
    if (result == PKN_SUCCESS && (job->make.rank < 0 || job->make.rank >= job->make.ranks))
        result = pkn_fail(PKN_INVALID_ARGUMENT, "rank %d of %d ranks", job->make.rank, job->make.ranks);
    if (result == PKN_SUCCESS)
        result = pkn_config_read(config, NULL, &settings);
    if (result == PKN_SUCCESS)
        result = pkn_cuda_device(&device);
    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    memcpy(&job->make.id, id, sizeof job->make.id);
    job->make.call = call_join;
    return submit(job, device, &settings);
}

pkn_result_t pncclCommGrow(pkn_comm_t comm, int ranks, const pkn_id_t *id, int rank, pkn_comm_t *made, pkn_config_t *config)
{
    struct pkn_job job = { .phase = PKN_PHASE_MAKE, .run = pkn_job_make, .make = { .out = made, .ranks = ranks, .rank = rank } };

    if (made == NULL)
        return pkn_group_refuse(pkn_fail(PKN_INVALID_ARGUMENT, "newcomm is NULL"));
    return comm != NULL ? grow(comm, id, config, &job) : join(id, config, &job);
}
PKN_TWIN(CommGrow);

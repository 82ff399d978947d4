/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators are made: from ids, for all devices of a thread, out of others. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "config.h"
#include "cuda.h"
#include "error.h"
#include "group.h"
#include "ids.h"
#include "names.h"

pkn_result_t pkn_job_make(struct pkn_job *job)
{
    const pk_comm_config_t config = pkn_config_for_pk(&job->comm->settings, job->comm->device);
    pk_comm_t *made = NULL;
    pk_result_t result;

    if (pkn_comm_is_aborted(job->comm))
        return pkn_fail(PKN_REMOTE_ERROR, "aborted by this rank");
    result = job->make.call(job, &made, &config);
    if (result != PK_OK && result != PK_IN_PROGRESS)
        return pkn_from_pk(result);
    pkn_comm_set(job->comm, made, job->make.parent);
    return PKN_SUCCESS;
}

static pk_result_t call_init(const struct pkn_job *job, pk_comm_t **made, const pk_comm_config_t *config)
{
    return pkn_id_begin(made, job->make.ranks, job->make.rank, &job->make.id, config);
}

static pkn_result_t check_init(pkn_comm_t *out, int ranks, int rank)
{
    if (out == NULL)
        return pkn_fail(PKN_INVALID_ARGUMENT, "comm is NULL");
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return pkn_fail(PKN_INVALID_ARGUMENT, "rank %d of %d ranks", rank, ranks);
    return pkn_pk() != NULL ? PKN_SUCCESS : PKN_SYSTEM_ERROR;
}

/* The job to make a communicator on `device`; the handle is the program's at once, for another thread may abort it. */
static pkn_result_t submit_init(pkn_comm_t *out, const struct pkn_job *like, int device, const struct pkn_settings *settings)
{
    struct pkn_job job = *like;

    job.comm = pkn_comm_new(device, settings);
    if (job.comm == NULL)
        return pkn_group_refuse(PKN_SYSTEM_ERROR);
    (void)pkn_comm_hold(job.comm); /* the job's reference beside the program's */
    *out = job.comm;
    return pkn_group_submit(&job);
}

static pkn_result_t init(pkn_comm_t *out, int ranks, const pkn_id_t *id, int rank, const pkn_config_t *config)
{
    struct pkn_job job = { .phase = PKN_PHASE_MAKE,
                           .run = pkn_job_make,
                           .make = { .call = call_init, .out = out, .ranks = ranks, .rank = rank } };
    struct pkn_settings settings;
    int device = 0;
    pkn_result_t result = check_init(out, ranks, rank);

    if (result == PKN_SUCCESS)
        result = pkn_config_read(config, NULL, &settings);
    if (result == PKN_SUCCESS)
        result = pkn_cuda_device(&device);
    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    memcpy(&job.make.id, id, sizeof job.make.id);
    return submit_init(out, &job, device, &settings);
}

pkn_result_t pncclCommInitRank(pkn_comm_t *comm, int ranks, pkn_id_t id, int rank)
{
    return init(comm, ranks, &id, rank, NULL);
}
PKN_TWIN(CommInitRank);

pkn_result_t pncclCommInitRankConfig(pkn_comm_t *comm, int ranks, pkn_id_t id, int rank, pkn_config_t *config)
{
    return init(comm, ranks, &id, rank, config);
}
PKN_TWIN(CommInitRankConfig);

/* Several ids spread the work of many ranks' meeting; the first is enough. */
pkn_result_t pncclCommInitRankScalable(pkn_comm_t *comm, int ranks, int rank, int ids, pkn_id_t *id, pkn_config_t *config)
{
    if (ids < 1 || ids > ranks || id == NULL)
        return pkn_group_refuse(pkn_fail(PKN_INVALID_ARGUMENT, "%d ids for %d ranks", id == NULL ? 0 : ids, ranks));
    for (int i = 1; i < ids; i++) {
        pk_unique_id_t unused;

        memcpy(&unused, &id[i], sizeof unused);
        pkn_id_give_back(&unused);
    }
    return init(comm, ranks, &id[0], rank, config);
}
PKN_TWIN(CommInitRankScalable);

/* ---- all devices of one thread ---- */

static pkn_result_t check_devices(int n, const int *list)
{
    int present = 0;
    pkn_result_t result = pkn_cuda_count(&present);

    for (int i = 0; i < n && result == PKN_SUCCESS; i++) {
        int device = list != NULL ? list[i] : i;

        if (device < 0 || device >= present)
            result = pkn_fail(PKN_INVALID_ARGUMENT, "device %d of %d", device, present);
        for (int k = 0; k < i && result == PKN_SUCCESS; k++)
            if (list != NULL && list[k] == device)
                result = pkn_fail(PKN_INVALID_USAGE, "device %d is in the list twice", device);
    }
    return result;
}

static pkn_result_t init_all(pkn_comm_t *comms, int n, const int *list)
{
    struct pkn_job job = { .phase = PKN_PHASE_MAKE,
                           .run = pkn_job_make,
                           .make = { .call = call_init, .ranks = n, .own_id = true } };
    struct pkn_settings settings;
    pkn_result_t result = check_init(comms, n, 0), ended;

    if (result == PKN_SUCCESS)
        result = check_devices(n, list);
    if (result == PKN_SUCCESS)
        result = pkn_config_read(NULL, NULL, &settings);
    if (result == PKN_SUCCESS)
        result = pkn_from_pk(pkn_pk()->pk_get_unique_id(&job.make.id));
    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    settings.blocking = true; /* the call has no way to say that it goes on */
    pkn_group_enter();
    for (int i = 0; i < n && result == PKN_SUCCESS; i++) {
        job.make.rank = i;
        job.make.out = &comms[i];
        result = submit_init(&comms[i], &job, list != NULL ? list[i] : i, &settings);
    }
    ended = pkn_group_leave();
    return result != PKN_SUCCESS ? result : ended;
}

pkn_result_t pncclCommInitAll(pkn_comm_t *comms, int devices, const int *list)
{
    return init_all(comms, devices, list);
}
PKN_TWIN(CommInitAll);

/* ---- out of another ---- */

static pk_result_t call_split(const struct pkn_job *job, pk_comm_t **made, const pk_comm_config_t *config)
{
    return pkn_pk()->pk_comm_split(job->make.parent->pk, job->make.color, job->make.key, made, config);
}

static pkn_result_t take_part(struct pkn_comm *parent, void *arg)
{
    pk_comm_t *none;

    (void)arg;
    return pkn_from_pk(pkn_pk()->pk_comm_split(parent->pk, -1, 0, &none, NULL));
}

/* A rank that gets no communicator waits for the others of the parent in libpickle's call: in a thread, for this one may be
 * those others, too. */
static pkn_result_t begin_without(struct pkn_job *job)
{
    return pkn_comm_in_background(job->make.parent, take_part, NULL);
}

/* With the parent held, which becomes the job's. */
static pkn_result_t submit_split(struct pkn_job *job, const struct pkn_settings *settings)
{
    struct pkn_comm *parent = job->make.parent;

    if (job->make.color < 0) {
        *job->make.out = NULL;
        job->make.out = NULL;
        job->run = begin_without;
        return pkn_group_submit(job);
    }
    job->comm = pkn_comm_new(parent->device, settings);
    if (job->comm == NULL) {
        pkn_comm_release(parent);
        return pkn_group_refuse(PKN_SYSTEM_ERROR);
    }
    (void)pkn_comm_hold(job->comm);
    *job->make.out = job->comm;
    return pkn_group_submit(job);
}

pkn_result_t pncclCommSplit(pkn_comm_t comm, int color, int key, pkn_comm_t *made, pkn_config_t *config)
{
    struct pkn_job job = { .phase = PKN_PHASE_MAKE,
                           .run = pkn_job_make,
                           .make = { .call = call_split, .parent = comm, .out = made, .color = color, .key = key } };
    struct pkn_settings settings;
    pkn_result_t result = made != NULL ? pkn_comm_use(comm) : pkn_fail(PKN_INVALID_ARGUMENT, "newcomm is NULL");

    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    result = pkn_config_read(config, &comm->settings, &settings);
    if (result == PKN_SUCCESS && color < PKN_NOCOLOR)
        result = pkn_fail(PKN_INVALID_ARGUMENT, "the color is %d: 0 and up, or NCCL_SPLIT_NOCOLOR", color);
    if (result != PKN_SUCCESS) {
        pkn_comm_release(comm);
        return pkn_group_refuse(result);
    }
    return submit_split(&job, &settings);
}
PKN_TWIN(CommSplit);

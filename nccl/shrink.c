/* SPDX-License-Identifier: Apache-2.0 */
/* Going on without ranks that have died, or that are to leave. libpickle's call waits for the other ranks, which this thread may drive too: so
 * a thread calls it. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "config.h"
#include "error.h"
#include "group.h"
#include "names.h"

struct shrink {
    struct pkn_comm *parent; /* held */
    int flags, count;
    int excluded[];
};

void pkn_shrink_forget(struct shrink *s)
{
    if (s != NULL)
        pkn_comm_release(s->parent);
    free(s);
}

static pkn_result_t shrink_in_thread(struct pkn_comm *comm, void *arg)
{
    const pk_comm_config_t config = pkn_config_for_pk(&comm->settings, comm->device);
    struct shrink *s = arg;
    pk_comm_t *made = NULL;
    pk_result_t result;

    result = pkn_pk()->pk_comm_shrink(s->parent->pk, s->flags, s->excluded, s->count, &made, &config);
    if (result == PK_OK)
        pkn_comm_set(comm, made, NULL);
    pkn_shrink_forget(s);
    return pkn_from_pk(result);
}

static pkn_result_t begin_shrink(struct pkn_job *job)
{
    struct shrink *s = job->make.shrink;
    pkn_result_t result;

    job->make.shrink = NULL;
    if (pkn_comm_is_aborted(job->comm))
        result = pkn_fail(PKN_REMOTE_ERROR, "aborted by this rank");
    else
        result = pkn_comm_in_background(job->comm, shrink_in_thread, s);
    if (result != PKN_SUCCESS)
        pkn_shrink_forget(s);
    return result;
}

/* With the parent held once for it. */
static struct shrink *remember(struct pkn_comm *parent, const int *excluded, int count, int flags)
{
    struct shrink *s = calloc(1, sizeof *s + (size_t)count * sizeof s->excluded[0]);

    if (s == NULL || pkn_comm_hold(parent) != PKN_SUCCESS) {
        free(s);
        return NULL;
    }
    s->parent = parent;
    s->flags = (flags & PKN_SHRINK_ABORT) != 0 ? PK_SHRINK_REVOKE : PK_SHRINK_DEFAULT;
    s->count = count;
    if (count > 0)
        memcpy(s->excluded, excluded, (size_t)count * sizeof s->excluded[0]);
    return s;
}

static pkn_result_t check(const int *excluded, int count, const pkn_comm_t *made, int flags)
{
    if (made == NULL)
        return pkn_fail(PKN_INVALID_ARGUMENT, "newcomm is NULL");
    if (count < 0 || (count > 0 && excluded == NULL))
        return pkn_fail(PKN_INVALID_ARGUMENT, "%d ranks to exclude%s", count, excluded == NULL ? ", and no list" : "");
    if ((flags & ~PKN_SHRINK_ABORT) != 0)
        return pkn_fail(PKN_INVALID_ARGUMENT, "shrinkFlags are %#x", (unsigned)flags);
    return PKN_SUCCESS;
}

/* With the parent held, which becomes the job's. */
static pkn_result_t submit(struct pkn_job *job, const struct pkn_settings *settings, struct shrink *s)
{
    job->make.shrink = s;
    job->comm = s != NULL ? pkn_comm_new(job->make.parent->device, settings) : NULL;
    if (job->comm == NULL) {
        pkn_shrink_forget(s);
        pkn_comm_release(job->make.parent);
        return pkn_group_refuse(pkn_fail(PKN_SYSTEM_ERROR, "no memory for a communicator"));
    }
    (void)pkn_comm_hold(job->comm);
    *job->make.out = job->comm;
    return pkn_group_submit(job);
}

pkn_result_t pncclCommShrink(pkn_comm_t comm, int *excluded, int count, pkn_comm_t *made, pkn_config_t *config, int flags)
{
    struct pkn_job job = { .phase = PKN_PHASE_MAKE, .run = begin_shrink, .make = { .parent = comm, .out = made } };
    struct pkn_settings settings;
    pkn_result_t result = check(excluded, count, made, flags);

    if (result == PKN_SUCCESS)
        result = pkn_comm_use(comm);
    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    result = pkn_config_read(config, &comm->settings, &settings);
    if (result != PKN_SUCCESS) {
        pkn_comm_release(comm);
        return pkn_group_refuse(result);
    }
    return submit(&job, &settings, remember(comm, excluded, count, flags));
}
PKN_TWIN(CommShrink);

/* The state of the communicator is success then: it is quiet, and can be shrunk. */
pkn_result_t pncclCommRevoke(pkn_comm_t comm, int flags)
{
    pkn_result_t result =
        flags == 0 ? pkn_comm_use(comm) : pkn_fail(PKN_INVALID_ARGUMENT, "revokeFlags are %#x", (unsigned)flags);

    if (result != PKN_SUCCESS)
        return pkn_group_refuse(result);
    atomic_store(&comm->revoked, true);
    result = pkn_from_pk(pkn_pk()->pk_comm_revoke(comm->pk));
    pkn_comm_release(comm);
    return pkn_group_refuse(result);
}
PKN_TWIN(CommRevoke);

/* SPDX-License-Identifier: Apache-2.0 */
#include "comm.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "memory.h"
#include "names.h"
#include "reduction.h"

/* Handles that were given up, the oldest first. One is used again only when this number of others have been given up since: a
 * program that uses it too long is told, and does not meet another communicator. */
#define SPARES_KEPT 4096

static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pkn_comm *spare, *newest_spare;
static int spares;

/* ---- handles ---- */

static struct pkn_comm *take_spare(void)
{
    struct pkn_comm *comm;

    pthread_mutex_lock(&spare_lock);
    comm = spares > SPARES_KEPT ? spare : NULL;
    if (comm != NULL) {
        spare = comm->next_spare;
        spares--;
    }
    pthread_mutex_unlock(&spare_lock);
    return comm;
}

static struct pkn_comm *allocate(void)
{
    struct pkn_comm *comm = take_spare();

    if (comm != NULL)
        return comm;
    comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        (void)pkn_fail(PKN_SYSTEM_ERROR, "no memory for a communicator");
    else
        pthread_mutex_init(&comm->lock, NULL);
    return comm;
}

struct pkn_comm *pkn_comm_new(int device, const struct pkn_settings *settings)
{
    struct pkn_comm *comm = allocate();

    if (comm == NULL)
        return NULL;
    comm->pk = NULL;
    comm->aborted = false;
    comm->parent = NULL;
    comm->registrations = NULL;
    comm->reductions = NULL;
    comm->has_grow_id = false;
    comm->rank = comm->size = -1;
    comm->device = device;
    comm->settings = *settings;
    comm->blocking = settings->blocking;
    atomic_store(&comm->ready, false);
    atomic_store(&comm->finalized, false);
    atomic_store(&comm->revoked, false);
    atomic_store(&comm->end, PKN_IN_PROGRESS);
    atomic_store(&comm->background, PKN_SUCCESS);
    atomic_store(&comm->owned, true);
    atomic_store(&comm->references, 1); /* last: pkn_comm_hold looks here first */
    return comm;
}

pkn_result_t pkn_comm_hold(struct pkn_comm *comm)
{
    int references = comm != NULL ? atomic_load(&comm->references) : 0;

    while (references > 0 && !atomic_compare_exchange_weak(&comm->references, &references, references + 1))
        continue;
    if (references > 0)
        return PKN_SUCCESS;
    return pkn_fail(PKN_INVALID_ARGUMENT,
                    comm == NULL ? "the communicator is NULL" : "the communicator was destroyed or aborted");
}

static void let_parent_go(struct pkn_comm *comm)
{
    struct pkn_comm *parent;

    pthread_mutex_lock(&comm->lock);
    parent = comm->parent;
    comm->parent = NULL;
    pthread_mutex_unlock(&comm->lock);
    if (parent != NULL)
        pkn_comm_release(parent);
}

static void end(struct pkn_comm *comm)
{
    const struct pkn_table *pk = pkn_pk();

    pkn_registrations_free(comm);
    pkn_reductions_free(comm);
    if (pk != NULL)
        pkn_grow_forget(comm);
    if (comm->pk != NULL && pk != NULL)
        (void)pk->pk_comm_destroy(comm->pk);
    comm->pk = NULL;
    let_parent_go(comm);
    pthread_mutex_lock(&spare_lock);
    comm->next_spare = NULL;
    *(spare == NULL ? &spare : &newest_spare->next_spare) = comm;
    newest_spare = comm;
    spares++;
    pthread_mutex_unlock(&spare_lock);
}

void pkn_comm_release(struct pkn_comm *comm)
{
    if (atomic_fetch_sub(&comm->references, 1) == 1)
        end(comm);
}

void pkn_comm_disown(struct pkn_comm *comm)
{
    if (atomic_exchange(&comm->owned, false))
        pkn_comm_release(comm);
}

/* ---- what it stands for ---- */

void pkn_comm_set(struct pkn_comm *comm, pk_comm_t *pk, struct pkn_comm *parent)
{
    bool aborted;

    if (parent != NULL)
        atomic_fetch_add(&parent->references, 1); /* the caller holds it, too */
    pthread_mutex_lock(&comm->lock);
    comm->pk = pk;
    comm->parent = parent;
    aborted = comm->aborted;
    pthread_mutex_unlock(&comm->lock);
    if (aborted)
        (void)pkn_pk()->pk_comm_abort(pk);
}

bool pkn_comm_is_aborted(struct pkn_comm *comm)
{
    bool aborted;

    pthread_mutex_lock(&comm->lock);
    aborted = comm->aborted;
    pthread_mutex_unlock(&comm->lock);
    return aborted;
}

static pk_comm_t *made(struct pkn_comm *comm)
{
    pk_comm_t *pk;

    pthread_mutex_lock(&comm->lock);
    pk = comm->pk;
    pthread_mutex_unlock(&comm->lock);
    return pk;
}

void pkn_comm_stop(struct pkn_comm *comm)
{
    pk_comm_t *pk;

    pthread_mutex_lock(&comm->lock);
    comm->aborted = true;
    pk = comm->pk;
    pthread_mutex_unlock(&comm->lock);
    if (pk != NULL)
        (void)pkn_pk()->pk_comm_abort(pk);
}

static void note_ready(struct pkn_comm *comm, pk_comm_t *pk)
{
    if (atomic_load(&comm->ready))
        return;
    pthread_mutex_lock(&comm->lock);
    (void)pkn_pk()->pk_comm_rank(pk, &comm->rank);
    (void)pkn_pk()->pk_comm_size(pk, &comm->size);
    pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->ready, true);
    let_parent_go(comm);
}

pkn_result_t pkn_comm_state(struct pkn_comm *comm)
{
    pkn_result_t background = (pkn_result_t)atomic_load(&comm->background);
    pk_comm_t *pk = made(comm);
    pk_result_t state;

    if (background != PKN_SUCCESS)
        return background;
    if (atomic_load(&comm->end) != PKN_IN_PROGRESS)
        return (pkn_result_t)atomic_load(&comm->end);
    if (pk == NULL)
        return pkn_comm_is_aborted(comm) ? pkn_fail(PKN_REMOTE_ERROR, "aborted by this rank") : PKN_IN_PROGRESS;
    state = pkn_pk()->pk_comm_async_error(pk);
    if (state == PK_OK)
        note_ready(comm, pk);
    if (state == PK_ERR_REVOKED && atomic_load(&comm->revoked)) /* it is quiet; operations are refused by libpickle */
        return PKN_SUCCESS;
    return pkn_from_pk(state);
}

pkn_result_t pkn_comm_use(struct pkn_comm *comm)
{
    pkn_result_t result = pkn_comm_hold(comm);

    if (result != PKN_SUCCESS)
        return result;
    if (!atomic_load(&comm->ready)) {
        result = pkn_comm_state(comm);
        if (result == PKN_IN_PROGRESS)
            result = pkn_fail(PKN_INVALID_ARGUMENT,
                              "the communicator is still being made: ncclCommGetAsyncError tells when it is ready");
    }
    if (result == PKN_SUCCESS && atomic_load(&comm->finalized))
        result = pkn_fail(PKN_INVALID_ARGUMENT, "the communicator is finalized");
    if (result != PKN_SUCCESS)
        pkn_comm_release(comm);
    return result;
}

/* ---- threads that work for it ---- */

struct work {
    struct pkn_comm *comm;
    pkn_result_t (*run)(struct pkn_comm *comm, void *arg);
    void *arg;
};

static void *do_work(void *arg)
{
    struct work work = *(struct work *)arg;

    free(arg);
    atomic_store(&work.comm->background, work.run(work.comm, work.arg));
    pkn_comm_release(work.comm);
    return NULL;
}

pkn_result_t pkn_comm_in_background(struct pkn_comm *comm, pkn_result_t (*run)(struct pkn_comm *comm, void *arg), void *arg)
{
    struct work *work = malloc(sizeof *work);
    pthread_t thread;
    int error;

    if (work == NULL || pkn_comm_hold(comm) != PKN_SUCCESS) {
        free(work);
        return pkn_fail(PKN_SYSTEM_ERROR, "no memory for a thread's work");
    }
    *work = (struct work){ .comm = comm, .run = run, .arg = arg };
    atomic_store(&comm->background, PKN_IN_PROGRESS);
    error = pthread_create(&thread, NULL, do_work, work);
    if (error != 0) {
        free(work);
        atomic_store(&comm->background, PKN_SUCCESS);
        pkn_comm_release(comm);
        return pkn_fail(PKN_SYSTEM_ERROR, "pthread_create: %s", strerror(error));
    }
    pthread_detach(thread);
    return PKN_SUCCESS;
}

/* ---- questions ---- */

pkn_result_t pncclCommGetAsyncError(pkn_comm_t comm, pkn_result_t *error)
{
    pkn_result_t result = error != NULL ? pkn_comm_hold(comm) : pkn_fail(PKN_INVALID_ARGUMENT, "asyncError is NULL");

    if (result != PKN_SUCCESS)
        return result;
    *error = pkn_comm_state(comm);
    pkn_comm_release(comm);
    return PKN_SUCCESS;
}
PKN_TWIN(CommGetAsyncError);

enum question { SIZE, DEVICE, RANK };

static pkn_result_t answer(struct pkn_comm *comm, enum question question, int *out)
{
    pkn_result_t result = out != NULL ? pkn_comm_hold(comm) : pkn_fail(PKN_INVALID_ARGUMENT, "there is no place for the answer");

    if (result != PKN_SUCCESS)
        return result;
    if (!atomic_load(&comm->ready)) {
        result = pkn_comm_state(comm);
        if (result == PKN_IN_PROGRESS)
            result = pkn_fail(PKN_INVALID_ARGUMENT, "the communicator is still being made");
    }
    if (atomic_load(&comm->ready)) { /* also where it has failed since */
        result = PKN_SUCCESS;
        *out = question == SIZE ? comm->size : question == RANK ? comm->rank : comm->device;
    }
    pkn_comm_release(comm);
    return result;
}

pkn_result_t pncclCommCount(pkn_comm_t comm, int *count)
{
    return answer(comm, SIZE, count);
}
PKN_TWIN(CommCount);

pkn_result_t pncclCommCuDevice(pkn_comm_t comm, int *device)
{
    return answer(comm, DEVICE, device);
}
PKN_TWIN(CommCuDevice);

pkn_result_t pncclCommUserRank(pkn_comm_t comm, int *rank)
{
    return answer(comm, RANK, rank);
}
PKN_TWIN(CommUserRank);

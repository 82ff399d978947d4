/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator's life as the API sees it: made at once or in a thread, polled, aborted, destroyed. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "util/clock.h"

static void settle(struct pk_comm *comm, pk_result_t result)
{
    if (result != PK_OK) {
        comm->error = *pki_error_get();
        comm->error.code = result;
    }
    atomic_store(&comm->state, result); /* pairs with the load in pki_comm_state: the record is complete */
}

static void *bring_up_thread(void *arg)
{
    struct pk_comm *comm = arg;

    settle(comm, pki_comm_bring_up(comm));
    return NULL;
}

static pk_result_t start_thread(struct pk_comm *comm)
{
    int error = pthread_create(&comm->thread, NULL, bring_up_thread, comm);

    if (error != 0)
        return pki_fail(PK_ERR_SYSTEM, NULL, "no thread for a nonblocking init: error %d", error);
    comm->has_thread = true;
    return PK_IN_PROGRESS;
}

pk_result_t pki_comm_create(struct pk_comm **out, int size, int rank, const pk_unique_id_t *id, const pk_comm_config_t *config,
                            bool from_launcher)
{
    struct pk_comm *comm = calloc(1, sizeof *comm);
    pk_result_t result;

    if (comm == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a communicator");
    comm->size = size;
    comm->rank = rank;
    atomic_init(&comm->state, PK_IN_PROGRESS);
    atomic_init(&comm->cancel, false);
    result = pki_config_resolve(config, comm);
    if (result != PK_OK)
        goto err_free;
    comm->deadline_ns = pki_deadline_ns(comm->config.timeout_ms);
    if (from_launcher)
        result = pki_launcher_find(&comm->size, &comm->rank, &comm->id, comm->deadline_ns);
    else
        comm->id = *id;
    if (result != PK_OK)
        goto err_free;
    if (comm->config.nonblocking) {
        result = start_thread(comm);
    } else {
        result = pki_comm_bring_up(comm);
        settle(comm, result);
    }
    if (result != PK_OK && result != PK_IN_PROGRESS)
        goto err_free;
    *out = comm;
    return result;

err_free:
    free(comm);
    return result;
}

pk_result_t pki_comm_state(struct pk_comm *comm)
{
    pk_result_t state = (pk_result_t)atomic_load(&comm->state);

    if (state == PK_IN_PROGRESS)
        return state;
    if (state != PK_OK) {
        pki_error_set(&comm->error);
        return state;
    }
    return pki_engine_status(comm->engine);
}

static void join(struct pk_comm *comm)
{
    if (comm->has_thread)
        pthread_join(comm->thread, NULL);
    comm->has_thread = false;
}

pk_result_t pki_comm_abort(struct pk_comm *comm)
{
    if (atomic_load(&comm->state) == PK_IN_PROGRESS)
        atomic_store(&comm->cancel, true);
    while (atomic_load(&comm->state) == PK_IN_PROGRESS)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    if (atomic_load(&comm->state) == PK_OK)
        pki_engine_abort(comm->engine);
    return PK_OK;
}

pk_result_t pki_comm_destroy(struct pk_comm *comm)
{
    pk_result_t result;

    join(comm);
    result = (pk_result_t)atomic_load(&comm->state);
    if (result == PK_OK) {
        result = pki_engine_close(comm->engine);
        comm->engine = NULL;
        pki_comm_tear_down(comm);
    }
    free(comm);
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator's life as the API sees it: made at once or in a thread, polled, aborted, destroyed. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap/internal.h"
#include "comm/comm.h"
#include "tuning/tuning.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/thread.h"

#define ABORT_MS 80 /* how long an abort waits for an init to end: it may be inside a system call that cannot be called off */

static pk_result_t settle(struct pk_comm *comm, pk_result_t outcome)
{
    const pk_result_t result = pki_comm_leave_parent(comm, outcome);

    if (result != PK_OK) {
        comm->error = *pki_error_get();
        comm->error.code = result;
    }
    atomic_store(&comm->state, result); /* pairs with the load in pki_comm_state: the record is complete */
    /* An abort that came too late to stop the init, and did not wait. */
    if (result == PK_OK && atomic_load(&comm->cancel.state) == PKI_CALLED_OFF)
        pki_engine_abort(comm->engine);
    return result;
}

static void *bring_up_thread(void *arg)
{
    struct pk_comm *comm = arg;

    (void)settle(comm, pki_comm_bring_up(comm));
    return NULL;
}

static pk_result_t start_thread(struct pk_comm *comm)
{
    if (pki_thread_start(&comm->thread, bring_up_thread, comm) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "pthread_create of the thread of a nonblocking init");
    comm->has_thread = true;
    return PK_IN_PROGRESS;
}

/* A nonblocking init goes on in a thread, which must not look for the caller's current device: it is another thread's. */
static pk_result_t begin(struct pk_comm *comm)
{
    pk_result_t result = PK_OK;

    if (!comm->config.nonblocking)
        return settle(comm, pki_comm_bring_up(comm));
    if (comm->config.device == PK_DEVICE_AUTO)
        result = pki_comm_open_device(comm);
    if (result == PK_OK)
        result = start_thread(comm);
    if (result != PK_IN_PROGRESS)
        pki_comm_tear_down(comm);
    return result;
}

static pk_result_t allocate(struct pk_comm **out, const pk_comm_config_t *config)
{
    struct pk_comm *comm = calloc(1, sizeof *comm);
    pk_result_t result;

    pki_fork_look();
    if (comm == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a communicator");
    comm->stamp = pki_fork_stamp();
    atomic_init(&comm->state, PK_IN_PROGRESS);
    atomic_init(&comm->cancel.state, PKI_GOES_ON);
    atomic_init(&comm->placed, false);
    pki_list_init(&comm->turn);
    result = pki_config_resolve(config, comm);
    if (result != PK_OK) {
        free(comm);
        return result;
    }
    comm->deadline_ns = pki_deadline_ns(comm->config.timeout_ms);
    *out = comm;
    return PK_OK;
}

/* There are keys in it. */
static void free_wiped(struct pk_comm *comm)
{
    free(comm->made_ops.ops);
    free(comm->seats.ranks);
    pki_auth_wipe(comm, sizeof *comm);
    free(comm);
}

/* Frees it when it cannot begin. */
static pk_result_t begin_or_free(struct pk_comm *comm, struct pk_comm **out)
{
    pk_result_t result = begin(comm);

    if (result == PK_OK || result == PK_IN_PROGRESS) {
        *out = comm;
        return result;
    }
    pki_launcher_leave(&comm->turn);
    pki_split_release(comm->split);
    free_wiped(comm);
    return result;
}

static pk_result_t create(struct pk_comm **out, int size, int rank, const pk_unique_id_t *id, const pk_comm_config_t *config)
{
    struct pk_comm *comm = NULL;
    pk_result_t result = allocate(&comm, config);

    if (result != PK_OK)
        return result;
    comm->from_launcher = id == NULL;
    if (id != NULL) {
        comm->size = size;
        comm->rank = rank;
        comm->id = *id;
        atomic_store(&comm->placed, true);
    } else {
        pki_launcher_enter(&comm->turn);
    }
    return begin_or_free(comm, out);
}

pk_result_t pki_comm_create(struct pk_comm **out, int size, int rank, const pk_unique_id_t *id, const pk_comm_config_t *config)
{
    pk_result_t result = create(out, size, rank, id, config);

    if (result != PK_OK && result != PK_IN_PROGRESS && id != NULL && rank == 0)
        (void)pki_id_drop(id); /* nobody will come for it */
    return result;
}

/* `config`, or where it is NULL `like`, which is made the parent's. */
static const pk_comm_config_t *config_or_like(const pk_comm_config_t *config, const struct pk_comm *parent,
                                              pk_comm_config_t *like)
{
    if (config != NULL)
        return config;
    pki_config_like(parent, like);
    return like;
}

static pk_result_t create_split(struct pk_comm **out, struct pk_comm *parent, int color, int key, const pk_comm_config_t *config)
{
    struct pk_comm *comm = NULL;
    pk_result_t result = allocate(&comm, config); /* first: what refuses `config` has not taken this rank's turn in the parent */

    if (result != PK_OK)
        return result;
    result = pki_split_begin(parent, color, key, &comm->split);
    if (result == PK_OK)
        return begin_or_free(comm, out);
    free_wiped(comm);
    return result;
}

pk_result_t pki_comm_split(struct pk_comm *parent, int color, int key, struct pk_comm **out, const pk_comm_config_t *config)
{
    pk_comm_config_t like_parent;
    struct pki_split *s = NULL;
    pk_result_t result;

    config = config_or_like(config, parent, &like_parent);
    if (color >= 0)
        return create_split(out, parent, color, key, config);
    result = pki_split_begin(parent, color, key, &s);
    if (result == PK_OK)
        result = pki_split_sit_out(s);
    if (result == PK_OK)
        *out = NULL;
    return result;
}

pk_result_t pki_comm_create_grown(struct pk_comm **out, struct pk_comm *parent, int count, const pk_unique_id_t *id,
                                  const pk_comm_config_t *config)
{
    pk_comm_config_t like_parent;
    struct pk_comm *comm = NULL;
    pk_result_t result;

    config = config_or_like(config, parent, &like_parent);
    result = allocate(&comm, config);
    if (result != PK_OK)
        return result;
    result = pki_grow_begin(parent, count, id, &comm->split);
    if (result == PK_OK)
        return begin_or_free(comm, out);
    free_wiped(comm);
    return result;
}

pk_result_t pki_comm_create_joiner(struct pk_comm **out, const pk_unique_id_t *id, int wish, const pk_comm_config_t *config)
{
    struct pk_comm *comm = NULL;
    pk_result_t result = allocate(&comm, config);

    if (result != PK_OK)
        return result;
    comm->rank = PKI_JOINS;
    comm->seats.wish = wish;
    comm->id = *id;
    return begin_or_free(comm, out);
}

pk_result_t pki_comm_create_seated(struct pk_comm **out, int size, int rank, struct pki_seats *seats, const pk_unique_id_t *id,
                                   const pk_comm_config_t *config)
{
    struct pk_comm *comm = NULL;
    pk_result_t result = allocate(&comm, config);

    if (result != PK_OK) {
        free(seats->ranks);
        return result;
    }
    comm->size = size;
    comm->rank = rank;
    comm->seats = *seats;
    comm->id = *id;
    atomic_store(&comm->placed, true);
    return begin_or_free(comm, out);
}

bool pki_comm_placed(const struct pk_comm *comm)
{
    return atomic_load_explicit(&comm->placed, memory_order_acquire);
}

static pk_result_t aborted_in_init(const struct pk_comm *comm)
{
    pk_error_info_t info = { .struct_size = sizeof info, .code = PK_ERR_ABORTED, .rank = -1, .peer = -1, .op = "init" };

    if (pki_comm_placed(comm))
        info.rank = comm->rank;
    strcpy(info.text, "aborted by this rank");
    pki_error_set(&info);
    return PK_ERR_ABORTED;
}

pk_result_t pki_comm_state(struct pk_comm *comm)
{
    pk_result_t state = pki_comm_outcome(comm);

    if (state == PK_IN_PROGRESS)
        return atomic_load(&comm->cancel.state) == PKI_CALLED_OFF ? aborted_in_init(comm) : state;
    if (state != PK_OK) {
        pki_error_set(&comm->error);
        return state;
    }
    return pki_engine_status(comm->engine);
}

pk_result_t pki_comm_look(struct pk_comm *comm)
{
    if (pki_comm_outcome(comm) == PK_OK)
        pki_engine_look_around(comm->engine);
    return pki_comm_state(comm);
}

void pki_comm_join(struct pk_comm *comm)
{
    if (comm->has_thread)
        pthread_join(comm->thread, NULL);
    comm->has_thread = false;
}

pk_result_t pki_comm_abort(struct pk_comm *comm)
{
    const uint64_t until = pki_deadline_ns(ABORT_MS);

    if (atomic_load(&comm->state) == PK_IN_PROGRESS)
        atomic_store(&comm->cancel.state, PKI_CALLED_OFF);
    while (atomic_load(&comm->state) == PK_IN_PROGRESS && pki_now_ns() < until)
        usleep(pki_tuning.wait.turn_us);
    if (pki_comm_outcome(comm) == PK_OK)
        pki_engine_abort(comm->engine);
    return PK_OK;
}

pk_result_t pki_comm_finalize(struct pk_comm *comm)
{
    atomic_store(&comm->state, PKI_COMM_FINALIZED);
    return pki_engine_finalize(comm->engine);
}

pk_result_t pki_comm_destroy(struct pk_comm *comm)
{
    pk_result_t result;

    pki_comm_join(comm);
    result = pki_comm_outcome(comm);
    if (result == PK_OK) {
        result = pki_engine_close(comm->engine);
        comm->engine = NULL;
        pki_comm_tear_down(comm);
    } else {
        pki_error_set(&comm->error);
    }
    free_wiped(comm);
    return result;
}

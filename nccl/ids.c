/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An id is libpickle's, 128 bytes here as there; who makes it need not be rank 0, nor a rank at all. With
 * NCCL_COMM_ID=host:port, which every process has, it says no more than that, and the ranks meet at that place, where rank 0
 * listens, as a launcher's do (pk_comm_init).
 */
#include "ids.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "env.h"
#include "error.h"
#include "names.h"

#define POLL_NS 1000000

static const char by_place[] = "NCCL_COMM_ID="; /* such an id begins with it; libpickle's begin otherwise */

static pkn_result_t id_of_place(const char *place, pk_unique_id_t *id)
{
    memset(id, 0, sizeof *id);
    if (strlen(place) >= sizeof *id - sizeof by_place)
        return pkn_fail(PKN_INVALID_ARGUMENT, "NCCL_COMM_ID is longer than %zu characters", sizeof *id - sizeof by_place);
    (void)snprintf((char *)id->bytes, sizeof id->bytes, "%s%s", by_place, place);
    return PKN_SUCCESS;
}

pkn_result_t pkn_id_make(pk_unique_id_t *id)
{
    const struct pkn_table *pk = pkn_pk(); /* also reads the files that may say NCCL_COMM_ID */
    const char *place = pkn_env_comm_id();

    if (pk == NULL)
        return PKN_SYSTEM_ERROR;
    return place != NULL ? id_of_place(place, id) : pkn_from_pk(pk->pk_get_unique_id_anywhere(id));
}

/* ---- ids that this process has made and not used ---- */

struct made {
    pk_unique_id_t id;
    struct made *next;
};

static pthread_mutex_t made_lock = PTHREAD_MUTEX_INITIALIZER;
static struct made *all_made;

/* Without memory it is not given back before the process ends. */
static void remember(const pk_unique_id_t *id)
{
    struct made *made = malloc(sizeof *made);

    if (made == NULL)
        return;
    made->id = *id;
    pthread_mutex_lock(&made_lock);
    made->next = all_made;
    all_made = made;
    pthread_mutex_unlock(&made_lock);
}

/* False: another process made it, or it has been used. */
static bool forget(const pk_unique_id_t *id)
{
    struct made **at = &all_made, *found;

    pthread_mutex_lock(&made_lock);
    while (*at != NULL && memcmp(&(*at)->id, id, sizeof *id) != 0)
        at = &(*at)->next;
    found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&made_lock);
    free(found);
    return found != NULL;
}

void pkn_id_give_back(const pk_unique_id_t *id)
{
    if (forget(id))
        (void)pkn_pk()->pk_unique_id_release(id);
}

pkn_result_t pncclGetUniqueId(pkn_id_t *id)
{
    pk_unique_id_t made;
    pkn_result_t result = id != NULL ? pkn_id_make(&made) : pkn_fail(PKN_INVALID_ARGUMENT, "uniqueId is NULL");

    _Static_assert(sizeof made == sizeof *id, "an id of NCCL holds one of libpickle");
    if (result != PKN_SUCCESS)
        return result;
    memcpy(id, &made, sizeof *id);
    if (strncmp((const char *)made.bytes, by_place, sizeof by_place - 1) != 0)
        remember(&made);
    return PKN_SUCCESS;
}
PKN_TWIN(GetUniqueId);

/* ---- by a place: libpickle reads it from the environment, when it is the communicator's turn ---- */

struct variable {
    const char *name;
    char *before; /* NULL: it was not set */
};

static void set(struct variable *v, const char *value)
{
    const char *now = getenv(v->name);

    v->before = now != NULL ? strdup(now) : NULL;
    (void)setenv(v->name, value, 1);
}

static void restore(struct variable *v)
{
    if (v->before != NULL)
        (void)setenv(v->name, v->before, 1);
    else
        (void)unsetenv(v->name);
    free(v->before);
}

/* Until libpickle has read it. */
static void wait_until_read(const struct pkn_table *pk, pk_comm_t *comm)
{
    int rank;

    while (pk->pk_comm_rank(comm, &rank) == PK_IN_PROGRESS && pk->pk_comm_async_error(comm) == PK_IN_PROGRESS)
        nanosleep(&(struct timespec){ .tv_nsec = POLL_NS }, NULL);
}

static pk_result_t begin_at(pk_comm_t **comm, int ranks, int rank, const char *place, const pk_comm_config_t *config)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const struct pkn_table *pk = pkn_pk();
    struct variable root = { .name = "PK_ROOT" }, size = { .name = "PK_SIZE" }, own = { .name = "PK_RANK" };
    char ranks_text[16], rank_text[16];
    pk_result_t result;

    snprintf(ranks_text, sizeof ranks_text, "%d", ranks);
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    pthread_mutex_lock(&lock);
    set(&root, place);
    set(&size, ranks_text);
    set(&own, rank_text);
    result = pk->pk_comm_init(comm, config);
    if (result == PK_IN_PROGRESS)
        wait_until_read(pk, *comm);
    restore(&own);
    restore(&size);
    restore(&root);
    pthread_mutex_unlock(&lock);
    return result;
}

pk_result_t pkn_id_begin(pk_comm_t **pk, int ranks, int rank, const pk_unique_id_t *id, const pk_comm_config_t *config)
{
    if (strncmp((const char *)id->bytes, by_place, sizeof by_place - 1) == 0)
        return begin_at(pk, ranks, rank, (const char *)id->bytes + sizeof by_place - 1, config);
    (void)forget(id);
    return pkn_pk()->pk_comm_init_rank(pk, ranks, rank, id, config);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Host streams: operations one after another, of any communicator. The engine's lock is taken before the stream's, never after. */
#include <pthread.h>
#include <stdlib.h>

#include "engine/internal.h"
#include "util/fork.h"

struct pki_host_stream {
    unsigned stamp; /* pki_fork_is_ours */
    pthread_mutex_t lock;
    pthread_cond_t empty;
    struct pki_list tasks;
    pk_result_t result; /* the first error since it was last asked for */
    pk_error_info_t error;
};

pk_result_t pki_host_stream_open(struct pki_host_stream **out)
{
    struct pki_host_stream *s = calloc(1, sizeof *s);

    if (s == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a stream");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->empty, NULL);
    pki_list_init(&s->tasks);
    s->stamp = pki_fork_stamp();
    *out = s;
    return PK_OK;
}

bool pki_host_stream_is_ours(const struct pki_host_stream *s)
{
    return pki_fork_is_ours(s->stamp);
}

void pki_host_stream_append(struct pki_host_stream *s, struct pki_task *task)
{
    const struct pki_task *last;

    pthread_mutex_lock(&s->lock);
    last = pki_list_empty(&s->tasks) ? NULL : pki_container_of(s->tasks.prev, struct pki_task, in_stream);
    atomic_store(&task->may_start, last == NULL || (last->group == task->group && atomic_load(&last->may_start)));
    pki_list_push(&s->tasks, &task->in_stream);
    pthread_mutex_unlock(&s->lock);
}

/* The operations of one group start together. The service thread finds them: their engines count them as pending. */
static void start_next(struct pki_host_stream *s)
{
    uint64_t group = pki_container_of(s->tasks.next, struct pki_task, in_stream)->group;

    for (struct pki_list *n = s->tasks.next; n != &s->tasks; n = n->next) {
        struct pki_task *task = pki_container_of(n, struct pki_task, in_stream);

        if (task->group != group)
            return;
        atomic_store(&task->may_start, true);
    }
}

void pki_host_stream_ended(struct pki_host_stream *s, struct pki_task *task)
{
    pthread_mutex_lock(&s->lock);
    pki_list_remove(&task->in_stream);
    if (task->result != PK_OK && s->result == PK_OK) {
        s->result = task->result;
        s->error = task->engine->error;
    }
    if (pki_list_empty(&s->tasks))
        pthread_cond_broadcast(&s->empty);
    else
        start_next(s);
    pthread_mutex_unlock(&s->lock);
}

bool pki_host_stream_idle(struct pki_host_stream *s)
{
    bool idle;

    pthread_mutex_lock(&s->lock);
    idle = pki_list_empty(&s->tasks);
    pthread_mutex_unlock(&s->lock);
    return idle;
}

pk_result_t pki_host_stream_error(struct pki_host_stream *s)
{
    pk_result_t result;

    pthread_mutex_lock(&s->lock);
    result = s->result;
    if (result != PK_OK)
        pki_error_set(&s->error);
    s->result = PK_OK;
    pthread_mutex_unlock(&s->lock);
    return result;
}

pk_result_t pki_host_stream_wait(struct pki_host_stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (!pki_list_empty(&s->tasks))
        pthread_cond_wait(&s->empty, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return pki_host_stream_error(s);
}

void pki_host_stream_close(struct pki_host_stream *s)
{
    pthread_cond_destroy(&s->empty);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host streams: operations one after another, of any communicator. The engine's lock is taken before the stream's, never after.
 * Who waits for a stream drives the engine of its first operation itself, and the service thread keeps off meanwhile.
 */
#include <pthread.h>
#include <stdlib.h>

#include "engine/stream/stream.h"
#include "util/fork.h"

struct pki_host_stream {
    unsigned stamp; /* pki_fork_is_ours */
    pthread_mutex_t lock;
    struct pki_list tasks;
    pk_result_t result; /* the first error since it was last asked for */
    pk_error_info_t error;
};

pk_result_t pki_host_stream_open(struct pki_host_stream **out)
{
    struct pki_host_stream *s = calloc(1, sizeof *s);
    pk_result_t result;

    pki_fork_look();
    if (s == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a stream");
    result = pki_service_hold();
    if (result != PK_OK) {
        free(s);
        return result;
    }
    pthread_mutex_init(&s->lock, NULL);
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
    last = pki_list_empty(&s->tasks) ? NULL : pki_container_of(s->tasks.prev, struct pki_task, host.node);
    atomic_store(&task->host.may_start,
                 last == NULL || (last->host.group == task->host.group && atomic_load(&last->host.may_start)));
    pki_list_push(&s->tasks, &task->host.node);
    pthread_mutex_unlock(&s->lock);
}

/* The operations of one group start together. Who drives their engines finds them: this thread, the service thread, or a thread
 * that waits for a stream and may sleep. */
static void start_next(struct pki_host_stream *s, const struct pki_engine *driven)
{
    uint64_t group = pki_container_of(s->tasks.next, struct pki_task, host.node)->host.group;

    for (struct pki_list *n = s->tasks.next; n != &s->tasks; n = n->next) {
        struct pki_task *task = pki_container_of(n, struct pki_task, host.node);

        if (task->host.group != group)
            return;
        atomic_store(&task->host.may_start, true);
        if (task->engine != driven && atomic_load(&task->engine->service.drivers) > 0)
            pki_engine_wake(task->engine);
    }
}

void pki_host_stream_ended(struct pki_host_stream *s, struct pki_task *task)
{
    pthread_mutex_lock(&s->lock);
    pki_list_remove(&task->host.node);
    if (task->result != PK_OK && s->result == PK_OK) {
        s->result = task->result;
        s->error = task->engine->failure.error;
    }
    if (!pki_list_empty(&s->tasks))
        start_next(s, task->engine);
    pthread_mutex_unlock(&s->lock);
}

/* From the engine that this thread drives, if it does, to that of the first operation; NULL when there is none. An engine cannot
 * be closed before it is left. */
static struct pki_engine *enter_next(struct pki_host_stream *s, struct pki_engine *now)
{
    struct pki_engine *e = NULL;

    pthread_mutex_lock(&s->lock);
    if (!pki_list_empty(&s->tasks)) {
        e = pki_container_of(s->tasks.next, struct pki_task, host.node)->engine;
        if (e != now)
            atomic_fetch_add(&e->service.drivers, 1); /* before the task leaves the stream, and so before the engine can end */
    }
    pthread_mutex_unlock(&s->lock);
    if (now != NULL && e != now)
        pki_engine_leave(now);
    return e;
}

static bool drive(struct pki_engine *e)
{
    bool moved = false;

    if (pki_engine_trylock(e)) {
        moved = pki_engine_progress(e);
        pki_engine_unlock(e);
    }
    return moved;
}

bool pki_host_stream_idle(struct pki_host_stream *s)
{
    struct pki_engine *e = enter_next(s, NULL);
    bool idle;

    if (e == NULL)
        return true;
    (void)drive(e);
    pki_engine_leave(e);
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

/* One thread's wait for a stream. */
struct stream_wait {
    struct pki_awaited awaited;
    struct pki_host_stream *stream;
};

/* Its engine has no operation any more for which the stream waits now. */
static bool is_over(const struct pki_awaited *awaited)
{
    const struct stream_wait *w = pki_container_of(awaited, const struct stream_wait, awaited);
    struct pki_host_stream *s = w->stream;
    bool over;

    pthread_mutex_lock(&s->lock);
    over = pki_list_empty(&s->tasks) || pki_container_of(s->tasks.next, struct pki_task, host.node)->engine != awaited->engine;
    pthread_mutex_unlock(&s->lock);
    return over;
}

pk_result_t pki_host_stream_wait(struct pki_host_stream *s)
{
    struct stream_wait w = { .awaited = { .is_over = is_over }, .stream = s };
    unsigned idle = 0;

    while ((w.awaited.engine = enter_next(s, w.awaited.engine)) != NULL) {
        bool moved = drive(w.awaited.engine);

        idle = moved ? 0 : idle + 1;
        if (!moved)
            pki_engine_backoff_beside(&w.awaited, idle);
    }
    return pki_host_stream_error(s);
}

void pki_host_stream_close(struct pki_host_stream *s)
{
    pthread_mutex_destroy(&s->lock);
    free(s);
    pki_service_let_go();
}

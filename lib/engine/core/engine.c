/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's lock, and what every folder asks of its state. */
#include <sched.h>

#include "engine/core/internal.h"

/* By who has the lock. */
static inline void count_turn(struct pki_engine *e)
{
    atomic_store_explicit(&e->lock.turns, atomic_load_explicit(&e->lock.turns, memory_order_relaxed) + 1, memory_order_relaxed);
}

void pki_engine_lock(struct pki_engine *e)
{
    unsigned spins = 0;

    while (atomic_flag_test_and_set_explicit(&e->lock.flag, memory_order_acquire)) {
        if (++spins % PKI_LOCK_SPINS == 0)
            sched_yield();
        else
            pki_cpu_pause();
    }
    count_turn(e);
}

bool pki_engine_trylock(struct pki_engine *e)
{
    if (atomic_flag_test_and_set_explicit(&e->lock.flag, memory_order_acquire))
        return false;
    count_turn(e);
    return true;
}

void pki_engine_unlock(struct pki_engine *e)
{
    count_turn(e);
    atomic_flag_clear_explicit(&e->lock.flag, memory_order_release);
}

const char *pki_task_name(const struct pki_task *task)
{
    if (task->request.what == PKI_DO_SEND)
        return "send";
    if (task->request.what == PKI_DO_RECV)
        return "recv";
    return pki_coll_shape(task->request.algorithm->coll)->name;
}

struct pki_where pki_engine_where(const struct pki_engine *e, int peer, const struct pki_task *task)
{
    struct pki_where where = { .rank = e->config.rank, .peer = peer };

    if (task != NULL) {
        where.op = pki_task_name(task);
        where.op_number = task->number;
    }
    return where;
}

struct pki_task *pki_engine_first_task(const struct pki_engine *e)
{
    return pki_list_empty(&e->tasks.all) ? NULL : pki_container_of(e->tasks.all.next, struct pki_task, node);
}

size_t pki_engine_ration(struct pki_engine *e, size_t bytes)
{
    size_t most = e->rounds.work_left / PKI_WORK_UNIT_BYTES * PKI_WORK_UNIT_BYTES;
    size_t some = bytes <= e->rounds.work_left ? bytes : most;

    e->rounds.work_left = bytes > some ? 0 : e->rounds.work_left - some; /* what is left of it would do for nothing */
    if (bytes > some || some >= e->config.agreed->pair.host_chunk_bytes) /* rounds are long then */
        pki_engine_check_soon(e);
    return some;
}

void pki_task_set_device_driven(struct pki_task *task)
{
    task->device_driven = true;
    atomic_fetch_add(&task->engine->service.device_driven_tasks, 1);
}

void pki_task_set_cpu_driven(struct pki_task *task)
{
    if (task->device_driven)
        atomic_fetch_sub(&task->engine->service.device_driven_tasks, 1);
    task->device_driven = false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread: an operation that comes while it falls asleep, and the clock that it sleeps by. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "engine/life.h"

#define FALLS_ASLEEP_NS 2000000 /* far longer than it stays awake with nothing to do */
#define LIMIT_NS (10 * PKI_NS_PER_S)
#define WAITS 3
#define WANTED 5 /* looks: the one before the operation, the last before it sleeps, and more */

static struct pki_engine *engine;
static atomic_int checks;

/* Called as the thread looks at the only task. At first it was watched, no more: what it has found by then is that there is nothing to do. */
static bool look(const struct pki_queue *queue)
{
    (void)queue;
    if (atomic_fetch_add(&checks, 1) > 0)
        return false;
    nanosleep(&(struct timespec){ .tv_nsec = FALLS_ASLEEP_NS }, NULL);
    atomic_store(&engine->service.watched, 0);
    atomic_store(&engine->service.device_driven_tasks, 1);
    atomic_store(&engine->service.async_tasks, 1);
    cr_assert_eq(pki_service_wake(), PK_OK); /* it is not asleep yet */
    return false;
}

static void await_checks(int wanted)
{
    const uint64_t until = pki_now_ns() + LIMIT_NS;

    while (atomic_load(&checks) < wanted && pki_now_ns() < until)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* Calm: by a kernel, which does not wake the thread at its end. */
Test(service, device_driven_operation_while_it_falls_asleep)
{
    static const struct pki_device_ops ops = { .idle = look };
    static struct pki_device device = { .ops = &ops };
    static struct pki_task task = { .cuda.queue.device = &device, .mode = PKI_TASK_AFTER_STREAM, .deadline_ns = PKI_NO_DEADLINE };
    const struct pki_engine_config config = { .size = 1, .local_ranks = 1 };

    cr_assert_eq(pki_engine_open(&config, &engine), PK_OK);
    pki_engine_start(engine);
    task.engine = engine;
    task.begun_ns = pki_now_ns();
    atomic_init(&task.host.may_start, true);
    pki_list_push(&engine->tasks.all, &task.node);
    atomic_store(&engine->service.watched, 1);
    cr_assert_eq(pki_service_wake(), PK_OK);
    await_checks(WANTED);
    cr_expect_geq(atomic_load(&checks), WANTED, "it sleeps beside an unfinished operation");
    pki_engine_lock(engine);
    pki_list_remove(&task.node);
    atomic_store(&engine->service.device_driven_tasks, 0);
    atomic_store(&engine->service.async_tasks, 0);
    pki_engine_unlock(engine);
    cr_expect_eq(pki_engine_close(engine), PK_OK);
}

/* The library's waits for a condition until some time pass through here, for the test is linked with its objects. */
static atomic_int waits, early;

static void count(const struct timespec *until, int result)
{
    struct timespec now;

    if (result != ETIMEDOUT)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec < until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec < until->tv_nsec))
        atomic_fetch_add(&early, 1);
    atomic_fetch_add(&waits, 1);
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *) = NULL;
    int result;

    *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    result = real(cond, mutex, until);
    count(until, result);
    return result;
}

/* Setting the system's clock back must not make a sleep longer: its end is a time of the monotonic clock, and it has come when the sleep
 * ends. By the system's clock the end lies decades later; where the condition does not know of the monotonic one, it ends at once. */
Test(service, sleeps_by_the_monotonic_clock)
{
    const struct pki_engine_config config = { .size = 1, .local_ranks = 1 };
    const uint64_t limit_ns = pki_now_ns() + LIMIT_NS;

    cr_assert_eq(pki_engine_open(&config, &engine), PK_OK);
    pki_engine_start(engine);
    atomic_store(&engine->service.watched, 1);
    cr_assert_eq(pki_service_wake(), PK_OK);
    while (atomic_load(&waits) < WAITS && pki_now_ns() < limit_ns)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    atomic_store(&engine->service.watched, 0);
    cr_expect_eq(pki_engine_close(engine), PK_OK);
    cr_expect_geq(atomic_load(&waits), WAITS);
    cr_expect_eq(atomic_load(&early), 0, "%d of %d sleeps ended before their time", atomic_load(&early), atomic_load(&waits));
}

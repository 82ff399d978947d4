/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service thread of the process: it advances engines that have operations in streams, and sleeps when none has. It starts with
 * the first such operation and ends with the last engine.
 *
 * It also looks, now and then, after lanes that can break behind the last message of a rank that then waits in another communicator, or in none:
 * the peer may wait for that message. Where there are such lanes the thread starts with the first of them.
 */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "engine/internal.h"
#include "util/cpus.h"
#include "util/fork.h"
#include "util/thread.h"

#define WATCH_NS 10000000 /* how soon a peer's death is noticed for graphs that wait */
#define TEND_NS (100 * PKI_NS_PER_MS) /* how often lanes are looked after: an idle process pays for each time */
#define MEND_NS PKI_NS_PER_MS /* and while they are being mended, which takes several notes to and fro */
#define AWAKE_NS 200000ull /* how long it stays awake with nothing to do: operations come in rows */
/* Where callers wait for their streams themselves it only dozes for a while: to wake it from its sleep with every operation costs more
 * than a doze costs the operation that nobody waits for. */
#define DOZE_NS 100000
#define DOZING_NS (20 * PKI_NS_PER_MS)

static struct {
    pthread_mutex_t lock; /* held while engines are visited, so that detach waits for the visit */
    pthread_cond_t wakeup;
    struct pki_list engines;
    pthread_t thread;
    bool listed, running;
    unsigned generation; /* of the thread that is meant to run: an older one ends, even if a newer has been started already */
    atomic_bool awake, asleep; /* awake: the thread exists */
} service = { .lock = PTHREAD_MUTEX_INITIALIZER, .wakeup = PTHREAD_COND_INITIALIZER };

void pki_engine_leave(struct pki_engine *e)
{
    bool left_over = atomic_load(&e->async_tasks) > 0; /* of other streams; while this thread counts, the engine stays */

    if (atomic_fetch_sub(&e->drivers, 1) == 1 && left_over)
        (void)pki_service_wake();
}

static uint64_t tend_every(const struct pki_engine *e)
{
    return e->mending ? MEND_NS : TEND_NS;
}

/* Whoever has the lock looks after its lanes itself. */
static void tend(struct pki_engine *e)
{
    uint64_t now = e->tended ? pki_now_ns() : 0;

    if (!e->tended || now - e->tended_ns < tend_every(e) || !pki_engine_trylock(e))
        return;
    pki_note_tend(e);
    e->tended_ns = now;
    pki_engine_unlock(e);
}

/* *busy: there is work that nobody else sees to; *driven: there is some that a waiting thread does. */
static bool visit(bool *busy, bool *driven)
{
    bool moved = false;

    for (struct pki_list *n = service.engines.next; n != &service.engines; n = n->next) {
        struct pki_engine *e = pki_container_of(n, struct pki_engine, in_service);
        bool works = atomic_load(&e->async_tasks) > 0, watched = atomic_load(&e->watched) > 0;

        bool calm = works && atomic_load(&e->calm_tasks) == atomic_load(&e->async_tasks);

        tend(e);
        if (!works && !watched)
            continue;
        if (works && atomic_load(&e->drivers) > 0) {
            *driven = true;
            continue;
        }
        *driven |= calm; /* by the GPU */
        *busy |= (works && !calm) || atomic_load(&e->failed) != PK_OK; /* replays that wait are let go one wait at a time */
        if (!pki_engine_trylock(e))
            continue;
        if (!works)
            pki_engine_look_soon(e);
        moved |= pki_engine_progress(e);
        pki_engine_unlock(e);
    }
    return moved;
}

static void rest(unsigned idle)
{
    if (idle < 2000)
        pki_cpu_pause();
    else if (idle < 20000)
        sched_yield();
    else
        nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
}

/* How long it may sleep: graphs may wait for a peer that dies, and lanes may break. 0: until it is woken. */
static uint64_t sleep_ns(void)
{
    uint64_t shortest = 0;

    for (struct pki_list *n = service.engines.next; n != &service.engines; n = n->next) {
        const struct pki_engine *e = pki_container_of(n, struct pki_engine, in_service);
        uint64_t ns = atomic_load(&e->watched) > 0 ? WATCH_NS : 0;

        if (e->tended && (ns == 0 || tend_every(e) < ns))
            ns = tend_every(e);
        if (ns != 0 && (shortest == 0 || ns < shortest))
            shortest = ns;
    }
    return shortest;
}

/* Sleep until there is work, or something to look at. True: the latter. */
static bool sleep_watching(void)
{
    uint64_t ns = sleep_ns();
    struct timespec until;

    if (ns == 0) {
        pthread_cond_wait(&service.wakeup, &service.lock);
        return false;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_cond_timedwait(&service.wakeup, &service.lock, &until) != 0;
}

/* Asleep is set before the last look, and wake looks at it after counting the operation: one of the two sees the other. */
static void sleep_unless_busy(unsigned generation)
{
    bool busy = false, driven = false;

    atomic_store(&service.asleep, true);
    (void)visit(&busy, &driven);
    while (!busy && service.generation == generation && atomic_load(&service.asleep)) {
        if (!sleep_watching())
            continue;
        (void)visit(&busy, &driven);
    }
    atomic_store(&service.asleep, false);
}

/* Nothing to do, or nothing that the waiting threads do not do. */
static void linger(unsigned generation, uint64_t busy_ns, uint64_t driven_ns)
{
    uint64_t now = pki_now_ns();

    if (now - busy_ns <= AWAKE_NS) {
        sched_yield();
        return;
    }
    if (now - driven_ns <= DOZING_NS) {
        nanosleep(&(struct timespec){ .tv_nsec = DOZE_NS }, NULL);
        return;
    }
    pthread_mutex_lock(&service.lock);
    if (service.generation == generation)
        sleep_unless_busy(generation);
    pthread_mutex_unlock(&service.lock);
}

static void *serve(void *arg)
{
    unsigned generation = (unsigned)(uintptr_t)arg;
    uint64_t busy_ns = pki_now_ns(), driven_ns = 0;
    unsigned idle = 0;
    bool go_on = true;

    pki_cpus_widen();
    while (go_on) {
        bool busy = false, driven = false, moved;

        pthread_mutex_lock(&service.lock);
        moved = visit(&busy, &driven);
        go_on = service.generation == generation;
        pthread_mutex_unlock(&service.lock);
        idle = moved ? 0 : idle + 1;
        if (busy)
            busy_ns = pki_now_ns();
        else if (driven)
            driven_ns = pki_now_ns();
        if (busy && !moved)
            rest(idle);
        else if (!busy && go_on)
            linger(generation, busy_ns, driven_ns);
    }
    return NULL;
}

/* Locked. */
static pk_result_t start_thread(void)
{
    int error = pki_thread_start(&service.thread, serve, (void *)(uintptr_t)service.generation);

    if (error != 0)
        return pki_fail(PK_ERR_SYSTEM, NULL, "no service thread: error %d", error);
    service.running = true;
    return PK_OK;
}

pk_result_t pki_service_wake(void)
{
    pk_result_t result = PK_OK;

    if (atomic_load(&service.awake) && !atomic_load(&service.asleep))
        return PK_OK;
    pthread_mutex_lock(&service.lock);
    if (!service.running)
        result = start_thread();
    atomic_store(&service.awake, service.running);
    atomic_store(&service.asleep, false);
    pthread_cond_broadcast(&service.wakeup);
    pthread_mutex_unlock(&service.lock);
    return result;
}

/* The thread and the engines are the parent's. */
static void start_over(void)
{
    pthread_mutex_init(&service.lock, NULL);
    pthread_cond_init(&service.wakeup, NULL);
    pki_list_init(&service.engines);
    service.running = false;
    atomic_store(&service.awake, false);
    atomic_store(&service.asleep, false);
}

void pki_service_attach(struct pki_engine *e)
{
    pthread_mutex_lock(&service.lock);
    if (!service.listed) {
        pki_list_init(&service.engines);
        pki_fork_at_child(start_over);
    }
    service.listed = true;
    pki_list_push(&service.engines, &e->in_service);
    pthread_mutex_unlock(&service.lock);
}

void pki_service_detach(struct pki_engine *e)
{
    pthread_t thread;
    bool join;

    pthread_mutex_lock(&service.lock);
    pki_list_remove(&e->in_service);
    join = service.running && service.listed && pki_list_empty(&service.engines);
    thread = service.thread;
    if (join) {
        service.generation++;
        service.running = false;
        atomic_store(&service.awake, false);
        pthread_cond_broadcast(&service.wakeup);
        pthread_mutex_unlock(&service.lock);
        pthread_join(thread, NULL);
        return;
    }
    pthread_mutex_unlock(&service.lock);
}

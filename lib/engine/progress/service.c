/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service thread of the process: it advances engines that have operations in streams, and sleeps when none has. It starts
 * with the first host stream, or the first operation in a CUDA stream, either of which fails without it, and ends with the last
 * engine and host stream. Where some engine has a GPU a second thread watches (watchdog.c): while the first one is kept by the
 * driver in one engine it has another thread take its place, for the other engines.
 *
 * It also looks, occasionally, after control channels that can break behind the last message of a rank that then waits in another
 * communicator, or in none: the peer may wait for that message. Where there are such control channels the thread starts with the
 * first of them.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/progress/progress.h"
#include "tuning/tuning.h"
#include "util/cpus.h"
#include "util/fork.h"
#include "util/thread.h"

struct server {
    struct pki_list node;
    pthread_t thread;
    unsigned generation; /* of the service: an older one ends when it can */
    atomic_uint steps;   /* odd while it visits an engine */
    atomic_bool ended;
    unsigned seen; /* the watchdog's */
    uint64_t since_ns;
};

static struct {
    pthread_mutex_t lock;        /* of all this; not held while an engine is visited */
    pthread_cond_t wakeup, left; /* wakeup: by make_wakeup; left: an engine has no visitors any more */
    struct pki_list engines;
    struct pki_list servers;
    int streams;           /* of the host */
    struct server *server; /* the one that is meant to run */
    int nservers;
    pthread_t watcher;
    unsigned watches; /* the number of the one that is meant to run */
    bool running, watching;
    unsigned generation; /* of the thread that is meant to run: an older one ends, even if a newer has been started already */
    atomic_bool awake, asleep; /* awake: the thread exists */
} service = { .lock = PTHREAD_MUTEX_INITIALIZER,
              .left = PTHREAD_COND_INITIALIZER,
              .engines = { &service.engines, &service.engines },
              .servers = { &service.servers, &service.servers } };

void pki_engine_leave(struct pki_engine *e)
{
    /* it may have got work since this thread looked last; and it may be gone now */
    if (atomic_fetch_sub(&e->service.drivers, 1) == 1)
        (void)pki_service_wake();
}

static bool advance(struct pki_engine *e, bool works)
{
    bool moved;

    if (!pki_engine_trylock(e))
        return false;
    if (!works)
        pki_engine_check_soon(e);
    moved = pki_engine_progress(e);
    pki_engine_unlock(e);
    return moved;
}

/* Locked, but not while it advances an engine, which stays meanwhile. */
static bool visit_one(struct server *self, struct pki_engine *e, bool needs_background, bool advances, bool works)
{
    bool moved;

    e->service.visitors++;
    pthread_mutex_unlock(&service.lock);
    atomic_fetch_add(&self->steps, 1);
    if (needs_background)
        pki_note_background(e);
    moved = advances && advance(e, works);
    atomic_fetch_add(&self->steps, 1);
    pthread_mutex_lock(&service.lock);
    if (--e->service.visitors == 0 && e->service.leaving)
        pthread_cond_broadcast(&service.left);
    return moved;
}

/* What there is to do in all engines. */
struct sight {
    bool busy;   /* work that nobody else sees to, */
    bool driven; /* some that a waiting thread does, which tells when it goes, */
    bool by_gpu; /* and some that a GPU does, which does not, or a thread that a GPU may keep: the watchdog looks after it */
};

/* Locked. */
static bool visit(struct server *self, struct sight *sight)
{
    bool moved = false;

    for (struct pki_list *n = service.engines.next; n != &service.engines; n = n->next) {
        struct pki_engine *e = pki_container_of(n, struct pki_engine, service.node);
        bool works = atomic_load(&e->service.async_tasks) > 0, watched = atomic_load(&e->service.watched) > 0,
             needs_background = pki_note_is_due(e);
        bool device_driven = works && atomic_load(&e->service.device_driven_tasks) == atomic_load(&e->service.async_tasks);
        bool others = works && atomic_load(&e->service.drivers) > 0, advances = (works || watched) && !others;

        if ((!advances && !others && !needs_background) || e->service.leaving)
            continue;
        sight->driven |= others;
        sight->by_gpu |= (advances && device_driven) || (others && e->gpu != NULL);
        if (advances)
            sight->busy |= (works && !device_driven) || atomic_load(&e->failed) != PK_OK; /* replays go on one wait at a time */
        if (advances || needs_background)
            moved |= visit_one(self, e, needs_background, advances, works);
    }
    return moved;
}

/* How long it may sleep: graphs may wait for a peer that dies, and control channels may break. 0: until it is woken. */
static uint64_t sleep_ns(void)
{
    uint64_t shortest = 0;

    for (struct pki_list *n = service.engines.next; n != &service.engines; n = n->next) {
        const struct pki_engine *e = pki_container_of(n, struct pki_engine, service.node);
        uint64_t ns = atomic_load(&e->service.watched) > 0 ? pki_tuning.wait.graphs_ns : 0, notes = pki_note_every_ns(e);

        if (notes != 0 && (ns == 0 || notes < ns))
            ns = notes;
        if (ns != 0 && (shortest == 0 || ns < shortest))
            shortest = ns;
    }
    return shortest;
}

/* Locked. False: nothing has happened for so long. */
static bool await_wakeup(long ns)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_cond_timedwait(&service.wakeup, &service.lock, &until) == 0;
}

/* Sleep until there is work, or something to look at. True: the latter. */
static bool sleep_unless_due(void)
{
    uint64_t ns = sleep_ns();

    if (ns == 0) {
        pthread_cond_wait(&service.wakeup, &service.lock);
        return false;
    }
    return !await_wakeup((long)ns);
}

/*
 * Asleep is set before the last look, and wake looks at it after counting the operation: one of the two sees the other. What the
 * last look finds may be device-driven: nobody else will see its end, its deadline, or that another rank does it in another way.
 */
static void sleep_unless_busy(struct server *self)
{
    struct sight sight = { .busy = false };

    atomic_store(&service.asleep, true);
    (void)visit(self, &sight);
    while (!sight.busy && !sight.by_gpu && service.generation == self->generation && atomic_load(&service.asleep)) {
        if (!sleep_unless_due())
            continue;
        (void)visit(self, &sight);
    }
    if (service.generation == self->generation)
        atomic_store(&service.asleep, false);
}

/* Nothing to do, or nothing that the waiting threads or a GPU do not do. stirred_ns: when a thread began or ended to wait, or a
 * GPU was seen at work. */
static void linger(struct server *self, uint64_t busy_ns, uint64_t stirred_ns)
{
    uint64_t now = pki_now_ns();

    if (busy_ns > stirred_ns && now - busy_ns <= pki_tuning.wait.awake_ns) {
        sched_yield();
        return;
    }
    if (now - stirred_ns <= pki_tuning.wait.light_sleeping_ns) {
        nanosleep(&(struct timespec){ .tv_nsec = (long)pki_tuning.wait.light_sleep_ns }, NULL);
        return;
    }
    pthread_mutex_lock(&service.lock);
    if (service.generation == self->generation)
        sleep_unless_busy(self);
    pthread_mutex_unlock(&service.lock);
}

static void *serve(void *arg)
{
    struct server *self = arg;
    uint64_t busy_ns = pki_now_ns(), stirred_ns = 0;
    unsigned idle = 0;
    const bool spins = pki_cpus_count() > 1;
    bool go_on = true, was_driven = false;

    while (go_on) {
        struct sight sight = { .busy = false };
        bool moved;

        pthread_mutex_lock(&service.lock);
        moved = visit(self, &sight);
        go_on = service.generation == self->generation;
        pthread_mutex_unlock(&service.lock);
        idle = moved ? 0 : idle + 1;
        if (sight.busy)
            busy_ns = pki_now_ns();
        else if (sight.by_gpu || sight.driven != was_driven)
            stirred_ns = pki_now_ns();
        was_driven = sight.driven;
        if (sight.busy && !moved)
            pki_service_rest(idle, spins);
        else if (!sight.busy && go_on)
            linger(self, busy_ns, stirred_ns);
    }
    atomic_store(&self->ended, true);
    return NULL;
}

static void end_server(struct server *s)
{
    pthread_join(s->thread, NULL);
    pki_list_remove(&s->node);
    free(s);
}

/* Locked. Those that the driver has let go. */
static void end_ended(void)
{
    struct pki_list *next;

    for (struct pki_list *n = service.servers.next; n != &service.servers; n = next) {
        struct server *s = pki_container_of(n, struct server, node);

        next = n->next;
        if (!atomic_load(&s->ended))
            continue;
        end_server(s);
        service.nservers--;
    }
}

/* Locked. */
static pk_result_t start_thread(void)
{
    struct server *s;

    end_ended();
    if (service.nservers == PKI_SERVERS)
        return pki_fail(PK_ERR_SYSTEM, NULL, "no service thread: the driver keeps %d of them", PKI_SERVERS);
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a service thread");
    s->generation = service.generation;
    if (pki_thread_start(&s->thread, serve, s) != 0) {
        free(s);
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "pthread_create of the service thread, which advances operations in streams");
    }
    pki_list_push(&service.servers, &s->node);
    service.nservers++;
    service.server = s;
    service.running = true;
    return PK_OK;
}

/* Locked. Engines that the driver does not keep are another thread's from now on. */
static void replace(uint64_t now)
{
    struct server *s = service.server;
    unsigned steps = atomic_load(&s->steps);

    if (steps % 2 == 0 || steps != s->seen) {
        s->seen = steps;
        s->since_ns = now;
        return;
    }
    if (now - s->since_ns < pki_tuning.wait.stuck_ns)
        return;
    s->since_ns = now; /* in case there is no other */
    if (service.nservers == PKI_SERVERS)
        return;
    service.generation++;
    if (start_thread() != PK_OK)
        service.generation--;
}

static void look_around(void)
{
    uint64_t now = pki_now_ns();

    if (service.running)
        replace(now);
    for (struct pki_list *n = service.engines.next; n != &service.engines; n = n->next) {
        struct pki_engine *e = pki_container_of(n, struct pki_engine, service.node);

        if (e->gpu != NULL)
            pki_watchdog_check(e, now);
    }
}

static void *watch(void *arg)
{
    const unsigned number = (unsigned)(uintptr_t)arg;

    pthread_mutex_lock(&service.lock);
    while (service.watching && service.watches == number) {
        if (!service.running || atomic_load(&service.asleep))
            pthread_cond_wait(&service.wakeup, &service.lock);
        else if (!await_wakeup(pki_tuning.wait.watchdog_ns))
            look_around();
    }
    pthread_mutex_unlock(&service.lock);
    return NULL;
}

/* Locked. */
static void start_watchdog(void)
{
    if (service.watching)
        return;
    service.watching = true;
    service.watching = pki_thread_start(&service.watcher, watch, (void *)(uintptr_t)++service.watches) == 0;
    if (!service.watching)
        pki_log(PKI_LOG_WARN, NULL, "no thread for the watchdog, which notices driver calls that do not return: %s",
                strerror(errno));
}

/* Locked. */
static pk_result_t start_once(void)
{
    pk_result_t result = service.running ? PK_OK : start_thread();

    atomic_store(&service.awake, service.running);
    pthread_cond_broadcast(&service.wakeup); /* the watchdog waits for a thread that it is to watch */
    return result;
}

pk_result_t pki_service_start(void)
{
    pk_result_t result;

    if (atomic_load(&service.awake))
        return PK_OK;
    pthread_mutex_lock(&service.lock);
    result = start_once();
    pthread_mutex_unlock(&service.lock);
    return result;
}

pk_result_t pki_service_wake(void)
{
    pk_result_t result;

    if (atomic_load(&service.awake) && !atomic_load(&service.asleep))
        return PK_OK;
    pthread_mutex_lock(&service.lock);
    result = start_once();
    atomic_store(&service.asleep, false);
    pthread_cond_broadcast(&service.wakeup);
    pthread_mutex_unlock(&service.lock);
    return result;
}

/* The system's clock may be set back while a thread sleeps. */
static void make_wakeup(void)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&service.wakeup, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* The thread and the engines are the parent's. */
static void start_over(void)
{
    pthread_mutex_init(&service.lock, NULL);
    make_wakeup();
    pthread_cond_init(&service.left, NULL);
    pki_list_init(&service.engines);
    service.running = service.watching = false;
    pki_list_init(&service.servers);
    service.nservers = service.streams = 0;
    atomic_store(&service.awake, false);
    atomic_store(&service.asleep, false);
}

/* For who may come first. */
static void lock_first(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_wakeup);
    pki_fork_at_child(start_over); /* before the lock is held that a child may find held */
    pthread_mutex_lock(&service.lock);
}

void pki_service_attach(struct pki_engine *e)
{
    lock_first();
    pki_list_push(&service.engines, &e->service.node);
    if (e->gpu != NULL)
        start_watchdog();
    pthread_mutex_unlock(&service.lock);
}

void pki_service_each(void (*visit)(struct pki_engine *e), uint64_t ns)
{
    const uint64_t until = pki_now_ns() + ns;

    while (pthread_mutex_trylock(&service.lock) != 0) {
        if (pki_now_ns() > until)
            return;
        sched_yield();
    }
    for (struct pki_list *n = service.engines.next; n != &service.engines; n = n->next)
        visit(pki_container_of(n, struct pki_engine, service.node));
    pthread_mutex_unlock(&service.lock);
}

/* Locked, and not any more on return. */
static void end_threads(void)
{
    const bool watching = service.watching;
    const pthread_t watcher = service.watcher;
    struct pki_list servers, *node;

    pki_list_init(&servers);
    while ((node = pki_list_pop(&service.servers)) != NULL)
        pki_list_push(&servers, node);
    service.nservers = 0;
    service.generation++;
    service.running = service.watching = false;
    atomic_store(&service.awake, false);
    pthread_cond_broadcast(&service.wakeup);
    pthread_mutex_unlock(&service.lock);
    if (watching)
        pthread_join(watcher, NULL);
    while (!pki_list_empty(&servers))
        end_server(pki_container_of(servers.next, struct server, node));
}

/* Locked, and not any more on return. */
static void end_unless_used(void)
{
    if ((service.running || service.watching) && pki_list_empty(&service.engines) && service.streams == 0)
        end_threads();
    else
        pthread_mutex_unlock(&service.lock);
}

void pki_service_detach(struct pki_engine *e)
{
    pthread_mutex_lock(&service.lock);
    e->service.leaving = true;
    while (e->service.visitors > 0)
        pthread_cond_wait(&service.left, &service.lock);
    pki_list_remove(&e->service.node);
    end_unless_used();
}

pk_result_t pki_service_hold(void)
{
    pk_result_t result;

    lock_first();
    result = start_once();
    service.streams += result == PK_OK;
    pthread_mutex_unlock(&service.lock);
    return result;
}

void pki_service_let_go(void)
{
    pthread_mutex_lock(&service.lock);
    service.streams--;
    end_unless_used();
}

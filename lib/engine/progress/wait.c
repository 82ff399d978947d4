/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting: what a thread does that has nothing to do, and the loop of one that waits for several engines (for one: progress.c).
 * It looks again at once while each rank has a CPU of its own, then leaves the CPU to others, and at last sleeps (sleep.c). A
 * thread that waits for several engines goes by the least patient of them.
 */
#include <sched.h>
#include <time.h>

#include "engine/progress/progress.h"

bool pki_engine_spins(const struct pki_engine *e)
{
    if (pki_switched_is_busy(e))
        return false;
    for (int i = 0; i < e->ifaces.n; i++)
        if (atomic_load_explicit(&e->ifaces.at[i]->in_kernel, memory_order_relaxed))
            return false;
    return !e->config.shares_cpu;
}

static unsigned yields(const struct pki_engine *e)
{
    if (pki_switched_is_busy(e) && e->config.shares_cpu)
        return pki_tuning.wait.yields_beside_aggregator;
    for (int i = 0; i < e->ifaces.n; i++)
        if (e->ifaces.at[i]->carries && e->ifaces.at[i]->in_threads)
            return pki_tuning.wait.yields_beside_threads;
    if (e->config.shares_cpu)
        return pki_tuning.wait.yields;
    return pki_engine_spins(e) ? pki_tuning.wait.yields_spinning : pki_tuning.wait.yields_beside_kernel;
}

enum rest { LOOK_AGAIN, YIELD, SLEEP };

static enum rest rest_of(const struct pki_engine *e, unsigned idle)
{
    if (!e->config.shares_cpu && idle < (pki_engine_spins(e) ? pki_tuning.wait.spins : pki_tuning.wait.spins_beside_kernel))
        return LOOK_AGAIN;
    return idle < yields(e) ? YIELD : SLEEP;
}

/* Out of the way: a look in vain, which comes before it thousands of times, would pay for its frame. */
static __attribute__((noinline, cold)) void sleep_for(const struct pki_awaited *first, unsigned idle)
{
    unsigned before = yields(first->engine); /* rounds before the first sleep, unless others are less patient */

    if (!pki_engines_sleep(first, idle > before ? idle - before : 0))
        nanosleep(&(struct timespec){ .tv_nsec = (long)pki_tuning.wait.nap_ns }, NULL);
    for (; first != NULL; first = first->next)
        pki_engine_check_soon(first->engine); /* a sleeper looks around at every waking */
}

static inline __attribute__((always_inline)) void rest_for(const struct pki_awaited *first, enum rest rest, unsigned idle)
{
    if (rest == LOOK_AGAIN)
        pki_cpu_pause();
    else if (rest == YIELD)
        sched_yield();
    else
        sleep_for(first, idle);
}

void pki_engine_backoff(struct pki_engine *e, unsigned idle)
{
    const struct pki_awaited one = { .engine = e };

    rest_for(&one, rest_of(e, idle), idle);
}

/* Any message for this engine wakes a thread that sleeps. */
static bool is_woken(const struct pki_engine *e)
{
    for (int i = 0; i < e->ifaces.n; i++)
        if (e->ifaces.at[i]->carries && e->ifaces.at[i]->transport->between_hosts)
            return false;
    return e->gpu == NULL;
}

void pki_engine_backoff_beside(const struct pki_awaited *a, unsigned idle)
{
    const bool woken = is_woken(a->engine);

    if (woken && pki_engine_spins(a->engine) && idle < pki_tuning.wait.stream_spins)
        pki_cpu_pause();
    else if (woken && pki_engines_sleep(a, 0))
        pki_engine_check_soon(a->engine); /* a sleeper looks around at every waking */
    else                                  /* nothing would wake it; or the kernel has no sleep for this number of wake words */
        rest_for(a, rest_of(a->engine, idle), idle);
}

/* On the only CPU of a bound program the service thread and the program's take turns. */
void pki_service_rest(unsigned idle, bool spins)
{
    if (spins && idle < pki_tuning.wait.service_spins)
        pki_cpu_pause();
    else if (idle < pki_tuning.wait.service_yields)
        sched_yield();
    else
        nanosleep(&(struct timespec){ .tv_nsec = pki_tuning.wait.service_nap_ns }, NULL);
}

/* ---- Several engines ---- */

static bool have_ended(const struct pki_list *blocking)
{
    for (struct pki_list *n = blocking->next; n != blocking; n = n->next)
        if (!atomic_load_explicit(&pki_container_of(n, struct pki_task, waiting)->ended, memory_order_acquire))
            return false;
    return true;
}

static bool all_have_ended(const struct pki_awaited *first)
{
    bool ended = true;

    for (const struct pki_awaited *a = first; a != NULL; a = a->next)
        ended = ended && have_ended(&a->blocking);
    return ended;
}

/* Progress once of each, also where all that is awaited has ended: bytes of it may still have to leave, and a rank whose answer
 * another part waits for may wait for these. One that has failed has none. */
static bool progress_all(struct pki_awaited **first)
{
    bool moved = false;

    for (struct pki_awaited **link = first; *link != NULL;) {
        struct pki_engine *e = (*link)->engine;

        if (atomic_load(&e->failed) != PK_OK && have_ended(&(*link)->blocking)) {
            *link = (*link)->next;
            continue;
        }
        if (pki_engine_trylock(e)) {
            moved |= pki_engine_progress(e);
            pki_engine_unlock(e);
        }
        link = &(*link)->next;
    }
    return moved;
}

void pki_engines_wait(struct pki_awaited *first)
{
    unsigned idle = 0;

    while (!all_have_ended(first)) {
        enum rest rest = LOOK_AGAIN;
        bool moved = progress_all(&first);

        idle = moved ? 0 : idle + 1;
        for (const struct pki_awaited *a = first; a != NULL; a = a->next)
            if (rest_of(a->engine, idle) > rest)
                rest = rest_of(a->engine, idle);
        if (!moved && !all_have_ended(first))
            rest_for(first, rest, idle);
    }
}

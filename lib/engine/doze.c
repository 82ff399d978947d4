/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last rung of waiting: sleep until a peer on this machine writes a message. Each lane has a bell, a word that both ends see. Who
 * is about to sleep sets the bells of all its lanes and looks at the lanes once more; who writes a message and finds the bell set
 * clears it and wakes the sleeper. A lane without a bell cannot wake anybody: then the caller naps instead.
 *
 * The writer has no fence between its message and its look at the bell, for every message would pay for it. So its processor may look
 * first, and both may miss the other. That takes a message that lies in a store buffer all the time that the sleeper waits before
 * its last look, thousands of cycles; and what it costs then is the rest of one sleep.
 */
#include "engine/internal.h"
#include "util/futex.h"

#define SLEEP_NS (10 * PKI_NS_PER_MS) /* then deadlines and sockets are looked at */
#define SETTLE_NS 3000

/* The bells of all lanes, or 0: a message may come that rings none. */
static int find_bells(const struct pki_engine *e, _Atomic uint32_t **bells)
{
    int n = 0;

    for (int i = 0; i < e->config.size; i++) {
        const struct pki_ep *lane = e->peers[i].lane;

        if (lane == NULL)
            continue;
        if (lane->bell == NULL || n == PKI_FUTEX_WORDS)
            return 0;
        bells[n++] = lane->bell;
    }
    return n;
}

/* Nothing but a message can move anything here. */
static bool may_sleep(const struct pki_engine *e)
{
    return e->gpu == NULL && e->puts_out == 0 && pki_list_empty(&e->active) && atomic_load(&e->async_tasks) == 0 &&
           atomic_load(&e->watched) == 0 && atomic_load(&e->failed) == PK_OK;
}

static void set_bells(_Atomic uint32_t *const *bells, int n, uint32_t value)
{
    for (int i = 0; i < n; i++)
        atomic_store_explicit(bells[i], value, memory_order_relaxed);
}

/* Locked. Everything that had been written when the bells could be seen. */
static bool something_has_come(struct pki_engine *e)
{
    uint64_t until = pki_now_ns() + SETTLE_NS;
    bool moved;

    atomic_thread_fence(memory_order_seq_cst); /* bells, then lanes; for the partner see above */
    do {
        moved = pki_engine_progress(e);
        pki_cpu_pause();
    } while (!moved && pki_now_ns() < until);
    return moved || pki_engine_progress(e);
}

bool pki_engine_doze(struct pki_engine *e)
{
    _Atomic uint32_t *bells[PKI_FUTEX_WORDS];
    bool awake, slept = true;
    int n = 0;

    if (!pki_engine_trylock(e))
        return false;
    if (may_sleep(e))
        n = find_bells(e, bells);
    if (n > 0)
        set_bells(bells, n, 1);
    awake = n == 0 || something_has_come(e) || !may_sleep(e);
    pki_engine_unlock(e);
    if (n == 0)
        return false;
    if (!awake)
        slept = pki_futex_wait(bells, n, 1, SLEEP_NS);
    set_bells(bells, n, 0);
    return slept;
}

void pki_engine_rouse(struct pki_engine *e)
{
    _Atomic uint32_t *bells[PKI_FUTEX_WORDS];
    int n = find_bells(e, bells);

    for (int i = 0; i < n; i++)
        if (atomic_exchange(bells[i], 0) != 0)
            pki_futex_wake(bells[i]);
}

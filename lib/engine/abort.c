/* SPDX-License-Identifier: Apache-2.0 */
/* Giving up, by the program: at once and everywhere, or, with nothing unfinished, only here. */
#include <sched.h>

#include "engine/life.h"
#include "engine/mem/graphs.h"

#define ABORT_NS (20 * PKI_NS_PER_MS) /* how long the lock may be somebody else's */

/* Who has the lock may be in a call of the driver that comes back when a stream has been let go. */
bool pki_engine_lock_within(struct pki_engine *e, uint64_t ns)
{
    uint64_t until = pki_now_ns() + ns;

    while (!pki_engine_trylock(e)) {
        if (pki_now_ns() > until)
            return false;
        sched_yield();
    }
    return true;
}

static void record(struct pki_engine *e, pk_result_t code)
{
    struct pki_where where = pki_engine_where(e, -1, NULL);

    (void)pki_fail(code, &where, code == PK_ERR_REVOKED ? "revoked by this rank" : "aborted by this rank");
}

static bool lock_to_end(struct pki_engine *e, pk_result_t code)
{
    if (pki_engine_lock_within(e, ABORT_NS))
        return true;
    if (atomic_load(&e->failed) == PK_OK) {
        record(e, code);
        pki_engine_poison_unlocked(e, code);
    }
    pki_watchdog_release(e);
    return pki_engine_lock_within(e, PKI_DRAIN_NS); /* else whoever has it goes on from here */
}

/* Locked. Nothing of this rank is unfinished, here or in graphs. */
static bool is_idle_everywhere(const struct pki_engine *e)
{
    return pki_list_empty(&e->tasks.all) && !e->inlined.running && e->proto.puts_out == 0 &&
           atomic_load(&e->service.async_tasks) == 0 && atomic_load(&e->service.watched) == 0;
}

bool pki_engine_send_shutdown(struct pki_engine *e, enum pki_shutdown why)
{
    pki_graphs_reap(e);
    if (atomic_load(&e->failed) != PK_OK || !is_idle_everywhere(e))
        return false;
    pki_side_send_shutdown(e, why);
    return true;
}

/* Unlocked. What streams have ended the service thread may not have seen yet. It looks, not this thread: who looks may be kept
 * by the driver. */
static void await_idle(struct pki_engine *e)
{
    const uint64_t until = pki_now_ns() + PKI_SETTLE_NS;

    while (atomic_load(&e->service.async_tasks) > 0 && atomic_load(&e->failed) == PK_OK && pki_now_ns() < until) {
        (void)pki_service_wake();
        sched_yield();
    }
}

/* With nothing to release, here or for the others, this rank only leaves: who needs it later is told then. */
static bool abort_while_idle(struct pki_engine *e, const struct pki_where *where)
{
    if (!pki_engine_send_shutdown(e, PKI_SHUTDOWN_ABORTED))
        return false;
    (void)pki_fail_again(PK_ERR_ABORTED, 0, where, "aborted by this rank");
    pki_engine_enter(e, PKI_PHASE_COLLAPSED);
    pki_engine_poison(e, PK_ERR_ABORTED, false);
    return true;
}

/* Locked on entry. */
static void end_all(struct pki_engine *e, pk_result_t code)
{
    if (atomic_load(&e->failed) == PK_OK) {
        record(e, code);
        pki_engine_poison(e, code, true);
    }
    pki_engine_collapse(e);
    pki_engine_wake(e);
    pki_engine_drain(e);
    pki_engine_unlock(e);
}

void pki_engine_abort(struct pki_engine *e)
{
    struct pki_where where = pki_engine_where(e, -1, NULL);

    await_idle(e);
    atomic_store(&e->failure.aborted, true);
    if (!lock_to_end(e, PK_ERR_ABORTED))
        return;
    if (atomic_load(&e->failed) == PK_OK)
        (void)abort_while_idle(e, &where);
    end_all(e, PK_ERR_ABORTED);
}

void pki_engine_revoke(struct pki_engine *e)
{
    if (lock_to_end(e, PK_ERR_REVOKED))
        end_all(e, PK_ERR_REVOKED);
}

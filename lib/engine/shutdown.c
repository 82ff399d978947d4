/* SPDX-License-Identifier: Apache-2.0 */
/* A rank leaves in good order: behind what it has sent, when its communicator is finalized or destroyed, or its process ends. */
#include <sched.h>
#include <time.h>

#include "engine/life.h"
#include "engine/survive.h"
#include "util/fork.h"

#define EXIT_NS (200 * PKI_NS_PER_MS) /* of a busy machine; as a rule it takes less than one */

/* To a peer on another host: what was sent to it may still be on its way. */
static bool leaves(const struct pki_engine *e, const struct pki_peer *peer)
{
    if (peer->ctrl == NULL || peer->side_fd >= 0 || pki_survive_is_dead(e, peer->rank) || pki_side_dead_ep(peer) != NULL)
        return true;
    pki_note_carry(peer);
    peer->ctrl->farewell.mine = true;
    return !peer->ctrl->farewell.lingers;
}

/* Locked. True: nobody is waited for any more. */
static bool leave_a_bit(struct pki_engine *e)
{
    bool is_done = true;

    for (int i = 0; i < e->ifaces.n; i++)
        if (e->ifaces.at[i]->transport->between_hosts)
            (void)e->ifaces.at[i]->transport->progress(e->ifaces.at[i]);
    for (int i = 0; i < e->config.size; i++) {
        pki_side_take_messages(e, &e->peers[i]); /* that a peer leaves too may be among them */
        is_done &= leaves(e, &e->peers[i]);
    }
    return is_done;
}

/* A control channel that has failed is recovered first, for its sender has been told that its messages were sent; and the other
 * end of one may need this rank's notes. Each transport bounds the time. */
void pki_engine_leave_peers(struct pki_engine *e)
{
    const pk_error_info_t kept = *pki_error_get(); /* a peer that is lost now is in the log, and is not what closing returns */
    bool is_done = false;

    for (unsigned rounds = 0; !is_done; rounds++) {
        pki_engine_lock(e);
        is_done = leave_a_bit(e);
        pki_engine_unlock(e);
        if (!is_done && rounds < pki_tuning.wait.leaving_spins)
            sched_yield();
        else if (!is_done)
            nanosleep(&(struct timespec){ .tv_nsec = (long)pki_tuning.wait.leaving_nap_ns }, NULL);
    }
    pki_error_set(&kept);
}

pk_result_t pki_engine_finalize(struct pki_engine *e)
{
    pk_result_t result;

    pki_engine_lock(e);
    pki_engine_enter(e, PKI_PHASE_FLUSHES);
    pki_engine_unlock(e);
    pki_engine_wait_all(e);
    result = pki_engine_status(e);
    if (result != PK_OK)
        return result;
    pki_engine_lock(e);
    pki_engine_drain(e);
    pki_side_send_shutdown(e, PKI_SHUTDOWN_FINALIZED);
    pki_engine_unlock(e);
    pki_engine_leave_peers(e);
    return pki_engine_status(e);
}

/* ---- the end of the process, without pk_comm_destroy ---- */

/* A process that ends by exit or return from main tells the others, unless it has something unfinished: they would take the
 * closed connections for its death, and all be told so. Whatever is in the way, another thread inside the library for one,
 * keeps that from being said, not the process from ending. */
static uint64_t exit_until; /* for all of them together */
static atomic_bool any_started;

void pki_exit_matters(void)
{
    atomic_store(&any_started, true);
}

static uint64_t left_ns(void)
{
    const uint64_t now = pki_now_ns();

    return now < exit_until ? exit_until - now : 0;
}

static void leave_at_exit(struct pki_engine *e)
{
    if (!pki_engine_lock_within(e, left_ns()))
        return;
    if (pki_engine_send_shutdown(e, PKI_SHUTDOWN_ENDED))
        while (!leave_a_bit(e) && left_ns() > 0)
            sched_yield();
    pki_engine_unlock(e);
}

/* What streams have ended the service thread may not have seen yet. */
static void await_streams(void)
{
    const uint64_t until = pki_now_ns() + PKI_SETTLE_NS;

    while (pki_streams_wait() && pki_now_ns() < until) {
        (void)pki_service_wake();
        sched_yield();
    }
}

__attribute__((destructor)) static void at_exit(void)
{
    if (!atomic_load(&any_started))
        return;
    pki_fork_look(); /* a child has none of its parent's */
    exit_until = pki_now_ns() + EXIT_NS;
    await_streams();
    pki_service_each(leave_at_exit, left_ns());
}

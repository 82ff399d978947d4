/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watchdog: a call of the driver may stand still for as long as a stream waits. Loading a module or freeing memory waits for
 * all work of the GPU, and keeps the calls of other threads out meanwhile (docs/design/0020). A thread that is caught so inside
 * the library has the engine's lock: nobody looks at deadlines, and what the stream waits for may be this very engine's to give.
 * So a thread that calls no driver and takes no engine's lock sees to it that this ends: it fails what has stood for longer than
 * any operation may, and opens, by stores alone, the words that streams and kernels of this rank wait for. Then the driver's
 * calls come back, and the engine's own ways go on.
 */
#include "engine/progress/progress.h"
#include "engine/proto/offer.h"
#include "tuning/tuning.h"

#define GRACE_NS (500 * PKI_NS_PER_MS) /* beyond the deadline: others have the lock for long too, and keep it themselves */

static void let_go_slots(const struct pki_peer *peer, int slots)
{
    if (peer->ctrl == NULL || peer->let_go == NULL)
        return;
    for (int slot = 0; slot < slots; slot++) {
        uint32_t mine = atomic_load_explicit(&peer->let_go[slot], memory_order_relaxed);
        uint32_t theirs = atomic_load_explicit(&peer->let_go[PKI_PAIR_SLOTS + slot], memory_order_relaxed);
        struct pki_signal_slot *to = &peer->ctrl->signals_mine[slot], *from = &peer->ctrl->signals_theirs[slot];
        bool cell = slot >= PKI_SIGNAL_SLOTS;

        if (mine != 0)
            pki_watchdog_open(cell ? &to->start : &to->done, mine);
        if (theirs != 0 && cell)
            pki_offer_abort(from);
        if (theirs != 0)
            pki_watchdog_open(cell ? &from->done : &from->start, theirs);
    }
}

void pki_watchdog_open_slots(const struct pki_engine *e)
{
    for (int i = 0; i < e->config.size; i++)
        let_go_slots(&e->peers[i], PKI_SIGNAL_SLOTS);
}

/* What the CPU reads of these words is not believed once the engine has failed (recv.c, send.c). */
void pki_watchdog_release(struct pki_engine *e)
{
    if (e->signals.abort_word != NULL)
        atomic_store(e->signals.abort_word, 1);
    pki_signals_release_all(e);
    if (e->gpu != NULL)
        pki_signals_release_barriers(e);
    for (int i = 0; i < e->config.size; i++)
        let_go_slots(&e->peers[i], PKI_PAIR_SLOTS);
}

static void give_up(struct pki_engine *e, uint64_t held_ns)
{
    struct pki_where where = pki_engine_where(e, -1, NULL);

    if (atomic_load(&e->failed) != PK_OK)
        return;
    (void)pki_fail(PK_ERR_TIMEOUT, &where,
                   "a thread has been inside the library, or in a driver call that it made, for %llu ms: a driver call that "
                   "waits for all streams of the gpu (loading a module, freeing memory) keeps other threads out",
                   (unsigned long long)(held_ns / PKI_NS_PER_MS));
    pki_engine_poison_unlocked(e, PK_ERR_TIMEOUT);
}

/* What the others say meanwhile nobody reads. */
static void hear(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++) {
        pk_result_t result = pki_side_peek(e, &e->peers[i]);

        if (result != PK_OK)
            pki_engine_poison_unlocked(e, result);
    }
}

void pki_watchdog_check(struct pki_engine *e, uint64_t now)
{
    uint32_t turn = atomic_load_explicit(&e->lock.turns, memory_order_relaxed);

    if (turn % 2 == 0 || turn != e->lock.held.turn) {
        e->lock.held = (struct pki_watchdog){ turn, now };
        return;
    }
    if (e->config.timeout_ms > 0 && now - e->lock.held.since_ns > e->config.timeout_ms * PKI_NS_PER_MS + GRACE_NS)
        give_up(e, now - e->lock.held.since_ns);
    if (now - e->lock.held.since_ns > pki_tuning.wait.held_ns && atomic_load(&e->service.async_tasks) > 0)
        hear(e);
    if (atomic_load(&e->failed) != PK_OK)
        pki_watchdog_release(e);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a failure does here: nothing waits any more, and nothing touches the program's memory. */
#include "engine/progress/progress.h"
#include "engine/proto/offer.h"

static void peer_release(struct pki_peer *peer)
{
    struct pki_list *lists[2] = { &peer->sends, &peer->recvs };

    for (int i = 0; i < 2; i++)
        for (struct pki_list *n = lists[i]->next; n != lists[i]; n = n->next) {
            struct pki_xfer *xfer = pki_container_of(n, struct pki_xfer, match);

            /* Only what this rank's own streams wait for: the other signal would tell the peer of bytes that never came, or of a
             * buffer that is not free. */
            const struct pki_signal signal = pki_offer_moves(xfer) ? xfer->signals.start : pki_offer_finish(xfer);

            if (xfer->is_send && xfer->signals.cell != NULL)
                pki_offer_abort(xfer->signals.cell);
            if (signal.word != NULL)
                pki_signal_open(&signal);
        }
}

void pki_graphs_release(struct pki_engine *e)
{
    if (!pki_list_empty(&e->mem.graphs))
        pki_watchdog_open_slots(e);
}

/* The buffers of receives are their callers' again. What puts have come to is still counted. */
static void cancel_receives(struct pki_iface *iface)
{
    struct pki_list *next;

    iface->transport->recv_cancel(iface);
    for (struct pki_list *node = iface->events.next; node != &iface->events; node = next) {
        next = node->next;
        if (pki_container_of(node, struct pki_event, node)->kind != PKI_EVENT_PUT)
            pki_list_remove(node);
    }
}

/* Every stream and thread that waits is let go, every task ends, and before that what transports do with its memory. Runs once,
 * where nothing else is half done. */
void pki_engine_collapse(struct pki_engine *e)
{
    struct pki_list *node;

    if (e->phase == PKI_PHASE_COLLAPSED || atomic_load(&e->failed) == PK_OK)
        return;
    pki_engine_enter(e, PKI_PHASE_COLLAPSED);
    for (int i = 0; i < e->ifaces.n; i++)
        cancel_receives(e->ifaces.at[i]);
    if (e->signals.abort_word != NULL)
        atomic_store(e->signals.abort_word, 1);
    for (int i = 0; i < e->config.size; i++)
        if (e->peers[i].ctrl != NULL)
            peer_release(&e->peers[i]);
    if (e->gpu != NULL)
        pki_signals_release_barriers(e);
    pki_graphs_release(e);
    while ((node = e->tasks.all.next) != &e->tasks.all)
        pki_task_end(pki_container_of(node, struct pki_task, node), (pk_result_t)atomic_load(&e->failed));
    pki_engine_wake(e); /* threads that sleep until one of them ends */
}

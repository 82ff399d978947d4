/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that has left in good order, and operations here that wait for it. */
#include "engine/progress/progress.h"

/* The peer may have all of it, and this rank not yet be told so: the transport will say how it ended. */
static bool is_under_way(const struct pki_xfer *xfer)
{
    return xfer->is_send && pki_xfer_is_granted(xfer) && xfer->issued == xfer->bytes &&
           xfer->moves.puts.head != xfer->moves.puts.tail && xfer->path->state != PKI_EP_LEFT;
}

/* A kernel on each rank, or an aggregator, which waits for all, and the peer has not begun it. */
static bool waits_for_all(const struct pki_task *task, const struct pki_peer *peer)
{
    return (pki_task_is_fused(task) || pki_task_is_switched(task)) && peer->shutdown != PKI_SHUTDOWN_NONE &&
           (int32_t)((uint32_t)task->number - peer->last_coll) > 0;
}

/* NULL: none does, or what it waits for may yet show. */
static struct pki_task *waits_in_vain(struct pki_engine *e, struct pki_peer *peer)
{
    struct pki_list *list = !pki_list_empty(&peer->recvs) ? &peer->recvs : &peer->sends;

    if (!pki_list_empty(list)) {
        const struct pki_xfer *xfer = pki_container_of(list->next, struct pki_xfer, match);

        return is_under_way(xfer) ? NULL : xfer->user.task;
    }
    for (struct pki_list *n = e->tasks.all.next; n != &e->tasks.all; n = n->next)
        if (waits_for_all(pki_container_of(n, struct pki_task, node), peer))
            return pki_container_of(n, struct pki_task, node);
    return NULL;
}

#define GRACE_NS (2000 * PKI_NS_PER_MS) /* ranks that finalize together give up what they do not need of one another any more */

/* It left in good order, and what it had sent has been read: whoever still waits for it waits for ever. */
void pki_engine_check_left(struct pki_engine *e, struct pki_peer *peer)
{
    static const char *const what[] = { [PKI_SHUTDOWN_NONE] = "has destroyed its communicator",
                                        [PKI_SHUTDOWN_DESTROYED] = "has destroyed its communicator",
                                        [PKI_SHUTDOWN_ABORTED] = "has aborted its communicator",
                                        [PKI_SHUTDOWN_FINALIZED] = "has finalized its communicator",
                                        [PKI_SHUTDOWN_ENDED] = "has ended its process without pk_comm_destroy" };
    const pk_result_t code =
        peer->shutdown == PKI_SHUTDOWN_ABORTED || e->phase == PKI_PHASE_FLUSHES ? PK_ERR_ABORTED : PK_ERR_PEER;
    const struct pki_task *task;
    struct pki_where where;

    if (peer->gone_ns == 0) { /* what it did before it left shows in the next round of progress */
        peer->gone_ns = pki_now_ns();
        return;
    }
    if (peer->shutdown == PKI_SHUTDOWN_FINALIZED && e->phase != PKI_PHASE_FLUSHES && pki_now_ns() - peer->gone_ns < GRACE_NS)
        return;
    if (pki_ctrl_poll(e, peer) || (task = waits_in_vain(e, peer)) == NULL)
        return;
    where = pki_engine_where(e, peer->rank, task);
    (void)pki_fail(code, &where, "%s", what[peer->shutdown]);
    pki_engine_poison(e, code, true);
}

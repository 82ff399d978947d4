/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator has failed, and memory that writes read or fill is its owner's again. The data queue pairs are brought into
 * error: what the peer still writes is dropped by the device. The control channel stays, for it carries the news; if it fails,
 * queue pairs are made again as ever (recover.c), but those for data are never connected (qp.c).
 */
#include <sched.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

/* Its receives end in order, so the last one is flushed when nothing writes through it any more; requests likewise. */
static bool is_at_work(const struct pki_rdma_qp *qp)
{
    return qp->qp != NULL && (!qp->ended || qp->over != qp->posted);
}

static bool is_any_at_work(const struct pki_rdma_iface *iface)
{
    for (const struct pki_list *node = iface->eps.next; node != &iface->eps; node = node->next) {
        const struct pki_rdma_ep *ep = pki_container_of(node, struct pki_rdma_ep, node);

        for (uint32_t i = 1; i <= ep->nqps && ep->base.state != PKI_EP_DEAD; i++)
            if (is_at_work(&ep->qps[i]))
                return true;
    }
    return false;
}

static void end_data(struct pki_rdma_ep *ep)
{
    for (uint32_t i = 1; i <= ep->nqps; i++) {
        struct pki_rdma_qp *qp = &ep->qps[i];

        qp->dead = true;
        if (qp->qp != NULL && ep->recover.state != PKI_RDMA_DRAINING && !pki_rdma_qp_end(qp))
            qp->ended = true; /* nothing would tell of its end */
    }
}

static void forget_moves(struct pki_rdma_ep *ep)
{
    pki_rdma_moves_fail(ep); /* the engine counts them until they end */
    for (size_t i = 0; i < ep->grants.n; i++)
        ep->grants.at[i].recv = NULL;
    for (uint32_t i = 1; i <= ep->nqps; i++)
        ep->qps[i].completed = ep->qps[i].posted;
}

void pki_rdma_recv_cancel(struct pki_iface *base)
{
    struct pki_rdma_iface *iface = pki_rdma_iface_of(base);
    uint64_t until = pki_now_ns() + PKI_REVOKE_NS;

    iface->revoked = true;
    for (struct pki_list *node = iface->eps.next; node != &iface->eps; node = node->next) {
        struct pki_rdma_ep *ep = pki_container_of(node, struct pki_rdma_ep, node);

        if (ep->base.state != PKI_EP_DEAD)
            end_data(ep);
    }
    while (is_any_at_work(iface) && pki_now_ns() < until)
        if (!pki_rdma_poll(iface))
            sched_yield();
    for (struct pki_list *node = iface->eps.next; node != &iface->eps; node = node->next)
        forget_moves(pki_container_of(node, struct pki_rdma_ep, node));
}

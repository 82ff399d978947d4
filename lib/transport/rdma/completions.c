/* SPDX-License-Identifier: Apache-2.0 */
/* What devices tell of requests and receives, and whom it concerns. */
#include <arpa/inet.h>
#include <stdio.h>

#include "transport/rdma/rdma.h"

static void completed_badly(struct pki_rdma_qp *qp, const struct ibv_wc *wc)
{
    struct pki_rdma_ep *ep = qp->ep;
    bool last = (wc->wr_id & PKI_RDMA_RECEIVE) != 0 && (uint32_t)wc->wr_id == PKI_RDMA_LAST;
    char text[128];

    ep->recover.drained += last && ep->recover.state == PKI_RDMA_DRAINING;
    qp->ended |= last;
    if ((wc->wr_id & PKI_RDMA_RECEIVE) == 0)
        qp->over = (uint32_t)wc->wr_id + 1;
    if (qp->dead || ep->base.state == PKI_EP_DEAD)
        return; /* the rest of its requests, flushed */
    if (pki_rdma_has_left(ep) && ep->moves.head == ep->moves.end) {
        qp->dead = true;
        return;
    }
    (void)snprintf(text, sizeof text, "%s on %s: %.60s", qp == &ep->qps[0] ? "the control channel" : "data", qp->rail->name,
                   pki_verbs(NULL)->wc_status_str(wc->status));
    pki_rdma_broken(ep, text);
}

/* The peer has written, and says to which grant. */
static void written(struct pki_rdma_qp *qp, uint32_t number, uint32_t bytes)
{
    struct pki_rdma_ep *ep = qp->ep;

    if (ep->base.state == PKI_EP_DEAD || ep->iface->revoked)
        return;
    if (!pki_rdma_grant_written(ep, number, bytes)) {
        pki_rdma_ep_failed(ep, "the peer wrote to memory that was not granted");
        return;
    }
    if (++qp->reported < PKI_RDMA_TELLING_BATCH || qp->dead)
        return;
    qp->reported = 0;
    if (pki_rdma_post_telling(qp, PKI_RDMA_TELLING_BATCH) != PK_OK)
        pki_rdma_ep_failed(ep, "receives could not be posted");
}

static void completed(struct pki_rdma_iface *iface, const struct ibv_wc *wc)
{
    uint32_t slot = (uint32_t)((wc->wr_id & ~PKI_RDMA_RECEIVE) >> 32);
    struct pki_rdma_qp *qp = slot < iface->nslots ? iface->qps[slot] : NULL;

    if (qp == NULL) /* of an endpoint that is closed, or made again */
        return;
    if (wc->status != IBV_WC_SUCCESS) {
        completed_badly(qp, wc);
        return;
    }
    if (qp->ep->recover.state == PKI_RDMA_UP)
        qp->ep->recover.since_ns = 0;
    if ((wc->wr_id & PKI_RDMA_RECEIVE) != 0 && qp != &qp->ep->qps[0])
        written(qp, ntohl(wc->imm_data), wc->byte_len);
    else if ((wc->wr_id & PKI_RDMA_RECEIVE) != 0)
        pki_rdma_ctrl_received(qp->ep, wc->byte_len);
    else if (qp == &qp->ep->qps[0])
        qp->completed = (uint32_t)wc->wr_id + 1;
    else if (qp->ep->base.state != PKI_EP_DEAD)
        pki_rdma_data_completed(qp, (uint32_t)wc->wr_id);
}

bool pki_rdma_poll(struct pki_rdma_iface *iface)
{
    struct ibv_wc wcs[PKI_RDMA_COMPLETIONS];
    bool any = false;

    for (int r = 0; r < iface->nrails; r++) {
        int n = ibv_poll_cq(iface->rails[r].cq, PKI_RDMA_COMPLETIONS, wcs);

        for (int i = 0; i < n; i++)
            completed(iface, &wcs[i]);
        iface->base.counts.completions += n > 0 ? (uint64_t)n : 0;
        any = any || n > 0;
    }
    return any;
}

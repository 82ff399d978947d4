/* SPDX-License-Identifier: Apache-2.0 */
/* What a control channel has counted, for people who look for what keeps it. */
#include "transport/rdma/rdma.h"
#include "util/clock.h"
#include "util/text.h"

static void add_qp(struct pki_text *out, const struct pki_rdma_qp *qp, uint32_t i)
{
    pki_text_add(out, "; %s %u on %s: %u requests posted, %u completed%s, no completion for %llu ms, %zu bytes in flight",
                 i == 0 ? "control" : "data", i, qp->rail != NULL ? qp->rail->name : "no device", qp->posted, qp->completed,
                 qp->dead ? ", dead" : "", (unsigned long long)(qp->stalled_ns / PKI_NS_PER_MS), qp->bytes);
}

static void describe(const struct pki_rdma_ep *ep, struct pki_text *out)
{
    static const char *const states[] = { "up", "draining", "waiting for a port", "greeting", "connected", "giving up" };
    const struct pki_rdma_ctrl *ctrl = &ep->ctrl;

    if (ep->qps == NULL || ctrl->block == NULL)
        return;
    pki_text_add(out, "%s%s%s%s for %llu ms, queue pairs made again %u times", states[ep->recover.state],
                 ep->base.state == PKI_EP_DEAD ? ", dead" : "", pki_rdma_has_left(ep) ? ", the peer has left" : "",
                 ep->iface->revoked ? ", revoked" : "",
                 (unsigned long long)((pki_now_ns() - ep->recover.entered_ns) / PKI_NS_PER_MS), ep->recover.epoch);
    pki_text_add(out,
                 "; %u messages sent, credit %u (written: %u); %u arrived, %u popped, %u receives posted again, %u of them "
                 "reported",
                 ctrl->sent, ctrl->credit, atomic_load_explicit(&ctrl->block->credit, memory_order_relaxed), ctrl->arrived,
                 ctrl->popped, ctrl->reposted, ctrl->reported);
    pki_text_add(out, "; puts %u to %u, %u of them issued, %u chunks to go again; %zu grants, %zu targets", ep->moves.head,
                 ep->moves.end, ep->moves.next - ep->moves.head, ep->nredo, ep->grants.n, ep->targets.n);
    for (uint32_t i = 0; i <= ep->nqps; i++)
        add_qp(out, &ep->qps[i], i);
}

void pki_rdma_report(struct pki_rdma_ep *ep)
{
    struct pki_text out = { .start = ep->report, .capacity = sizeof ep->report };

    ep->report[0] = '\0';
    describe(ep, &out);
}

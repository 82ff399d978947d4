/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that a device neither completes nor fails. RC queue pairs send again what is lost and fail when that is in vain, after
 * some 4 s; but that is the device's promise, and a device that forgets a request would have both ranks wait for ever. So where
 * requests are out and none completes for long, the queue pair counts as failed (recover.c).
 *
 * Of most messages on the control channel the device does not tell. When such a one has been the last for a while, a credit
 * follows of which it does.
 */
#include "transport/rdma/rdma.h"
#include "tuning/tuning.h"
#include "util/clock.h"

#define UNHEARD_NS (8 * PKI_NS_PER_S) /* twice what a queue pair tries (qp.c) */
#define ASK_NS (2 * PKI_NS_PER_S)     /* after so long */
#define UNHEARD_NS_A_BYTE 100         /* longer, of all that is under way: devices and wires are shared, by 10 MB/s at least */
#define COUNTED_NS \
    (200 * PKI_NS_PER_MS) /* at most from one look to the next: meanwhile the process, or the machine, stood still */

static uint64_t timeout_ns(const struct pki_rdma_iface *iface)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < iface->nslots; i++)
        bytes += iface->qps[i] != NULL ? iface->qps[i]->bytes : 0;
    return UNHEARD_NS + bytes * UNHEARD_NS_A_BYTE;
}

static void count_stall(struct pki_rdma_qp *qp, uint64_t ns)
{
    qp->stalled_ns = qp->completed == qp->heard && qp->completed != qp->posted ? qp->stalled_ns + ns : 0;
    qp->heard = qp->completed;
}

/* What has been counted goes to the log: nobody knows yet why devices forget. */
static void give_out(struct pki_rdma_ep *ep, bool is_ctrl)
{
    struct pki_where where = pki_rdma_where(ep);

    pki_rdma_report(ep);
    pki_log(PKI_LOG_WARN, &where, "rdma: no completions of %s: %s", is_ctrl ? "messages" : "writes", ep->report);
    pki_rdma_broken(ep, is_ctrl ? "no message was completed for 8 s" : "no write was completed for 8 s");
}

void pki_rdma_watchdog(struct pki_rdma_ep *ep)
{
    uint64_t now = pki_now_ns(), ns = now - ep->recover.listened_ns;
    bool stalls = false;

    if (ns < pki_tuning.rdma.watchdog_ns)
        return;
    ep->recover.listened_ns = now;
    for (uint32_t i = 0; i <= ep->nqps && ep->recover.state == PKI_RDMA_UP; i++) {
        struct pki_rdma_qp *qp = &ep->qps[i];

        count_stall(qp, ns < COUNTED_NS ? ns : COUNTED_NS);
        stalls |= qp->stalled_ns > 0;
        if (i == 0 && qp->stalled_ns > ASK_NS && (int32_t)(qp->signalled - qp->completed) <= 0)
            pki_rdma_ctrl_ask(ep);
        if (qp->stalled_ns > UNHEARD_NS && qp->stalled_ns > timeout_ns(ep->iface))
            give_out(ep, i == 0);
    }
    if (stalls)
        pki_rdma_report(ep);
    else
        ep->report[0] = '\0';
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a failure does at once: of a queue pair, which recover.c goes on from, or of the endpoint. */
#include "transport/rdma/rdma.h"
#include "util/clock.h"

/* Behind this a failure is a new one though nothing has completed meanwhile: longer than any device tries. */
#define STOOD_NS (30 * PKI_NS_PER_S)

void pki_rdma_moves_fail(struct pki_rdma_ep *ep)
{
    for (; ep->moves.head != ep->moves.end; ep->moves.head++) {
        struct pki_rdma_move *move = &ep->moves.at[ep->moves.head % PKI_RDMA_MOVES];

        pki_rdma_mr_put(ep->iface, move->mr);
        move->put->result = PK_ERR_PEER;
        pki_event_push(&ep->iface->base, &move->put->event, PKI_EVENT_PUT);
    }
    ep->moves.next = ep->moves.end;
    ep->nredo = 0;
}

/* Queue pairs in error do nothing more, neither read a source nor write a target. */
void pki_rdma_ep_failed(struct pki_rdma_ep *ep, const char *what)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

    if (ep->base.state == PKI_EP_DEAD)
        return;
    pki_ep_enter(&ep->base, PKI_EP_DEAD);
    (void)pki_ep_fail(&ep->base, PK_ERR_PEER, 0, "rdma: %s", what);
    for (uint32_t i = 0; i <= ep->nqps; i++) {
        ep->qps[i].dead = true;
        if (ep->qps[i].qp != NULL)
            (void)pki_verbs(NULL)->modify_qp(ep->qps[i].qp, &attr, IBV_QP_STATE);
    }
    pki_rdma_moves_fail(ep);
}

void pki_rdma_peer_left(struct pki_rdma_ep *ep, enum pki_rdma_peer how)
{
    if (ep->peer < how)
        ep->peer = how;
}

void pki_rdma_recover_enter(struct pki_rdma_ep *ep, enum pki_rdma_state state)
{
    ep->recover.state = state;
    pki_ep_enter(&ep->base, state == PKI_RDMA_UP ? PKI_EP_UP : PKI_EP_RECOVERING);
    ep->recover.entered_ns = ep->recover.advanced_ns = pki_now_ns();
    ep->recover.said = false;
    pki_rdma_report(ep);
}

void pki_rdma_give_up(struct pki_rdma_ep *ep, const char *why)
{
    ep->recover.why = why;
    pki_rdma_recover_enter(ep, PKI_RDMA_GIVING_UP);
}

static void drain(struct pki_rdma_ep *ep)
{
    ep->recover.drained = 0;
    pki_rdma_recover_enter(ep, PKI_RDMA_DRAINING);
    for (uint32_t i = 0; i <= ep->nqps; i++)
        if (!pki_rdma_qp_end(&ep->qps[i]))
            pki_rdma_give_up(ep, "a queue pair could not be ended in good order");
}

void pki_rdma_broken(struct pki_rdma_ep *ep, const char *what)
{
    struct pki_where where = pki_rdma_where(ep);

    if (ep->recover.state == PKI_RDMA_CONNECTED)
        ep->recover.again = true;
    if (ep->base.state == PKI_EP_DEAD || ep->recover.state != PKI_RDMA_UP)
        return;
    if (!ep->notes.carried) {
        pki_rdma_ep_failed(ep, what);
        return;
    }
    if (ep->recover.since_ns == 0 || pki_now_ns() - ep->recover.entered_ns > STOOD_NS) {
        ep->recover.since_ns = pki_now_ns();
        ep->recover.failures = 0;
    }
    ep->recover.failures++;
    ep->recover.epoch++;
    ep->recover.heard = PKI_RDMA_HEARD_NOTHING;
    ep->recover.again = false;
    pki_log(PKI_LOG_WARN, &where, "rdma: %s; the queue pairs are made again", what);
    drain(ep);
}

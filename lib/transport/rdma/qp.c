/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs: made, connected, closed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"

/* A lost packet is sent again after 4.096 us * 2^17 = 0.5 s at the latest, 6 times: what is gone for some 4 s is gone. (7 means
 * for ever to Soft-RoCE.) */
#define ACK_TIMEOUT 17
#define RETRIES 6
#define HOPS 64

static bool is_ctrl(const struct pki_rdma_qp *qp)
{
    return qp == &qp->ep->qps[0];
}

static pk_result_t failed(const struct pki_rdma_qp *qp, const char *what, int error)
{
    struct pki_where where = pki_rdma_where(qp->ep);

    errno = error;
    return pki_fail_errno(PK_ERR_SYSTEM, &where, "rdma: %s on %s", what, qp->rail->name);
}

static pk_result_t take_slot(struct pki_rdma_qp *qp)
{
    struct pki_rdma_iface *iface = qp->ep->iface;

    if (iface->nslots == iface->slots_room) {
        uint32_t room = iface->slots_room == 0 ? 16 : 2 * iface->slots_room;
        struct pki_rdma_qp **grown = realloc(iface->qps, room * sizeof(struct pki_rdma_qp *));

        if (grown == NULL)
            return pki_fail(PK_ERR_MEMORY, NULL, "rdma: no memory for %u queue pairs", room);
        iface->qps = grown;
        iface->slots_room = room;
    }
    qp->slot = iface->nslots++;
    iface->qps[qp->slot] = qp;
    return PK_OK;
}

/* Some devices refuse to carry bytes in requests. */
static pk_result_t create(struct pki_rdma_qp *qp)
{
    struct ibv_qp_init_attr attr = { .send_cq = qp->rail->cq, .recv_cq = qp->rail->cq, .qp_type = IBV_QPT_RC };

    attr.cap.max_send_wr = is_ctrl(qp) ? PKI_RDMA_RING + 8 : PKI_RDMA_DEPTH;
    attr.cap.max_recv_wr = (is_ctrl(qp) ? PKI_RDMA_RING : PKI_RDMA_TELLING) + 1; /* and the last one of all */
    attr.cap.max_send_sge = 2;
    attr.cap.max_recv_sge = 1;
    attr.cap.max_inline_data = is_ctrl(qp) ? PKI_RDMA_INLINE : 0;
    qp->qp = pki_verbs(NULL)->create_qp(qp->rail->pd, &attr);
    if (qp->qp == NULL && attr.cap.max_inline_data > 0) {
        attr.cap.max_inline_data = 0;
        qp->qp = pki_verbs(NULL)->create_qp(qp->rail->pd, &attr);
    }
    if (qp->qp == NULL)
        return failed(qp, "ibv_create_qp", errno);
    qp->inline_bytes = is_ctrl(qp) && attr.cap.max_inline_data >= PKI_RDMA_INLINE ? PKI_RDMA_INLINE : 0;
    return take_slot(qp);
}

static pk_result_t to_init(struct pki_rdma_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
                                .port_num = qp->rail->port,
                                .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    int error = pki_verbs(NULL)->modify_qp(qp->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

    return error != 0 ? failed(qp, "ibv_modify_qp to INIT", error) : PK_OK;
}

/* The control channel's is on the first rail that is usable, those for data on all of them in turn. */
static uint32_t choose_rail(const struct pki_rdma_iface *iface, uint32_t i)
{
    uint32_t usable[PKI_RDMA_RAILS_MAX] = { 0 }, n = 0;

    for (int r = 0; r < iface->nrails; r++)
        if (iface->rails[r].usable)
            usable[n++] = (uint32_t)r;
    return n > 0 ? usable[(i == 0 ? 0 : i - 1) % n] : 0;
}

static pk_result_t qp_open(struct pki_rdma_ep *ep, uint32_t i)
{
    struct pki_rdma_qp *qp = &ep->qps[i];
    pk_result_t result;

    *qp = (struct pki_rdma_qp){ .ep = ep, .rail_here = choose_rail(ep->iface, i) };
    qp->rail = &ep->iface->rails[qp->rail_here];
    result = create(qp);
    return result == PK_OK ? to_init(qp) : result;
}

pk_result_t pki_rdma_qps_open(struct pki_rdma_ep *ep)
{
    pk_result_t result = PK_OK;

    if (ep->qps == NULL)
        ep->qps = calloc(1 + ep->nqps, sizeof *ep->qps);
    if (ep->qps == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "rdma: no memory for %u queue pairs", 1 + ep->nqps);
    for (uint32_t i = 0; i <= ep->nqps && result == PK_OK; i++)
        result = qp_open(ep, i);
    return result;
}

static pk_result_t to_rtr(struct pki_rdma_qp *qp, const struct pki_rdma_hello *theirs, uint32_t qpn)
{
    const struct pki_rdma_rail *rail = qp->rail;
    uint32_t there = qp->rail_there;
    enum ibv_mtu mtu = theirs->rails[there].mtu;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
                                .path_mtu = rail->mtu < mtu ? rail->mtu : mtu,
                                .dest_qp_num = qpn,
                                .rq_psn = theirs->psn,
                                .max_dest_rd_atomic = 1,
                                .min_rnr_timer = PKI_RDMA_RNR_TIMER };
    int error;

    attr.ah_attr.port_num = rail->port;
    attr.ah_attr.dlid = theirs->rails[there].lid;
    attr.ah_attr.is_global = rail->ethernet;
    attr.ah_attr.grh.sgid_index = (uint8_t)rail->gid_index;
    attr.ah_attr.grh.hop_limit = HOPS;
    memcpy(attr.ah_attr.grh.dgid.raw, theirs->rails[there].gid, sizeof theirs->rails[there].gid);
    error = pki_verbs(NULL)->modify_qp(qp->qp, &attr,
                                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    return error != 0 ? failed(qp, "ibv_modify_qp to RTR: is the peer's address reachable from there? It stopped", error) : PK_OK;
}

static pk_result_t to_rts(struct pki_rdma_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS,
                                .timeout = ACK_TIMEOUT,
                                .retry_cnt = RETRIES,
                                .rnr_retry = 7,
                                .sq_psn = qp->ep->psn,
                                .max_rd_atomic = 1 };
    int error = pki_verbs(NULL)->modify_qp(qp->qp, &attr,
                                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                               IBV_QP_MAX_QP_RD_ATOMIC);

    return error != 0 ? failed(qp, "ibv_modify_qp to RTS", error) : PK_OK;
}

pk_result_t pki_rdma_qps_connect(struct pki_rdma_ep *ep, const struct pki_rdma_hello *theirs)
{
    for (uint32_t i = 0; i <= ep->nqps; i++) {
        struct pki_rdma_qp *qp = &ep->qps[i];
        struct pki_where where = pki_rdma_where(ep);
        pk_result_t result;

        qp->rail_there = theirs->qp_rails[i];
        if (i > 0 && ep->iface->revoked) {
            qp->dead = true; /* as it is, it takes no packet */
            continue;
        }
        if (theirs->rails[qp->rail_there].ethernet != qp->rail->ethernet)
            return pki_fail(PK_ERR_UNSUPPORTED, &where, "rdma: %s is %s, the peer's port is not", qp->rail->name,
                            qp->rail->ethernet ? "Ethernet" : "InfiniBand");
        result = to_rtr(qp, theirs, theirs->qpns[i]);
        if (result == PK_OK)
            result = to_rts(qp);
        if (result != PK_OK)
            return result;
    }
    return PK_OK;
}

void pki_rdma_qp_close(struct pki_rdma_qp *qp)
{
    if (qp->qp == NULL)
        return;
    pki_verbs(NULL)->destroy_qp(qp->qp);
    qp->qp = NULL;
    if (qp->slot < qp->ep->iface->nslots && qp->ep->iface->qps[qp->slot] == qp)
        qp->ep->iface->qps[qp->slot] = NULL;
}

void pki_rdma_qps_close(struct pki_rdma_ep *ep)
{
    for (uint32_t i = 0; ep->qps != NULL && i <= ep->nqps_made; i++)
        pki_rdma_qp_close(&ep->qps[i]);
    free(ep->qps);
    ep->qps = NULL;
}

/* Receives end in their order: when one that is posted now, and that the peer has no credit for, has been flushed, all that
 * had come has been told of. It is posted first, for Soft-RoCE looks at the queue when the state is set. */
bool pki_rdma_qp_end(struct pki_rdma_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    struct ibv_recv_wr wr = { .wr_id = pki_rdma_wr_id(qp, PKI_RDMA_LAST) | PKI_RDMA_RECEIVE }, *bad = NULL;

    qp->dead = true;
    return ibv_post_recv(qp->qp, &wr, &bad) == 0 && pki_verbs(NULL)->modify_qp(qp->qp, &attr, IBV_QP_STATE) == 0;
}

bool pki_rdma_post(struct pki_rdma_qp *qp, struct ibv_send_wr *first, unsigned n)
{
    struct ibv_send_wr *bad = NULL;
    int error = ibv_post_send(qp->qp, first, &bad);

    qp->ep->iface->base.counts.work_requests += n;
    qp->ep->iface->base.counts.doorbells++;
    if (error != 0) {
        struct pki_where where = pki_rdma_where(qp->ep);

        pki_log(PKI_LOG_WARN, &where, "rdma: ibv_post_send on %s: %s", qp->rail->name, strerror(error));
        qp->dead = true;
    }
    return error == 0;
}

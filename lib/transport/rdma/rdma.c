/* SPDX-License-Identifier: Apache-2.0 */
/* The rdma transport: its table, endpoints, and progress. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "transport/rdma/rdma.h"
#include "util/env.h"
#include "util/fd.h"

extern const struct pki_transport pki_transport_rdma;

static void rdma_probe(const struct pki_iface_config *config, struct pki_probe *probe)
{
    const char *why;

    (void)config;
    pki_rdma_look(probe); /* no device is opened yet */
    if (probe->usable && pki_verbs(&why) == NULL) {
        probe->usable = false;
        strncpy(probe->reason, why, sizeof probe->reason - 1);
    }
}

/* Devices are opened for the first endpoint: ranks of one host need none. */
static pk_result_t rdma_open(const struct pki_iface_config *config, struct pki_iface *base)
{
    struct pki_rdma_iface *iface = pki_rdma_iface_of(base);
    int64_t qps;
    pk_result_t result = pki_env_int("PK_QPS", 1, PKI_RDMA_QPS_MAX, pki_tuning.rdma.qps, &qps);

    if (result == PK_OK)
        result = pki_transport_retry_ns(&iface->retry_ns);
    if (result != PK_OK)
        return result;
    iface->rank = config->rank;
    iface->size = config->size;
    iface->device = config->device;
    iface->nqps = (uint32_t)qps;
    iface->piece_shift = PKI_RDMA_PIECE_SHIFT;
    iface->epoll_fd = pki_fd_keep(epoll_create1(EPOLL_CLOEXEC));
    if (iface->epoll_fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "rdma: epoll_create1");
    base->caps.msg_payload_max = PKI_RDMA_PAYLOAD_MAX;
    base->fd = -1;
    pki_list_init(&iface->eps);
    pki_list_init(&iface->used);
    pki_list_init(&iface->cached);
    return PK_OK;
}

static void rdma_close(struct pki_iface *base)
{
    struct pki_rdma_iface *iface = pki_rdma_iface_of(base);

    pki_rdma_mr_close_all(iface);
    if (iface->nrails > 0)
        pki_rdma_monitor_close();
    pki_rdma_rails_close(iface);
    close(iface->epoll_fd);
    free(iface->qps);
    iface->qps = NULL;
}

/* ---- Endpoints ---- */

/* On failure ep_close undoes what was done. */
static pk_result_t rdma_ep_init(struct pki_ep *base, struct pki_blob *mine)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(base);
    struct pki_where where = { .rank = base->rank, .peer = base->peer };
    struct pki_rdma_hello hello;
    pk_result_t result = PK_OK;

    base->can_put = false;
    base->notes = &ep->notes;
    base->report = ep->report;
    ep->iface = pki_rdma_iface_of(base->iface);
    pki_list_init(&ep->node);
    if (ep->iface->refused)
        return PK_ERR_UNSUPPORTED;
    if (ep->iface->nrails == 0) {
        result = pki_rdma_rails_open(ep->iface);
        ep->iface->refused = result != PK_OK;
        if (result != PK_OK)
            return result;
        pki_rdma_monitor_open();
    }
    ep->nqps = ep->nqps_made = ep->iface->nqps;
    if (getrandom(&ep->psn, sizeof ep->psn, 0) != (ssize_t)sizeof ep->psn)
        return pki_fail_errno(PK_ERR_SYSTEM, &where, "rdma: getrandom");
    ep->psn &= 0xffffff;
    ep->redo = calloc(ep->nqps * PKI_RDMA_DEPTH, sizeof *ep->redo);
    if (ep->redo == NULL)
        return pki_fail(PK_ERR_MEMORY, &where, "rdma: no memory for an endpoint");
    result = pki_rdma_qps_open(ep);
    if (result == PK_OK)
        result = pki_rdma_ctrl_open(ep);
    if (result == PK_OK)
        result = pki_rdma_ctrl_again(ep);
    if (result != PK_OK)
        return result;
    pki_rdma_hello_fill(ep, &hello);
    *mine = (struct pki_blob){ .len = sizeof hello, .fd = -1 };
    memcpy(mine->bytes, &hello, sizeof hello);
    return PK_OK;
}

static pk_result_t rdma_ep_connect(struct pki_ep *base, struct pki_blob *theirs)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(base);
    struct pki_where where = pki_rdma_where(ep);
    struct pki_rdma_hello hello, mine;
    const char *why = pki_rdma_hello_parse(theirs, &hello);
    pk_result_t result;

    if (theirs->fd >= 0)
        close(theirs->fd);
    theirs->fd = -1;
    if (why != NULL)
        return pki_fail(PK_ERR_MISMATCH, &where, "rdma: the peer's hello cannot be used: %s", why);
    ep->nrails_there = hello.nrails;
    ep->shift_there = hello.piece_shift;
    pki_rdma_hello_fill(ep, &mine);
    ep->immediate = hello.immediate != 0 && mine.immediate != 0;
    if (hello.nqps < ep->nqps) /* as many as the one of both that has fewer would like */
        ep->nqps = hello.nqps;
    ep->ctrl.their_credit = hello.credit;
    ep->ctrl.their_rkey = hello.credit_rkey;
    result = pki_rdma_qps_connect(ep, &hello);
    if (result != PK_OK)
        return result;
    pki_list_push(&ep->iface->eps, &ep->node);
    base->can_put = base->farewell.lingers = true;
    return PK_OK;
}

static void rdma_ep_close(struct pki_ep *base)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(base);
    struct pki_where where = pki_rdma_where(ep);

    if (ep->iface == NULL) /* ep_init was not reached */
        return;
    if (ep->iface->leave_ns != 0 && !ep->iface->revoked && !pki_rdma_ctrl_is_settled(ep))
        pki_log(PKI_LOG_WARN, &where, "rdma: shutdown timed out before all that was sent had arrived");
    pki_rdma_qps_close(ep);
    pki_rdma_moves_fail(ep);
    pki_rdma_grants_close(ep);
    pki_rdma_ctrl_close(ep);
    pki_list_remove(&ep->node);
    free(ep->redo);
    ep->redo = NULL;
    base->can_put = false;
    pki_ep_enter(base, PKI_EP_DEAD);
}

/* ---- Progress ---- */

/* Events that were told before, of completions that may have been polled since. */
static void take_events(struct pki_rdma_rail *rail)
{
    struct ibv_cq *cq;
    void *context;

    while (pki_verbs(NULL)->get_cq_event(rail->channel, &cq, &context) == 0) {
        pki_verbs(NULL)->ack_cq_events(cq, 1);
        rail->armed = false;
    }
}

/* What completed before a queue was armed is not told, so it is polled once more by the caller. False: a device cannot tell. */
static bool arm(struct pki_rdma_iface *iface)
{
    for (int r = 0; r < iface->nrails; r++) {
        struct pki_rdma_rail *rail = &iface->rails[r];

        take_events(rail);
        if (!rail->armed && ibv_req_notify_cq(rail->cq, 0) != 0)
            return false;
        rail->armed = true;
    }
    return true;
}

static void advance(struct pki_rdma_ep *ep)
{
    if (ep->base.state == PKI_EP_DEAD)
        return;
    if (pki_rdma_has_left(ep) && ep->moves.head == ep->moves.end)
        pki_ep_enter(&ep->base, PKI_EP_LEFT);
    if (ep->recover.state != PKI_RDMA_UP) {
        pki_rdma_recover_advance(ep);
        return;
    }
    if (ep->moves.head != ep->moves.end)
        pki_rdma_stripe(ep);
    pki_rdma_ctrl_credit(ep);
}

static bool rdma_progress(struct pki_iface *base)
{
    struct pki_rdma_iface *iface = pki_rdma_iface_of(base);
    bool sleeps = atomic_load_explicit(&base->sleepers, memory_order_relaxed) > 0, any;

    base->fd = sleeps && arm(iface) ? iface->epoll_fd : -1;
    any = pki_rdma_poll(iface);
    for (struct pki_list *node = iface->eps.next; node != &iface->eps; node = node->next) {
        struct pki_rdma_ep *ep = pki_container_of(node, struct pki_rdma_ep, node);

        advance(ep);
        if (ep->notes.due)
            pki_rdma_exchange_notes(ep);
        if (ep->base.farewell.mine && ep->base.farewell.lingers)
            ep->base.farewell.lingers = !pki_rdma_shutdown(ep);
    }
    return any;
}

const struct pki_transport pki_transport_rdma = {
    .name = "rdma",
    .link = "queue pairs",
    .iface_bytes = sizeof(struct pki_rdma_iface),
    .ep_bytes = sizeof(struct pki_rdma_ep),
    .between_hosts = true,
    .posts = true,
    .reaches = { [PKI_MEM_HOST] = { [PKI_MEM_HOST] = true } },
    .probe = rdma_probe,
    .open = rdma_open,
    .close = rdma_close,
    .ep_init = rdma_ep_init,
    .ep_connect = rdma_ep_connect,
    .ep_close = rdma_ep_close,
    .send = pki_rdma_send,
    .peek = pki_rdma_peek,
    .pop = pki_rdma_pop,
    .reg = pki_rdma_reg,
    .put = pki_rdma_put,
    .progress = rdma_progress,
    .recv_post = pki_rdma_recv_post,
    .recv_cancel = pki_rdma_recv_cancel,
};

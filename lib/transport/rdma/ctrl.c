/* SPDX-License-Identifier: Apache-2.0 */
/* Messages. The ring of receives and of sends that are not carried in the request lie in one registered block. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define KIND_SHUTDOWN 200u /* beyond enum pki_msg_kind: the sender has closed its end */
#define SHORT_BYTES 16u    /* of struct pki_msg in an EAGER message */
#define LONG_BYTES ((uint32_t)sizeof(struct pki_msg))
#define SIGNAL_EVERY (PKI_RDMA_RING / PKI_RDMA_TELL_SHARE)
#define REPOST_EVERY (PKI_RDMA_RING / PKI_RDMA_TELL_SHARE)
#define CREDIT_LAG (PKI_RDMA_RING / PKI_RDMA_CREDIT_SHARE) /* receives not told of yet that are worth a request */
#define LEAVE_NS (5 * PKI_NS_PER_S) /* after a failure. By then the device has sent it again, or given it up */
#define BLOCK_ALIGN 4096u

/* A message in pieces. */
struct parts {
    const void *at[2];
    uint32_t bytes[2];
};

pk_result_t pki_rdma_ctrl_open(struct pki_rdma_ep *ep)
{
    struct pki_rdma_ctrl *ctrl = &ep->ctrl;
    struct pki_where where = pki_rdma_where(ep);
    size_t bytes = (sizeof *ctrl->block + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    const struct pki_rdma_rail *rail = ep->qps[0].rail;

    ctrl->block = aligned_alloc(BLOCK_ALIGN, bytes);
    if (ctrl->block == NULL)
        return pki_fail(PK_ERR_MEMORY, &where, "rdma: no memory for the rings of a control channel");
    memset(ctrl->block, 0, offsetof(struct pki_rdma_block, in));
    ctrl->mr = pki_verbs(NULL)->reg_mr_iova2(rail->pd, ctrl->block, bytes, (uintptr_t)ctrl->block,
                                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (ctrl->mr == NULL)
        return pki_fail_errno(errno == ENOMEM ? PK_ERR_MEMORY : PK_ERR_SYSTEM, &where,
                              "rdma: registering the rings of a control channel, %zu bytes, with %s (locked memory: ulimit -l)",
                              bytes, rail->name);
    return PK_OK;
}

void pki_rdma_ctrl_close(struct pki_rdma_ep *ep)
{
    if (ep->ctrl.mr != NULL)
        pki_verbs(NULL)->dereg_mr(ep->ctrl.mr);
    free(ep->ctrl.block);
    memset(&ep->ctrl, 0, sizeof ep->ctrl);
}

/* ---- Out ---- */

static bool has_request(const struct pki_rdma_qp *qp)
{
    return qp->posted - qp->completed < PKI_RDMA_RING;
}

static void hear_credit(struct pki_rdma_ctrl *ctrl, uint32_t credit)
{
    if ((int32_t)(credit - ctrl->credit) > 0)
        ctrl->credit = credit;
}

static bool has_credit(struct pki_rdma_ctrl *ctrl, uint32_t reserve)
{
    hear_credit(ctrl, atomic_load_explicit(&ctrl->block->credit, memory_order_relaxed));
    return (int32_t)(PKI_RDMA_RING - reserve + ctrl->credit - ctrl->sent) > 0;
}

/* The next request of the control channel. After every SIGNAL_EVERY, or on demand, the device tells that all so far are done. */
static struct ibv_send_wr request(struct pki_rdma_qp *qp, bool signalled)
{
    struct ibv_send_wr wr = { .wr_id = pki_rdma_wr_id(qp, qp->posted) };

    qp->posted++;
    if (signalled || qp->posted % SIGNAL_EVERY == 0) {
        wr.send_flags = IBV_SEND_SIGNALED;
        qp->signalled = qp->posted;
    }
    return wr;
}

/* Messages stay in their slots until the peer has posted the receive again that they took. */
static bool send_slot(struct pki_rdma_ep *ep, uint32_t number, bool signalled)
{
    struct pki_rdma_qp *qp = &ep->qps[0];
    struct pki_rdma_ctrl *ctrl = &ep->ctrl;
    struct ibv_sge piece = { .addr = (uintptr_t)ctrl->block->out[number % PKI_RDMA_RING],
                             .length = ctrl->out_bytes[number % PKI_RDMA_RING],
                             .lkey = ctrl->mr->lkey };
    struct ibv_send_wr wr = request(qp, signalled);

    wr.opcode = IBV_WR_SEND;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    if (piece.length <= qp->inline_bytes)
        wr.send_flags |= IBV_SEND_INLINE;
    if (pki_rdma_post(qp, &wr, 1))
        return true;
    pki_rdma_broken(ep, "a message could not be posted");
    return false;
}

static pk_result_t send_parts(struct pki_rdma_ep *ep, const struct parts *parts, bool signalled)
{
    struct pki_rdma_ctrl *ctrl = &ep->ctrl;
    uint8_t *slot = ctrl->block->out[ctrl->sent % PKI_RDMA_RING];

    memcpy(slot, parts->at[0], parts->bytes[0]);
    if (parts->bytes[1] > 0)
        memcpy(slot + parts->bytes[0], parts->at[1], parts->bytes[1]);
    ctrl->out_bytes[ctrl->sent % PKI_RDMA_RING] = parts->bytes[0] + parts->bytes[1];
    (void)send_slot(ep, ctrl->sent++, signalled); /* if it failed, it is sent again when the queue pair is recovered */
    return ep->base.state == PKI_EP_DEAD ? PK_ERR_PEER : PK_OK;
}

bool pki_rdma_ctrl_resend(struct pki_rdma_ep *ep, uint32_t arrived, uint32_t credit)
{
    hear_credit(&ep->ctrl, credit);
    for (; arrived != ep->ctrl.sent; arrived++)
        if (!send_slot(ep, arrived, arrived + 1 == ep->ctrl.sent)) /* who leaves waits for the last one */
            return false;
    return true;
}

static bool has_room(struct pki_rdma_ep *ep)
{
    /* The last credit is for the shutdown message. */
    return ep->recover.state == PKI_RDMA_UP && has_credit(&ep->ctrl, 1) && has_request(&ep->qps[0]);
}

/* There is room. The peer reads credit in passing; there is no place for it in a short head. */
static pk_result_t send_with_credit(struct pki_rdma_ep *ep, struct pki_msg *head, struct parts *parts)
{
    parts->at[0] = head;
    parts->bytes[0] = head->kind == PKI_MSG_EAGER ? SHORT_BYTES : LONG_BYTES;
    if (head->kind != PKI_MSG_EAGER)
        head->extra = (uint16_t)(ep->ctrl.reported = ep->ctrl.reposted);
    return send_parts(ep, parts, false);
}

pk_result_t pki_rdma_send(struct pki_ep *base, const struct pki_msg *msg, const void *payload)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(base);
    struct pki_msg head = *msg;
    struct parts parts = { .at = { NULL, payload }, .bytes = { 0, msg->payload } };

    if (base->state == PKI_EP_DEAD)
        return PK_ERR_PEER; /* recorded when it died */
    if (pki_rdma_has_left(ep))
        return PK_OK; /* nobody reads it; the engine hears from elsewhere that the peer has left */
    if (msg->payload > PKI_RDMA_PAYLOAD_MAX) {
        struct pki_where where = pki_rdma_where(ep);

        return pki_fail(PK_ERR_INTERNAL, &where, "rdma: a message of %u bytes, more than %u", msg->payload, PKI_RDMA_PAYLOAD_MAX);
    }
    if (!has_room(ep))
        return PK_IN_PROGRESS;
    if (msg->kind == PKI_MSG_FIN && msg->offset == msg->bytes)
        pki_rdma_grant_end(ep, msg, false);
    return send_with_credit(ep, &head, &parts);
}

/* Keys travel behind the message. Without a message the peer would have none. */
pk_result_t pki_rdma_recv_post(struct pki_recv *recv, const struct pki_msg *tell)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(recv->ep);
    uint32_t rkeys[PKI_RDMA_KEYS_MAX], number;
    struct pki_msg head;
    struct parts parts = { .at = { NULL, rkeys } };
    pk_result_t result;

    if (tell == NULL || !pki_rdma_names_memory(tell))
        return PK_ERR_UNSUPPORTED;
    if (ep->base.state == PKI_EP_DEAD)
        return PK_ERR_PEER;
    if (pki_rdma_has_left(ep))
        return PK_OK;
    if (!has_room(ep))
        return PK_IN_PROGRESS;
    head = *tell;
    pki_list_init(&recv->event.node);
    result = pki_rdma_grant_out(ep, recv, tell, rkeys, &number);
    if (result != PK_OK)
        return result;
    parts.bytes[1] = pki_rdma_grant_keys(tell, (uint32_t)ep->iface->nrails, ep->iface->piece_shift) * (uint32_t)sizeof *rkeys;
    if (tell->kind == PKI_MSG_CTS)
        head.signal_value = number; /* a receive of host memory has no signal here */
    return send_with_credit(ep, &head, &parts);
}

static void write_credit(struct pki_rdma_ep *ep, bool signalled)
{
    struct pki_rdma_ctrl *ctrl = &ep->ctrl;
    struct pki_rdma_qp *qp = &ep->qps[0];
    struct ibv_sge piece = { .addr = (uintptr_t)&ctrl->block->reported,
                             .length = sizeof ctrl->block->reported,
                             .lkey = ctrl->mr->lkey };
    struct ibv_send_wr wr;

    if (pki_rdma_has_left(ep) || ep->shutdown_sent || ep->base.state == PKI_EP_DEAD || ep->recover.state != PKI_RDMA_UP ||
        !has_request(qp))
        return;
    ctrl->block->reported = ctrl->reported = ctrl->reposted;
    wr = request(qp, signalled);
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.send_flags |= qp->inline_bytes > 0 ? IBV_SEND_INLINE : 0;
    wr.wr.rdma.remote_addr = ctrl->their_credit;
    wr.wr.rdma.rkey = ctrl->their_rkey;
    if (!pki_rdma_post(qp, &wr, 1))
        pki_rdma_broken(ep, "a credit could not be posted");
}

void pki_rdma_ctrl_credit(struct pki_rdma_ep *ep)
{
    if (ep->ctrl.reposted - ep->ctrl.reported >= CREDIT_LAG)
        write_credit(ep, false);
}

void pki_rdma_ctrl_ask(struct pki_rdma_ep *ep)
{
    write_credit(ep, true);
}

static void send_shutdown(struct pki_rdma_ep *ep)
{
    struct pki_msg shutdown = { .kind = KIND_SHUTDOWN, .flags = ep->iface->revoked };
    struct parts parts = { .at = { &shutdown }, .bytes = { LONG_BYTES } };

    if (has_credit(&ep->ctrl, 0) && has_request(&ep->qps[0]))
        ep->shutdown_sent = send_parts(ep, &parts, true) == PK_OK;
}

/* Goodbye is behind all that was sent: when it has been acknowledged all has come. After a failure nothing is recovered for
 * its sake. */
bool pki_rdma_ctrl_is_settled(const struct pki_rdma_ep *ep)
{
    if (!ep->base.can_put || ep->base.state == PKI_EP_DEAD || pki_rdma_has_left(ep))
        return true;
    if (ep->recover.state != PKI_RDMA_UP)
        return ep->iface->revoked;
    return ep->shutdown_sent && ep->qps[0].posted == ep->qps[0].completed;
}

bool pki_rdma_shutdown(struct pki_rdma_ep *ep)
{
    if (ep->iface->leave_ns == 0) /* all endpoints together have so long */
        ep->iface->leave_ns = pki_now_ns() + (ep->iface->revoked ? LEAVE_NS : ep->iface->retry_ns);
    if (!ep->shutdown_sent && !pki_rdma_ctrl_is_settled(ep) && ep->recover.state == PKI_RDMA_UP)
        send_shutdown(ep);
    return pki_rdma_ctrl_is_settled(ep) || pki_now_ns() > ep->iface->leave_ns;
}

/* ---- In ---- */

static pk_result_t receive_failed(const struct pki_rdma_qp *qp, int error)
{
    struct pki_where where = pki_rdma_where(qp->ep);

    return pki_fail(PK_ERR_SYSTEM, &where, "rdma: ibv_post_recv on %s: %s", qp->rail->name, strerror(error));
}

static pk_result_t post_receives(struct pki_rdma_ep *ep, uint32_t first, uint32_t n)
{
    struct pki_rdma_qp *qp = &ep->qps[0];
    struct ibv_recv_wr wrs[PKI_RDMA_RING], *bad = NULL;
    struct ibv_sge pieces[PKI_RDMA_RING];
    int error;

    for (uint32_t i = 0; i < n; i++) {
        pieces[i] = (struct ibv_sge){ .addr = (uintptr_t)ep->ctrl.block->in[(first + i) % PKI_RDMA_RING],
                                      .length = PKI_RDMA_SLOT_BYTES,
                                      .lkey = ep->ctrl.mr->lkey };
        wrs[i] = (struct ibv_recv_wr){ .wr_id = pki_rdma_wr_id(qp, 0) | PKI_RDMA_RECEIVE,
                                       .sg_list = &pieces[i],
                                       .num_sge = 1,
                                       .next = i + 1 < n ? &wrs[i + 1] : NULL };
    }
    error = n > 0 ? ibv_post_recv(qp->qp, wrs, &bad) : 0;
    return error != 0 ? receive_failed(qp, error) : PK_OK;
}

/* They have no room for bytes: a write brings its own. */
pk_result_t pki_rdma_post_telling(struct pki_rdma_qp *qp, uint32_t n)
{
    struct ibv_recv_wr wrs[PKI_RDMA_TELLING_BATCH], *bad = NULL;

    while (n > 0) {
        uint32_t batch = n < PKI_RDMA_TELLING_BATCH ? n : PKI_RDMA_TELLING_BATCH;
        int error;

        for (uint32_t i = 0; i < batch; i++)
            wrs[i] = (struct ibv_recv_wr){ .wr_id = pki_rdma_wr_id(qp, 0) | PKI_RDMA_RECEIVE,
                                           .next = i + 1 < batch ? &wrs[i + 1] : NULL };
        error = ibv_post_recv(qp->qp, wrs, &bad);
        if (error != 0)
            return receive_failed(qp, error);
        n -= batch;
    }
    return PK_OK;
}

pk_result_t pki_rdma_ctrl_again(struct pki_rdma_ep *ep)
{
    struct pki_rdma_ctrl *ctrl = &ep->ctrl;
    pk_result_t result = post_receives(ep, ctrl->arrived, ctrl->popped + PKI_RDMA_RING - ctrl->arrived);

    ctrl->reported = ctrl->reposted = ctrl->popped;
    for (uint32_t i = 1; i <= ep->nqps && result == PK_OK; i++)
        result = pki_rdma_post_telling(&ep->qps[i], PKI_RDMA_TELLING);
    return result;
}

static void read_head(const uint8_t *slot, uint32_t bytes, struct pki_msg *msg)
{
    bool is_short = slot[0] == PKI_MSG_EAGER;

    memset(msg, 0, sizeof *msg);
    memcpy(msg, slot, is_short ? SHORT_BYTES : LONG_BYTES);
    if (is_short)
        msg->payload = bytes - SHORT_BYTES;
}

bool pki_rdma_message_parse(const uint8_t *bytes, uint32_t count, uint32_t nrails, uint32_t shift, struct pki_msg *msg)
{
    uint32_t head, keys = 0;

    if (count < SHORT_BYTES || count > PKI_RDMA_SLOT_BYTES || (bytes[0] != PKI_MSG_EAGER && count < LONG_BYTES))
        return false;
    head = bytes[0] == PKI_MSG_EAGER ? SHORT_BYTES : LONG_BYTES;
    if (count - head > PKI_RDMA_PAYLOAD_MAX)
        return false;
    read_head(bytes, count, msg);
    if (pki_rdma_names_memory(msg)) {
        keys = pki_rdma_grant_keys(msg, nrails, shift) * (uint32_t)sizeof(uint32_t);
        if (keys == 0)
            return false;
    }
    return count - head == msg->payload + keys && (keys == 0 || msg->payload == 0);
}

void pki_rdma_ctrl_received(struct pki_rdma_ep *ep, uint32_t bytes)
{
    struct pki_rdma_ctrl *ctrl = &ep->ctrl;
    const uint8_t *slot = ctrl->block->in[ctrl->arrived % PKI_RDMA_RING];
    uint32_t rkeys[PKI_RDMA_KEYS_MAX];
    struct pki_msg msg;

    if (!pki_rdma_message_parse(slot, bytes, ep->nrails_there, ep->shift_there, &msg)) {
        pki_rdma_ep_failed(ep, "the peer sent bytes that are not a message");
        return;
    }
    if (msg.kind == KIND_SHUTDOWN) {
        pki_rdma_peer_left(ep, msg.flags == 0 ? PKI_RDMA_PEER_SERVED : PKI_RDMA_PEER_LEFT);
        return;
    }
    if (pki_rdma_names_memory(&msg)) {
        memcpy(rkeys, slot + LONG_BYTES, bytes - LONG_BYTES); /* they need not be aligned there */
        if (pki_rdma_grant_in(ep, &msg, rkeys) != PK_OK)
            pki_rdma_ep_failed(ep, "no memory for a grant");
    }
    if (msg.kind != PKI_MSG_EAGER)
        hear_credit(ctrl, ctrl->credit + (uint32_t)(int16_t)(uint16_t)(msg.extra - ctrl->credit)); /* its lower half */
    ctrl->bytes[ctrl->arrived % PKI_RDMA_RING] = bytes;
    ctrl->arrived++;
}

/* The oldest message that is the engine's; what the peer's transport says in between is taken. */
static bool look(struct pki_rdma_ep *ep, struct pki_msg *msg)
{
    struct pki_rdma_ctrl *ctrl = &ep->ctrl;

    for (; ctrl->popped != ctrl->arrived; ctrl->popped++, pki_rdma_ctrl_repost(ep)) {
        read_head(ctrl->block->in[ctrl->popped % PKI_RDMA_RING], ctrl->bytes[ctrl->popped % PKI_RDMA_RING], msg);
        if (msg->kind != PKI_MSG_FIN || !pki_rdma_grant_told(ep, msg))
            return true;
    }
    return false;
}

bool pki_rdma_peek(struct pki_ep *base, struct pki_msg *msg, const void **payload)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(base);

    /* Whoever waits for one message looks here and not at progress. */
    if (!look(ep, msg) && (!pki_rdma_poll(ep->iface) || !look(ep, msg)))
        return false;
    msg->extra = 0;
    if (msg->kind == PKI_MSG_CTS && pki_rdma_names_memory(msg))
        msg->signal_value = 0;
    *payload = ep->ctrl.block->in[ep->ctrl.popped % PKI_RDMA_RING] + (msg->kind == PKI_MSG_EAGER ? SHORT_BYTES : LONG_BYTES);
    return true;
}

void pki_rdma_pop(struct pki_ep *base)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(base);
    struct pki_rdma_ctrl *ctrl = &ep->ctrl;
    struct pki_msg msg;

    read_head(ctrl->block->in[ctrl->popped % PKI_RDMA_RING], ctrl->bytes[ctrl->popped % PKI_RDMA_RING], &msg);
    if (msg.kind == PKI_MSG_FIN && msg.offset == msg.bytes)
        pki_rdma_grant_end(ep, &msg, true);
    ctrl->popped++;
    pki_rdma_ctrl_repost(ep);
}

void pki_rdma_ctrl_repost(struct pki_rdma_ep *ep)
{
    struct pki_rdma_ctrl *ctrl = &ep->ctrl;

    if (ctrl->popped - ctrl->reposted < REPOST_EVERY || ep->base.state == PKI_EP_DEAD || pki_rdma_has_left(ep) ||
        ep->recover.state != PKI_RDMA_UP)
        return;
    if (post_receives(ep, ctrl->reposted, ctrl->popped - ctrl->reposted) != PK_OK) {
        pki_rdma_ep_failed(ep, "receives could not be posted");
        return;
    }
    ctrl->reposted = ctrl->popped;
    pki_rdma_ctrl_credit(ep);
}

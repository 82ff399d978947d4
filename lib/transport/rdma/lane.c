/* SPDX-License-Identifier: Apache-2.0 */
/* Messages. The ring of receives and of sends that are not carried in the request lie in one registered block. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define KIND_BYE 200u   /* beyond enum pki_msg_kind: the sender has closed its end */
#define SHORT_BYTES 16u /* of struct pki_msg in an EAGER message */
#define LONG_BYTES ((uint32_t)sizeof(struct pki_msg))
#define SIGNAL_EVERY (PKI_RDMA_RING / 4)
#define LEAVE_NS PKI_NS_PER_S
#define BLOCK_ALIGN 4096u

/* A message in pieces. */
struct parts {
    const void *at[2];
    uint32_t bytes[2];
};

pk_result_t pki_rdma_lane_open(struct pki_rdma_ep *ep)
{
    struct pki_rdma_lane *lane = &ep->lane;
    struct pki_where where = pki_rdma_where(ep);
    size_t bytes = (sizeof *lane->block + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    const struct pki_rdma_rail *rail = ep->qps[0].rail;

    lane->block = aligned_alloc(BLOCK_ALIGN, bytes);
    if (lane->block == NULL)
        return pki_fail(PK_ERR_MEMORY, &where, "rdma: no memory for the rings of a lane");
    memset(lane->block, 0, offsetof(struct pki_rdma_block, in));
    lane->mr = pki_verbs(NULL)->reg_mr_iova2(rail->pd, lane->block, bytes, (uintptr_t)lane->block,
                                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (lane->mr == NULL)
        return pki_fail_errno(errno == ENOMEM ? PK_ERR_MEMORY : PK_ERR_SYSTEM, &where,
                              "rdma: registering the rings of a lane, %zu bytes, with %s (limit of locked memory: ulimit -l)",
                              bytes, rail->name);
    return PK_OK;
}

void pki_rdma_lane_close(struct pki_rdma_ep *ep)
{
    if (ep->lane.mr != NULL)
        pki_verbs(NULL)->dereg_mr(ep->lane.mr);
    free(ep->lane.block);
    memset(&ep->lane, 0, sizeof ep->lane);
}

/* ---- Out ---- */

static bool has_request(const struct pki_rdma_qp *qp)
{
    return qp->posted - qp->completed < PKI_RDMA_RING;
}

static bool has_credit(const struct pki_rdma_lane *lane, uint32_t reserve)
{
    uint32_t credit = PKI_RDMA_RING - reserve + atomic_load_explicit(&lane->block->credit, memory_order_relaxed);

    return (int32_t)(credit - lane->sent) > 0;
}

/* The next request of the lane; every so many, or on demand, the device tells that it and those before it are done. */
static struct ibv_send_wr request(struct pki_rdma_qp *qp, bool signalled)
{
    struct ibv_send_wr wr = { .wr_id = pki_rdma_wr_id(qp, qp->posted) };

    if (signalled || (qp->posted + 1) % SIGNAL_EVERY == 0)
        wr.send_flags = IBV_SEND_SIGNALED;
    qp->posted++;
    return wr;
}

static pk_result_t send_parts(struct pki_rdma_ep *ep, const struct parts *parts, bool signalled)
{
    struct pki_rdma_qp *qp = &ep->qps[0];
    struct pki_rdma_lane *lane = &ep->lane;
    uint8_t *slot = lane->block->out[lane->sent % PKI_RDMA_RING];
    struct ibv_sge pieces[2];
    struct ibv_send_wr wr = request(qp, signalled);

    wr.opcode = IBV_WR_SEND;
    wr.sg_list = pieces;
    wr.num_sge = parts->bytes[1] > 0 ? 2 : 1;
    if (parts->bytes[0] + parts->bytes[1] <= qp->inline_bytes) {
        wr.send_flags |= IBV_SEND_INLINE;
        for (int i = 0; i < 2; i++)
            pieces[i] = (struct ibv_sge){ .addr = (uintptr_t)parts->at[i], .length = parts->bytes[i] };
    } else {
        memcpy(slot, parts->at[0], parts->bytes[0]);
        if (parts->bytes[1] > 0)
            memcpy(slot + parts->bytes[0], parts->at[1], parts->bytes[1]);
        wr.num_sge = 1;
        pieces[0] =
            (struct ibv_sge){ .addr = (uintptr_t)slot, .length = parts->bytes[0] + parts->bytes[1], .lkey = lane->mr->lkey };
    }
    lane->sent++;
    if (pki_rdma_post(qp, &wr, 1))
        return PK_OK;
    pki_rdma_ep_failed(ep, "a message could not be posted");
    return PK_ERR_PEER;
}

/* Messages that a grant begins and ends with concern this transport too. */
static pk_result_t note(struct pki_rdma_ep *ep, const struct pki_msg *msg, uint32_t *rkeys, struct parts *parts)
{
    if (msg->kind == PKI_MSG_FIN && msg->offset == msg->bytes)
        pki_rdma_grant_end(ep, msg, false);
    if (!pki_rdma_names_memory(msg))
        return PK_OK;
    parts->at[1] = rkeys;
    parts->bytes[1] = pki_rdma_grant_keys(msg, (uint32_t)ep->iface->nrails, ep->iface->piece_shift) * (uint32_t)sizeof *rkeys;
    return pki_rdma_grant_out(ep, msg, rkeys);
}

pk_result_t pki_rdma_msg(struct pki_ep *base, const struct pki_msg *msg, const void *payload)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(base);
    uint32_t rkeys[PKI_RDMA_KEYS_MAX];
    struct parts parts = { .at = { msg, payload },
                           .bytes = { msg->kind == PKI_MSG_EAGER ? SHORT_BYTES : LONG_BYTES, msg->payload } };
    pk_result_t result;

    if (base->dead)
        return PK_ERR_PEER; /* recorded when it died */
    if (ep->left)
        return PK_OK; /* nobody reads it; the engine hears from elsewhere that the peer has left */
    if (msg->payload > PKI_RDMA_PAYLOAD_MAX) {
        struct pki_where where = pki_rdma_where(ep);

        return pki_fail(PK_ERR_INTERNAL, &where, "rdma: a message of %u bytes, more than %u", msg->payload, PKI_RDMA_PAYLOAD_MAX);
    }
    if (!has_credit(&ep->lane, 1) || !has_request(&ep->qps[0])) /* the last credit is for goodbye */
        return PK_IN_PROGRESS;
    result = note(ep, msg, rkeys, &parts);
    return result == PK_OK ? send_parts(ep, &parts, false) : result;
}

void pki_rdma_lane_credit(struct pki_rdma_ep *ep)
{
    struct pki_rdma_lane *lane = &ep->lane;
    struct pki_rdma_qp *qp = &ep->qps[0];
    struct ibv_sge piece = { .addr = (uintptr_t)&lane->block->told, .length = sizeof lane->block->told, .lkey = lane->mr->lkey };
    struct ibv_send_wr wr;

    if (lane->told == lane->reposted || ep->left || ep->base.dead || !has_request(qp))
        return;
    lane->block->told = lane->told = lane->reposted;
    wr = request(qp, false);
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.send_flags |= qp->inline_bytes > 0 ? IBV_SEND_INLINE : 0;
    wr.wr.rdma.remote_addr = lane->their_credit;
    wr.wr.rdma.rkey = lane->their_rkey;
    if (!pki_rdma_post(qp, &wr, 1))
        pki_rdma_ep_failed(ep, "a credit could not be posted");
}

void pki_rdma_lane_leave(struct pki_rdma_ep *ep)
{
    struct pki_rdma_qp *qp = &ep->qps[0];
    struct pki_msg bye = { .kind = KIND_BYE };
    struct parts parts = { .at = { &bye }, .bytes = { LONG_BYTES } };
    uint64_t until = pki_now_ns() + LEAVE_NS;
    bool said = false;

    while (!ep->base.dead && !ep->left && !qp->dead && pki_now_ns() < until) {
        if (!said && has_credit(&ep->lane, 0) && has_request(qp))
            said = send_parts(ep, &parts, true) == PK_OK;
        if (said && qp->posted == qp->completed)
            return;
        (void)pki_rdma_poll(ep->iface);
        pki_cpu_pause();
    }
}

/* ---- In ---- */

static pk_result_t post_receives(struct pki_rdma_ep *ep, uint32_t first, uint32_t n)
{
    struct pki_rdma_qp *qp = &ep->qps[0];
    struct ibv_recv_wr wrs[PKI_RDMA_RING], *bad = NULL;
    struct ibv_sge pieces[PKI_RDMA_RING];
    int error;

    for (uint32_t i = 0; i < n; i++) {
        pieces[i] = (struct ibv_sge){ .addr = (uintptr_t)ep->lane.block->in[(first + i) % PKI_RDMA_RING],
                                      .length = PKI_RDMA_SLOT_BYTES,
                                      .lkey = ep->lane.mr->lkey };
        wrs[i] = (struct ibv_recv_wr){ .wr_id = pki_rdma_wr_id(qp, 0) | PKI_RDMA_RECEIVE,
                                       .sg_list = &pieces[i],
                                       .num_sge = 1,
                                       .next = i + 1 < n ? &wrs[i + 1] : NULL };
    }
    error = n > 0 ? ibv_post_recv(qp->qp, wrs, &bad) : 0;
    if (error != 0) {
        struct pki_where where = pki_rdma_where(ep);

        return pki_fail(PK_ERR_SYSTEM, &where, "rdma: ibv_post_recv on %s: %s", qp->rail->name, strerror(error));
    }
    return PK_OK;
}

pk_result_t pki_rdma_lane_fill(struct pki_rdma_ep *ep)
{
    return post_receives(ep, 0, PKI_RDMA_RING);
}

static void read_head(const uint8_t *slot, uint32_t bytes, struct pki_msg *msg)
{
    bool is_short = slot[0] == PKI_MSG_EAGER;

    memset(msg, 0, sizeof *msg);
    memcpy(msg, slot, is_short ? SHORT_BYTES : LONG_BYTES);
    if (is_short)
        msg->payload = (uint16_t)(bytes - SHORT_BYTES);
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

void pki_rdma_lane_received(struct pki_rdma_ep *ep, uint32_t bytes)
{
    struct pki_rdma_lane *lane = &ep->lane;
    const uint8_t *slot = lane->block->in[lane->arrived % PKI_RDMA_RING];
    uint32_t rkeys[PKI_RDMA_KEYS_MAX];
    struct pki_msg msg;

    if (!pki_rdma_message_parse(slot, bytes, ep->nrails_there, ep->shift_there, &msg)) {
        pki_rdma_ep_failed(ep, "the peer sent what is no message");
        return;
    }
    if (msg.kind == KIND_BYE) {
        ep->left = true;
        return;
    }
    if (pki_rdma_names_memory(&msg)) {
        memcpy(rkeys, slot + LONG_BYTES, bytes - LONG_BYTES); /* they need not be aligned there */
        if (pki_rdma_grant_in(ep, &msg, rkeys) != PK_OK)
            pki_rdma_ep_failed(ep, "no memory for a grant");
    }
    lane->bytes[lane->arrived % PKI_RDMA_RING] = bytes;
    lane->arrived++;
}

bool pki_rdma_peek(struct pki_ep *base, struct pki_msg *msg, const void **payload)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(base);
    const struct pki_rdma_lane *lane = &ep->lane;
    const uint8_t *slot;
    uint32_t bytes;

    /* Whoever waits for one message looks here and not at progress. */
    if (lane->popped == lane->arrived && (!pki_rdma_poll(ep->iface) || lane->popped == lane->arrived))
        return false;
    slot = lane->block->in[lane->popped % PKI_RDMA_RING];
    bytes = lane->bytes[lane->popped % PKI_RDMA_RING];
    read_head(slot, bytes, msg);
    *payload = slot + (msg->kind == PKI_MSG_EAGER ? SHORT_BYTES : LONG_BYTES);
    return true;
}

void pki_rdma_pop(struct pki_ep *base)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(base);
    struct pki_rdma_lane *lane = &ep->lane;
    struct pki_msg msg;

    read_head(lane->block->in[lane->popped % PKI_RDMA_RING], lane->bytes[lane->popped % PKI_RDMA_RING], &msg);
    if (msg.kind == PKI_MSG_FIN && msg.offset == msg.bytes)
        pki_rdma_grant_end(ep, &msg, true);
    lane->popped++;
    if (lane->popped - lane->reposted < PKI_RDMA_RING / 4 || base->dead || ep->left)
        return;
    if (post_receives(ep, lane->reposted, lane->popped - lane->reposted) != PK_OK) {
        pki_rdma_ep_failed(ep, "receives could not be posted");
        return;
    }
    lane->reposted = lane->popped;
    pki_rdma_lane_credit(ep);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transfer to this rank. Small ones into host memory wait for an EAGER message. Others grant their buffer to the sender: GPU
 * memory at once, with a signal that opens when the buffer is free; host memory when it is free.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/proto/offer.h"
#include "engine/proto/proto.h"
#include "util/copy.h"

static void advance_to(struct pki_xfer *xfer, size_t done)
{
    if (done <= xfer->done)
        return;
    xfer->done = done;
    if (done == xfer->bytes) {
        if (xfer->state == PKI_XFER_LOCAL)
            pki_ctrl_eager_put_consumed(xfer->engine, xfer->peer, xfer->bytes);
        pki_xfer_enter(xfer, PKI_XFER_DONE);
        if (xfer->kind == PKI_MEM_HOST && xfer->signals.slot >= 0)
            pki_slots_give(&xfer->peer->signals, xfer->signals.slot);
    }
    pki_xfer_progressed(xfer);
}

static void broken(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->user.task);

    (void)pki_fail(PK_ERR_INTERNAL, &where,
                   "message of kind %u does not fit its transfer (offset %llu, payload %u, of %zu bytes)", (unsigned)msg->kind,
                   (unsigned long long)msg->offset, (unsigned)msg->payload, xfer->bytes);
    pki_engine_poison(xfer->engine, PK_ERR_INTERNAL, true);
}

static bool by_bounce(const struct pki_xfer *xfer)
{
    return xfer->kind == PKI_MEM_DEVICE && pki_bounce_receives(xfer->engine, xfer->peer);
}

/* Granted, and the sender cannot map the memory: it still asks for bounce buffers. */
static bool is_refused(const struct pki_xfer *xfer)
{
    return xfer->kind == PKI_MEM_DEVICE && xfer->signals.slot >= 0 && xfer->signals.cell == NULL && !xfer->signals.ll &&
           xfer->signals.own < 0 && xfer->done == 0;
}

static void take_eager(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload)
{
    if (msg->payload != xfer->bytes || msg->sig != xfer->id.sig) {
        pki_xfer_mismatch(xfer, msg, msg->payload);
        return;
    }
    if (xfer->kind == PKI_MEM_DEVICE && xfer->bytes > 0) {
        pki_ctrl_consumed(xfer->engine, xfer->peer, xfer->bytes);
        pki_bounce_eager(xfer, payload);
        return;
    }
    if (xfer->state == PKI_XFER_LOCAL) { /* it comes in chunks */
        broken(xfer, msg);
        return;
    }
    if (xfer->bytes > 0)
        pki_copy_short(xfer->addr, payload, xfer->bytes);
    pki_ctrl_consumed(xfer->engine, xfer->peer, xfer->bytes);
    xfer->done = xfer->bytes;
    pki_xfer_enter(xfer, PKI_XFER_DONE);
    pki_xfer_progressed(xfer);
}

/* Has it been granted, and not to a stream? */
static bool takes_bytes(const struct pki_xfer *xfer)
{
    return xfer->state >= PKI_XFER_WAIT && xfer->state < PKI_XFER_STREAM;
}

static void take_data(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload)
{
    if (!takes_bytes(xfer) || xfer->kind != PKI_MEM_HOST || msg->offset != xfer->done ||
        msg->payload > xfer->bytes - xfer->done) {
        broken(xfer, msg);
        return;
    }
    if (xfer->state == PKI_XFER_COOP || xfer->state == PKI_XFER_ASK)
        pki_coop_left(xfer);
    if (xfer->coop.combines) {
        pk_result_t result = xfer->user.calls->combine(xfer->user.task, xfer->user.step, xfer->done, payload, msg->payload);

        if (result != PK_OK) {
            pki_engine_poison(xfer->engine, result, true);
            return;
        }
    } else {
        pki_copy(xfer->addr + xfer->done, payload, msg->payload);
    }
    advance_to(xfer, xfer->done + msg->payload);
}

/* The sender has no credit, or waits for another reason, for what was posted without telling it. */
static void send_local_cts(struct pki_xfer *xfer)
{
    const struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_CTS);

    if (pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine) == PK_OK)
        pki_xfer_enter(xfer, PKI_XFER_WAIT);
    else
        pki_xfer_activate(xfer);
}

void pki_recv_message(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload)
{
    switch (msg->kind) {
    case PKI_MSG_EAGER:
        take_eager(xfer, msg, payload);
        return;
    case PKI_MSG_RTS:
        if (msg->bytes != xfer->bytes || msg->sig != xfer->id.sig) {
            pki_xfer_mismatch(xfer, msg, msg->bytes);
            return;
        }
        if (msg->extra == PKI_RTS_EAGER_PUT)
            return;
        xfer->rts_seen = true;
        if (xfer->state == PKI_XFER_SAY)
            pki_recv_advance(xfer);
        else if (xfer->state == PKI_XFER_LOCAL)
            send_local_cts(xfer);
        return;
    case PKI_MSG_BOUNCE_REQ:
        if (xfer->state == PKI_XFER_WAIT && (by_bounce(xfer) || xfer->bounce.state != NULL || is_refused(xfer)))
            pki_bounce_requested(xfer, msg);
        else
            broken(xfer, msg);
        return;
    case PKI_MSG_DATA:
        if (xfer->bounce.state != NULL)
            pki_bounce_landed(xfer, msg, payload);
        else
            take_data(xfer, msg, payload);
        return;
    case PKI_MSG_FIN:
        if (xfer->bounce.state != NULL)
            pki_bounce_landed(xfer, msg, NULL);
        else if (!takes_bytes(xfer) || xfer->kind != PKI_MEM_HOST || msg->offset > xfer->bytes)
            broken(xfer, msg);
        else
            advance_to(xfer, msg->offset);
        return;
    case PKI_MSG_OFFER:
        if (xfer->state != PKI_XFER_WAIT || xfer->kind != PKI_MEM_HOST || msg->bytes != xfer->bytes || xfer->done > 0 ||
            (xfer->signals.slot < 0 && !(xfer->coop.combines && (msg->region != 0 || xfer->coop.may_get))))
            broken(xfer, msg);
        else
            pki_coop_offered(xfer, msg);
        return;
    default:
        broken(xfer, msg);
    }
}

/* By a kernel that waits in the caller's stream, if then others, and other streams, still have what they need. */
static bool ll_allowed(const struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;

    if (e->config.gpus != PKI_GPUS_KERNELS || xfer->peer->ll.remote == NULL || !pki_task_is_direct(xfer->user.task) ||
        xfer->bytes > PKI_LL_MAX_BYTES || e->proto.ll_memory == NULL)
        return false;
    return pki_claims_kernel(xfer->user.task, (int)pki_ll_ctas(e, xfer->bytes));
}

/* A slot for the sender to signal through; kept until the transfer ends. False: none is free now. */
static bool take_slot(struct pki_xfer *xfer)
{
    struct pki_peer *peer = xfer->peer;
    struct pki_signal_slot *slot;

    if (xfer->signals.slot >= 0)
        return true;
    if (ll_allowed(xfer) && pki_ll_take_soon(xfer->engine, peer, xfer->bytes, &xfer->signals.slot, &xfer->signals.value)) {
        xfer->signals.ll = true;
        xfer->signals.finish =
            (struct pki_signal){ pki_signals_ll(xfer->engine, peer->rank, false, xfer->signals.value), xfer->signals.value };
        return true;
    }
    xfer->signals.slot = pki_slots_take(&peer->signals);
    if (xfer->signals.slot < 0)
        return false;
    slot = &peer->ctrl->signals_mine[xfer->signals.slot];
    xfer->signals.value = peer->signals.value[xfer->signals.slot] += (uint32_t)pki_xfer_chunks(xfer, xfer->bytes);
    xfer->signals.start = (struct pki_signal){ &slot->start, xfer->signals.value };
    xfer->signals.finish = (struct pki_signal){ &slot->done, xfer->signals.value };
    pki_watchdog_note(peer, false, xfer->signals.slot, xfer->signals.value);
    return true;
}

/* What a plan goes on with, chunk by chunk, comes through the control channel: it is in the cache then. */
static bool prefers_ctrl(const struct pki_xfer *xfer)
{
    const struct pki_ep *path = xfer->peer->path[PKI_MEM_HOST][PKI_MEM_HOST];

    return xfer->coop.combines && path == xfer->peer->ctrl && xfer->peer->ctrl->signals_mine != NULL &&
           xfer->bytes <= PKI_CTRL_DATA_MAX;
}

static struct pki_msg cts(const struct pki_xfer *xfer)
{
    struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_CTS);

    msg.offset = (uint64_t)(uintptr_t)xfer->addr;
    return msg;
}

/* Into this buffer the peer may put. `tell` NULL: it does not wait for word of that. */
static pk_result_t post(struct pki_xfer *xfer, const struct pki_msg *tell)
{
    xfer->moves.recv = (struct pki_recv){ .ep = xfer->peer->ctrl,
                                          .addr = xfer->addr,
                                          .bytes = xfer->bytes,
                                          .flags = xfer->id.flags,
                                          .index = xfer->id.index,
                                          .sig = xfer->id.sig,
                                          .op = xfer->id.op,
                                          .owner = xfer };
    return pki_ctrl_post(xfer->peer, &xfer->moves.recv, tell, xfer->engine);
}

void pki_recv_received(struct pki_recv *recv)
{
    struct pki_xfer *xfer = recv->owner;

    advance_to(xfer, recv->have);
}

/* The CTS has been sent, or there is no room, or none can be. */
static void granted(struct pki_xfer *xfer, pk_result_t result, enum pki_xfer_state state)
{
    if (result == PK_OK)
        pki_xfer_enter(xfer, state);
    else if (result != PK_IN_PROGRESS)
        pki_engine_poison(xfer->engine, result, true);
    if (result == PK_IN_PROGRESS || xfer->kind == PKI_MEM_DEVICE)
        pki_xfer_activate(xfer);
}

static pk_result_t grant_host(struct pki_xfer *xfer)
{
    struct pki_msg msg = cts(xfer);

    if (xfer->bytes >= pki_tuning.p2p.coop_bytes && !xfer->coop.combines) {
        pk_result_t result = pki_shm_alloc_describe(xfer, &msg);

        if (result != PK_OK && result != PK_ERR_UNSUPPORTED)
            return result;
    }
    if (!prefers_ctrl(xfer)) {
        pki_coop_reserve(xfer);
    } else {
        xfer->coop.may_get = pki_coop_may_get(xfer);
        msg.flags |= PKI_MSG_FLAG_CTRL | (xfer->coop.may_get ? PKI_MSG_FLAG_GET : 0);
    }
    if (xfer->signals.slot >= 0) {
        msg.flags |= PKI_MSG_FLAG_COOP;
        msg.signal_slot = (uint16_t)xfer->signals.slot;
        msg.signal_value = xfer->signals.value;
    }
    return xfer->peer->ctrl->iface->transport->posts ? post(xfer, &msg) : pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine);
}

static pk_result_t grant_device(struct pki_xfer *xfer)
{
    struct pki_msg msg = cts(xfer);
    pk_result_t result;

    if (!take_slot(xfer))
        return PK_IN_PROGRESS;
    msg.flags |= PKI_MSG_FLAG_DEVICE | (xfer->signals.ll ? PKI_MSG_FLAG_LL : 0);
    msg.signal_slot = (uint16_t)xfer->signals.slot;
    msg.signal_value = xfer->signals.value;
    msg.extra = xfer->signals.joined ? PKI_CTS_JOINED : 0;
    if (!xfer->signals.ll) {
        result = pki_region_tell_or_hide(xfer->engine, xfer->peer, xfer->addr, xfer->bytes, &msg.region, &msg.offset);
        if (result != PK_OK)
            return result;
        if (xfer->there.region == 0)
            pki_region_hold(xfer->engine, xfer->there.region = msg.region);
    }
    return pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine);
}

void pki_recv_rendezvous(struct pki_xfer *xfer)
{
    pk_result_t result;

    if (xfer->kind == PKI_MEM_HOST) {
        granted(xfer, grant_host(xfer), PKI_XFER_WAIT);
        return;
    }
    if (pki_offer_take(xfer)) {
        pki_xfer_enter(xfer, PKI_XFER_WAIT);
        pki_xfer_activate(xfer);
        return;
    }
    result = grant_device(xfer);
    if (result == PK_IN_PROGRESS)
        pki_offer_retract(xfer);
    granted(xfer, result, PKI_XFER_WAIT);
}

/* The message comes by itself, or an RTS, from a sender without credit. */
void pki_recv_eager(struct pki_xfer *xfer)
{
    if (xfer->bytes > 0 && xfer->rts_seen)
        pki_recv_rendezvous(xfer);
}

void pki_recv_eager_put(struct pki_xfer *xfer)
{
    if (xfer->rts_seen)
        pki_recv_rendezvous(xfer);
    else
        granted(xfer, post(xfer, NULL), PKI_XFER_LOCAL);
}

/* Short ones may come from host memory, as EAGER messages. */
void pki_recv_bounce(struct pki_xfer *xfer)
{
    struct pki_msg msg = cts(xfer);

    if (xfer->bytes <= pki_xfer_eager_max(xfer) && !xfer->rts_seen)
        return;
    msg.flags |= PKI_MSG_FLAG_BOUNCE;
    msg.offset = 0;
    granted(xfer, pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine), PKI_XFER_WAIT);
}

/* GPU memory: the sender's queue counts chunks up in the slot's done word. */
static void poll_signal(struct pki_xfer *xfer)
{
    uint32_t left = xfer->signals.value - atomic_load_explicit(xfer->signals.finish.word, memory_order_acquire);
    size_t chunks = xfer->signals.ll ? 1 : pki_xfer_chunks(xfer, xfer->bytes);
    size_t done;

    if (atomic_load(&xfer->engine->failed) != PK_OK) /* and it may have been opened for that alone */
        return;
    if (xfer->signals.cell != NULL && pki_offer_is_aborted(xfer)) {
        pki_xfer_activate(xfer); /* until word of that comes */
        return;
    }
    if ((int32_t)left <= 0)
        done = xfer->bytes;
    else
        done = left >= chunks ? 0 : (chunks - left) * xfer->chunk;
    if (done < xfer->bytes) {
        pki_xfer_activate(xfer);
    } else if (xfer->signals.ll) {
        xfer->peer->ll.by_kernel = xfer->bounce.slot < 0;
        pki_ll_give(&xfer->peer->ll.ring, xfer->signals.value);
    } else if (xfer->signals.cell == NULL) {
        pki_slots_give(&xfer->peer->signals, xfer->signals.slot);
    }
    if (done == xfer->bytes)
        pki_bounce_give(xfer);
    advance_to(xfer, done);
}

/* An offer, by the library's own queue: for receives that are in no CUDA stream. Nothing in it waits. */
static void pull(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    pk_result_t result;

    pki_xfer_activate(xfer);
    if (!xfer->opened || !pki_signal_is_open(&xfer->signals.start) || atomic_load(&e->failed) != PK_OK ||
        !e->gpu->ops->clear(&e->proto.deferred, false))
        return;
    result = pki_xfer_put(xfer, &e->proto.deferred);
    if (result == PK_OK)
        result = e->gpu->ops->signals(&e->proto.deferred, &(struct pki_signal_op){ PKI_SIGNAL_WRITE, xfer->signals.finish }, 1,
                                      PKI_WAIT_VALUE);
    if (result != PK_OK)
        pki_put_failed(xfer, result);
    pki_xfer_enter(xfer, PKI_XFER_STREAM);
}

/* What has come before it was asked for. */
static void take_all_unexpected(struct pki_xfer *xfer)
{
    struct pki_unexpected *unexpected;

    while (xfer->state != PKI_XFER_DONE && (unexpected = pki_ctrl_take(xfer)) != NULL) {
        pki_recv_message(xfer, &unexpected->msg, unexpected->payload);
        free(unexpected);
        if (atomic_load_explicit(&xfer->engine->failed, memory_order_relaxed) != PK_OK)
            return;
    }
}

void pki_recv_open(struct pki_xfer *xfer)
{
    if (xfer->state == PKI_XFER_UNPOSTED) {
        pki_xfer_enter(xfer, PKI_XFER_SAY);
        pki_recv_advance(xfer);
        return;
    }
    if (xfer->signals.start.word != NULL && xfer->signals.cell == NULL)
        pki_signal_open(&xfer->signals.start);
    xfer->opened = true;
}

static void begin(struct pki_xfer *xfer)
{
    take_all_unexpected(xfer);
    if (xfer->state == PKI_XFER_SAY)
        xfer->protocol->recv(xfer);
    if (xfer->state == PKI_XFER_WAIT && xfer->opened && xfer->signals.start.word != NULL && xfer->signals.cell == NULL)
        pki_signal_open(&xfer->signals.start);
}

static void await_bytes(struct pki_xfer *xfer)
{
    if (xfer->bounce.kept != NULL)
        pki_bounce_unexpected(xfer);
    else if (xfer->bounce.state != NULL)
        pki_bounce_recv(xfer);
    else if (xfer->signals.own >= 0)
        pki_bounce_poll(xfer);
    else if (xfer->signals.cell != NULL)
        pull(xfer);
    else if (xfer->signals.finish.word != NULL)
        poll_signal(xfer);
}

/* The sender may have said RTS meanwhile: it waits. */
static void await_eager_put(struct pki_xfer *xfer)
{
    if (xfer->rts_seen)
        send_local_cts(xfer);
}

void pki_recv_advance(struct pki_xfer *xfer)
{
    static void (*const advance[])(struct pki_xfer * xfer) = {
        [PKI_XFER_UNPOSTED] = NULL, /* until its buffer is free */
        [PKI_XFER_SAY] = begin,
        [PKI_XFER_WAIT] = await_bytes,
        [PKI_XFER_LOCAL] = await_eager_put,
        [PKI_XFER_ASK] = pki_coop_ask_for_data,
        [PKI_XFER_COOP] = pki_coop_advance,
        [PKI_XFER_GET] = pki_coop_get,
        [PKI_XFER_STREAM] = poll_signal,
        [PKI_XFER_DONE] = NULL,
    };

    if (advance[xfer->state] != NULL)
        advance[xfer->state](xfer);
}

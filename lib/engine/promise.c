/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places promised ahead. A receiver that has taken two low-latency messages of a length promises the place of the next one before it is asked
 * for it: a sender that comes to such a message writes at once, and no grant is on the way. A promise is a GRANT of a transfer to come.
 *
 * It may turn out wrong: the next receive is of another kind, or nothing may wait in its stream. Then the receiver takes the promise back, ahead
 * of whatever it says of the transfer otherwise. A sender that had used it says so when its kernel has ended, and ignores the rest; the message is
 * fetched from the place. A sender that had not, goes the ordinary way.
 */
#include <string.h>

#include "engine/internal.h"
#include "engine/stage.h"

#define ALIKE 2u      /* messages of one length, after which another is likely */
#define SOBER_UP 6u  /* and after a promise that was wrong */

static struct pki_msg message(enum pki_msg_kind kind, uint64_t op, size_t bytes)
{
    return (struct pki_msg){ .kind = (uint8_t)kind, .op = op, .bytes = bytes };
}

/* ---- receiver ---- */

void pki_promise_next(struct pki_xfer *xfer)
{
    struct pki_peer *peer = xfer->peer;
    struct pki_promise *a = &peer->promise;
    struct pki_msg msg = message(PKI_MSG_GRANT, xfer->op + 1, xfer->bytes);

    if (!xfer->ll || xfer->flags != 0 || xfer->bytes > PKI_LL_PROMISED)
        return;
    a->alike = xfer->bytes != a->last_bytes ? 1 : a->alike + 1;
    a->last_bytes = xfer->bytes;
    if (a->alike < ALIKE || a->alike < a->enough || a->live || !pki_ll_take(&peer->lls, xfer->bytes, &a->place, &a->flag))
        return;
    msg.flags = PKI_MSG_FLAG_DEVICE | PKI_MSG_FLAG_LL;
    msg.gate_slot = (uint16_t)a->place;
    msg.gate_value = a->flag;
    msg.extra = PKI_GRANT_PROMISE;
    if (pki_lane_send(peer, &msg, NULL, xfer->engine) != PK_OK) {
        pki_ll_give(&peer->lls, a->flag);
        return;
    }
    a->live = true;
    a->op = xfer->op + 1;
    a->bytes = xfer->bytes;
}

bool pki_promise_is_for(const struct pki_xfer *xfer)
{
    const struct pki_promise *a = &xfer->peer->promise;

    return a->live && a->op == xfer->op && xfer->flags == 0;
}

void pki_promise_keep(struct pki_xfer *xfer)
{
    struct pki_promise *a = &xfer->peer->promise;

    a->live = false;
    a->enough = ALIKE;
    xfer->gate_slot = a->place;
    xfer->gate_value = a->flag;
}

pk_result_t pki_promise_take_back(struct pki_xfer *xfer)
{
    struct pki_promise *a = &xfer->peer->promise;
    struct pki_msg msg = message(PKI_MSG_REVOKE, xfer->op, xfer->bytes);
    pk_result_t result = pki_lane_send(xfer->peer, &msg, NULL, xfer->engine);

    if (result != PK_OK)
        return result;
    a->live = false;
    a->alike = 0;
    a->enough = SOBER_UP;
    xfer->promised = a->flag;
    xfer->promised_place = a->place;
    return PK_OK;
}

void pki_promise_received(struct pki_xfer *xfer)
{
    struct pki_promise *a = &xfer->peer->promise;

    if (xfer->promised != 0)
        pki_ll_give(&xfer->peer->lls, xfer->promised);
    if (!pki_promise_is_for(xfer))
        return;
    a->live = false; /* it came another way before this rank had said anything */
    pki_ll_give(&xfer->peer->lls, a->flag);
}

void pki_promise_was_used(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    if (msg->bytes != xfer->bytes) {
        pki_xfer_mismatch(xfer, msg, msg->bytes);
        return;
    }
    xfer->used = true;
    pki_xfer_activate(xfer);
}

/* The sender's kernel has ended, so this one will soon: it may go where nothing waits. */
static void fetch(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    int rank = xfer->peer->rank;
    struct pki_ll_op op = { .user = xfer->addr, .bytes = (uint32_t)xfer->bytes, .flag = xfer->promised,
                            .slot = pki_ll_slot(e, rank, xfer->promised_place), .done = pki_words_ll(e, rank, false, xfer->promised),
                            .ctas = pki_ll_ctas(e, xfer->bytes), .arrived = pki_ll_arrived(e, rank, false, xfer->promised) };
    pk_result_t result;

    if (xfer->kind == PKI_MEM_HOST) {
        xfer->slot = pki_stage_slot_take(e, &e->in);
        if (xfer->slot < 0)
            return;
        op.user = pki_stage_slot_at(&e->in, xfer->slot);
    }
    result = e->gpu->ops->ll(&e->late, &op, 1, e->abort_word);
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    e->stats.kernels++;
    xfer->fetching = true;
}

void pki_promise_fetch(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    struct pki_gate ended = { pki_words_ll(e, xfer->peer->rank, false, xfer->promised), xfer->promised };
    bool is_free = xfer->kind == PKI_MEM_HOST || (xfer->start.word != NULL ? pki_gate_is_open(&xfer->start) : xfer->opened);

    if (!xfer->fetching && is_free)
        fetch(xfer);
    if (!xfer->fetching || !pki_gate_is_open(&ended)) {
        pki_xfer_activate(xfer);
        return;
    }
    if (xfer->kind == PKI_MEM_HOST)
        memcpy(xfer->addr, pki_stage_slot_at(&e->in, xfer->slot), xfer->bytes);
    else if (xfer->finish.word != NULL) /* the caller's stream may wait for it */
        pki_gate_open(&xfer->finish);
    if (xfer->slot >= 0)
        pki_stage_slot_give(&e->in, xfer->slot);
    if (xfer->gate_slot >= 0)
        pki_slots_give(&xfer->peer->gates, xfer->gate_slot);
    xfer->done = xfer->bytes;
    xfer->state = PKI_XFER_DONE;
    pki_xfer_progressed(xfer);
}

/* ---- sender ---- */

bool pki_promise_suits(const struct pki_xfer *xfer, const struct pki_msg *grant)
{
    return grant->bytes == xfer->bytes && grant->sig == xfer->sig;
}

void pki_promise_use(struct pki_xfer *xfer)
{
    xfer->by_promise = true;
    xfer->peer->promised.used = xfer->op;
    xfer->peer->promised.bytes = xfer->bytes;
}

static void answer(struct pki_engine *e, struct pki_peer *peer)
{
    struct pki_promised *p = &peer->promised;
    struct pki_msg msg = message(PKI_MSG_USED, p->used, p->bytes);

    if (p->asked == p->used && p->ended == p->used && pki_lane_send(peer, &msg, NULL, e) == PK_OK)
        p->asked = 0;
}

void pki_promise_look(struct pki_engine *e, struct pki_peer *peer)
{
    if (peer->promised.asked != 0)
        answer(e, peer);
}

void pki_promise_sent(struct pki_xfer *xfer)
{
    xfer->peer->promised.ended = xfer->op;
    pki_promise_look(xfer->engine, xfer->peer);
}

void pki_promise_revoked(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg)
{
    if (peer->promised.used == msg->op) {
        peer->promised.asked = msg->op;
        answer(e, peer);
        return;
    }
    pki_lane_forget(peer, msg->op);
}

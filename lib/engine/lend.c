/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of collectives in which all ranks move as much at the same time, lent page by page: the sender hands pages over as they are, says
 * so in the lane (LENT), and the receiver copies from them when it comes to the message; TAKEN ends it. Nothing waits for the other
 * end's core in between, which is what counts where ranks share cores. Where each has its own, it depends on what the cores share: so
 * both ways are timed, and the cheaper one is taken.
 */
#include "engine/internal.h"

#define PIECE ((size_t)256 << 10) /* half of a pipe: the next is lent while one is read */
#define TRIALS 8                  /* of a length, every other one lent */
#define TRY_EVERY 64              /* the way that was dearer; the distance of virtual cores changes within minutes */

static struct pki_way_costs *costs_of(const struct pki_xfer *xfer)
{
    unsigned length = 63u - (unsigned)__builtin_clzll(xfer->bytes | PKI_SHARE_MIN) - (63u - (unsigned)__builtin_clzll(PKI_SHARE_MIN));

    return &xfer->peer->costs[length < PKI_COST_LENGTHS ? length : PKI_COST_LENGTHS - 1];
}

/* ns a KiB, near the least: a thread that lost its core meanwhile says nothing. */
static void note(float *cost, size_t bytes, uint64_t begun_ns)
{
    float sample = (float)(pki_now_ns() - begun_ns) * 1024 / (float)bytes;

    if (*cost == 0 || sample < *cost)
        *cost = *cost == 0 ? sample : (*cost + sample) / 2;
    else
        *cost += ((sample < 2 * *cost ? sample : 2 * *cost) - *cost) / 8;
}

bool pki_lend_times_puts(const struct pki_xfer *xfer)
{
    return xfer->may_lend && xfer->is_send;
}

void pki_lend_note_put(const struct pki_xfer *xfer, size_t bytes, uint64_t begun_ns)
{
    note(&costs_of(xfer)->put, bytes, begun_ns);
}

static bool is_cheaper(const struct pki_xfer *xfer)
{
    struct pki_way_costs *costs = costs_of(xfer);
    unsigned n = costs->tried++;
    bool cheaper = costs->take > 0 && costs->lend + costs->take < costs->put; /* this rank takes as much as it lends */

    if (n < TRIALS)
        return n % 2 == 0;
    return n % TRY_EVERY == 0 ? !cheaper : cheaper;
}

/* Receive: for the grant. */
bool pki_lend_wanted(const struct pki_xfer *xfer)
{
    return xfer->kind == PKI_MEM_HOST && xfer->bytes >= PKI_SHARE_MIN && !xfer->combines && xfer->peer->lane->can_lend && pki_share_is_even(xfer);
}

bool pki_lend_begins(struct pki_xfer *xfer)
{
    if (!xfer->may_lend || xfer->remote_mapped || xfer->in_lane || !xfer->peer->lane->can_lend)
        return false;
    xfer->lends = !pki_share_pays(xfer) || is_cheaper(xfer);
    xfer->may_lend = !xfer->lends; /* a put, and timed */
    return xfer->lends;
}

static bool tell(struct pki_xfer *xfer)
{
    struct pki_peer *peer = xfer->peer;
    struct pki_msg msg = { .kind = PKI_MSG_LENT, .flags = xfer->flags, .index = xfer->index, .sig = xfer->sig, .op = xfer->op,
                           .offset = xfer->told, .bytes = xfer->issued - xfer->told, .region = peer->lent_through };

    if (xfer->told == xfer->issued)
        return true;
    if (pki_lane_send(peer, &msg, NULL, xfer->engine) != PK_OK)
        return false;
    xfer->told = xfer->issued;
    peer->lender = NULL;
    return true;
}

/* Hand over the next piece. PK_IN_PROGRESS: no room in the pipe or in the lane. */
static pk_result_t lend_piece(struct pki_xfer *xfer)
{
    struct pki_peer *peer = xfer->peer;
    size_t left = xfer->bytes - xfer->issued, lent = 0;
    uint64_t begun = pki_now_ns();
    pk_result_t result;

    if (peer->lender != NULL) /* the lane tells of what is in the pipe in its order */
        return PK_IN_PROGRESS;
    result = peer->lane->iface->transport->lend(peer->lane, xfer->addr + xfer->issued, left < PIECE ? left : PIECE, &lent, &peer->lent_through);
    if (result != PK_OK || lent == 0)
        return result != PK_OK ? result : PK_IN_PROGRESS;
    note(&costs_of(xfer)->lend, lent, begun);
    xfer->issued += lent;
    peer->lender = xfer;
    return tell(xfer) ? PK_OK : PK_IN_PROGRESS;
}

/* Granted, all bytes at hand: as much as there is room for, so that both ends read at the same time. */
void pki_lend_advance(struct pki_xfer *xfer)
{
    pk_result_t result = tell(xfer) ? PK_OK : PK_IN_PROGRESS;

    while (result == PK_OK && xfer->issued < xfer->bytes)
        result = lend_piece(xfer);
    if (result == PK_ERR_UNSUPPORTED && xfer->issued == 0) { /* no pipe, or memory that has no pages: by put, then */
        xfer->lends = false;
        result = PK_IN_PROGRESS;
    }
    if (result == PK_IN_PROGRESS)
        pki_xfer_activate(xfer);
    else if (result != PK_OK)
        pki_put_failed(xfer, result);
}

/* Receiver: it has all, and the sender does not know yet. */
void pki_lend_end(struct pki_xfer *xfer)
{
    struct pki_msg msg = { .kind = PKI_MSG_TAKEN, .flags = xfer->flags, .index = xfer->index, .sig = xfer->sig, .op = xfer->op,
                           .offset = xfer->bytes, .bytes = xfer->bytes };

    if (pki_lane_send(xfer->peer, &msg, NULL, xfer->engine) != PK_OK)
        pki_xfer_activate(xfer);
    else
        pki_share_ended(xfer);
}

/* The bytes are next in the pipe, and leave it now. */
void pki_lend_take(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    struct pki_ep *lane = xfer->peer->lane;
    uint64_t begun = pki_now_ns();
    pk_result_t result = lane->iface->transport->borrow(lane, msg->region, xfer->addr + xfer->done, msg->bytes);

    if (result != PK_OK) {
        pki_put_failed(xfer, result);
        return;
    }
    note(&costs_of(xfer)->take, msg->bytes, begun);
    pki_engine_look_soon(xfer->engine);
    xfer->lends = true;
    if (xfer->done + msg->bytes == xfer->bytes) {
        xfer->all_moved = true;
        pki_lend_end(xfer);
        return;
    }
    xfer->done += msg->bytes;
    pki_xfer_progressed(xfer);
}

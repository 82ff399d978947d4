/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/proto/offer.h"
#include "engine/proto/proto.h"

#include <stdlib.h>

enum { OPEN, GRANTED, OFFERED, TAKEN }; /* lower two bits of a cell's state; the others name the transfer */

static uint64_t state_of(const struct pki_xfer *xfer, unsigned state)
{
    return (xfer->id.op << 16 | xfer->id.index) << 2 | state;
}

static int cell_of_message(uint64_t number)
{
    return PKI_SIGNAL_SLOTS + (int)(number % PKI_CELLS);
}

static int slot_of(const struct pki_xfer *xfer)
{
    if ((xfer->id.flags & PKI_MSG_FLAG_COLL) != 0)
        return pki_cell_of_step(xfer->id.op, xfer->id.index);
    return cell_of_message(xfer->id.op);
}

/* NULL: transfers of this pair, or of this kind, have none. */
static struct pki_signal_slot *cell_of(const struct pki_xfer *xfer)
{
    const struct pki_peer *peer = xfer->peer;

    if (xfer->kind != PKI_MEM_DEVICE || xfer->bytes == 0 || (xfer->id.flags & PKI_MSG_FLAG_CAPTURED) != 0 || peer->ctrl == NULL ||
        peer->ctrl->signals_mine == NULL || peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] == NULL)
        return NULL;
    return &(xfer->is_send ? peer->ctrl->signals_theirs : peer->ctrl->signals_mine)[slot_of(xfer)];
}

static bool has_failed(const struct pki_xfer *xfer)
{
    return atomic_load_explicit(&xfer->engine->failed, memory_order_relaxed) != PK_OK;
}

/* For something that the peer does within a call of its own. No operation of this engine ends meanwhile. */
static bool wait_a_little(struct pki_xfer *xfer)
{
    if (!pki_ctrl_poll(xfer->engine, xfer->peer))
        pki_side_poll(xfer->engine, xfer->peer);
    pki_cpu_pause();
    return !has_failed(xfer);
}

/* ---- the receiver ---- */

/* The RTS that was sent before the offer is on its way or has come. */
static void forget_rts(struct pki_xfer *xfer)
{
    const enum pki_xfer_state was = xfer->state;
    struct pki_unexpected *unexpected = pki_ctrl_take(xfer);

    pki_xfer_enter(xfer, PKI_XFER_WAIT); /* it is not to be answered */
    while (unexpected == NULL && !xfer->rts_seen && pki_ctrl_poll(xfer->engine, xfer->peer))
        unexpected = pki_ctrl_take(xfer);
    pki_xfer_enter(xfer, was);
    xfer->rts_seen = true;
    free(unexpected);
}

static bool agrees(struct pki_xfer *xfer, const struct pki_signal_slot *cell)
{
    const struct pki_msg msg = { .kind = PKI_MSG_RTS,
                                 .flags = xfer->id.flags,
                                 .index = xfer->id.index,
                                 .sig = cell->sig,
                                 .op = xfer->id.op,
                                 .bytes = cell->bytes };

    if (cell->bytes == xfer->bytes && cell->sig == xfer->id.sig)
        return true;
    pki_xfer_mismatch(xfer, &msg, cell->bytes);
    return false;
}

static bool take(struct pki_xfer *xfer, struct pki_signal_slot *cell)
{
    uint64_t base = 0;
    pk_result_t result;

    forget_rts(xfer);
    if (has_failed(xfer) || !agrees(xfer, cell))
        return false;
    result = pki_region_map(xfer->engine, xfer->peer, cell->region, cell->offset, cell->bytes, &base);
    if (result != PK_OK) {
        if (result != PK_IN_PROGRESS)
            pki_engine_poison(xfer->engine, result, true);
        return false; /* the sender may be able to map what the receiver cannot now */
    }
    pki_region_tell_soon(xfer);
    xfer->there.remote = base + cell->offset;
    xfer->signals.cell = cell;
    xfer->signals.value = xfer->signals.cell_value = cell->value;
    xfer->signals.start = pki_offer_start(xfer);
    xfer->signals.finish = pki_offer_finish(xfer);
    pki_watchdog_note(xfer->peer, false, slot_of(xfer), cell->value);
    atomic_store_explicit(&cell->claim, state_of(xfer, TAKEN), memory_order_release);
    return true;
}

bool pki_offer_take(struct pki_xfer *xfer)
{
    struct pki_signal_slot *cell = cell_of(xfer);
    uint64_t seen;

    if (cell == NULL)
        return false;
    seen = atomic_load_explicit(&cell->claim, memory_order_acquire);
    for (;;) {
        if (seen == state_of(xfer, OFFERED)) /* with a slot taken the grant follows: a stream may wait for the slot */
            return xfer->signals.slot < 0 && take(xfer, cell);
        if ((seen & 3) == OFFERED) /* of a later transfer: this one's sender makes none */
            return false;
        if (atomic_compare_exchange_weak(&cell->claim, &seen, state_of(xfer, GRANTED)))
            return false;
    }
}

void pki_offer_retract(struct pki_xfer *xfer)
{
    struct pki_signal_slot *cell = cell_of(xfer);
    uint64_t seen = state_of(xfer, GRANTED);

    if (cell != NULL)
        (void)atomic_compare_exchange_strong(&cell->claim, &seen, state_of(xfer, OPEN));
}

bool pki_offer_is_aborted(const struct pki_xfer *xfer)
{
    return !xfer->is_send && atomic_load_explicit(&xfer->signals.cell->claim, memory_order_acquire) == state_of(xfer, OPEN);
}

bool pki_offer_is_settled(const struct pki_peer *peer, const struct pki_msg *want)
{
    uint64_t key = want->op << 16 | want->index, claim;
    int slot = (want->flags & PKI_MSG_FLAG_COLL) != 0 ? pki_cell_of_step(want->op, want->index) : cell_of_message(want->op);

    if (peer->ctrl->signals_mine == NULL || peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] == NULL ||
        (want->flags & PKI_MSG_FLAG_CAPTURED) != 0)
        return false;
    claim = atomic_load_explicit(&peer->ctrl->signals_mine[slot].claim, memory_order_acquire);
    return claim >> 2 == key && ((claim & 3) == GRANTED || (claim & 3) == TAKEN);
}

/* ---- the sender ---- */

/* What was offered in it before has been taken and moved. */
static bool is_free(const struct pki_signal_slot *cell, uint64_t state)
{
    return (state & 3) != OFFERED && (int32_t)(atomic_load_explicit(&cell->done, memory_order_acquire) - cell->value) >= 0;
}

/* True: the state is `*seen`, and it may be offered. */
static bool may_offer(struct pki_xfer *xfer, const struct pki_signal_slot *cell, uint64_t *seen)
{
    for (;;) {
        *seen = atomic_load_explicit(&cell->claim, memory_order_acquire);
        if (pki_xfer_is_granted(xfer))
            return false;
        if (*seen != state_of(xfer, GRANTED)) /* else the grant is on its way */
            return is_free(cell, *seen);
        if (!wait_a_little(xfer))
            return false;
    }
}

static bool describe(struct pki_xfer *xfer, struct pki_signal_slot *cell)
{
    pk_result_t result;

    if (!pki_region_is_shareable(xfer->engine, xfer->addr, xfer->bytes)) /* the receiver's may be */
        return false;
    do
        result = pki_region_tell(xfer->engine, xfer->peer, xfer->addr, xfer->bytes, &cell->region, &cell->offset);
    while (result == PK_IN_PROGRESS && wait_a_little(xfer));
    if (result != PK_OK) {
        if (result != PK_IN_PROGRESS)
            pki_engine_poison(xfer->engine, result, true);
        return false;
    }
    if (xfer->there.region == 0)
        pki_region_hold(xfer->engine, xfer->there.region = cell->region);
    cell->value++;
    cell->bytes = xfer->bytes;
    cell->sig = xfer->id.sig;
    return true;
}

/* False: the grant has come, or the engine has failed. */
static bool send_rts(struct pki_xfer *xfer)
{
    while (!pki_xfer_is_granted(xfer) && !xfer->rts_seen && !pki_send_rts(xfer))
        if (!wait_a_little(xfer))
            return false;
    return !pki_xfer_is_granted(xfer);
}

/* False: the receiver has been quicker. */
static bool publish(struct pki_xfer *xfer, struct pki_signal_slot *cell, uint64_t seen)
{
    if (send_rts(xfer) && atomic_compare_exchange_strong(&cell->claim, &seen, state_of(xfer, OFFERED)))
        return true;
    cell->value--; /* nobody has read it */
    return false;
}

/* True: it is offered. False: it has been granted meanwhile, or the cell is still another one's, or the engine has failed. */
static bool make(struct pki_xfer *xfer)
{
    struct pki_signal_slot *cell = cell_of(xfer);
    uint64_t seen;

    do
        if (cell == NULL || !may_offer(xfer, cell, &seen) || !describe(xfer, cell))
            return false;
    while (!publish(xfer, cell, seen) && !has_failed(xfer));
    if (has_failed(xfer) && atomic_load(&cell->claim) != state_of(xfer, OFFERED))
        return false;
    xfer->signals.cell = cell;
    xfer->signals.cell_value = cell->value;
    xfer->signals.start = pki_offer_start(xfer);
    xfer->signals.finish = pki_offer_finish(xfer);
    pki_xfer_enter(xfer, PKI_XFER_WAIT);
    pki_watchdog_note(xfer->peer, true, slot_of(xfer), cell->value);
    pki_xfer_activate(xfer);
    return true;
}

void pki_offer_or_rts(struct pki_xfer *xfer)
{
    if (xfer->state == PKI_XFER_LOOK)
        pki_xfer_enter(xfer, PKI_XFER_SAY);
    if (xfer->state == PKI_XFER_SAY && !make(xfer) && xfer->state == PKI_XFER_SAY)
        pki_send_advance(xfer);
}

void pki_offer_declined(struct pki_xfer *xfer)
{
    atomic_store_explicit(&xfer->signals.cell->claim, state_of(xfer, TAKEN), memory_order_release);
    xfer->signals.start = xfer->signals.finish = (struct pki_signal){ NULL, 0 }; /* the grant has signals of its own, or none */
}

bool pki_offer_is_ready(struct pki_xfer *xfer)
{
    const struct pki_signal start = pki_offer_start(xfer);

    if (xfer->ready == xfer->bytes && !pki_signal_is_open(&start)) /* no stream does it */
        pki_signal_open(&start);
    if (!pki_signal_is_open(&start))
        return false;
    xfer->ready = xfer->bytes;
    return true;
}

void pki_offer_ended(struct pki_xfer *xfer)
{
    const struct pki_signal done = pki_offer_finish(xfer);

    if (xfer->is_send && !pki_signal_is_open(&done))
        pki_signal_open(&done);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a grant says of a send: where the bytes go, by which path, and through which slots. */
#include "engine/proto/offer.h"
#include "engine/proto/proto.h"

/* Each transfer is granted once; a slot and a region must be of the kind that the flags say. */
static bool grant_fits(const struct pki_xfer *xfer, const struct pki_msg *grant)
{
    bool device = (grant->flags & PKI_MSG_FLAG_DEVICE) != 0;

    if (xfer->state != PKI_XFER_LOOK && xfer->state != PKI_XFER_SAY && xfer->state != PKI_XFER_WAIT)
        return false;
    if ((grant->flags & PKI_MSG_FLAG_BOUNCE) != 0)
        return !device && grant->region == 0;
    if ((grant->flags & PKI_MSG_FLAG_LL) != 0)
        return device && xfer->engine->gpu != NULL && xfer->peer->ll.remote != NULL && xfer->bytes <= PKI_LL_MAX_BYTES &&
               (size_t)grant->signal_slot * PKI_LL_UNIT + 2 * xfer->bytes <= PKI_LL_RING_BYTES;
    if (device)
        return xfer->peer->ctrl->signals_theirs != NULL && grant->signal_slot < PKI_SIGNAL_SLOTS;
    if ((grant->flags & PKI_MSG_FLAG_COOP) != 0)
        return xfer->peer->ctrl->signals_theirs != NULL && grant->signal_slot < PKI_SIGNAL_SLOTS;
    return grant->region == 0 || xfer->peer->ctrl->signals_theirs != NULL;
}

/* Where the grant points, in this process. PK_IN_PROGRESS: nowhere, the memory there cannot be mapped, now or ever. */
static pk_result_t resolve(struct pki_xfer *xfer, const struct pki_msg *grant)
{
    struct pki_peer *peer = xfer->peer;
    uint64_t base = 0;
    pk_result_t result = PK_OK;

    if (!grant_fits(xfer, grant))
        return pki_fail(PK_ERR_INTERNAL, NULL, "rank %d sent an impossible CTS (flags %u, region %u, slot %u)", peer->rank,
                        (unsigned)grant->flags, grant->region, (unsigned)grant->signal_slot);
    if (pki_xfer_slots_there(xfer))
        return PK_OK;
    if ((grant->flags & PKI_MSG_FLAG_LL) != 0) {
        xfer->signals.ll = true;
        xfer->signals.slot = grant->signal_slot;
        xfer->signals.value = grant->signal_value;
        return PK_OK;
    }
    if (grant->region == 0 && (grant->flags & PKI_MSG_FLAG_DEVICE) != 0)
        return PK_IN_PROGRESS;
    if (grant->region != 0 && (grant->flags & PKI_MSG_FLAG_DEVICE) == 0) {
        xfer->there.mapped = xfer->kind == PKI_MEM_HOST;
        result = pki_region_map_host(xfer->engine, peer, grant, xfer->there.mapped, &base);
        base -= grant->offset;
    } else if (grant->region != 0)
        result = pki_region_map(xfer->engine, peer, grant->region, grant->offset, xfer->bytes, &base);
    if (result != PK_OK)
        return result;
    xfer->there.remote = base + grant->offset;
    xfer->coop.combines = (grant->flags & PKI_MSG_FLAG_CTRL) != 0 && xfer->kind == PKI_MEM_HOST && xfer->path == peer->ctrl;
    xfer->coop.may_get = xfer->coop.combines && (grant->flags & PKI_MSG_FLAG_GET) != 0;
    if ((grant->flags & PKI_MSG_FLAG_COOP) != 0 && xfer->kind == PKI_MEM_HOST) {
        xfer->signals.slot = grant->signal_slot % PKI_SIGNAL_SLOTS;
        xfer->signals.value = grant->signal_value;
    }
    if ((grant->flags & PKI_MSG_FLAG_DEVICE) != 0) {
        struct pki_signal_slot *slot = &peer->ctrl->signals_theirs[grant->signal_slot % PKI_SIGNAL_SLOTS];

        xfer->signals.slot = grant->signal_slot % PKI_SIGNAL_SLOTS;
        xfer->signals.value = grant->signal_value;
        xfer->signals.joined = grant->extra == PKI_CTS_JOINED;
        pki_watchdog_note(peer, true, xfer->signals.slot, xfer->signals.value);
        xfer->signals.start = (struct pki_signal){ &slot->start, grant->signal_value };
        xfer->signals.finish = (struct pki_signal){ &slot->done, grant->signal_value };
    }
    return PK_OK;
}

static enum pki_xfer_slots slots_of(bool here, bool there)
{
    return here && there ? PKI_SLOTS_BOTH : here ? PKI_SLOTS_HERE : there ? PKI_SLOTS_THERE : PKI_SLOTS_NONE;
}

/* Directly where a transport reaches, else through slots: of this rank, of the receiver, or of both. */
static void choose_path(struct pki_xfer *xfer, const struct pki_msg *grant, enum pki_mem_kind target)
{
    struct pki_peer *peer = xfer->peer;

    bool there = (grant->flags & PKI_MSG_FLAG_BOUNCE) != 0;

    xfer->bounce.slots = PKI_SLOTS_NONE;
    xfer->path = there ? NULL : peer->path[xfer->kind][target];
    if (xfer->path != NULL)
        return;
    xfer->path = peer->path[target][target]; /* a bounce buffer is host memory */
    xfer->bounce.slots = slots_of(xfer->kind != target, there);
}

/* What lay there before stands in the way. The receiver has said it where no rank can map its memory at all. */
static void say_blocked(struct pki_xfer *xfer)
{
    static atomic_bool said;
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->user.task);

    xfer->engine->stats.mappings_blocked++;
    if (!atomic_exchange(&said, true))
        pki_log(PKI_LOG_WARN, &where,
                "the peer allocated memory where it had freed some that is still mapped here: until no "
                "stream waits for an operation, such memory is reached through the host");
}

/* The receiver's memory cannot be mapped. It takes the first BOUNCE_REQ for word of that, which does not come before the buffer
 * is free: pieces that wait for that would keep slots from transfers on which it depends. */
static pk_result_t go_by_bounce(struct pki_xfer *xfer, const struct pki_msg *grant)
{
    struct pki_peer *peer = xfer->peer;
    struct pki_where where = pki_engine_where(xfer->engine, peer->rank, xfer->user.task);

    xfer->path = peer->path[PKI_MEM_HOST][PKI_MEM_HOST];
    if (xfer->path == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, &where,
                        "the peer's memory cannot be mapped, or not while a stream waits: there is no other path");
    xfer->bounce.slots = slots_of(xfer->kind == PKI_MEM_DEVICE, true);
    if ((grant->flags & PKI_MSG_FLAG_DEVICE) != 0)
        xfer->signals.start =
            (struct pki_signal){ &peer->ctrl->signals_theirs[grant->signal_slot % PKI_SIGNAL_SLOTS].start, grant->signal_value };
    return PK_OK;
}

void pki_send_cts_arrived(struct pki_xfer *xfer, const struct pki_msg *grant)
{
    enum pki_mem_kind target = (grant->flags & PKI_MSG_FLAG_DEVICE) != 0 ? PKI_MEM_DEVICE : PKI_MEM_HOST;
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->user.task);
    pk_result_t result;

    if (grant->bytes != xfer->bytes || grant->sig != xfer->id.sig) {
        pki_xfer_mismatch(xfer, grant, grant->bytes);
        return;
    }
    if (grant->extra == PKI_CTS_DATA && pki_xfer_is_granted(xfer)) {
        pki_coop_data_asked(xfer, grant);
        return;
    }
    if (xfer->signals.cell != NULL)
        pki_offer_declined(xfer);
    choose_path(xfer, grant, target);
    if (xfer->path == NULL) {
        (void)pki_fail(PK_ERR_UNSUPPORTED, &where, "no path from %s memory of rank %d to %s memory of rank %d",
                       xfer->kind == PKI_MEM_HOST ? "host" : "device", xfer->engine->config.rank,
                       target == PKI_MEM_HOST ? "host" : "device", xfer->peer->rank);
        pki_engine_poison(xfer->engine, PK_ERR_UNSUPPORTED, true);
        return;
    }
    result = resolve(xfer, grant);
    if (result == PK_IN_PROGRESS && grant->region != 0)
        say_blocked(xfer);
    if (result == PK_IN_PROGRESS)
        result = go_by_bounce(xfer, grant);
    if (result != PK_OK) {
        pki_engine_poison(xfer->engine, result, true);
        return;
    }
    pki_xfer_enter(xfer, xfer->coop.combines ? PKI_XFER_DATA : PKI_XFER_MOVE);
    pki_xfer_activate(xfer);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who of a pair called first, for transfers of GPU memory whose sender is in a CUDA stream. Locked.
 *
 * Each transfer has a cell in memory that both ranks share, and its state moves once, by compare-and-swap, so that both know the
 * same:
 *   granted  the receiver came first, or while the sender was still looking: the sender moves the bytes (its grant is in the
 *            control channel)
 *   offered  the sender came first and has left its call: its bytes are described in the cell, and the receiver moves them
 *   taken    and the receiver has done so, in its own call
 * Of an offer `start` is opened by the sender's stream when the bytes are ready, and `done` behind the copy. A receiver that
 * cannot move them (another kind of memory, or memory that cannot be mapped now) still sends a CTS, and the sender's engine moves
 * them; every offer has an RTS before it, which such receivers answer.
 */
#ifndef PKI_ENGINE_OFFER_H
#define PKI_ENGINE_OFFER_H

#include "engine/proto/proto.h"

/* Receive, before its grant: true, the sender has left an offer, and this side moves the bytes from `remote`, between `start` and
 * `finish`. False: the sender will see that there is a grant, which is to be sent now; or the engine has failed. */
bool pki_offer_take(struct pki_xfer *xfer);
/* Send whose grant has been looked for: where it has not come the bytes are offered, and the peer moves them. Else, because the
 * cell is still another one's or peers cannot map the memory, it is wanted as any other send. Waits while the grant is on its
 * way. */
void pki_offer_or_rts(struct pki_xfer *xfer);
/* Receive whose grant finds no room now: the sender is not to wait for it. */
void pki_offer_retract(struct pki_xfer *xfer);
/* The sender has failed and opened `done` for its own stream, which waited for it: the bytes have not been moved, perhaps. */
bool pki_offer_is_aborted(const struct pki_xfer *xfer);
/* Is this transfer from `peer` decided, so that its RTS asks for nothing? */
bool pki_offer_is_settled(const struct pki_peer *peer, const struct pki_msg *want);
/* Send that was offered: the peer has granted it instead. */
void pki_offer_declined(struct pki_xfer *xfer);
/* It has ended: what waits for a declined offer goes on. */
void pki_offer_ended(struct pki_xfer *xfer);

/* What this rank's stream opens when it comes to a transfer that the peer moves, and what it waits for then. A grant that
 * declines an offer has signals of its own, which are the engine's affair. */
static inline struct pki_signal pki_offer_start(const struct pki_xfer *xfer)
{
    return xfer->signals.cell != NULL ? (struct pki_signal){ &xfer->signals.cell->start, xfer->signals.cell_value }
                                      : xfer->signals.start;
}

static inline struct pki_signal pki_offer_finish(const struct pki_xfer *xfer)
{
    return xfer->signals.cell != NULL ? (struct pki_signal){ &xfer->signals.cell->done, xfer->signals.cell_value }
                                      : xfer->signals.finish;
}

/* This rank has failed, and is about to open `done`: whoever has taken the offer learns that before. Also unlocked. */
static inline void pki_offer_abort(struct pki_signal_slot *cell)
{
    if ((int32_t)(atomic_load_explicit(&cell->done, memory_order_acquire) - cell->value) < 0)
        atomic_store_explicit(&cell->claim, atomic_load_explicit(&cell->claim, memory_order_relaxed) & ~(uint64_t)3,
                              memory_order_release);
}

/* Does this side's stream move it? */
static inline bool pki_offer_moves(const struct pki_xfer *xfer)
{
    return xfer->is_send == (xfer->signals.cell == NULL);
}

/* Send that was offered: are its bytes ready? Where the engine has come to it, and not a stream, the peer learns of that here. */
bool pki_offer_is_ready(struct pki_xfer *xfer);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers go on: this rank's sends, its receives, and what it sends to itself. */
#include "engine/core/internal.h"

void pki_xfer_advance(struct pki_xfer *xfer)
{
    if (atomic_load_explicit(&xfer->engine->failed, memory_order_relaxed) != PK_OK)
        return;
    if (xfer->peer->rank == xfer->engine->config.rank)
        pki_self_advance(xfer);
    else if (xfer->is_send)
        pki_send_advance(xfer);
    else
        pki_recv_advance(xfer);
}

/* It may be matched from now on. */
void pki_xfer_post(struct pki_xfer *xfer)
{
    pki_list_push(xfer->is_send ? &xfer->peer->sends : &xfer->peer->recvs, &xfer->match);
    pki_xfer_advance(xfer);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan as one queue does it: in a fixed order, each thing waiting for the one before it. The order is such that no rank's queue
 * stands for ever while all ranks follow theirs. Pure, as plans are.
 */
#ifndef PKI_ORDER_H
#define PKI_ORDER_H

#include "coll/plan.h"

/*
 * Transfers take two moments on each side, so that a rank lets its peers move before it waits for them, whichever of a pair moves
 * the bytes: the sender between OPEN and DONE of the receiver, or the receiver between SEND and FREE of the sender.
 */
enum pki_moment_kind {
    PKI_MOMENT_SEND, /* wait until the receive is open, and move the bytes; or say that they are ready */
    PKI_MOMENT_DONE, /* wait until the bytes of a RECV or RECV_REDUCE have come; or until they are ready, and move them */
    PKI_MOMENT_FREE, /* wait until the bytes of a SEND have been moved by the receiver */
    PKI_MOMENT_OPEN, /* the target of a RECV or RECV_REDUCE may be written from now on */
    PKI_MOMENT_WORK  /* COPY, REDUCE, and the reduction of RECV_REDUCE */
};

struct pki_moment {
    enum pki_moment_kind kind;
    uint32_t step;
    uint32_t level; /* what waits for a peer waits for a moment of a lower level there */
};

/* The moments of `plan`, made by `algorithm`, in order; to be freed. All ranks come to orders that fit one another, whichever
 * of them are in place. PK_ERR_MEMORY; PK_ERR_INTERNAL: the steps wait for one another in a circle. */
pk_result_t pki_plan_order(const struct pki_algorithm *algorithm, const struct pki_plan *plan, struct pki_moment **moments,
                           uint32_t *n);

#endif

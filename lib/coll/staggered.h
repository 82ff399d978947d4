/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of long blocks in pieces, in rounds: in the n-th every rank sends to the one n places after it, so that each link
 * carries one copy. */
#ifndef PKI_STAGGERED_H
#define PKI_STAGGERED_H

#include "coll/plan.h"

/* The number of pieces in which a part is summed up: more hide the sums better, and make more and shorter copies. Measured:
 * docs/design/0005. */
static inline uint32_t pki_staggered_pieces(int size)
{
    return size == 2 ? 4 : 2;
}

/*
 * Piece `piece` of every rank's part of IN goes to that rank, and this rank's is summed up in rank order into `dst`. Scratch
 * blocks: size of each piece. `sent`: NULL, or [pieces * size], gets the sends. Returns the last step of the sum.
 */
uint32_t pki_staggered_collect(struct pki_plan *plan, uint32_t piece, struct pki_ref dst, uint32_t *sent);

#endif

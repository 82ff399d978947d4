/* SPDX-License-Identifier: Apache-2.0 */
/* Reduce-scatter by recursive halving: what allreduce and reduce_scatter share. */
#ifndef PKI_HALVING_H
#define PKI_HALVING_H

#include "coll/fold.h"
#include "coll/plan.h"

#define PKI_HALVINGS_MAX 16 /* log of the number of ranks */

struct pki_halving {
    struct pki_fold fold;
    bool own_blocks;      /* IN has a block for each rank; else for each number of the fold */
    bool sums_in_out;     /* partial sums sit in OUT, cut as IN; else in a scratch block */
    struct pki_ref final; /* where the sum goes in the end, if not with the partial sums */
    bool has_final;
    /* filled by pki_halve */
    uint32_t sent[PKI_HALVINGS_MAX]; /* the send at distance 1 << i, */
    bool sent_sums;                  /* the first of which read partial sums, not IN */
    uint32_t summed;                 /* the last step of the sum */
};

/* The stretch of IN's blocks that belongs to `numbers` numbers from `number` on. */
struct pki_ref pki_halving_in(const struct pki_halving *h, int number, int numbers);
/* Where partial sums of the same stretch sit. */
struct pki_ref pki_halving_sums(const struct pki_halving *h, int number, int numbers);
/* For a rank that has a number, among two ranks and more: afterwards it has the sum of the blocks that belong to its number. */
void pki_halve(struct pki_plan *plan, int rank, struct pki_halving *h);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of many blocks in a fixed order, whatever the order in which they arrive. */
#ifndef PKI_SUM_H
#define PKI_SUM_H

#include "coll/plan.h"

#define PKI_NO_STEP UINT32_MAX

struct pki_sum {
    struct pki_plan *plan;
    struct pki_ref *operands; /* [n] */
    uint32_t *ready;          /* [n]: the steps that bring them */
    int n;
};

/* A sum of n operands, to be named by pki_sum_add for every position. Ends with pki_sum_into. */
void pki_sum_begin(struct pki_sum *sum, struct pki_plan *plan, int n);
/* `ready`: the step that brings the operand, or PKI_NO_STEP. */
void pki_sum_add(struct pki_sum *sum, int position, struct pki_ref operand, uint32_t ready);
/* Append the steps: dst = operands in order of position. More operands than one REDUCE may have take several, whose running sum
 * sits in the scratch block `running`, which may be dst. Returns the last step. */
uint32_t pki_sum_into(struct pki_sum *sum, struct pki_ref dst, struct pki_ref running);

/* What goes where in a sum over all ranks. */
struct pki_sum_parts {
    int rank, size;
    uint32_t first, stride; /* block first + p * stride of IN is rank p's: it goes there; stride 0: the same to all */
    bool only_here;         /* the others have no sum to make: nothing goes to them */
    uint32_t scratch;       /* the first of the size - 1 scratch blocks that the parts of the other ranks arrive in */
    uint32_t running;       /* the scratch block of a running sum; dst may be that one */
    struct pki_ref dst;
    uint32_t *sent; /* [size], or NULL: gets the send to each rank */
};

/*
 * Exchange parts with all other ranks, nearest first, and put the sum of everyone's part for this rank, in rank order, into dst.
 * Two ranks and more. Returns the last step of the sum.
 */
uint32_t pki_sum_of_all(struct pki_plan *plan, const struct pki_sum_parts *parts);

/* The same with block p for rank p: scratch blocks 0 .. size - 2 are used, and size - 1 for a running sum. */
uint32_t pki_sum_own_block(struct pki_plan *plan, int rank, int size, struct pki_ref dst, uint32_t *sent);

#endif

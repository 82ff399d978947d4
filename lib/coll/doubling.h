/* SPDX-License-Identifier: Apache-2.0 */
/* Allreduce by doubling among some of the ranks. */
#ifndef PKI_DOUBLING_H
#define PKI_DOUBLING_H

#include "coll/plan.h"

struct pki_doubling {
    const int *ranks;    /* [n]: those who take part; NULL: ranks 0 .. n - 1 */
    int n, me;           /* ranks[me] is this one */
    struct pki_ref mine; /* what this rank adds; as long as IN */
    uint32_t ready;      /* the step that makes it, or PKI_NO_STEP of sum.h */
    bool in_place;       /* mine, or what it is made of, is where OUT is */
    uint32_t scratch;    /* first of the scratch blocks that may be used */
};

/* The sum of everyone's part in OUT(0), for two ranks and more. Returns the step that brings it. */
uint32_t pki_doubling_sum(struct pki_plan *plan, const struct pki_doubling *d);

#endif

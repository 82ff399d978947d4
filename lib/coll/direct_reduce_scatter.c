/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/sum.h"

/* Each rank sends block p to rank p, and sums up its own in rank order: n - 1 sends of one block each, one hop deep. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    if (size > 1)
        pki_sum_own_block(plan, rank, size, pki_out(0), NULL);
    else if (!in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
}

const struct pki_algorithm pki_direct_reduce_scatter = { .name = "direct", .coll = PKI_COLL_REDUCE_SCATTER, .build = build };

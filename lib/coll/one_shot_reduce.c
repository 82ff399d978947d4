/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/sum.h"

/* Each rank sends all it has to the root, which sums up in rank order: one hop, n - 1 times the data at the root. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    if (rank != root)
        pki_plan_send(plan, root, pki_in(0));
    else if (size > 1)
        pki_sum_of_all(plan,
                       &(const struct pki_sum_parts){
                           .rank = rank, .size = size, .only_here = true, .running = (uint32_t)size - 1, .dst = pki_out(0) });
    else if (!in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
}

const struct pki_algorithm pki_one_shot_reduce = { .name = "flat", .coll = PKI_COLL_REDUCE, .build_rooted = build };

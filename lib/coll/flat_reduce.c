/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"
#include "coll/sum.h"

static void sum_up(struct pki_plan *plan, int rank, int size)
{
    struct pki_sum sum;

    pki_sum_begin(&sum, plan, size);
    pki_sum_add(&sum, rank, pki_in(0), PKI_NO_STEP);
    for (int hop = 1; hop < size; hop++) {
        int from = pki_before(rank, hop, size);
        struct pki_ref theirs = pki_scratch(from < rank ? from : from - 1, pki_in(0));

        pki_sum_add(&sum, from, theirs, pki_plan_recv(plan, from, theirs));
    }
    pki_plan_final(plan, pki_sum_into(&sum, pki_out(0), pki_scratch(size - 1, pki_in(0))));
}

/* Each rank sends all it has to the root, which sums up in rank order: one hop, n - 1 times the data at the root. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    if (rank != root)
        pki_plan_send(plan, root, pki_in(0));
    else if (size > 1)
        sum_up(plan, rank, size);
    else if (!in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
}

const struct pki_algorithm pki_flat_reduce = { .name = "flat", .coll = PKI_COLL_REDUCE, .build_rooted = build };

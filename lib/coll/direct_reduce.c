/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/plan.h"
#include "coll/ring.h"
#include "coll/sum.h"

/* The sums arrive at the root: in place where the parts lie that went to the same ranks. */
static void collect_sums(struct pki_plan *plan, int root, int size, bool in_place, const uint32_t *sent)
{
    for (int hop = 1; hop < size; hop++) {
        int from = pki_before(root, hop, size);

        pki_plan_recv(plan, from, pki_out(from));
        if (in_place)
            pki_plan_after(plan, sent[from]);
    }
}

static void exchange(struct pki_plan *plan, int rank, int size, int root, bool in_place, uint32_t *sent)
{
    struct pki_ref total = rank == root ? pki_out(rank) : pki_scratch(size - 1, pki_in(rank));
    uint32_t summed = pki_sum_own_block(plan, rank, size, total, sent);

    if (rank == root) {
        collect_sums(plan, root, size, in_place, sent);
    } else {
        pki_plan_send(plan, root, total);
        pki_plan_after(plan, summed);
    }
}

/* Each rank sums up one block in rank order and sends it to the root: n sends of an n-th of the data each, two hops deep. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    uint32_t *sent = malloc((size_t)size * sizeof *sent);

    pki_plan_cut(plan, (uint32_t)size, (uint32_t)size);
    if (sent == NULL)
        plan->failed = true;
    else if (size > 1)
        exchange(plan, rank, size, root, in_place, sent);
    else if (!in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    free(sent);
}

const struct pki_algorithm pki_direct_reduce = { .name = "direct", .coll = PKI_COLL_REDUCE, .build_rooted = build };

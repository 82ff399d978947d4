/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/plan.h"
#include "coll/ring.h"
#include "coll/sum.h"

/* Each rank hands its sum to every other. In place a sum arrives where the part lies that went to the same rank. */
static void hand_out(struct pki_plan *plan, int rank, int size, bool in_place, uint32_t summed, const uint32_t *sent)
{
    for (int hop = 1; hop < size; hop++) {
        int to = pki_after(rank, hop, size);
        int from = pki_before(rank, hop, size);

        pki_plan_send(plan, to, pki_out(rank));
        pki_plan_after(plan, summed);
        pki_plan_recv(plan, from, pki_out(from));
        if (in_place)
            pki_plan_after(plan, sent[from]);
    }
}

/*
 * Each rank sums up one block, in rank order, so that the bits depend on nothing but the data. Two exchanges of everyone with
 * everyone: 2 (n - 1) sends of an n-th of the data each, as the ring's, but two hops deep.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    uint32_t *sent = malloc((size_t)size * sizeof *sent);

    if (sent == NULL) {
        plan->failed = true;
    } else if (size > 1) {
        uint32_t summed = pki_sum_own_block(plan, rank, size, pki_out(rank), sent);

        hand_out(plan, rank, size, in_place, summed, sent);
    } else if (!in_place) {
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    }
    free(sent);
}

const struct pki_algorithm pki_direct_allreduce = { .name = "direct", .coll = PKI_COLL_ALLREDUCE, .build = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/* Partial sums sit in this many blocks in turn: one is sent on while the next one fills. */

/*
 * A partial sum of each block travels round the ring, every rank adding its own part; block r ends at rank r. n - 1 sends of one
 * block each, all to the same neighbour. What arrives may land where its sum will be.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    int next = pki_after(rank, 1, size);
    int previous = pki_before(rank, 1, size);
    uint32_t summed = 0, sent[PKI_RING_PARTIALS] = { 0 };

    if (size == 1 && !in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    for (int hop = 0; hop + 1 < size; hop++) {
        int passed = pki_before(rank, hop + 1, size);
        int block = pki_before(passed, 1, size);
        struct pki_ref partial = pki_scratch(hop % PKI_RING_PARTIALS, pki_in(block));

        if (hop == 0) {
            pki_plan_send(plan, next, pki_in(passed));
        } else {
            sent[hop % PKI_RING_PARTIALS] = pki_plan_send(plan, next, pki_scratch((hop - 1) % PKI_RING_PARTIALS, pki_in(passed)));
            pki_plan_after(plan, summed);
        }
        summed = pki_plan_recv_reduce(plan, previous, block == rank ? pki_out(0) : partial, pki_in(block), partial);
        if (hop >= PKI_RING_PARTIALS)
            pki_plan_after(plan, sent[(hop - 1) % PKI_RING_PARTIALS]);
    }
    if (size > 1)
        pki_plan_final(plan, summed);
}

const struct pki_algorithm pki_ring_reduce_scatter = { .name = "ring", .coll = PKI_COLL_REDUCE_SCATTER, .build = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/plan.h"
#include "coll/ring.h"

/* Receives may land in this many blocks in turn: one is summed up while the next one fills. */

/*
 * Reduce-scatter: a partial sum of each block travels round the ring, every rank adding its own part; after n - 1 hops rank r
 * has the whole of block r + 1. `sent[hop]` is the send of block r - hop.
 */
static uint32_t reduce_scatter(struct pki_plan *plan, int rank, int size, uint32_t *sent)
{
    int next = pki_after(rank, 1, size);
    int previous = pki_before(rank, 1, size);
    uint32_t summed = 0;
    uint32_t landing_free[PKI_RING_LANDINGS] = { 0 };

    for (int hop = 0; hop + 1 < size; hop++) {
        uint32_t block = pki_before(rank, hop + 1, size);
        struct pki_ref landing = pki_scratch(hop % PKI_RING_LANDINGS, pki_out(block));

        if (hop == 0) {
            sent[hop] = pki_plan_send(plan, next, pki_in(rank));
        } else {
            sent[hop] = pki_plan_send(plan, next, pki_out(pki_before(rank, hop, size)));
            pki_plan_after(plan, summed);
        }
        summed = pki_plan_recv_reduce(plan, previous, pki_out(block), pki_in(block), landing);
        if (hop >= PKI_RING_LANDINGS)
            pki_plan_after(plan, landing_free[hop % PKI_RING_LANDINGS]);
        landing_free[hop % PKI_RING_LANDINGS] = summed;
    }
    pki_plan_final(plan, summed);
    return summed;
}

/*
 * Allgather of the sums, starting from the block summed up last. A sum arrives where the partial sum lay that reduce_scatter sent
 * on (the first one, in place, where the own part lies): not before that send has ended.
 */
static void gather_sums(struct pki_plan *plan, int rank, int size, bool in_place, uint32_t summed, const uint32_t *sent)
{
    int next = pki_after(rank, 1, size);
    int previous = pki_before(rank, 1, size);
    uint32_t ready = summed;

    for (int hop = 0; hop + 1 < size; hop++) {
        pki_plan_send(plan, next, pki_out(pki_before(rank + 1, hop, size)));
        pki_plan_after(plan, ready);
        ready = pki_plan_recv(plan, previous, pki_out(pki_before(rank, hop, size)));
        if (hop > 0 || in_place)
            pki_plan_after(plan, sent[hop]);
    }
}

/* 2 (n - 1) sends and as many receives of an n-th of the data each, all between neighbours: as few bytes as possible. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    uint32_t *sent = malloc((size_t)size * sizeof *sent);

    if (sent == NULL) {
        plan->failed = true;
    } else if (size > 1) {
        uint32_t summed = reduce_scatter(plan, rank, size, sent);

        gather_sums(plan, rank, size, in_place, summed, sent);
    } else if (!in_place) {
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    }
    free(sent);
}

const struct pki_algorithm pki_ring_allreduce = { .name = "ring", .coll = PKI_COLL_ALLREDUCE, .build = build };

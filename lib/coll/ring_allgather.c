/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/*
 * Blocks travel round the ring: each rank sends its own to the next, then passes on what it received last. n - 1 sends of one
 * block each, all to the same neighbour.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    int next = pki_after(rank, 1, size);
    int previous = pki_before(rank, 1, size);
    uint32_t received = 0;

    if (!in_place)
        pki_plan_copy(plan, pki_out(rank), pki_in(0));
    for (int hop = 0; hop + 1 < size; hop++) {
        if (hop == 0) {
            pki_plan_send(plan, next, pki_in(0));
        } else {
            pki_plan_send(plan, next, pki_out(pki_before(rank, hop, size)));
            pki_plan_after(plan, received);
        }
        received = pki_plan_recv(plan, previous, pki_out(pki_before(rank, hop + 1, size)));
    }
}

const struct pki_algorithm pki_ring_allgather = { .name = "ring", .coll = PKI_COLL_ALLGATHER, .build = build };
const struct pki_algorithm pki_ring_allgatherv = { .name = "ring", .coll = PKI_COLL_ALLGATHERV, .build = build };

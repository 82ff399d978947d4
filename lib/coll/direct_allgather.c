/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/*
 * Each rank hands its block to every other, nearest first, so that no two ranks aim at the same peer at once. Nothing waits for
 * anything: the sends read IN even when OUT(rank) is a copy of it. n - 1 sends of one block each.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    if (!in_place)
        pki_plan_copy(plan, pki_out(rank), pki_in(0));
    for (int hop = 1; hop < size; hop++) {
        int to = pki_after(rank, hop, size);
        int from = pki_before(rank, hop, size);

        pki_plan_send(plan, to, pki_in(0));
        pki_plan_recv(plan, from, pki_out(from));
    }
}

const struct pki_algorithm pki_direct_allgather = { .name = "direct", .coll = PKI_COLL_ALLGATHER, .build = build };
const struct pki_algorithm pki_direct_allgatherv = { .name = "direct", .coll = PKI_COLL_ALLGATHERV, .build = build };

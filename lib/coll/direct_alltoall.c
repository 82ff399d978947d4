/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/* In place a block arrives where the one lies that goes to the same rank: that one is moved out of the way first. */
static void exchange_in_place(struct pki_plan *plan, int rank, int size)
{
    for (int hop = 1; hop < size; hop++) {
        int to = pki_after(rank, hop, size);

        pki_plan_copy(plan, pki_scratch(hop - 1, pki_in(to)), pki_in(to));
    }
    for (int hop = 1; hop < size; hop++) { /* the copy of block rank + hop is step hop - 1 */
        int to = pki_after(rank, hop, size);
        int from = pki_before(rank, hop, size);

        pki_plan_send(plan, to, pki_scratch(hop - 1, pki_in(to)));
        pki_plan_after(plan, (uint32_t)hop - 1);
        pki_plan_recv(plan, from, pki_out(from));
        pki_plan_after(plan, (uint32_t)(size - hop) - 1);
    }
}

/* Block p goes straight to rank p, nearest first: n - 1 sends of one block each. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    if (in_place) {
        exchange_in_place(plan, rank, size);
        return;
    }
    pki_plan_copy(plan, pki_out(rank), pki_in(rank));
    for (int hop = 1; hop < size; hop++) {
        int to = pki_after(rank, hop, size);
        int from = pki_before(rank, hop, size);

        pki_plan_send(plan, to, pki_in(to));
        pki_plan_recv(plan, from, pki_out(from));
    }
}

const struct pki_algorithm pki_direct_alltoall = { .name = "direct", .coll = PKI_COLL_ALLTOALL, .build = build };
const struct pki_algorithm pki_direct_alltoallv = { .name = "direct", .coll = PKI_COLL_ALLTOALLV, .build = build };

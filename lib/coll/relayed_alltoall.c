/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/*
 * As direct, but the rank's own block goes to the next rank and comes back from there: for GPUs that may run no kernel, where a
 * copy inside the GPU would be one, and whose links to one another are faster than the host's memory. n + 1 sends of one block
 * each; one block of scratch for the rank before. In place the own block makes the journey as well, and arrives where it is: to
 * the other ranks it makes no difference.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    int next = pki_after(rank, 1, size), prev = pki_before(rank, 1, size);
    struct pki_ref lent = pki_scratch(in_place ? size - 1 : 0, pki_in(prev));
    uint32_t went, came;

    if (size == 1) {
        if (!in_place)
            pki_plan_copy(plan, pki_out(rank), pki_in(rank));
        return;
    }
    for (int hop = 1; hop < size && in_place; hop++) /* as in direct: the copy of block rank + hop is step hop - 1 */
        pki_plan_copy(plan, pki_scratch(hop - 1, pki_in(pki_after(rank, hop, size))), pki_in(pki_after(rank, hop, size)));
    went = pki_plan_send(plan, next, pki_in(rank));
    came = pki_plan_recv(plan, prev, lent);
    for (int hop = 1; hop < size; hop++) {
        int to = pki_after(rank, hop, size), from = pki_before(rank, hop, size);

        pki_plan_send(plan, to, in_place ? pki_scratch(hop - 1, pki_in(to)) : pki_in(to));
        if (in_place)
            pki_plan_after(plan, (uint32_t)hop - 1);
        pki_plan_recv(plan, from, pki_out(from));
        if (in_place)
            pki_plan_after(plan, (uint32_t)(size - hop) - 1);
    }
    pki_plan_send(plan, prev, lent);
    pki_plan_after(plan, came);
    pki_plan_recv(plan, next, pki_out(rank));
    if (in_place)
        pki_plan_after(plan, went);
}

const struct pki_algorithm pki_relayed_alltoall = { .name = "detour", .coll = PKI_COLL_ALLTOALL, .build = build };

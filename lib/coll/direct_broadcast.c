/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/* The root hands out one block to each of the others. */
static void hand_out(struct pki_plan *plan, int size, int root, bool in_place)
{
    for (int hop = 1; hop < size; hop++)
        pki_plan_send(plan, pki_after(root, hop, size), pki_in(hop - 1));
    if (!in_place) /* last: the others wait for their sends */
        pki_plan_copy(plan, pki_stretch(pki_out(0), plan->out_blocks), pki_stretch(pki_in(0), plan->in_blocks));
}

/* Those who are not the root, counted from it on, pass their block to one another. */
static void pass_on(struct pki_plan *plan, int rank, int size, int root)
{
    int others = size - 1;
    int mine = pki_before(rank, root + 1, size);
    uint32_t received = pki_plan_recv(plan, root, pki_out(mine));

    for (int hop = 1; hop < others; hop++) {
        int from = pki_before(mine, hop, others);

        pki_plan_send(plan, pki_after(root + 1, pki_after(mine, hop, others), size), pki_out(mine));
        pki_plan_after(plan, received);
        pki_plan_recv(plan, pki_after(root + 1, from, size), pki_out(from));
    }
}

/* The root sends the data once, in n - 1 blocks; the others exchange them: n - 2 sends of a block each, two hops deep. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    uint32_t blocks = size > 1 ? (uint32_t)size - 1 : 1;

    pki_plan_cut(plan, blocks, blocks);
    if (rank == root)
        hand_out(plan, size, root, in_place);
    else
        pass_on(plan, rank, size, root);
}

const struct pki_algorithm pki_direct_broadcast = { .name = "direct", .coll = PKI_COLL_BROADCAST, .build_rooted = build };

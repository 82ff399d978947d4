/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/tree.h"

/* Down a binomial tree, the largest subtree first: log n sends at the root, log n hops. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    struct pki_tree tree = pki_tree(rank, size, root);
    uint32_t received = 0;

    if (rank != root)
        received = pki_plan_recv(plan, pki_tree_parent(&tree), pki_out(0));
    for (int distance = tree.reach / 2; distance >= 1; distance /= 2) {
        pki_plan_send(plan, pki_tree_rank(&tree, tree.place + distance), rank == root ? pki_in(0) : pki_out(0));
        if (rank != root)
            pki_plan_after(plan, received);
    }
    if (rank == root && !in_place) /* last: the others wait for their sends */
        pki_plan_copy(plan, pki_out(0), pki_in(0));
}

const struct pki_algorithm pki_tree_broadcast = { .name = "tree", .coll = PKI_COLL_BROADCAST, .build_rooted = build };

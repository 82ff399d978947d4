/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/sum.h"
#include "coll/tree.h"

/* The own part and those of the children, in the order of their places. Returns where the sum is, and the step that makes it. */
static struct pki_ref sum_up(struct pki_plan *plan, const struct pki_tree *tree, int children, uint32_t *summed)
{
    struct pki_ref total = tree->place == 0 ? pki_out(0) : pki_scratch(children, pki_in(0));
    struct pki_sum sum;

    pki_sum_begin(&sum, plan, children + 1);
    pki_sum_add(&sum, 0, pki_in(0), PKI_NO_STEP);
    for (int i = 0; i < children; i++) {
        struct pki_ref theirs = pki_scratch(i, pki_in(0));

        pki_sum_add(&sum, i + 1, theirs, pki_plan_recv(plan, pki_tree_rank(tree, tree->place + (1 << i)), theirs));
    }
    *summed = pki_sum_into(&sum, total, pki_scratch(children, pki_in(0)));
    if (tree->place == 0)
        pki_plan_final(plan, *summed);
    return total;
}

/* Up a binomial tree: each rank sends once, log n receives at the root, log n hops. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    struct pki_tree tree = pki_tree(rank, size, root);
    struct pki_ref total = pki_in(0);
    uint32_t summed = 0;
    int children = 0;

    while (1 << children < tree.reach)
        children++;
    if (children > 0)
        total = sum_up(plan, &tree, children, &summed);
    else if (rank == root && !in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    if (rank != root) {
        pki_plan_send(plan, pki_tree_parent(&tree), total);
        if (children > 0)
            pki_plan_after(plan, summed);
    }
}

const struct pki_algorithm pki_tree_reduce = { .name = "tree", .coll = PKI_COLL_REDUCE, .build_rooted = build };

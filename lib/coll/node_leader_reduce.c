/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/hier.h"
#include "coll/tree.h"

/* The parts of this host's ranks, and the sums of the hosts below it. Returns where their sum is, and the step that makes it. */
static struct pki_ref sum_up(struct pki_plan *plan, const struct pki_site *s, const struct pki_tree *tree, uint32_t *summed)
{
    bool at_root = plan->rank == plan->root;
    int children = 0;
    struct pki_ref total;
    struct pki_sum sum;

    while (1 << children < tree->reach)
        children++;
    if (s->ranks + children == 1)
        return pki_in(0);
    total = pki_scratch((uint32_t)(s->ranks + children), pki_in(0));
    pki_hier_sum_begin(&sum, plan, s, pki_in(0), 0, children);
    for (int i = 0; i < children; i++) {
        struct pki_ref theirs = pki_scratch((uint32_t)(s->ranks + i), pki_in(0));
        int host = pki_tree_rank(tree, tree->place + (1 << i));

        pki_sum_add(&sum, s->ranks + i, theirs, pki_plan_recv(plan, pki_site_rank(s, host, 0), theirs));
    }
    *summed = pki_sum_into(&sum, at_root ? pki_out(0) : total, total);
    if (at_root)
        pki_plan_final(plan, *summed);
    return total;
}

/* For short messages: to one rank of each host, and up a binomial tree of hosts. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    struct pki_site s = pki_site_rooted(plan);
    struct pki_tree tree = pki_tree(s.host, s.hosts, s.root_host);
    uint32_t summed = PKI_NO_STEP;
    struct pki_ref total;

    if (s.place > 0) {
        pki_plan_send(plan, pki_site_rank(&s, s.host, 0), pki_in(0));
        return;
    }
    total = sum_up(plan, &s, &tree, &summed);
    if (rank != root) {
        pki_plan_send(plan, pki_site_rank(&s, pki_tree_parent(&tree), 0), total);
        pki_hier_after(plan, summed);
    } else if (size == 1 && !in_place) {
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    }
}

const struct pki_algorithm pki_node_leader_reduce = { .name = "leader", .coll = PKI_COLL_REDUCE, .build_rooted = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/hier.h"
#include "coll/tree.h"

/* For short messages: down a binomial tree of hosts, to one rank of each, which hands it to all others of its host. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    struct pki_site s = pki_site_rooted(plan);
    struct pki_tree tree = pki_tree(s.host, s.hosts, s.root_host);
    struct pki_ref data = rank == root ? pki_in(0) : pki_out(0);
    uint32_t received = PKI_NO_STEP;

    (void)size;
    if (s.place > 0) {
        pki_plan_recv(plan, pki_site_rank(&s, s.host, 0), pki_out(0));
        return;
    }
    if (rank != root)
        received = pki_plan_recv(plan, pki_site_rank(&s, pki_tree_parent(&tree), 0), pki_out(0));
    for (int distance = tree.reach / 2; distance >= 1; distance /= 2) {
        pki_plan_send(plan, pki_site_rank(&s, pki_tree_rank(&tree, tree.place + distance), 0), data);
        pki_hier_after(plan, received);
    }
    pki_hier_send_around(plan, &s, data, received);
    if (rank == root && !in_place) /* last: the others wait for their sends */
        pki_plan_copy(plan, pki_out(0), pki_in(0));
}

const struct pki_algorithm pki_node_leader_broadcast = { .name = "leader", .coll = PKI_COLL_BROADCAST, .build_rooted = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/* The root sends block p to rank p: n - 1 sends there, one receive elsewhere. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    if (rank != root) {
        pki_plan_recv(plan, root, pki_out(0));
        return;
    }
    for (int hop = 1; hop < size; hop++) {
        int to = pki_after(root, hop, size);

        pki_plan_send(plan, to, pki_in(to));
    }
    if (!in_place) /* last: the others wait for their sends */
        pki_plan_copy(plan, pki_out(0), pki_in(root));
}

const struct pki_algorithm pki_direct_scatter = { .name = "direct", .coll = PKI_COLL_SCATTER, .build_rooted = build };
const struct pki_algorithm pki_direct_scatterv = { .name = "direct", .coll = PKI_COLL_SCATTERV, .build_rooted = build };

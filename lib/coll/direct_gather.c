/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/* Each rank sends its block to the root: one send, n - 1 receives at the root. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    if (rank != root) {
        pki_plan_send(plan, root, pki_in(0));
        return;
    }
    if (!in_place)
        pki_plan_copy(plan, pki_out(root), pki_in(0));
    for (int hop = 1; hop < size; hop++) {
        int from = pki_before(root, hop, size);

        pki_plan_recv(plan, from, pki_out(from));
    }
}

const struct pki_algorithm pki_direct_gather = { .name = "direct", .coll = PKI_COLL_GATHER, .build_rooted = build };
const struct pki_algorithm pki_direct_gatherv = { .name = "direct", .coll = PKI_COLL_GATHERV, .build_rooted = build };

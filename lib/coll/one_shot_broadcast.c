/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/* The root sends everything to everyone: n - 1 sends there, one hop. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    if (rank != root) {
        pki_plan_recv(plan, root, pki_out(0));
        return;
    }
    for (int hop = 1; hop < size; hop++)
        pki_plan_send(plan, pki_after(root, hop, size), pki_in(0));
    if (!in_place) /* last: the others wait for their sends */
        pki_plan_copy(plan, pki_out(0), pki_in(0));
}

const struct pki_algorithm pki_one_shot_broadcast = { .name = "flat", .coll = PKI_COLL_BROADCAST, .build_rooted = build };

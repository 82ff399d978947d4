/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/* Everyone sends nothing to everyone: n - 1 sends, one hop. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    (void)in_place;
    for (int hop = 1; hop < size; hop++) {
        pki_plan_send(plan, pki_after(rank, hop, size), pki_in(0));
        pki_plan_recv(plan, pki_before(rank, hop, size), pki_out(0));
    }
}

const struct pki_algorithm pki_direct_barrier = { .name = "direct", .coll = PKI_COLL_BARRIER, .build = build };

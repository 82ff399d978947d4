/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/* From rank to rank, chunk by chunk: everyone sends and receives the data once, n - 1 hops deep. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    int next = pki_after(rank, 1, size);
    uint32_t received = 0;

    if (rank != root)
        received = pki_plan_recv(plan, pki_before(rank, 1, size), pki_out(0));
    if (next != root) {
        pki_plan_send(plan, next, rank == root ? pki_in(0) : pki_out(0));
        if (rank != root)
            pki_plan_after(plan, received);
    }
    if (rank == root && !in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
}

const struct pki_algorithm pki_ring_broadcast = { .name = "ring", .coll = PKI_COLL_BROADCAST, .build_rooted = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

/* A partial sum travels from the rank before the root backwards to it, chunk by chunk: everyone sends and receives the data once,
 * n - 1 hops deep. What arrives may land where its sum will be. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    int next = pki_after(rank, 1, size);
    int previous = pki_before(rank, 1, size);
    struct pki_ref partial = pki_scratch(0, pki_in(0));
    uint32_t summed = 0;

    if (size == 1 && !in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    if (next != root)
        summed = pki_plan_recv_reduce(plan, next, rank == root ? pki_out(0) : partial, pki_in(0), partial);
    if (rank == root && next != root)
        pki_plan_final(plan, summed);
    if (rank != root) {
        pki_plan_send(plan, previous, next != root ? partial : pki_in(0));
        if (next != root)
            pki_plan_after(plan, summed);
    }
}

const struct pki_algorithm pki_ring_reduce = { .name = "ring", .coll = PKI_COLL_REDUCE, .build_rooted = build };

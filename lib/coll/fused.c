/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"

/*
 * Collectives that are one kernel on each rank. They are not in the list of algorithms, since they exist on GPUs of one host
 * alone and no one can ask for them where they do not.
 */

/* One step: a kernel on each rank, and nothing between them but memory. In rank order, as the direct algorithms. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    (void)rank;
    (void)size;
    (void)in_place;
    pki_plan_fused(plan);
}

static void build_rooted(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    (void)root;
    build(plan, rank, size, in_place);
}

static const struct pki_algorithm allreduce = { .name = "fused", .coll = PKI_COLL_ALLREDUCE, .build = build };
static const struct pki_algorithm allgather = { .name = "fused", .coll = PKI_COLL_ALLGATHER, .build = build };
static const struct pki_algorithm reduce_scatter = { .name = "fused", .coll = PKI_COLL_REDUCE_SCATTER, .build = build };
static const struct pki_algorithm alltoall = { .name = "fused", .coll = PKI_COLL_ALLTOALL, .build = build };
static const struct pki_algorithm broadcast = { .name = "fused", .coll = PKI_COLL_BROADCAST, .build_rooted = build_rooted };
static const struct pki_algorithm reduce = { .name = "fused", .coll = PKI_COLL_REDUCE, .build_rooted = build_rooted };
static const struct pki_algorithm gather = { .name = "fused", .coll = PKI_COLL_GATHER, .build_rooted = build_rooted };
static const struct pki_algorithm scatter = { .name = "fused", .coll = PKI_COLL_SCATTER, .build_rooted = build_rooted };

const struct pki_algorithm *pki_fused_algorithm(enum pki_coll coll)
{
    switch (coll) {
    case PKI_COLL_ALLREDUCE:
        return &allreduce;
    case PKI_COLL_ALLGATHER:
        return &allgather;
    case PKI_COLL_REDUCE_SCATTER:
        return &reduce_scatter;
    case PKI_COLL_ALLTOALL:
        return &alltoall;
    case PKI_COLL_BROADCAST:
        return &broadcast;
    case PKI_COLL_REDUCE:
        return &reduce;
    case PKI_COLL_GATHER:
        return &gather;
    case PKI_COLL_SCATTER:
        return &scatter;
    default:
        return NULL;
    }
}

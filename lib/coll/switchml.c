/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"

/*
 * An allreduce whose sums an aggregator in the network makes. It is not in the list of algorithms, since ranks send nothing to
 * one another, and no one can ask for it where there is no aggregator.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    (void)rank;
    (void)size;
    (void)in_place;
    pki_plan_switch(plan);
}

const struct pki_algorithm pki_switchml_algorithm = { .name = "switchml", .coll = PKI_COLL_ALLREDUCE, .build = build };

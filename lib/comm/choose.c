/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm. From rank 0's constants and what all ranks know, so that all decide alike. */
#include "comm/comm.h"

/* Direct algorithms reduce in rank order, so their bits do not depend on the size of the message. */
static struct pki_choice by_rule(const struct pk_comm *comm, enum pki_coll coll)
{
    if (pki_coll_shape(coll)->reduces && comm->size > comm->tuning.direct_max_ranks)
        return (struct pki_choice){ pki_algorithm_find(coll, "ring"), "many ranks: reductions go round a ring" };
    return (struct pki_choice){ pki_algorithm_find(coll, "direct"), pki_coll_shape(coll)->reduces
                                    ? "every rank reaches every other; reductions are in rank order"
                                    : "every rank reaches every other" };
}

pk_result_t pki_comm_choose(const struct pk_comm *comm, enum pki_coll coll, size_t bytes, enum pki_mem_kind kind,
                            struct pki_choice *choice)
{
    const char *name = comm->tuning.algorithm;
    struct pki_choice found = by_rule(comm, coll);

    (void)bytes;
    (void)kind;
    if (name[0] != '\0' && pki_algorithm_find(coll, name) != NULL)
        found = (struct pki_choice){ pki_algorithm_find(coll, name), "PK_ALGORITHM of rank 0" };
    if (found.algorithm == NULL)
        return pki_fail(PK_ERR_INTERNAL, NULL, "no algorithm for %s", pki_coll_shape(coll)->name);
    *choice = found;
    return PK_OK;
}

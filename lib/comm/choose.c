/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm. From rank 0's constants and what all ranks know, so that all decide alike. */
#include "comm/comm.h"

const struct pki_algorithm *pki_comm_choose(const struct pk_comm *comm, enum pki_coll coll)
{
    const struct pki_algorithm *algorithm;
    const char *name = comm->tuning.algorithm;

    /* Direct algorithms reduce in rank order, so their bits do not depend on the size of the message. */
    if (name[0] == '\0')
        name = coll == PKI_COLL_ALLREDUCE && comm->size > comm->tuning.direct_max_ranks ? "ring" : "direct";
    algorithm = pki_algorithm_find(coll, name);
    if (algorithm == NULL) /* PK_ALGORITHM names one that other operations have */
        algorithm = pki_algorithm_find(coll, "direct");
    if (algorithm == NULL)
        (void)pki_fail(PK_ERR_UNSUPPORTED, NULL, "no algorithm '%s' for this operation", name);
    return algorithm;
}

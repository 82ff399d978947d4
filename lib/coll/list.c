/* SPDX-License-Identifier: Apache-2.0 */
/* All algorithms: one line each. */
#include <string.h>

#include "coll/plan.h"

#define ALGORITHMS(X) \
    X(pki_direct_allgather) \
    X(pki_ring_allgather) \
    X(pki_doubling_allgather) \
    X(pki_hier_allgather) \
    X(pki_direct_allgatherv) \
    X(pki_ring_allgatherv) \
    X(pki_hier_allgatherv) \
    X(pki_direct_allreduce) \
    X(pki_staggered_allreduce) \
    X(pki_one_shot_allreduce) \
    X(pki_ring_allreduce) \
    X(pki_doubling_allreduce) \
    X(pki_halving_allreduce) \
    X(pki_hier_allreduce) \
    X(pki_node_leader_allreduce) \
    X(pki_direct_reduce_scatter) \
    X(pki_ring_reduce_scatter) \
    X(pki_staggered_reduce_scatter) \
    X(pki_halving_reduce_scatter) \
    X(pki_hier_reduce_scatter) \
    X(pki_direct_broadcast) \
    X(pki_one_shot_broadcast) \
    X(pki_ring_broadcast) \
    X(pki_tree_broadcast) \
    X(pki_hier_broadcast) \
    X(pki_node_leader_broadcast) \
    X(pki_direct_reduce) \
    X(pki_one_shot_reduce) \
    X(pki_ring_reduce) \
    X(pki_tree_reduce) \
    X(pki_hier_reduce) \
    X(pki_node_leader_reduce) \
    X(pki_direct_alltoall) \
    X(pki_relayed_alltoall) \
    X(pki_direct_alltoallv) \
    X(pki_direct_gather) \
    X(pki_tree_gather) \
    X(pki_direct_gatherv) \
    X(pki_direct_scatter) \
    X(pki_tree_scatter) \
    X(pki_direct_scatterv) \
    X(pki_direct_barrier) \
    X(pki_doubling_barrier) \
    X(pki_hier_barrier)

#define DECLARE(algorithm) extern const struct pki_algorithm algorithm;
#define LIST(algorithm) &algorithm,

ALGORITHMS(DECLARE)

const struct pki_algorithm *const pki_algorithms[] = { ALGORITHMS(LIST) NULL };

const struct pki_algorithm *pki_algorithm_find(enum pki_coll coll, const char *name)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++)
        if ((*a)->coll == coll && strcmp((*a)->name, name) == 0)
            return *a;
    return NULL;
}

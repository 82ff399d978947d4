/* SPDX-License-Identifier: Apache-2.0 */
/* All algorithms: one line each. */
#include <string.h>

#include "coll/plan.h"

#define ALGORITHMS(X) \
    X(pki_direct_allgather) \
    X(pki_ring_allgather) \
    X(pki_direct_allreduce) \
    X(pki_ring_allreduce)

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

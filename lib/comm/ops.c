/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions that the program makes. A handle is the place in the communicator's table below a number that the process gives
 * once: so one that was destroyed, or another communicator's, is not found.
 */
#include <stdlib.h>

#include "comm/comm.h"

#define PLACES 65536u /* at a time */

static uint32_t place_of(pk_op_t op)
{
    return (uint32_t)(op % PLACES);
}

/* The table grows by doubling. PLACES: no memory, or no place left. */
static uint32_t free_place(struct pki_made_ops *ops)
{
    uint32_t i = 0, grown;
    struct pki_made_op *more;

    while (i < ops->n && ops->ops[i].handle != 0)
        i++;
    if (i < ops->n || ops->n == PLACES)
        return i;
    grown = ops->n == 0 ? 8 : 2 * ops->n;
    more = realloc(ops->ops, grown * sizeof *more);
    if (more == NULL)
        return PLACES;
    for (uint32_t k = ops->n; k < grown; k++)
        more[k].handle = 0;
    ops->ops = more;
    ops->n = grown;
    return i;
}

pk_result_t pki_op_make(struct pki_made_ops *ops, pk_dtype_t dtype, const struct pki_factor *factor, pk_op_t *op)
{
    static _Atomic uint64_t numbers; /* of the process */
    uint32_t place = free_place(ops);

    if (place == PLACES)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for one more reduction (%u are there)", ops->n);
    ops->ops[place] =
        (struct pki_made_op){ .handle = (atomic_fetch_add(&numbers, 1) + 1) * PLACES + place, .dtype = dtype, .factor = *factor };
    *op = ops->ops[place].handle;
    return PK_OK;
}

struct pki_made_op *pki_op_find(const struct pki_made_ops *ops, pk_op_t op)
{
    uint32_t place = place_of(op);

    return op >= PLACES && place < ops->n && ops->ops[place].handle == op ? &ops->ops[place] : NULL;
}

void pki_op_forget(struct pki_made_op *op)
{
    op->handle = 0;
}

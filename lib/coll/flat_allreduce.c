/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/plan.h"
#include "coll/ring.h"
#include "coll/sum.h"

/* Everyone sends all it has to everyone, and sums up in rank order: the bits of the direct algorithm. */
static void exchange(struct pki_plan *plan, int rank, int size, bool in_place, uint32_t *sent)
{
    struct pki_sum sum;

    pki_sum_begin(&sum, plan, size);
    pki_sum_add(&sum, rank, pki_in(0), PKI_NO_STEP);
    for (int hop = 1; hop < size; hop++) {
        int from = pki_before(rank, hop, size);
        struct pki_ref theirs = pki_scratch(from < rank ? from : from - 1, pki_in(0));

        sent[hop] = pki_plan_send(plan, pki_after(rank, hop, size), pki_in(0));
        pki_sum_add(&sum, from, theirs, pki_plan_recv(plan, from, theirs));
    }
    pki_plan_final(plan, pki_sum_into(&sum, pki_out(0), pki_scratch(size - 1, pki_in(0))));
    for (int hop = 1; in_place && hop < size; hop++)
        pki_plan_after(plan, sent[hop]);
}

/* One hop deep, for small messages: n - 1 sends of all the data. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    uint32_t *sent = malloc((size_t)size * sizeof *sent);

    pki_plan_cut(plan, 1, 1);
    if (sent == NULL)
        plan->failed = true;
    else if (size > 1)
        exchange(plan, rank, size, in_place, sent);
    else if (!in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    free(sent);
}

const struct pki_algorithm pki_flat_allreduce = { .name = "flat", .coll = PKI_COLL_ALLREDUCE, .build = build };

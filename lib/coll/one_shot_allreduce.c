/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/plan.h"
#include "coll/ring.h"
#include "coll/sum.h"

/* Everyone sends all it has to everyone, and sums up in rank order: the bits of the direct algorithm. */
static void exchange(struct pki_plan *plan, int rank, int size, bool in_place, uint32_t *sent)
{
    pki_sum_of_all(plan, &(const struct pki_sum_parts){
                             .rank = rank, .size = size, .running = (uint32_t)size - 1, .dst = pki_out(0), .sent = sent });
    for (int hop = 1; in_place && hop < size; hop++)
        pki_plan_after(plan, sent[pki_after(rank, hop, size)]);
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

const struct pki_algorithm pki_one_shot_allreduce = { .name = "flat", .coll = PKI_COLL_ALLREDUCE, .build = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/sum.h"

#include <stdlib.h>

#include "coll/ring.h"

void pki_sum_begin(struct pki_sum *sum, struct pki_plan *plan, int n)
{
    *sum = (struct pki_sum){ .plan = plan, .n = n };
    sum->operands = calloc((size_t)n, sizeof *sum->operands);
    sum->ready = calloc((size_t)n, sizeof *sum->ready);
    if (sum->operands == NULL || sum->ready == NULL)
        plan->failed = true;
}

void pki_sum_add(struct pki_sum *sum, int position, struct pki_ref operand, uint32_t ready)
{
    if (sum->plan->failed)
        return;
    sum->operands[position] = operand;
    sum->ready[position] = ready;
}

static uint32_t append(struct pki_sum *sum, struct pki_ref dst, struct pki_ref running)
{
    struct pki_ref operands[PKI_REDUCE_SOURCES];
    uint32_t summed = PKI_NO_STEP;

    for (int first = 0; first < sum->n;) {
        uint32_t n = 0;
        int begin = first;

        if (begin > 0)
            operands[n++] = running;
        while (n < PKI_REDUCE_SOURCES && first < sum->n)
            operands[n++] = sum->operands[first++];
        uint32_t step = pki_plan_reduce(sum->plan, first < sum->n ? running : dst, operands, n);

        if (begin > 0)
            pki_plan_after(sum->plan, summed);
        for (int i = begin; i < first; i++)
            if (sum->ready[i] != PKI_NO_STEP)
                pki_plan_after(sum->plan, sum->ready[i]);
        summed = step;
    }
    return summed;
}

uint32_t pki_sum_into(struct pki_sum *sum, struct pki_ref dst, struct pki_ref running)
{
    uint32_t summed = sum->plan->failed ? 0 : append(sum, dst, running);

    free(sum->operands);
    free(sum->ready);
    return summed;
}

uint32_t pki_sum_of_all(struct pki_plan *plan, const struct pki_sum_parts *p)
{
    const struct pki_ref own = pki_in(p->first + (uint32_t)p->rank * p->stride);
    struct pki_sum sum;

    pki_sum_begin(&sum, plan, p->size);
    pki_sum_add(&sum, p->rank, own, PKI_NO_STEP);
    for (int hop = 1; hop < p->size; hop++) {
        int to = pki_after(p->rank, hop, p->size);
        int from = pki_before(p->rank, hop, p->size);
        struct pki_ref part = pki_scratch(p->scratch + (uint32_t)(from < p->rank ? from : from - 1), own);

        if (!p->only_here) {
            uint32_t step = pki_plan_send(plan, to, pki_in(p->first + (uint32_t)to * p->stride));

            if (p->sent != NULL)
                p->sent[to] = step;
        }
        pki_sum_add(&sum, from, part, pki_plan_recv(plan, from, part));
    }
    uint32_t summed = pki_sum_into(&sum, p->dst, pki_scratch(p->running, own));

    pki_plan_final(plan, summed);
    return summed;
}

uint32_t pki_sum_own_block(struct pki_plan *plan, int rank, int size, struct pki_ref dst, uint32_t *sent)
{
    return pki_sum_of_all(plan,
                          &(const struct pki_sum_parts){
                              .rank = rank, .size = size, .stride = 1, .running = (uint32_t)size - 1, .dst = dst, .sent = sent });
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/plan.h"
#include "coll/ring.h"

/* As many operands as one REDUCE may have: PKI_REDUCE_MAX of device.h, which this floor does not see. */
#define OPERANDS_MAX 16

/* Steps that are needed again later, by rank of the peer. */
struct exchange {
    uint32_t *sent;     /* of the peer's block to the peer */
    uint32_t *received; /* of the peer's part of the own block */
};

/* Where rank p's part of the own block lands: one scratch block for each of the others. */
static struct pki_ref part_of(int p, int rank)
{
    return pki_scratch(p < rank ? p : p - 1, pki_out(rank));
}

/* Each rank sends block p to rank p, and collects the others' parts of its own block. */
static void collect(struct pki_plan *plan, int rank, int size, struct exchange *x)
{
    for (int hop = 1; hop < size; hop++) {
        int to = pki_after(rank, hop, size);
        int from = pki_before(rank, hop, size);

        x->sent[to] = pki_plan_send(plan, to, pki_in(to));
        x->received[from] = pki_plan_recv(plan, from, part_of(from, rank));
    }
}

/*
 * Sum up the own block in rank order, so that the bits depend on nothing but the data. More ranks than OPERANDS_MAX take several
 * steps, whose running sum sits in one more scratch block.
 */
static uint32_t sum_in_rank_order(struct pki_plan *plan, int rank, int size, const struct exchange *x)
{
    struct pki_ref running = pki_scratch(size - 1, pki_out(rank));
    struct pki_ref operands[OPERANDS_MAX];
    uint32_t summed = 0;

    for (int first = 0; first < size;) {
        uint32_t n = 0;
        int begin = first;

        if (begin > 0)
            operands[n++] = running;
        for (; n < OPERANDS_MAX && first < size; first++)
            operands[n++] = first == rank ? pki_in(rank) : part_of(first, rank);
        uint32_t step = pki_plan_reduce(plan, first < size ? running : pki_out(rank), operands, n);

        if (begin > 0)
            pki_plan_after(plan, summed);
        for (int p = begin; p < first; p++)
            if (p != rank)
                pki_plan_after(plan, x->received[p]);
        summed = step;
    }
    return summed;
}

/* Each rank hands its sum to every other. In place a sum arrives where the part lies that went to the same rank. */
static void hand_out(struct pki_plan *plan, int rank, int size, bool in_place, uint32_t summed, const struct exchange *x)
{
    for (int hop = 1; hop < size; hop++) {
        int to = pki_after(rank, hop, size);
        int from = pki_before(rank, hop, size);

        pki_plan_send(plan, to, pki_out(rank));
        pki_plan_after(plan, summed);
        pki_plan_recv(plan, from, pki_out(from));
        if (in_place)
            pki_plan_after(plan, x->sent[from]);
    }
}

/* Two exchanges of everyone with everyone: 2 (n - 1) sends of an n-th of the data each, as the ring's, but two hops deep. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    uint32_t *steps = malloc((size_t)size * 2 * sizeof *steps);
    struct exchange x = { steps, steps + size };

    if (steps == NULL) {
        plan->failed = true;
    } else if (size > 1) {
        collect(plan, rank, size, &x);
        hand_out(plan, rank, size, in_place, sum_in_rank_order(plan, rank, size, &x), &x);
    } else if (!in_place) {
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    }
    free(steps);
}

const struct pki_algorithm pki_direct_allreduce = { "direct", PKI_COLL_ALLREDUCE, build };

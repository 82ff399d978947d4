/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/ring.h"

#define ROUNDS_MAX 16

/*
 * Dissemination: who has heard of the ranks up to 2^k - 1 before it tells the one 2^k behind, which then knows of 2^(k+1) - 1.
 * log n sends, log n hops. The last round need not tell what would go all the way round: a receive of round i speaks of ranks
 * from 2^i before on.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    uint32_t heard[ROUNDS_MAX];
    int round = 0;

    (void)in_place;
    for (int distance = 1; distance < size; distance *= 2) {
        pki_plan_send(plan, pki_after(rank, distance, size), pki_in(0));
        for (int i = 0; i < round; i++)
            if ((1 << i) + distance < size)
                pki_plan_after(plan, heard[i]);
        heard[round++] = pki_plan_recv(plan, pki_before(rank, distance, size), pki_out(0));
    }
}

const struct pki_algorithm pki_doubling_barrier = { .name = "doubling", .coll = PKI_COLL_BARRIER, .build = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/plan.h"
#include "coll/ring.h"
#include "coll/staggered.h"

static struct pki_ref sum_of(int rank, uint32_t piece, int size)
{
    return pki_out((uint32_t)rank * pki_staggered_pieces(size) + piece);
}

/* The sum goes to every other rank. In place a sum arrives where the part lies that went to the same rank. */
static void hand_out(struct pki_plan *plan, uint32_t piece, bool in_place, uint32_t summed, const uint32_t *sent)
{
    int rank = plan->rank, size = plan->size;

    for (int hop = 1; hop < size; hop++) {
        int from = pki_before(rank, hop, size);

        pki_plan_send(plan, pki_after(rank, hop, size), sum_of(rank, piece, size));
        pki_plan_after(plan, summed);
        pki_plan_recv(plan, from, sum_of(from, piece, size));
        if (in_place)
            pki_plan_after(plan, sent[piece * (uint32_t)size + (uint32_t)from]);
    }
}

static void exchange(struct pki_plan *plan, bool in_place, uint32_t *sent)
{
    uint32_t pieces = pki_staggered_pieces(plan->size);
    uint32_t summed = pki_staggered_collect(plan, 0, sum_of(plan->rank, 0, plan->size), sent);

    for (uint32_t piece = 1; piece <= pieces; piece++) {
        uint32_t next = piece < pieces ? pki_staggered_collect(plan, piece, sum_of(plan->rank, piece, plan->size), sent) : 0;

        hand_out(plan, piece - 1, in_place, summed, sent);
        summed = next;
    }
}

/*
 * As `direct`, in pieces one after another and in rounds: a rank's link carries the next piece, or the sums of the one before,
 * while one is summed up. 2 (n - 1) sends of an n-th of the data each, in as many pieces.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    uint32_t blocks = (uint32_t)size * pki_staggered_pieces(size);
    uint32_t *sent = malloc(blocks * sizeof *sent);

    (void)rank;
    pki_plan_cut_finely(plan, 1, 1, blocks);
    plan->ordered = true;
    if (sent == NULL)
        plan->failed = true;
    else if (size > 1)
        exchange(plan, in_place, sent);
    else if (!in_place)
        pki_plan_copy(plan, pki_stretch(pki_out(0), blocks), pki_stretch(pki_in(0), blocks));
    free(sent);
}

const struct pki_algorithm pki_staggered_allreduce = { .name = "staggered", .coll = PKI_COLL_ALLREDUCE, .build = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/plan.h"
#include "coll/ring.h"
#include "coll/sum.h"

#define PIECES 4 /* of each rank's part: more hide the sums better, and make more and shorter copies */

static uint32_t block_of(int rank, int piece)
{
    return (uint32_t)(rank * PIECES + piece);
}

/* A piece of every rank's part goes to that rank, and this rank's is summed up in rank order. */
static uint32_t collect(struct pki_plan *plan, int rank, int size, int piece, uint32_t *sent)
{
    return pki_sum_of_all(plan, &(const struct pki_sum_parts){
        .rank = rank, .size = size, .first = (uint32_t)piece, .stride = PIECES, .scratch = (uint32_t)(piece * (size - 1)),
        .running = (uint32_t)(PIECES * (size - 1) + piece), .dst = pki_out(block_of(rank, piece)), .sent = sent + piece * size });
}

/* The sum goes to every other rank. In place a sum arrives where the part lies that went to the same rank. */
static void hand_out(struct pki_plan *plan, int rank, int size, int piece, bool in_place, uint32_t summed, const uint32_t *sent)
{
    for (int hop = 1; hop < size; hop++) {
        int from = pki_before(rank, hop, size);

        pki_plan_send(plan, pki_after(rank, hop, size), pki_out(block_of(rank, piece)));
        pki_plan_after(plan, summed);
        pki_plan_recv(plan, from, pki_out(block_of(from, piece)));
        if (in_place)
            pki_plan_after(plan, sent[piece * size + from]);
    }
}

static void exchange(struct pki_plan *plan, int rank, int size, bool in_place, uint32_t *sent)
{
    uint32_t summed = collect(plan, rank, size, 0, sent);

    for (int piece = 1; piece <= PIECES; piece++) {
        uint32_t next = piece < PIECES ? collect(plan, rank, size, piece, sent) : 0;

        hand_out(plan, rank, size, piece - 1, in_place, summed, sent);
        summed = next;
    }
}

/*
 * As `direct`, in pieces one after another, and sends leave in the plan's order: a rank's link carries the next piece while one is summed
 * up, and no two ranks aim at the same peer at once. 2 (n - 1) sends of an n-th of the data each, in PIECES pieces.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    uint32_t blocks = (uint32_t)size * PIECES;
    uint32_t *sent = malloc(blocks * sizeof *sent);

    pki_plan_cut(plan, blocks, blocks);
    plan->ordered = true;
    if (sent == NULL)
        plan->failed = true;
    else if (size > 1)
        exchange(plan, rank, size, in_place, sent);
    else if (!in_place)
        pki_plan_copy(plan, pki_stretch(pki_out(0), blocks), pki_stretch(pki_in(0), blocks));
    free(sent);
}

const struct pki_algorithm pki_staggered_allreduce = { .name = "staggered", .coll = PKI_COLL_ALLREDUCE, .build = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/halving.h"
#include "coll/pieces.h"

/* The rank before stands for this one. */
static void leave_it_to_the_rank_before(struct pki_plan *plan, int rank, bool in_place, const struct pki_halving *h)
{
    uint32_t sent = pki_plan_send(plan, rank - 1, pki_halving_in(h, 0, h->fold.power));

    pki_plan_recv(plan, rank - 1, pki_halving_sums(h, 0, h->fold.power));
    if (in_place)
        pki_plan_after(plan, sent);
}

/*
 * Stretches of sums are exchanged at distance 1, 2, 4, ... A stretch arrives where the partial sums lay that went to the same
 * peer (the first ones, in place, where the own part lies).
 */
static void gather_sums(struct pki_plan *plan, int rank, bool in_place, const struct pki_halving *h)
{
    struct pki_pieces have = { .n = 0 };
    int n = 1;

    pki_pieces_add(&have, (uint32_t)h->fold.number, 1, h->summed);
    for (int level = 0; n < h->fold.power; level++, n *= 2) {
        int peer = pki_fold_rank(&h->fold, h->fold.number ^ n);
        int mine = h->fold.number & ~(n - 1), theirs = mine ^ n;
        bool sent_first = n == h->fold.power / 2;

        pki_plan_send(plan, peer, pki_halving_sums(h, mine, n));
        pki_pieces_await(plan, &have, (uint32_t)mine, (uint32_t)n);
        uint32_t received = pki_plan_recv(plan, peer, pki_halving_sums(h, theirs, n));

        if (!sent_first || in_place || h->sent_sums)
            pki_plan_after(plan, h->sent[level]);
        pki_pieces_add(&have, (uint32_t)theirs, (uint32_t)n, received);
    }
    if (h->fold.paired) {
        pki_plan_send(plan, rank + 1, pki_halving_sums(h, 0, n));
        pki_pieces_await(plan, &have, 0, (uint32_t)n);
    }
}

/*
 * Reduce-scatter by halves, then allgather by doubling: 2 log n sends, 2 (n - 1) n-ths of the data in all. Each block's sum is
 * made on one rank, so all have the same bits.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct pki_halving h = { .fold = pki_fold(rank, size), .sums_in_out = true };

    pki_plan_cut(plan, (uint32_t)h.fold.power, (uint32_t)h.fold.power);
    if (h.fold.number < 0) {
        leave_it_to_the_rank_before(plan, rank, in_place, &h);
    } else if (size > 1) {
        pki_halve(plan, rank, &h);
        gather_sums(plan, rank, in_place, &h);
    } else if (!in_place) {
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    }
}

const struct pki_algorithm pki_halving_allreduce = { .name = "halving", .coll = PKI_COLL_ALLREDUCE, .build = build };

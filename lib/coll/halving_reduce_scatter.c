/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/halving.h"

/* The rank before stands for this one. In place the sum arrives within what was sent. */
static void leave_it_to_the_rank_before(struct pki_plan *plan, int rank, bool in_place, const struct pki_halving *h)
{
    uint32_t sent = pki_plan_send(plan, rank - 1, pki_halving_in(h, 0, h->fold.power));

    pki_plan_recv(plan, rank - 1, pki_out(0));
    if (in_place)
        pki_plan_after_whole(plan, sent);
}

/* A rank that stands for two has two sums in the end. */
static void share_with_the_rank_after(struct pki_plan *plan, int rank, const struct pki_halving *h)
{
    struct pki_ref sums = pki_halving_sums(h, h->fold.number, 1);
    struct pki_ref mine = sums, theirs = sums;

    mine.more = theirs.more = 0;
    theirs.like = (uint16_t)(theirs.like + 1);
    pki_plan_send(plan, rank + 1, theirs);
    pki_plan_after_whole(plan, h->summed);
    pki_plan_copy(plan, pki_out(0), mine);
    pki_plan_after(plan, h->summed);
}

/* Recursive halving: log n sends, (n - 1) n-ths of the data in all. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct pki_halving h = { .fold = pki_fold(rank, size), .own_blocks = true, .final = pki_out(0) };

    h.has_final = !h.fold.paired;
    if (h.fold.number < 0) {
        leave_it_to_the_rank_before(plan, rank, in_place, &h);
    } else if (size > 1) {
        pki_halve(plan, rank, &h);
        if (h.fold.paired)
            share_with_the_rank_after(plan, rank, &h);
    } else if (!in_place) {
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    }
}

const struct pki_algorithm pki_halving_reduce_scatter = { .name = "halving", .coll = PKI_COLL_REDUCE_SCATTER, .build = build };

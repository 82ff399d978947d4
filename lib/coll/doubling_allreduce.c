/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/fold.h"
#include "coll/plan.h"
#include "coll/sum.h"

/* The rank before stands for this one. */
static void leave_it_to_the_rank_before(struct pki_plan *plan, int rank, bool in_place)
{
    uint32_t sent = pki_plan_send(plan, rank - 1, pki_in(0));

    pki_plan_recv(plan, rank - 1, pki_out(0));
    if (in_place)
        pki_plan_after(plan, sent);
}

/* The sum of two neighbouring stretches of ranks, this rank's and the peer's, the lower first: both peers get the same bits. */
static uint32_t join(struct pki_plan *plan, bool lower, struct pki_ref mine, struct pki_ref theirs, uint32_t received)
{
    uint32_t step = pki_plan_reduce(plan, pki_out(0), (struct pki_ref[]){ lower ? mine : theirs, lower ? theirs : mine }, 2);

    pki_plan_after(plan, received);
    return step;
}

static void take_part(struct pki_plan *plan, int rank, bool in_place, const struct pki_fold *fold)
{
    struct pki_ref mine = pki_in(0), theirs;
    uint32_t summed = PKI_NO_STEP, sent, landing = 0;

    if (fold->paired) {
        theirs = pki_scratch(landing++, pki_in(0));
        summed = join(plan, true, mine, theirs, pki_plan_recv(plan, rank + 1, theirs));
        mine = pki_out(0);
    }
    for (int distance = 1; distance < fold->power; distance *= 2) {
        int peer = pki_fold_rank(fold, fold->number ^ distance);

        theirs = pki_scratch(landing++, pki_in(0));
        sent = pki_plan_send(plan, peer, mine);
        if (summed != PKI_NO_STEP)
            pki_plan_after(plan, summed);
        summed = join(plan, (fold->number & distance) == 0, mine, theirs, pki_plan_recv(plan, peer, theirs));
        if (in_place || mine.buffer == PKI_BUF_OUT) /* the sum goes where the send reads */
            pki_plan_after(plan, sent);
        mine = pki_out(0);
    }
    pki_plan_final(plan, summed);
    if (fold->paired) {
        pki_plan_send(plan, rank + 1, pki_out(0));
        pki_plan_after(plan, summed);
    }
}

/* All the data is exchanged at distance 1, 2, 4, ...: log n sends of it, for small messages. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct pki_fold fold = pki_fold(rank, size);

    pki_plan_cut(plan, 1, 1);
    if (fold.number < 0)
        leave_it_to_the_rank_before(plan, rank, in_place);
    else if (size > 1)
        take_part(plan, rank, in_place, &fold);
    else if (!in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
}

const struct pki_algorithm pki_doubling_allreduce = { .name = "doubling", .coll = PKI_COLL_ALLREDUCE, .build = build };

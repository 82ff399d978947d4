/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/doubling.h"
#include "coll/fold.h"
#include "coll/plan.h"
#include "coll/sum.h"

static int rank_at(const struct pki_doubling *d, int index)
{
    return d->ranks == NULL ? index : d->ranks[index];
}

static void after(struct pki_plan *plan, uint32_t step)
{
    if (step != PKI_NO_STEP)
        pki_plan_after(plan, step);
}

static uint32_t send_mine(struct pki_plan *plan, const struct pki_doubling *d, int peer)
{
    uint32_t sent = pki_plan_send(plan, peer, d->mine);

    after(plan, d->ready);
    return sent;
}

/* The rank before stands for this one. */
static uint32_t leave_it_to_the_rank_before(struct pki_plan *plan, const struct pki_doubling *d)
{
    uint32_t sent = send_mine(plan, d, rank_at(d, d->me - 1));
    uint32_t received = pki_plan_recv(plan, rank_at(d, d->me - 1), pki_out(0));
    if (d->in_place)
        pki_plan_after(plan, sent);
    return received;
}

/* The sum of two neighbouring stretches of ranks, this rank's and the peer's, the lower first: both peers get the same bits. */
static uint32_t join(struct pki_plan *plan, bool lower, struct pki_ref mine, struct pki_ref theirs, uint32_t received)
{
    uint32_t step = pki_plan_reduce(plan, pki_out(0), (struct pki_ref[]){ lower ? mine : theirs, lower ? theirs : mine }, 2);

    pki_plan_after(plan, received);
    return step;
}

static uint32_t take_part(struct pki_plan *plan, const struct pki_doubling *d, const struct pki_fold *fold)
{
    struct pki_doubling now = *d;
    uint32_t landing = d->scratch, sent, summed;
    struct pki_ref theirs;

    if (fold->paired) {
        theirs = pki_scratch(landing++, pki_in(0));
        now.ready = join(plan, true, now.mine, theirs, pki_plan_recv(plan, rank_at(d, d->me + 1), theirs));
        after(plan, d->ready);
        now.mine = pki_out(0);
        now.in_place = true;
    }
    for (int distance = 1; distance < fold->power; distance *= 2) {
        int peer = rank_at(d, pki_fold_rank(fold, fold->number ^ distance));

        theirs = pki_scratch(landing++, pki_in(0));
        sent = send_mine(plan, &now, peer);
        summed = join(plan, (fold->number & distance) == 0, now.mine, theirs, pki_plan_recv(plan, peer, theirs));
        after(plan, now.in_place ? sent : now.ready); /* in place the sum goes where the send reads */
        now.ready = summed;
        now.mine = pki_out(0);
        now.in_place = true;
    }
    pki_plan_final(plan, now.ready);
    if (fold->paired)
        send_mine(plan, &now, rank_at(d, d->me + 1));
    return now.ready;
}

uint32_t pki_doubling_sum(struct pki_plan *plan, const struct pki_doubling *d)
{
    struct pki_fold fold = pki_fold(d->me, d->n);

    return fold.number < 0 ? leave_it_to_the_rank_before(plan, d) : take_part(plan, d, &fold);
}

/* All the data is exchanged at distance 1, 2, 4, ...: log n sends of it, for small messages. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct pki_doubling all = { .n = size, .me = rank, .mine = pki_in(0), .ready = PKI_NO_STEP, .in_place = in_place };

    pki_plan_cut(plan, 1, 1);
    if (size > 1)
        (void)pki_doubling_sum(plan, &all);
    else if (!in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
}

const struct pki_algorithm pki_doubling_allreduce = { .name = "doubling", .coll = PKI_COLL_ALLREDUCE, .build = build };

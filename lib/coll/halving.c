/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/halving.h"

/* Scratch blocks. */
enum { LANDING, SUMS };

static uint32_t first_block(const struct pki_halving *h, int number)
{
    return (uint32_t)(h->own_blocks ? pki_fold_rank(&h->fold, number) : number);
}

struct pki_ref pki_halving_in(const struct pki_halving *h, int number, int numbers)
{
    uint32_t first = first_block(h, number);

    return pki_stretch(pki_in(first), first_block(h, number + numbers) - first);
}

struct pki_ref pki_halving_sums(const struct pki_halving *h, int number, int numbers)
{
    struct pki_ref like = pki_halving_in(h, number, numbers);
    int half = h->fold.power / 2;
    int begin = h->fold.paired || h->fold.number < half ? 0 : half;

    if (h->sums_in_out)
        return pki_stretch(pki_out(like.index), like.more + 1u);
    return pki_scratch_at(SUMS, first_block(h, begin), like);
}

/* Chunk for chunk where both stretches begin at the same number. */
static void await(struct pki_plan *plan, uint32_t step, bool same_begin)
{
    if (same_begin)
        pki_plan_after(plan, step);
    else
        pki_plan_after_whole(plan, step);
}

/* Ranks exchange halves of what they still care for at distance n / 2, n / 4, ..., 1, and keep their own half's sum. */
void pki_halve(struct pki_plan *plan, int rank, struct pki_halving *h)
{
    int all = h->fold.power, number = h->fold.number, level = 0, begin = 0;
    struct pki_ref mine = pki_halving_in(h, 0, all);
    bool summing = h->fold.paired;

    if (summing)
        h->summed = pki_plan_recv_reduce(plan, rank + 1, pki_halving_sums(h, 0, all), mine, pki_scratch(LANDING, mine));
    h->sent_sums = summing;
    while (1 << level < all)
        level++;
    for (int n = all / 2; n >= 1; n /= 2) {
        int peer = pki_fold_rank(&h->fold, number ^ n);
        int keep = number & n ? begin + n : begin;
        int give = number & n ? begin : begin + n;
        struct pki_ref sums = pki_halving_sums(h, keep, n);

        mine = summing ? sums : pki_halving_in(h, keep, n);
        h->sent[--level] = pki_plan_send(plan, peer, summing ? pki_halving_sums(h, give, n) : pki_halving_in(h, give, n));
        if (summing)
            await(plan, h->summed, give == begin);
        uint32_t step = pki_plan_recv_reduce(plan, peer, n == 1 && h->has_final ? h->final : sums, mine,
                                             pki_scratch(LANDING, pki_halving_in(h, keep, n)));

        if (summing)
            await(plan, h->summed, keep == begin);
        h->summed = step;
        summing = true;
        begin = keep;
    }
    pki_plan_final(plan, h->summed);
}

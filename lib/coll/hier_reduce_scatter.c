/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/hier.h"
#include "coll/ring.h"

/* Block `target` of this host's ranks, summed up by one of them and sent to that rank on another host. Returns scratch blocks
 * used. */
static uint32_t give(struct pki_plan *plan, const struct pki_site *s, int target, uint32_t scratch)
{
    int carrier = pki_site_carrier(s, s->host, target);
    struct pki_ref part = pki_in((uint32_t)target), total = part;
    uint32_t summed = PKI_NO_STEP;

    if (carrier != s->rank) {
        pki_plan_send(plan, carrier, part);
        return 0;
    }
    if (s->ranks > 1) {
        struct pki_sum sum;

        total = pki_scratch(scratch + (uint32_t)s->ranks - 1, part);
        pki_hier_sum_begin(&sum, plan, s, part, scratch, 0);
        summed = pki_sum_into(&sum, total, total);
    }
    pki_plan_send(plan, target, total);
    pki_hier_after(plan, summed);
    return (uint32_t)s->ranks;
}

/* The own block: the parts of this host's ranks, and a sum from each other host. */
static void take(struct pki_plan *plan, const struct pki_site *s, uint32_t scratch)
{
    struct pki_ref part = pki_in((uint32_t)s->rank);
    struct pki_sum sum;
    int position = s->ranks;

    pki_hier_sum_begin(&sum, plan, s, part, scratch, s->hosts - 1);
    for (int host = 0; host < s->hosts; host++) {
        struct pki_ref theirs = pki_scratch(scratch + (uint32_t)position - 1, part);

        if (host != s->host)
            pki_sum_add(&sum, position++, theirs, pki_plan_recv(plan, pki_site_carrier(s, host, s->rank), theirs));
    }
    pki_plan_final(plan, pki_sum_into(&sum, pki_out(0), pki_scratch(scratch + (uint32_t)position - 1, part)));
}

/*
 * For each block of another host one rank of this one sums up its ranks' parts and sends the sum to the block's rank, which sums
 * up what all hosts send and what its own host's ranks have. Each host's link carries the sum of a block once. Two hops.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct pki_site s = pki_site(plan);
    uint32_t scratch = 0;

    if (size == 1) {
        if (!in_place)
            pki_plan_copy(plan, pki_out(0), pki_in(0));
        return;
    }
    for (int hop = 1; hop < s.hosts; hop++) {
        int host = pki_after(s.host, hop, s.hosts);

        for (int place = 0; place < pki_site_ranks(&s, host); place++)
            scratch += give(plan, &s, pki_site_rank(&s, host, place), scratch);
    }
    for (int hop = 1; hop < s.ranks; hop++) {
        int to = pki_site_rank(&s, s.host, pki_after(s.place, hop, s.ranks));

        pki_plan_send(plan, to, pki_in((uint32_t)to));
    }
    (void)rank;
    take(plan, &s, scratch);
}

const struct pki_algorithm pki_hier_reduce_scatter = { .name = "hier", .coll = PKI_COLL_REDUCE_SCATTER, .build = build };

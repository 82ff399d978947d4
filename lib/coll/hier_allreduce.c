/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/hier.h"
#include "coll/ring.h"

/*
 * The data is cut into a part for each of as many carriers as the smallest host has ranks, and a part into a block for each host.
 * Carrier c of host h sums up block (c, h): its own ranks' parts, and the sums that carrier c of each other host has made of its
 * ranks'.
 */
struct allreduce {
    struct pki_plan *plan;
    struct pki_site s;
    bool in_place;
    uint32_t *sent; /* [blocks]: the send of what this rank had of a block, to whoever sums it up */
};

static uint32_t block_of(const struct allreduce *a, int carrier, int host)
{
    return (uint32_t)(carrier * a->s.hosts + host);
}

static void give_to_carriers(struct allreduce *a, int host)
{
    for (int i = 1; i <= a->s.least; i++) {
        int carrier = (a->s.place + i) % a->s.least;
        uint32_t block = block_of(a, carrier, host);

        if (carrier != a->s.place)
            a->sent[block] = pki_plan_send(a->plan, pki_site_rank(&a->s, a->s.host, carrier), pki_in(block));
    }
}

/* This host's sum of a block of another one goes there. */
static void give_to_host(struct allreduce *a, int host, uint32_t scratch)
{
    uint32_t block = block_of(a, a->s.place, host), summed = PKI_NO_STEP;
    struct pki_ref total = pki_in(block);

    if (a->s.ranks > 1) {
        struct pki_sum sum;

        total = pki_out(block);
        pki_hier_sum_begin(&sum, a->plan, &a->s, pki_in(block), scratch, 0);
        summed = pki_sum_into(&sum, total, pki_scratch(scratch + (uint32_t)a->s.ranks - 1, pki_in(block)));
    }
    a->sent[block] = pki_plan_send(a->plan, pki_site_rank(&a->s, host, a->s.place), total);
    pki_hier_after(a->plan, summed);
}

static uint32_t sum_own_block(struct allreduce *a, uint32_t scratch)
{
    uint32_t block = block_of(a, a->s.place, a->s.host), summed;
    int position = a->s.ranks;
    struct pki_sum sum;

    pki_hier_sum_begin(&sum, a->plan, &a->s, pki_in(block), scratch, a->s.hosts - 1);
    for (int host = 0; host < a->s.hosts; host++) {
        struct pki_ref theirs = pki_scratch(scratch + (uint32_t)position - 1, pki_in(block));

        if (host != a->s.host)
            pki_sum_add(&sum, position++, theirs, pki_plan_recv(a->plan, pki_site_rank(&a->s, host, a->s.place), theirs));
    }
    summed = pki_sum_into(&sum, pki_out(block), pki_scratch(scratch + (uint32_t)position - 1, pki_in(block)));
    pki_plan_final(a->plan, summed);
    return summed;
}

/* The sums of this carrier's part: its own goes to all hosts, those of others come, and all go to the ranks of this host. */
static void hand_out(struct allreduce *a, uint32_t summed)
{
    struct pki_ref own = pki_out(block_of(a, a->s.place, a->s.host));

    for (int hop = 1; hop < a->s.hosts; hop++) {
        pki_plan_send(a->plan, pki_site_rank(&a->s, pki_after(a->s.host, hop, a->s.hosts), a->s.place), own);
        pki_plan_after(a->plan, summed);
    }
    pki_hier_send_around(a->plan, &a->s, own, summed);
    for (int hop = 1; hop < a->s.hosts; hop++) {
        int host = pki_before(a->s.host, hop, a->s.hosts);
        uint32_t block = block_of(a, a->s.place, host);
        uint32_t received = pki_plan_recv(a->plan, pki_site_rank(&a->s, host, a->s.place), pki_out(block));

        if (a->in_place || a->s.ranks > 1) /* it comes where this host's sum lay */
            pki_plan_after(a->plan, a->sent[block]);
        pki_hier_send_around(a->plan, &a->s, pki_out(block), received);
    }
}

/* In place a sum comes where the part lay that went to the same carrier. */
static void take_from_carrier(struct allreduce *a, int carrier)
{
    for (int hop = 0; hop < a->s.hosts; hop++) {
        uint32_t block = block_of(a, carrier, pki_before(a->s.host, hop, a->s.hosts));

        pki_plan_recv(a->plan, pki_site_rank(&a->s, a->s.host, carrier), pki_out(block));
        if (a->in_place)
            pki_plan_after(a->plan, a->sent[block]);
    }
}

static void exchange(struct allreduce *a)
{
    bool carries = a->s.place < a->s.least;
    uint32_t scratch = 0, summed = PKI_NO_STEP;

    for (int hop = 1; hop <= a->s.hosts; hop++) { /* the own host's blocks last */
        int host = pki_after(a->s.host, hop, a->s.hosts);

        give_to_carriers(a, host);
        if (carries && host != a->s.host)
            give_to_host(a, host, scratch);
        else if (carries)
            summed = sum_own_block(a, scratch);
        scratch += (uint32_t)a->s.ranks;
    }
    if (carries)
        hand_out(a, summed);
    for (int i = 1; i <= a->s.least; i++)
        if ((a->s.place + i) % a->s.least != a->s.place)
            take_from_carrier(a, (a->s.place + i) % a->s.least);
}

/* Between hosts 2 (h - 1) sends of an h-th of a carrier's part, as many bytes as a ring of hosts; four hops. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct allreduce a = { .plan = plan, .s = pki_site(plan), .in_place = in_place };
    uint32_t blocks = (uint32_t)(a.s.least * a.s.hosts);

    (void)rank;
    pki_plan_cut(plan, blocks, blocks);
    a.sent = malloc(blocks * sizeof *a.sent);
    if (a.sent == NULL)
        plan->failed = true;
    else if (size > 1)
        exchange(&a);
    else if (!in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    free(a.sent);
}

const struct pki_algorithm pki_hier_allreduce = { .name = "hier", .coll = PKI_COLL_ALLREDUCE, .build = build };

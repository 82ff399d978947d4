/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/hier.h"
#include "coll/ring.h"

/*
 * The broadcast backwards: a part for each carrier, a block of it for each host but the root's. The block's host sums up what all
 * hosts but the root's have of it; the carrier of the root's host adds what its ranks have; the root takes the sums of its host's
 * carriers.
 */
struct reduce {
    struct pki_plan *plan;
    struct pki_site s;
    int carriers, blocks; /* of a part */
    bool in_place;
    uint32_t scratch; /* blocks used so far */
    uint32_t *sent;   /* [carriers * blocks]: the root's sends to carriers of its host */
};

static uint32_t block_of(const struct reduce *r, int carrier, int block)
{
    return (uint32_t)(carrier * r->blocks + block);
}

/* On which host the blocks of this number are summed up. */
static int host_of(const struct reduce *r, int block)
{
    return pki_after(r->s.root_host, block + 1, r->s.hosts);
}

/* Sums of other hosts that this one adds to a block. */
static int others_of(const struct reduce *r, int block)
{
    if (r->s.host == r->s.root_host)
        return r->s.hosts > 1 ? 1 : 0;
    return host_of(r, block) == r->s.host ? r->s.hosts - 2 : 0;
}

static void add_other_hosts(struct reduce *r, struct pki_sum *sum, int block)
{
    struct pki_ref part = pki_in(block_of(r, r->s.place, block));
    int position = r->s.ranks;

    for (int hop = 1; hop < r->s.hosts; hop++) {
        int host = pki_before(r->s.host, hop, r->s.hosts);
        struct pki_ref theirs = pki_scratch(r->scratch + (uint32_t)position - 1, part);
        bool sends = r->s.host == r->s.root_host ? host == host_of(r, block) : host != r->s.root_host;

        if (sends)
            pki_sum_add(sum, position++, theirs, pki_plan_recv(r->plan, pki_site_rank(&r->s, host, r->s.place), theirs));
    }
}

/* This host's sum of a block of this carrier's part. *summed: the step that makes it, or PKI_NO_STEP. */
static struct pki_ref sum_block(struct reduce *r, int block, uint32_t *summed)
{
    bool at_root = r->plan->rank == r->plan->root;
    uint32_t index = block_of(r, r->s.place, block);
    struct pki_ref part = pki_in(index), total, running;
    int others = others_of(r, block);
    struct pki_sum sum;

    *summed = PKI_NO_STEP;
    if (r->s.ranks + others == 1)
        return part;
    running = pki_scratch(r->scratch + (uint32_t)(r->s.ranks + others) - 1, part);
    total = at_root ? pki_out(index) : running;
    pki_hier_sum_begin(&sum, r->plan, &r->s, part, r->scratch, others);
    if (others > 0)
        add_other_hosts(r, &sum, block);
    *summed = pki_sum_into(&sum, total, running);
    if (r->s.host == r->s.root_host)
        pki_plan_final(r->plan, *summed);
    r->scratch += (uint32_t)(r->s.ranks + others);
    return total;
}

static void carry(struct reduce *r, int block)
{
    int to = r->s.host == r->s.root_host ? r->plan->root : 0;
    uint32_t summed;
    struct pki_ref total = sum_block(r, block, &summed);

    if (r->plan->rank == r->plan->root)
        return;
    if (r->s.host != r->s.root_host)
        to = pki_site_rank(&r->s, host_of(r, block) == r->s.host ? r->s.root_host : host_of(r, block), r->s.place);
    pki_plan_send(r->plan, to, total);
    pki_hier_after(r->plan, summed);
}

/* In place a sum comes where the part lay that went to the same carrier. */
static void take_sums(struct reduce *r, int i)
{
    for (int carrier = 1; carrier < r->carriers; carrier++) {
        uint32_t block = block_of(r, carrier, i);

        pki_plan_recv(r->plan, pki_site_rank(&r->s, r->s.host, carrier), pki_out(block));
        if (r->in_place)
            pki_plan_after(r->plan, r->sent[block]);
    }
}

static void collect(struct reduce *r)
{
    for (int i = 0; i < r->blocks; i++) {
        for (int hop = 1; hop <= r->carriers; hop++) {
            int carrier = (r->s.place + hop) % r->carriers;
            uint32_t block = block_of(r, carrier, i);

            if (carrier != r->s.place)
                r->sent[block] = pki_plan_send(r->plan, pki_site_rank(&r->s, r->s.host, carrier), pki_in(block));
        }
        if (r->s.place < r->carriers)
            carry(r, i);
        if (r->plan->rank == r->plan->root)
            take_sums(r, i);
    }
}

/* Each host's link carries the data once, the root's host's too. Inside one host alone this is the direct algorithm. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    struct reduce r = { .plan = plan, .s = pki_site_rooted(plan), .in_place = in_place };
    uint32_t blocks;

    (void)rank;
    (void)root;
    r.carriers = r.s.least;
    r.blocks = r.s.hosts > 1 ? r.s.hosts - 1 : 1;
    blocks = (uint32_t)(r.carriers * r.blocks);
    pki_plan_cut(plan, blocks, blocks);
    r.sent = malloc(blocks * sizeof *r.sent);
    if (r.sent == NULL)
        plan->failed = true;
    else if (size > 1)
        collect(&r);
    else if (!in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    free(r.sent);
}

const struct pki_algorithm pki_hier_reduce = { .name = "hier", .coll = PKI_COLL_REDUCE, .build_rooted = build };

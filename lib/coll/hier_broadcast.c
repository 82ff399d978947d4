/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/hier.h"
#include "coll/ring.h"

/*
 * The data is cut into a part for each carrier, and a part into a block for each host but the root's. Carrier c of the root's
 * host sends each block of its part to carrier c of the block's host, who passes it on to the others. Inside a host everything
 * comes in one hop.
 */
struct broadcast {
    struct pki_plan *plan;
    struct pki_site s;
    int carriers, blocks; /* of a part */
};

static struct pki_ref block_of(const struct broadcast *b, bool root, int carrier, int block)
{
    uint32_t index = (uint32_t)(carrier * b->blocks + block);

    return root ? pki_in(index) : pki_out(index);
}

/* The carrier of the host that block `block` of its part goes to first. */
static int owner_of(const struct broadcast *b, int block, int carrier)
{
    return pki_site_rank(&b->s, pki_after(b->s.root_host, block + 1, b->s.hosts), carrier);
}

/* Whatever is not this rank's to carry, in one or two stretches. */
static void pass_the_rest(const struct broadcast *b, bool root, int peer, int place)
{
    int before = place < b->carriers ? place : b->carriers, after = b->carriers - place - 1;

    for (int i = 0; i < 2; i++) {
        int parts = i == 0 ? before : after;
        struct pki_ref blocks = block_of(b, root, i == 0 ? 0 : place + 1, 0);

        if (parts <= 0)
            continue;
        if (root)
            pki_plan_send(b->plan, peer, pki_stretch(blocks, (uint32_t)(parts * b->blocks)));
        else
            pki_plan_recv(b->plan, peer, pki_stretch(blocks, (uint32_t)(parts * b->blocks)));
    }
}

static void from_the_root(const struct broadcast *b, bool in_place)
{
    for (int i = 0; b->s.hosts > 1 && i < b->blocks; i++)
        pki_plan_send(b->plan, owner_of(b, i, 0), block_of(b, true, 0, i));
    for (int place = 1; place < b->carriers; place++)
        for (int i = 0; i < b->blocks; i++)
            pki_plan_send(b->plan, pki_site_rank(&b->s, b->s.host, place), block_of(b, true, place, i));
    for (int place = 1; place < b->s.ranks; place++)
        pass_the_rest(b, true, pki_site_rank(&b->s, b->s.host, place), place);
    if (!in_place) /* last: the others wait for their sends */
        pki_plan_copy(b->plan, pki_stretch(pki_out(0), b->plan->out_blocks), pki_stretch(pki_in(0), b->plan->in_blocks));
}

static void beside_the_root(const struct broadcast *b, int root)
{
    for (int i = 0; b->s.place < b->carriers && i < b->blocks; i++) {
        struct pki_ref block = block_of(b, false, b->s.place, i);
        uint32_t received = pki_plan_recv(b->plan, root, block);

        pki_plan_send(b->plan, owner_of(b, i, b->s.place), block);
        pki_plan_after(b->plan, received);
    }
    pass_the_rest(b, false, root, b->s.place);
}

/* This host's block comes from the root's host and goes to the others; theirs come from them. All go to the ranks of this
 * host. */
static void carry(const struct broadcast *b, int own)
{
    for (int hop = 0; hop < b->blocks; hop++) {
        int i = pki_before(own, hop, b->blocks);
        int from = hop == 0 ? pki_site_rank(&b->s, b->s.root_host, b->s.place) : owner_of(b, i, b->s.place);
        struct pki_ref block = block_of(b, false, b->s.place, i);
        uint32_t received = pki_plan_recv(b->plan, from, block);

        for (int other = 1; hop == 0 && other < b->blocks; other++) {
            pki_plan_send(b->plan, owner_of(b, pki_after(own, other, b->blocks), b->s.place), block);
            pki_plan_after(b->plan, received);
        }
        pki_hier_send_around(b->plan, &b->s, block, received);
    }
}

static void on_another_host(const struct broadcast *b)
{
    int own = pki_before(b->s.host, b->s.root_host + 1, b->s.hosts);

    if (b->s.place < b->carriers)
        carry(b, own);
    for (int carrier = 0; carrier < b->carriers; carrier++)
        for (int hop = 0; carrier != b->s.place && hop < b->blocks; hop++)
            pki_plan_recv(b->plan, pki_site_rank(&b->s, b->s.host, carrier),
                          block_of(b, false, carrier, pki_before(own, hop, b->blocks)));
}

/* Each host's link carries the data once, the root's host's too. Inside one host alone this is the flat algorithm. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    struct broadcast b = { .plan = plan, .s = pki_site_rooted(plan) };

    (void)size;
    b.carriers = b.s.hosts > 1 ? b.s.least : 1;
    b.blocks = b.s.hosts > 1 ? b.s.hosts - 1 : 1;
    pki_plan_cut(plan, (uint32_t)(b.carriers * b.blocks), (uint32_t)(b.carriers * b.blocks));
    if (rank == root)
        from_the_root(&b, in_place);
    else if (b.s.host != b.s.root_host)
        on_another_host(&b);
    else
        beside_the_root(&b, root);
}

const struct pki_algorithm pki_hier_broadcast = { .name = "hier", .coll = PKI_COLL_BROADCAST, .build_rooted = build };

/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/hier.h"
#include "coll/ring.h"

/* A block of another host comes to one rank of this one, which passes it on. */
static void take(struct pki_plan *plan, const struct pki_site *s, int owner)
{
    int carrier = pki_site_carrier(s, s->host, owner);
    uint32_t received = pki_plan_recv(plan, carrier == s->rank ? owner : carrier, pki_out((uint32_t)owner));

    if (carrier == s->rank)
        pki_hier_send_around(plan, s, pki_out((uint32_t)owner), received);
}

/*
 * Each rank hands its block to one rank of each other host, and to all of its own; whoever receives a block from another host
 * hands it on within its own. Each host's link carries a block once, by the same number of ranks where hosts are of one size. Two
 * hops.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct pki_site s = pki_site(plan);

    (void)size;
    if (!in_place)
        pki_plan_copy(plan, pki_out((uint32_t)rank), pki_in(0));
    for (int hop = 1; hop < s.hosts; hop++)
        pki_plan_send(plan, pki_site_carrier(&s, pki_after(s.host, hop, s.hosts), rank), pki_in(0));
    pki_hier_send_around(plan, &s, pki_in(0), PKI_NO_STEP);
    for (int hop = 1; hop < s.ranks; hop++) {
        int from = pki_site_rank(&s, s.host, pki_before(s.place, hop, s.ranks));

        pki_plan_recv(plan, from, pki_out((uint32_t)from));
    }
    for (int hop = 1; hop < s.hosts; hop++) {
        int host = pki_before(s.host, hop, s.hosts);

        for (int place = 0; place < pki_site_ranks(&s, host); place++)
            take(plan, &s, pki_site_rank(&s, host, place));
    }
}

const struct pki_algorithm pki_hier_allgather = { .name = "hier", .coll = PKI_COLL_ALLGATHER, .build = build };
const struct pki_algorithm pki_hier_allgatherv = { .name = "hier", .coll = PKI_COLL_ALLGATHERV, .build = build };

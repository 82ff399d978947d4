/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/hier.h"
#include "coll/ring.h"

#define ROUNDS_MAX 16

/* The ranks of this host have come when all these receives have ended; `but`: whoever is told this knows of itself. */
static void after_receives(struct pki_plan *plan, const struct pki_site *s, uint32_t first, int but)
{
    for (int place = 1; place < s->ranks; place++)
        if (place != but)
            pki_plan_after(plan, first + (uint32_t)place - 1);
}

/* Dissemination among the first ranks of all hosts, as in doubling_barrier.c. Returns the number of receives, *heard. */
static int ask_hosts(struct pki_plan *plan, const struct pki_site *s, uint32_t arrived, uint32_t heard[ROUNDS_MAX])
{
    int round = 0;

    for (int distance = 1; distance < s->hosts; distance *= 2) {
        pki_plan_send(plan, pki_site_rank(s, pki_after(s->host, distance, s->hosts), 0), pki_in(0));
        after_receives(plan, s, arrived, 0);
        for (int i = 0; i < round; i++)
            if ((1 << i) + distance < s->hosts)
                pki_plan_after(plan, heard[i]);
        heard[round++] = pki_plan_recv(plan, pki_site_rank(s, pki_before(s->host, distance, s->hosts), 0), pki_out(0));
    }
    return round;
}

/* One rank of each host waits for its others, hears of the other hosts, and lets its own go: log h hops between hosts, two
 * within. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct pki_site s = pki_site(plan);
    int leader = pki_site_rank(&s, s.host, 0), rounds;
    uint32_t heard[ROUNDS_MAX], arrived = 0;

    (void)size;
    (void)in_place;
    if (rank != leader) {
        pki_plan_send(plan, leader, pki_in(0));
        pki_plan_recv(plan, leader, pki_out(0));
        return;
    }
    for (int place = 1; place < s.ranks; place++) {
        uint32_t step = pki_plan_recv(plan, pki_site_rank(&s, s.host, place), pki_out(0));

        arrived = place == 1 ? step : arrived;
    }
    rounds = ask_hosts(plan, &s, arrived, heard);
    for (int place = 1; place < s.ranks; place++) {
        pki_plan_send(plan, pki_site_rank(&s, s.host, place), pki_in(0));
        after_receives(plan, &s, arrived, place);
        for (int i = 0; i < rounds; i++)
            pki_plan_after(plan, heard[i]);
    }
}

const struct pki_algorithm pki_hier_barrier = { .name = "hier", .coll = PKI_COLL_BARRIER, .build = build };

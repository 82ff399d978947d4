/* SPDX-License-Identifier: Apache-2.0 */
/* Plans across hosts: the right result for any number of ranks on each host in any order, and no byte more between hosts than has to be. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "coll/hosts.h"
#include "plan_model.h"

#define CASES_SMALL 1000
#define RANKS_SMALL 10
#define CASES_LARGE 30
#define RANKS_LARGE 64

static bool is_across_hosts(const struct pki_algorithm *algorithm)
{
    return strcmp(algorithm->name, "hier") == 0 || strcmp(algorithm->name, "leader") == 0;
}

static int algorithms(const struct pki_algorithm **list)
{
    int n = 0;

    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++)
        if (is_across_hosts(*a))
            list[n++] = *a;
    return n;
}

/* Of one size in rank order, of one size in turn, or anyhow. */
static struct pki_hosts *random_hosts(uint64_t *random, int size, char *text)
{
    int host_of[RANKS_LARGE], n = 1 + (int)(plan_random(random) % (uint64_t)size), kind = (int)(plan_random(random) % 4);
    struct pki_hosts *hosts;

    for (int r = 0; r < size; r++) {
        int draw = (int)(plan_random(random) % (uint64_t)n);

        host_of[r] = kind == 0 ? r / ((size + n - 1) / n) : kind == 1 ? r % n : draw;
        text[r] = (char)('0' + host_of[r]);
    }
    text[size] = '\0';
    cr_assert(pki_hosts_make(host_of, size, &hosts) == PK_OK);
    return hosts;
}

static struct plan_case random_case(uint64_t *random, int size)
{
    static const uint32_t places[] = { 0, PLAN_ALL_IN_PLACE };
    struct plan_case c = { .size = size, .root = (int)(plan_random(random) % (uint64_t)size) };
    uint64_t draw = plan_random(random);

    c.in_place = draw % 3 < 2 ? places[draw % 3] : (uint32_t)(draw >> 32);
    c.count = plan_random(random) % 5 == 0 ? plan_random(random) % 2 : plan_random(random) % (uint64_t)(4 * size);
    c.chunk = 1 + plan_random(random) % (1 + c.count / 3);
    c.lengths = plan_random(random);
    return c;
}

static void one_case(const struct pki_algorithm *algorithm, uint64_t *random, int size, bool hazards)
{
    struct plan_case c = random_case(random, size);
    uint64_t seed = plan_random(random);
    struct plan_world world;
    char text[160] = "", map[RANKS_LARGE + 1];
    struct pki_hosts *hosts = random_hosts(random, size, map);

    c.hosts = hosts;
    cr_assert(plan_world_make(&world, algorithm, &c));
    cr_assert(plan_run(&world, seed, text, sizeof text), "%s %d, hosts %s, root %d, in place %#x, count %zu, chunk %zu: %s",
              algorithm->name, (int)algorithm->coll, map, c.root, (unsigned)c.in_place, c.count, c.chunk, text);
    if (hazards)
        cr_assert_not(plan_find_hazard(&world, text, sizeof text), "%s %d, hosts %s, root %d, in place %#x: %s", algorithm->name,
                      (int)algorithm->coll, map, c.root, (unsigned)c.in_place, text);
    plan_world_free(&world);
    pki_hosts_free(hosts);
}

Test(hosts, random_maps)
{
    const struct pki_algorithm *list[32];
    uint64_t random = 5;
    int n = algorithms(list);

    cr_assert(n >= 9);
    for (int i = 0; i < CASES_SMALL; i++)
        one_case(list[i % n], &random, 1 + (int)(plan_random(&random) % RANKS_SMALL), i % 4 == 0);
}

Test(hosts, random_maps_of_many_ranks)
{
    const struct pki_algorithm *list[32];
    uint64_t random = 6;
    int n = algorithms(list);

    for (int i = 0; i < CASES_LARGE; i++)
        one_case(list[i % n], &random, RANKS_SMALL + (int)(plan_random(&random) % (RANKS_LARGE - RANKS_SMALL + 1)), false);
}

Test(hosts, who_sits_where)
{
    static const int host_of[] = { 7, 3, 7, 7, 0, 3 };
    struct pki_plan plan = { .rank = 3, .size = 6, .root = 2 };
    struct pki_hosts *hosts;
    struct pki_site s;

    cr_assert(pki_hosts_make(host_of, 6, &hosts) == PK_OK);
    cr_assert(hosts->n == 3 && hosts->least == 1);
    plan.hosts = hosts;
    s = pki_site(&plan);
    cr_assert(s.host == 0 && s.place == 2 && s.ranks == 3 && s.hosts == 3);
    cr_assert(pki_site_rank(&s, 0, 2) == 3 && pki_site_rank(&s, 1, 1) == 5 && pki_site_rank(&s, 2, 0) == 4);
    cr_assert(pki_site_carrier(&s, 0, 3) == 3 && pki_site_carrier(&s, 1, 3) == 1 && pki_site_carrier(&s, 0, 5) == 2);
    s = pki_site_rooted(&plan);
    cr_assert(s.root_host == 0 && s.place == 1 && pki_site_rank(&s, 0, 0) == 2 && pki_site_rank(&s, 0, 2) == 0);
    plan.hosts = NULL;
    s = pki_site_rooted(&plan);
    cr_assert(s.hosts == 1 && s.ranks == 6 && s.place == 1 && pki_site_rank(&s, 0, 5) == 1);
    pki_hosts_free(hosts);
}

/* ---- what goes between hosts ---- */

static void count_traffic(const struct plan_world *world, const struct pki_hosts *hosts, size_t *out, size_t *in)
{
    for (int rank = 0; rank < world->c.size; rank++)
        for (uint32_t i = 0; i < world->plans[rank]->nsteps; i++) {
            const struct pki_step *s = &world->plans[rank]->steps[i];
            int from = hosts->host[rank];

            if (s->kind != PKI_STEP_SEND || hosts->host[s->peer] == from)
                continue;
            out[from] += plan_block(world, rank, s->src).count;
            in[hosts->host[s->peer]] += plan_block(world, rank, s->src).count;
        }
}

/* The most that may go into a host, and out of it: `n` hosts of `each` ranks, `count` as the collective counts. */
static size_t most_of(enum pki_coll coll, size_t n, size_t each, size_t count)
{
    switch (coll) {
    case PKI_COLL_ALLREDUCE:
        return 2 * (n - 1) * count / n;
    case PKI_COLL_ALLGATHER:
    case PKI_COLL_REDUCE_SCATTER:
        return (n - 1) * each * count;
    case PKI_COLL_BARRIER:
        return 0;
    default:
        return n > 1 ? count : 0;
    }
}

/* Not even where the ranks of hosts are not neighbours. */
Test(hosts, links_carry_the_least)
{
    const struct pki_algorithm *list[32];
    int found = algorithms(list);

    for (int i = 0; i < found * 18; i++) {
        const struct pki_algorithm *a = list[i / 18];
        int n = 1 + i % 18 / 3, each = 1 + i % 3, size = n * each, host_of[18];
        struct plan_case c = { .size = size, .root = size / 2, .count = (size_t)(n > 1 ? n * (n - 1) * each : each), .chunk = 5 };
        size_t out[6] = { 0 }, in[6] = { 0 };
        struct pki_hosts *hosts;
        struct plan_world world;

        if (strcmp(a->name, "leader") == 0 || a->coll >= PKI_COLL_ALLGATHERV)
            continue;
        for (int r = 0; r < size; r++)
            host_of[r] = i % 2 != 0 ? r % n : r / each;
        cr_assert(pki_hosts_make(host_of, size, &hosts) == PK_OK);
        c.hosts = hosts;
        cr_assert(plan_world_make(&world, a, &c));
        count_traffic(&world, hosts, out, in);
        for (int h = 0; h < n; h++)
            cr_expect(out[h] <= most_of(a->coll, (size_t)n, (size_t)each, c.count) &&
                          in[h] <= most_of(a->coll, (size_t)n, (size_t)each, c.count),
                      "collective %d, %d hosts of %d: %zu out of host %d, %zu in", (int)a->coll, n, each, out[h], h, in[h]);
        plan_world_free(&world);
        pki_hosts_free(hosts);
    }
}

/* Who leads sends all there is: few messages, and one from each host where it can be. */
Test(hosts, leaders_send_few_messages)
{
    static const int host_of[] = { 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3 };
    static const struct {
        enum pki_coll coll;
        const char *name;
        int messages;
    } expected[] = { { PKI_COLL_ALLREDUCE, "leader", 12 },
                     { PKI_COLL_BROADCAST, "leader", 3 },
                     { PKI_COLL_REDUCE, "leader", 3 },
                     { PKI_COLL_BARRIER, "hier", 8 } };
    struct pki_hosts *hosts;

    cr_assert(pki_hosts_make(host_of, 16, &hosts) == PK_OK);
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++) {
        int messages = 0;

        for (int rank = 0; rank < 16; rank++) {
            struct pki_plan *plan;

            cr_assert(pki_plan_make(pki_algorithm_find(expected[k].coll, expected[k].name), hosts, rank, 16, 5, false, &plan) ==
                      PK_OK);
            for (uint32_t i = 0; i < plan->nsteps; i++)
                messages += plan->steps[i].kind == PKI_STEP_SEND && host_of[plan->steps[i].peer] != host_of[rank];
            pki_plan_free(plan);
        }
        cr_expect(messages == expected[k].messages, "%s %d: %d", expected[k].name, (int)expected[k].coll, messages);
    }
    pki_hosts_free(hosts);
}

/* ---- the same bits ---- */

Test(hosts, allreduce_gives_the_same_bits)
{
    static const int host_of[] = { 0, 1, 1, 2, 0, 3, 4, 5, 6, 7, 8, 8 };

    for (int k = 0; k < 10; k++) {
        const struct pki_algorithm *a = pki_algorithm_find(PKI_COLL_ALLREDUCE, k % 2 != 0 ? "hier" : "leader");
        int size = k < 6 ? 7 : 12;
        uint64_t first = 0;
        struct pki_hosts *hosts;

        cr_assert(pki_hosts_make(host_of, size, &hosts) == PK_OK);
        for (uint64_t seed = 1; seed < 5; seed++) {
            struct plan_case c = {
                .size = size, .in_place = k % 3 == 0 ? PLAN_ALL_IN_PLACE : 0, .count = 50, .chunk = 2, .hosts = hosts
            };
            struct plan_world world;
            char text[128] = "";

            cr_assert(plan_world_make(&world, a, &c));
            world.no_sum = true; /* and that all ranks have the same is checked */
            world.inputs = 99;
            cr_assert(plan_run(&world, seed, text, sizeof text), "%s: %s", a->name, text);
            cr_expect(first == 0 || first == world.digest, "%s, %d ranks", a->name, size);
            first = world.digest;
            plan_world_free(&world);
        }
        pki_hosts_free(hosts);
    }
}

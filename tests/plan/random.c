/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm, thousands of random cases: the right result whatever the order in which ranks, steps and chunks go on. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "plan_model.h"

#define CASES 1200
#define SIZE_MAX_RANKS 9
#define MANY_CASES 78
#define MANY_EVERY 6 /* of them one on up to MANY_RANKS ranks, the others on up to SOME_RANKS: time grows with their cube */
#define SOME_RANKS 20
#define MANY_RANKS 64
#define CHUNKS_MAX 5

static size_t random_count(uint64_t *random, int size)
{
    switch (plan_random(random) % 6) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
        return (size_t)size - 1;
    case 3:
        return (size_t)size * (1 + plan_random(random) % 4);
    default:
        return plan_random(random) % 40;
    }
}

/* None, all or some of the ranks in place. */
static uint32_t random_places(uint64_t *random)
{
    uint64_t draw = plan_random(random);

    return draw % 3 == 0 ? 0 : draw % 3 == 1 ? PLAN_ALL_IN_PLACE : (uint32_t)(draw >> 32);
}

/* Elements in the longest thing a step works on. */
static size_t longest(const struct plan_world *world)
{
    size_t most = 0;

    for (int rank = 0; rank < world->c.size; rank++) {
        const struct pki_plan *plan = world->plans[rank];

        for (uint32_t i = 0; i < plan->nsteps; i++) {
            const struct pki_step *s = &plan->steps[i];
            size_t count = plan_block(world, rank, s->kind == PKI_STEP_SEND ? s->src : s->dst).count;

            most = count > most ? count : most;
        }
    }
    return most;
}

static int algorithms(void)
{
    int n = 0;

    while (pki_algorithms[n] != NULL)
        n++;
    return n;
}

static const char *describe(const struct plan_world *world)
{
    static char text[160];
    const struct plan_case *c = &world->c;

    snprintf(text, sizeof text, "%s %d, %d ranks, root %d, in place %#x, count %zu, chunk %zu, lengths %llu",
             world->algorithm->name, (int)world->algorithm->coll, c->size, c->root, (unsigned)c->in_place, c->count, c->chunk,
             (unsigned long long)c->lengths);
    return text;
}

/* On some number of ranks from `least` to `most`. */
static void one_case(const struct pki_algorithm *algorithm, int least, int most, uint64_t *random)
{
    struct plan_case c = { .size = least + (int)(plan_random(random) % (uint64_t)(most - least + 1)), .chunk = 1 };
    size_t chunks = 1 + plan_random(random) % CHUNKS_MAX;
    uint64_t seed = plan_random(random);
    struct plan_world world;
    char text[128] = "";

    c.root = (int)(plan_random(random) % (uint64_t)c.size);
    c.in_place = random_places(random);
    c.count = random_count(random, c.size);
    c.lengths = plan_random(random);
    cr_assert(plan_world_make(&world, algorithm, &c));
    world.c.chunk = (longest(&world) + chunks - 1) / chunks;
    if (world.c.chunk == 0)
        world.c.chunk = 1;
    cr_assert(plan_run(&world, seed, text, sizeof text), "%s, seed %llu: %s", describe(&world), (unsigned long long)seed, text);
    plan_world_free(&world);
}

Test(plan, random_schedules)
{
    uint64_t random = 20261121;
    int n = algorithms();

    for (int i = 0; i < CASES; i++)
        one_case(pki_algorithms[i % n], 1, SIZE_MAX_RANKS, &random);
}

/* As many ranks as a host may have: sums of several reductions, trees of several levels, all that few ranks do not show. */
Test(plan, random_schedules_of_many_ranks)
{
    uint64_t random = 20261122;
    int n = algorithms();

    for (int i = 0; i < MANY_CASES; i++)
        one_case(pki_algorithms[i / MANY_EVERY % n], SIZE_MAX_RANKS + 1, i % MANY_EVERY == 0 ? MANY_RANKS : SOME_RANKS, &random);
}

static void no_hazard(const struct pki_algorithm *algorithm, int size, int root)
{
    static const size_t counts[] = { 1, 7, 24 };
    static const uint32_t places[] = { 0, PLAN_ALL_IN_PLACE, 0x2d };

    for (size_t k = 0; k < 9; k++) {
        struct plan_case c = { size, root, places[k / 3], counts[k % 3], 3, k + (uint64_t)root, NULL };
        struct plan_world world;
        char text[128] = "";

        if (algorithm->coll == PKI_COLL_ALLREDUCE || algorithm->coll == PKI_COLL_REDUCE ||
            algorithm->coll == PKI_COLL_BROADCAST) /* may be cut */
            c.count *= (size_t)size;
        cr_assert(plan_world_make(&world, algorithm, &c));
        cr_assert_not(plan_find_hazard(&world, text, sizeof text), "%s: %s", describe(&world), text);
        plan_world_free(&world);
    }
}

Test(plan, no_hazard)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++)
        for (int size = 1; size <= SIZE_MAX_RANKS; size++)
            for (int root = 0; root < (plan_is_rooted(*a) ? size : 1); root++)
                no_hazard(*a, size, root);
}

Test(plan, no_hazard_among_many_ranks)
{
    static const int sizes[] = { 16, 17, 31, 32, 33 };

    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        bool across = strcmp((*a)->name, "hier") == 0 || strcmp((*a)->name, "leader") == 0; /* hosts.c has them, on hosts */

        for (size_t k = 0; !across && k < sizeof sizes / sizeof sizes[0]; k++) {
            struct plan_case c = { sizes[k], plan_is_rooted(*a) ? sizes[k] / 3 : 0, k % 2 ? PLAN_ALL_IN_PLACE : 0x2d, 7, 4, k,
                                   NULL };
            struct plan_world world;
            char text[128] = "";

            cr_assert(plan_world_make(&world, *a, &c));
            cr_assert_not(plan_find_hazard(&world, text, sizeof text), "%s: %s", describe(&world), text);
            plan_world_free(&world);
        }
    }
}

/* ---- the same bits ---- */

static uint64_t digest(const char *name, int size, uint32_t in_place, uint64_t seed)
{
    struct plan_case c = { .size = size, .in_place = in_place, .count = (size_t)size * 2 + 1, .chunk = 2 };
    struct plan_world world;
    char text[128] = "";
    uint64_t result;

    cr_assert(plan_world_make(&world, pki_algorithm_find(PKI_COLL_ALLREDUCE, name), &c));
    world.no_sum = true;
    world.inputs = 99;
    cr_assert(plan_run(&world, seed, text, sizeof text), "allreduce %s: %s", describe(&world), text);
    result = world.digest;
    plan_world_free(&world);
    return result;
}

/* Operands are mixed in a way that shows their order: all ranks have the same result, whatever the schedule. */
Test(plan, allreduce_gives_the_same_bits)
{
    static const char *const names[] = { "direct", "flat", "ring", "doubling", "halving", "staggered", "hier", "leader" };

    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        for (int size = 1; size <= 10; size++) {
            uint64_t first = digest(names[k], size, 0, 1);

            for (uint64_t seed = 2; seed < 5; seed++)
                cr_expect_eq(digest(names[k], size, 0, seed), first, "%s, %d ranks", names[k], size);
        }
    }
}

/* And it does not depend on the size of the message where both sum up in rank order. */
Test(plan, one_shot_direct_and_staggered_give_the_same_bits)
{
    for (int size = 1; size <= 18; size += size < 5 ? 1 : 4) {
        cr_expect_eq(digest("flat", size, 0, 1), digest("direct", size, 0, 1), "%d ranks", size);
        cr_expect_eq(digest("staggered", size, 0, 1), digest("direct", size, 0, 1), "%d ranks", size);
    }
    cr_expect_neq(digest("ring", 5, 0, 1), digest("direct", 5, 0, 1)); /* so the order does show */
}

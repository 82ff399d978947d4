/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm, thousands of random cases: the right result whatever the order in which ranks, steps and chunks go on. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "plan_model.h"

#define CASES 12000
#define SIZE_MAX_RANKS 9
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
        return plan_random(random) % 60;
    }
}

/* Elements in the longest block of the plans. */
static size_t longest(const struct pki_algorithm *algorithm, size_t count, int size)
{
    size_t first, length;

    if (algorithm->coll == PKI_COLL_ALLGATHER)
        return count;
    pki_block_range(count, (uint32_t)size, 0, &first, &length);
    return length;
}

static int algorithms(void)
{
    int n = 0;

    while (pki_algorithms[n] != NULL)
        n++;
    return n;
}

Test(plan, random_schedules)
{
    uint64_t random = 20261121;
    int n = algorithms();

    for (int i = 0; i < CASES; i++) {
        const struct pki_algorithm *algorithm = pki_algorithms[i % n];
        int size = 1 + (int)(plan_random(&random) % SIZE_MAX_RANKS);
        bool in_place = plan_random(&random) & 1;
        size_t count = random_count(&random, size);
        size_t chunks = 1 + plan_random(&random) % CHUNKS_MAX;
        size_t chunk = (longest(algorithm, count, size) + chunks - 1) / chunks;
        uint64_t seed = plan_random(&random);
        struct plan_world world;
        char text[128] = "";

        cr_assert(plan_world_make(&world, algorithm, size, in_place, count, chunk == 0 ? 1 : chunk));
        cr_assert(plan_run(&world, seed, text, sizeof text), "%s %d, %d ranks, count %zu, chunk %zu, in place %d, seed %llu: %s",
                  algorithm->name, (int)algorithm->coll, size, count, chunk, in_place, (unsigned long long)seed, text);
        plan_world_free(&world);
    }
}

Test(plan, no_hazard)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        for (int variant = 0; variant < SIZE_MAX_RANKS * 2 * 4; variant++) {
            static const size_t counts[4] = { 1, 7, 24, 61 };
            int size = 1 + variant % SIZE_MAX_RANKS;
            size_t count = counts[variant / SIZE_MAX_RANKS % 4];
            struct plan_world world;
            char text[128] = "";

            cr_assert(plan_world_make(&world, *a, size, variant >= SIZE_MAX_RANKS * 4, count, 3));
            cr_assert_not(plan_find_hazard(&world, text, sizeof text), "%s %d, %d ranks, count %zu, in place %d: %s", (*a)->name,
                          (int)(*a)->coll, size, count, world.in_place, text);
            plan_world_free(&world);
        }
    }
}

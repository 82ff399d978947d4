/* SPDX-License-Identifier: Apache-2.0 */
/* Every dependency is needed: without it the hazard search finds something, and some random schedule goes wrong. */
#include <criterion/criterion.h>
#include <string.h>

#include "coll/hosts.h"
#include "plan_model.h"

#define SCHEDULES 1500
#define SIZES_ALL 6 /* up to here all algorithms */
#define SIZES_LOG 9 /* up to here trees, and those that halve and double */

/* What dynamic runs and the static search made of the mutants. */
struct score {
    int mutants, hazards, wrong;
};

static bool goes_wrong(struct plan_world *world)
{
    char text[128];

    for (uint64_t seed = 1; seed <= SCHEDULES; seed++)
        if (!plan_run(world, seed, text, sizeof text))
            return true;
    return false;
}

static void judge(struct plan_world *world, struct score *score)
{
    char text[128];

    score->mutants++;
    score->hazards += plan_find_hazard(world, text, sizeof text);
    score->wrong += goes_wrong(world);
}

/* Blocks of two chunks and a bit. */
static struct plan_case make_case(const struct pki_algorithm *algorithm, int size, int root, bool in_place)
{
    enum pki_coll coll = algorithm->coll;
    bool cut = coll == PKI_COLL_ALLREDUCE || coll == PKI_COLL_REDUCE || coll == PKI_COLL_BROADCAST;

    return (struct plan_case){ .size = size,
                               .root = root,
                               .in_place = in_place ? PLAN_ALL_IN_PLACE : 0,
                               .count = cut ? (size_t)size * 4 + 1 : 5,
                               .chunk = 2 };
}

/* Take the dependencies of a step away one by one. */
static void try_step(const struct pki_algorithm *algorithm, const struct plan_case *c, int rank, uint32_t step,
                     struct score *score)
{
    struct plan_world world;
    uint32_t deps = 1;

    for (uint32_t dep = 0; dep < deps; dep++) {
        cr_assert(plan_world_make(&world, algorithm, c));
        deps = world.plans[rank]->steps[step].deps;
        plan_remove_dep(world.plans[rank], step, dep);
        judge(&world, score);
        plan_world_free(&world);
    }
}

/* Let a step go on chunk by chunk that has to wait for whole steps. */
static void try_chunks(const struct pki_algorithm *algorithm, const struct plan_case *c, int rank, uint32_t step,
                       struct score *score)
{
    struct plan_world world;

    cr_assert(plan_world_make(&world, algorithm, c));
    world.plans[rank]->steps[step].whole = false;
    judge(&world, score);
    plan_world_free(&world);
}

static struct score try_all(const struct pki_algorithm *algorithm, const struct plan_case *c)
{
    struct score score = { 0, 0, 0 };
    struct plan_world world;

    cr_assert(plan_world_make(&world, algorithm, c));
    for (int rank = 0; rank < c->size; rank++) {
        for (uint32_t i = 0; i < world.plans[rank]->nsteps; i++) {
            const struct pki_step *step = &world.plans[rank]->steps[i];

            if (step->deps > 0)
                try_step(algorithm, c, rank, i, &score);
            if (step->whole)
                try_chunks(algorithm, c, rank, i, &score);
        }
    }
    plan_world_free(&world);
    return score;
}

static int try_size(const struct pki_algorithm *algorithm, const struct pki_hosts *hosts, int size)
{
    int mutants = 0, roots = plan_is_rooted(algorithm) ? size : 1;

    for (int root = 0; root<roots; root += size> SIZES_ALL ? 3 : size > 4 ? 2 : 1) {
        /* Of the larger ones by turns in place and not: as many steps, and each has its plans. */
        for (int in_place = size > 4 ? (size + root) / 2 % 2 : 0; in_place<2; in_place += size> 4 ? 2 : 1) {
            struct plan_case c = make_case(algorithm, size, root, in_place);
            struct score score;

            c.hosts = hosts;
            score = try_all(algorithm, &c);
            mutants += score.mutants;
            cr_expect_eq(score.hazards, score.mutants, "%s %d, %d ranks, root %d, in place %d: a hazard in %d of %d mutants",
                         algorithm->name, (int)algorithm->coll, size, root, in_place, score.hazards, score.mutants);
            cr_expect_eq(score.wrong, score.mutants, "%s %d, %d ranks, root %d, in place %d: wrong in %d of %d mutants",
                         algorithm->name, (int)algorithm->coll, size, root, in_place, score.wrong, score.mutants);
        }
    }
    return mutants;
}

/* Everything goes straight from IN to OUT, or nothing goes at all. */
static bool has_no_dependencies(const struct pki_algorithm *algorithm)
{
    enum pki_coll coll = algorithm->coll;
    bool direct = strcmp(algorithm->name, "direct") == 0;

    if (strcmp(algorithm->name, "hier") == 0 || strcmp(algorithm->name, "leader") == 0) /* of one host */
        return coll == PKI_COLL_BROADCAST || coll == PKI_COLL_ALLGATHER;
    if (coll == PKI_COLL_BROADCAST)
        return strcmp(algorithm->name, "flat") == 0;
    return direct &&
           (coll == PKI_COLL_ALLGATHER || coll == PKI_COLL_GATHER || coll == PKI_COLL_SCATTER || coll == PKI_COLL_BARRIER);
}

/* V-forms have the plans of the others (see shape.c). */
Test(plan, each_dependency_is_needed)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        const char *name = (*a)->name;
        bool log = strcmp(name, "tree") == 0 || strcmp(name, "doubling") == 0 || strcmp(name, "halving") == 0;
        int mutants = 0;

        if ((*a)->coll >= PKI_COLL_ALLGATHERV)
            continue;
        for (int size = 2; size <= (log ? SIZES_LOG : SIZES_ALL); size++)
            mutants += try_size(*a, NULL, size);
        cr_log_info("%s %d: %d mutants", name, (int)(*a)->coll, mutants);
        cr_expect_eq(mutants == 0, has_no_dependencies(*a), "%s %d: %d mutants", name, (int)(*a)->coll, mutants);
    }
}

/* Hosts of one size and of several, in rank order and not; and more than leaders send to directly. */
Test(plan, each_dependency_is_needed_across_hosts, .timeout = 110)
{
    static const char *const maps[] = { "01", "0011", "0101", "0001", "01102", "011222", "010212", "0123456788" };

    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        if ((strcmp((*a)->name, "hier") != 0 && strcmp((*a)->name, "leader") != 0) || (*a)->coll >= PKI_COLL_ALLGATHERV)
            continue;
        for (size_t m = 0; m < sizeof maps / sizeof *maps; m++) {
            int host_of[10], size = (int)strlen(maps[m]);
            struct pki_hosts *hosts;

            if (size > 6 && ((*a)->coll != PKI_COLL_ALLREDUCE || strcmp((*a)->name, "leader") != 0))
                continue;
            for (int r = 0; r < size; r++)
                host_of[r] = maps[m][r] - '0';
            cr_assert(pki_hosts_make(host_of, size, &hosts) == PK_OK);
            (void)try_size(*a, hosts, size);
            pki_hosts_free(hosts);
        }
    }
}

/* The search is no yes-man either way: a plan whose wait points at the wrong step is found too. */
Test(plan, misdirected_dependency_is_found)
{
    struct plan_case c = { .size = 4, .in_place = PLAN_ALL_IN_PLACE, .count = 17, .chunk = 2 };
    struct plan_world world;
    char text[128] = "";
    bool changed = false;

    cr_assert(plan_world_make(&world, pki_algorithm_find(PKI_COLL_ALLREDUCE, "ring"), &c));
    for (uint32_t i = 0; i < world.plans[1]->nsteps && !changed; i++) {
        struct pki_step *step = &world.plans[1]->steps[i];

        if (step->kind == PKI_STEP_SEND && step->deps > 0) {
            world.plans[1]->deps[step->first_dep] = 0;
            changed = true;
        }
    }
    cr_assert(changed);
    cr_expect(plan_find_hazard(&world, text, sizeof text));
    plan_world_free(&world);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Every dependency is needed: without it the hazard search finds something, and some random schedule goes wrong. */
#include <criterion/criterion.h>
#include <string.h>

#include "plan_model.h"

#define SCHEDULES 400

/* What dynamic runs and the static search made of the mutants. */
struct score {
    int mutants, hazards, wrong;
};

static bool goes_wrong(const struct plan_world *world)
{
    char text[128];

    for (uint64_t seed = 1; seed <= SCHEDULES; seed++)
        if (!plan_run(world, seed, text, sizeof text))
            return true;
    return false;
}

/* One mutant: dependency `dep` of a step of `rank` is taken away. */
static void try_mutant(const struct pki_algorithm *algorithm, int size, bool in_place, int rank, uint32_t step, uint32_t dep,
                       struct score *score)
{
    struct plan_world world;
    char text[128];

    cr_assert(plan_world_make(&world, algorithm, size, in_place, (size_t)size * 4 + 1, 2));
    plan_remove_dep(world.plans[rank], step, dep);
    score->mutants++;
    score->hazards += plan_find_hazard(&world, text, sizeof text);
    score->wrong += goes_wrong(&world);
    plan_world_free(&world);
}

static struct score try_all(const struct pki_algorithm *algorithm, int size, bool in_place)
{
    struct score score = { 0, 0, 0 };

    for (int rank = 0; rank < size; rank++) {
        struct pki_plan *plan;

        cr_assert_eq(pki_plan_make(algorithm, rank, size, in_place, &plan), PK_OK);
        for (uint32_t step = 0; step < plan->nsteps; step++)
            for (uint32_t dep = 0; dep < plan->steps[step].deps; dep++)
                try_mutant(algorithm, size, in_place, rank, step, dep, &score);
        pki_plan_free(plan);
    }
    return score;
}

Test(plan, each_dependency_is_needed)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        int mutants = 0;

        for (int size = 2; size <= 6; size++) {
            for (int in_place = 0; in_place < 2; in_place++) {
                struct score score = try_all(*a, size, in_place);

                mutants += score.mutants;
                cr_expect_eq(score.hazards, score.mutants, "%s %d, %d ranks, in place %d: a hazard in %d of %d mutants",
                             (*a)->name, (int)(*a)->coll, size, in_place, score.hazards, score.mutants);
                cr_expect_eq(score.wrong, score.mutants, "%s %d, %d ranks, in place %d: wrong in %d of %d mutants", (*a)->name,
                             (int)(*a)->coll, size, in_place, score.wrong, score.mutants);
            }
        }
        /* The direct allgather has none at all. */
        cr_expect(mutants > 0 || ((*a)->coll == PKI_COLL_ALLGATHER && strcmp((*a)->name, "direct") == 0));
    }
}

/* The search is no yes-man either way: a plan whose wait points at the wrong step is found too. */
Test(plan, misdirected_dependency_is_found)
{
    struct plan_world world;
    char text[128] = "";
    bool changed = false;

    cr_assert(plan_world_make(&world, pki_algorithm_find(PKI_COLL_ALLREDUCE, "ring"), 4, true, 17, 2));
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_plans(struct sim_world *world)
{
    uint64_t total = 0;

    world->plans = calloc((size_t)world->size, sizeof *world->plans);
    world->first = calloc((size_t)world->size + 1, sizeof *world->first);
    if (world->plans == NULL || world->first == NULL)
        return false;
    for (int rank = 0; rank < world->size; rank++) {
        if (pki_plan_make(world->algorithm, world->hosts, rank, world->size, world->root, world->in_place, &world->plans[rank]) !=
            PK_OK)
            return false;
        total += world->plans[rank]->nsteps;
        if (total > UINT32_MAX)
            return false;
        world->first[rank + 1] = (uint32_t)total;
    }
    world->nsteps = (uint32_t)total;
    world->steps = calloc((size_t)total + 1, sizeof *world->steps);
    return world->steps != NULL;
}

/* Steps that depend on each step: counted, then filled in. */
static bool find_waiters(struct sim_world *world)
{
    uint64_t total = 0;

    for (uint32_t s = 0; s < world->nsteps; s++) {
        const struct sim_step *step = &world->steps[s];
        const uint32_t *deps = world->plans[step->rank]->deps + step->plan->first_dep;

        for (uint32_t d = 0; d < step->plan->deps; d++)
            world->steps[world->first[step->rank] + deps[d]].waiters++;
        total += step->plan->deps;
    }
    world->waiters = malloc((size_t)(total + 1) * sizeof *world->waiters);
    if (world->waiters == NULL || total > UINT32_MAX)
        return false;
    total = 0;
    for (uint32_t s = 0; s < world->nsteps; s++) {
        world->steps[s].first_waiter = (uint32_t)total;
        total += world->steps[s].waiters;
        world->steps[s].waiters = 0;
    }
    for (uint32_t s = 0; s < world->nsteps; s++) {
        const struct sim_step *step = &world->steps[s];
        const uint32_t *deps = world->plans[step->rank]->deps + step->plan->first_dep;

        for (uint32_t d = 0; d < step->plan->deps; d++) {
            struct sim_step *dep = &world->steps[world->first[step->rank] + deps[d]];

            world->waiters[dep->first_waiter + dep->waiters++] = s;
        }
    }
    return true;
}

/* The receives of a rank in the order of (peer, pair_index): base[peer] is where those from a peer begin. */
static void sort_receives(const struct sim_world *world, int rank, uint32_t *base, uint32_t *sorted)
{
    memset(base, 0, ((size_t)world->size + 1) * sizeof *base);
    for (uint32_t s = world->first[rank]; s < world->first[rank + 1]; s++)
        if (sim_is_recv(&world->steps[s]))
            base[world->steps[s].plan->peer + 1]++;
    for (int p = 0; p < world->size; p++)
        base[p + 1] += base[p];
    for (uint32_t s = world->first[rank]; s < world->first[rank + 1]; s++)
        if (sim_is_recv(&world->steps[s]))
            sorted[base[world->steps[s].plan->peer] + world->steps[s].plan->pair_index] = s;
}

/* Meet the sends of all ranks with the receives of `rank`. */
static bool meet(struct sim_world *world, int rank, uint32_t **sends, const uint32_t *base, const uint32_t *sorted)
{
    for (int p = 0; p < world->size; p++) {
        uint32_t count = base[p + 1] - base[p];

        for (uint32_t k = 0; k < count; k++) {
            uint32_t s = *sends[p];

            if (s >= world->first[p + 1] || !sim_is_send(&world->steps[s]) || world->steps[s].plan->peer != rank ||
                world->steps[s].plan->pair_index != k) {
                fprintf(stderr, "%s: receive %u of rank %d from %d meets no send\n", world->algorithm->name, k, rank, p);
                return false;
            }
            world->steps[s].partner = sorted[base[p] + k];
            world->steps[sorted[base[p] + k]].partner = s;
            sends[p]++;
        }
    }
    return true;
}

static int by_peer(const void *a, const void *b, void *steps)
{
    const struct sim_step *x = (const struct sim_step *)steps + *(const uint32_t *)a;
    const struct sim_step *y = (const struct sim_step *)steps + *(const uint32_t *)b;

    if (x->plan->peer != y->plan->peer)
        return x->plan->peer < y->plan->peer ? -1 : 1;
    return x->plan->pair_index < y->plan->pair_index ? -1 : 1;
}

static bool find_partners(struct sim_world *world)
{
    size_t size = (size_t)world->size;
    uint32_t *base = malloc((size + 1) * sizeof *base);
    uint32_t *sorted = malloc((world->nsteps + 1u) * sizeof *sorted);
    uint32_t *sends = malloc((world->nsteps + size + 1u) * sizeof *sends);
    uint32_t **next = malloc((size + 1) * sizeof *next), at = 0;
    bool good = base != NULL && sorted != NULL && sends != NULL && next != NULL;

    for (int rank = 0; good && rank < world->size; rank++) {
        next[rank] = sends + at;
        for (uint32_t s = world->first[rank]; s < world->first[rank + 1]; s++)
            if (sim_is_send(&world->steps[s]))
                sends[at++] = s;
        qsort_r(next[rank], (size_t)(sends + at - next[rank]), sizeof *sends, by_peer, world->steps);
        sends[at++] = world->nsteps; /* the end */
    }
    for (int rank = 0; good && rank < world->size; rank++) {
        sort_receives(world, rank, base, sorted);
        good = meet(world, rank, next, base, sorted);
    }
    for (int rank = 0; good && rank < world->size; rank++) {
        good = *next[rank] == world->nsteps;
        if (!good)
            fprintf(stderr, "%s: a send of rank %d meets no receive\n", world->algorithm->name, rank);
    }
    free(base);
    free(sorted);
    free(sends);
    free(next);
    return good;
}

static bool find_hosts(struct sim_world *world, const struct sim_machine *machine, const int *members)
{
    int *node = malloc((size_t)world->size * sizeof *node);
    bool good = node != NULL;

    for (int rank = 0; good && rank < world->size; rank++)
        node[rank] = (members == NULL ? rank : members[rank]) / machine->ranks_per_node;
    good = good && pki_hosts_make(node, world->size, &world->hosts) == PK_OK;
    free(node);
    return good;
}

bool sim_world_make(struct sim_world *world, const struct sim_machine *machine, const int *members,
                    const struct pki_algorithm *algorithm, int size, int root, bool in_place)
{
    *world = (struct sim_world){ .algorithm = algorithm, .size = size, .root = root, .in_place = in_place };
    if (!find_hosts(world, machine, members) || !make_plans(world))
        goto failed;
    for (int rank = 0; rank < size; rank++)
        for (uint32_t i = 0; i < world->plans[rank]->nsteps; i++)
            world->steps[world->first[rank] + i] =
                (struct sim_step){ .plan = &world->plans[rank]->steps[i], .rank = (uint32_t)rank };
    if (find_waiters(world) && find_partners(world))
        return true;

failed:
    fprintf(stderr, "no plans of %s for %d ranks\n", algorithm->name, size);
    sim_world_free(world);
    return false;
}

void sim_world_free(struct sim_world *world)
{
    for (int rank = 0; world->plans != NULL && rank < world->size; rank++)
        pki_plan_free(world->plans[rank]);
    pki_hosts_free(world->hosts);
    free(world->plans);
    free(world->first);
    free(world->steps);
    free(world->waiters);
    *world = (struct sim_world){ 0 };
}

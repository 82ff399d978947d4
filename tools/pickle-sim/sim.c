/* SPDX-License-Identifier: Apache-2.0 */
#include "sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "run.h"

#define WARM_UP 3u   /* rounds that are not counted */
#define SHORT_US 2.0 /* operations that pickle-perf takes several of at a time (bench/perf_measure.c) */

static void open_states(struct sim_run *run, const struct pki_layout *layout, double element_bytes)
{
    const struct sim_world *world = run->world;

    for (uint32_t s = 0; s < world->nsteps * run->rounds; s++) {
        const struct sim_step *step = sim_step_of(run, s);
        size_t first, count;

        pki_layout_block(layout, sim_world_of(run, s)->plans[step->rank], sim_is_send(step) ? step->plan->src : step->plan->dst,
                         &first, &count);
        run->states[s] = (struct sim_state){ .arrived = -1, .bytes = (double)count * element_bytes };
        run->states[s].chunks = (uint32_t)ceil(run->states[s].bytes / run->chunk_bytes);
        if (run->states[s].chunks == 0)
            run->states[s].chunks = 1;
    }
    for (uint32_t i = 0; i < (uint32_t)world->size * run->rounds; i++) {
        const uint32_t *first = sim_world_of(run, i / (uint32_t)world->size * world->nsteps)->first + i % (uint32_t)world->size;

        run->left[i] = first[1] - first[0];
    }
}

static bool all_done(const struct sim_run *run)
{
    for (uint32_t s = 0; s < run->world->nsteps * run->rounds; s++)
        if (run->states[s].done < run->states[s].chunks) {
            const struct sim_step *step = sim_step_of(run, s);

            fprintf(stderr, "%s: step %u of rank %u never ended\n", run->world->algorithm->name,
                    s % run->world->nsteps - sim_world_of(run, s)->first[step->rank], step->rank);
            return false;
        }
    return true;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* What pickle-perf says of a rank: the median of its calls' times, or, of short ones, the mean of several. Changes run->called. */
static double rank_time(struct sim_run *run, uint32_t rank, bool mean)
{
    uint32_t size = (uint32_t)run->world->size, n = run->rounds - WARM_UP;
    double *times = run->called, sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        times[i] = run->took[(i + WARM_UP) * size + rank];
        sum += times[i];
    }
    if (mean)
        return sum / n;
    qsort(times, n, sizeof *times, by_size);
    return n % 2 == 1 ? times[n / 2] : (times[n / 2 - 1] + times[n / 2]) / 2;
}

static double worst_rank(struct sim_run *run, bool mean)
{
    double worst = 0;

    for (uint32_t rank = 0; rank < (uint32_t)run->world->size; rank++) {
        double time = rank_time(run, rank, mean);

        worst = time > worst ? time : worst;
    }
    return worst;
}

/* Of the one operation; of several as they are measured. */
static double time_of(struct sim_run *run)
{
    double mean;

    if (run->world->nsteps == 0)
        return run->machine->operation_us;
    if (sim_is_late(run))
        return run->now;
    if (run->rounds == 1)
        return run->end;
    mean = worst_rank(run, true);
    return mean < SHORT_US ? mean : worst_rank(run, false);
}

static bool open_cores(struct sim_run *run)
{
    uint32_t ranks = (uint32_t)run->world->size, *core = malloc(ranks * sizeof *core);
    bool good;

    for (uint32_t rank = 0; core != NULL && rank < ranks; rank++)
        core[rank] = sim_core_of(&run->ports, rank);
    good = core != NULL &&
           sim_cores_open(&run->cores, core, ranks, (uint32_t)sim_machine_ranks(run->machine), run->machine->switch_us);
    free(core);
    return good;
}

static bool open_run(struct sim_run *run, const int *members, const struct pki_layout *layout, double element_bytes)
{
    size_t ranks = (size_t)run->world->size, steps = (size_t)run->world->nsteps * run->rounds;

    run->heap_cap = steps + ranks + 16u;
    run->heap = malloc(run->heap_cap * sizeof *run->heap);
    run->states = calloc(steps + 1u, sizeof *run->states);
    run->left = calloc(ranks * run->rounds, sizeof *run->left);
    run->called = calloc(ranks * run->rounds, sizeof *run->called);
    run->took = calloc(ranks * run->rounds, sizeof *run->took);
    if (run->heap == NULL || run->states == NULL || run->left == NULL || run->called == NULL || run->took == NULL ||
        !sim_ports_open(&run->ports, run->machine, run->world, run->worlds > 1, members, layout, element_bytes))
        return false;
    open_states(run, layout, element_bytes);
    run->queued = run->machine->copied_by_cpu || run->ports.crowd > 1;
    return !run->queued || open_cores(run);
}

static void close_run(struct sim_run *run)
{
    sim_ports_close(&run->ports);
    sim_cores_close(&run->cores);
    free(run->heap);
    free(run->states);
    free(run->left);
    free(run->called);
    free(run->took);
}

static bool execute(struct sim_run *run, const int *members, const struct pki_layout *layout, double element_bytes)
{
    bool good = open_run(run, members, layout, element_bytes);

    run->no_memory = !good;
    if (good) {
        sim_run_events(run);
        good = !run->no_memory && (sim_is_late(run) || all_done(run));
        run->result->us = time_of(run);
        run->result->intra_bytes = run->ports.intra_bytes;
        run->result->inter_bytes = run->ports.inter_bytes;
    }
    if (run->no_memory)
        fprintf(stderr, "no memory for %u steps\n", run->world->nsteps);
    close_run(run);
    return good;
}

static struct pki_layout layout_of(const struct sim_world *world, size_t count)
{
    const struct pki_shape *shape = pki_coll_shape(world->algorithm->coll);
    size_t size = (size_t)world->size;

    return (struct pki_layout){ .in_total = shape->in_many ? count * size : count,
                                .out_total = shape->out_many ? count * size : count };
}

/* Elements of the simulated time are as long as keeps counts whole: 4 bytes, as f32. */
static bool run_rounds(struct sim_run *run, const int *members, double bytes, struct sim_result *result)
{
    struct pki_layout layout = layout_of(run->world, (size_t)(bytes / 4));

    *result = (struct sim_result){ 0 };
    run->chunk_bytes = run->machine->chunk_bytes;
    run->result = result;
    return execute(run, members, &layout, 4);
}

bool sim_run(const struct sim_machine *machine, const struct sim_world *world, const int *members, double bytes, double limit_us,
             struct sim_result *result)
{
    struct sim_run run = { .machine = machine, .world = world, .worlds = 1, .limit_us = limit_us, .rounds = 1 };

    return run_rounds(&run, members, bytes, result);
}

bool sim_run_often(const struct sim_machine *machine, const struct sim_world *worlds, int count, double bytes,
                   struct sim_result *result)
{
    /* Odd: where every second call of a rank finds all that it waits for, the median is one of the calls, as it is when measured. */
    struct sim_run run = {
        .machine = machine, .world = worlds, .worlds = (uint32_t)count, .rounds = 9 * (uint32_t)count + WARM_UP
    };

    for (int i = 1; i < count; i++)
        if (worlds[i].nsteps != worlds->nsteps) {
            fprintf(stderr, "%s: %u steps for one root, %u for another\n", worlds->algorithm->name, worlds->nsteps,
                    worlds[i].nsteps);
            return false;
        }
    return run_rounds(&run, NULL, bytes, result);
}

bool sim_check(const struct sim_machine *machine, const struct sim_world *world, size_t count, size_t chunk)
{
    struct pki_layout layout = layout_of(world, count);
    struct sim_result result = { 0 };
    struct sim_data data;
    struct sim_run run = { .machine = machine,
                           .world = world,
                           .chunk_bytes = 4.0 * (double)chunk,
                           .data = &data,
                           .result = &result,
                           .worlds = 1,
                           .rounds = 1 };
    bool good;

    if (!sim_data_make(&data, world, &layout, chunk))
        return false;
    good = execute(&run, NULL, &layout, 4) && sim_data_right(&data);
    sim_data_free(&data);
    return good;
}

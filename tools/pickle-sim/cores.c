/* SPDX-License-Identifier: Apache-2.0 */
#include "cores.h"

#include <stdlib.h>

#define NONE UINT32_MAX

bool sim_cores_open(struct sim_cores *cores, const uint32_t *core, uint32_t ranks, uint32_t ncores, double switch_us)
{
    *cores = (struct sim_cores){ .switch_us = switch_us, .spare = NONE };
    cores->head = malloc(4 * (size_t)ranks * sizeof *cores->head);
    cores->cores = calloc(ncores, sizeof *cores->cores);
    if (cores->head == NULL || cores->cores == NULL)
        return false;
    cores->tail = cores->head + ranks;
    cores->core = cores->tail + ranks;
    cores->around = cores->core + ranks;
    for (uint32_t i = 0; i < ncores; i++)
        cores->cores[i] = (struct sim_core){ .idle = true, .owner = NONE };
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct sim_core *of = &cores->cores[core[rank]];

        cores->head[rank] = NONE;
        cores->core[rank] = core[rank];
        cores->around[rank] = of->owner == NONE ? rank : cores->around[of->owner];
        if (of->owner != NONE)
            cores->around[of->owner] = rank;
        of->owner = rank;
    }
    return true;
}

void sim_cores_close(struct sim_cores *cores)
{
    free(cores->tasks);
    free(cores->head);
    free(cores->cores);
    *cores = (struct sim_cores){ 0 };
}

uint32_t sim_cores_task(struct sim_cores *cores, struct sim_task task)
{
    uint32_t id = cores->spare;

    if (id != NONE) {
        cores->spare = cores->tasks[id].next;
    } else {
        if (cores->ntasks == cores->cap) {
            uint32_t cap = cores->cap * 2 + 64;
            struct sim_task *bigger = realloc(cores->tasks, cap * sizeof *bigger);

            if (bigger == NULL)
                return NONE;
            cores->tasks = bigger;
            cores->cap = cap;
        }
        id = cores->ntasks++;
    }
    cores->tasks[id] = task;
    return id;
}

struct sim_task sim_cores_end(struct sim_cores *cores, uint32_t id)
{
    struct sim_task task = cores->tasks[id];

    cores->cores[cores->core[task.rank]].busy = false;
    cores->tasks[id].next = cores->spare;
    cores->spare = id;
    return task;
}

void sim_cores_ready(struct sim_cores *cores, uint32_t id)
{
    uint32_t rank = cores->tasks[id].rank;

    cores->tasks[id].next = NONE;
    if (cores->head[rank] == NONE)
        cores->head[rank] = id;
    else
        cores->tasks[cores->tail[rank]].next = id;
    cores->tail[rank] = id;
}

/* The rank that has it, if it goes on, else the next around. */
static uint32_t chosen(const struct sim_cores *cores, const struct sim_core *core)
{
    uint32_t rank = core->owner;

    do {
        if (cores->head[rank] != NONE)
            return rank;
        rank = cores->around[rank];
    } while (rank != core->owner);
    return NONE;
}

uint32_t sim_cores_next(struct sim_cores *cores, uint32_t of, double *delay_us)
{
    struct sim_core *core = &cores->cores[cores->core[of]];
    uint32_t rank = core->busy ? NONE : chosen(cores, core), id;

    if (rank == NONE) {
        core->idle |= !core->busy;
        return NONE;
    }
    /* Where nobody has anything to do they take turns in looking, so that even the last owner is a turn away. */
    *delay_us = cores->around[rank] == rank ? 0 : (core->idle || rank != core->owner) ? cores->switch_us : 0;
    core->owner = rank;
    core->idle = false;
    core->busy = true;
    id = cores->head[rank];
    cores->head[rank] = cores->tasks[id].next;
    return id;
}

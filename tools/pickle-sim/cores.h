/* SPDX-License-Identifier: Apache-2.0 */
/* Cores, each of one rank or of several. A rank that has one keeps it until it has nothing more to do; then the next that has gets it. */
#ifndef SIM_CORES_H
#define SIM_CORES_H

#include <stdbool.h>
#include <stdint.h>

struct sim_task { /* something that a rank's core has to do */
    uint32_t rank;
    double us;
    uint32_t step;
    int what;      /* the caller's: what follows when it is done */
    uint32_t next; /* of the rank's, or of those that are free */
};

struct sim_core {
    bool busy, idle; /* idle: nobody had anything to do when it was last looked at */
    uint32_t owner;  /* the rank that had it last */
};

struct sim_cores {
    struct sim_task *tasks;
    uint32_t ntasks, cap, spare;
    uint32_t *head, *tail;   /* [ranks]: tasks that could be done now */
    uint32_t *core, *around; /* [ranks]: its core; the next rank that has the same, itself where it is alone */
    struct sim_core *cores;
    double switch_us;
};

/* core[i]: of rank i, less than ncores. False: no memory; closing is right anyway. */
bool sim_cores_open(struct sim_cores *cores, const uint32_t *core, uint32_t ranks, uint32_t ncores, double switch_us);
void sim_cores_close(struct sim_cores *cores);

/* UINT32_MAX: no memory. */
uint32_t sim_cores_task(struct sim_cores *cores, struct sim_task task);
struct sim_task sim_cores_end(struct sim_cores *cores, uint32_t id); /* its core is free */
void sim_cores_ready(struct sim_cores *cores, uint32_t id);
/* The task that this rank's core does next, UINT32_MAX: none, or it is busy. *delay_us: until it begins. */
uint32_t sim_cores_next(struct sim_cores *cores, uint32_t rank, double *delay_us);

#endif

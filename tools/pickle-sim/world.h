/* SPDX-License-Identifier: Apache-2.0 */
/* The plans of all ranks of one collective, which transfers meet, and who waits for whom. */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "coll/hosts.h"
#include "machine.h"

struct sim_step {
    const struct pki_step *plan;
    uint32_t rank;
    uint32_t partner;      /* number of the step that this transfer meets */
    uint32_t first_waiter; /* world->waiters[first_waiter .. + waiters - 1]: steps that depend on this one */
    uint32_t waiters;
};

struct sim_world {
    const struct pki_algorithm *algorithm;
    int size, root;
    bool in_place;
    struct pki_hosts *hosts; /* the nodes that ranks sit on */
    struct pki_plan **plans; /* [size] */
    uint32_t *first;         /* [size + 1]: number of a rank's first step */
    struct sim_step *steps;  /* [nsteps] */
    uint32_t *waiters;
    uint32_t nsteps;
};

/* Rank i is the machine's rank members[i] (NULL: i). False, and why on stderr: no memory, or plans whose transfers do not meet. */
bool sim_world_make(struct sim_world *world, const struct sim_machine *machine, const int *members,
                    const struct pki_algorithm *algorithm, int size, int root, bool in_place);
void sim_world_free(struct sim_world *world);

static inline bool sim_is_send(const struct sim_step *step)
{
    return step->plan->kind == PKI_STEP_SEND;
}

static inline bool sim_is_recv(const struct sim_step *step)
{
    return step->plan->kind == PKI_STEP_RECV || step->plan->kind == PKI_STEP_RECV_REDUCE;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* One collective in virtual time; with data, to see that it is right, or without. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "machine.h"
#include "world.h"

struct sim_result {
    double us;                       /* until the last rank has ended */
    uint64_t chunks;                 /* chunks of steps done */
    double intra_bytes, inter_bytes; /* sent inside nodes and between them */
};

/*
 * `bytes` is the operation's argument: of one rank's block where a buffer has a block a rank, else of the buffer. Rank i is the
 * machine's rank members[i] (NULL: i). When virtual time passes `limit_us` (0: never) it stops there: result->us is then longer. False,
 * and why on stderr: no memory, or a deadlock.
 */
bool sim_run(const struct sim_machine *machine, const struct sim_world *world, const int *members, double bytes, double limit_us,
             struct sim_result *result);

/* In a loop as pickle-perf's, with worlds[i % count] in round i. result->us is what it would say: the median of a rank's calls, of the rank
 * where that is longest. */
bool sim_run_often(const struct sim_machine *machine, const struct sim_world *worlds, int count, double bytes,
                   struct sim_result *result);

/* As sim_run with blocks of `count` elements in chunks of `chunk`, moving data: false also when a rank ends with a wrong one. */
bool sim_check(const struct sim_machine *machine, const struct sim_world *world, size_t count, size_t chunk);

#endif

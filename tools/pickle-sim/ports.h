/* SPDX-License-Identifier: Apache-2.0 */
/* What chunks take their turn at - ports, NICs, cores - and how long they have it. */
#ifndef SIM_PORTS_H
#define SIM_PORTS_H

#include "machine.h"
#include "world.h"

struct sim_ports {
    const struct sim_machine *machine;
    const int *members; /* rank i sits at place members[i] of the machine (NULL: i) */
    /* when each is free: they serve one after another, in the order of asking */
    double *tx, *rx, *cpu, *nic_tx, *nic_rx, *shared;
    double *touched;    /* [ranks]: bytes that the operation reads and writes there */
    double all_touched; /* of a node */
    int crowd;          /* ranks of a core */
    bool collective;
    bool even; /* ranks have more to do than this transfer: a chunk is moved by one of the two, not by both at once */
    double intra_bytes, inter_bytes;
};

/* `all_roots`: each rank is the root occasionally. False: no memory; nothing is left open. */
bool sim_ports_open(struct sim_ports *ports, const struct sim_machine *machine, const struct sim_world *world, bool all_roots,
                    const int *members, const struct pki_layout *layout, double element_bytes);
void sim_ports_close(struct sim_ports *ports);

bool sim_ports_are_near(const struct sim_ports *ports, const uint32_t rank[2]);
/* The core that a rank has: less than there are ranks. */
uint32_t sim_core_of(const struct sim_ports *ports, uint32_t rank);
/* A rank that has a core for itself does something, from `from` on or when it can, for `us`. Returns when that ends. */
double sim_compute(struct sim_ports *ports, uint32_t rank, double from, double us);
/* What came is combined with what is there, while it is in the core's cache. */
double sim_combine_us(const struct sim_ports *ports, uint32_t rank, double bytes);
double sim_work_us(const struct sim_ports *ports, uint32_t rank, const struct sim_work *kind, double bytes);
/* What one end's core has to do for a chunk, or a piece of one, of a transfer of `whole` bytes inside a node. */
double sim_copy_us(const struct sim_ports *ports, const uint32_t rank[2], bool receiver, double bytes, double whole);
/* It goes through the lane, which each end copies into or from. */
bool sim_is_in_lane(const struct sim_ports *ports, double whole);
bool sim_is_shared(const struct sim_ports *ports, double whole); /* both ends move it */
/*
 * `bytes` of a transfer of `whole` go from rank[0] to rank[1] by ports. sim_leave is called when they can go; it returns when the sender is
 * free of them, *head: when the first of them comes. sim_arrive is called then, and returns when the last is there. Two calls, because a
 * port serves in the order of coming, which is not the order of going.
 */
double sim_leave(struct sim_ports *ports, const uint32_t rank[2], double bytes, double whole, double now, double *head);
double sim_arrive(struct sim_ports *ports, const uint32_t rank[2], double bytes, double whole, double now);

#endif

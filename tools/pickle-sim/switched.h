/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduces by an aggregator in the network: a switch, or a program on a core. The library's own rules of a worker and of an
 * aggregator, packet by packet in virtual time, with sums that are compared.
 */
#ifndef SIM_SWITCHED_H
#define SIM_SWITCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "machine.h"

struct sim_switched {
    int ranks;
    uint32_t values, window; /* of a packet; packets on their way at most */
    bool floats;
    double loss; /* share of packets that each sender and each receiver loses */
};

struct sim_switched_result {
    double us;               /* of one allreduce, of several one after the other */
    uint64_t packets, again; /* that ranks have sent; and those sent again */
};

/* False, and why on stderr: no memory, or a sum is wrong. */
bool sim_switched_run(const struct sim_machine *machine, const struct sim_switched *what, double bytes,
                      struct sim_switched_result *result);

#endif

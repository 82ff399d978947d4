/* SPDX-License-Identifier: Apache-2.0 */
/* Going on after a death: the library's own agreement in virtual time, and how long the new communicator takes to make. */
#ifndef SIM_SURVIVE_H
#define SIM_SURVIVE_H

#include "machine.h"

struct sim_recovery {
    double agree_us; /* until the last rank has the answer */
    double messages; /* of it, in all; most that one rank sends */
    double most_messages;
    double meet_us;   /* the new communicator: rank 0 meets all, they tell each other about themselves, and connect */
    double shrink_us; /* two agreements and that */
};

/* `dead`: the rank that has died, of which all know at time 0; -1: none. False: no memory. */
bool sim_recover(const struct sim_machine *machine, int ranks, int dead, struct sim_recovery *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* One simulated operation, or several one after the other: the state of its steps, and the events to come. */
#ifndef SIM_RUN_H
#define SIM_RUN_H

#include "cores.h"
#include "data.h"
#include "ports.h"
#include "sim.h"

struct sim_state {
    uint32_t chunks, started, done, left, come; /* left, come: of a send that goes by ports, chunks that have begun to */
    uint32_t dep;                               /* those before it have done what the next chunk needs */
    double arrived;                             /* receive: when the eager chunk that waits for it came; negative: none */
    double bytes;                               /* of the block */
    bool waits;                                 /* send: the current chunk waits for the receiver */
    uint8_t pieces, taken, ended;               /* send, moved by both ends: of the current chunk */
};

enum sim_what {
    SIM_DONE,
    SIM_REDUCED, /* of a RECV_REDUCE: the second half */
    SIM_BEGIN,   /* a rank's round: `step` is round * size + rank */
    SIM_LEAVE,   /* a send by ports: a chunk can go */
    SIM_HEAD,    /* the first of its bytes come */
    SIM_FIRST,   /* a send through the lane: its first message is there */
    SIM_SENT,    /* a send: the sender's core has done its part of a chunk */
    SIM_HERE,    /* a receive: the receiver's core has done its part */
    SIM_PIECE,   /* a send: some core has moved a piece of the chunk */
    SIM_NOTHING,
    SIM_READY,  /* `step` is a task that can be done from now on */
    SIM_RAN,    /* a task is done */
    SIM_PACKET, /* switched.c: packet `step` is there; process `step` is through with its turn; its timer */
    SIM_FREE,
    SIM_TIMER
};

struct sim_event {
    double time;
    uint64_t order; /* events of one time go as they came: results do not depend on the heap */
    uint32_t step;
    enum sim_what what;
};

struct sim_run {
    const struct sim_machine *machine;
    const struct sim_world *world; /* [worlds]: one, or one a root */
    uint32_t worlds;
    double chunk_bytes;
    struct sim_data *data; /* or NULL */
    uint32_t rounds;
    struct sim_state *states; /* [rounds * steps] */
    uint32_t *left;           /* [rounds * ranks]: steps that have not ended */
    double *called, *took;    /* [rounds * ranks]: when the call was made, and for how long */
    struct sim_event *heap;
    size_t events, heap_cap;
    uint64_t order;
    struct sim_ports ports;
    /* tasks wait for their core in `cores`; else each rank has its own and does them in the order of asking */
    bool queued;
    struct sim_cores cores;
    double now, end; /* end: of the last step */
    double limit_us; /* 0: none */
    struct sim_result *result;
    bool no_memory;
};

/* heap.c: events by time. Pushing may set run->no_memory. */
void sim_push(struct sim_run *run, double time, uint32_t step, enum sim_what what);
struct sim_event sim_pop(struct sim_run *run);

/* steps.c: all that happens, until nothing does or virtual time has passed the limit. */
void sim_run_events(struct sim_run *run);

static inline bool sim_is_late(const struct sim_run *run)
{
    return run->limit_us > 0 && run->now > run->limit_us;
}

static inline const struct sim_world *sim_world_of(const struct sim_run *run, uint32_t s)
{
    return &run->world[run->worlds == 1 ? 0 : s / run->world->nsteps % run->worlds];
}

static inline const struct sim_step *sim_step_of(const struct sim_run *run, uint32_t s)
{
    return &sim_world_of(run, s)->steps[run->rounds == 1 ? s : s % run->world->nsteps];
}

#endif

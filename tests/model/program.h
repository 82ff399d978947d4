/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs: what each rank calls, in order. And the ideal: an operation ends when all its parts have been called and their streams
 * have come there. */
#ifndef MODEL_PROGRAM_H
#define MODEL_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_RANKS 4
#define STREAMS_MAX 4 /* of a rank; the last one has only copies of the program's own */
#define COMMS_MAX 5   /* the last two have the collectives, one each: ranks may call them in any order */
#define COMMS_PAIRS 3
#define CALLS_MAX 24
#define CALL_PARTS_MAX 6
#define LEVELS_MAX 3
#define TRANSFERS_MAX 40
#define EVENTS_MAX (MODEL_RANKS * CALLS_MAX)

enum call_kind {
    CALL_GROUP, /* sends and receives, or a collective of one or more levels */
    CALL_SYNC,  /* the rank waits until its stream is empty */
    CALL_EVENT, /* `stream` waits until `from` has come where it is now */
    CALL_COPY   /* the program's own copy to a peer */
};

struct program_part {
    uint8_t transfer, stream, level;
    bool sends;
};

struct call {
    enum call_kind kind;
    bool collective, joins_all; /* it ends on no rank before all have come to it */
    uint8_t stream, from, levels, count;
    struct program_part parts[CALL_PARTS_MAX];
};

struct transfer {
    uint8_t comm, rank[2]; /* who receives, who sends */
};

struct program {
    int ranks, streams, transfers;
    int calls[MODEL_RANKS];
    struct call call[MODEL_RANKS][CALLS_MAX];
    struct transfer transfer[TRANSFERS_MAX];
};

uint32_t model_random(uint64_t *state);
uint32_t model_below(uint64_t *state, uint32_t n);

void program_make(struct program *p, uint64_t *random);
void program_print(const struct program *p);

/* Whether every operation ends in the ideal. */
bool program_ends(const struct program *p);

#endif

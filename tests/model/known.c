/* SPDX-License-Identifier: Apache-2.0 */
#include "known.h"

#include "rule.h"

#define SEND(transfer, stream) \
    { \
        transfer, stream, 0, true \
    }
#define RECV(transfer, stream) \
    { \
        transfer, stream, 0, false \
    }
#define CALL(...) \
    { \
        .kind = CALL_GROUP, .levels = 1, .count = sizeof((struct program_part[]){ __VA_ARGS__ }) / sizeof(struct program_part), \
        .parts = { \
            __VA_ARGS__ \
        } \
    }

/* A transfer's communicator, receiver and sender. */
#define FROM_TO(sender, receiver) \
    { \
        0, \
        { \
            receiver, sender \
        } \
    }

const struct known known_programs[] = {
    /* Rank 2 hands #0 to 0, then #1 to 1, which hands #2 to 0 behind it. Rank 0 takes #2 and #0 in one group. */
    { .name = "a group whose peers come one behind another",
      .breaks = BREAK_SERIAL,
      .program = { .ranks = 3,
                   .streams = 1,
                   .transfers = 3,
                   .transfer = { FROM_TO(2, 0), FROM_TO(2, 1), FROM_TO(1, 0) },
                   .calls = { 1, 2, 2 },
                   .call = { { CALL(RECV(2, 0), RECV(0, 0)) },
                             { CALL(RECV(1, 0)), CALL(SEND(2, 0)) },
                             { CALL(SEND(0, 0)), CALL(SEND(1, 0)) } } } },
    /* One peer, which calls in the other order. */
    { .name = "a group whose peer calls in the other order",
      .breaks = BREAK_SAME_PEER,
      .program = { .ranks = 2,
                   .streams = 1,
                   .transfers = 2,
                   .transfer = { FROM_TO(0, 1), FROM_TO(1, 0) },
                   .calls = { 1, 2 },
                   .call = { { CALL(SEND(0, 0), RECV(1, 0)) }, { CALL(SEND(1, 0)), CALL(RECV(0, 0)) } } } },
    /* One peer, one direction, two streams of the peer: the one of #1 has to wait for rank 2, and that for what follows #2 in the other. */
    { .name = "sends in a row to two streams of a peer",
      .breaks = BREAK_SAME_PAIR,
      .program = { .ranks = 3,
                   .streams = 2,
                   .transfers = 4,
                   .transfer = { FROM_TO(2, 1), FROM_TO(0, 1), FROM_TO(0, 1), FROM_TO(1, 2) },
                   .calls = { 1, 4, 2 },
                   .call = { { CALL(SEND(1, 0), SEND(2, 0)) },
                             { CALL(RECV(0, 0)), CALL(RECV(1, 0)), CALL(RECV(2, 1)), CALL(SEND(3, 1)) },
                             { CALL(RECV(3, 0)), CALL(SEND(0, 0)) } } } },
    /* Two sends of rank 0 wait in two streams for rank 1, which first wants the one behind the program's own copy; and there are two channels. */
    { .name = "a copy of the program's own beside sends that wait",
      .breaks = BREAK_LAST_CHANNEL,
      .program = { .ranks = 2,
                   .streams = 3,
                   .transfers = 3,
                   .transfer = { FROM_TO(0, 1), FROM_TO(0, 1), { 1, { 1, 0 } } },
                   .calls = { 5, 3 },
                   .call = { { CALL(SEND(0, 0)),
                               CALL(SEND(1, 1)),
                               { .kind = CALL_COPY, .stream = STREAMS_MAX - 1 },
                               { .kind = CALL_SYNC, .stream = STREAMS_MAX - 1 },
                               CALL(SEND(2, 2)) },
                             { CALL(RECV(2, 0)), CALL(RECV(0, 0)), CALL(RECV(1, 0)) } } } },
    /* Without kernels: a receive waits for its word behind a copy, and so in a channel, in one stream, a send in another, and again the program's copy. */
    { .name = "a value wait behind a copy",
      .breaks = BREAK_VALUE_WAITS,
      .without_kernels = true,
      .program = { .ranks = 2,
                   .streams = 3,
                   .transfers = 4,
                   .transfer = { FROM_TO(0, 1), FROM_TO(1, 0), FROM_TO(0, 1), { 1, { 1, 0 } } },
                   .calls = { 6, 4 },
                   .call = { { CALL(SEND(0, 0)),
                               CALL(RECV(1, 0)),
                               CALL(SEND(2, 1)),
                               { .kind = CALL_COPY, .stream = STREAMS_MAX - 1 },
                               { .kind = CALL_SYNC, .stream = STREAMS_MAX - 1 },
                               CALL(SEND(3, 2)) },
                             { CALL(RECV(0, 0)), CALL(RECV(3, 0)), CALL(SEND(1, 0)), CALL(RECV(2, 0)) } } } },
};

const int known_count = sizeof known_programs / sizeof known_programs[0];

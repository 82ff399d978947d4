/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call with a CUDA stream puts into the stream, as a pure function of what the call knows. The model (world.c) runs the result on a
 * machine of streams and copy channels and compares it with an ideal, and each decision with the library's own function
 * (engine/stream/rule.h). Why it is so, and what was measured for it: docs/design/0035-copies-that-wait.md.
 *
 * Of every transfer one side moves the bytes, and the other lets it: the side that moves waits for the other's `ready` word, copies (a push
 * where it sends, a pull where it receives) and writes the other's `done` word. The other side writes `ready` and waits for `done`.
 */
#ifndef MODEL_RULE_H
#define MODEL_RULE_H

#include <stdbool.h>
#include <stdint.h>

#define PARTS_MAX 6                   /* of one call in one stream and level */
#define STEPS_MAX (4 * PARTS_MAX + 1) /* what they become */

struct part {
    uint8_t op; /* the transfer, by number */
    uint8_t peer;
    uint8_t comm;
    bool sends;
    bool moves; /* this side moves the bytes */
    bool seen;  /* moves: the peer's `ready` word is there already */
    /* of a collective: on every rank all of this level's ready words are written before anything of it is waited for */
    bool together;
};

enum step_kind {
    STEP_WRITE_READY, /* this side's, for the peer */
    STEP_WAIT_READY,  /* the peer's */
    STEP_COPY,        /* by a copy engine: keeps its stream's channel from the call on until it is done */
    STEP_WRITE_DONE,  /* the peer's */
    STEP_WAIT_DONE,   /* this side's */
    /* looks at the ready words of all `ops`, moves what is ready, writes its done word, and ends when all are moved */
    STEP_KERNEL,
    STEP_SIDE /* the same by copies in streams of the library's own, each with a channel of its own */
};

struct step {
    enum step_kind kind;
    uint8_t op;    /* the transfer; of KERNEL and SIDE: unused */
    uint8_t count; /* KERNEL, SIDE */
    uint8_t ops[PARTS_MAX];
};

/* Copies of a stream share one of the process's copy channels while any of them has not ended, and so do the value waits behind them, which hold it
 * where the library may not use kernels. */
struct channels {
    int left;  /* that the library may still take for other streams */
    bool held; /* this stream has one */
};

/* Ways to break the rule, one bit each: the model's own test demands that each is noticed. */
enum {
    BREAK_READY_LATE = 1 << 0,   /* own ready words go behind the copies */
    BREAK_DONE_EARLY = 1 << 1,   /* own done words are waited for before the copies */
    BREAK_SERIAL = 1 << 2,       /* copies whose peers are not ready stand behind one another */
    BREAK_SAME_PEER = 1 << 3,    /* only those of one peer do */
    BREAK_SAME_PAIR = 1 << 4,    /* only those of one peer, communicator and direction do */
    BREAK_UNSEEN_FIRST = 1 << 5, /* what waits goes before what need not */
    BREAK_LAST_CHANNEL = 1 << 6, /* the library takes the last channel, which is the program's */
    BREAK_VALUE_WAITS = 1 << 7,  /* without kernels: only copies are counted, and not the waits behind them */
    BREAK_ONE_BY_ONE = 1 << 8,   /* each part of a group is decided and queued by itself */
    BREAK_LEVELS = 1 << 9        /* the ready words of all levels of a collective are written at its beginning */
};

/* Without kernels: how many channels the parts want besides the stream's own, which they want too. */
int rule_wants(const struct part *parts, int n);

/* What goes into the stream for the parts of one call and level: returns how many steps. What is taken of the channels is subtracted. Without
 * kernels the stream holds one, and as many more as rule_wants says are left. */
int rule_steps(const struct part *parts, int n, bool kernels, unsigned breaks, struct channels *channels,
               struct step steps[STEPS_MAX]);

#endif

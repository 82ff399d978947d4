/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that the rule's steps run on: streams, words, and copy channels in which a copy keeps its place from the call on. */
#ifndef MODEL_WORLD_H
#define MODEL_WORLD_H

#include "program.h"
#include "rule.h"

enum outcome {
    WORLD_ENDED,
    WORLD_STUCK,
    WORLD_REFUSED, /* without kernels: a call waits for channels that do not become free */
    WORLD_EARLY    /* bytes moved before both sides had come there */
};

struct machine {
    int channels;    /* of each rank, for pushes and pulls together */
    bool kernels;    /* the library may use them */
    unsigned breaks; /* of the rule */
};

/* Run `p` once: whose turn it is is drawn from `random`. */
enum outcome world_run(const struct program *p, const struct machine *machine, uint64_t *random);

#endif

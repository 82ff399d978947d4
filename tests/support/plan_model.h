/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plans of all ranks of one collective, over a memory of 32-bit elements: run by a random schedule, and searched for accesses
 * that nothing orders. Both know of plans what plan.h promises, and of the engine only this:
 *
 * - blocks are cut into chunks of one fixed length, so that chunk c of every block covers the same offsets; an empty block is one
 *   empty chunk;
 * - chunk c of a step starts when each step it depends on has done chunk c or is complete, and the step's last chunk (of a
 *   whole step: every chunk) when they all are complete: so "complete" is transitive although blocks differ in length;
 * - a send may read its source, and a receive may write its target (a RECV_REDUCE its landing), at any time from start to end;
 * - the end of a receive comes after the start of its send. Nothing else is known between ranks; some come late.
 *
 * Where blocks lie comes from pki_layout_block. What the result has to be does not: it is worked out from the operation alone.
 */
#ifndef PLAN_MODEL_H
#define PLAN_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/plan.h"

struct plan_case {
    int size, root;
    uint32_t in_place;             /* a bit a rank; of one root's ranks only the root's counts */
    size_t count;                  /* elements: the operation's argument; of v-forms the longest block */
    size_t chunk;                  /* elements, 1 and up */
    uint64_t lengths;              /* of v-forms: the seed of the lengths and gaps of blocks */
    const struct pki_hosts *hosts; /* NULL: one; the caller's, outlives the world */
};

#define PLAN_ALL_IN_PLACE UINT32_MAX

struct plan_span { /* elements of a rank's memory */
    size_t first, count;
};

struct plan_world {
    const struct pki_algorithm *algorithm;
    struct plan_case c;
    struct pki_plan **plans;    /* [size] */
    struct pki_layout *layouts; /* [size] */
    size_t *tables;             /* what layouts point to */
    int **partners;             /* [rank][step]: the step that a transfer meets, -1: none */
    struct plan_span *in, *out; /* [size]: where IN and OUT lie in a rank's memory */
    size_t *scratch;            /* [size]: length of a scratch block */
    bool no_sum;                /* operands are mixed, so that their order shows; only that ranks agree is checked */
    uint64_t inputs;            /* 0: inputs from the schedule's seed; else from this one */
    uint64_t digest;            /* of rank 0's or the root's OUT, after plan_run */
};

bool plan_world_make(struct plan_world *world, const struct pki_algorithm *algorithm, const struct plan_case *c);
void plan_world_free(struct plan_world *world);
bool plan_in_place(const struct plan_world *world, int rank);
bool plan_is_rooted(const struct pki_algorithm *algorithm);
bool plan_has_in(const struct pki_algorithm *algorithm, int rank, int root);
bool plan_has_out(const struct pki_algorithm *algorithm, int rank, int root);

/* Elements of memory a rank needs, all and without scratch, and where a block or a chunk of it lies. */
size_t plan_memory_size(const struct plan_world *world, int rank);
size_t plan_user_size(const struct plan_world *world, int rank);
struct plan_span plan_block(const struct plan_world *world, int rank, struct pki_ref ref);
struct plan_span plan_chunk(const struct plan_world *world, int rank, struct pki_ref ref, uint32_t chunk);
/* The block of IN or OUT that the operation has to do with `other`, whatever the plan's blocks are. */
struct plan_span plan_user_block(const struct plan_world *world, int rank, enum pki_buffer buffer, int other);
uint32_t plan_step_chunks(const struct plan_world *world, int rank, uint32_t step);
bool plan_step_sends(const struct pki_step *step);
bool plan_step_receives(const struct pki_step *step);

/* Chunks that a dependency must have done before chunk `chunk` of a step with `chunks` chunks starts. */
uint32_t plan_needed(const struct pki_step *step, uint32_t chunk, uint32_t chunks, uint32_t dep_chunks);

/* Take away the dep-th dependency of a step. */
void plan_remove_dep(struct pki_plan *plan, uint32_t step, uint32_t dep);

/* Run with random inputs and a random schedule. False: wrong result, changed source or deadlock, described in `text`. */
bool plan_run(struct plan_world *world, uint64_t seed, char *text, size_t text_bytes);

/* Look for two steps of a rank that touch the same elements, one of them writing, without order; for a cycle; for a barrier that
 * some rank can leave before another has come. True and `text` when there is one. */
bool plan_find_hazard(const struct plan_world *world, char *text, size_t text_bytes);

uint64_t plan_random(uint64_t *state);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plans of all ranks of one collective, over a memory of 32-bit elements: run by a random schedule, and searched for accesses
 * that nothing orders. Both know of plans what plan.h promises, and of the engine only this:
 *
 * - blocks are cut into chunks of one fixed length, so that chunk c of every block covers the same offsets; an empty block is one
 *   empty chunk;
 * - chunk c of a step starts when each step it depends on has done chunk c or is complete, and the step's last chunk when they
 *   all are complete: so "complete" is transitive although blocks differ in length;
 * - a send may read its source, and a receive may write its target (a RECV_REDUCE its landing), at any time from start to end;
 * - the end of a receive comes after the start of its send. Nothing else is known between ranks.
 */
#ifndef PLAN_MODEL_H
#define PLAN_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/plan.h"

struct plan_world {
    const struct pki_algorithm *algorithm;
    int size;
    bool in_place;
    size_t count;            /* the operation's argument: elements a rank contributes */
    size_t chunk;            /* elements, 1 and up */
    struct pki_plan **plans; /* [size] */
};

struct plan_span { /* elements of a rank's memory */
    size_t first, count;
};

bool plan_world_make(struct plan_world *world, const struct pki_algorithm *algorithm, int size, bool in_place, size_t count,
                     size_t chunk);
void plan_world_free(struct plan_world *world);

/* Elements of memory a rank needs, and where a block or a chunk of it lies. IN begins at 0, or lies within OUT. */
size_t plan_memory_size(const struct plan_world *world, int rank);
struct plan_span plan_block(const struct plan_world *world, int rank, struct pki_ref ref);
struct plan_span plan_chunk(const struct plan_world *world, int rank, struct pki_ref ref, uint32_t chunk);
uint32_t plan_step_chunks(const struct plan_world *world, int rank, uint32_t step);
bool plan_step_sends(const struct pki_step *step);
bool plan_step_receives(const struct pki_step *step);
/* The step of `step->peer` that this transfer meets; -1: none. */
int plan_partner(const struct plan_world *world, int rank, const struct pki_step *step);

/* Chunks that `dep` must have done before chunk `chunk` of a step with `chunks` chunks starts. */
uint32_t plan_needed(uint32_t chunk, uint32_t chunks, uint32_t dep_chunks);

/* Take away the dep-th dependency of a step. */
void plan_remove_dep(struct pki_plan *plan, uint32_t step, uint32_t dep);

/* Run with random inputs and a random schedule. False: wrong result, changed source or deadlock, described in `text`. */
bool plan_run(const struct plan_world *world, uint64_t seed, char *text, size_t text_bytes);

/* Look for two steps of a rank that touch the same elements, one of them writing, without order; or for a cycle. True and
 * `text` when there is one. */
bool plan_find_hazard(const struct plan_world *world, char *text, size_t text_bytes);

uint64_t plan_random(uint64_t *state);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks are killed and replaced, again and again: the others shrink, another process joins them, and each sum is that of the communicator's ranks. One rank
 * sees all of it, and has as many descriptors, mappings, threads and bytes of a GPU at the end as after the first few rounds. Every other time the ranks
 * work while the new communicator is made, and change over when all have it. In some rounds the process that joins is killed at any moment too, and another
 * one joins.
 */
#ifndef GROW_H
#define GROW_H

#include <stddef.h>
#include <stdint.h>

#include "pickle/pickle.h"

#define GROW_COUNTED 5

/* Where the sums are. */
struct grow_memory {
    int (*device)(void); /* of this process's communicators */
    /* of host memory; what the stream has said, too */
    pk_result_t (*sum)(pk_comm_t *comm, const float *in, float *out, size_t count);
    /* After the last round there are at most so many more than after round `from`, if there are more rounds; of descriptors, mappings, threads, bytes of a
     * GPU, bytes of memory. */
    struct grow_limit {
        int from;
        int64_t more;
    } limits[GROW_COUNTED];
};

/* All of main. Prints how long the others stand still, and how long it takes from pk_comm_join to the first right sum.
 * Arguments: [ROUNDS [SEED]] */
int grow_main(int argc, char **argv, const struct grow_memory *memory);

#endif

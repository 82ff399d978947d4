/* SPDX-License-Identifier: Apache-2.0 */
/* One turn of every operation on int32 in host memory, with known results: for tests that do something to a rank meanwhile. */
#ifndef TURNS_H
#define TURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pickle/pickle.h"

struct turn_loop {
    pk_comm_t *comm;
    pk_stream_t stream;
    int rank, size;
    size_t count;      /* elements a rank, at least 1 */
    int32_t *in, *out; /* [size * count] */
};

struct turn {
    const char *name;
    pk_result_t (*run)(struct turn_loop *loop);               /* queues it in loop->stream */
    bool (*is_right)(const struct turn_loop *loop, size_t i); /* element i of out; NULL: no data */
    size_t (*length)(const struct turn_loop *loop);           /* of out on this rank */
};

extern const struct turn turns[];
extern const size_t turns_count;

const struct turn *turn_named(const char *name); /* NULL: none */

bool turn_open(struct turn_loop *loop, pk_comm_t *comm, pk_stream_t stream, int rank, int size, size_t count);
void turn_close(struct turn_loop *loop);
/* Run it and wait. `out` is cleared before. */
pk_result_t turn_run(const struct turn *turn, struct turn_loop *loop);
bool turn_was_right(const struct turn *turn, const struct turn_loop *loop);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two copies through a ring for each pair of ranks. It is longer than a second-level cache and shorter than what cores share, where
 * they share one: less memory is gone through than with a slot as long as the block.
 */
#ifndef COMPARE_RING_H
#define COMPARE_RING_H

#include "compare.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define RING_BYTES ((size_t)2 << 20)

struct ring { /* in memory that both ranks see, zeros at first */
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
    _Alignas(4096) char data[RING_BYTES];
};

/* rings[size * size]. yields: there are more ranks than cores. */
void ring_open(struct ring *rings, struct compare_rank *self, int yields);
/* What other ranks have to do with it, of an allgather, an alltoall, or an allreduce of two ranks. */
void ring_run(const struct compare_work *work);

#endif

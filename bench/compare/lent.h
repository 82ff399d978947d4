/* SPDX-License-Identifier: Apache-2.0 */
/* Pages lent through pipes, one to each other rank: vmsplice here, read there. */
#ifndef COMPARE_LENT_H
#define COMPARE_LENT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LENT_RANKS_MAX 64

struct lent_seat { /* in memory that all ranks see, zeros at first */
    _Alignas(64) pid_t pid;
    int pipes[LENT_RANKS_MAX];              /* descriptors of the reading ends */
    _Atomic uint64_t bytes[LENT_RANKS_MAX]; /* that ever went into them */
};

void lent_open(struct lent_seat *seats, int rank, int size); /* before anyone reads */
/* How many of the bytes there was room for; they stay as they are until the other rank has read them. */
size_t lent_give(int to, const char *from, size_t bytes);
/* All that the rank has lent and nobody has read; more than `most` of it ends the program. */
size_t lent_take(int from, char *to, size_t most);

#endif

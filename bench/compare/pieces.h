/* SPDX-License-Identifier: Apache-2.0 */
/* An allgather or alltoall in pieces, both directions at once, by whatever takes a piece to another rank. */
#ifndef COMPARE_PIECES_H
#define COMPARE_PIECES_H

#include "compare.h"

#include <stddef.h>

struct pieces_way {
    size_t (*give)(int to, const char *from, size_t bytes); /* how many of the bytes there was room for */
    size_t (*take)(int from, char *to, size_t most);        /* how many had come, `most` of them at most */
};

/* All that other ranks have to do with it: the own block stays where it is. yields: there are more ranks than cores. */
void pieces_exchange(const struct compare_rank *me, const struct compare_work *work, int yields, const struct pieces_way *way);

#endif

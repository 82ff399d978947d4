/* SPDX-License-Identifier: Apache-2.0 */
#include "pieces.h"

#include <sched.h>

#define RANKS_MAX 64

void pieces_exchange(const struct compare_rank *me, const struct compare_work *work, int yields, const struct pieces_way *way)
{
    size_t block = work->block * sizeof(float), given[RANKS_MAX] = { 0 }, got[RANKS_MAX] = { 0 };
    size_t left = 2 * block * (size_t)(me->size - 1);
    int scattered = work->op == COMPARE_ALLTOALL;

    while (left > 0) {
        size_t before = left;

        for (int hop = 1; hop < me->size; hop++) {
            int r = (me->rank + hop) % me->size;
            size_t out = way->give(r, me->send + (scattered ? (size_t)r * block : 0) + given[r], block - given[r]);
            size_t in = way->take(r, me->recv + (size_t)r * block + got[r], block - got[r]);

            given[r] += out;
            got[r] += in;
            left -= out + in;
        }
        if (left == before && yields)
            sched_yield();
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include "add.h"
#include "pieces.h"

#include <sched.h>
#include <string.h>

#define PIECE ((size_t)32 << 10)

static struct ring *rings;
static struct compare_rank *me;
static int may_yield;

void ring_open(struct ring *memory, struct compare_rank *self, int yields)
{
    rings = memory;
    me = self;
    may_yield = yields;
}

static struct ring *between(int from, int to)
{
    return &rings[from * me->size + to];
}

/* A piece at most, and up to the end of the ring. */
static size_t stretch(uint64_t at, size_t bytes)
{
    size_t ahead = RING_BYTES - at % RING_BYTES, most = ahead < PIECE ? ahead : PIECE;

    return bytes < most ? bytes : most;
}

/* How many of the bytes there was room for. */
static size_t give(int to, const char *from, size_t bytes)
{
    struct ring *ring = between(me->rank, to);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    size_t room = RING_BYTES - (size_t)(written - atomic_load_explicit(&ring->read, memory_order_acquire));
    size_t some = stretch(written, bytes < room ? bytes : room);

    if (some == 0)
        return 0;
    memcpy(ring->data + written % RING_BYTES, from, some);
    atomic_store_explicit(&ring->written, written + some, memory_order_release);
    return some;
}

/* What has come and not been taken yet, `most` bytes of it at most. */
static const char *look(int from, size_t most, size_t *bytes)
{
    struct ring *ring = between(from, me->rank);
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    size_t come = (size_t)(atomic_load_explicit(&ring->written, memory_order_acquire) - read);

    *bytes = stretch(read, come < most ? come : most);
    return ring->data + read % RING_BYTES;
}

static void taken(int from, size_t bytes)
{
    struct ring *ring = between(from, me->rank);

    atomic_store_explicit(&ring->read, atomic_load_explicit(&ring->read, memory_order_relaxed) + bytes, memory_order_release);
}

static size_t take(int from, char *to, size_t most)
{
    size_t bytes;
    const char *piece = look(from, most, &bytes);

    memcpy(to, piece, bytes);
    taken(from, bytes);
    return bytes;
}

/* What a rank sums up of an allreduce of two. */
struct part {
    char *in, *out;
    size_t bytes;
};

static struct part part_of(int rank, size_t count)
{
    size_t half = (count / 2 + 15) / 16 * 16 < count ? (count / 2 + 15) / 16 * 16 : count;
    size_t at = rank == 0 ? 0 : half * sizeof(float);

    return (struct part){ me->send + at, me->recv + at, (rank == 0 ? half : count - half) * sizeof(float) };
}

/* The other rank's part of IN goes there, then this rank's part of OUT, as far as it is summed up. */
static size_t give_summed(int peer, const struct part *mine, const struct part *theirs, size_t given, size_t summed)
{
    if (given < theirs->bytes)
        return give(peer, theirs->in + given, theirs->bytes - given);
    given -= theirs->bytes;
    return give(peer, mine->out + given, summed - given);
}

/* This rank's part of the other's IN comes first, then the other's part of OUT. */
static size_t take_summing(int peer, const struct part *mine, const struct part *theirs, size_t got)
{
    size_t bytes;
    const char *piece;

    if (got >= mine->bytes)
        return take(peer, theirs->out + (got - mine->bytes), theirs->bytes - (got - mine->bytes));
    piece = look(peer, mine->bytes - got, &bytes);
    add((float *)(void *)(mine->out + got), (const float *)(const void *)(mine->in + got), (const float *)(const void *)piece,
        bytes / sizeof(float));
    taken(peer, bytes);
    return bytes;
}

static void allreduce(size_t count)
{
    int peer = 1 - me->rank;
    struct part mine = part_of(me->rank, count), theirs = part_of(peer, count);
    size_t all = count * sizeof(float), given = 0, got = 0, some;

    while (given < all || got < all) {
        do { /* all that there is room for, so that a sum leaves while it is in the cache */
            some = give_summed(peer, &mine, &theirs, given, got < mine.bytes ? got : mine.bytes);
            given += some;
        } while (some > 0);
        got += take_summing(peer, &mine, &theirs, got);
        if (some == 0 && may_yield)
            sched_yield();
    }
}

void ring_run(const struct compare_work *work)
{
    if (work->op == COMPARE_ALLREDUCE)
        allreduce(work->count);
    else
        pieces_exchange(me, work, may_yield, &(struct pieces_way){ give, take });
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where short allocations lie: side by side in blocks of 2 MiB, in the first gap that is long enough. A block is never given back, so that
 * an address is soon used again, for memory of another length: what programs do to those who keep mappings of it. Memory of a device's
 * pool lies likewise, all of it in one block that is as long as twice the device's memory.
 */
#include "fakecuda.h"

#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK_BYTES FC_GRANULARITY
#define SHORT_MAX ((size_t)1 << 20)

struct block {
    struct block *next;
    uintptr_t base;
    size_t bytes;
    int device;
    bool pool;
    uint64_t id;
};

static struct block *blocks;
static uint64_t last_id;

static struct block *block_new(int device, bool pool)
{
    struct block *b = calloc(1, sizeof *b);
    struct block **last = &blocks;

    if (b == NULL)
        return NULL;
    b->bytes = pool ? 2 * fc.memory_bytes : BLOCK_BYTES;
    b->base = fc_reserve(b->bytes, BLOCK_BYTES);
    if (b->base == 0) {
        free(b);
        return NULL;
    }
    b->device = device;
    b->pool = pool;
    b->id = ++last_id;
    while (*last != NULL)
        last = &(*last)->next;
    *last = b;
    return b;
}

/* The first gap of so many bytes; 0: there is none. */
static uintptr_t gap_in(const struct block *b, size_t bytes)
{
    uintptr_t address = b->base;

    while (address + bytes <= b->base + b->bytes) {
        const struct fc_range *r = fc_range_overlap(address, bytes);

        if (r == NULL)
            return address;
        address = r->base + r->mapped_bytes;
    }
    return 0;
}

uintptr_t fc_block_place(int device, size_t bytes, bool pool, uint64_t *block)
{
    uintptr_t address = 0;
    struct block *b;

    if (bytes > SHORT_MAX && !pool)
        return 0;
    for (b = blocks; b != NULL; b = b->next) {
        address = b->device == device && b->pool == pool ? gap_in(b, bytes) : 0;
        if (address != 0)
            break;
    }
    if (b == NULL) {
        b = block_new(device, pool);
        address = b != NULL ? b->base : 0;
    }
    if (address != 0)
        *block = b->id;
    return address;
}

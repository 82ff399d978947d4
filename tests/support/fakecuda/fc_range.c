/* SPDX-License-Identifier: Apache-2.0 */
/* The table of everything the driver knows by address, and how device memory is mapped. */
#include "fakecuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct fc_range **table; /* sorted by base; ranges never overlap */
static size_t nranges, capacity;
static uint64_t last_id;

size_t fc_round(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Index of the first range that ends behind the address. */
static size_t lower(uintptr_t address)
{
    size_t low = 0, high = nranges;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (table[middle]->base + table[middle]->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct fc_range *fc_range_at(size_t index)
{
    return index < nranges ? table[index] : NULL;
}

struct fc_range *fc_range_find(uintptr_t address)
{
    struct fc_range *r = fc_range_at(lower(address));

    return r != NULL && r->base <= address ? r : NULL;
}

struct fc_range *fc_range_overlap(uintptr_t address, size_t bytes)
{
    struct fc_range *r = fc_range_at(lower(address));

    return r != NULL && r->base < address + bytes ? r : NULL;
}

int fc_range_add(struct fc_range *range)
{
    size_t at = lower(range->base);

    if (nranges == capacity) {
        size_t larger = capacity == 0 ? 64 : capacity * 2;
        struct fc_range **grown = realloc(table, larger * sizeof *table);

        if (grown == NULL)
            return -1;
        table = grown;
        capacity = larger;
    }
    memmove(table + at + 1, table + at, (nranges - at) * sizeof *table);
    table[at] = range;
    nranges++;
    range->id = ++last_id;
    fc_count(FC_RANGES, 1);
    return 0;
}

void fc_range_remove(struct fc_range *range)
{
    size_t at = lower(range->base);

    if (fc_range_at(at) != range)
        abort();
    memmove(table + at, table + at + 1, (nranges - at - 1) * sizeof *table);
    nranges--;
    fc_count(FC_RANGES, -1);
}

static bool is_device(enum fc_kind kind)
{
    return kind == FC_DEVICE || kind == FC_POOL || kind == FC_IPC || kind == FC_VMM;
}

CUresult fc_resolve(uintptr_t address, size_t bytes, struct fc_place *place)
{
    size_t at = lower(address);
    struct fc_range *r = fc_range_at(at);
    uintptr_t end = address + bytes;

    memset(place, 0, sizeof *place);
    if (r == NULL || r->base > address) {
        place->kind = FC_PAGEABLE;
        place->alias = (char *)address; // NOLINT(performance-no-int-to-ptr)
        return CUDA_SUCCESS;
    }
    place->kind = r->kind;
    place->alias = r->alias + (address - r->base);
    place->device = r->device;
    place->physical = r->physical;
    place->access = r->access;
    place->on_device = is_device(r->kind);
    /* Only mappings of one reservation may be crossed: their aliases are consecutive as well. */
    while (r->base + r->bytes < end) {
        struct fc_range *after = fc_range_at(++at);

        if (r->kind != FC_VMM || after == NULL || after->kind != FC_VMM || after->base != r->base + r->bytes ||
            after->alias != r->alias + r->bytes)
            return CUDA_ERROR_INVALID_VALUE;
        place->access &= after->access;
        r = after;
    }
    if (place->kind == FC_VMM && place->access == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

char *fc_access(const struct fc_ctx *ctx, uintptr_t address, size_t bytes)
{
    struct fc_range *r = fc_range_find(address);
    struct fc_place place;

    if (r == NULL || fc_resolve(address, bytes, &place) != CUDA_SUCCESS)
        return NULL;
    switch (place.kind) {
    case FC_VMM:
        return place.access & 1u << ctx->device ? place.alias : NULL;
    case FC_POOL: /* peer access is another thing than access to a pool */
        return place.device == ctx->device ? place.alias : NULL;
    case FC_IPC:
        if (r->ctx == ctx)
            return place.alias;
        break;
    case FC_PINNED:
    case FC_REGISTERED:
        return place.alias;
    default:
        break;
    }
    if (place.device == ctx->device || (place.device >= 0 && (ctx->peers & 1u << place.device)))
        return place.alias;
    return NULL;
}

/* An address range that the CPU may not touch, aligned. */
static char *reserve(size_t bytes, size_t alignment)
{
    char *raw = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *aligned;

    if (raw == MAP_FAILED)
        return NULL;
    aligned = raw + (fc_round((uintptr_t)raw, alignment) - (uintptr_t)raw);
    if (aligned > raw)
        munmap(raw, (size_t)(aligned - raw));
    if (aligned < raw + alignment)
        munmap(aligned + bytes, (size_t)(raw + alignment - aligned));
    return aligned;
}

uintptr_t fc_reserve(size_t bytes, size_t alignment)
{
    return (uintptr_t)reserve(bytes, alignment);
}

int fc_map_at(int fd, size_t bytes, uintptr_t base, char **alias)
{
    int prot = fd >= 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *address = fc.protect ? NULL : (void *)base; // NOLINT(performance-no-int-to-ptr)
    char *seen = mmap(address, bytes, prot, fc.protect ? flags : flags | MAP_FIXED, fd, 0);

    if (seen == MAP_FAILED)
        return -1;
    *alias = seen;
    return 0;
}

void fc_unmap_at(uintptr_t base, char *alias, size_t bytes)
{
    if ((uintptr_t)alias != base)
        munmap(alias, bytes);
    else if (mmap(alias, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
}

int fc_map(int fd, size_t bytes, size_t alignment, uintptr_t *base, char **alias)
{
    char *address = reserve(bytes, alignment);

    if (address == NULL)
        return -1;
    if (fc_map_at(fd, bytes, (uintptr_t)address, alias) != 0) {
        munmap(address, bytes);
        return -1;
    }
    *base = (uintptr_t)address;
    return 0;
}

void fc_unmap(uintptr_t base, char *alias, size_t bytes)
{
    if ((uintptr_t)alias != base)
        munmap(alias, bytes);
    munmap((void *)base, bytes); // NOLINT(performance-no-int-to-ptr)
}

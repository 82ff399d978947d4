/* SPDX-License-Identifier: Apache-2.0 */
/* Memory between two guard zones. Freshly allocated each time, as programs do it and as caches of mappings least expect. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_dl.h"

#define GUARD_BYTES 256
#define GUARD_VALUE 0xa5

static char *allocate(size_t bytes)
{
    void *memory;

    if (posix_memalign(&memory, 64, bytes) != 0) {
        fprintf(stderr, "pickle-conform: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return memory;
}

void buffer_open(struct buffer *buffer, enum place place, size_t bytes, size_t misalign_bytes)
{
    buffer->place = place;
    buffer->bytes = bytes;
    buffer->offset = GUARD_BYTES + misalign_bytes;
    buffer->total = buffer->offset + bytes + GUARD_BYTES;
    buffer->image = allocate(buffer->total);
    buffer->base = place == PLACE_DEVICE ? gpu_alloc(buffer->total) : buffer->image;
    buffer->data = buffer->base + buffer->offset;
    memset(buffer->image, GUARD_VALUE, buffer->total);
}

void buffer_close(struct buffer *buffer)
{
    if (buffer->place == PLACE_DEVICE)
        gpu_free(buffer->base);
    free(buffer->image);
}

char *buffer_view(const struct buffer *buffer)
{
    return buffer->image + buffer->offset;
}

void buffer_push(struct buffer *buffer)
{
    if (buffer->place == PLACE_DEVICE)
        gpu_copy(buffer->base, buffer->image, buffer->total);
}

void buffer_pull(struct buffer *buffer)
{
    if (buffer->place == PLACE_DEVICE) {
        memset(buffer->image, 0, buffer->total);
        gpu_copy(buffer->image, buffer->base, buffer->total);
    }
}

static bool is_guard(const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)from[i] != GUARD_VALUE)
            return false;
    return true;
}

bool buffer_guards(const struct buffer *buffer)
{
    size_t behind = buffer->offset + buffer->bytes;

    return is_guard(buffer->image, buffer->offset) && is_guard(buffer->image + behind, buffer->total - behind);
}

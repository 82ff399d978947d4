/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_piece.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROWTH ((size_t)4 << 20) /* addresses behind an expandable piece */

static const char *const names[] = { "cudaMalloc", "pool", "expandable", "private", "pk_mem_alloc_device", "pinned", "pageable" };

static struct {
    bool sought;
    int (*alloc)(unsigned long long *at, size_t bytes, gpu_stream_t stream);
    int (*free)(unsigned long long at, gpu_stream_t stream);
} pool;

const char *gpu_kind_name(enum gpu_kind kind)
{
    return names[kind];
}

static bool has_pool(struct gpu_rank *self)
{
    void *library = pool.sought ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    unsigned long long at = 0;

    if (pool.sought)
        return pool.alloc != NULL;
    pool.sought = true;
    *(void **)&pool.alloc = library != NULL ? dlsym(library, "cuMemAllocAsync") : NULL;
    *(void **)&pool.free = library != NULL ? dlsym(library, "cuMemFreeAsync") : NULL;
    if (pool.alloc != NULL && pool.free != NULL && pool.alloc(&at, 4096, self->stream) == 0 && pool.free(at, self->stream) == 0)
        return true;
    pool.alloc = NULL;
    printf("rank %d: LEFT OUT: this driver has no cuMemAllocAsync\n", self->rank);
    return false;
}

static char *pool_memory(struct gpu_rank *self, size_t bytes)
{
    unsigned long long at = 0;

    if (pool.alloc(&at, bytes, self->stream) == 0 && gpu_stream_sync(self->stream) == 0)
        return (char *)(size_t)at;
    fprintf(stderr, "cuMemAllocAsync of %zu bytes failed\n", bytes);
    exit(2);
}

static char *own_memory(struct gpu_rank *self, size_t bytes)
{
    void *memory = NULL;

    must_be_ok(pk_mem_alloc_device(self->comm, bytes, &memory), "pk_mem_alloc_device");
    return memory;
}

static char *virtual_memory(struct gpu_piece *p, const struct gpu_rank *self, size_t bytes)
{
    int ordinal = self->rank % gpu_count();

    p->vmm =
        p->kind == GPU_HIDDEN ? gpu_vmm_alloc_private(ordinal, bytes) : gpu_vmm_alloc_growing(ordinal, bytes, bytes + GROWTH);
    p->bytes = p->vmm.bytes;
    return p->vmm.ptr;
}

void gpu_piece_make(struct gpu_piece *p, struct gpu_rank *self, enum gpu_kind kind, size_t bytes)
{
    *p = (struct gpu_piece){ .kind = kind == GPU_POOL && !has_pool(self) ? GPU_DEVICE : kind, .bytes = bytes };
    switch (p->kind) {
    case GPU_DEVICE:
        p->at = gpu_alloc(bytes);
        break;
    case GPU_POOL:
        p->at = pool_memory(self, bytes);
        break;
    case GPU_EXPANDABLE:
    case GPU_HIDDEN:
        p->at = virtual_memory(p, self, bytes);
        break;
    case GPU_OWN:
        p->at = own_memory(self, bytes);
        break;
    case GPU_PINNED:
        p->at = gpu_host_alloc(bytes);
        break;
    default:
        p->at = malloc(bytes);
    }
    if (p->at == NULL)
        exit(2);
}

void gpu_piece_unmake(struct gpu_piece *p, struct gpu_rank *self)
{
    switch (p->kind) {
    case GPU_DEVICE:
        gpu_free(p->at);
        break;
    case GPU_POOL:
        if (pool.free((unsigned long long)(size_t)p->at, self->stream) != 0)
            exit(2);
        break;
    case GPU_EXPANDABLE:
    case GPU_HIDDEN:
        gpu_vmm_free(&p->vmm);
        break;
    case GPU_OWN:
        must_be_ok(pk_mem_free(self->comm, p->at), "pk_mem_free");
        break;
    case GPU_PINNED:
        gpu_host_free(p->at);
        break;
    default:
        free(p->at);
    }
    p->at = NULL;
}

void gpu_piece_change(struct gpu_piece *p, bool grow)
{
    if (!grow || !gpu_vmm_grow(&p->vmm))
        gpu_vmm_replace_last(&p->vmm, p->vmm.ordinal);
    p->bytes = p->vmm.bytes;
}

void gpu_piece_copy(const struct gpu_piece *p, void *dst, const void *src, size_t bytes)
{
    if (p->kind < GPU_KINDS_ON_GPU)
        gpu_copy(dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc, pinned and registered host memory. */
#include "fakecuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define FILL_BYTES ((size_t)1 << 20)

void fc_wait_before_free(struct fc_ctx *ctx)
{
    const char *text = getenv("FAKECUDA_FREE_SYNC");

    if (text == NULL || text[0] != '0')
        fc_wait_ctx(ctx);
}

/* New device memory holds anything but zeros. */
static void fill(struct fc_range *r)
{
    size_t head = r->bytes < FILL_BYTES ? r->bytes : FILL_BYTES;

    fc_bytes_set(r->alias, 0xcb, head);
    if (r->bytes > head + PAGE)
        fc_bytes_set(r->alias + r->bytes - PAGE, 0xcb, PAGE);
}

static CUresult back_with_memfd(struct fc_range *r)
{
    int failed = -1;

    r->fd = memfd_create("fakecuda", MFD_CLOEXEC);
    if (r->fd < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    r->base = fc_block_place(r->device, r->mapped_bytes, r->kind == FC_POOL, &r->block);
    if (ftruncate(r->fd, (off_t)r->mapped_bytes) == 0)
        failed = r->block != 0 ? fc_map_at(r->fd, r->mapped_bytes, r->base, &r->alias)
                               : fc_map(r->fd, r->mapped_bytes, PAGE, &r->base, &r->alias);
    if (failed != 0)
        close(r->fd);
    return failed != 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void unmap(const struct fc_range *r)
{
    if (r->block != 0)
        fc_unmap_at(r->base, r->alias, r->mapped_bytes);
    else
        fc_unmap(r->base, r->alias, r->mapped_bytes);
    close(r->fd);
}

CUresult fc_device_alloc(enum fc_kind kind, struct fc_ctx *ctx, size_t bytes, CUdeviceptr *pointer)
{
    struct fc_range *r;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (bytes == 0 || pointer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    r = calloc(1, sizeof *r);
    if (r == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *r = (struct fc_range){ .kind = kind,
                            .bytes = bytes,
                            .mapped_bytes = fc_round(bytes, PAGE),
                            .device = ctx->device,
                            .physical = fc.physical[ctx->device],
                            .ctx = ctx };
    fc_lock();
    if (ctx->bytes_used + r->mapped_bytes > fc.memory_bytes)
        goto err_unlock;
    result = back_with_memfd(r);
    if (result != CUDA_SUCCESS)
        goto err_unlock;
    fill(r);
    if (fc_range_add(r) != 0) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
        goto err_unmap;
    }
    ctx->bytes_used += r->mapped_bytes;
    *pointer = r->base;
    fc_count(FC_ALLOCATIONS, 1);
    fc_unlock();
    return CUDA_SUCCESS;

err_unmap:
    unmap(r);
err_unlock:
    fc_unlock();
    free(r);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS)
        result = fc_device_alloc(FC_DEVICE, fc_current(), bytesize, dptr);
    return fc_leave(__func__, result);
}

void fc_device_drop(struct fc_range *r)
{
    fc_range_remove(r);
    unmap(r);
    r->ctx->bytes_used -= r->mapped_bytes;
    free(r);
}

static bool may_be_freed(const struct fc_range *r, uintptr_t address, enum fc_kind kind)
{
    if (r == NULL || r->base != address)
        return false;
    return r->kind == kind || (kind == FC_DEVICE && r->kind == FC_POOL && r->refs == 0);
}

/* Like the driver's, waits for all work of the context that owns the memory: free with a stream that waits for a peer, and
 * the call waits for that peer too. Not for memory of a pool. */
static CUresult range_free(uintptr_t address, enum fc_kind kind, void (*drop)(struct fc_range *))
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct fc_range *r;

    fc_lock();
    r = fc_range_find(address);
    if (may_be_freed(r, address, kind)) {
        uint64_t id = r->id;

        if (r->kind != FC_POOL)
            fc_wait_before_free(r->ctx);
        r = fc_range_find(address);
        if (r != NULL && r->id == id) {
            drop(r);
            result = CUDA_SUCCESS;
        }
    }
    fc_unlock();
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS && dptr != 0)
        result = range_free(dptr, FC_DEVICE, fc_device_drop);
    return fc_leave(__func__, result);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        *free_bytes = fc.memory_bytes - fc_current()->bytes_used;
        *total = fc.memory_bytes;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

/* --- host memory --- */

static CUresult host_add(enum fc_kind kind, void *pointer, size_t bytes)
{
    struct fc_ctx *ctx = fc_current();
    struct fc_range *r = calloc(1, sizeof *r);
    CUresult result = CUDA_SUCCESS;

    if (r == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *r = (struct fc_range){ .kind = kind,
                            .base = (uintptr_t)pointer,
                            .bytes = bytes,
                            .mapped_bytes = fc_round(bytes, PAGE),
                            .alias = pointer,
                            .fd = -1,
                            .device = ctx->device,
                            .physical = -1,
                            .ctx = ctx };
    fc_lock();
    if (fc_range_overlap(r->base, bytes) != NULL)
        result = fc_range_overlap(r->base, bytes)->kind == FC_REGISTERED || fc_range_overlap(r->base, bytes)->kind == FC_PINNED
                     ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                     : CUDA_ERROR_INVALID_VALUE;
    else if (fc_range_add(r) != 0)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    fc_unlock();
    if (result != CUDA_SUCCESS)
        free(r);
    return result;
}

static CUresult host_alloc(void **pointer, size_t bytes)
{
    CUresult result;
    void *memory;

    if (bytes == 0 || pointer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memory = mmap(NULL, fc_round(bytes, PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = host_add(FC_PINNED, memory, bytes);
    if (result != CUDA_SUCCESS) {
        munmap(memory, fc_round(bytes, PAGE));
        return result;
    }
    *pointer = memory;
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS &&
        (Flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)) != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = host_alloc(pp, bytesize);
    return fc_leave(__func__, result);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS)
        result = host_alloc(pp, bytesize);
    return fc_leave(__func__, result);
}

static void pinned_drop(struct fc_range *r)
{
    fc_range_remove(r);
    munmap(r->alias, r->mapped_bytes);
    free(r);
}

static void registered_drop(struct fc_range *r)
{
    fc_range_remove(r);
    free(r);
}

CUresult cuMemFreeHost(void *p)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS && p != NULL)
        result = range_free((uintptr_t)p, FC_PINNED, pinned_drop);
    return fc_leave(__func__, result);
}

/* A context takes its memory with it, but for what cuMemCreate made. */
void fc_ctx_free_memory(struct fc_ctx *ctx)
{
    struct fc_range *r;
    size_t i = 0;

    while ((r = fc_range_at(i)) != NULL) {
        if (r->ctx != ctx || r->kind == FC_VMM)
            i++;
        else if (r->kind == FC_DEVICE || r->kind == FC_POOL)
            fc_device_drop(r);
        else if (r->kind == FC_IPC)
            fc_ipc_drop(r);
        else if (r->kind == FC_PINNED)
            pinned_drop(r);
        else
            registered_drop(r);
    }
}

static bool is_mapped(void *pointer, size_t bytes)
{
    uintptr_t from = (uintptr_t)pointer / PAGE * PAGE;

    return msync((void *)from, (uintptr_t)pointer + bytes - from, MS_ASYNC) == 0; // NOLINT(performance-no-int-to-ptr)
}

static CUresult host_register(void *pointer, size_t bytes, unsigned flags)
{
    const unsigned known =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

    if (pointer == NULL || bytes == 0 || (flags & ~known) != 0 || !is_mapped(pointer, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return host_add(FC_REGISTERED, pointer, bytes);
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS)
        result = host_register(p, bytesize, Flags);
    return fc_leave(__func__, result);
}

CUresult cuMemHostUnregister(void *p)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        struct fc_range *r;

        fc_lock();
        r = fc_range_find((uintptr_t)p);
        if (r == NULL || r->kind != FC_REGISTERED)
            result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        fc_unlock();
    }
    if (result == CUDA_SUCCESS)
        result = range_free((uintptr_t)p, FC_REGISTERED, registered_drop);
    return fc_leave(__func__, result);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        struct fc_range *r;

        fc_lock();
        r = fc_range_find((uintptr_t)p);
        if (Flags != 0 || r == NULL || (r->kind != FC_PINNED && r->kind != FC_REGISTERED))
            result = CUDA_ERROR_INVALID_VALUE;
        else
            *pdptr = (CUdeviceptr)(uintptr_t)p;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

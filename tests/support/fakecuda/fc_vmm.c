/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: reservations, physical handles, mappings, descriptors for other processes. */
#include "fakecuda.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRAILER_MAGIC 0x76a11c0fu
#define TRAILER_BYTES ((size_t)4096)

/* A handle's descriptor tells an importer what it holds: in a page behind the memory. */
struct trailer {
    uint32_t magic;
    int32_t physical;
    uint64_t bytes;
    uint32_t handle_types;
};

struct fc_handle {
    struct fc_handle *next;
    int fd;
    size_t bytes;
    int physical, device; /* device: -1 when hidden from this process */
    unsigned handle_types;
    unsigned refs; /* creates, imports and retains not yet released */
    unsigned mappings;
};

struct reservation {
    struct reservation *next;
    uintptr_t base;
    char *alias;
    size_t bytes;
};

static struct fc_handle *handles;
static struct reservation *reservations;

static struct fc_handle *find_handle(CUmemGenericAllocationHandle value)
{
    struct fc_handle *h = handles;

    while (h != NULL && (CUmemGenericAllocationHandle)(uintptr_t)h != value)
        h = h->next;
    return h != NULL && h->refs > 0 ? h : NULL;
}

static CUmemGenericAllocationHandle value_of(const struct fc_handle *h)
{
    return (CUmemGenericAllocationHandle)(uintptr_t)h;
}

static void drop_handle(struct fc_handle *h)
{
    struct fc_handle **link = &handles;

    if (h->refs > 0 || h->mappings > 0)
        return;
    while (*link != h)
        link = &(*link)->next;
    *link = h->next;
    if (h->device >= 0)
        fc.contexts[h->device].bytes_used -= h->bytes;
    close(h->fd);
    free(h);
}

static struct fc_handle *add_handle(int fd, const struct trailer *t)
{
    struct fc_handle *h = calloc(1, sizeof *h);

    if (h == NULL)
        return NULL;
    *h = (struct fc_handle){ .next = handles,
                             .fd = fd,
                             .bytes = t->bytes,
                             .physical = t->physical,
                             .device = -1,
                             .handle_types = t->handle_types,
                             .refs = 1 };
    for (int i = 0; i < fc.devices; i++)
        if (fc.physical[i] == t->physical)
            h->device = i;
    if (h->device >= 0)
        fc.contexts[h->device].bytes_used += h->bytes;
    handles = h;
    return h;
}

static bool good_prop(const CUmemAllocationProp *prop)
{
    const unsigned types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

    return prop != NULL && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->location.id >= 0 && prop->location.id < fc.devices && ((unsigned)prop->requestedHandleTypes & ~types) == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    (void)option;
    if (result == CUDA_SUCCESS && (granularity == NULL || !good_prop(prop)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *granularity = FC_GRANULARITY;
    return fc_leave(__func__, result);
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop)
{
    struct trailer t = { .magic = TRAILER_MAGIC, .bytes = bytes };
    struct fc_handle *h;
    int fd;

    if (handle == NULL || bytes == 0 || bytes % FC_GRANULARITY != 0 || !good_prop(prop))
        return CUDA_ERROR_INVALID_VALUE;
    if (fc.contexts[prop->location.id].bytes_used + bytes > fc.memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    t.physical = fc.physical[prop->location.id];
    t.handle_types = prop->requestedHandleTypes;
    fd = memfd_create("fakecuda-vmm", MFD_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (ftruncate(fd, (off_t)(bytes + TRAILER_BYTES)) != 0 || pwrite(fd, &t, sizeof t, (off_t)bytes) != sizeof t)
        goto err_close;
    h = add_handle(fd, &t);
    if (h == NULL)
        goto err_close;
    *handle = value_of(h);
    return CUDA_SUCCESS;

err_close:
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS && flags != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = create(handle, size, prop);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        struct fc_handle *h;

        fc_lock();
        h = find_handle(handle);
        if (h == NULL) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            h->refs--;
            drop_handle(h);
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS && (shareableHandle == NULL || flags != 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct fc_handle *h;
        int fd;

        fc_lock();
        h = find_handle(handle);
        if (h == NULL || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(h->handle_types & (unsigned)handleType)) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
            if (fd < 0)
                result = CUDA_ERROR_OPERATING_SYSTEM;
            else
                memcpy(shareableHandle, &fd, sizeof fd);
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUresult import_fd(CUmemGenericAllocationHandle *handle, int given)
{
    struct fc_handle *h;
    struct trailer t;
    struct stat status;
    int fd;

    if (handle == NULL || fstat(given, &status) != 0 || status.st_size < (off_t)(FC_GRANULARITY + TRAILER_BYTES) ||
        pread(given, &t, sizeof t, status.st_size - (off_t)TRAILER_BYTES) != sizeof t || t.magic != TRAILER_MAGIC ||
        t.bytes + TRAILER_BYTES != (uint64_t)status.st_size)
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fc_lock();
    h = add_handle(fd, &t);
    fc_unlock();
    if (h == NULL) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = value_of(h);
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS && shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = import_fd(handle, (int)(uintptr_t)osHandle);
    return fc_leave(__func__, result);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        struct fc_range *r;

        fc_lock();
        r = fc_range_find((uintptr_t)addr);
        if (handle == NULL || r == NULL || r->kind != FC_VMM) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            r->handle->refs++;
            *handle = value_of(r->handle);
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        struct fc_handle *h;

        fc_lock();
        h = find_handle(handle);
        if (prop == NULL || h == NULL) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            memset(prop, 0, sizeof *prop);
            prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
            prop->requestedHandleTypes = (CUmemAllocationHandleType)h->handle_types;
            prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
            prop->location.id = h->device;
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

/* --- addresses --- */

static CUresult reserve(CUdeviceptr *pointer, size_t bytes, size_t alignment)
{
    struct reservation *v;

    if (pointer == NULL || bytes == 0 || bytes % FC_GRANULARITY != 0 || (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    v = calloc(1, sizeof *v);
    if (v == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    v->bytes = bytes;
    if (fc_map(-1, bytes, alignment > FC_GRANULARITY ? alignment : FC_GRANULARITY, &v->base, &v->alias) != 0) {
        free(v);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fc_lock();
    v->next = reservations;
    reservations = v;
    fc_unlock();
    *pointer = v->base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    (void)addr; /* a wish; the driver may ignore it too */
    if (result == CUDA_SUCCESS && flags != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = reserve(ptr, size, alignment);
    return fc_leave(__func__, result);
}

static CUresult unreserve(uintptr_t base, size_t bytes)
{
    struct reservation **link = &reservations;
    struct reservation *v;

    while (*link != NULL && (*link)->base != base)
        link = &(*link)->next;
    v = *link;
    if (v == NULL || v->bytes != bytes || fc_range_overlap(base, bytes) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *link = v->next;
    fc_unmap(v->base, v->alias, v->bytes);
    free(v);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = unreserve(ptr, size);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUresult map_handle(uintptr_t base, size_t bytes, struct fc_handle *h)
{
    struct reservation *v = reservations;
    struct fc_range *r;

    while (v != NULL && (base < v->base || base + bytes > v->base + v->bytes))
        v = v->next;
    if (v == NULL || h == NULL || bytes == 0 || bytes > h->bytes || bytes % FC_GRANULARITY != 0 || base % FC_GRANULARITY != 0 ||
        fc_range_overlap(base, bytes) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    r = calloc(1, sizeof *r);
    if (r == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *r = (struct fc_range){ .kind = FC_VMM,
                            .base = base,
                            .bytes = bytes,
                            .mapped_bytes = bytes,
                            .fd = -1,
                            .device = h->device,
                            .physical = h->physical,
                            .ctx = &fc.contexts[h->device >= 0 ? h->device : 0],
                            .handle = h };
    r->alias = v->alias + (base - v->base);
    if (mmap(r->alias, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h->fd, 0) == MAP_FAILED || fc_range_add(r) != 0) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    h->mappings++;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS && (offset != 0 || flags != 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = map_handle(ptr, size, find_handle(handle));
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

/* Whole mappings side by side, from base to base + bytes? */
static bool covered(uintptr_t base, size_t bytes)
{
    uintptr_t at = base;

    while (at < base + bytes) {
        struct fc_range *r = fc_range_find(at);

        if (r == NULL || r->kind != FC_VMM || r->base != at)
            return false;
        at += r->bytes;
    }
    return at == base + bytes && bytes > 0;
}

static void unmap_all(uintptr_t base, size_t bytes)
{
    struct fc_range *r;

    while ((r = fc_range_overlap(base, bytes)) != NULL) {
        fc_range_remove(r);
        mmap(r->alias, r->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        r->handle->mappings--;
        drop_handle(r->handle);
        free(r);
    }
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        if (covered(ptr, size))
            unmap_all(ptr, size);
        else
            result = CUDA_ERROR_INVALID_VALUE;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUresult set_access(uintptr_t base, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
    if (desc == NULL || count == 0 || !covered(base, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc[i].location.id < 0 || desc[i].location.id >= fc.devices)
            return CUDA_ERROR_INVALID_VALUE;
    for (uintptr_t at = base; at < base + bytes;) {
        struct fc_range *r = fc_range_find(at);

        for (size_t i = 0; i < count; i++) {
            unsigned bit = 1u << desc[i].location.id;

            r->access = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? r->access & ~bit : r->access | bit;
        }
        at += r->bytes;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = set_access(ptr, size, desc, count);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

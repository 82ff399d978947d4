/* SPDX-License-Identifier: Apache-2.0 */
/* Legacy IPC: a handle names a memfd of the exporting process, which the importer opens through /proc. */
#include "fakecuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HANDLE_MAGIC 0xfa4ec0deu

/* The inode tells a later file under the same descriptor number from the one that was exported. */
struct wire_handle {
    uint32_t magic;
    int32_t pid, fd, physical;
    uint64_t inode, id, bytes, mapped_bytes, base, block;
};
_Static_assert(sizeof(struct wire_handle) <= sizeof(CUipcMemHandle), "fits the driver's handle");

static CUresult handle_of(CUipcMemHandle *handle, uintptr_t address)
{
    struct fc_range *r = fc_range_find(address);
    struct wire_handle wire = { .magic = HANDLE_MAGIC, .pid = getpid() };
    struct stat status;

    /* Neither host memory nor cuMemMap's nor what another process has lent can be exported this way. */
    if (r == NULL || r->kind != FC_DEVICE || fstat(r->fd, &status) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    wire.fd = r->fd;
    wire.physical = r->physical;
    wire.inode = status.st_ino;
    wire.id = r->id;
    wire.bytes = r->bytes;
    wire.mapped_bytes = r->mapped_bytes;
    wire.base = r->base;
    wire.block = r->block;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &wire, sizeof wire);
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS && pHandle == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = handle_of(pHandle, dptr);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static int open_remote(const struct wire_handle *wire)
{
    char path[64];
    struct stat status;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)wire->pid, (int)wire->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &status) != 0 || status.st_ino != wire->inode || (uint64_t)status.st_size != wire->mapped_bytes) {
        close(fd);
        return -1;
    }
    return fd;
}

static int ordinal_of(int physical)
{
    for (int i = 0; i < fc.devices; i++)
        if (fc.physical[i] == physical)
            return i;
    return -1;
}

static struct fc_range *find_opened(const CUipcMemHandle *handle, const struct fc_ctx *ctx)
{
    struct fc_range *r;

    for (size_t i = 0; (r = fc_range_at(i)) != NULL; i++)
        if (r->kind == FC_IPC && r->ctx == ctx && memcmp(&r->ipc, handle, sizeof *handle) == 0)
            return r;
    return NULL;
}

/* The driver takes a mapping of what lay there before in the same block for this one, and refuses. */
static bool is_in_the_way(const struct fc_range *r, const struct wire_handle *wire)
{
    struct wire_handle old;

    memcpy(&old, r->ipc.reserved, sizeof old);
    return wire->block != 0 && old.block == wire->block && old.pid == wire->pid && old.base < wire->base + wire->mapped_bytes &&
           wire->base < old.base + old.mapped_bytes;
}

static bool is_taken(const struct wire_handle *wire, const struct fc_ctx *ctx)
{
    struct fc_range *r;

    for (size_t i = 0; (r = fc_range_at(i)) != NULL; i++)
        if (r->kind == FC_IPC && r->ctx == ctx && is_in_the_way(r, wire))
            return true;
    return false;
}

static CUresult map_remote(const CUipcMemHandle *handle, const struct wire_handle *wire, struct fc_range **range)
{
    struct fc_range *r = calloc(1, sizeof *r);

    if (r == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *r = (struct fc_range){ .kind = FC_IPC,
                            .bytes = wire->bytes,
                            .mapped_bytes = wire->mapped_bytes,
                            .physical = wire->physical,
                            .device = ordinal_of(wire->physical),
                            .ctx = fc_current(),
                            .refs = 0,
                            .ipc = *handle };
    r->fd = open_remote(wire);
    if (r->fd < 0)
        goto err_free;
    if (fc_map(r->fd, r->mapped_bytes, 4096, &r->base, &r->alias) != 0)
        goto err_close;
    if (fc_range_add(r) != 0)
        goto err_unmap;
    fc_count(FC_IPC_OPENS, 1);
    *range = r;
    return CUDA_SUCCESS;

err_unmap:
    fc_unmap(r->base, r->alias, r->mapped_bytes);
err_close:
    close(r->fd);
err_free:
    free(r);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult open_handle(CUdeviceptr *pointer, const CUipcMemHandle *handle, unsigned flags)
{
    struct wire_handle wire;
    struct fc_range *r;
    CUresult result = CUDA_SUCCESS;

    memcpy(&wire, handle->reserved, sizeof wire);
    if (wire.magic != HANDLE_MAGIC || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (wire.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    fc_lock();
    r = find_opened(handle, fc_current());
    if (r == NULL && is_taken(&wire, fc_current()))
        result = CUDA_ERROR_ALREADY_MAPPED;
    else if (r == NULL)
        result = map_remote(handle, &wire, &r);
    if (result == CUDA_SUCCESS) {
        r->refs++;
        *pointer = r->base;
    }
    fc_unlock();
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS)
        result = open_handle(pdptr, &handle, Flags);
    return fc_leave(__func__, result);
}

void fc_ipc_drop(struct fc_range *range)
{
    fc_range_remove(range);
    fc_unmap(range->base, range->alias, range->mapped_bytes);
    close(range->fd);
    free(range);
}

static CUresult close_mapping(uintptr_t address)
{
    struct fc_range *r = fc_range_find(address);
    uint64_t id;

    if (r == NULL || r->kind != FC_IPC || r->base != address)
        return CUDA_ERROR_INVALID_VALUE;
    id = r->id;
    if (r->refs == 1)
        fc_wait_before_free(r->ctx);
    r = fc_range_find(address);
    if (r == NULL || r->id != id)
        return CUDA_ERROR_INVALID_VALUE;
    if (--r->refs == 0)
        fc_ipc_drop(r);
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = close_mapping(dptr);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of one process in another: legacy IPC handles for cuMemAlloc memory, a file descriptor for each piece of VMM memory.
 * Within a process an address is valid as it is, once the other GPU's context has been made a peer of ours.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "device/cuda_device.h"
#include "util/fd.h"

/* An open IPC handle. The driver refuses to open one twice in a context, so communicators share them. */
struct ipc_mapping {
    struct pki_list node; /* in context->imports; pki_cuda_lock */
    bool stale;           /* closed: its owner has freed the memory and allocated other memory at the same address */
    bool in_the_way;      /* to be closed for that reason */
    uint8_t handle[PKI_EXPORT_HANDLE_BYTES];
    uint64_t owner, base, bytes; /* the owner's */
    CUdeviceptr address;
    int refs;
};

_Static_assert(sizeof(CUipcMemHandle) == PKI_EXPORT_HANDLE_BYTES, "an IPC handle fits an export exactly");

static uint64_t owner;
static pthread_once_t owner_once = PTHREAD_ONCE_INIT;

static void make_owner(void)
{
    if (getrandom(&owner, sizeof owner, 0) != (ssize_t)sizeof owner)
        owner = (uint64_t)getpid();
}

static uint64_t owner_number(void)
{
    pthread_once(&owner_once, make_owner);
    return owner;
}

static pk_result_t export_ipc(const struct pki_cuda_context *context, struct pki_export *out)
{
    CUipcMemHandle handle;
    CUresult code = context->cu->ipc_get_mem_handle(&handle, (CUdeviceptr)out->base);

    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "cuIpcGetMemHandle of %zu bytes at %#zx", (size_t)out->bytes, (size_t)out->base);
    memcpy(out->handle, &handle, sizeof handle);
    out->kind = PKI_EXPORT_IPC;
    return PK_OK;
}

static void close_fds(const int *fds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        close(fds[i]);
}

/* Append the piece at address to out: its descriptor, its size. */
static pk_result_t export_piece(const struct pki_cuda_context *context, uintptr_t address, struct pki_export *out, size_t *bytes)
{
    CUmemGenericAllocationHandle handle;
    uintptr_t base;
    size_t size;
    int fd = -1;
    int *fds = realloc(out->fds, (out->pieces + 1) * sizeof *fds);
    CUresult code;
    pk_result_t result;

    if (fds == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %u descriptors", out->pieces + 1);
    out->fds = fds;
    result = pki_cuda_piece(context, address, &base, &size, &handle);
    if (result == PK_ERR_UNSUPPORTED || (result == PK_OK && base != address))
        result = pki_fail(PK_ERR_ARG, NULL, "the memory mapped at %#zx has changed since it was looked up", (size_t)address);
    if (result != PK_OK)
        return result;
    code = context->cu->vmm_export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    context->cu->vmm_release(handle);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "cuMemExportToShareableHandle of %zu bytes at %#zx", size, (size_t)address);
    fd = pki_fd_keep(fd);
    if (fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "a descriptor for %zu bytes at %#zx", size, (size_t)address);
    fds[out->pieces++] = fd;
    *bytes = size;
    return PK_OK;
}

static pk_result_t export_vmm(const struct pki_cuda_context *context, struct pki_export *out)
{
    uint64_t done = 0;
    pk_result_t result = PK_OK;

    while (done < out->bytes && result == PK_OK) {
        size_t bytes = 0;

        result = export_piece(context, (uintptr_t)(out->base + done), out, &bytes);
        if (result == PK_OK && out->pieces == 1)
            out->piece_bytes_first = out->piece_bytes = bytes;
        else if (result == PK_OK && out->pieces == 2)
            out->piece_bytes = bytes;
        else if (result == PK_OK && out->piece_bytes != bytes)
            result =
                pki_fail(PK_ERR_UNSUPPORTED, NULL, "memory at %#zx consists of pieces of different sizes", (size_t)out->base);
        done += bytes;
    }
    if (result != PK_OK) {
        close_fds(out->fds, out->pieces);
        free(out->fds);
        return result;
    }
    out->kind = PKI_EXPORT_VMM;
    return PK_OK;
}

pk_result_t pki_cuda_export(struct pki_device *device, const struct pki_mem *mem, struct pki_export *out)
{
    struct pki_cuda *cuda = pki_cuda(device);
    struct pki_export made;
    pk_result_t result;

    if (mem->kind != PKI_MEM_DEVICE || mem->ordinal != cuda->info.ordinal)
        return pki_fail(PK_ERR_ARG, NULL, "memory to be shared is not of device %d", cuda->info.ordinal);
    if (!mem->shareable)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "%zu bytes at %#zx cannot be shared: %s", mem->bytes, (size_t)mem->base,
                        mem->vmm ? "virtual memory made without a file descriptor type, or of unequal pieces"
                                 : "from a memory pool that allows no IPC (cudaMallocAsync?)");
    memset(&made, 0, sizeof made);
    made.base = mem->base;
    made.bytes = mem->bytes;
    made.buffer_id = mem->buffer_id;
    made.owner = owner_number();
    memcpy(made.device_uuid, cuda->info.uuid, sizeof made.device_uuid);
    pki_cuda_enter(cuda->context);
    result = mem->vmm ? export_vmm(cuda->context, &made) : export_ipc(cuda->context, &made);
    pki_cuda_leave(cuda->context);
    if (result == PK_OK)
        *out = made;
    return result;
}

/* The ordinal of the GPU with this UUID, or -1: a process need not see the GPU whose memory it maps. */
static int ordinal_of_uuid(const struct pki_cuda_driver *cu, const uint8_t *bytes)
{
    int count = 0;

    cu->device_get_count(&count);
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUuuid uuid;

        if (cu->device_get(&device, i) == CUDA_SUCCESS && cu->device_get_uuid(&uuid, device) == CUDA_SUCCESS &&
            memcmp(uuid.bytes, bytes, sizeof uuid.bytes) == 0)
            return i;
    }
    return -1;
}

/* Make the context of another GPU in this process a peer of ours, so that its cuMemAlloc memory may be touched. */
static pk_result_t enable_peer(const struct pki_cuda_context *context, const uint8_t *uuid)
{
    const struct pki_cuda_driver *cu = context->cu;
    int ordinal = ordinal_of_uuid(cu, uuid), possible = 0;
    CUcontext peer = NULL;
    CUdevice device;
    CUresult code;

    if (ordinal == context->ordinal)
        return PK_OK;
    if (ordinal < 0)
        return pki_fail(PK_ERR_INTERNAL, NULL, "memory of this process is on a device this process does not have");
    code = cu->device_get(&device, ordinal);
    if (code == CUDA_SUCCESS)
        code = cu->device_can_access_peer(&possible, context->device, device);
    if (code == CUDA_SUCCESS && possible == 0)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "device %d cannot access device %d", context->ordinal, ordinal);
    if (code == CUDA_SUCCESS)
        code = cu->primary_retain(&peer, device);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "context of device %d, a peer of device %d", ordinal, context->ordinal);
    code = cu->ctx_enable_peer_access(peer, 0);
    cu->primary_release(device); /* its owner holds it for as long as its memory is used */
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        return pki_cuda_fail(code, "cuCtxEnablePeerAccess from device %d to device %d", context->ordinal, ordinal);
    return PK_OK;
}

/* VMM memory of this process: peer access does not cover it, so this device is let in by name. The address stays. */
static pk_result_t allow_vmm(const struct pki_cuda_context *context, const struct pki_export *in)
{
    CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->ordinal },
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUresult code;

    if (ordinal_of_uuid(context->cu, in->device_uuid) == context->ordinal)
        return PK_OK;
    code = context->cu->vmm_set_access((CUdeviceptr)in->base, in->bytes, &access, 1);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "cuMemSetAccess for device %d to %zu bytes of this process", context->ordinal,
                             (size_t)in->bytes);
    return PK_OK;
}

/* The mapping made by this very handle, open or stale. */
static struct ipc_mapping *mapping_find(const struct pki_cuda_context *context, const struct pki_export *in, bool stale)
{
    for (const struct pki_list *node = context->imports.next; node != &context->imports; node = node->next) {
        struct ipc_mapping *m = pki_container_of(node, struct ipc_mapping, node);

        if (m->stale == stale && m->owner == in->owner && m->base == in->base && m->bytes == in->bytes &&
            memcmp(m->handle, in->handle, sizeof m->handle) == 0)
            return m;
    }
    return NULL;
}

/* The owner has allocated again where this process still maps what it has freed, all or a part of it: the driver takes the two
 * for one and refuses. What overlaps memory that lives has been freed. */
static bool find_in_the_way(const struct pki_cuda_context *context, const struct pki_export *in)
{
    bool found = context->closing > 0; /* another thread is about it */

    for (const struct pki_list *node = context->imports.next; node != &context->imports; node = node->next) {
        struct ipc_mapping *m = pki_container_of(node, struct ipc_mapping, node);

        if (m->stale || m->owner != in->owner || m->base >= in->base + in->bytes || in->base >= m->base + m->bytes)
            continue;
        m->in_the_way = found = true;
    }
    return found;
}

/* With the process's lock held, which is let go meanwhile: what the close waits for may itself need the lock. */
static void close_unlocked(struct pki_cuda_context *context, CUdeviceptr address, uint64_t bytes)
{
    CUresult code;

    context->closing++;
    pki_cuda_unlock();
    code = context->cu->ipc_close_mem_handle(address);
    pki_cuda_lock();
    context->closing--;
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_DEINITIALIZED)
        pki_cuda_fail(code, "cuIpcCloseMemHandle of %zu bytes", (size_t)bytes);
}

static struct ipc_mapping *next_in_the_way(const struct pki_cuda_context *context)
{
    for (const struct pki_list *node = context->imports.next; node != &context->imports; node = node->next) {
        struct ipc_mapping *m = pki_container_of(node, struct ipc_mapping, node);

        if (m->in_the_way && !m->stale)
            return m;
    }
    return NULL;
}

void pki_cuda_drop_stale_mappings(struct pki_device *device)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;
    struct ipc_mapping *m;

    pki_cuda_enter(context);
    pki_cuda_lock();
    while ((m = next_in_the_way(context)) != NULL) {
        m->stale = true;
        close_unlocked(context, m->address, m->bytes);
    }
    pki_cuda_unlock();
    pki_cuda_leave(context);
}

static pk_result_t ipc_open(const struct pki_cuda_context *context, const struct pki_export *in, CUdeviceptr *address)
{
    const struct pki_cuda_driver *cu = context->cu;
    CUipcMemHandle handle;
    CUdeviceptr opened = 0, start = 0;
    size_t bytes = 0;
    CUresult code;

    memcpy(&handle, in->handle, sizeof handle);
    code = cu->ipc_open_mem_handle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (code == CUDA_ERROR_ALREADY_MAPPED && find_in_the_way(context, in))
        return PK_IN_PROGRESS;
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "cuIpcOpenMemHandle of %zu bytes on device %d", (size_t)in->bytes, context->ordinal);
    code = cu->mem_get_address_range(&start, &bytes, opened);
    if (code == CUDA_SUCCESS && bytes - (size_t)(opened - start) < in->bytes) {
        cu->ipc_close_mem_handle(opened);
        return pki_fail(PK_ERR_SYSTEM, NULL, "a peer's memory is %zu bytes long, not %zu as it said", bytes, (size_t)in->bytes);
    }
    *address = opened;
    return PK_OK;
}

static pk_result_t mapping_new(struct pki_cuda_context *context, const struct pki_export *in, struct ipc_mapping **out)
{
    struct ipc_mapping *m = calloc(1, sizeof *m);
    pk_result_t result;

    if (m == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a mapping");
    result = ipc_open(context, in, &m->address);
    if (result != PK_OK) {
        free(m);
        return result;
    }
    memcpy(m->handle, in->handle, sizeof m->handle);
    m->owner = in->owner;
    m->base = in->base;
    m->bytes = in->bytes;
    pki_list_push(&context->imports, &m->node);
    *out = m;
    return PK_OK;
}

/* With the process's lock held. */
static pk_result_t import_ipc(struct pki_cuda_context *context, const struct pki_export *in, void **base)
{
    struct ipc_mapping *m = mapping_find(context, in, false);
    pk_result_t result = m == NULL ? mapping_new(context, in, &m) : PK_OK;

    if (result != PK_OK)
        return result;
    m->refs++;
    *base = (void *)(uintptr_t)m->address;
    return PK_OK;
}

/* With the process's lock held. A stale mapping goes first: whoever holds it has held it longer. */
static void unimport_ipc(struct pki_cuda_context *context, const struct pki_export *in)
{
    struct ipc_mapping *m = mapping_find(context, in, true);

    if (m == NULL)
        m = mapping_find(context, in, false);
    if (m == NULL || --m->refs > 0)
        return;
    pki_list_remove(&m->node);
    if (!m->stale)
        close_unlocked(context, m->address, m->bytes);
    free(m);
}

static uint64_t piece_bytes(const struct pki_export *in, uint32_t index)
{
    return index == 0 ? in->piece_bytes_first : in->piece_bytes;
}

static void unmap_pieces(const struct pki_cuda_driver *cu, const struct pki_export *in, CUdeviceptr base, uint32_t n)
{
    uint64_t offset = 0;

    for (uint32_t i = 0; i < n; i++) {
        cu->vmm_unmap(base + offset, piece_bytes(in, i));
        offset += piece_bytes(in, i);
    }
}

/* The driver refuses a size that is not the piece's, which verifies what the peer said. The mapping keeps the piece alive. */
static CUresult map_piece(const struct pki_cuda_driver *cu, int fd, CUdeviceptr address, uint64_t bytes)
{
    CUmemGenericAllocationHandle handle;
    CUresult code = cu->vmm_import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (code != CUDA_SUCCESS)
        return code;
    code = cu->vmm_map(address, bytes, 0, handle, 0);
    cu->vmm_release(handle);
    return code;
}

static CUresult map_pieces(const struct pki_cuda_context *context, const struct pki_export *in, CUdeviceptr base)
{
    const struct pki_cuda_driver *cu = context->cu;
    CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->ordinal },
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    uint64_t offset = 0;
    CUresult code = CUDA_SUCCESS;
    uint32_t mapped = 0;

    while (mapped < in->pieces && code == CUDA_SUCCESS) {
        code = map_piece(cu, in->fds[mapped], base + offset, piece_bytes(in, mapped));
        if (code == CUDA_SUCCESS)
            offset += piece_bytes(in, mapped++);
    }
    if (code == CUDA_SUCCESS)
        code = cu->vmm_set_access(base, in->bytes, &access, 1);
    if (code != CUDA_SUCCESS)
        unmap_pieces(cu, in, base, mapped);
    return code;
}

static pk_result_t import_vmm(const struct pki_cuda_context *context, const struct pki_export *in, void **base)
{
    const struct pki_cuda_driver *cu = context->cu;
    uint64_t rest = in->pieces > 0 ? in->pieces - 1 : 0;
    CUdeviceptr address = 0;
    CUresult code;

    if (in->pieces == 0 || in->fds == NULL || in->piece_bytes_first > in->bytes ||
        (rest > 0 && (in->piece_bytes == 0 || (in->bytes - in->piece_bytes_first) / in->piece_bytes != rest)) ||
        in->piece_bytes_first + rest * in->piece_bytes != in->bytes)
        return pki_fail(PK_ERR_SYSTEM, NULL, "a peer's memory of %zu bytes does not add up from %u pieces", (size_t)in->bytes,
                        in->pieces);
    code = cu->vmm_reserve(&address, in->bytes, 0, 0, 0);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "cuMemAddressReserve of %zu bytes", (size_t)in->bytes);
    code = map_pieces(context, in, address);
    if (code != CUDA_SUCCESS) {
        cu->vmm_unreserve(address, in->bytes);
        return pki_cuda_fail(code, "mapping a peer's memory, %zu bytes in %u pieces, on device %d", (size_t)in->bytes, in->pieces,
                             context->ordinal);
    }
    *base = (void *)(uintptr_t)address;
    return PK_OK;
}

static pk_result_t import_own(const struct pki_cuda_context *context, const struct pki_export *in, void **base)
{
    pk_result_t result;

    if (in->kind == PKI_EXPORT_VMM)
        result = allow_vmm(context, in);
    else
        result = enable_peer(context, in->device_uuid);
    if (result == PK_OK)
        *base = (void *)(uintptr_t)in->base;
    return result;
}

pk_result_t pki_cuda_import(struct pki_device *device, const struct pki_export *in, bool same_process, void **base)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;
    pk_result_t result;

    pki_cuda_enter(context);
    if (same_process) {
        result = import_own(context, in, base);
    } else if (in->kind == PKI_EXPORT_IPC) {
        pki_cuda_lock();
        result = import_ipc(context, in, base);
        pki_cuda_unlock();
    } else if (in->kind == PKI_EXPORT_VMM) {
        result = import_vmm(context, in, base);
    } else {
        result = pki_fail(PK_ERR_ARG, NULL, "memory of another process, of which only the address is known");
    }
    pki_cuda_leave(context);
    return result;
}

void pki_cuda_unimport(struct pki_device *device, const struct pki_export *in, bool same_process, void *base)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;

    if (same_process)
        return;
    pki_cuda_enter(context);
    if (in->kind == PKI_EXPORT_IPC) {
        pki_cuda_lock();
        unimport_ipc(context, in);
        pki_cuda_unlock();
    } else if (in->kind == PKI_EXPORT_VMM) {
        unmap_pieces(context->cu, in, (CUdeviceptr)(uintptr_t)base, in->pieces);
        context->cu->vmm_unreserve((CUdeviceptr)(uintptr_t)base, in->bytes);
    }
    pki_cuda_leave(context);
}

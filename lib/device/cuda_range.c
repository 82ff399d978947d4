/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pointer points to. Asking the driver for everything takes several calls, so ranges are remembered; but memory can be
 * freed and the address given out again without our knowing, so a remembered range counts only while the driver still answers
 * with the same identity. For VMM memory that is asked of the pieces under the caller's range alone: a segment of torch's
 * allocator has hundreds.
 */
#include <stdlib.h>
#include <string.h>

#include "device/cuda_device.h"

/* The driver's answers about one pointer. Booleans are whole words: some drivers write one byte, some four. */
struct answers {
    unsigned type; /* CUmemorytype; 0: not the driver's memory */
    unsigned managed;
    unsigned ipc;
    int ordinal;
    unsigned long long buffer_id;
    CUdeviceptr start;
    size_t bytes;
};

static CUresult ask(const struct pki_cuda_driver *cu, uintptr_t address, struct answers *a)
{
    CUpointer_attribute which[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_BUFFER_ID,  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE
    };
    void *data[] = { &a->type, &a->managed, &a->ipc, &a->ordinal, &a->buffer_id, &a->start, &a->bytes };

    memset(a, 0, sizeof *a);
    return cu->pointer_get_attributes(sizeof which / sizeof which[0], which, data, (CUdeviceptr)address);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
    return hash ^ hash >> 29;
}

/* Is the piece with this handle still the one at address? */
static bool has_handle(const struct pki_cuda_driver *cu, uintptr_t address, CUmemGenericAllocationHandle handle)
{
    CUmemGenericAllocationHandle other;

    if (cu->vmm_retain(&other, (void *)address) != CUDA_SUCCESS)
        return false;
    cu->vmm_release(other);
    return other == handle;
}

/* Bounds of a piece when the driver gave those of more than the piece: pieces begin and end at multiples of the granularity. */
static pk_result_t piece_probe(const struct pki_cuda_driver *cu, uintptr_t address, CUmemGenericAllocationHandle handle,
                               uintptr_t *base, size_t *bytes)
{
    CUmemAllocationProp properties;
    uintptr_t low = *base, high = *base + *bytes, begin, end;
    size_t step = 0;
    CUresult code = cu->vmm_get_properties(&properties, handle);

    if (code == CUDA_SUCCESS)
        code = cu->vmm_get_granularity(&step, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (code != CUDA_SUCCESS || step == 0)
        return pki_cuda_fail(code, "granularity of the memory at %#zx", (size_t)address);
    begin = address - address % step;
    end = begin + step;
    while (begin >= low + step && has_handle(cu, begin - step, handle))
        begin -= step;
    while (end + step <= high && has_handle(cu, end, handle))
        end += step;
    *base = begin;
    *bytes = end - begin;
    return PK_OK;
}

pk_result_t pki_cuda_piece(const struct pki_cuda_context *context, uintptr_t address, uintptr_t *base, size_t *bytes,
                           CUmemGenericAllocationHandle *handle)
{
    const struct pki_cuda_driver *cu = context->cu;
    CUmemGenericAllocationHandle found;
    CUdeviceptr start = 0;
    size_t size = 0;
    uintptr_t piece_base;
    pk_result_t result = PK_OK;
    CUresult code;

    if (cu->vmm_retain(&found, (void *)address) != CUDA_SUCCESS)
        return PK_ERR_UNSUPPORTED;
    code = cu->mem_get_address_range(&start, &size, (CUdeviceptr)address);
    if (code != CUDA_SUCCESS) {
        result = pki_cuda_fail(code, "cuMemGetAddressRange of %#zx", (size_t)address);
        goto err_release;
    }
    piece_base = (uintptr_t)start;
    /* Drivers answer with the piece; one that answers with the whole reservation would be caught here. */
    if (!has_handle(cu, piece_base, found) || !has_handle(cu, piece_base + size - 1, found))
        result = piece_probe(cu, address, found, &piece_base, &size);
    if (result != PK_OK)
        goto err_release;
    *base = piece_base;
    *bytes = size;
    *handle = found;
    return PK_OK;

err_release:
    cu->vmm_release(found);
    return result;
}

/* Identity of the piece at address: changes when the memory there does. 0: no memory. For VMM memory the driver does not
 * promise a buffer id for each piece, so the piece's handle counts as well. */
static uint64_t piece_id(const struct pki_cuda_driver *cu, uintptr_t address, bool vmm)
{
    CUmemGenericAllocationHandle handle;
    unsigned long long id = 0;

    if (cu->pointer_get_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)address) != CUDA_SUCCESS)
        id = 0;
    if (!vmm)
        return id;
    if (cu->vmm_retain(&handle, (void *)address) != CUDA_SUCCESS)
        return 0;
    cu->vmm_release(handle);
    return mix(mix(1, id), handle) | 1;
}

static uintptr_t piece_address(const struct pki_cuda_range *range, size_t index)
{
    return range->mem.base + (index == 0 ? 0 : range->first + (index - 1) * range->piece);
}

static size_t piece_index(const struct pki_cuda_range *range, uintptr_t address)
{
    size_t offset = address - range->mem.base;

    return offset < range->first ? 0 : 1 + (offset - range->first) / range->piece;
}

static void range_drop(struct pki_cuda_range *range)
{
    free(range->ids);
    memset(range, 0, sizeof *range);
}

void pki_cuda_ranges_close(struct pki_cuda *cuda)
{
    for (size_t i = 0; i < PKI_CUDA_RANGES; i++)
        range_drop(&cuda->ranges[i]);
}

/* Is the memory under [address, address + bytes) what it was when the range was recorded? */
static bool range_holds(const struct pki_cuda_driver *cu, const struct pki_cuda_range *range, uintptr_t address, size_t bytes)
{
    size_t last = piece_index(range, address + (bytes > 0 ? bytes - 1 : 0));

    for (size_t i = piece_index(range, address); i <= last; i++) {
        uint64_t id = piece_id(cu, piece_address(range, i), range->mem.vmm);

        if (id == 0 || id != range->ids[i])
            return false;
    }
    return true;
}

static struct pki_cuda_range *range_find(struct pki_cuda *cuda, uintptr_t address, size_t bytes)
{
    for (size_t i = 0; i < PKI_CUDA_RANGES; i++) {
        struct pki_cuda_range *range = &cuda->ranges[i];

        if (range->mem.bytes == 0 || address < range->mem.base || address - range->mem.base >= range->mem.bytes ||
            bytes > range->mem.bytes - (address - range->mem.base))
            continue;
        if (range_holds(cuda->cu, range, address, bytes))
            return range;
        range_drop(range);
    }
    return NULL;
}

static pk_result_t range_add_id(struct pki_cuda_range *range, uint64_t id)
{
    uint64_t *ids = realloc(range->ids, (range->pieces + 1) * sizeof *ids);

    if (ids == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the %u pieces of an allocation", range->pieces + 1);
    ids[range->pieces++] = id;
    range->ids = ids;
    range->mem.buffer_id = mix(range->mem.buffer_id, id);
    return PK_OK;
}

/* Add the piece at the end of a VMM range. *fits becomes false when its size is not that of the pieces before it. */
static pk_result_t walk_piece(const struct pki_cuda_context *context, struct pki_cuda_range *range, uintptr_t address, bool *fits)
{
    const struct pki_cuda_driver *cu = context->cu;
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handle = 0;
    uintptr_t base = 0;
    size_t bytes = 0;
    pk_result_t result = pki_cuda_piece(context, address, &base, &bytes, &handle);

    if (result != PK_OK)
        return result;
    if (cu->vmm_get_properties(&properties, handle) != CUDA_SUCCESS ||
        (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
        range->mem.shareable = false;
    cu->vmm_release(handle);
    if (range->pieces == 0) {
        range->mem.base = base;
        range->first = bytes;
    } else if (range->pieces == 1) {
        range->piece = bytes;
    }
    if (bytes != range->piece && range->pieces >= 2)
        *fits = false;
    range->mem.bytes += bytes;
    return range_add_id(range, piece_id(cu, base, true));
}

/* All pieces under [address, address + bytes). PK_ERR_UNSUPPORTED without a log line: not VMM memory. */
static pk_result_t walk(const struct pki_cuda_context *context, struct pki_cuda_range *range, uintptr_t address, size_t bytes)
{
    bool fits = true;
    pk_result_t result;

    range->mem.vmm = true;
    range->mem.shareable = true;
    range->mem.bytes = 0;
    range->mem.buffer_id = 0;
    if (bytes > UINTPTR_MAX - address)
        return pki_fail(PK_ERR_ARG, NULL, "%zu bytes at %#zx run past the end of the address space", bytes, (size_t)address);
    result = walk_piece(context, range, address, &fits);
    while (result == PK_OK && range->mem.base + range->mem.bytes < address + bytes) {
        result = walk_piece(context, range, range->mem.base + range->mem.bytes, &fits);
        if (result == PK_ERR_UNSUPPORTED)
            return pki_fail(PK_ERR_ARG, NULL, "%zu bytes at %#zx: the memory mapped there ends after %zu", bytes, (size_t)address,
                            range->mem.base + range->mem.bytes - (size_t)address);
    }
    if (!fits) { /* an export has one size for all pieces but the first, and so has piece_index */
        range->piece = 0;
        range->mem.shareable = false;
    }
    return result;
}

/* The whole lookup. *range is empty at first; *found is false for host memory. */
static pk_result_t look_up(const struct pki_cuda_context *context, uintptr_t address, size_t bytes, struct pki_cuda_range *range,
                           bool *found)
{
    struct answers a;
    pk_result_t result;

    *found = false;
    if (ask(context->cu, address, &a) != CUDA_SUCCESS || a.type != CU_MEMORYTYPE_DEVICE || a.managed != 0)
        return PK_OK;
    *found = true;
    range->mem.kind = PKI_MEM_DEVICE;
    range->mem.ordinal = a.ordinal;
    if (a.ipc == 0) {
        result = walk(context, range, address, bytes);
        if (result != PK_ERR_UNSUPPORTED)
            return result;
    }
    range->mem.vmm = false;
    range->mem.shareable = a.ipc != 0;
    range->mem.base = (uintptr_t)a.start;
    range->mem.bytes = range->first = a.bytes;
    if (a.bytes == 0 || address - range->mem.base > a.bytes || bytes > a.bytes - (address - range->mem.base))
        return pki_fail(PK_ERR_ARG, NULL, "%zu bytes at %#zx run past the end of their allocation: %zu bytes at %#zx", bytes,
                        (size_t)address, a.bytes, (size_t)a.start);
    result = range_add_id(range, a.buffer_id);
    range->mem.buffer_id = a.buffer_id;
    return result;
}

/* Keep a range that can be checked again later; otherwise let it go. */
static void range_keep(struct pki_cuda *cuda, struct pki_cuda_range *range)
{
    struct pki_cuda_range *entry = &cuda->ranges[cuda->next_range];

    for (uint32_t i = 0; i < range->pieces; i++) {
        if (range->ids[i] == 0 || (range->pieces > 1 && range->piece == 0)) {
            range_drop(range);
            return;
        }
    }
    range_drop(entry);
    *entry = *range;
    cuda->next_range = (cuda->next_range + 1) % PKI_CUDA_RANGES;
}

pk_result_t pki_cuda_classify(struct pki_device *device, const void *ptr, size_t bytes, struct pki_mem *mem)
{
    struct pki_cuda *cuda = pki_cuda(device);
    struct pki_cuda_range fresh = { .pieces = 0 };
    const struct pki_cuda_range *known;
    pk_result_t result = PK_OK;
    bool found = false;

    pki_cuda_enter(cuda->context);
    known = range_find(cuda, (uintptr_t)ptr, bytes);
    if (known != NULL)
        *mem = known->mem;
    else
        result = look_up(cuda->context, (uintptr_t)ptr, bytes, &fresh, &found);
    pki_cuda_leave(cuda->context);
    if (known != NULL)
        return PK_OK;
    if (result != PK_OK) {
        free(fresh.ids);
        return result;
    }
    *mem = found ? fresh.mem : (struct pki_mem){ .kind = PKI_MEM_HOST };
    if (found)
        range_keep(cuda, &fresh);
    return PK_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for the program (pk_mem_alloc_device): virtual memory of one piece that can be handed to other processes as a
 * descriptor, and that every GPU of this process may touch that reaches it; where the driver has none of that, cuMemAlloc's. It
 * belongs to the process: a communicator need not be there.
 */
#include <pthread.h>
#include <stdlib.h>

#include "device/cuda_device.h"
#include "device/cuda_entry.h"
#include "util/fork.h"

#define DEVICES_MAX 64

struct memory {
    struct pki_list node;
    CUdeviceptr at;
    size_t bytes;    /* that are mapped */
    CUdevice device; /* its primary context is held */
    CUcontext context;
    unsigned stamp;
    bool vmm;
};

static struct {
    pthread_mutex_t lock;
    struct pki_list all;
} memories = { .lock = PTHREAD_MUTEX_INITIALIZER, .all = { &memories.all, &memories.all } };

/* The context current, and captures relaxed. */
static CUstreamCaptureMode enter(const struct pki_cuda_driver *cu, CUcontext context)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    (void)cu->ctx_push(context); /* a failure shows in what follows */
    (void)cu->exchange_capture_mode(&mode);
    return mode;
}

static void leave(const struct pki_cuda_driver *cu, CUstreamCaptureMode mode)
{
    CUcontext popped;

    (void)cu->exchange_capture_mode(&mode);
    (void)cu->ctx_pop(&popped);
}

static bool has(const struct pki_cuda_driver *cu, CUdevice device, CUdevice_attribute attribute)
{
    int value = 0;

    return cu->device_get_attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

static CUmemAllocationProp properties(const struct pki_cuda_driver *cu, CUdevice device)
{
    CUmemAllocationProp p = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device } };

    p.allocFlags.gpuDirectRDMACapable = has(cu, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    return p;
}

/* This GPU, and those of the process that reach it. */
static CUresult let_in(const struct pki_cuda_driver *cu, const struct memory *m)
{
    CUmemAccessDesc access[DEVICES_MAX];
    size_t n = 0;
    int count = 0;

    (void)cu->device_get_count(&count);
    for (int i = 0; i < count && i < DEVICES_MAX; i++) {
        CUdevice device;
        int reaches = 0;

        if (cu->device_get(&device, i) != CUDA_SUCCESS)
            continue;
        if (device != m->device && (cu->device_can_access_peer(&reaches, device, m->device) != CUDA_SUCCESS || reaches == 0))
            continue;
        access[n++] = (CUmemAccessDesc){ .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
                                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    }
    return cu->vmm_set_access(m->at, m->bytes, access, n);
}

static CUresult map(const struct pki_cuda_driver *cu, CUmemGenericAllocationHandle handle, size_t alignment, struct memory *m)
{
    CUresult code = cu->vmm_reserve(&m->at, m->bytes, alignment, 0, 0);

    if (code != CUDA_SUCCESS)
        return code;
    code = cu->vmm_map(m->at, m->bytes, 0, handle, 0);
    if (code != CUDA_SUCCESS)
        goto err_unreserve;
    code = let_in(cu, m);
    if (code == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    (void)cu->vmm_unmap(m->at, m->bytes);
err_unreserve:
    (void)cu->vmm_unreserve(m->at, m->bytes);
    return code;
}

static CUresult make_vmm(const struct pki_cuda_driver *cu, size_t bytes, struct memory *m)
{
    const CUmemAllocationProp p = properties(cu, m->device);
    CUmemGenericAllocationHandle handle;
    size_t step = 0;
    CUresult code = cu->vmm_get_granularity(&step, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

    if (code != CUDA_SUCCESS)
        return code;
    if (step == 0 || bytes > SIZE_MAX - step)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->bytes = (bytes + step - 1) / step * step;
    code = cu->vmm_create(&handle, m->bytes, &p, 0);
    if (code != CUDA_SUCCESS)
        return code;
    code = map(cu, handle, step, m);
    (void)cu->vmm_release(handle); /* the mapping holds it */
    m->vmm = code == CUDA_SUCCESS;
    return code;
}

static pk_result_t make(const struct pki_cuda_driver *cu, size_t bytes, struct memory *m)
{
    CUresult code = CUDA_ERROR_NOT_SUPPORTED;

    if (has(cu, m->device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
        has(cu, m->device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        code = make_vmm(cu, bytes, m);
    if (code == CUDA_SUCCESS)
        return PK_OK;
    if (code != CUDA_ERROR_OUT_OF_MEMORY)
        code = cu->mem_alloc(&m->at, bytes);
    return code == CUDA_SUCCESS ? PK_OK : pki_cuda_fail(code, "allocating %zu bytes on device %d", bytes, (int)m->device);
}

/* As the CUDA runtime: a thread that has chosen none has the first. */
static pk_result_t find_device(const struct pki_cuda_driver *cu, int ordinal, CUdevice *device)
{
    CUcontext current = NULL;
    CUresult code;

    if (ordinal == -1 && cu->ctx_get_current(&current) == CUDA_SUCCESS && current != NULL)
        code = cu->ctx_get_device(device);
    else
        code = cu->device_get(device, ordinal == -1 ? 0 : ordinal);
    return code == CUDA_SUCCESS ? PK_OK : pki_cuda_fail(code, "memory on device %d", ordinal);
}

static pk_result_t make_on(const struct pki_cuda_driver *cu, size_t bytes, struct memory *m)
{
    CUresult code = cu->primary_retain(&m->context, m->device);
    CUstreamCaptureMode mode;
    pk_result_t result;

    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "cuDevicePrimaryCtxRetain of device %d", (int)m->device);
    mode = enter(cu, m->context);
    result = make(cu, bytes, m);
    leave(cu, mode);
    if (result != PK_OK)
        (void)cu->primary_release(m->device);
    return result;
}

pk_result_t pki_cuda_mem_alloc(int ordinal, size_t bytes, void **ptr)
{
    const char *why = NULL;
    const struct pki_cuda_driver *cu = pki_cuda_driver(&why);
    struct memory *m;
    pk_result_t result;

    if (cu == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "no memory of a GPU: %s", why);
    m = calloc(1, sizeof *m);
    if (m == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to record %zu bytes of a GPU", bytes);
    m->stamp = pki_fork_stamp();
    result = find_device(cu, ordinal, &m->device);
    if (result == PK_OK)
        result = make_on(cu, bytes, m);
    if (result != PK_OK) {
        free(m);
        return result;
    }
    pthread_mutex_lock(&memories.lock);
    pki_list_push(&memories.all, &m->node);
    pthread_mutex_unlock(&memories.lock);
    *ptr = (void *)(uintptr_t)m->at;
    return PK_OK;
}

/* Out of the list. NULL: it is not there. */
static struct memory *take(CUdeviceptr at)
{
    struct memory *found = NULL;

    pthread_mutex_lock(&memories.lock);
    for (struct pki_list *n = memories.all.next; n != &memories.all && found == NULL; n = n->next)
        if (pki_container_of(n, struct memory, node)->at == at)
            found = pki_container_of(n, struct memory, node);
    if (found != NULL)
        pki_list_remove(&found->node);
    pthread_mutex_unlock(&memories.lock);
    return found;
}

static CUresult unmake(const struct pki_cuda_driver *cu, const struct memory *m)
{
    const CUstreamCaptureMode mode = enter(cu, m->context);
    CUresult code;

    if (!m->vmm) {
        code = cu->mem_free(m->at);
    } else {
        code = cu->vmm_unmap(m->at, m->bytes);
        if (code == CUDA_SUCCESS)
            code = cu->vmm_unreserve(m->at, m->bytes);
    }
    leave(cu, mode);
    (void)cu->primary_release(m->device);
    return code;
}

pk_result_t pki_cuda_mem_free(void *ptr)
{
    struct memory *m = take((CUdeviceptr)(uintptr_t)ptr);
    pk_result_t result = PK_OK;
    CUresult code;

    if (m == NULL)
        return PK_IN_PROGRESS;
    if (!pki_fork_is_ours(m->stamp)) {
        result = pki_fail(PK_ERR_UNSUPPORTED, NULL, "%p belongs to the parent process: it was allocated before a fork", ptr);
    } else {
        code = unmake(pki_cuda_driver(NULL), m);
        if (code != CUDA_SUCCESS && code != CUDA_ERROR_DEINITIALIZED)
            result = pki_cuda_fail(code, "freeing %zu bytes at %p", m->bytes, ptr);
    }
    free(m);
    return result;
}

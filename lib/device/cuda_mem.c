/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of our own, and host memory that queues may touch. */
#include <sched.h>
#include <stdlib.h>

#include "device/cuda_device.h"
#include "tuning/tuning.h"
#include "util/clock.h"

#define ZERO_NS (10 * PKI_NS_PER_S)

/*
 * Host memory registered by this process. The driver refuses to register a page twice, while several communicators may want the
 * same one: so registrations are counted. Each holds the context that made it.
 */
struct registration {
    struct pki_list node;
    struct pki_cuda_context *context;
    void *ptr;
    size_t bytes;
    int refs;
    bool foreign; /* the program had registered it: not ours to undo */
};

static struct pki_list registrations = { &registrations, &registrations }; /* pki_cuda_lock */

/* A memset is a kernel, which sm_policy NONE rules out and which waits where a program's kernel holds all multiprocessors;
 * what the library wants zeroed under that policy is short, and is copied. Not cuMemsetD8: that one goes through the legacy
 * stream, and waits for the program's work in it. */
static CUresult put_zeros(const struct pki_cuda_context *context, CUstream stream, CUdeviceptr address, size_t bytes)
{
    static const char zeros[4096];
    CUresult code = CUDA_SUCCESS;

    if (bytes > pki_tuning.gpu.zeros_bytes)
        return context->cu->memset_async(address, 0, bytes, stream);
    for (size_t done = 0; done < bytes && code == CUDA_SUCCESS; done += sizeof zeros)
        code = context->cu->memcpy_async(address + done, (CUdeviceptr)(uintptr_t)zeros,
                                         bytes - done < sizeof zeros ? bytes - done : sizeof zeros, stream);
    return code;
}

static bool ends_in_time(const struct pki_queue *queue, uint64_t until)
{
    while (!pki_cuda_idle(queue)) {
        if (pki_now_ns() > until)
            return false;
        sched_yield();
    }
    return true;
}

pk_result_t pki_cuda_zero(struct pki_device *device, void *ptr, size_t bytes)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;
    uint64_t until = pki_now_ns() + ZERO_NS;
    struct pki_queue queue;
    pk_result_t result = pki_cuda_queue_open(device, &queue);
    CUresult code = CUDA_SUCCESS;

    if (result != PK_OK)
        return result;
    while (!pki_cuda_clear(&queue, true) && pki_now_ns() < until)
        sched_yield();
    pki_cuda_enter(context);
    code = put_zeros(context, queue.handle, (CUdeviceptr)(uintptr_t)ptr, bytes);
    if (code != CUDA_SUCCESS)
        result = pki_cuda_fail(code, "zeroing %zu bytes on device %d", bytes, context->ordinal);
    else if (!ends_in_time(&queue, until))
        result = pki_fail(PK_ERR_TIMEOUT, NULL,
                          "zeroing %zu bytes on device %d has not ended in %d s: kernels or streams that wait keep the GPU",
                          bytes, context->ordinal, (int)(ZERO_NS / PKI_NS_PER_S));
    pki_cuda_leave(context);
    pki_cuda_queue_close(&queue);
    return result;
}

pk_result_t pki_cuda_alloc(struct pki_device *device, size_t bytes, void **ptr)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;
    CUdeviceptr address = 0;
    CUresult code;

    pki_cuda_enter(context);
    code = context->cu->mem_alloc(&address, bytes > 0 ? bytes : 1);
    pki_cuda_leave(context);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "cuMemAlloc of %zu bytes on device %d", bytes, context->ordinal);
    *ptr = (void *)(uintptr_t)address;
    return PK_OK;
}

void pki_cuda_free(struct pki_device *device, void *ptr)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;
    CUresult code;

    if (ptr == NULL)
        return;
    pki_cuda_enter(context);
    code = context->cu->mem_free((CUdeviceptr)(uintptr_t)ptr);
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_DEINITIALIZED)
        pki_cuda_fail(code, "cuMemFree of %p", ptr);
    pki_cuda_leave(context);
}

static struct registration *registration_find(const void *ptr)
{
    for (struct pki_list *node = registrations.next; node != &registrations; node = node->next) {
        struct registration *r = pki_container_of(node, struct registration, node);

        if (r->ptr == ptr)
            return r;
    }
    return NULL;
}

/* Do queues see the range at the host's own address? The last byte is asked about too, since the program's registration may end
 * before ours would. */
static bool mapped_in_place(const struct pki_cuda_driver *cu, void *ptr, size_t bytes)
{
    CUdeviceptr first = 0, last = 0, end = (CUdeviceptr)(uintptr_t)ptr + bytes - 1;

    return cu->host_get_device_pointer(&first, ptr, 0) == CUDA_SUCCESS && first == (CUdeviceptr)(uintptr_t)ptr &&
           cu->pointer_get_attribute(&last, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, end) == CUDA_SUCCESS && last == end;
}

static pk_result_t registration_make(struct pki_cuda_context *context, void *ptr, size_t bytes, struct registration *r)
{
    const struct pki_cuda_driver *cu = context->cu;
    CUresult code = cu->host_register(ptr, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);

    r->foreign = code == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (code != CUDA_SUCCESS && !r->foreign)
        return pki_cuda_fail(code, "cuMemHostRegister of %zu bytes at %p", bytes, ptr);
    if (!mapped_in_place(cu, ptr, bytes)) {
        if (!r->foreign)
            cu->host_unregister(ptr);
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "%zu bytes of host memory at %p: %s", bytes, ptr,
                        r->foreign ? "registered by the program, but not for all of the range or not mapped"
                                   : "the GPU sees them at another address");
    }
    r->context = context;
    r->ptr = ptr;
    r->bytes = bytes;
    r->refs = 1;
    pki_cuda_context_ref(context);
    return PK_OK;
}

pk_result_t pki_cuda_host_register(struct pki_device *device, void *ptr, size_t bytes)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;
    struct registration *r;
    pk_result_t result = PK_OK;

    if (ptr == NULL || bytes == 0)
        return pki_fail(PK_ERR_ARG, NULL, "no host memory to register (%zu bytes at %p)", bytes, ptr);
    pki_cuda_enter(context);
    pki_cuda_lock();
    r = registration_find(ptr);
    if (r != NULL && r->bytes >= bytes) {
        r->refs++;
        goto out;
    }
    r = calloc(1, sizeof *r);
    if (r == NULL) {
        result = pki_fail(PK_ERR_MEMORY, NULL, "no memory for a registration");
        goto out;
    }
    result = registration_make(context, ptr, bytes, r);
    if (result == PK_OK)
        pki_list_push(&registrations, &r->node);
    else
        free(r);
out:
    pki_cuda_unlock();
    pki_cuda_leave(context);
    return result;
}

static void registration_end(struct registration *r)
{
    struct pki_cuda_context *context = r->context;
    CUresult code = CUDA_SUCCESS;

    pki_list_remove(&r->node);
    if (!r->foreign) {
        pki_cuda_enter(context);
        code = context->cu->host_unregister(r->ptr);
        pki_cuda_leave(context);
    }
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_DEINITIALIZED)
        pki_cuda_fail(code, "cuMemHostUnregister of %p", r->ptr);
    pki_cuda_context_unref(context);
    free(r);
}

void pki_cuda_host_unregister(struct pki_device *device, void *ptr)
{
    struct registration *r;

    (void)device;
    pki_cuda_lock();
    r = registration_find(ptr);
    if (r != NULL && --r->refs == 0)
        registration_end(r);
    pki_cuda_unlock();
}

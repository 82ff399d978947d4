/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in the order of a stream: cuMemAllocAsync and cuMemFreeAsync of each device's default pool. It has no IPC handle, and the next
 * allocation that fits has the address of the one that was freed.
 */
#include "fakecuda.h"

#include <stdlib.h>

/* A free that stands in a stream. */
struct freeing {
    uintptr_t base;
    uint64_t id;
};

/* Lock held. No allocation nodes: a stream that is being captured is refused. */
static CUresult stream_of(CUstream handle, struct fc_stream **stream)
{
    CUresult result = fc_stream_get(handle, stream);

    return result == CUDA_SUCCESS ? fc_capture_check(*stream) : result;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    struct fc_stream *s = NULL;
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = stream_of(hStream, &s);
        fc_unlock();
    }
    if (result == CUDA_SUCCESS)
        result = fc_device_alloc(FC_POOL, s->ctx, bytesize, dptr);
    return fc_leave(__func__, result);
}

/* In the stream's thread. A context that was destroyed has taken its memory with it. */
static void end(void *data)
{
    struct freeing *f = data;
    struct fc_range *r;

    fc_lock();
    r = fc_range_find(f->base);
    if (r != NULL && r->id == f->id)
        fc_device_drop(r);
    fc_unlock();
    free(f);
}

/* Lock held. */
static CUresult begin(struct fc_stream *s, uintptr_t address)
{
    struct fc_range *r = fc_range_find(address);
    struct freeing *f;
    struct fc_op *op;

    if (r == NULL || r->kind != FC_POOL || r->base != address || r->refs > 0)
        return CUDA_ERROR_INVALID_VALUE;
    f = malloc(sizeof *f);
    if (f == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *f = (struct freeing){ .base = r->base, .id = r->id };
    r->refs = 1;
    op = fc_op_new(FC_OP_HOST, s->ctx);
    op->host.fn = end;
    op->host.data = f;
    return fc_submit(s, op);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    struct fc_stream *s = NULL;
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = stream_of(hStream, &s);
        if (result == CUDA_SUCCESS)
            result = begin(s, dptr);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

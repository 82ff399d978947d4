/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and memsets. */
#include "fakecuda.h"

#include <stdlib.h>
#include <string.h>

#define SNAPSHOT_BYTES ((size_t)64 << 10)

/* What a call promises about its addresses. */
enum side { ANY, KNOWN };

struct copy_call {
    uintptr_t dst, src;
    size_t bytes;
    enum side dst_side, src_side;
    bool synchronous;
};

static bool side_ok(enum side side, const struct fc_place *place)
{
    return side == ANY || place->kind != FC_PAGEABLE;
}

/* As the driver: a copy to pageable memory is over when the call returns; one from it has at least been read. */
static bool call_waits(const struct copy_call *call, const struct fc_place *dst, const struct fc_place *src)
{
    if (dst->kind == FC_PAGEABLE)
        return true;
    if (src->kind == FC_PAGEABLE)
        return call->synchronous || call->bytes > SNAPSHOT_BYTES;
    return call->synchronous && !(dst->on_device && src->on_device);
}

static struct fc_op *copy_op(const struct copy_call *call, struct fc_ctx *ctx, const struct fc_place *dst,
                             const struct fc_place *src)
{
    struct fc_op *op = fc_op_new(FC_OP_COPY, ctx);

    op->copy.dst = call->dst;
    op->copy.src = call->src;
    op->copy.bytes = call->bytes;
    op->copy.dst_pageable = dst->kind == FC_PAGEABLE;
    op->copy.src_pageable = src->kind == FC_PAGEABLE;
    op->copy.crosses = dst->on_device && src->on_device && dst->physical != src->physical;
    op->copy.local = dst->on_device && src->on_device && dst->physical == src->physical;
    return op;
}

static CUresult copy(const struct copy_call *call, CUstream handle)
{
    struct fc_stream *s = NULL;
    struct fc_place dst, src;
    struct fc_op *op;
    bool waits;
    CUresult result = fc_stream_get(handle, &s);

    if (result == CUDA_SUCCESS)
        result = fc_resolve(call->dst, call->bytes, &dst);
    if (result == CUDA_SUCCESS)
        result = fc_resolve(call->src, call->bytes, &src);
    if (result != CUDA_SUCCESS || call->bytes == 0)
        return result;
    if (!side_ok(call->dst_side, &dst) || !side_ok(call->src_side, &src))
        return CUDA_ERROR_INVALID_VALUE;
    op = copy_op(call, s->ctx, &dst, &src);
    waits = s->capture == NULL && call_waits(call, &dst, &src);
    if (s->capture == NULL && !waits && src.kind == FC_PAGEABLE) {
        op->copy.snapshot = malloc(call->bytes);
        if (op->copy.snapshot == NULL)
            abort();
        memcpy(op->copy.snapshot, src.alias, call->bytes);
    }
    result = fc_submit(s, op);
    if (result == CUDA_SUCCESS && waits) {
        fc_wait_done(s);
        result = fc.sticky;
    }
    return result;
}

static CUresult copy_entry(const char *name, const struct copy_call *call, CUstream stream)
{
    CUresult result = fc_enter(name, call->synchronous ? FC_CTX | FC_UNSAFE : FC_CTX);

    fc_trace("%s %#lx <- %#lx, %zu bytes, stream %p", name, (unsigned long)call->dst, (unsigned long)call->src, call->bytes,
             (void *)stream);
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = copy(call, stream);
        fc_unlock();
    }
    return fc_leave(name, result);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    const struct copy_call call = { dst, src, ByteCount, ANY, ANY, false };

    return copy_entry(__func__, &call, hStream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    const struct copy_call call = { dstDevice, srcDevice, ByteCount, KNOWN, KNOWN, false };

    return copy_entry(__func__, &call, hStream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
    const struct copy_call call = { dstDevice, (uintptr_t)srcHost, ByteCount, KNOWN, ANY, false };

    return copy_entry(__func__, &call, hStream);
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    const struct copy_call call = { (uintptr_t)dstHost, srcDevice, ByteCount, ANY, KNOWN, false };

    return copy_entry(__func__, &call, hStream);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    const struct copy_call call = { dstDevice, (uintptr_t)srcHost, ByteCount, KNOWN, ANY, true };

    return copy_entry(__func__, &call, NULL);
}

CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    const struct copy_call call = { (uintptr_t)dstHost, srcDevice, ByteCount, ANY, KNOWN, true };

    return copy_entry(__func__, &call, NULL);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    const struct copy_call call = { dstDevice, srcDevice, ByteCount, KNOWN, KNOWN, true };

    return copy_entry(__func__, &call, NULL);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    const struct copy_call call = { dst, src, ByteCount, ANY, ANY, true };

    return copy_entry(__func__, &call, NULL);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                           size_t ByteCount, CUstream hStream)
{
    const struct copy_call call = { dstDevice, srcDevice, ByteCount, KNOWN, KNOWN, false };

    if (!fc_ctx_valid((struct fc_ctx *)(void *)dstContext) || !fc_ctx_valid((struct fc_ctx *)(void *)srcContext))
        return fc_leave(__func__, CUDA_ERROR_INVALID_CONTEXT);
    return copy_entry(__func__, &call, hStream);
}

/* --- memsets --- */

struct set_call {
    uintptr_t dst;
    uint32_t value;
    unsigned width;
    size_t count;
};

static CUresult set(const struct set_call *call, CUstream handle)
{
    struct fc_stream *s = NULL;
    struct fc_op *op;
    CUresult result = fc_stream_get(handle, &s);

    if (result != CUDA_SUCCESS || call->count == 0)
        return result;
    if (s->ctx != fc_current())
        return CUDA_ERROR_INVALID_HANDLE;
    if (call->dst % call->width != 0 || fc_access(s->ctx, call->dst, call->count * call->width) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    op = fc_op_new(FC_OP_SET, s->ctx);
    op->set.dst = call->dst;
    op->set.value = call->value;
    op->set.width = call->width;
    op->set.count = call->count;
    return fc_submit(s, op);
}

static CUresult set_entry(const char *name, const struct set_call *call, CUstream stream, unsigned need)
{
    CUresult result = fc_enter(name, need);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = set(call, stream);
        fc_unlock();
    }
    return fc_leave(name, result);
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
    const struct set_call call = { dstDevice, uc, 1, N };

    return set_entry(__func__, &call, hStream, FC_CTX);
}

CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream)
{
    const struct set_call call = { dstDevice, us, 2, N };

    return set_entry(__func__, &call, hStream, FC_CTX);
}

CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
{
    const struct set_call call = { dstDevice, ui, 4, N };

    return set_entry(__func__, &call, hStream, FC_CTX);
}

/* Returns before the memory is set, as the driver's does. */
CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    const struct set_call call = { dstDevice, uc, 1, N };

    return set_entry(__func__, &call, NULL, FC_CTX | FC_UNSAFE);
}

CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    const struct set_call call = { dstDevice, ui, 4, N };

    return set_entry(__func__, &call, NULL, FC_CTX | FC_UNSAFE);
}

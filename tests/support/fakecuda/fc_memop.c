/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on words of memory in a stream, and host functions. */
#include "fakecuda.h"

#define BATCH_MAX 255

static CUresult check_stream(CUstream handle, struct fc_stream **stream)
{
    CUresult result = fc_stream_get(handle, stream);

    if (result == CUDA_SUCCESS && (*stream)->ctx != fc_current())
        result = CUDA_ERROR_INVALID_HANDLE;
    return result;
}

struct word {
    enum fc_op_kind kind; /* EMPTY: a barrier, which a stream is anyway */
    uintptr_t address;
    uint64_t value;
    unsigned flags, width;
};

static CUresult check_word(const struct fc_ctx *ctx, const struct word *w)
{
    const unsigned known = w->kind == FC_OP_WAIT ? 3u : (unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;

    if (w->kind == FC_OP_EMPTY)
        return CUDA_SUCCESS;
    if (w->kind == FC_OP_WAIT && (w->flags & CU_STREAM_WAIT_VALUE_FLUSH))
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((w->flags & ~known) != 0 || w->address % w->width != 0 || fc_access(ctx, w->address, w->width) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult submit_word(struct fc_stream *s, const struct word *w)
{
    struct fc_op *op = fc_op_new(w->kind, s->ctx);

    op->word.address = w->address;
    op->word.value = w->value;
    op->word.flags = w->flags;
    op->word.width = w->width;
    return fc_submit(s, op);
}

static CUresult one_word(const char *name, CUstream stream, const struct word *w)
{
    struct fc_stream *s = NULL;
    CUresult result = fc_enter(name, FC_CTX);

    fc_trace("%s %#lx value %lu flags %u stream %p", name, (unsigned long)w->address, (unsigned long)w->value, w->flags,
             (void *)stream);
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = check_stream(stream, &s);
        if (result == CUDA_SUCCESS)
            result = check_word(s->ctx, w);
        if (result == CUDA_SUCCESS)
            result = submit_word(s, w);
        fc_unlock();
    }
    return fc_leave(name, result);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    const struct word w = { FC_OP_WAIT, addr, value, flags, 4 };

    return one_word(__func__, stream, &w);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    const struct word w = { FC_OP_WRITE, addr, value, flags, 4 };

    return one_word(__func__, stream, &w);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    const struct word w = { FC_OP_WAIT, addr, value, flags, 8 };

    return one_word(__func__, stream, &w);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    const struct word w = { FC_OP_WRITE, addr, value, flags, 8 };

    return one_word(__func__, stream, &w);
}

static CUresult word_of(const CUstreamBatchMemOpParams *p, struct word *w)
{
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        *w = (struct word){ FC_OP_WAIT, p->waitValue.address, p->waitValue.value, p->waitValue.flags, 4 };
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        *w = (struct word){ FC_OP_WAIT, p->waitValue.address, p->waitValue.value64, p->waitValue.flags, 8 };
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        *w = (struct word){ FC_OP_WRITE, p->writeValue.address, p->writeValue.value, p->writeValue.flags, 4 };
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        *w = (struct word){ FC_OP_WRITE, p->writeValue.address, p->writeValue.value64, p->writeValue.flags, 8 };
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_BARRIER:
        *w = (struct word){ FC_OP_EMPTY, 0, 0, 0, 4 };
        return CUDA_SUCCESS;
    default: /* flushing remote writes: not on this device */
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult batch(struct fc_stream *s, unsigned count, const CUstreamBatchMemOpParams *params)
{
    CUresult result = CUDA_SUCCESS;
    struct word w;

    /* All or nothing. */
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = word_of(&params[i], &w);
        if (result == CUDA_SUCCESS)
            result = check_word(s->ctx, &w);
    }
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = word_of(&params[i], &w);
        if (result == CUDA_SUCCESS)
            result = submit_word(s, &w);
    }
    return result;
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray, unsigned int flags)
{
    struct fc_stream *s = NULL;
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS && (count > BATCH_MAX || flags != 0 || (count > 0 && paramArray == NULL)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = check_stream(stream, &s);
        if (result == CUDA_SUCCESS)
            result = batch(s, count, paramArray);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    struct fc_stream *s = NULL;
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS && fn == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = fc_stream_get(hStream, &s);
        if (result == CUDA_SUCCESS) {
            struct fc_op *op = fc_op_new(FC_OP_HOST, s->ctx);

            op->host.fn = fn;
            op->host.data = userData;
            result = fc_submit(s, op);
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Queues: streams of our own and of the caller, copies, and words that they write and wait for. */
#include <string.h>

#include "device/cuda_device.h"
#include "kernels/kernels.h"

#define BATCH_MAX 255 /* cuStreamBatchMemOp takes fewer than 256 */

static CUstream stream_of(const struct pki_queue *queue)
{
    return (CUstream)queue->handle;
}

/* Asking a capturing stream whether it is idle would end the capture, and so would asking the legacy stream while some blocking
 * stream captures: hence the first question, which harms neither. */
bool pki_cuda_idle(const struct pki_queue *queue)
{
    struct pki_cuda_context *context = pki_cuda(queue->device)->context;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult code;

    pki_cuda_enter(context);
    code = context->cu->stream_is_capturing(stream_of(queue), &status);
    if (code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || (code == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE))
        code = CUDA_ERROR_NOT_READY;
    else if (code == CUDA_SUCCESS)
        code = context->cu->stream_query(stream_of(queue));
    pki_cuda_leave(context);
    /* Any other error is of a context that is broken or gone: nothing runs there any more. */
    return code != CUDA_ERROR_NOT_READY && code != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

pk_result_t pki_cuda_capturing(const struct pki_queue *queue, bool *yes, uint64_t *id)
{
    struct pki_cuda_context *context = pki_cuda(queue->device)->context;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t capture = 0;
    CUresult code;

    pki_cuda_enter(context);
    code = context->cu->stream_get_capture_info(stream_of(queue), &status, &capture, NULL, NULL, NULL);
    pki_cuda_leave(context);
    if (code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL,
                        "the legacy default stream cannot be used while another stream is being captured");
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "cuStreamGetCaptureInfo");
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return pki_fail(PK_ERR_SYSTEM, NULL, "the stream's capture has been invalidated by an earlier call");
    *yes = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *id = *yes ? capture + 1 : 0; /* the driver's may be 0 */
    return PK_OK;
}

pk_result_t pki_cuda_copy(const struct pki_queue *queue, void *dst, const void *src, size_t bytes)
{
    struct pki_cuda_context *context = pki_cuda(queue->device)->context;
    CUresult code;

    if (bytes == 0 || dst == src)
        return PK_OK;
    pki_cuda_enter(context);
    code = context->cu->memcpy_async((CUdeviceptr)(uintptr_t)dst, (CUdeviceptr)(uintptr_t)src, bytes, stream_of(queue));
    pki_cuda_leave(context);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "cuMemcpyAsync of %zu bytes from %p to %p", bytes, src, dst);
    return PK_OK;
}

/* A wait keeps what was recorded when it was queued, so that one event serves all. */
pk_result_t pki_cuda_follow(const struct pki_queue *queue, const struct pki_queue *before)
{
    struct pki_cuda *cuda = pki_cuda(queue->device);
    CUresult code = CUDA_SUCCESS;

    pki_cuda_enter(cuda->context);
    if (cuda->followed == NULL)
        code = cuda->cu->event_create(&cuda->followed, CU_EVENT_DISABLE_TIMING);
    if (code == CUDA_SUCCESS)
        code = cuda->cu->event_record(cuda->followed, stream_of(before));
    if (code == CUDA_SUCCESS)
        code = cuda->cu->stream_wait_event(stream_of(queue), cuda->followed, CU_EVENT_WAIT_DEFAULT);
    pki_cuda_leave(cuda->context);
    return code == CUDA_SUCCESS ? PK_OK : pki_cuda_fail(code, "a stream that has to wait for another");
}

static unsigned wait_flag(enum pki_signal_kind kind)
{
    return kind == PKI_SIGNAL_WAIT_EQ ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ;
}

static CUdeviceptr word_address(const struct pki_signal_op *op)
{
    return (CUdeviceptr)(uintptr_t)op->signal.word;
}

/* A write carries the driver's default: a barrier after all earlier work, system-wide. */
static CUresult word_one(const struct pki_cuda_driver *cu, CUstream stream, const struct pki_signal_op *op)
{
    if (op->kind == PKI_SIGNAL_WRITE)
        return cu->stream_write_value(stream, word_address(op), op->signal.value, CU_STREAM_WRITE_VALUE_DEFAULT);
    return cu->stream_wait_value(stream, word_address(op), op->signal.value, wait_flag(op->kind));
}

static CUresult word_batch(const struct pki_cuda_driver *cu, CUstream stream, const struct pki_signal_op *ops, int n)
{
    CUstreamBatchMemOpParams params[BATCH_MAX]; /* 12 KiB: only what is used is cleared */

    memset(params, 0, (size_t)n * sizeof params[0]);
    for (int i = 0; i < n; i++) {
        if (ops[i].kind == PKI_SIGNAL_WRITE) {
            params[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
            params[i].writeValue.address = word_address(&ops[i]);
            params[i].writeValue.value = ops[i].signal.value;
            params[i].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
        } else {
            params[i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
            params[i].waitValue.address = word_address(&ops[i]);
            params[i].waitValue.value = ops[i].signal.value;
            params[i].waitValue.flags = wait_flag(ops[i].kind);
        }
    }
    return cu->stream_batch_mem_op(stream, (unsigned)n, params, 0);
}

static pk_result_t word_ops(const struct pki_queue *queue, const struct pki_signal_op *ops, int n)
{
    const struct pki_cuda_driver *cu = pki_cuda(queue->device)->cu;
    CUresult code;

    if (n == 1)
        code = word_one(cu, stream_of(queue), ops);
    else
        code = word_batch(cu, stream_of(queue), ops, n);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "%d word operations in a stream", n);
    return PK_OK;
}

/* How many of the first operations are alike in being waits, or in not being waits. */
static int run_length(const struct pki_signal_op *ops, int n, int max)
{
    bool wait = ops[0].kind != PKI_SIGNAL_WRITE;
    int length = 1;

    while (length < n && length < max && (ops[length].kind != PKI_SIGNAL_WRITE) == wait)
        length++;
    return length;
}

/* Each run of waits is one launch, each run of writes one batch; the order between runs is the stream's. */
static pk_result_t signals_by_kernel(const struct pki_queue *queue, const struct pki_signal_op *ops, int n,
                                     const struct pki_serving *serving)
{
    pk_result_t result = PK_OK;

    while (n > 0 && result == PK_OK) {
        int length = run_length(ops, n, PKI_WAIT_WORDS_MAX);

        if (ops[0].kind == PKI_SIGNAL_WRITE)
            result = word_ops(queue, ops, length);
        else if (serving != NULL)
            result = pki_cuda_serve_kernel(queue, ops, length, serving);
        else
            result = pki_cuda_wait_kernel(queue, ops, length);
        ops += length;
        n -= length;
    }
    return result;
}

pk_result_t pki_cuda_signals(const struct pki_queue *queue, const struct pki_signal_op *ops, int n, enum pki_wait_how how)
{
    struct pki_cuda_context *context = pki_cuda(queue->device)->context;
    pk_result_t result;

    if (n < 0 || n > BATCH_MAX)
        return pki_fail(PK_ERR_ARG, NULL, "%d word operations at once; up to %d are possible", n, BATCH_MAX);
    if (n == 0)
        return PK_OK;
    queue->device->words += (uint64_t)n;
    pki_cuda_enter(context);
    if (how == PKI_WAIT_VALUE)
        result = word_ops(queue, ops, n);
    else
        result = signals_by_kernel(queue, ops, n, how == PKI_WAIT_SERVE ? queue->serving : NULL);
    pki_cuda_leave(context);
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Launches. Parameters are structs by value; their layout is in kernels/kernels.h. */
#include <string.h>

#include "device/cuda_device.h"
#include "device/kernels/kernels.h"

/* Made by the build from kernels/ (every .cu file), for all architectures at once. */
extern const unsigned char pki_kernels_fatbin[];
extern const size_t pki_kernels_fatbin_bytes;

/* A reduction is bound by memory: so many SMs come within a few percent of all of them, and leave the rest to the program. */
#define REDUCE_BYTES_PER_CTA (64u << 10)

_Static_assert(PKI_LL_OPS == PKI_LL_OPS_MAX, "the kernel takes what the slot promises");
_Static_assert(PKI_REDUCE_SOURCES == PKI_REDUCE_MAX, "the kernel takes what the slot promises");
_Static_assert(sizeof(struct pki_ll_args) <= 4096 && sizeof(struct pki_wait_args) <= 4096, "the limit of kernel parameters");

static const char *const names[PKI_CUDA_KERNELS] = {
    [PKI_CUDA_WAIT] = PKI_KERNEL_WAIT,
    [PKI_CUDA_LL] = PKI_KERNEL_LL,
    [PKI_CUDA_REDUCE_SUM_F32] = PKI_KERNEL_REDUCE_SUM_F32,
    [PKI_CUDA_REDUCE_SUM_F16] = PKI_KERNEL_REDUCE_SUM_F16,
    [PKI_CUDA_REDUCE_SUM_BF16] = PKI_KERNEL_REDUCE_SUM_BF16,
    [PKI_CUDA_REDUCE_SUM_I32] = PKI_KERNEL_REDUCE_SUM_I32,
};

static CUresult kernel_get(struct pki_cuda_context *context, enum pki_cuda_kernel which)
{
    CUresult code = context->cu->module_get_function(&context->kernels[which], context->module, names[which]);
    int threads;

    /* With lazy loading a function has no code until it is asked about or launched: ask. */
    if (code == CUDA_SUCCESS)
        code = context->cu->func_get_attribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, context->kernels[which]);
    return code;
}

pk_result_t pki_cuda_kernels_load(struct pki_cuda_context *context)
{
    CUresult code = context->cu->module_load_data(&context->module, pki_kernels_fatbin);

    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "loading %zu bytes of kernels on device %d", pki_kernels_fatbin_bytes, context->ordinal);
    for (int i = 0; i < PKI_CUDA_KERNELS; i++) {
        code = kernel_get(context, (enum pki_cuda_kernel)i);
        if (code != CUDA_SUCCESS) {
            context->cu->module_unload(context->module);
            return pki_cuda_fail(code, "kernel %s on device %d", names[i], context->ordinal);
        }
    }
    return PK_OK;
}

void pki_cuda_kernels_unload(struct pki_cuda_context *context)
{
    context->cu->module_unload(context->module);
}

static pk_result_t launch(const struct pki_queue *queue, enum pki_cuda_kernel which, unsigned ctas, unsigned threads, void *args)
{
    struct pki_cuda_context *context = pki_cuda(queue->device)->context;
    void *params[] = { args };
    CUresult code;

    pki_cuda_enter(context);
    code =
        context->cu->launch_kernel(context->kernels[which], ctas, 1, 1, threads, 1, 1, 0, (CUstream)queue->handle, params, NULL);
    pki_cuda_leave(context);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "launch of %s with %u blocks on device %d", names[which], ctas, context->ordinal);
    return PK_OK;
}

pk_result_t pki_cuda_wait_kernel(const struct pki_queue *queue, const struct pki_word_op *ops, int n)
{
    struct pki_wait_args args;

    memset(&args, 0, sizeof args);
    args.n = (uint32_t)n;
    for (int i = 0; i < n; i++) {
        args.words[i].address = (uint64_t)(uintptr_t)ops[i].gate.word;
        args.words[i].value = ops[i].gate.value;
        args.words[i].equal = ops[i].kind == PKI_WORD_WAIT_EQ;
    }
    return launch(queue, PKI_CUDA_WAIT, 1, 32, &args);
}

static pk_result_t reduce_kernel(pk_dtype_t dtype, pk_op_t op, enum pki_cuda_kernel *which)
{
    if (op != PK_SUM)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "reduction %llu on a GPU", (unsigned long long)op);
    switch (dtype) {
    case PK_F32:
        *which = PKI_CUDA_REDUCE_SUM_F32;
        return PK_OK;
    case PK_F16:
        *which = PKI_CUDA_REDUCE_SUM_F16;
        return PK_OK;
    case PK_BF16:
        *which = PKI_CUDA_REDUCE_SUM_BF16;
        return PK_OK;
    case PK_INT32:
    case PK_UINT32:
        *which = PKI_CUDA_REDUCE_SUM_I32; /* sums wrap alike */
        return PK_OK;
    default:
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "sum of %s on a GPU", pk_dtype_name(dtype));
    }
}

bool pki_cuda_reduces(const struct pki_device *device, pk_dtype_t dtype, pk_op_t op)
{
    (void)device;
    return op == PK_SUM &&
           (dtype == PK_F32 || dtype == PK_F16 || dtype == PK_BF16 || dtype == PK_INT32 || dtype == PK_UINT32);
}

static pk_result_t reduce_args(struct pki_reduce_args *args, void *dst, const void *const *srcs, int n, size_t count, size_t size)
{
    uint64_t low = (uint64_t)(uintptr_t)dst;

    memset(args, 0, sizeof *args);
    args->dst = (uint64_t)(uintptr_t)dst;
    args->n = (uint32_t)n;
    args->count = count;
    for (int i = 0; i < n; i++) {
        args->srcs[i] = (uint64_t)(uintptr_t)srcs[i];
        low |= args->srcs[i];
    }
    if (low % size != 0)
        return pki_fail(PK_ERR_ARG, NULL, "a buffer to be reduced on a GPU is not aligned to its elements of %zu bytes", size);
    return PK_OK;
}

pk_result_t pki_cuda_reduce(const struct pki_queue *queue, void *dst, const void *const *srcs, int n, size_t count,
                            pk_dtype_t dtype, pk_op_t op)
{
    size_t size = pk_dtype_size(dtype);
    uint64_t limit = queue->device->max_ctas > 0 ? (uint64_t)queue->device->max_ctas : PKI_CUDA_REDUCE_CTAS;
    struct pki_reduce_args args;
    enum pki_cuda_kernel which = PKI_CUDA_KERNELS;
    uint64_t ctas;
    pk_result_t result = reduce_kernel(dtype, op, &which);

    if (result != PK_OK)
        return result;
    if (n < 1 || n > PKI_REDUCE_MAX)
        return pki_fail(PK_ERR_ARG, NULL, "a reduction of %d blocks; up to %d are possible", n, PKI_REDUCE_MAX);
    result = reduce_args(&args, dst, srcs, n, count, size);
    if (result != PK_OK || count == 0)
        return result;
    ctas = (count * size + REDUCE_BYTES_PER_CTA - 1) / REDUCE_BYTES_PER_CTA;
    return launch(queue, which, ctas > limit ? (unsigned)limit : (unsigned)ctas, PKI_REDUCE_THREADS, &args);
}

static void ll_arg(struct pki_ll_args_op *arg, const struct pki_ll_op *op)
{
    arg->user = (uint64_t)(uintptr_t)op->user;
    arg->slot = (uint64_t)(uintptr_t)op->slot;
    arg->done = (uint64_t)(uintptr_t)op->done;
    arg->bytes = op->bytes;
    arg->flag = op->flag;
    arg->send = op->send;
}

pk_result_t pki_cuda_ll(const struct pki_queue *queue, const struct pki_ll_op *ops, int n, const _Atomic uint32_t *abort_flag)
{
    struct pki_ll_args args;

    if (n < 1 || n > PKI_LL_OPS_MAX)
        return pki_fail(PK_ERR_ARG, NULL, "%d messages in one launch; 1 to %d are possible", n, PKI_LL_OPS_MAX);
    memset(&args, 0, sizeof args);
    args.n = (uint32_t)n;
    args.abort_flag = (uint64_t)(uintptr_t)abort_flag;
    for (int i = 0; i < n; i++) {
        if (ops[i].bytes > PKI_LL_MAX_BYTES || ops[i].flag == 0)
            return pki_fail(PK_ERR_INTERNAL, NULL, "a low-latency message of %u bytes with flag %u", ops[i].bytes, ops[i].flag);
        ll_arg(&args.ops[i], &ops[i]);
    }
    return launch(queue, PKI_CUDA_LL, (unsigned)n, PKI_LL_THREADS, &args);
}

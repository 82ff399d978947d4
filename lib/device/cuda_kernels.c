/* SPDX-License-Identifier: Apache-2.0 */
/* Launches. Parameters are structs by value; their layout is in kernels/kernels.h. */
#include <stdio.h>
#include <string.h>

#include "device/cuda_device.h"
#include "kernels/kernels.h"
#include "tuning/tuning.h"

/* Made by the build from kernels/ (every .cu file), for all architectures at once. */
extern const unsigned char pki_kernels_fatbin[];
extern const size_t pki_kernels_fatbin_bytes;

_Static_assert(PKI_KERNEL_SUM == PK_SUM && PKI_KERNEL_PROD == PK_PROD && PKI_KERNEL_MIN == PK_MIN && PKI_KERNEL_MAX == PK_MAX,
               "kernels take the API's numbers");
_Static_assert(sizeof(struct pki_ll_row_args) <= 4096 && sizeof(struct pki_wait_args) <= 4096 &&
                   sizeof(struct pki_unpack_args) <= 4096 && sizeof(struct pki_move_args) <= 4096,
               "the limit of kernel parameters");

static void name_of(int which, char *name, size_t len)
{
    static const char *const plain[] = { PKI_KERNEL_WAIT,
                                         PKI_KERNEL_SERVE,
                                         PKI_KERNEL_LL,
                                         PKI_KERNEL_LL_ROW,
                                         PKI_KERNEL_TURN,
                                         PKI_KERNEL_EXCHANGE,
                                         PKI_KERNEL_PUSH,
                                         PKI_KERNEL_UNPACK,
                                         PKI_KERNEL_MOVE,
                                         PKI_KERNEL_SCALE,
                                         PKI_KERNEL_FOLD,
                                         PKI_KERNEL_RELAY,
                                         PKI_KERNEL_TWOSHOT,
                                         PKI_KERNEL_TWOSHOT_ANY,
                                         PKI_KERNEL_PUSH_SUM,
                                         PKI_KERNEL_PAIR_EXCHANGE,
                                         (PKI_KERNEL_PAIR_SUM "f32"),
                                         (PKI_KERNEL_PAIR_SUM "f16"),
                                         (PKI_KERNEL_PAIR_SUM "bf16"),
                                         (PKI_KERNEL_REPLAY "exchange"),
                                         (PKI_KERNEL_REPLAY "fold"),
                                         (PKI_KERNEL_REPLAY "pair_exchange"),
                                         (PKI_KERNEL_REPLAY "pair_f32"),
                                         (PKI_KERNEL_REPLAY "pair_f16"),
                                         (PKI_KERNEL_REPLAY "pair_bf16") };

    if (which < PKI_CUDA_REDUCE)
        snprintf(name, len, "%s", plain[which]);
    else
        snprintf(name, len, "%s%s", PKI_KERNEL_REDUCE, pk_dtype_name((pk_dtype_t)(which - PKI_CUDA_REDUCE)));
}

static CUresult kernel_get(struct pki_cuda_context *context, int which, const char *name)
{
    CUresult code = context->cu->module_get_function(&context->kernels[which], context->module, name);
    int threads;

    /* With lazy loading a function has no code until it is asked about or launched: ask. */
    if (code == CUDA_SUCCESS)
        code = context->cu->func_get_attribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, context->kernels[which]);
    return code;
}

/* Not where a driver compiles the oldest PTX for a GPU of its own, nor where streams that wait may leave no multiprocessor whose
 * shared memory is all free. */
static bool has_bulk_copies(struct pki_cuda_context *context)
{
    const struct pki_cuda_driver *cu = context->cu;
    CUfunction kernel = context->kernels[PKI_CUDA_TWOSHOT];
    int version = 0, sms = 0;

    (void)cu->device_get_attribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context->device);
    return sms >= PKI_WAITING_KERNELS + PKI_BULK_CTAS &&
           cu->func_get_attribute(&version, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel) == CUDA_SUCCESS && version >= 90 &&
           cu->func_set_attribute(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, PKI_BULK_BYTES) == CUDA_SUCCESS;
}

pk_result_t pki_cuda_kernels_load(struct pki_cuda_context *context)
{
    CUresult code = context->cu->module_load_data(&context->module, pki_kernels_fatbin);
    int major = 0;
    char name[64];

    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "loading %zu bytes of kernels on device %d", pki_kernels_fatbin_bytes, context->ordinal);
    for (int i = 0; i < PKI_CUDA_KERNELS; i++) {
        name_of(i, name, sizeof name);
        code = kernel_get(context, i, name);
        if (code != CUDA_SUCCESS) {
            context->cu->module_unload(context->module);
            return pki_cuda_fail(code, "kernel %s on device %d", name, context->ordinal);
        }
    }
    (void)context->cu->device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, context->device);
    context->early_launch = major >= 9;
    context->bulk_copies = has_bulk_copies(context);
    return PK_OK;
}

void pki_cuda_kernels_unload(struct pki_cuda_context *context)
{
    context->cu->module_unload(context->module);
}

/* `early`: the kernel itself waits for what is before it in the stream, so that its launch costs no time there. `shared`: bytes
 * of dynamic shared memory. */
static pk_result_t launch_with(const struct pki_queue *queue, int which, unsigned ctas, unsigned threads, void *args, bool early,
                               unsigned shared)
{
    struct pki_cuda_context *context = pki_cuda(queue->device)->context;
    CUlaunchAttribute attribute = { .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                    .value = { .programmaticStreamSerializationAllowed = 1 } };
    CUlaunchConfig config = { .gridDimX = ctas,
                              .gridDimY = 1,
                              .gridDimZ = 1,
                              .blockDimX = threads,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .sharedMemBytes = shared,
                              .hStream = (CUstream)queue->handle,
                              .attrs = &attribute,
                              .numAttrs = early && context->early_launch ? 1 : 0 };
    void *params[] = { args };
    char name[64];
    CUresult code;

    pki_cuda_enter(context);
    code = context->cu->launch_kernel(&config, context->kernels[which], params, NULL);
    pki_cuda_leave(context);
    if (code == CUDA_SUCCESS)
        return PK_OK;
    name_of(which, name, sizeof name);
    return pki_cuda_fail(code, "launch of %s with %u blocks on device %d", name, ctas, context->ordinal);
}

static pk_result_t launch(const struct pki_queue *queue, int which, unsigned ctas, unsigned threads, void *args, bool early)
{
    return launch_with(queue, which, ctas, threads, args, early, 0);
}

static void wait_args(struct pki_wait_args *args, const struct pki_signal_op *ops, int n)
{
    memset(args, 0, sizeof *args);
    args->n = (uint32_t)n;
    for (int i = 0; i < n; i++) {
        args->words[i].address = (uint64_t)(uintptr_t)ops[i].signal.word;
        args->words[i].value = ops[i].signal.value;
        args->words[i].equal = ops[i].kind == PKI_SIGNAL_WAIT_EQ;
    }
}

pk_result_t pki_cuda_wait_kernel(const struct pki_queue *queue, const struct pki_signal_op *ops, int n)
{
    struct pki_wait_args args;

    wait_args(&args, ops, n);
    return launch(queue, PKI_CUDA_WAIT, 1, 32, &args, false);
}

pk_result_t pki_cuda_serve_kernel(const struct pki_queue *queue, const struct pki_signal_op *ops, int n,
                                  const struct pki_serving *serving)
{
    struct pki_serve_args args = { .abort_flag = (uint64_t)(uintptr_t)serving->abort_flag };

    pki_orders_launch(serving->lanes, &args);
    wait_args(&args.wait, ops, n);
    return launch(queue, PKI_CUDA_SERVE, (unsigned)serving->ctas, PKI_SERVE_THREADS, &args, false);
}

bool pki_cuda_reduces(const struct pki_device *device, pk_dtype_t dtype, pk_op_t op)
{
    (void)device;
    return (unsigned)dtype < PK_DTYPE_COUNT && op < PK_OP_COUNT;
}

static pk_result_t reduce_args(struct pki_reduce_args *args, void *dst, const void *const *srcs, int n, size_t count, size_t size,
                               pk_op_t op)
{
    uint64_t low = (uint64_t)(uintptr_t)dst;

    memset(args, 0, sizeof *args);
    args->dst = (uint64_t)(uintptr_t)dst;
    args->n = (uint32_t)n;
    args->count = count;
    args->divisor = pki_op_divisor(op);
    args->op = args->divisor > 0 ? PKI_KERNEL_SUM : (uint32_t)op;
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
    uint64_t limit = queue->device->max_ctas > 0 ? (uint64_t)queue->device->max_ctas : pki_tuning.gpu.reduce_ctas;
    struct pki_reduce_args args;
    uint64_t ctas;
    pk_result_t result;

    if (size == 0 || (op > PK_MAX && pki_op_divisor(op) == 0))
        return pki_fail(PK_ERR_INTERNAL, NULL, "reduction %llu of type %d on a GPU", (unsigned long long)op, (int)dtype);
    if (n < 1 || n > PKI_REDUCE_SOURCES)
        return pki_fail(PK_ERR_ARG, NULL, "a reduction of %d blocks; up to %d are possible", n, PKI_REDUCE_SOURCES);
    result = reduce_args(&args, dst, srcs, n, count, size, op);
    if (result != PK_OK || count == 0)
        return result;
    ctas = (count * size + PKI_REDUCE_BYTES_A_CTA - 1) / PKI_REDUCE_BYTES_A_CTA;
    return launch(queue, PKI_CUDA_REDUCE + (int)dtype, ctas > limit ? (unsigned)limit : (unsigned)ctas, PKI_REDUCE_THREADS, &args,
                  false);
}

pk_result_t pki_cuda_scale(const struct pki_queue *queue, void *dst, const void *src, size_t count, pk_dtype_t dtype,
                           const struct pki_factor *factor)
{
    uint64_t limit = queue->device->max_ctas > 0 ? (uint64_t)queue->device->max_ctas : pki_tuning.gpu.reduce_ctas;
    struct pki_scale_args args = { .dst = (uint64_t)(uintptr_t)dst,
                                   .src = (uint64_t)(uintptr_t)src,
                                   .factor = (uint64_t)(uintptr_t)factor->at,
                                   .value = factor->value,
                                   .count = count,
                                   .type = (uint32_t)dtype };
    size_t size = pk_dtype_size(dtype);
    uint64_t ctas;

    if (count == 0)
        return PK_OK;
    if ((args.dst | args.src | args.factor) % size != 0)
        return pki_fail(PK_ERR_ARG, NULL, "a buffer to be multiplied on a GPU is not aligned to its elements of %zu bytes", size);
    ctas = (count * size + PKI_REDUCE_BYTES_A_CTA - 1) / PKI_REDUCE_BYTES_A_CTA;
    return launch(queue, PKI_CUDA_SCALE, ctas > limit ? (unsigned)limit : (unsigned)ctas, PKI_SCALE_THREADS, &args, false);
}

pk_result_t pki_cuda_unpack(const struct pki_queue *queue, void *dst, const void *src,
                            const struct pki_unpack_fragment *fragments, int n)
{
    int most = queue->device->max_ctas, limit = most > 0 && most < pki_tuning.gpu.unpack_ctas ? most : pki_tuning.gpu.unpack_ctas;
    struct pki_unpack_args args;
    uint64_t longest = 0;

    if (n < 1 || n > PKI_UNPACK_FRAGMENTS)
        return pki_fail(PK_ERR_INTERNAL, NULL, "%d fragments to be unpacked in one launch", n);
    memset(&args, 0, sizeof args);
    args.src = (uint64_t)(uintptr_t)src;
    args.dst = (uint64_t)(uintptr_t)dst;
    args.n = (uint32_t)n;
    for (int i = 0; i < n; i++) {
        args.fragments[i] = fragments[i];
        longest = fragments[i].bytes > longest ? fragments[i].bytes : longest;
    }
    args.ctas = n < limit ? (uint32_t)(limit / n) : 1;
    if (args.ctas > longest / PKI_UNPACK_BYTES_A_CTA + 1)
        args.ctas = (uint32_t)(longest / PKI_UNPACK_BYTES_A_CTA) + 1;
    args.blocks = args.n * args.ctas;
    return launch(queue, PKI_CUDA_UNPACK, args.blocks < (uint32_t)limit ? args.blocks : (unsigned)limit, PKI_UNPACK_THREADS,
                  &args, false);
}

static uint64_t move_arg(struct pki_move_args_op *arg, const struct pki_move_op *op)
{
    *arg = (struct pki_move_args_op){ .src = (uint64_t)(uintptr_t)op->src,
                                      .dst = (uint64_t)(uintptr_t)op->dst,
                                      .bytes = op->bytes,
                                      .start = (uint64_t)(uintptr_t)op->start.word,
                                      .done = (uint64_t)(uintptr_t)op->done.word,
                                      .arrived = (uint64_t)(uintptr_t)op->arrived,
                                      .start_value = op->start.value,
                                      .done_value = op->done.value };
    return op->bytes > PKI_MOVE_SHARE_BYTES ? (op->bytes - 1) / PKI_MOVE_SHARE_BYTES + 1 : 1;
}

/* The device's choice is a CTA for each share of all transfers, for short ones then move side by side, none behind another's way
 * there and back. */
pk_result_t pki_cuda_move(const struct pki_queue *queue, const struct pki_move_op *ops, int n, int ctas,
                          const _Atomic uint32_t *abort_flag)
{
    int most = queue->device->max_ctas;
    unsigned limit = (unsigned)(most > 0 && most < pki_tuning.gpu.move_ctas ? most : pki_tuning.gpu.move_ctas);
    struct pki_move_args args = { .abort_flag = (uint64_t)(uintptr_t)abort_flag, .n = (uint32_t)n };
    uint64_t shares = 0;

    if (n < 1 || n > PKI_MOVE_OPS)
        return pki_fail(PK_ERR_INTERNAL, NULL, "%d transfers in one launch; 1 to %d are possible", n, PKI_MOVE_OPS);
    for (int i = 0; i < n; i++) {
        if (ops[i].arrived == NULL && (ops[i].bytes > 0 || ops[i].done.word != NULL))
            return pki_fail(PK_ERR_INTERNAL, NULL, "a transfer of %zu bytes without a word to count its CTAs", ops[i].bytes);
        shares += move_arg(&args.ops[i], &ops[i]);
    }
    if (ctas <= 0)
        ctas = (int)(shares < limit ? shares : limit);
    return launch(queue, PKI_CUDA_MOVE, (unsigned)ctas, PKI_MOVE_THREADS, &args, false);
}

static void ll_arg(struct pki_ll_args_op *arg, const struct pki_ll_op *op, unsigned ctas, unsigned first)
{
    *arg = (struct pki_ll_args_op){ .user = (uint64_t)(uintptr_t)op->user,
                                    .slot = (uint64_t)(uintptr_t)op->slot,
                                    .done = (uint64_t)(uintptr_t)op->done,
                                    .bytes = op->bytes,
                                    .flag = op->flag,
                                    .send = op->send,
                                    .ctas = (uint16_t)ctas,
                                    .first = (uint16_t)first,
                                    .arrived = (uint64_t)(uintptr_t)op->arrived };
}

static unsigned ll_ctas(const struct pki_ll_op *op, unsigned limit)
{
    unsigned ctas = op->ctas > 1 ? op->ctas : 1;

    return ctas < limit ? ctas : limit;
}

static pk_result_t ll_row(const struct pki_queue *queue, const struct pki_ll_op *ops, int n, unsigned limit,
                          const struct pki_ll_head *head)
{
    struct pki_ll_row_args args;
    unsigned all = 0, grid, first = 0;

    args.head = *head;
    for (int i = 0; i < n; i++)
        all += ll_ctas(&ops[i], limit);
    grid = all < limit ? all : limit;
    for (int i = 0; i < n; i++) {
        unsigned ctas = ll_ctas(&ops[i], limit);

        ll_arg(&args.ops[i], &ops[i], ctas, first);
        first = (first + ctas) % grid;
    }
    memset(&args.ops[n], 0, (size_t)(PKI_LL_ROW_OPS - n) * sizeof args.ops[0]);
    return launch(queue, PKI_CUDA_LL_ROW, grid, PKI_LL_THREADS, &args, true);
}

pk_result_t pki_cuda_ll(const struct pki_queue *queue, const struct pki_ll_op *ops, int n, int ctas,
                        const _Atomic uint32_t *abort_flag)
{
    struct pki_ll_args args = { .head = { .abort_flag = (uint64_t)(uintptr_t)abort_flag, .n = (uint32_t)n } };
    unsigned limit = ctas > 0 ? (unsigned)ctas : UINT16_MAX;

    if (n < 1 || n > PKI_LL_ROW_OPS)
        return pki_fail(PK_ERR_ARG, NULL, "%d messages in one launch; 1 to %d are possible", n, PKI_LL_ROW_OPS);
    for (int i = 0; i < n; i++)
        if (ops[i].bytes > PKI_LL_MAX_BYTES || ops[i].flag == 0 || (ops[i].ctas > 1 && ops[i].arrived == NULL))
            return pki_fail(PK_ERR_INTERNAL, NULL, "a low-latency message of %u bytes with flag %u", ops[i].bytes, ops[i].flag);
    if (n > 1)
        return ll_row(queue, ops, n, limit, &args.head);
    ll_arg(&args.ops[0], ops, ll_ctas(ops, limit), 0);
    return launch(queue, PKI_CUDA_LL, args.ops[0].ctas, PKI_LL_THREADS, &args, true);
}

/* Both of two ranks get all sums, and what each of them sums up is long. */
static bool is_for_bulk_copies(const struct pki_fused_args *args)
{
    return args->size == 2 && args->results == 3 && args->reach != 0 && args->bytes / 2 >= pki_tuning.gpu.bulk_from_bytes;
}

pk_result_t pki_cuda_fused(const struct pki_queue *queue, enum pki_fused_kernel kernel, pk_dtype_t dtype, int ctas,
                           const struct pki_fused_args *args)
{
    static const struct {
        int which;
        unsigned threads;
        int replayed; /* 0: there is none */
    } all[] = { [PKI_FUSED_TURN] = { PKI_CUDA_TURN, 32, 0 },
                [PKI_FUSED_EXCHANGE] = { PKI_CUDA_EXCHANGE, PKI_FUSED_THREADS, PKI_CUDA_REPLAY_EXCHANGE },
                [PKI_FUSED_PUSH] = { PKI_CUDA_PUSH, PKI_PUSH_THREADS, 0 },
                [PKI_FUSED_PUSH_SUM] = { PKI_CUDA_PUSH_SUM, PKI_PUSH_THREADS, 0 },
                [PKI_FUSED_FOLD] = { PKI_CUDA_FOLD, PKI_FUSED_THREADS, PKI_CUDA_REPLAY_FOLD },
                [PKI_FUSED_RELAY] = { PKI_CUDA_RELAY, PKI_FUSED_THREADS, 0 },
                [PKI_FUSED_TWOSHOT] = { PKI_CUDA_TWOSHOT, PKI_FUSED_THREADS, 0 },
                [PKI_FUSED_PAIR_EXCHANGE] = { PKI_CUDA_PAIR_EXCHANGE, PKI_FUSED_THREADS, PKI_CUDA_REPLAY_PAIR_EXCHANGE },
                [PKI_FUSED_PAIR_SUM] = { PKI_CUDA_PAIR_F32, PKI_FUSED_THREADS, PKI_CUDA_REPLAY_PAIR_F32 } };
    const bool is_common = args->op == PKI_KERNEL_SUM && (dtype == PK_F32 || dtype == PK_F16 || dtype == PK_BF16);
    struct pki_fused_args copy = *args;
    int which = args->replayed != 0 ? all[kernel].replayed : all[kernel].which;
    unsigned shared = 0;
    bool common_only = kernel == PKI_FUSED_RELAY || kernel == PKI_FUSED_PUSH_SUM || kernel == PKI_FUSED_PAIR_SUM;

    if (which == 0)
        return pki_fail(PK_ERR_INTERNAL, NULL, "fused kernel %d is not one for graphs", (int)kernel);
    if (common_only && !is_common)
        return pki_fail(PK_ERR_INTERNAL, NULL, "no fused kernel %d of %s", (int)kernel, pk_dtype_name(dtype));
    if (kernel == PKI_FUSED_PAIR_SUM && dtype != PK_F32)
        which += dtype == PK_F16 ? PKI_CUDA_PAIR_F16 - PKI_CUDA_PAIR_F32 : PKI_CUDA_PAIR_BF16 - PKI_CUDA_PAIR_F32;
    if (kernel == PKI_FUSED_TWOSHOT && !is_common)
        which = PKI_CUDA_TWOSHOT_ANY;
    if (which == PKI_CUDA_TWOSHOT && pki_cuda(queue->device)->context->bulk_copies && is_for_bulk_copies(args))
        shared = PKI_BULK_BYTES;
    copy.type = (uint32_t)dtype;
    /* pki_turn does not wait for what is before it in the stream; if it came early, the kernel behind it would wait for nothing
     * but pki_turn. */
    return launch_with(queue, which, (unsigned)ctas, all[kernel].threads, &copy, copy.early != 0 && kernel != PKI_FUSED_TURN,
                       shared);
}

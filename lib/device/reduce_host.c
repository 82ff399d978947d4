/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions by the CPU: 12 types, sum prod min max avg, in one pass over any number of operands. Floats of 16 and 8 bits are
 * combined in f32 and rounded once. The loops exist twice on x86, for what every CPU has and for AVX2, and do the same operations
 * in the same order: the bits are the same.
 */
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "device/device.h"
#include "kernels/float_bits.h"
#include "device/reduce_host.h"
#include "tuning/tuning.h"
#include "util/dtype.h"
#include "util/log.h"

#define PASTE(f, type, isa) f##_##type##_##isa
#define EXPAND(f, type, isa) PASTE(f, type, isa)

#define ISA base
#define VECTOR_BYTES 16
#include "device/reduce_isa.h"
#undef ISA
#undef VECTOR_BYTES

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
#include "device/reduce_avx2.h"
#define ISA avx2
#define VECTOR_BYTES 32
#include "device/reduce_isa.h"
#undef ISA
#undef VECTOR_BYTES
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

typedef void combine_fn(void *dst, const void *a, const void *b, size_t count);
typedef size_t sum_lanes_fn(void *dst, const void *const *srcs, int n, size_t count);

struct reducer {
    combine_fn *combine[4]; /* by pk_op_t; of elements, or of f32 where there is a load */
    void (*load)(float *dst, const void *src, size_t count);
    void (*store)(void *dst, const float *src, size_t count);
    sum_lanes_fn *sum_lanes; /* a shorter way for sums, or NULL; returns how many it did: all but fewer than PKI_REDUCE_LANES */
};

#define COMBINE(type, isa) \
    { \
        sum_##type##_##isa, prod_##type##_##isa, min_##type##_##isa, max_##type##_##isa \
    }
#define NATIVE(type, isa) \
    { \
        COMBINE(type, isa), NULL, NULL, NULL \
    }
#define CONVERTED(type, isa, sum_lanes) \
    { \
        COMBINE(f32, isa), load_##type##_##isa, store_##type##_##isa, sum_lanes \
    }
#define REDUCERS(isa, sum_lanes_of_f16, sum_lanes_of_bf16) \
    { \
        [PK_INT8] = NATIVE(int8, isa), [PK_UINT8] = NATIVE(uint8, isa), [PK_INT32] = NATIVE(int32, isa), \
        [PK_UINT32] = NATIVE(uint32, isa), [PK_INT64] = NATIVE(int64, isa), [PK_UINT64] = NATIVE(uint64, isa), \
        [PK_F16] = CONVERTED(f16, isa, sum_lanes_of_f16), [PK_BF16] = CONVERTED(bf16, isa, sum_lanes_of_bf16), \
        [PK_F32] = NATIVE(f32, isa), [PK_F64] = NATIVE(f64, isa), [PK_F8E4M3] = CONVERTED(f8e4m3, isa, NULL), \
        [PK_F8E5M2] = CONVERTED(f8e5m2, isa, NULL) \
    }

static const struct reducer base_reducers[PK_DTYPE_COUNT] = REDUCERS(base, NULL, NULL);
#if defined(__x86_64__)
static const struct reducer avx2_reducers[PK_DTYPE_COUNT] = REDUCERS(avx2, sum_lanes_f16, sum_lanes_bf16);

static bool cpu_has_avx2(void)
{
#if defined(__clang__) /* its older versions cannot ask for f16c, which is older than all of these */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#endif
}
#endif

static const struct reducer *find(pk_dtype_t dtype, bool plain)
{
#if defined(__x86_64__)
    if (!plain && cpu_has_avx2())
        return &avx2_reducers[dtype];
#endif
    (void)plain;
    return &base_reducers[dtype];
}

/* Averages: elements are divided where they lie; floats shorter than f32 while they are f32. */
#define DIVIDE(name, element) \
    static void divide_##name(void *values, size_t count, uint32_t divisor) \
    { \
        element *v = values; \
\
        for (size_t i = 0; i < count; i++) \
            v[i] = (element)(v[i] / (element)divisor); \
    }

DIVIDE(int32, int32_t)
DIVIDE(uint32, uint32_t)
DIVIDE(int64, int64_t)
DIVIDE(uint64, uint64_t)
DIVIDE(f32, float)
DIVIDE(f64, double)

/* Here the number of ranks may be more than the type holds. */
static void divide_int8(void *values, size_t count, uint32_t divisor)
{
    int8_t *v = values;

    for (size_t i = 0; i < count; i++)
        v[i] = (int8_t)(v[i] / (int64_t)divisor);
}

static void divide_uint8(void *values, size_t count, uint32_t divisor)
{
    uint8_t *v = values;

    for (size_t i = 0; i < count; i++)
        v[i] = (uint8_t)(v[i] / divisor);
}

typedef void divide_fn(void *values, size_t count, uint32_t divisor);

static divide_fn *const dividers[PK_DTYPE_COUNT] = {
    [PK_INT8] = divide_int8,   [PK_UINT8] = divide_uint8,   [PK_INT32] = divide_int32, [PK_UINT32] = divide_uint32,
    [PK_INT64] = divide_int64, [PK_UINT64] = divide_uint64, [PK_F16] = divide_f32,     [PK_BF16] = divide_f32,
    [PK_F32] = divide_f32,     [PK_F64] = divide_f64,       [PK_F8E4M3] = divide_f32,  [PK_F8E5M2] = divide_f32,
};

/* Up to PKI_REDUCE_STRIDE elements from byte `at` on: nothing is written before all is read, as dst may be any. */
static void reduce_native(combine_fn *combine, char *dst, const void *const *srcs, int n, size_t at, size_t count)
{
    uint64_t sum[PKI_REDUCE_STRIDE]; /* of any type */

    if (n == 2) {
        combine(dst + at, (const char *)srcs[0] + at, (const char *)srcs[1] + at, count);
        return;
    }
    combine(sum, (const char *)srcs[0] + at, (const char *)srcs[1] + at, count);
    for (int k = 2; k < n - 1; k++)
        combine(sum, sum, (const char *)srcs[k] + at, count);
    combine(dst + at, sum, (const char *)srcs[n - 1] + at, count);
}

/* `divide`: NULL, or what to do with the sum. */
static void reduce_converted(const struct reducer *reducer, combine_fn *combine, char *dst, const void *const *srcs, int n,
                             size_t at, size_t count, divide_fn *divide, uint32_t divisor)
{
    float sum[PKI_REDUCE_STRIDE], operand[PKI_REDUCE_STRIDE];

    reducer->load(sum, (const char *)srcs[0] + at, count);
    for (int k = 1; k < n; k++) {
        reducer->load(operand, (const char *)srcs[k] + at, count);
        combine(sum, sum, operand, count);
    }
    if (divide != NULL)
        divide(sum, count, divisor);
    reducer->store(dst + at, sum, count);
}

/* The average, or with a divisor of 0 what `op` says. */
static void reduce(const struct reducer *reducer, void *dst, const void *const *srcs, int n, size_t count, pk_dtype_t dtype,
                   pk_op_t op, uint32_t divisor)
{
    size_t done = 0, element_bytes = pki_dtype_bytes(dtype);
    divide_fn *divide = divisor > 1 ? dividers[dtype] : NULL;

    if (n == 2 && reducer->load == NULL && divide == NULL) {
        reducer->combine[op](dst, srcs[0], srcs[1], count);
        return;
    }
    if (op == PK_SUM && reducer->sum_lanes != NULL && divide == NULL)
        done = reducer->sum_lanes(dst, srcs, n, count);
    while (done < count) {
        size_t some = count - done < PKI_REDUCE_STRIDE ? count - done : PKI_REDUCE_STRIDE, at = done * element_bytes;

        if (reducer->load != NULL) {
            reduce_converted(reducer, reducer->combine[op], dst, srcs, n, at, some, divide, divisor);
        } else {
            reduce_native(reducer->combine[op], dst, srcs, n, at, some);
            if (divide != NULL)
                divide((char *)dst + at, some, divisor);
        }
        done += some;
    }
}

static pk_result_t check_and_reduce(void *dst, const void *const *srcs, int n, size_t count, pk_dtype_t dtype, pk_op_t op,
                                    bool plain)
{
    uint32_t divisor = pki_op_divisor(op);

    if (pki_dtype_bytes(dtype) == 0)
        return pki_fail(PK_ERR_ARG, NULL, "reduce: unknown element type %d", (int)dtype);
    if (n < 2 || n > PKI_REDUCE_SOURCES)
        return pki_fail(PK_ERR_INTERNAL, NULL, "reduce: %d operands, 2 to %d are possible", n, PKI_REDUCE_SOURCES);
    /* An average is a sum whose last step divides by the number of ranks; nobody here knows which step is the last. */
    if (op > PK_MAX && divisor == 0)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "reduce: operation %llu is not in this version", (unsigned long long)op);
    reduce(find(dtype, plain), dst, srcs, n, count, dtype, divisor > 0 ? PK_SUM : op, divisor);
    return PK_OK;
}

pk_result_t pki_reduce_host_isa(void *dst, const void *const *srcs, int n, size_t count, pk_dtype_t dtype, pk_op_t op, bool plain)
{
    pki_float_env was = pki_float_env_enter();
    pk_result_t result = check_and_reduce(dst, srcs, n, count, dtype, op, plain);

    pki_float_env_leave(was);
    return result;
}

pk_result_t pki_reduce_host_here(void *dst, const void *const *srcs, int n, size_t count, pk_dtype_t dtype, pk_op_t op)
{
    return check_and_reduce(dst, srcs, n, count, dtype, op, false);
}

pk_result_t pki_reduce_host(void *dst, const void *const *srcs, int n, size_t count, pk_dtype_t dtype, pk_op_t op)
{
    return pki_reduce_host_isa(dst, srcs, n, count, dtype, op, false);
}

/* A product with as many copies of the factor. */
pk_result_t pki_scale_host(void *dst, const void *src, size_t count, pk_dtype_t dtype, const struct pki_factor *factor)
{
    const void *element = factor->at != NULL ? factor->at : &factor->value;
    size_t width = pki_dtype_bytes(dtype);
    uint64_t factors[PKI_REDUCE_STRIDE]; /* of any type */
    pki_float_env was = pki_float_env_enter();
    pk_result_t result = PK_OK;

    for (size_t i = 0; i < PKI_REDUCE_STRIDE && i < count; i++)
        memcpy((char *)factors + i * width, element, width);
    for (size_t done = 0; done < count && result == PK_OK; done += PKI_REDUCE_STRIDE) {
        const void *srcs[2] = { (const char *)src + done * width, factors };
        size_t some = count - done < PKI_REDUCE_STRIDE ? count - done : PKI_REDUCE_STRIDE;

        result = pki_reduce_host_here((char *)dst + done * width, srcs, 2, some, dtype, PK_PROD);
    }
    pki_float_env_leave(was);
    return result;
}

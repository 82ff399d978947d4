/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of the 12 types: slow, plain arithmetic, so that it can be compared with the library's. Small floats are read and rounded
 * by way of double, in which every one of them and every f32 is exact.
 */
#include "fc_kernels.h"

#include <math.h>
#include <string.h>

static const struct {
    uint8_t bytes, exponent, mantissa; /* exponent 0: an integer */
    bool is_signed;
} types[PK_DTYPE_COUNT] = {
    [PK_INT8] = { 1, 0, 0, true },    [PK_UINT8] = { 1, 0, 0, false }, [PK_INT32] = { 4, 0, 0, true },
    [PK_UINT32] = { 4, 0, 0, false }, [PK_INT64] = { 8, 0, 0, true },  [PK_UINT64] = { 8, 0, 0, false },
    [PK_F16] = { 2, 5, 10, true },    [PK_BF16] = { 2, 8, 7, true },   [PK_F32] = { 4, 8, 23, true },
    [PK_F64] = { 8, 11, 52, true },   [PK_F8E4M3] = { 1, 4, 3, true }, [PK_F8E5M2] = { 1, 5, 2, true },
};

size_t fc_element_bytes(pk_dtype_t type)
{
    return types[type].bytes;
}

static double small_to_double(uint64_t bits, pk_dtype_t type)
{
    unsigned m = types[type].mantissa, e = types[type].exponent;
    int bias = (1 << (e - 1)) - 1, exponent = (int)(bits >> m & ((1u << e) - 1)), top = (1 << e) - 1;
    double mantissa = (double)(bits & ((1u << m) - 1)), value;

    if (type == PK_F8E4M3 && (bits & 0x7f) == 0x7f)
        value = NAN;
    else if (type != PK_F8E4M3 && exponent == top)
        value = mantissa == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - (int)m);
    else
        value = ldexp(1 + ldexp(mantissa, -(int)m), exponent - bias);
    return bits >> (m + e) & 1 ? -value : value;
}

/* To nearest, ties to even; what rounds to more than there is becomes infinity, or NaN where there is none. */
static uint64_t double_to_small(double value, pk_dtype_t type)
{
    unsigned m = types[type].mantissa, e = types[type].exponent;
    int bias = (1 << (e - 1)) - 1, exponent = 0;
    uint64_t sign = signbit(value) ? 1ull << (m + e) : 0, top = (1ull << e) - 1, bits;
    double magnitude = fabs(value);

    if (isnan(value))
        return sign | ((top << m) | ((1ull << m) - 1));
    if (isinf(value))
        return sign | (type == PK_F8E4M3 ? 0x7f : top << m);
    if (magnitude == 0)
        return sign;
    (void)frexp(magnitude, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1; /* of the last place: exponent - m */
    bits = (uint64_t)nearbyint(ldexp(magnitude, (int)m - exponent));
    bits += (uint64_t)(exponent + bias - 1) << m; /* a subnormal adds nothing; a carry goes up by itself */
    if (type == PK_F8E4M3)
        return sign | (bits > 0x7e ? 0x7f : bits);
    return sign | (bits > top << m ? top << m : bits);
}

static bool is_small(pk_dtype_t type)
{
    return types[type].exponent > 0 && types[type].bytes < 4;
}

union fc_wide fc_any_load(const void *array, uint64_t i, pk_dtype_t type)
{
    const char *at = (const char *)array + i * types[type].bytes;
    union fc_wide value = { .u = 0 };
    unsigned unused = 64 - 8u * types[type].bytes;

    if (type == PK_F64)
        memcpy(&value.d, at, 8);
    else if (type == PK_F32)
        memcpy(&value.f, at, 4);
    else
        memcpy(&value.u, at, types[type].bytes);
    if (is_small(type))
        value.f = (float)small_to_double(value.u, type);
    else if (types[type].exponent == 0 && types[type].is_signed)
        value.u = (uint64_t)((int64_t)(value.u << unused) >> unused);
    return value;
}

static bool comes_first(double a, double b, uint32_t op)
{
    return isnan(a) || (op == PKI_KERNEL_MIN ? a < b : a > b);
}

static uint64_t combine_integers(uint64_t a, uint64_t b, pk_dtype_t type, uint32_t op)
{
    bool less = types[type].is_signed ? (int64_t)a < (int64_t)b : a < b;

    if (op == PKI_KERNEL_SUM)
        return a + b;
    if (op == PKI_KERNEL_PROD)
        return a * b;
    return (op == PKI_KERNEL_MIN) == less ? a : b;
}

union fc_wide fc_any_combine(union fc_wide a, union fc_wide b, pk_dtype_t type, uint32_t op)
{
    if (types[type].exponent == 0)
        return (union fc_wide){ .u = combine_integers(a.u, b.u, type, op) };
    if (type == PK_F64) {
        if (op == PKI_KERNEL_SUM || op == PKI_KERNEL_PROD)
            return (union fc_wide){ .d = op == PKI_KERNEL_SUM ? a.d + b.d : a.d * b.d };
        return comes_first(a.d, b.d, op) ? a : b;
    }
    if (op == PKI_KERNEL_SUM || op == PKI_KERNEL_PROD)
        return (union fc_wide){ .f = op == PKI_KERNEL_SUM ? a.f + b.f : a.f * b.f };
    return comes_first(a.f, b.f, op) ? a : b;
}

static uint64_t divide_integer(uint64_t value, pk_dtype_t type, uint32_t divisor)
{
    unsigned unused = 64 - 8u * types[type].bytes;

    if (types[type].is_signed)
        return (uint64_t)(((int64_t)(value << unused) >> unused) / (int64_t)divisor);
    return (value << unused >> unused) / divisor;
}

void fc_any_store(void *array, uint64_t i, pk_dtype_t type, union fc_wide value, uint32_t divisor)
{
    char *at = (char *)array + i * types[type].bytes;

    if (divisor > 1 && types[type].exponent == 0)
        value.u = divide_integer(value.u, type, divisor);
    else if (divisor > 1 && type == PK_F64)
        value.d /= (double)divisor;
    else if (divisor > 1)
        value.f /= (float)divisor;
    if (type == PK_F64) {
        memcpy(at, &value.d, 8);
    } else if (type == PK_F32) {
        memcpy(at, &value.f, 4);
    } else {
        uint64_t bits = is_small(type) ? double_to_small(value.f, type) : value.u;

        memcpy(at, &bits, types[type].bytes);
    }
}

void fc_run_reduce(const struct fc_launch *l, pk_dtype_t type)
{
    const struct pki_reduce_args *args = l->params[0];
    size_t bytes = args->count * types[type].bytes;
    const char *srcs[PKI_REDUCE_SOURCES];
    char *dst;

    if (bytes == 0 || args->n == 0 || args->n > PKI_REDUCE_SOURCES)
        return;
    dst = fc_ptr(l, args->dst, bytes);
    for (uint32_t s = 0; s < args->n; s++) {
        srcs[s] = fc_ptr(l, args->srcs[s], bytes);
        if (srcs[s] == NULL)
            return;
    }
    for (uint64_t i = 0; dst != NULL && i < args->count; i++) {
        union fc_wide value = fc_element_load(srcs[0], i, type);

        for (uint32_t s = 1; s < args->n; s++)
            value = fc_element_combine(value, fc_element_load(srcs[s], i, type), type, args->op);
        fc_element_store(dst, i, type, value, args->divisor);
    }
}

void fc_run_scale(const struct fc_launch *l)
{
    const struct pki_scale_args *args = l->params[0];
    pk_dtype_t type = (pk_dtype_t)args->type;
    size_t bytes;
    union fc_wide factor;
    const void *at, *src;
    void *dst;

    if (args->type >= PK_DTYPE_COUNT || args->count == 0)
        return;
    bytes = args->count * types[type].bytes;
    at = args->factor != 0 ? fc_ptr(l, args->factor, types[type].bytes) : &args->value;
    src = fc_ptr(l, args->src, bytes);
    dst = fc_ptr(l, args->dst, bytes);
    if (at == NULL || src == NULL || dst == NULL)
        return;
    factor = fc_element_load(at, 0, type);
    for (uint64_t i = 0; i < args->count; i++)
        fc_element_store(dst, i, type, fc_element_combine(fc_element_load(src, i, type), factor, type, PKI_KERNEL_PROD), 0);
}

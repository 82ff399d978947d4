/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers to be reduced, and what may come out: worked out here from the formats' definitions, without the library's conversions. */
#include "conform.h"

#include <math.h>
#include <string.h>

#define EDGE 4096  /* elements at both ends that are all looked at */
#define SOME 40000 /* and about so many in between */

/* How a float type divides its bits; no exponent bits: an integer. */
struct format {
    unsigned bytes, exponent_bits, mantissa_bits;
    bool is_signed, has_infinity;
};

static const struct format formats[PK_DTYPE_COUNT] = {
    [PK_INT8] = { 1, 0, 0, true, false },    [PK_UINT8] = { 1, 0, 0, false, false }, [PK_INT32] = { 4, 0, 0, true, false },
    [PK_UINT32] = { 4, 0, 0, false, false }, [PK_INT64] = { 8, 0, 0, true, false },  [PK_UINT64] = { 8, 0, 0, false, false },
    [PK_F16] = { 2, 5, 10, true, true },     [PK_BF16] = { 2, 8, 7, true, true },    [PK_F32] = { 4, 8, 23, true, true },
    [PK_F64] = { 8, 11, 52, true, true },    [PK_F8E4M3] = { 1, 4, 3, true, false }, [PK_F8E5M2] = { 1, 5, 2, true, true },
};

static int bias_of(const struct format *f)
{
    return (1 << (f->exponent_bits - 1)) - 1;
}

/* Floats of either sign whose exponents span six powers of two, so that sums round and cancel; factors lie between 1 and 2, so that a
 * product of many has room. Integers of all sizes. */
static uint64_t number_bits(uint64_t key, size_t i, const struct format *f, pk_op_t op)
{
    uint64_t random = data_mix(key + i), more = data_mix(random);
    int exponent;

    if (f->exponent_bits == 0)
        return random;
    exponent = bias_of(f) + (op == PK_PROD ? 0 : (int)(more % 6) - 3);
    return (more >> 63) << (f->bytes * 8 - 1) | (uint64_t)exponent << f->mantissa_bits |
           (random & ((1ull << f->mantissa_bits) - 1));
}

/* NaN for infinities too: nothing here may come to one. */
static long double float_value(uint64_t bits, const struct format *f)
{
    uint64_t mantissa = bits & ((1ull << f->mantissa_bits) - 1);
    int top = (1 << f->exponent_bits) - 1;
    int exponent = (int)(bits >> f->mantissa_bits) & top;
    long double value;

    if (exponent == top && (f->has_infinity || mantissa == (1ull << f->mantissa_bits) - 1))
        return NAN;
    value = ldexpl((long double)(exponent == 0 ? mantissa : mantissa | 1ull << f->mantissa_bits),
                   (exponent == 0 ? 1 : exponent) - bias_of(f) - (int)f->mantissa_bits);
    return bits >> (f->bytes * 8 - 1) & 1 ? -value : value;
}

/* Exact in every type: 1.5, -0.75, 1.25, -1. */
static uint64_t factor_bits(const struct format *f, int rank)
{
    static const struct {
        unsigned negative, quarters;
        int exponent;
    } factors[] = { { 0, 2, 0 }, { 1, 2, -1 }, { 0, 1, 0 }, { 1, 0, 0 } };
    int k = rank % 4;

    if (f->exponent_bits == 0)
        return 3 + 7 * (uint64_t)rank;
    return (uint64_t)factors[k].negative << (f->bytes * 8 - 1) |
           (uint64_t)(bias_of(f) + factors[k].exponent) << f->mantissa_bits |
           (uint64_t)factors[k].quarters << (f->mantissa_bits - 2);
}

void data_factor(void *out, pk_dtype_t dtype, int rank)
{
    uint64_t bits = factor_bits(&formats[dtype], rank);

    memcpy(out, &bits, formats[dtype].bytes); /* little endian */
}

void data_numbers(void *out, size_t count, pk_dtype_t dtype, pk_op_t op, uint64_t key)
{
    const struct format *f = &formats[dtype];
    char *to = out;

    for (size_t i = 0; i < count; i++) {
        uint64_t bits = number_bits(key, i, f, op);

        memcpy(to + i * f->bytes, &bits, f->bytes); /* little endian */
    }
}

/* The low bits of an integer as the type reads them. */
static int64_t extend(uint64_t bits, const struct format *f)
{
    unsigned spare = 64 - f->bytes * 8;

    return f->is_signed ? (int64_t)(bits << spare) >> spare : (int64_t)(bits << spare >> spare);
}

static bool is_less(uint64_t a, uint64_t b, const struct format *f)
{
    return f->is_signed ? extend(a, f) < extend(b, f) : (uint64_t)extend(a, f) < (uint64_t)extend(b, f);
}

/* What a rank brings into the reduction. */
static uint64_t whole_operand(size_t i, const struct format *f, pk_op_t op, const uint64_t *keys, int rank)
{
    return number_bits(keys[rank], i, f, op) * (op == REDUCTION_PREMUL ? factor_bits(f, rank) : 1);
}

static uint64_t whole(size_t i, const struct format *f, pk_op_t op, const uint64_t *keys, int size)
{
    uint64_t result = whole_operand(i, f, op, keys, 0);

    for (int r = 1; r < size; r++) {
        uint64_t next = whole_operand(i, f, op, keys, r);

        if (op == PK_SUM || op == PK_AVG || op == REDUCTION_PREMUL)
            result += next;
        else if (op == PK_PROD)
            result *= next;
        else if (op == PK_MIN ? is_less(next, result, f) : is_less(result, next, f))
            result = next;
    }
    if (op == PK_AVG && f->is_signed)
        result = (uint64_t)(extend(result, f) / size);
    else if (op == PK_AVG)
        result = (uint64_t)extend(result, f) / (uint64_t)size;
    return result;
}

static long double operand(size_t i, const struct format *f, pk_op_t op, const uint64_t *keys, int rank)
{
    long double value = float_value(number_bits(keys[rank], i, f, op), f);

    return op == REDUCTION_PREMUL ? value * float_value(factor_bits(f, rank), f) : value;
}

/* Each step may round once, to half a unit in the last place, or half the smallest number. */
static bool is_near(long double got, size_t i, const struct format *f, pk_op_t op, const uint64_t *keys, int size)
{
    long double half_unit = ldexpl(1, -(int)f->mantissa_bits - 1), smallest = ldexpl(1, 1 - bias_of(f) - (int)f->mantissa_bits);
    long double result = operand(i, f, op, keys, 0), magnitude = fabsl(result);

    for (int r = 1; r < size; r++) {
        long double next = operand(i, f, op, keys, r);

        magnitude += fabsl(next);
        if (op == PK_SUM || op == PK_AVG || op == REDUCTION_PREMUL)
            result += next;
        else if (op == PK_PROD)
            result *= next;
        else if (op == PK_MIN ? next < result : next > result)
            result = next;
    }
    if (op == PK_MIN || op == PK_MAX)
        return got == result;
    if (op == PK_PROD)
        magnitude = fabsl(result) * 1.25L;
    if (op == PK_AVG) {
        result /= size;
        return fabsl(got - result) <= (size + 1) * half_unit * magnitude / size + smallest;
    }
    if (op == REDUCTION_PREMUL) /* the products are rounded too */
        size++;
    return fabsl(got - result) <= size * half_unit * magnitude + size * smallest;
}

static bool is_right(uint64_t got, size_t i, const struct format *f, pk_op_t op, const uint64_t *keys, int size)
{
    if (f->exponent_bits > 0)
        return is_near(float_value(got, f), i, f, op, keys, size);
    return extend(got, f) == extend(whole(i, f, op, keys, size), f);
}

bool data_is_reduced(const void *got, size_t count, pk_dtype_t dtype, pk_op_t op, const uint64_t *keys, int size, size_t *where)
{
    const struct format *f = &formats[dtype];
    const char *from = got;
    size_t stride = count / SOME | 1; /* odd: no alignment is favoured */

    for (size_t i = 0; i < count; i += i < EDGE || i + EDGE >= count ? 1 : stride) {
        uint64_t bits = 0;

        memcpy(&bits, from + i * f->bytes, f->bytes);
        if (!is_right(bits, i, f, op, keys, size)) {
            *where = i * f->bytes;
            return false;
        }
    }
    return true;
}

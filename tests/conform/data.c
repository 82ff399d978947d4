/* SPDX-License-Identifier: Apache-2.0 */
/* Test data is a function of (seed, case, round, rank, tag, position): whoever receives it can compute what it should be. */
#include "conform.h"

#include <math.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t data_key(uint64_t seed, unsigned number, unsigned round, int rank, unsigned tag)
{
    return mix(mix(mix(mix(seed + 1) + number) + round) + ((uint64_t)tag << 32) + (unsigned)rank);
}

void data_fill(void *out, size_t bytes, uint64_t key)
{
    char *to = out;

    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mix(key + at);

        memcpy(to + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

bool data_equal(const void *got, size_t bytes, uint64_t key, size_t *where)
{
    const char *from = got;

    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mix(key + at);
        size_t n = bytes - at < 8 ? bytes - at : 8;

        if (memcmp(from + at, &word, n) != 0) {
            *where = at;
            return false;
        }
    }
    return true;
}

/* Floats of either sign whose exponents span six powers of two, so that sums round and cancel; integers of all sizes. */
static uint32_t number_bits(uint64_t key, size_t i, pk_dtype_t dtype)
{
    uint64_t random = mix(key + i);
    uint32_t sign = random >> 63 & 1;
    uint32_t exponent = (uint32_t)(random >> 40) % 6;

    switch (dtype) {
    case PK_F16: return sign << 15 | (exponent + 12) << 10 | (uint32_t)(random & 0x3ff);
    case PK_BF16: return sign << 15 | (exponent + 124) << 7 | (uint32_t)(random & 0x7f);
    case PK_F32: return sign << 31 | (exponent + 124) << 23 | (uint32_t)(random & 0x7fffff);
    default: return (uint32_t)random;
    }
}

static double value_of(uint32_t bits, pk_dtype_t dtype)
{
    int exponent;
    double fraction;
    float f32;

    if (dtype == PK_F16) {
        exponent = (int)(bits >> 10 & 0x1f);
        fraction = bits & 0x3ff;
        if (exponent == 31)
            return NAN; /* no sum of these numbers overflows */
        fraction = exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25);
        return bits >> 15 & 1 ? -fraction : fraction;
    }
    if (dtype == PK_BF16)
        bits <<= 16;
    memcpy(&f32, &bits, sizeof f32);
    return f32;
}

void data_numbers(void *out, size_t count, pk_dtype_t dtype, uint64_t key)
{
    size_t width = pk_dtype_size(dtype);
    char *to = out;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits = number_bits(key, i, dtype);

        memcpy(to + i * width, &bits, width); /* little endian */
    }
}

/* Half a unit in the last place of 1. */
static double half_unit(pk_dtype_t dtype)
{
    switch (dtype) {
    case PK_F16: return 0x1p-11;
    case PK_BF16: return 0x1p-8;
    default: return 0x1p-24;
    }
}

static bool is_whole_sum(uint32_t got, size_t i, const uint64_t *keys, int size)
{
    uint32_t sum = 0;

    for (int r = 0; r < size; r++)
        sum += number_bits(keys[r], i, PK_INT32);
    return got == sum;
}

static bool is_float_sum(uint32_t got, size_t i, pk_dtype_t dtype, const uint64_t *keys, int size)
{
    double sum = 0;
    double magnitude = 0;

    for (int r = 0; r < size; r++) {
        double value = value_of(number_bits(keys[r], i, dtype), dtype);

        sum += value;
        magnitude += fabs(value);
    }
    return fabs(value_of(got, dtype) - sum) <= size * half_unit(dtype) * magnitude;
}

bool data_is_sum(const void *got, size_t count, pk_dtype_t dtype, const uint64_t *keys, int size, size_t *where)
{
    size_t width = pk_dtype_size(dtype);
    const char *from = got;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        bool right;

        memcpy(&bits, from + i * width, width);
        right = dtype == PK_INT32 ? is_whole_sum(bits, i, keys, size) : is_float_sum(bits, i, dtype, keys, size);
        if (!right) {
            *where = i * width;
            return false;
        }
    }
    return true;
}

uint64_t data_digest(const void *data, size_t bytes)
{
    const unsigned char *from = data;
    uint64_t digest = bytes;

    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;

        memcpy(&word, from + at, bytes - at < 8 ? bytes - at : 8);
        digest = mix(digest + word);
    }
    return digest;
}

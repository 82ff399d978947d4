/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data that can be told from (rank, block, iteration, element) alone, so that any rank can say what it must have received. What is
 * reduced are small whole numbers whose results are exact in every type, whatever the order of the operations.
 */
#include "perf.h"

#include <string.h>

#define NUMBERS_AT_ONCE 1024u
#define NUMBERS_A_WORD 16u
#define PROD_RANKS 6 /* that contribute a two: 64 fits every type */

static uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

static uint64_t key_of(int rank, int index, unsigned iteration)
{
    return mix(mix(((uint64_t)(unsigned)rank << 32 | iteration) + 1) + (uint64_t)(unsigned)index);
}

/* Words of a block; `first` is a multiple of 8 bytes into it. */
static void random_bytes(char *out, size_t bytes, uint64_t key, size_t first)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mix(key + (first + at) / 8);

        memcpy(out + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

/* What rank contributes where its random nibble is `nibble`. An average of multiples of the number of ranks is whole. */
static int32_t number_of(const struct perf_run *run, int rank, unsigned nibble)
{
    bool narrow = pk_dtype_size(run->options.dtype) == 1;

    if (run->options.reduction == PK_PROD)
        return rank < PROD_RANKS && (nibble & 1) != 0 ? 2 : 1;
    if (run->options.reduction == PK_AVG)
        return (int32_t)(nibble & 1) * run->size;
    return (int32_t)(nibble & (narrow ? 1 : 7));
}

static int32_t combine(pk_op_t reduction, int32_t a, int32_t b)
{
    switch (reduction) {
    case PK_PROD: return a * b;
    case PK_MIN: return a < b ? a : b;
    case PK_MAX: return a > b ? a : b;
    default: return a + b;
    }
}

/* results[i] = what was there and rank's number for element first + i, combined; `start`: nothing was there. */
static void add_numbers(const struct perf_run *run, int32_t *results, size_t count, int rank, uint64_t key, size_t first, bool start)
{
    for (size_t at = 0; at < count; at += NUMBERS_A_WORD) {
        uint64_t word = mix(key + (first + at) / NUMBERS_A_WORD);
        size_t n = count - at < NUMBERS_A_WORD ? count - at : NUMBERS_A_WORD;

        for (size_t k = 0; k < n; k++) {
            int32_t number = number_of(run, rank, (unsigned)(word >> (4 * k) & 15));

            results[at + k] = start ? number : combine(run->options.reduction, results[at + k], number);
        }
    }
}

/* Bits of a whole number in a binary float of `mantissa` stored bits and `bias`, where it is exact. */
static uint64_t float_bits(int32_t number, unsigned mantissa, unsigned bias)
{
    unsigned exponent = 0;
    uint64_t fraction;

    if (number == 0)
        return 0;
    while (number >> (exponent + 1) != 0)
        exponent++;
    fraction = ((uint64_t)number << mantissa >> exponent) & (((uint64_t)1 << mantissa) - 1);
    return (uint64_t)(exponent + bias) << mantissa | fraction;
}

static void encode(char *out, const int32_t *numbers, size_t count, pk_dtype_t dtype)
{
    size_t width = pk_dtype_size(dtype);

    for (size_t i = 0; i < count; i++) {
        uint64_t bits;

        switch (dtype) {
        case PK_F64: bits = float_bits(numbers[i], 52, 1023); break;
        case PK_F32: bits = float_bits(numbers[i], 23, 127); break;
        case PK_BF16: bits = float_bits(numbers[i], 7, 127); break;
        case PK_F16: bits = float_bits(numbers[i], 10, 15); break;
        case PK_F8E4M3: bits = float_bits(numbers[i], 3, 7); break;
        case PK_F8E5M2: bits = float_bits(numbers[i], 2, 15); break;
        default: bits = (uint64_t)numbers[i]; break;
        }
        memcpy(out + i * width, &bits, width); /* little endian, as everything the library runs on */
    }
}

static void numbers(const struct perf_run *run, char *out, size_t count, int rank, int index, unsigned iteration, size_t first)
{
    int32_t values[NUMBERS_AT_ONCE];
    size_t width = pk_dtype_size(run->options.dtype);
    int from = rank < 0 ? 0 : rank;
    int to = rank < 0 ? run->size : rank + 1;

    for (size_t at = 0; at < count; at += NUMBERS_AT_ONCE) {
        size_t n = count - at < NUMBERS_AT_ONCE ? count - at : NUMBERS_AT_ONCE;

        for (int r = from; r < to; r++)
            add_numbers(run, values, n, r, key_of(r, index, iteration), first + at, r == from);
        for (size_t i = 0; rank < 0 && run->options.reduction == PK_AVG && i < n; i++)
            values[i] /= run->size;
        encode(out + at * width, values, n, run->options.dtype);
    }
}

void perf_data(const struct perf_run *run, char *out, size_t count, int rank, int index, unsigned iteration, size_t first)
{
    size_t width = pk_dtype_size(run->options.dtype);

    if (perf_reduces(run->options.op))
        numbers(run, out, count, rank, index, iteration, first);
    else
        random_bytes(out, count * width, key_of(rank, index, iteration), first * width);
}

/* The largest number up to which a type has all whole ones; 0: larger than anything here. */
static int exact_up_to(pk_dtype_t dtype)
{
    switch (dtype) {
    case PK_INT8: return 127;
    case PK_UINT8: return 255;
    case PK_BF16: return 256;
    case PK_F16: return 2048;
    case PK_F8E4M3: return 16;
    case PK_F8E5M2: return 8;
    default: return 0;
    }
}

const char *perf_uncheckable(pk_op_t reduction, pk_dtype_t dtype, int ranks)
{
    int limit = exact_up_to(dtype);
    int most = (pk_dtype_size(dtype) == 1 ? 1 : 7) * ranks;

    if (reduction == PK_AVG)
        most = ranks * ranks;
    if (limit == 0 || (reduction != PK_SUM && reduction != PK_AVG) || most <= limit)
        return NULL;
    return "so many ranks cannot be summed exactly in this type: say -c 0";
}

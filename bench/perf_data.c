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
#define CODES 8192u
#define RANKS_MOST 1170 /* each up to 7, below CODES in all */

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
    uint64_t from = key + first / 8, words = bytes / 8, word;

    for (uint64_t w = 0; w < words; w++) {
        word = mix(from + w);
        memcpy(out + 8 * w, &word, 8);
    }
    word = mix(from + words);
    memcpy(out + 8 * words, &word, bytes % 8);
}

/* What a rank contributes to an element is a code, drawn from a nibble of its random words: codes combine as the numbers do, and are small. */
static uint64_t code_mask(const struct perf_run *run, int rank)
{
    bool narrow = pk_dtype_size(run->options.dtype) == 1;

    if (run->options.reduction == PK_PROD)
        return rank < PROD_RANKS ? 1 : 0;
    return run->options.reduction == PK_AVG || narrow ? 1 : 7;
}

/* A rank's codes of NUMBERS_AT_ONCE elements; those of a word's 16 are in the order of the lanes that they are drawn into, four by four. */
static void draw(uint16_t codes[NUMBERS_AT_ONCE], uint64_t key, uint64_t first_word, uint64_t mask)
{
    uint64_t lanes = mask * 0x0001000100010001u;

    for (size_t w = 0; w < NUMBERS_AT_ONCE / NUMBERS_A_WORD; w++) {
        uint64_t word = mix(key + first_word + w);
        uint64_t drawn[4] = { word & lanes, word >> 4 & lanes, word >> 8 & lanes, word >> 12 & lanes };

        memcpy(codes + NUMBERS_A_WORD * w, drawn, sizeof drawn);
    }
}

static void combine(pk_op_t reduction, uint16_t codes[NUMBERS_AT_ONCE], const uint16_t with[NUMBERS_AT_ONCE])
{
    if (reduction == PK_MIN)
        for (size_t i = 0; i < NUMBERS_AT_ONCE; i++)
            codes[i] = codes[i] < with[i] ? codes[i] : with[i];
    else if (reduction == PK_MAX)
        for (size_t i = 0; i < NUMBERS_AT_ONCE; i++)
            codes[i] = codes[i] > with[i] ? codes[i] : with[i];
    else
        for (size_t i = 0; i < NUMBERS_AT_ONCE; i++)
            codes[i] = (uint16_t)(codes[i] + with[i]);
}

/* Codes of a product are powers of two. An average of multiples of the number of ranks is whole. */
static int32_t number_of(const struct perf_run *run, bool reduced, unsigned code)
{
    if (run->options.reduction == PK_PROD)
        return (int32_t)1 << code;
    return run->options.reduction == PK_AVG && !reduced ? (int32_t)code * run->size : (int32_t)code;
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

static uint64_t encode(int32_t number, pk_dtype_t dtype)
{
    switch (dtype) {
    case PK_F64:
        return float_bits(number, 52, 1023);
    case PK_F32:
        return float_bits(number, 23, 127);
    case PK_BF16:
        return float_bits(number, 7, 127);
    case PK_F16:
        return float_bits(number, 10, 15);
    case PK_F8E4M3:
        return float_bits(number, 3, 7);
    case PK_F8E5M2:
        return float_bits(number, 2, 15);
    default:
        return (uint64_t)number;
    }
}

/* The element for each code. */
struct elements {
    uint64_t bits[CODES];
};

static void elements_of(const struct perf_run *run, bool reduced, struct elements *e)
{
    unsigned most = 7 * (reduced ? (unsigned)run->size : 1);

    if (run->options.reduction == PK_PROD)
        most = PROD_RANKS;
    for (unsigned code = 0; code <= most; code++)
        e->bits[code] = encode(number_of(run, reduced, code), run->options.dtype);
}

/* The elements of a word's codes, in order: little endian, as everything the library runs on. */
static void write_word(char *out, const uint16_t codes[NUMBERS_A_WORD], const uint64_t *bits, size_t width)
{
    for (size_t i = 0; i < NUMBERS_A_WORD; i++)
        memcpy(out + i * width, &bits[codes[i % 4 * 4 + i / 4]], width);
}

/* The width known to the compiler. */
static void write_elements(char *out, const uint16_t *codes, size_t words, const uint64_t *bits, size_t width)
{
    for (size_t w = 0; w < words; w++, out += NUMBERS_A_WORD * width, codes += NUMBERS_A_WORD) {
        switch (width) {
        case 1:
            write_word(out, codes, bits, 1);
            break;
        case 2:
            write_word(out, codes, bits, 2);
            break;
        case 4:
            write_word(out, codes, bits, 4);
            break;
        default:
            write_word(out, codes, bits, 8);
            break;
        }
    }
}

static void numbers(const struct perf_run *run, char *out, size_t count, int rank, int index, unsigned iteration, size_t first)
{
    size_t width = pk_dtype_size(run->options.dtype);
    int from = rank < 0 ? 0 : rank;
    int to = rank < 0 ? run->size : rank + 1;
    uint16_t codes[NUMBERS_AT_ONCE], more[NUMBERS_AT_ONCE];
    char last[NUMBERS_A_WORD * 8];
    struct elements e;

    elements_of(run, rank < 0, &e);
    for (size_t at = 0; at < count; at += NUMBERS_AT_ONCE) {
        size_t n = count - at < NUMBERS_AT_ONCE ? count - at : NUMBERS_AT_ONCE;
        size_t words = n / NUMBERS_A_WORD, rest = n % NUMBERS_A_WORD;

        for (int r = from; r < to; r++) {
            draw(r == from ? codes : more, key_of(r, index, iteration), (first + at) / NUMBERS_A_WORD, code_mask(run, r));
            if (r > from)
                combine(run->options.reduction, codes, more);
        }
        write_elements(out + at * width, codes, words, e.bits, width);
        if (rest == 0)
            continue;
        write_elements(last, codes + words * NUMBERS_A_WORD, 1, e.bits, width);
        memcpy(out + (at + words * NUMBERS_A_WORD) * width, last, rest * width);
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
    case PK_INT8:
        return 127;
    case PK_UINT8:
        return 255;
    case PK_BF16:
        return 256;
    case PK_F16:
        return 2048;
    case PK_F8E4M3:
        return 16;
    case PK_F8E5M2:
        return 8;
    default:
        return 0;
    }
}

const char *perf_uncheckable(pk_op_t reduction, pk_dtype_t dtype, int ranks)
{
    int limit = exact_up_to(dtype);
    int most = (pk_dtype_size(dtype) == 1 ? 1 : 7) * ranks;

    if (reduction == PK_AVG)
        most = ranks * ranks;
    if (ranks >= RANKS_MOST)
        return "the data of this many ranks cannot be told apart: say -c 0";
    if (limit == 0 || (reduction != PK_SUM && reduction != PK_AVG) || most <= limit)
        return NULL;
    return "the sum of this many ranks is not exact in this type: say -c 0";
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking: the data of every rank and iteration differ and are computed from (rank, iteration, element) alone, so that any rank can say
 * what it must have received. Sums are of small whole numbers, exact in every type, whatever the order of the additions.
 */
#include "perf.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)64 << 10)
#define POISON 0x5a
#define NUMBERS_A_WORD 16u

static uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

static uint64_t key_of(int rank, unsigned iteration)
{
    return mix(((uint64_t)(unsigned)rank << 32 | iteration) + 1);
}

/* Words of a message; `first` is a multiple of 8 bytes into it. */
static void random_bytes(char *out, size_t bytes, uint64_t key, size_t first)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mix(key + (first + at) / 8);

        memcpy(out + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

/* Add element i's number, 0 to 7, to sums[i - first]. */
static void add_numbers(int32_t *sums, size_t count, uint64_t key, size_t first)
{
    for (size_t at = 0; at < count; at += NUMBERS_A_WORD) {
        uint64_t word = mix(key + (first + at) / NUMBERS_A_WORD);
        size_t n = count - at < NUMBERS_A_WORD ? count - at : NUMBERS_A_WORD;

        for (size_t k = 0; k < n; k++)
            sums[at + k] += (int32_t)(word >> (4 * k) & 7);
    }
}

/* Bits of a whole number below 2048 in binary16. */
static uint16_t half_bits(int32_t number)
{
    unsigned exponent = 0;

    if (number == 0)
        return 0;
    while (number >> (exponent + 1) != 0)
        exponent++;
    return (uint16_t)((exponent + 15) << 10 | ((((unsigned)number << 10) >> exponent) & 0x3ff));
}

static void encode(char *out, const int32_t *numbers, size_t count, pk_dtype_t dtype)
{
    size_t width = pk_dtype_size(dtype);

    for (size_t i = 0; i < count; i++) {
        union {
            float f32;
            double f64;
            uint64_t whole;
        } value = { .whole = 0 };

        switch (dtype) {
        case PK_F32: value.f32 = (float)numbers[i]; break;
        case PK_F64: value.f64 = numbers[i]; break;
        case PK_BF16: value.f32 = (float)numbers[i]; value.whole >>= 16; break;
        case PK_F16: value.whole = half_bits(numbers[i]); break;
        default: value.whole = (uint64_t)numbers[i]; break;
        }
        memcpy(out + i * width, &value, width); /* little endian, as everything the library runs on */
    }
}

/* Numbers of `ranks` ranks from `first_rank` on, summed. */
static void numbers(char *out, size_t bytes, pk_dtype_t dtype, int first_rank, int ranks, unsigned iteration, size_t first_byte)
{
    static int32_t sums[BLOCK_BYTES];
    size_t width = pk_dtype_size(dtype);
    size_t count = bytes / width;

    memset(sums, 0, count * sizeof *sums);
    for (int r = first_rank; r < first_rank + ranks; r++)
        add_numbers(sums, count, key_of(r, iteration), first_byte / width);
    encode(out, sums, count, dtype);
}

/* What `bytes` bytes of the message from `rank` look like, from byte `first` on; for allreduce its summands. */
static void message(const struct perf_run *run, char *out, size_t bytes, int rank, unsigned iteration, size_t first)
{
    if (run->options.op == PERF_ALLREDUCE)
        numbers(out, bytes, run->options.dtype, rank, 1, iteration, first);
    else
        random_bytes(out, bytes, key_of(rank, iteration), first);
}

void perf_fill(struct perf_run *run, const struct perf_size *size, unsigned iteration)
{
    size_t result_bytes = perf_result_bytes(run, size);
    char *source = perf_source(run, size);
    char *out = run->options.cuda ? run->staging : source;

    if (run->options.cuda)
        gpu_fill(run->recv_buffer, POISON, result_bytes);
    else
        memset(run->recv_buffer, POISON, result_bytes);
    for (size_t at = 0; at < size->message_bytes; at += BLOCK_BYTES) {
        size_t bytes = size->message_bytes - at < BLOCK_BYTES ? size->message_bytes - at : BLOCK_BYTES;

        message(run, out + at, bytes, run->rank, iteration, at);
    }
    if (run->options.cuda)
        gpu_copy(source, run->staging, size->message_bytes);
}

static uint64_t count_wrong(const char *got, const char *expected, size_t bytes, size_t width)
{
    uint64_t wrong = 0;

    if (memcmp(got, expected, bytes) == 0)
        return 0;
    for (size_t at = 0; at < bytes; at += width)
        wrong += memcmp(got + at, expected + at, width) != 0;
    return wrong;
}

/* One message of the result against what `rank` sent (rank -1: the sum over all). */
static uint64_t check_message(const struct perf_run *run, const char *got, size_t bytes, int rank, unsigned iteration)
{
    static char expected[BLOCK_BYTES];
    uint64_t wrong = 0;

    for (size_t at = 0; at < bytes; at += BLOCK_BYTES) {
        size_t now = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;

        if (rank < 0)
            numbers(expected, now, run->options.dtype, 0, run->size, iteration, at);
        else
            message(run, expected, now, rank, iteration, at);
        wrong += count_wrong(got + at, expected, now, pk_dtype_size(run->options.dtype));
    }
    return wrong;
}

static uint64_t check_result(const struct perf_run *run, const struct perf_size *size, const char *got, unsigned iteration)
{
    const struct perf_options *o = &run->options;
    size_t bytes = size->message_bytes;
    int ranks = o->pattern == PERF_PINGPONG ? 2 : run->size; /* of a sendrecv */
    uint64_t wrong = 0;

    if (o->op == PERF_ALLREDUCE)
        return check_message(run, got, bytes, -1, iteration);
    if (o->op == PERF_SENDRECV && o->pattern == PERF_ONEWAY)
        return run->rank == 1 ? check_message(run, got, bytes, 0, iteration) : 0;
    if (o->op == PERF_SENDRECV)
        return check_message(run, got, bytes, (run->rank + ranks - 1) % ranks, iteration);
    for (int r = 0; r < run->size; r++)
        wrong += check_message(run, got + (size_t)r * bytes, bytes, r, iteration);
    return wrong;
}

uint64_t perf_check(struct perf_run *run, const struct perf_size *size, unsigned iteration)
{
    const char *got = run->recv_buffer;

    perf_fill(run, size, iteration);
    perf_post(run, size);
    perf_finish(run);
    if (!perf_takes_part(run))
        return 0;
    if (run->options.cuda) {
        got = run->staging;
        memset(run->staging, 0, perf_result_bytes(run, size));
        gpu_copy(run->staging, run->recv_buffer, perf_result_bytes(run, size));
    }
    return check_result(run, size, got, iteration);
}

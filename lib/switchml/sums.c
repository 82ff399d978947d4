/* SPDX-License-Identifier: Apache-2.0 */
/* With AVX2 eight values at a time, where the machine has it. */
#include "switchml/sums.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2")))
#endif

#define EXPONENT_BITS 0x7f800000u
#define EXPONENT_LEAST \
    (-96) /* with a smaller one the scale would leave the range of floats: what is below 2^-96 is sent as if it were not */

static uint32_t load(const void *from, uint32_t i)
{
    uint32_t value;

    memcpy(&value, (const char *)from + 4 * (size_t)i, sizeof value);
    return value;
}

static void store(void *to, uint32_t i, uint32_t value)
{
    memcpy((char *)to + 4 * (size_t)i, &value, sizeof value);
}

static uint32_t swapped(uint32_t value)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap32(value);
#else
    return value;
#endif
}

static float as_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

void pki_switchml_add_portably(uint32_t *sums, const void *values, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sums[i] += swapped(load(values, i));
}

static void swap_from(void *to, const void *from, uint32_t i, uint32_t n)
{
    for (; i < n; i++)
        store(to, i, swapped(load(from, i)));
}

static void quantise_from(void *values, const float *unit, uint32_t i, uint32_t n, float scale)
{
    for (; i < n; i++)
        store(values, i, swapped((uint32_t)(int32_t)lrintf(unit[i] * scale)));
}

static void restore_from(float *unit, const void *values, uint32_t i, uint32_t n, float scale)
{
    for (; i < n; i++)
        unit[i] = (float)(int32_t)swapped(load(values, i)) / scale;
}

static uint32_t largest_from(const float *unit, uint32_t i, uint32_t n, uint32_t largest)
{
    for (; i < n; i++) {
        uint32_t bits = load(unit, i) & 0x7fffffffu;

        largest = bits > largest ? bits : largest;
    }
    return largest;
}

#if defined(__x86_64__)
AVX2 static __m256i swap8(__m256i v)
{
    const __m256i order = _mm256_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10,
                                           9, 8, 15, 14, 13, 12);

    return _mm256_shuffle_epi8(v, order);
}

AVX2 static __m256i load8(const void *from, uint32_t i)
{
    return _mm256_loadu_si256((const void *)((const char *)from + 4 * (size_t)i));
}

AVX2 static void store8(void *to, uint32_t i, __m256i v)
{
    _mm256_storeu_si256((void *)((char *)to + 4 * (size_t)i), v);
}

AVX2 static void add_avx2(uint32_t *sums, const void *values, uint32_t n)
{
    for (uint32_t i = 0; i + 8 <= n; i += 8)
        store8(sums, i, _mm256_add_epi32(load8(sums, i), swap8(load8(values, i))));
}

AVX2 static void swap_avx2(void *to, const void *from, uint32_t n)
{
    for (uint32_t i = 0; i + 8 <= n; i += 8)
        store8(to, i, swap8(load8(from, i)));
}

AVX2 static void quantise_avx2(void *values, const float *unit, uint32_t n, float scale)
{
    const __m256 by = _mm256_set1_ps(scale);

    for (uint32_t i = 0; i + 8 <= n; i += 8)
        store8(values, i, swap8(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(unit + i), by))));
}

AVX2 static void restore_avx2(float *unit, const void *values, uint32_t n, float scale)
{
    const __m256 by = _mm256_set1_ps(scale);

    for (uint32_t i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(unit + i, _mm256_div_ps(_mm256_cvtepi32_ps(swap8(load8(values, i))), by));
}

AVX2 static uint32_t largest_avx2(const float *unit, uint32_t n)
{
    __m256i largest = _mm256_setzero_si256();
    uint32_t all[8], most = 0;

    for (uint32_t i = 0; i + 8 <= n; i += 8)
        largest = _mm256_max_epu32(largest, _mm256_and_si256(load8(unit, i), _mm256_set1_epi32(0x7fffffff)));
    store8(all, 0, largest);
    for (int i = 0; i < 8; i++)
        most = all[i] > most ? all[i] : most;
    return most;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
static bool has_avx2(void)
{
    return false;
}
#define add_avx2(sums, values, n) (void)0
#define swap_avx2(to, from, n) (void)0
#define quantise_avx2(values, unit, n, scale) (void)0
#define restore_avx2(unit, values, n, scale) (void)0
#define largest_avx2(unit, n) 0u
#endif

/* How many of `n` the functions above take. */
static uint32_t by_eights(uint32_t n)
{
    return has_avx2() ? n / 8 * 8 : 0;
}

void pki_switchml_add(uint32_t *sums, const void *values, uint32_t n)
{
    uint32_t done = by_eights(n);

    if (done > 0)
        add_avx2(sums, values, n);
    pki_switchml_add_portably(sums + done, (const char *)values + 4 * (size_t)done, n - done);
}

void pki_switchml_swap(void *to, const void *from, uint32_t n)
{
    uint32_t done = by_eights(n);

    if (done > 0)
        swap_avx2(to, from, n);
    swap_from(to, from, done, n);
}

/* The least power of two that is at least `workers`, as its exponent. */
static int rounded_log2(int workers)
{
    int log2 = 0;

    while (1 << log2 < workers)
        log2++;
    return log2;
}

bool pki_switchml_fits(int8_t exponent, int workers)
{
    return exponent <= 127 - rounded_log2(workers);
}

int8_t pki_switchml_exponent(const float *unit, uint32_t n, int workers)
{
    uint32_t done = by_eights(n);
    uint32_t largest = largest_from(unit, done, n, done > 0 ? largest_avx2(unit, n) : 0);
    int exponent = (int)((largest & EXPONENT_BITS) >> 23) - 126;

    return exponent > 127 - rounded_log2(workers) ? PKI_SWITCHML_UNFIT : (int8_t)exponent;
}

float pki_switchml_scale(int8_t exponent, int workers)
{
    int e = exponent < EXPONENT_LEAST ? EXPONENT_LEAST : exponent;
    float power = as_float((uint32_t)(e + 127) << 23); /* 2^e; e is at most 127 */

    return (float)((double)INT32_MAX / (double)((float)workers * power));
}

void pki_switchml_quantise(void *values, const float *unit, uint32_t n, float scale)
{
    uint32_t done = by_eights(n);

    if (done > 0)
        quantise_avx2(values, unit, n, scale);
    quantise_from(values, unit, done, n, scale);
}

void pki_switchml_restore(float *unit, const void *values, uint32_t n, float scale)
{
    uint32_t done = by_eights(n);

    if (done > 0)
        restore_avx2(unit, values, n, scale);
    restore_from(unit, values, done, n, scale);
}

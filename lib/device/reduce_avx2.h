/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floats with AVX2, where compilers do worse than the instructions for it: from and to f32, and sums without a stop in
 * memory. Included where functions are compiled for AVX2 and F16C. */
#define F16_LOAD_LANES f16_load_lanes
#define F16_STORE_LANES f16_store_lanes
#define BF16_LOAD_LANES bf16_load_lanes
#define BF16_STORE_LANES bf16_store_lanes

_Static_assert(PKI_REDUCE_LANES == 16, "two vectors of eight f32");

PKI_INLINE __m256 f16_load(const void *src)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(src));
}

PKI_INLINE __m128i f16_round(__m256 value)
{
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
}

PKI_INLINE void f16_store(void *dst, __m256 low, __m256 high)
{
    _mm256_storeu_si256(dst, _mm256_set_m128i(f16_round(high), f16_round(low)));
}

PKI_INLINE __m256 bf16_load(const void *src)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(src)), 16));
}

/* Eight rounded values in the lower halves of 32-bit words. A NaN is a value that is unordered with itself. */
PKI_INLINE __m256i bf16_round(__m256 value)
{
    __m256i u = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));

    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
}

PKI_INLINE void bf16_store(void *dst, __m256 low, __m256 high)
{
    __m256i packed = _mm256_packus_epi32(bf16_round(low), bf16_round(high));

    /* Packing works in each 128-bit half, so the middle quarters come out exchanged. */
    _mm256_storeu_si256(dst, _mm256_permute4x64_epi64(packed, 0xd8));
}

PKI_INLINE void f16_load_lanes(float *dst, const uint16_t *src)
{
    _mm256_storeu_ps(dst, f16_load(src));
    _mm256_storeu_ps(dst + 8, f16_load(src + 8));
}

PKI_INLINE void f16_store_lanes(uint16_t *dst, const float *src)
{
    f16_store(dst, _mm256_loadu_ps(src), _mm256_loadu_ps(src + 8));
}

PKI_INLINE void bf16_load_lanes(float *dst, const uint16_t *src)
{
    _mm256_storeu_ps(dst, bf16_load(src));
    _mm256_storeu_ps(dst + 8, bf16_load(src + 8));
}

PKI_INLINE void bf16_store_lanes(uint16_t *dst, const float *src)
{
    bf16_store(dst, _mm256_loadu_ps(src), _mm256_loadu_ps(src + 8));
}

static size_t sum_lanes_f16(void *dst, const void *const *srcs, int n, size_t count)
{
    size_t i = 0;

    for (; i + PKI_REDUCE_LANES <= count; i += PKI_REDUCE_LANES) {
        const uint16_t *src = (const uint16_t *)srcs[0] + i;
        __m256 low = f16_load(src), high = f16_load(src + 8);

        for (int k = 1; k < n; k++) {
            src = (const uint16_t *)srcs[k] + i;
            low = _mm256_add_ps(low, f16_load(src));
            high = _mm256_add_ps(high, f16_load(src + 8));
        }
        f16_store((uint16_t *)dst + i, low, high);
    }
    return i;
}

static size_t sum_lanes_bf16(void *dst, const void *const *srcs, int n, size_t count)
{
    size_t i = 0;

    for (; i + PKI_REDUCE_LANES <= count; i += PKI_REDUCE_LANES) {
        const uint16_t *src = (const uint16_t *)srcs[0] + i;
        __m256 low = bf16_load(src), high = bf16_load(src + 8);

        for (int k = 1; k < n; k++) {
            src = (const uint16_t *)srcs[k] + i;
            low = _mm256_add_ps(low, bf16_load(src));
            high = _mm256_add_ps(high, bf16_load(src + 8));
        }
        bf16_store((uint16_t *)dst + i, low, high);
    }
    return i;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The 16-bit and 8-bit floats from and to f32, by integer arithmetic without branches, so that loops over them become vector
 * code. Down: to nearest, ties to even (in the default rounding mode). Out of range becomes infinity, in f8e4m3, which has none,
 * NaN. NaN stays NaN and becomes quiet.
 */
#ifndef PKI_FLOAT_BITS_H
#define PKI_FLOAT_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__ /* kernels round as the host does */
#define PKI_INLINE static __device__ __forceinline__
#else
#define PKI_INLINE static inline __attribute__((always_inline))
#endif

PKI_INLINE uint32_t pki_float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

PKI_INLINE float pki_bits_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* condition ? yes : no, in a form that no compiler turns into a branch. */
PKI_INLINE uint32_t pki_choose(bool condition, uint32_t yes, uint32_t no)
{
    uint32_t mask = 0u - (uint32_t)condition;

    return (yes & mask) | (no & ~mask);
}

/* A float of 1 sign, `e` exponent and `m` mantissa bits with the usual bias. `infinity`: the highest exponent means infinity or
 * NaN; else only all ones in exponent and mantissa means NaN. */
PKI_INLINE float pki_small_to_float(uint32_t bits, unsigned e, unsigned m, bool infinity)
{
    const uint32_t bias = (1u << (e - 1)) - 1, top = (1u << e) - 1;
    uint32_t magnitude = bits & ((1u << (e + m)) - 1);
    uint32_t sign = bits >> (e + m) << 31;
    uint32_t normal = (magnitude << (23 - m)) + ((127 - bias) << 23);
    /* With one more in the exponent a subnormal is 2^(1 - bias) too much, exactly. */
    uint32_t subnormal = pki_float_bits(pki_bits_float(normal + (1u << 23)) - pki_bits_float((128 - bias) << 23));
    uint32_t result = pki_choose(magnitude >> m == 0, subnormal, normal);

    if (infinity)
        result = pki_choose(magnitude >> m == top, result | 0x7f800000u, result);
    else
        result = pki_choose(magnitude == (1u << (e + m)) - 1, 0x7fc00000u, result);
    return pki_bits_float(result | sign);
}

PKI_INLINE uint32_t pki_float_to_small(float value, unsigned e, unsigned m, bool infinity)
{
    const uint32_t bias = (1u << (e - 1)) - 1, top = (1u << e) - 1;
    const uint32_t infinite = infinity ? top << m : (1u << (e + m)) - 1;
    const uint32_t too_large = (127 + top - bias + (infinity ? 0 : 1)) << 23;
    /* Adding this number leaves the subnormal, rounded, in the lowest bits of the sum. */
    const uint32_t magic = (128 - bias + 23 - m) << 23;
    uint32_t u = pki_float_bits(value) & 0x7fffffffu;
    uint32_t sign = pki_float_bits(value) >> 31 << (e + m);
    uint32_t normal = (u + (1u << (22 - m)) - 1 + (u >> (23 - m) & 1) - ((127 - bias) << 23)) >> (23 - m);
    uint32_t subnormal = pki_float_bits(pki_bits_float(u) + pki_bits_float(magic)) - magic;
    uint32_t nan = infinite | (u >> (23 - m) & ((1u << m) - 1)) | 1u << (m - 1);
    uint32_t result = pki_choose(u < (128 - bias) << 23, subnormal, normal);

    result = pki_choose((u >= too_large) | (!infinity & (result > infinite)), infinite, result);
    result = pki_choose(u > 0x7f800000u, nan, result);
    return result | sign;
}

PKI_INLINE float pki_f16_to_float(uint16_t bits)
{
    return pki_small_to_float(bits, 5, 10, true);
}

PKI_INLINE uint16_t pki_float_to_f16(float value)
{
    return (uint16_t)pki_float_to_small(value, 5, 10, true);
}

PKI_INLINE float pki_f8e5m2_to_float(uint8_t bits)
{
    return pki_small_to_float(bits, 5, 2, true);
}

PKI_INLINE uint8_t pki_float_to_f8e5m2(float value)
{
    return (uint8_t)pki_float_to_small(value, 5, 2, true);
}

PKI_INLINE float pki_f8e4m3_to_float(uint8_t bits)
{
    return pki_small_to_float(bits, 4, 3, false);
}

PKI_INLINE uint8_t pki_float_to_f8e4m3(float value)
{
    return (uint8_t)pki_float_to_small(value, 4, 3, false);
}

/* bf16 is the upper half of an f32. */
PKI_INLINE float pki_bf16_to_float(uint16_t bits)
{
    return pki_bits_float((uint32_t)bits << 16);
}

PKI_INLINE uint16_t pki_float_to_bf16(float value)
{
    uint32_t u = pki_float_bits(value);
    uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;

    return (uint16_t)pki_choose((u & 0x7fffffffu) > 0x7f800000u, u >> 16 | 0x40u, rounded);
}

#endif

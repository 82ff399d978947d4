/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of a small float from and to f32, for one instruction set. A template: reduce_isa.h includes it once a type, having
 * defined TYPE (its name, as in pki_TYPE_to_float), ELEMENT (the unsigned type that holds its bits), and where there are
 * functions for PKI_REDUCE_LANES elements at a time, LOAD_LANES and STORE_LANES.
 */
#define NAME(f) EXPAND(f, TYPE, ISA)
#define TO_FLOAT2(type) pki_##type##_to_float
#define TO_FLOAT1(type) TO_FLOAT2(type)
#define FROM_FLOAT2(type) pki_float_to_##type
#define FROM_FLOAT1(type) FROM_FLOAT2(type)

static void NAME(load)(float *dst, const void *src, size_t count)
{
    const ELEMENT *s = src;
    size_t i = 0;

    for (; i + PKI_REDUCE_LANES <= count; i += PKI_REDUCE_LANES) {
#ifdef LOAD_LANES
        LOAD_LANES(dst + i, s + i);
#else
        float result[PKI_REDUCE_LANES];

        for (int j = 0; j < PKI_REDUCE_LANES; j++)
            result[j] = TO_FLOAT1(TYPE)(s[i + j]);
        memcpy(dst + i, result, sizeof result);
#endif
    }
    for (; i < count; i++)
        dst[i] = TO_FLOAT1(TYPE)(s[i]);
}

static void NAME(store)(void *dst, const float *src, size_t count)
{
    ELEMENT *d = dst;
    size_t i = 0;

    for (; i + PKI_REDUCE_LANES <= count; i += PKI_REDUCE_LANES) {
#ifdef STORE_LANES
        STORE_LANES(d + i, src + i);
#else
        ELEMENT result[PKI_REDUCE_LANES];

        for (int j = 0; j < PKI_REDUCE_LANES; j++)
            result[j] = FROM_FLOAT1(TYPE)(src[i + j]);
        memcpy(d + i, result, sizeof result);
#endif
    }
    for (; i < count; i++)
        d[i] = FROM_FLOAT1(TYPE)(src[i]);
}

#undef NAME
#undef TO_FLOAT2
#undef TO_FLOAT1
#undef FROM_FLOAT2
#undef FROM_FLOAT1
#undef TYPE
#undef ELEMENT
#undef LOAD_LANES
#undef STORE_LANES

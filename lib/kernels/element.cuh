/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of the 12 types and what is done with them, as reduce_host.c does it: floats of 16 and 8 bits are combined in f32 and
 * rounded once, integers wrap, NaN wins over numbers.
 */
#ifndef PKI_ELEMENT_CUH
#define PKI_ELEMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/float_bits.h"
#include "kernels/kernels.h"
#include "pickle/base.h"

namespace
{

/* Common types, whose sum has code of its own; and how many vectors of a block a thread has in flight: code is not free. */
template <bool Common> struct kind_of_element {
    static constexpr bool is_common = Common;
    static constexpr int vectors = Common ? PKI_COMMON_VECTORS : 1;
};

/* Divisions are long, and made only for averages: their code is there once. */
template <typename Wide> __device__ __noinline__ Wide divide_once(Wide x, Wide divisor)
{
    return x / divisor;
}

/* An element: how it is stored, what it is accumulated in, and the way between. Wide integers wrap; `signed_wide` is what they
 * are compared and divided as. */
template <typename Stored, typename Wide, typename Signed> struct integer : kind_of_element<false> {
    using stored = Stored;
    using wide = Wide;
    static __device__ __forceinline__ wide load(stored x)
    {
        return (wide)(Signed)x;
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return (stored)x;
    }
    static __device__ __forceinline__ bool less(wide a, wide b)
    {
        return (Signed)a < (Signed)b;
    }
    static __device__ __forceinline__ wide divide(wide x, uint32_t divisor)
    {
        return (wide)divide_once<Signed>((Signed)x, (Signed)divisor);
    }
    static __device__ __forceinline__ bool is_nan(wide)
    {
        return false;
    }
};

struct int8 : integer<int8_t, uint32_t, int32_t> {
    static __device__ __forceinline__ wide divide(wide x, uint32_t divisor)
    {
        return (wide)divide_once<int32_t>((int8_t)x, (int32_t)divisor); /* the sum has wrapped in 8 bits */
    }
    static __device__ __forceinline__ bool less(wide a, wide b)
    {
        return (int8_t)a < (int8_t)b;
    }
};

struct uint8 : integer<uint8_t, uint32_t, uint32_t> {
    static __device__ __forceinline__ wide divide(wide x, uint32_t divisor)
    {
        return divide_once<uint32_t>((uint8_t)x, divisor);
    }
    static __device__ __forceinline__ bool less(wide a, wide b)
    {
        return (uint8_t)a < (uint8_t)b;
    }
};

struct int32 : integer<int32_t, uint32_t, int32_t> {
};
struct uint32 : integer<uint32_t, uint32_t, uint32_t> {
};
struct int64 : integer<int64_t, uint64_t, int64_t> {
};
struct uint64 : integer<uint64_t, uint64_t, uint64_t> {
};

template <typename Stored, typename Wide, bool Common = false> struct floating : kind_of_element<Common> {
    using stored = Stored;
    using wide = Wide;
    static __device__ __forceinline__ bool less(wide a, wide b)
    {
        return a < b;
    }
    static __device__ __forceinline__ wide divide(wide x, uint32_t divisor)
    {
        return divide_once<wide>(x, (wide)divisor);
    }
    static __device__ __forceinline__ bool is_nan(wide x)
    {
        return x != x;
    }
};

struct f32 : floating<float, float, true> {
    static __device__ __forceinline__ wide load(stored x)
    {
        return x;
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return x;
    }
};

struct f64 : floating<double, double> {
    static __device__ __forceinline__ wide load(stored x)
    {
        return x;
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return x;
    }
};

struct f16 : floating<uint16_t, float, true> {
    static __device__ __forceinline__ wide load(stored x)
    {
        return __half2float(__ushort_as_half(x));
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return __half_as_ushort(__float2half_rn(x));
    }
};

struct bf16 : floating<uint16_t, float, true> {
    static __device__ __forceinline__ wide load(stored x)
    {
        return __uint_as_float((uint32_t)x << 16);
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
};

/* The instructions for 8-bit floats saturate; the host's rounding goes to infinity, or NaN where there is none. */
struct f8e4m3 : floating<uint8_t, float> {
    static __device__ __forceinline__ wide load(stored x)
    {
        return pki_f8e4m3_to_float(x);
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return pki_float_to_f8e4m3(x);
    }
};

struct f8e5m2 : floating<uint8_t, float> {
    static __device__ __forceinline__ wide load(stored x)
    {
        return pki_f8e5m2_to_float(x);
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return pki_float_to_f8e5m2(x);
    }
};

struct sum {
    __device__ __forceinline__ sum(uint32_t)
    {
    }
    template <typename E> __device__ __forceinline__ typename E::wide apply(typename E::wide a, typename E::wide b) const
    {
        return a + b;
    }
};

struct any_op {
    uint32_t op;
    __device__ __forceinline__ any_op(uint32_t which) : op(which)
    {
    }
    template <typename E> __device__ __forceinline__ typename E::wide apply(typename E::wide a, typename E::wide b) const
    {
        if (op == PKI_KERNEL_SUM)
            return a + b;
        if (op == PKI_KERNEL_PROD)
            return a * b;
        return E::is_nan(a) || (op == PKI_KERNEL_MIN ? E::less(a, b) : E::less(b, a)) ? a : b;
    }
};

/* What has the place of the sum where it has no code of its own is never used. */
template <typename E> struct choose_common {
    using type = any_op;
};
template <> struct choose_common<f32> {
    using type = sum;
};
template <> struct choose_common<f16> {
    using type = sum;
};
template <> struct choose_common<bf16> {
    using type = sum;
};
template <typename E> using common_op = typename choose_common<E>::type;

/* Elements of `Bytes` together. */
template <typename E, int Bytes> union packed {
    static constexpr int length = Bytes / (int)sizeof(typename E::stored);
    uint64_t words[Bytes / 8];
    uint4 raw;
    typename E::stored element[length];
    __device__ __forceinline__ packed()
    {
    }
};

template <typename E> using vec = packed<E, 16>;

/* The accumulators of one pack. */
template <typename E, typename Op, int Bytes> struct total {
    typename E::wide value[packed<E, Bytes>::length];

    __device__ __forceinline__ void begin(const packed<E, Bytes> &in)
    {
#pragma unroll
        for (int e = 0; e < packed<E, Bytes>::length; e++)
            value[e] = E::load(in.element[e]);
    }
    __device__ __forceinline__ void add(const Op &op, const packed<E, Bytes> &in)
    {
#pragma unroll
        for (int e = 0; e < packed<E, Bytes>::length; e++)
            value[e] = op.template apply<E>(value[e], E::load(in.element[e]));
    }
    __device__ __forceinline__ void end(uint32_t divisor, packed<E, Bytes> *out)
    {
#pragma unroll
        for (int e = 0; e < packed<E, Bytes>::length; e++)
            out->element[e] = E::store(divisor > 1 ? E::divide(value[e], divisor) : value[e]);
    }
};

/* work(E()) for the type that a kernel was told: what has nothing to do with elements is there once, not a kernel a type. */
template <typename Work> __device__ __forceinline__ void with_common_type(uint32_t type, Work work)
{
    if (type == PK_F32)
        work(f32());
    else if (type == PK_F16)
        work(f16());
    else
        work(bf16());
}

template <typename Work> __device__ __forceinline__ void with_type(uint32_t type, Work work)
{
    switch (type) {
    case PK_INT8:
        work(int8());
        break;
    case PK_UINT8:
        work(uint8());
        break;
    case PK_INT32:
        work(int32());
        break;
    case PK_UINT32:
        work(uint32());
        break;
    case PK_INT64:
        work(int64());
        break;
    case PK_UINT64:
        work(uint64());
        break;
    case PK_F64:
        work(f64());
        break;
    case PK_F8E4M3:
        work(f8e4m3());
        break;
    case PK_F8E5M2:
        work(f8e5m2());
        break;
    default:
        with_common_type(type, work);
        break;
    }
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * n blocks into one in a single pass. One template over (element, operation): a further type needs an element struct, a further
 * operation a functor, and each pair a line at the end.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/kernels/kernels.h"

namespace
{

/* An element: how it is stored, what it is accumulated in, and the way between. */
struct f32 {
    using stored = float;
    using wide = float;
    static __device__ __forceinline__ wide load(stored x)
    {
        return x;
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return x;
    }
};

struct f16 {
    using stored = __half;
    using wide = float;
    static __device__ __forceinline__ wide load(stored x)
    {
        return __half2float(x);
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return __float2half_rn(x);
    }
};

struct bf16 {
    using stored = __nv_bfloat16;
    using wide = float;
    static __device__ __forceinline__ wide load(stored x)
    {
        return __bfloat162float(x);
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return __float2bfloat16_rn(x);
    }
};

/* Unsigned, because sums wrap. */
struct i32 {
    using stored = uint32_t;
    using wide = uint32_t;
    static __device__ __forceinline__ wide load(stored x)
    {
        return x;
    }
    static __device__ __forceinline__ stored store(wide x)
    {
        return x;
    }
};

struct sum {
    template <typename T> static __device__ __forceinline__ T apply(T a, T b)
    {
        return a + b;
    }
};

/* 16 bytes of elements. */
template <typename E> union vec {
    static constexpr int length = 16 / sizeof(typename E::stored);
    uint4 raw;
    typename E::stored element[length];
    __device__ __forceinline__ vec()
    {
    }
};

constexpr int vectors_in_flight = 4; /* of a thread, for each source */

/* The vectors that lie `stride` apart from `first`, `Count` of them. */
template <typename E, typename Op, int Count>
__device__ __forceinline__ void reduce_vectors(const pki_reduce_args &args, uint64_t first, uint64_t stride)
{
    typename E::wide total[Count][vec<E>::length];

    for (uint32_t s = 0; s < args.n; s++) {
        const uint4 *src = (const uint4 *)args.srcs[s];
        vec<E> in[Count];

#pragma unroll
        for (int v = 0; v < Count; v++)
            in[v].raw = src[first + v * stride];
#pragma unroll
        for (int v = 0; v < Count; v++) {
#pragma unroll
            for (int e = 0; e < vec<E>::length; e++) {
                typename E::wide x = E::load(in[v].element[e]);

                total[v][e] = s == 0 ? x : Op::apply(total[v][e], x);
            }
        }
    }
#pragma unroll
    for (int v = 0; v < Count; v++) {
        vec<E> out;

#pragma unroll
        for (int e = 0; e < vec<E>::length; e++)
            out.element[e] = E::store(total[v][e]);
        ((uint4 *)args.dst)[first + v * stride] = out.raw;
    }
}

template <typename E, typename Op> __device__ __forceinline__ void reduce_element(const pki_reduce_args &args, uint64_t i)
{
    using stored = typename E::stored;
    typename E::wide total = E::load(((const stored *)args.srcs[0])[i]);

    for (uint32_t s = 1; s < args.n; s++)
        total = Op::apply(total, E::load(((const stored *)args.srcs[s])[i]));
    ((stored *)args.dst)[i] = E::store(total);
}

__device__ __forceinline__ bool is_aligned(const pki_reduce_args &args)
{
    uint64_t low = args.dst;

    for (uint32_t s = 0; s < args.n; s++)
        low |= args.srcs[s];
    return low % 16 == 0;
}

template <typename E, typename Op> __device__ __forceinline__ void reduce(const pki_reduce_args &args)
{
    const uint64_t threads = (uint64_t)gridDim.x * PKI_REDUCE_THREADS;
    const uint64_t me = (uint64_t)blockIdx.x * PKI_REDUCE_THREADS + threadIdx.x;
    const uint64_t vectors = is_aligned(args) ? args.count / vec<E>::length : 0;
    uint64_t v = me;

    for (; v + (vectors_in_flight - 1) * threads < vectors; v += vectors_in_flight * threads)
        reduce_vectors<E, Op, vectors_in_flight>(args, v, threads);
    for (; v < vectors; v += threads)
        reduce_vectors<E, Op, 1>(args, v, 0);
    for (uint64_t i = vectors * vec<E>::length + me; i < args.count; i += threads)
        reduce_element<E, Op>(args, i);
}

} // namespace

/* The name of a kernel is the contract with kernels.h; the body is the template's. */
#define PKI_REDUCE_KERNEL(op, element) \
    extern "C" __global__ void __launch_bounds__(PKI_REDUCE_THREADS) \
        pki_reduce_##op##_##element(const __grid_constant__ pki_reduce_args args) \
    { \
        reduce<element, op>(args); \
    }

PKI_REDUCE_KERNEL(sum, f32)
PKI_REDUCE_KERNEL(sum, f16)
PKI_REDUCE_KERNEL(sum, bf16)
PKI_REDUCE_KERNEL(sum, i32)

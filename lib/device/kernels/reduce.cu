/* SPDX-License-Identifier: Apache-2.0 */
/* n blocks into one in a single pass: a kernel a type. */
#include "device/kernels/element.cuh"

namespace
{

/* The vectors that lie `stride` apart from `first`, `Count` of them. */
template <typename E, typename Op, int Count>
__device__ __forceinline__ void reduce_vectors(const pki_reduce_args &args, const Op &op, uint64_t first, uint64_t stride)
{
    total<E, Op, 16> totals[Count];

#pragma unroll 1
    for (uint32_t s = 0; s < args.n; s++) {
        const uint4 *src = (const uint4 *)args.srcs[s];
        vec<E> in[Count];

#pragma unroll
        for (int v = 0; v < Count; v++)
            in[v].raw = src[first + v * stride];
#pragma unroll
        for (int v = 0; v < Count; v++) {
            if (s == 0)
                totals[v].begin(in[v]);
            else
                totals[v].add(op, in[v]);
        }
    }
#pragma unroll
    for (int v = 0; v < Count; v++) {
        vec<E> out;

        totals[v].end(args.divisor, &out);
        ((uint4 *)args.dst)[first + v * stride] = out.raw;
    }
}

template <typename E, typename Op> __device__ __forceinline__ void reduce_element(const pki_reduce_args &args, const Op &op, uint64_t i)
{
    using stored = typename E::stored;
    typename E::wide value = E::load(((const stored *)args.srcs[0])[i]);

#pragma unroll 1
    for (uint32_t s = 1; s < args.n; s++)
        value = op.template apply<E>(value, E::load(((const stored *)args.srcs[s])[i]));
    ((stored *)args.dst)[i] = E::store(args.divisor > 1 ? E::divide(value, args.divisor) : value);
}

__device__ __forceinline__ bool is_aligned(const pki_reduce_args &args)
{
    uint64_t low = args.dst;

    for (uint32_t s = 0; s < args.n; s++)
        low |= args.srcs[s];
    return low % 16 == 0;
}

template <typename E, typename Op, int InFlight> __device__ __forceinline__ void reduce(const pki_reduce_args &args)
{
    const Op op(args.op);
    const uint64_t threads = (uint64_t)gridDim.x * PKI_REDUCE_THREADS;
    const uint64_t me = (uint64_t)blockIdx.x * PKI_REDUCE_THREADS + threadIdx.x;
    const uint64_t vectors = is_aligned(args) ? args.count / vec<E>::length : 0;
    uint64_t v = me;

    for (; v + (InFlight - 1) * threads < vectors; v += InFlight * threads)
        reduce_vectors<E, Op, InFlight>(args, op, v, threads);
    if (InFlight > 1) {
        for (; v < vectors; v += threads)
            reduce_vectors<E, Op, 1>(args, op, v, 0);
    }
    for (uint64_t i = vectors * vec<E>::length + me; i < args.count; i += threads)
        reduce_element<E, Op>(args, op, i);
}

} // namespace

/* The name of a kernel is the contract with kernels.h; the body is the template's. */
#define PKI_REDUCE_KERNEL(element) \
    extern "C" __global__ void __launch_bounds__(PKI_REDUCE_THREADS, 1) \
        pki_reduce_##element(const __grid_constant__ pki_reduce_args args) \
    { \
        if (element::is_common && args.op == PKI_KERNEL_SUM) \
            reduce<element, common_op<element>, element::vectors>(args); \
        else \
            reduce<element, any_op, element::is_common ? 1 : element::vectors>(args); \
    }

PKI_REDUCE_KERNEL(int8)
PKI_REDUCE_KERNEL(uint8)
PKI_REDUCE_KERNEL(int32)
PKI_REDUCE_KERNEL(uint32)
PKI_REDUCE_KERNEL(int64)
PKI_REDUCE_KERNEL(uint64)
PKI_REDUCE_KERNEL(f16)
PKI_REDUCE_KERNEL(bf16)
PKI_REDUCE_KERNEL(f32)
PKI_REDUCE_KERNEL(f64)
PKI_REDUCE_KERNEL(f8e4m3)
PKI_REDUCE_KERNEL(f8e5m2)

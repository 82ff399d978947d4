/* SPDX-License-Identifier: Apache-2.0 */
/* n blocks into one in a single pass. */
#ifndef PKI_REDUCE_CUH
#define PKI_REDUCE_CUH

#include "kernels/element.cuh"
#include "kernels/fused.cuh"

namespace
{

/* Few CTAs are as fast as the bytes that they have on the way: this number of blocks is asked for before the first is used. */

template <typename E> __device__ __forceinline__ vec<E> pick(const vec<E> in[PKI_REDUCE_SOURCES_IN_FLIGHT], uint32_t k)
{
    vec<E> one = in[0];

#pragma unroll
    for (uint32_t i = 1; i < PKI_REDUCE_SOURCES_IN_FLIGHT; i++)
        one = k == i ? in[i] : one;
    return one;
}

template <typename E, typename Op>
__device__ __forceinline__ void add_one(total<E, Op, 16> *sum_up, const Op &op, bool first, const vec<E> &one)
{
    if (first)
        sum_up->begin(one);
    else
        sum_up->add(op, one);
}

/* Add up what has been loaded of sources `first` to `end` - 1. Of one vector at a time, which has much code, it is there once. */
template <typename E, typename Op, int Count>
__device__ __forceinline__ void add_loaded(total<E, Op, 16> *totals, const Op &op, uint32_t first, uint32_t end,
                                           const vec<E> (*in)[PKI_REDUCE_SOURCES_IN_FLIGHT])
{
    if constexpr (Count == 1) {
#pragma unroll 1
        for (uint32_t k = 0; k < PKI_REDUCE_SOURCES_IN_FLIGHT && first + k < end; k++)
            add_one(totals, op, first + k == 0, pick<E>(in[0], k));
    } else {
#pragma unroll
        for (uint32_t k = 0; k < PKI_REDUCE_SOURCES_IN_FLIGHT; k++) {
#pragma unroll
            for (int v = 0; v < Count && first + k < end; v++)
                add_one(&totals[v], op, first + k == 0, in[v][k]);
        }
    }
}

/* The vectors that lie `stride` apart from `first`, `Count` of them. */
template <typename E, typename Op, int Count>
__device__ __forceinline__ void reduce_vectors(const pki_reduce_args &args, const Op &op, uint64_t first, uint64_t stride)
{
    total<E, Op, 16> totals[Count];

#pragma unroll 1
    for (uint32_t s = 0; s < args.n; s += PKI_REDUCE_SOURCES_IN_FLIGHT) {
        vec<E> in[Count][PKI_REDUCE_SOURCES_IN_FLIGHT];

#pragma unroll
        for (uint32_t k = 0; k < PKI_REDUCE_SOURCES_IN_FLIGHT; k++) {
#pragma unroll
            for (int v = 0; v < Count && s + k < args.n; v++)
                in[v][k].raw = ((const uint4 *)args.srcs[s + k])[first + v * stride];
        }
        add_loaded<E, Op, Count>(totals, op, s, args.n, in);
    }
#pragma unroll
    for (int v = 0; v < Count; v++) {
        vec<E> out;

        totals[v].end(args.divisor, &out);
        ((uint4 *)args.dst)[first + v * stride] = out.raw;
    }
}

template <typename E, typename Op>
__device__ __forceinline__ void reduce_element(const pki_reduce_args &args, const Op &op, uint64_t i)
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

/* By `threads` threads, of which this is number `me`. */
template <typename E, typename Op, int InFlight>
__device__ __forceinline__ void reduce(const pki_reduce_args &args, uint64_t me, uint64_t threads)
{
    const Op op(args.op);
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

/* The same with little code and few registers: common types by vectors, the others element by element. */
template <typename E> __device__ __forceinline__ void reduce_plainly(const pki_reduce_args &args, uint64_t me, uint64_t threads)
{
    if constexpr (E::is_common) {
        reduce<E, any_op, 1>(args, me, threads);
    } else {
#pragma unroll 1
        for (uint64_t i = me; i < args.count; i += threads)
            reduce_element<E, any_op>(args, any_op(args.op), i);
    }
}

} // namespace

#endif

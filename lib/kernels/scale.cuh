/* SPDX-License-Identifier: Apache-2.0 */
/* A block multiplied by one element. */
#ifndef PKI_SCALE_CUH
#define PKI_SCALE_CUH

#include "kernels/element.cuh"

namespace
{

/* Code is not free: of types of one byte no vectors are made, of which each has 16. */

template <typename E>
__device__ __forceinline__ void scale_vector(const pki_scale_args &args, typename E::wide factor, uint64_t i, vec<E> block)
{
#pragma unroll
    for (int e = 0; e < vec<E>::length; e++)
        block.element[e] = E::store(E::load(block.element[e]) * factor);
    ((uint4 *)args.dst)[i] = block.raw;
}

/* The vectors from `me` on that lie `threads` apart. */
template <typename E>
__device__ __forceinline__ void scale_vectors(const pki_scale_args &args, typename E::wide factor, uint64_t me, uint64_t threads,
                                              uint64_t vectors)
{
#pragma unroll 1
    for (uint64_t first = me; first < vectors; first += PKI_SCALE_VECTORS * threads) {
        vec<E> block[PKI_SCALE_VECTORS];

#pragma unroll
        for (int v = 0; v < PKI_SCALE_VECTORS; v++)
            if (first + v * threads < vectors)
                block[v].raw = ((const uint4 *)args.src)[first + v * threads];
#pragma unroll 1
        for (int v = 0; v < PKI_SCALE_VECTORS; v++)
            if (first + v * threads < vectors)
                scale_vector<E>(args, factor, first + v * threads, v == 0 ? block[0] : block[1]);
    }
}

/* By `threads` threads, of which this is number `me`. */
template <typename E> __device__ __forceinline__ void scale(const pki_scale_args &args, uint64_t me, uint64_t threads)
{
    using stored = typename E::stored;
    const typename E::wide factor = E::load(args.factor != 0 ? *(const stored *)args.factor : *(const stored *)&args.value);
    const uint64_t vectors = (args.dst | args.src) % 16 == 0 && sizeof(stored) > 1 ? args.count / vec<E>::length : 0;

    if constexpr (sizeof(stored) > 1)
        scale_vectors<E>(args, factor, me, threads, vectors);
#pragma unroll 1
    for (uint64_t i = vectors * vec<E>::length + me; i < args.count; i += threads)
        ((stored *)args.dst)[i] = E::store(E::load(((const stored *)args.src)[i]) * factor);
}

} // namespace

#endif

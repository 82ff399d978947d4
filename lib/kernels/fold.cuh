/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of vectors that lie with several ranks, in rank order. */
#ifndef PKI_FOLD_CUH
#define PKI_FOLD_CUH

#include "kernels/element.cuh"

namespace
{

/* Count vectors, each of all ranks; load(r, i): of rank r the i-th. Those of `Ranks` ranks are on their way at a time. */
template <typename E, int Count, int Ranks, typename Op = sum, typename Load>
__device__ __forceinline__ void fold_loaded(const pki_fused_args &args, vec<E> *data, Load load)
{
    const Op op(args.op);
    total<E, Op, 16> totals[Count];

#pragma unroll 1
    for (uint32_t r = 0; r < args.size; r += Ranks) {
        vec<E> in[Ranks][Count];

#pragma unroll
        for (int k = 0; k < Ranks; k++) {
#pragma unroll
            for (int i = 0; i < Count && r + k < args.size; i++)
                in[k][i].raw = load(r + k, i);
        }
#pragma unroll
        for (int k = 0; k < Ranks; k++) {
#pragma unroll
            for (int i = 0; i < Count && r + k < args.size; i++) {
                if (r + k == 0)
                    totals[i].begin(in[k][i]);
                else
                    totals[i].add(op, in[k][i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < Count; i++)
        totals[i].end(args.divisor, &data[i]);
}

} // namespace

#endif

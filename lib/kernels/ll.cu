/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency messages: data and flag in one store, so that nothing has to be ordered behind anything. Layout: kernels.h. */
#include "kernels/cells.cuh"
#include "kernels/words.cuh"

namespace
{

/* This CTA's share of a message, in pairs: from `first` on, one in `step`. */
struct ll_share {
    uint32_t pairs, first, step;
};

__device__ void send(const pki_ll_args_op &op, const ll_share &s)
{
    const unsigned char *user = (const unsigned char *)op.user;

    for (uint32_t first = s.first; first < s.pairs; first += PKI_LL_PAIRS * s.step) {
        uint64_t data[PKI_LL_PAIRS];

#pragma unroll
        for (int i = 0; i < PKI_LL_PAIRS; i++) {
            uint32_t offset = (first + i * s.step) * pair_data_bytes;

            data[i] = offset < op.bytes ? read_user(user + offset, op.bytes - offset) : 0;
        }
#pragma unroll
        for (int i = 0; i < PKI_LL_PAIRS; i++) {
            if (first + i * s.step < s.pairs)
                store_pair(op.slot, first + i * s.step, data[i], op.flag);
        }
    }
}

/* Every load that is in flight is of a different pair; one that came too early is repeated with its group. */
__device__ bool recv(const pki_ll_args_op &op, const ll_share &s, uint64_t abort_flag)
{
    unsigned char *user = (unsigned char *)op.user;
    uint32_t polls = 0;

    for (uint32_t first = s.first; first < s.pairs; first += PKI_LL_PAIRS * s.step) {
        uint64_t data[PKI_LL_PAIRS];
        bool all;

        do {
            all = true;
#pragma unroll
            for (int i = 0; i < PKI_LL_PAIRS; i++) {
                if (first + i * s.step < s.pairs)
                    all &= load_pair(op.slot, first + i * s.step, op.flag, &data[i]);
            }
            if (!all && ++polls % PKI_LL_POLLS == 0 && polls / PKI_LL_POLLS % (s.step / 32) == s.first / 32 &&
                is_aborted(abort_flag))
                return false;
        } while (!all);
#pragma unroll
        for (int i = 0; i < PKI_LL_PAIRS; i++) {
            uint32_t offset = (first + i * s.step) * pair_data_bytes;

            if (offset < op.bytes)
                write_user(user + offset, op.bytes - offset, data[i]);
        }
    }
    return true;
}

/* By thread 0 of each CTA of a message that it has done its share of: is it the last one? */
__device__ __forceinline__ bool is_last(const pki_ll_args_op &op)
{
    return op.ctas == 1 || atomicInc((unsigned *)op.arrived, op.ctas - 1) == op.ctas - 1;
}

/* By all threads of the CTA, which is number `cta` of the message's. False: aborted. */
__device__ __forceinline__ bool move(const pki_ll_args_op &op, uint32_t cta, uint64_t abort_flag)
{
    bool whole = true;
    ll_share share;

    share.pairs = op.bytes > 0 ? (op.bytes + pair_data_bytes - 1) / pair_data_bytes : 1;
    share.step = op.ctas * PKI_LL_THREADS;
    share.first = cta * PKI_LL_THREADS + threadIdx.x;
    if (op.send)
        send(op, share);
    else
        whole = recv(op, share, abort_flag);
    whole = __syncthreads_and(whole);
    if (threadIdx.x == 0 && whole && is_last(op) && op.done != 0)
        *(volatile uint32_t *)op.done = op.flag;
    return whole;
}

} // namespace

extern "C" __global__ void __launch_bounds__(PKI_LL_THREADS) pki_ll(const __grid_constant__ pki_ll_args args)
{
    early_begin();
    move(args.ops[0], blockIdx.x, args.head.abort_flag);
}

extern "C" __global__ void __launch_bounds__(PKI_LL_THREADS) pki_ll_row(const __grid_constant__ pki_ll_row_args args)
{
    early_begin();
#pragma unroll 1
    for (uint32_t i = 0; i < args.head.n; i++) {
        uint32_t first = args.ops[i].first, cta = blockIdx.x >= first ? blockIdx.x - first : blockIdx.x + gridDim.x - first;

        if (cta < args.ops[i].ctas && !move(args.ops[i], cta, args.head.abort_flag))
            return;
    }
}

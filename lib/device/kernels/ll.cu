/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency messages: data and flag in one store, so that nothing has to be ordered behind anything. Layout: kernels.h. */
#include "device/kernels/cells.cuh"

namespace
{

constexpr int pairs_in_flight = 4;        /* of a thread */
constexpr uint32_t polls_per_look = 1000; /* at the abort word, which is in host memory */

__device__ __forceinline__ bool is_aborted(uint64_t abort_flag)
{
    return abort_flag != 0 && *(const volatile uint32_t *)abort_flag != 0;
}

__device__ void send(const pki_ll_args_op &op, uint32_t pairs)
{
    const unsigned char *user = (const unsigned char *)op.user;

    for (uint32_t first = threadIdx.x; first < pairs; first += pairs_in_flight * PKI_LL_THREADS) {
        uint64_t data[pairs_in_flight];

#pragma unroll
        for (int i = 0; i < pairs_in_flight; i++) {
            uint32_t offset = (first + i * PKI_LL_THREADS) * pair_data_bytes;

            data[i] = offset < op.bytes ? read_user(user + offset, op.bytes - offset) : 0;
        }
#pragma unroll
        for (int i = 0; i < pairs_in_flight; i++) {
            if (first + i * PKI_LL_THREADS < pairs)
                store_pair(op.slot, first + i * PKI_LL_THREADS, data[i], op.flag);
        }
    }
}

/* Every load that is in flight is of a different pair; one that came too early is repeated with its group. */
__device__ bool recv(const pki_ll_args_op &op, uint32_t pairs, uint64_t abort_flag)
{
    unsigned char *user = (unsigned char *)op.user;
    uint32_t polls = 0;

    for (uint32_t first = threadIdx.x; first < pairs; first += pairs_in_flight * PKI_LL_THREADS) {
        uint64_t data[pairs_in_flight];
        bool all;

        do {
            all = true;
#pragma unroll
            for (int i = 0; i < pairs_in_flight; i++) {
                if (first + i * PKI_LL_THREADS < pairs)
                    all &= load_pair(op.slot, first + i * PKI_LL_THREADS, op.flag, &data[i]);
            }
            if (!all && ++polls % polls_per_look == 0 && is_aborted(abort_flag))
                return false;
        } while (!all);
#pragma unroll
        for (int i = 0; i < pairs_in_flight; i++) {
            uint32_t offset = (first + i * PKI_LL_THREADS) * pair_data_bytes;

            if (offset < op.bytes)
                write_user(user + offset, op.bytes - offset, data[i]);
        }
    }
    return true;
}

} // namespace

extern "C" __global__ void __launch_bounds__(PKI_LL_THREADS) pki_ll(const __grid_constant__ pki_ll_args args)
{
    const pki_ll_args_op &op = args.ops[blockIdx.x];
    uint32_t pairs = (op.bytes + pair_data_bytes - 1) / pair_data_bytes;
    bool whole = true;

    if (pairs == 0)
        pairs = 1;
    if (op.send)
        send(op, pairs);
    else
        whole = recv(op, pairs, args.abort_flag);
    /* The barrier collects what all threads have read or written; thread 0's fence then makes it visible before the word. */
    whole = __syncthreads_and(whole);
    if (threadIdx.x == 0 && whole && op.done != 0) {
        __threadfence_system();
        *(volatile uint32_t *)op.done = op.flag;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused kernels in graphs: the same code, behind arguments that each replay sets again, for nobody launches it who could count. A
 * copy of them lies in shared memory, so that the kernels that are launched one by one stay as they are. Rules: kernels.h.
 */
#ifndef PKI_REPLAY_CUH
#define PKI_REPLAY_CUH

#include "kernels/fused.cuh"

namespace
{

constexpr uint32_t replay_cells = 2 * PKI_FUSED_PAIR_BYTES / 16; /* pairs in a half */

__device__ __forceinline__ volatile pki_fused_replays *replays_of(const pki_fused_args &args)
{
    return (volatile pki_fused_replays *)(args.state + PKI_FUSED_REPLAYS);
}

/* What was written there 2^32 epochs ago must not pass for this message: one pair of cells at a time is emptied, where none of
 * this epoch is. */
__device__ __forceinline__ void empty_cells(const pki_fused_args &args)
{
    const uint32_t pair = (args.epoch >> 1) % replay_cells;
    const bool is_used = pair < (args.bytes + pair_data_bytes - 1) / pair_data_bytes;

    if (blockIdx.x == 0 && threadIdx.x < args.size && threadIdx.x != args.rank && !is_used)
        store_pair(inbox_half(args, args.epoch, threadIdx.x) + PKI_FUSED_CELLS, pair, 0, 0);
}

/* The last CTA counts for the next replay: by then all have read what this one counts from. */
__device__ __forceinline__ void count_replay(const pki_fused_args &args)
{
    volatile pki_fused_replays *replays = replays_of(args);

    if (threadIdx.x != 0 || atomicAdd((unsigned *)&replays->ended, 1u) != gridDim.x - 1)
        return;
    replays->ended = 0;
    replays->epoch = args.epoch;
}

template <typename Run> __device__ __forceinline__ void replay(const pki_fused_args &given, Run run)
{
    __shared__ pki_fused_args args;
    const uint32_t *from = (const uint32_t *)&given;

    for (uint32_t i = threadIdx.x; i < sizeof args / sizeof(uint32_t); i += blockDim.x)
        ((uint32_t *)&args)[i] = from[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint32_t epoch = replays_of(given)->epoch + 1;

        args.epoch = epoch < PKI_FUSED_EPOCHS_BEGIN ? PKI_FUSED_EPOCHS_BEGIN : epoch;
        args.ended_before = load_state(given).ended;
    }
    __syncthreads();
    run(args);
    __syncthreads();
    empty_cells(args);
    count_replay(args);
}

} // namespace

#endif

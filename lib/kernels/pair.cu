/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of two ranks in cells: what pki_exchange does, and what pki_fold does of sums in the common types, for one other
 * rank. Code is fetched again with every launch: these kernels have little of it.
 */
#include "kernels/element.cuh"
#include "kernels/replay.cuh"

namespace
{

struct pair_shot {
    const pki_fused_args &args;
    uint64_t far, near; /* cells */
    const unsigned char *in;
    uint32_t pairs, step, peer;
};

__device__ __forceinline__ pair_shot pair_shot_of(const pki_fused_args &args)
{
    uint32_t peer = 1 - args.rank;

    return { args,
             peer_half(args, args.epoch, peer) + PKI_FUSED_CELLS,
             args.inbox + (uint64_t)(args.epoch & 1) * PKI_FUSED_HALF + PKI_FUSED_CELLS,
             (const unsigned char *)args.in + peer * args.in_stride,
             (uint32_t)((args.bytes + pair_data_bytes - 1) / pair_data_bytes),
             gridDim.x * PKI_FUSED_THREADS,
             peer };
}

__device__ __forceinline__ uint64_t read_at(const pair_shot &s, const unsigned char *block, uint32_t pair)
{
    uint32_t offset = pair * pair_data_bytes;

    return pair < s.pairs && block != nullptr ? read_user(block + offset, (uint32_t)s.args.bytes - offset) : 0;
}

/* The last epoch that the program has put another kernel behind, in the same stream: that one will tell the CPU. One CTA asks,
 * for all: they would be served one after another, a microsecond each. */
__device__ __forceinline__ uint32_t load_followed(const pki_fused_args &args)
{
    return blockIdx.x == 0 && threadIdx.x == 0 && args.quiet != 0 ? *(const volatile uint32_t *)&words_of(args)->followed
                                                                  : args.epoch - 1;
}

/* When all other CTAs have ended. Not told: aborted meanwhile. A CTA alone reads nothing for it. */
__device__ __noinline__ void tell_for_all(const pki_fused_args &args)
{
    volatile uint32_t *done = words_of(args)->done;

    for (uint32_t polls = 1; gridDim.x > 1 && (int32_t)(load_state(args).ended - args.ended_before - (gridDim.x - 1)) < 0;
         polls++)
        if (polls % PKI_FUSED_POLLS_A_LOOK == 0 && *(const volatile uint32_t *)args.abort_flag != 0)
            return;
    for (uint32_t c = 0; c < gridDim.x; c++)
        done[c] = args.epoch;
}

/* As finish, but the CPU is told nothing where another kernel follows: a word to the host's memory is most of a microsecond. */
__device__ __forceinline__ void finish_pair(const pki_fused_args &args, uint32_t verdict, uint32_t followed)
{
    finish_telling(args, verdict, args.epoch, [&](bool fell) {
        if (args.quiet == 0)
            *(volatile uint32_t *)&words_of(args)->done[blockIdx.x] = args.epoch;
        else if (blockIdx.x == 0 && (fell || (int32_t)(followed - args.epoch) < 0))
            tell_for_all(args);
    });
}

__device__ __forceinline__ void read_row(const pair_shot &s, const unsigned char *block, uint32_t first, uint64_t *data)
{
#pragma unroll
    for (int u = 0; u < PKI_PAIR_PAIRS; u++)
        data[u] = read_at(s, block, first + u * s.step);
}

/* `data`: this thread's first row, which has been read already. */
__device__ __forceinline__ void send_pairs(const pki_fused_args &args, const pair_shot &s, uint32_t mine, uint64_t *data)
{
    for (uint32_t first = mine; first < s.pairs; first += PKI_PAIR_PAIRS * s.step) {
        if (first != mine)
            read_row(s, s.in, first, data);
#pragma unroll
        for (int u = 0; u < PKI_PAIR_PAIRS; u++)
            if (first + u * s.step < s.pairs)
                store_pair(s.far, first + u * s.step, data[u], args.epoch);
    }
}

/* Wait for the peer's header, and where it sends for the pairs of this thread's row. */
__device__ __forceinline__ uint32_t receive_row(const pki_fused_args &args, const pair_shot &s, headers &header, bool receives,
                                                uint32_t first, uint64_t *their)
{
    return wait_until(
        args,
        [&]() {
            bool here = true;

#pragma unroll
            for (int u = 0; u < PKI_PAIR_PAIRS; u++) {
                their[u] = 0;
                if (receives && first + u * s.step < s.pairs)
                    here &= load_pair(s.near, first + u * s.step, args.epoch, &their[u]);
            }
            return header.check(args) && here;
        },
        [&]() { header.report(args); });
}

/* Everything goes out before anything is waited for. `own`: this rank's block that `take` wants. */
template <typename Take> __device__ __forceinline__ void pair_run(const pki_fused_args &args, const unsigned char *own, Take take)
{
    uint32_t followed = load_followed(args);

    early_begin();

    const pair_shot s = pair_shot_of(args);
    const uint32_t mine = blockIdx.x * PKI_FUSED_THREADS + threadIdx.x;
    const bool sends = (args.send >> s.peer & 1) != 0, receives = (args.recv >> s.peer & 1) != 0;
    pki_fused_state state = load_state(args);
    uint64_t data[PKI_PAIR_PAIRS];
    headers header(args);
    uint32_t verdict;

    read_row(s, sends ? s.in : nullptr, mine, data); /* while `state` is on its way */
    verdict = wait_turn(args, state);
    if (verdict == go_on) {
        header.send(args);
        if (sends)
            send_pairs(args, s, mine, data);
    }
    /* Warps stay together for their votes. */
    for (uint32_t first = mine; verdict == go_on; first += PKI_PAIR_PAIRS * s.step) {
        uint64_t their[PKI_PAIR_PAIRS], kept[PKI_PAIR_PAIRS];

        read_row(s, own, first, kept);
        verdict = receive_row(args, s, header, receives, first, their);
#pragma unroll
        for (int u = 0; u < PKI_PAIR_PAIRS; u++) {
            const uint32_t pair = first + u * s.step;

            if (verdict == go_on && pair < s.pairs)
                take(pair, (uint32_t)args.bytes - pair * pair_data_bytes, kept[u], their[u]);
        }
        if (first - threadIdx.x % 32 + PKI_PAIR_PAIRS * s.step >= s.pairs)
            break;
    }
    finish_pair(args, verdict, followed);
}

template <typename E> __device__ __forceinline__ void pair_sum(const pki_fused_args &args)
{
    const unsigned char *own = args.recv != 0 ? (const unsigned char *)args.in + args.rank * args.in_stride : nullptr;

    pair_run(args, own, [&](uint32_t pair, uint32_t left, uint64_t kept, uint64_t their) {
        packed<E, 8> in, out;
        total<E, sum, 8> sum_up;

        if (args.recv == 0)
            return;
        in.words[0] = args.rank == 0 ? kept : their;
        sum_up.begin(in);
        in.words[0] = args.rank == 0 ? their : kept;
        sum_up.add(sum(args.op), in);
        sum_up.end(args.divisor, &out);
        write_user((unsigned char *)args.out + (uint64_t)pair * pair_data_bytes, left, out.words[0]);
    });
}

__device__ __forceinline__ void pair_exchange(const pki_fused_args &args)
{
    const bool copies = (args.recv >> args.rank & 1) != 0, receives = (args.recv >> (1 - args.rank) & 1) != 0;
    unsigned char *out = (unsigned char *)args.out;

    pair_run(args, copies ? (const unsigned char *)args.in + args.rank * args.in_stride : nullptr,
             [&](uint32_t pair, uint32_t left, uint64_t kept, uint64_t their) {
                 const uint64_t at = (uint64_t)pair * pair_data_bytes;

                 if (copies)
                     write_user(out + at + args.rank * args.out_stride, left, kept);
                 if (receives)
                     write_user(out + at + (1 - args.rank) * args.out_stride, left, their);
             });
}

} // namespace

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_pair_exchange(const __grid_constant__ pki_fused_args args)
{
    pair_exchange(args);
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_pair_f32(const __grid_constant__ pki_fused_args args)
{
    pair_sum<f32>(args);
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_pair_f16(const __grid_constant__ pki_fused_args args)
{
    pair_sum<f16>(args);
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_pair_bf16(const __grid_constant__ pki_fused_args args)
{
    pair_sum<bf16>(args);
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_replay_pair_exchange(const __grid_constant__ pki_fused_args given)
{
    replay(given, [](const pki_fused_args &args) { pair_exchange(args); });
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_replay_pair_f32(const __grid_constant__ pki_fused_args given)
{
    replay(given, [](const pki_fused_args &args) { pair_sum<f32>(args); });
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_replay_pair_f16(const __grid_constant__ pki_fused_args given)
{
    replay(given, [](const pki_fused_args &args) { pair_sum<f16>(args); });
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_replay_pair_bf16(const __grid_constant__ pki_fused_args given)
{
    replay(given, [](const pki_fused_args &args) { pair_sum<bf16>(args); });
}

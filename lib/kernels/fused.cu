/* SPDX-License-Identifier: Apache-2.0 */
/* Small collectives in one exchange of cells between all ranks: pki_exchange and pki_fold; and pki_turn. */
#include "kernels/element.cuh"
#include "kernels/replay.cuh"

namespace
{

struct one_shot {
    const pki_fused_args &args;
    uint32_t pairs, threads, first; /* first: of the warp's pairs, which stays together for its votes */
};

__device__ __forceinline__ one_shot one_shot_of(const pki_fused_args &args)
{
    return { args, (uint32_t)((args.bytes + pair_data_bytes - 1) / pair_data_bytes), gridDim.x * PKI_FUSED_THREADS,
             blockIdx.x * PKI_FUSED_THREADS + (threadIdx.x & ~31u) };
}

__device__ __forceinline__ uint32_t pair_of(const one_shot &s, uint32_t first, int u)
{
    return first + threadIdx.x % 32 + u * s.threads;
}

__device__ __forceinline__ uint32_t left(const one_shot &s, uint32_t pair)
{
    return (uint32_t)s.args.bytes - pair * pair_data_bytes;
}

__device__ __forceinline__ uint64_t read_block(const one_shot &s, uint32_t rank, uint32_t pair)
{
    const unsigned char *block = (const unsigned char *)s.args.in + (uint64_t)rank * s.args.in_stride;

    return pair < s.pairs ? read_user(block + (uint64_t)pair * pair_data_bytes, left(s, pair)) : 0;
}

/* The block that goes to everybody. */
__device__ __forceinline__ void read_common(const one_shot &s, uint32_t first, uint64_t *data)
{
#pragma unroll
    for (int u = 0; u < PKI_EXCHANGE_PAIRS; u++)
        data[u] = s.args.in_stride == 0 && s.args.send != 0 ? read_block(s, 0, pair_of(s, first, u)) : 0;
}

__device__ __forceinline__ void send(const one_shot &s, uint32_t first, const uint64_t *common)
{
    for (uint32_t hop = 1; hop < s.args.size; hop++) {
        uint32_t to = s.args.rank + hop < s.args.size ? s.args.rank + hop : s.args.rank + hop - s.args.size;
        uint64_t cells = peer_half(s.args, s.args.epoch, to) + PKI_FUSED_CELLS;

        if ((s.args.send >> to & 1) == 0)
            continue;
#pragma unroll
        for (int u = 0; u < PKI_EXCHANGE_PAIRS; u++) {
            uint32_t pair = pair_of(s, first, u);

            if (pair < s.pairs)
                store_pair(cells, pair, s.args.in_stride == 0 ? common[u] : read_block(s, to, pair), s.args.epoch);
        }
    }
}

__device__ __forceinline__ bool receive(const one_shot &s, uint32_t first, uint64_t data[PKI_EXCHANGE_PAIRS][PKI_FUSED_RANKS])
{
    bool all = true;

#pragma unroll
    for (int r = 0; r < PKI_FUSED_RANKS; r++) {
        if ((s.args.recv >> r & 1) == 0 || r == (int)s.args.rank)
            continue;
#pragma unroll
        for (int u = 0; u < PKI_EXCHANGE_PAIRS; u++) {
            uint32_t pair = pair_of(s, first, u);

            if (pair < s.pairs)
                all &= load_pair(inbox_half(s.args, s.args.epoch, r) + PKI_FUSED_CELLS, pair, s.args.epoch, &data[u][r]);
        }
    }
    return all;
}

__device__ void clear_range(const one_shot &s, uint64_t begin, uint32_t bytes)
{
    for (uint32_t i = blockIdx.x * PKI_FUSED_THREADS + threadIdx.x; i < bytes / 16; i += s.threads)
        store_pair(begin, i, 0, 0);
}

/* Nobody writes cells, marks or flags in an epoch of 0 bytes. */
__device__ void clear(const one_shot &s)
{
    for (uint32_t r = 0; r < s.args.size; r++) {
        uint64_t half = inbox_half(s.args, s.args.epoch, r);

        if (r == s.args.rank)
            continue;
        clear_range(s, half + PKI_FUSED_CELLS, PKI_FUSED_PARTS - PKI_FUSED_CELLS);
        clear_range(s, half + PKI_FUSED_MARKS, PKI_FUSED_MARKS_BYTES);
        clear_range(s, half + PKI_FUSED_FLAGS, 2 * PKI_FUSED_CTAS * PKI_FUSED_FLAG_BYTES);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        ((volatile pki_fused_state *)s.args.state)->fallen = 0;
}

/* Everything goes out before anything is waited for. */
template <typename Take> __device__ __forceinline__ void run(const one_shot &s, Take take)
{
    pki_fused_state state = load_state(s.args);
    uint32_t verdict;
    uint64_t common[PKI_EXCHANGE_PAIRS];
    headers header(s.args);

    read_common(s, s.first, common); /* while `state` is on its way */
    verdict = wait_turn(s.args, state);
    if (verdict == go_on) {
        header.send(s.args);
        if (s.args.clear)
            clear(s);
        for (uint32_t first = s.first; first < s.pairs; first += PKI_EXCHANGE_PAIRS * s.threads) {
            if (first != s.first)
                read_common(s, first, common);
            send(s, first, common);
        }
        verdict = take_all(s, header, take);
        if (s.args.clear && verdict == go_on)
            header.forget(s.args);
    }
    finish(s.args, verdict, s.args.epoch);
}

template <typename Take> __device__ __forceinline__ uint32_t take_all(const one_shot &s, headers &header, Take take)
{
    auto report = [&]() { header.report(s.args); };
    uint32_t verdict = go_on, first = s.first;

    do {
        uint64_t data[PKI_EXCHANGE_PAIRS][PKI_FUSED_RANKS];

        verdict = wait_until(
            s.args,
            [&]() {
                bool data_here = receive(s, first, data);

                return header.check(s.args) && data_here;
            },
            report);
        if (verdict != go_on)
            break;
#pragma unroll
        for (int u = 0; u < PKI_EXCHANGE_PAIRS; u++) {
            uint32_t pair = pair_of(s, first, u);

            if (pair < s.pairs)
                take(pair, left(s, pair), data[u]);
        }
        first += PKI_EXCHANGE_PAIRS * s.threads;
    } while (first < s.pairs);
    return verdict;
}

__device__ void exchange(const pki_fused_args &args)
{
    const one_shot shot = one_shot_of(args);

    run(shot, [&](uint32_t pair, uint32_t left, const uint64_t *data) {
        unsigned char *out = (unsigned char *)args.out + (uint64_t)pair * pair_data_bytes;
        uint64_t own = (args.recv >> args.rank & 1) != 0 ? read_block(shot, args.rank, pair) : 0;

#pragma unroll
        for (int r = 0; r < PKI_FUSED_RANKS; r++) {
            if ((args.recv >> r & 1) != 0)
                write_user(out + (uint64_t)r * args.out_stride, left, r == (int)args.rank ? own : data[r]);
        }
    });
}

template <typename E>
__device__ __forceinline__ uint64_t fold_pair(const pki_fused_args &args, const uint64_t *data, uint64_t own)
{
    const any_op op(args.op);
    packed<E, 8> in, out;
    total<E, any_op, 8> sum_up;

#pragma unroll 1
    for (uint32_t r = 0; r < args.size; r++) {
        in.words[0] = r == args.rank ? own : pick(data, r);
        if (r == 0)
            sum_up.begin(in);
        else
            sum_up.add(op, in);
    }
    sum_up.end(args.divisor, &out);
    return out.words[0];
}

__device__ void fold(const pki_fused_args &args)
{
    const one_shot shot = one_shot_of(args);

    run(shot, [&](uint32_t pair, uint32_t left, const uint64_t *data) {
        uint64_t own, result = 0;

        if (args.recv == 0)
            return;
        own = read_block(shot, args.rank, pair);
        with_type(args.type, [&](auto e) { result = fold_pair<decltype(e)>(args, data, own); });
        write_user((unsigned char *)args.out + (uint64_t)pair * pair_data_bytes, left, result);
    });
}

/* It looks less often: many may wait. */
__device__ __forceinline__ void turn(const pki_fused_args &args)
{
    while (!is_turn(args, load_state(args)) && *(const volatile uint32_t *)args.abort_flag == 0)
        __nanosleep(PKI_TURN_SLEEP_NS);
}

} // namespace

extern "C" __global__ void __launch_bounds__(32) pki_turn(const __grid_constant__ pki_fused_args args)
{
    turn(args);
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_exchange(const __grid_constant__ pki_fused_args args)
{
    early_begin();
    exchange(args);
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_fold(const __grid_constant__ pki_fused_args args)
{
    early_begin();
    fold(args);
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_replay_exchange(const __grid_constant__ pki_fused_args given)
{
    replay(given, [](const pki_fused_args &args) { exchange(args); });
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_replay_fold(const __grid_constant__ pki_fused_args given)
{
    replay(given, [](const pki_fused_args &args) { fold(args); });
}

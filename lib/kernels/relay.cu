/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce between short and medium: as pki_twoshot every rank folds one part and hands out the result, but in cells, so that
 * nothing has to be ordered or fenced. Every pair of cells is one thread's business from beginning to end.
 */
#include "kernels/element.cuh"
#include "kernels/fused.cuh"

namespace
{

struct relay {
    const pki_fused_args &args;
    uint64_t part; /* pairs of each rank's part */
    uint32_t pieces, threads, first;
};

__device__ __forceinline__ relay relay_of(const pki_fused_args &args)
{
    uint64_t pairs = (args.bytes + pair_data_bytes - 1) / pair_data_bytes, part = (pairs + args.size - 1) / args.size;

    return { args, part, (uint32_t)((part + PKI_FUSED_RELAY_PAIRS - 1) / PKI_FUSED_RELAY_PAIRS), gridDim.x * PKI_FUSED_THREADS,
             blockIdx.x * PKI_FUSED_THREADS + (threadIdx.x & ~31u) };
}

__device__ __forceinline__ uint32_t pairs_of(const relay &r, uint32_t piece)
{
    uint64_t rest = r.part - (uint64_t)piece * PKI_FUSED_RELAY_PAIRS;

    return rest < PKI_FUSED_RELAY_PAIRS ? (uint32_t)rest : PKI_FUSED_RELAY_PAIRS;
}

__device__ __forceinline__ uint32_t relay_pair(const relay &r, uint32_t first, int u)
{
    return first + threadIdx.x % 32 + u * r.threads;
}

/* Where a pair of a rank's part lies in the user's buffers. */
__device__ __forceinline__ uint64_t relay_place(const relay &r, uint32_t rank, uint32_t piece, uint32_t pair)
{
    return (rank * r.part + (uint64_t)piece * PKI_FUSED_RELAY_PAIRS + pair) * pair_data_bytes;
}

__device__ __forceinline__ uint64_t relay_read(const relay &r, uint64_t at)
{
    if (at >= r.args.bytes)
        return 0;
    return read_user((const unsigned char *)r.args.in + at, r.args.bytes - at < 8 ? (uint32_t)(r.args.bytes - at) : 8);
}

__device__ __forceinline__ void relay_write(const relay &r, uint64_t at, uint64_t data)
{
    if (at < r.args.bytes)
        write_user((unsigned char *)r.args.out + at, r.args.bytes - at < 8 ? (uint32_t)(r.args.bytes - at) : 8, data);
}

__device__ __forceinline__ uint32_t relay_after(const relay &r, uint32_t hop)
{
    return r.args.rank + hop < r.args.size ? r.args.rank + hop : r.args.rank + hop - r.args.size;
}

__device__ __noinline__ void relay_send(const relay &r, uint32_t piece)
{
    const uint32_t pairs = pairs_of(r, piece), epoch = r.args.epoch + piece;

    for (uint32_t hop = 1; hop < r.args.size; hop++) {
        uint32_t to = relay_after(r, hop);
        uint64_t cells = peer_half(r.args, epoch, to) + PKI_FUSED_RELAY_PARTS;

        for (uint32_t first = r.first; first < pairs; first += PKI_RELAY_COPIES * r.threads) {
            uint64_t data[PKI_RELAY_COPIES];

#pragma unroll
            for (int u = 0; u < PKI_RELAY_COPIES; u++)
                data[u] = relay_pair(r, first, u) < pairs ? relay_read(r, relay_place(r, to, piece, relay_pair(r, first, u))) : 0;
#pragma unroll
            for (int u = 0; u < PKI_RELAY_COPIES; u++) {
                if (relay_pair(r, first, u) < pairs)
                    store_pair(cells, relay_pair(r, first, u), data[u], epoch);
            }
        }
    }
}

__device__ __forceinline__ bool relay_parts_here(const relay &r, uint32_t piece, uint32_t first, uint32_t pairs,
                                                 uint64_t data[PKI_RELAY_PAIRS][PKI_FUSED_RANKS])
{
    const uint32_t epoch = r.args.epoch + piece;
    bool all = true;

#pragma unroll
    for (int p = 0; p < PKI_FUSED_RANKS; p++) {
        if (p >= (int)r.args.size || p == (int)r.args.rank)
            continue;
#pragma unroll
        for (int u = 0; u < PKI_RELAY_PAIRS; u++) {
            uint32_t pair = relay_pair(r, first, u);

            if (pair < pairs)
                all &= load_pair(inbox_half(r.args, epoch, p) + PKI_FUSED_RELAY_PARTS, pair, epoch, &data[u][p]);
        }
    }
    return all;
}

template <typename E> __device__ __forceinline__ uint64_t relay_sum(const relay &r, const uint64_t *data, uint64_t own)
{
    const sum op(0);
    packed<E, 8> in, out;
    total<E, sum, 8> sum_up;

#pragma unroll 1
    for (uint32_t p = 0; p < r.args.size; p++) {
        in.words[0] = p == r.args.rank ? own : pick(data, p);
        if (p == 0)
            sum_up.begin(in);
        else
            sum_up.add(op, in);
    }
    sum_up.end(r.args.divisor, &out);
    return out.words[0];
}

__device__ __forceinline__ void relay_fold_pair(const relay &r, uint32_t piece, uint32_t pair, const uint64_t *data)
{
    const uint32_t epoch = r.args.epoch + piece;
    const uint64_t at = relay_place(r, r.args.rank, piece, pair), own = relay_read(r, at);
    uint64_t result = 0;

    with_common_type(r.args.type, [&](auto e) { result = relay_sum<decltype(e)>(r, data, own); });
    for (uint32_t hop = 1; hop < r.args.size; hop++)
        store_pair(peer_half(r.args, epoch, relay_after(r, hop)) + PKI_FUSED_RELAY_RESULTS, pair, result, epoch);
    relay_write(r, at, result);
}

__device__ __forceinline__ uint32_t relay_fold(const relay &r, uint32_t piece, headers &header)
{
    const uint32_t pairs = pairs_of(r, piece);
    auto report = [&]() { header.report(r.args); };
    uint32_t first = r.first;

    do {
        uint64_t data[PKI_RELAY_PAIRS][PKI_FUSED_RANKS];
        uint32_t verdict = wait_until(
            r.args,
            [&]() {
                bool here = relay_parts_here(r, piece, first, pairs, data);

                return header.check(r.args) && here;
            },
            report);

        if (verdict != go_on)
            return verdict;
#pragma unroll
        for (int u = 0; u < PKI_RELAY_PAIRS; u++) {
            if (relay_pair(r, first, u) < pairs)
                relay_fold_pair(r, piece, relay_pair(r, first, u), data[u]);
        }
        first += PKI_RELAY_PAIRS * r.threads;
    } while (first < pairs);
    return go_on;
}

__device__ __noinline__ uint32_t relay_take(const relay &r, uint32_t piece)
{
    const uint32_t pairs = pairs_of(r, piece), epoch = r.args.epoch + piece;

    for (uint32_t hop = 1; hop < r.args.size; hop++) {
        uint32_t from = relay_after(r, hop);
        uint64_t cells = inbox_half(r.args, epoch, from) + PKI_FUSED_RELAY_RESULTS;

        for (uint32_t first = r.first; first < pairs; first += PKI_RELAY_COPIES * r.threads) {
            uint64_t data[PKI_RELAY_COPIES];
            uint32_t verdict = wait_until(
                r.args,
                [&]() {
                    bool all = true;

#pragma unroll
                    for (int u = 0; u < PKI_RELAY_COPIES; u++) {
                        if (relay_pair(r, first, u) < pairs)
                            all &= load_pair(cells, relay_pair(r, first, u), epoch, &data[u]);
                    }
                    return all;
                },
                []() {});

            if (verdict != go_on)
                return verdict;
#pragma unroll
            for (int u = 0; u < PKI_RELAY_COPIES; u++) {
                if (relay_pair(r, first, u) < pairs)
                    relay_write(r, relay_place(r, from, piece, relay_pair(r, first, u)), data[u]);
            }
        }
    }
    return go_on;
}

/* Piece k + 1 leaves once this thread has heard of all ranks in piece k: the first one's half belonged to the operation
 * before. */
__device__ __forceinline__ void relay_run(const relay &r)
{
    headers header(r.args);
    uint32_t verdict = wait_turn(r.args, load_state(r.args));

    if (verdict == go_on) {
        header.send(r.args);
        relay_send(r, 0);
    }
    for (uint32_t piece = 0; piece < r.pieces && verdict == go_on; piece++) {
        verdict = relay_fold(r, piece, header);
        if (verdict == go_on && piece + 1 < r.pieces)
            relay_send(r, piece + 1);
        if (verdict == go_on)
            verdict = relay_take(r, piece);
    }
    finish(r.args, verdict, r.args.epoch + r.pieces - 1);
}

} // namespace

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_relay(const __grid_constant__ pki_fused_args args)
{
    early_begin();
    relay_run(relay_of(args));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges of blocks too long for cells: pki_push; and sums of such: pki_push_sum. Where all ranks' buffers are mapped by those
 * who need them, an exchange writes its blocks where they belong. Else through rings: half of a CTA's warps send, half receive,
 * each warp alone with its counterpart on the other ranks, so that the fences of some pass while others copy.
 */
#include "kernels/fold.cuh"
#include "kernels/reach.cuh"

namespace
{

__device__ __forceinline__ span block_of(uint64_t base, uint64_t stride, uint32_t rank, uint64_t bytes)
{
    return { base + rank * stride, bytes };
}

/* `pushed`: the number of chunks of IN that have been read, for a receiver that may overwrite them. */
__device__ __forceinline__ uint32_t push_out(const rings &s, volatile uint32_t *pushed)
{
    const pki_fused_args &args = s.args;
    uint32_t targets = other_ranks(args, args.send);

    for (uint32_t turn = 0; turn < s.turns; turn++) {
        uint32_t verdict = wait_until(
            args, [&]() { return has_room(s, targets, push_emptied, turn); }, []() {});

        if (verdict != go_on)
            return verdict;
        __syncwarp();
        for (uint32_t hop = 1; hop < args.size; hop++) {
            uint32_t to = rank_after(args, hop);

            if ((targets >> to & 1) != 0)
                fill<PKI_PUSH_VECTORS>(block_of(args.in, args.in_stride, to, args.bytes), chunk_at(s, turn),
                                       slot_of(s, peer_half(args, args.epoch, to), PKI_FUSED_PARTS, turn),
                                       chunk_vectors(s, turn));
        }
        mark(s, targets, push_filled, turn + 1, true);
        if (threadIdx.x % 32 == 0)
            *pushed = turn + 1;
    }
    return go_on;
}

/* Chunk `turn` of all blocks that are for this rank. */
__device__ __forceinline__ void empty_all(const rings &s, uint32_t turn)
{
    const pki_fused_args &args = s.args;

    for (uint32_t hop = 0; hop < args.size; hop++) {
        uint32_t from = rank_after(args, hop);
        span to = block_of(args.out, args.out_stride, from, args.bytes);

        if ((args.recv >> from & 1) == 0)
            continue;
        if (from == args.rank)
            copy_own<PKI_PUSH_VECTORS>(block_of(args.in, args.in_stride, from, args.bytes), to, chunk_at(s, turn),
                                       chunk_vectors(s, turn));
        else
            empty<PKI_PUSH_VECTORS>(slot_of(s, inbox_half(args, args.epoch, from), PKI_FUSED_PARTS, turn), to, chunk_at(s, turn),
                                    chunk_vectors(s, turn));
    }
}

/* take(turn): all ranks have sent chunk `turn`. Nothing is written before: one that does the operation in another way has IN as
 * it was. */
template <typename Take>
__device__ __forceinline__ uint32_t take_in(const rings &s, headers &header, const volatile uint32_t *pushed, Take take)
{
    const pki_fused_args &args = s.args;
    uint32_t sources = other_ranks(args, args.recv);
    auto report = [&]() { header.report(args); };
    uint32_t verdict;

    for (uint32_t turn = 0; turn < s.turns; turn++) {
        verdict = wait_until(
            args,
            [&]() {
                bool here = is_marked(s, sources, push_filled, turn + 1);

                return header.check(args) && here && *pushed > turn;
            },
            report);
        if (verdict != go_on)
            return verdict;
        __syncwarp();
        take(turn);
        if (turn + s.slots < s.turns) /* or nobody waits for it */
            mark(s, sources, push_emptied, turn + 1, false);
    }
    return wait_until(
        args, [&]() { return header.check(args); }, report);
}

template <typename Take> __device__ __forceinline__ uint32_t push_by_rings(const pki_fused_args &args, headers &header, Take take)
{
    __shared__ uint32_t pushed[PKI_PUSH_RINGS];
    uint32_t warp = threadIdx.x / 32, ring = warp % PKI_PUSH_RINGS;
    rings s = rings_of(args, args.bytes, PKI_FUSED_PUSH_BYTES, PKI_PUSH_RINGS, ring);

    if (threadIdx.x < PKI_PUSH_RINGS)
        pushed[threadIdx.x] = 0;
    __syncthreads();
    return warp < PKI_PUSH_RINGS ? take_in(s, header, &pushed[ring], [&](uint32_t turn) { take(s, turn); })
                                 : push_out(s, &pushed[ring]);
}

struct targets { /* of one block */
    uint64_t at[PKI_FUSED_RANKS];
    uint32_t n;
};

/* As many vectors at a time as there are, up to Count; returns where this thread has come to. */
template <int Count>
__device__ __forceinline__ uint64_t push_vectors_of(uint64_t from, const targets &to, uint64_t whole, uint64_t at)
{
    const uint64_t stride = 16ull * gridDim.x * PKI_PUSH_THREADS;

#pragma unroll 1
    for (; at + (Count - 1) * stride < whole; at += Count * stride) {
        uint4 data[Count];

#pragma unroll
        for (int i = 0; i < Count; i++)
            data[i] = __ldcg((const uint4 *)(from + at + i * stride));
#pragma unroll 1
        for (uint32_t t = 0; t < to.n; t++) {
#pragma unroll
            for (int i = 0; i < Count; i++)
                *(uint4 *)(to.at[t] + at + i * stride) = data[i];
        }
    }
    if constexpr (Count > 1)
        return push_vectors_of<Count / 2>(from, to, whole, at);
    return at;
}

/* All CTAs together, each its share. */
__device__ __forceinline__ void push_block(uint64_t from, const targets &to, uint64_t bytes)
{
    const uint64_t whole = bytes / 16 * 16;
    uint64_t at = push_vectors_of<PKI_PUSH_VECTORS>(from, to, whole, 16ull * (blockIdx.x * PKI_PUSH_THREADS + threadIdx.x));

    for (uint32_t t = 0; at == whole && whole < bytes && t < to.n; t++)
        write_end({ to.at[t], bytes }, at, read_end({ from, bytes }, at));
}

/* Where this rank's block for a rank goes; 0: there is none, or it is where it belongs. */
__device__ __forceinline__ uint64_t target_of(const pki_fused_args &args, const places &found, uint32_t rank)
{
    if (rank == args.rank)
        return (args.recv >> rank & 1) != 0 ? args.out + rank * args.out_stride : 0;
    return (args.send >> rank & 1) != 0 ? found.out[rank] : 0;
}

/* Of what all get, a block is read once. CTAs begin with different ranks, so that all links are busy. */
__device__ __forceinline__ void push_straight(const pki_fused_args &args, const places &found, targets *to)
{
    const bool common = args.in_stride == 0;

#pragma unroll 1
    for (uint32_t hop = 0; hop < (common ? 1 : args.size); hop++) {
        uint32_t first = rank_after(args, (hop + 1 + blockIdx.x) % args.size);

        __syncthreads();
        if (threadIdx.x == 0) {
            to->n = 0;
            for (uint32_t i = 0; i < (common ? args.size : 1); i++) {
                uint64_t at = target_of(args, found, (first + i) % args.size);

                if (at != 0)
                    to->at[to->n++] = at;
            }
        }
        __syncthreads();
        if (to->n > 0)
            push_block(args.in + first * args.in_stride, *to, args.bytes);
    }
    raise(args, args.epoch, 1);
}

__device__ __forceinline__ void push(const pki_fused_args &args)
{
    __shared__ places found;
    __shared__ targets to;
    headers header(args);
    bool straight = false;
    auto check = [&]() { return header.check(args); };
    auto report = [&]() { header.report(args); };
    uint32_t verdict = wait_turn(args, load_state(args));

    if (!__syncthreads_or(verdict != go_on)) {
        header.send_places(args);
        header.send(args);
        if (meet(args, header, report, &found, &straight, &verdict)) {
            if (straight) {
                push_straight(args, found, &to);
                await(args, args.epoch, 1, check, report, &verdict);
            } else {
                verdict = push_by_rings(args, header, [](const rings &s, uint32_t turn) { empty_all(s, turn); });
            }
        }
    }
    finish(args, verdict, args.epoch);
}

/* ---- sums ---- */

/* Vectors v, v + 32, ... of a chunk, Count at a time; returns where this lane has come to. */
template <typename E, int Count>
__device__ __noinline__ uint32_t sum_whole(const rings &s, uint32_t turn, uint32_t v, uint32_t vectors)
{
    const pki_fused_args &args = s.args;
    const uint4 *own = (const uint4 *)(args.in + args.rank * args.in_stride + chunk_at(s, turn));
    uint4 *out = (uint4 *)(args.out + chunk_at(s, turn));

#pragma unroll 1
    for (; v + (Count - 1) * 32 < vectors; v += Count * 32) {
        vec<E> data[Count];

        fold_loaded<E, Count, 2>(args, data, [&](uint32_t r, int i) {
            const uint4 *from = r == args.rank ? own : slot_of(s, inbox_half(args, args.epoch, r), PKI_FUSED_PARTS, turn);

            return __ldcg(from + v + i * 32);
        });
#pragma unroll
        for (int i = 0; i < Count; i++)
            out[v + i * 32] = data[i].raw;
    }
    return v;
}

template <typename E> __device__ __noinline__ void sum_odd(const rings &s, uint32_t turn, uint32_t v, uint32_t vectors)
{
    const pki_fused_args &args = s.args;
    const span own = block_of(args.in, args.in_stride, args.rank, args.bytes), to = { args.out, args.bytes };

#pragma unroll 1
    for (; v < vectors; v += 32) {
        const uint64_t at = chunk_at(s, turn) + 16ull * v;
        vec<E> data;

        fold_loaded<E, 1, 2>(args, &data, [&](uint32_t r, int) {
            return r == args.rank ? read_end(own, at)
                                  : __ldcg(slot_of(s, inbox_half(args, args.epoch, r), PKI_FUSED_PARTS, turn) + v);
        });
        write_end(to, at, data.raw);
    }
}

__device__ __forceinline__ void sum_all(const rings &s, uint32_t turn)
{
    const pki_fused_args &args = s.args;
    const uint32_t vectors = chunk_vectors(s, turn);
    const bool whole = is_whole(block_of(args.in, args.in_stride, args.rank, args.bytes), chunk_at(s, turn), vectors) &&
                       is_whole({ args.out, args.bytes }, chunk_at(s, turn), vectors);

    if (args.recv == 0)
        return;
    with_common_type(args.type, [&](auto e) {
        /* halves are summed as floats */
        constexpr int many = PKI_PUSH_SUM_VECTORS * (int)sizeof(typename decltype(e)::stored) / 4;
        uint32_t v = threadIdx.x % 32;

        if (whole)
            v = sum_whole<decltype(e), many>(s, turn, v, vectors);
        sum_odd<decltype(e)>(s, turn, v, vectors);
    });
}

__device__ __forceinline__ void push_sum(const pki_fused_args &args)
{
    __shared__ places found;
    headers header(args);
    bool straight = false;
    auto report = [&]() { header.report(args); };
    uint32_t verdict = wait_turn(args, load_state(args));

    if (!__syncthreads_or(verdict != go_on)) {
        header.send_places(args);
        header.send(args);
        if (meet(args, header, report, &found, &straight, &verdict))
            verdict = push_by_rings(args, header, [](const rings &s, uint32_t turn) { sum_all(s, turn); });
    }
    finish(args, verdict, args.epoch);
}

} // namespace

extern "C" __global__ void PKI_ALONE(PKI_PUSH_THREADS) pki_push(const __grid_constant__ pki_fused_args args)
{
    early_begin();
    push(args);
}

extern "C" __global__ void PKI_ALONE(PKI_PUSH_THREADS) pki_push_sum(const __grid_constant__ pki_fused_args args)
{
    early_begin();
    push_sum(args);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges of blocks too long for cells: pki_push. Where all ranks' buffers are mapped by those who need them, a rank writes its
 * blocks where they belong. Else through rings: half of a CTA's warps send, half receive, each warp alone with its counterpart on
 * the other ranks, so that the fences of some pass while others copy.
 */
#include "kernels/reach.cuh"

namespace
{

__device__ __forceinline__ span block_of(uint64_t base, uint64_t stride, uint32_t rank, uint64_t bytes)
{
    return { base + rank * stride, bytes };
}

/* `pushed`: so many chunks of IN have been read, for a receiver that may overwrite them. */
__device__ __forceinline__ uint32_t push_out(const rings &s, volatile uint32_t *pushed)
{
    const pki_fused_args &args = s.args;
    uint32_t targets = other_ranks(args, args.send);

    for (uint32_t turn = 0; turn < s.turns; turn++) {
        uint32_t verdict = wait_until(args, [&]() { return has_room(s, targets, push_emptied, turn); }, []() {});

        if (verdict != go_on)
            return verdict;
        __syncwarp();
        for (uint32_t hop = 1; hop < args.size; hop++) {
            uint32_t to = rank_after(args, hop);

            if ((targets >> to & 1) != 0)
                fill<PKI_PUSH_VECTORS>(block_of(args.in, args.in_stride, to, args.bytes), chunk_at(s, turn),
                                   slot_of(s, peer_half(args, args.epoch, to), PKI_FUSED_PARTS, turn), chunk_vectors(s, turn));
        }
        mark(s, targets, push_filled, turn + 1, true);
        if (threadIdx.x % 32 == 0)
            *pushed = turn + 1;
    }
    return go_on;
}

/* Nothing is written before all ranks have sent this chunk: one that does the operation in another way has IN as it was. */
__device__ __forceinline__ uint32_t take_in(const rings &s, headers &header, const volatile uint32_t *pushed)
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
        for (uint32_t hop = 0; hop < args.size; hop++) {
            uint32_t from = rank_after(args, hop);
            span to = block_of(args.out, args.out_stride, from, args.bytes);

            if (from == args.rank && (args.recv >> from & 1) != 0) {
                copy_own<PKI_PUSH_VECTORS>(block_of(args.in, args.in_stride, from, args.bytes), to, chunk_at(s, turn),
                                           chunk_vectors(s, turn));
            } else if ((sources >> from & 1) != 0) {
                empty<PKI_PUSH_VECTORS>(slot_of(s, inbox_half(args, args.epoch, from), PKI_FUSED_PARTS, turn), to, chunk_at(s, turn),
                                    chunk_vectors(s, turn));
            }
        }
        if (turn + s.slots < s.turns) /* or nobody waits for it */
            mark(s, sources, push_emptied, turn + 1, false);
    }
    return wait_until(args, [&]() { return header.check(args); }, report);
}

__device__ __forceinline__ uint32_t push_by_rings(const pki_fused_args &args, headers &header)
{
    __shared__ uint32_t pushed[PKI_PUSH_RINGS];
    uint32_t warp = threadIdx.x / 32, ring = warp % PKI_PUSH_RINGS;
    rings s = rings_of(args, args.bytes, PKI_FUSED_PUSH_BYTES, PKI_PUSH_RINGS, ring);

    if (threadIdx.x < PKI_PUSH_RINGS)
        pushed[threadIdx.x] = 0;
    __syncthreads();
    return warp < PKI_PUSH_RINGS ? take_in(s, header, &pushed[ring]) : push_out(s, &pushed[ring]);
}

struct targets { /* of one block */
    uint64_t at[PKI_FUSED_RANKS];
    uint32_t n;
};

/* As many vectors at a time as there are, up to Count; returns where this thread has come to. */
template <int Count> __device__ __forceinline__ uint64_t push_vectors_of(uint64_t from, const targets &to, uint64_t whole, uint64_t at)
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
                verdict = push_by_rings(args, header);
            }
        }
    }
    finish(args, verdict, args.epoch);
}

} // namespace

extern "C" __global__ void PKI_ALONE(PKI_PUSH_THREADS) pki_push(const __grid_constant__ pki_fused_args args)
{
    early_begin();
    push(args);
}

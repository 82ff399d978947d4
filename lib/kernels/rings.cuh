/* SPDX-License-Identifier: Apache-2.0 */
/* Rings: how long blocks go from a warp of one rank to a warp of another. Layout and rules: kernels.h. */
#ifndef PKI_RINGS_CUH
#define PKI_RINGS_CUH

#include "kernels/fused.cuh"

namespace
{

constexpr uint32_t push_filled = 0, push_emptied = 1; /* marks */

/* ---- vectors of user memory: whole and aligned, or not, which is rare and out of line ---- */

struct span {
    uint64_t address;
    uint64_t bytes;
};

__device__ __forceinline__ uint32_t rest_of_word(const span &s, uint64_t at)
{
    return s.bytes - at < 8 ? (uint32_t)(s.bytes - at) : 8;
}

__device__ __noinline__ uint4 read_end(const span &s, uint64_t at)
{
    const unsigned char *from = (const unsigned char *)s.address + at;
    union {
        uint4 raw;
        uint64_t words[2];
    } value;

    value.words[0] = at < s.bytes ? read_user(from, rest_of_word(s, at)) : 0;
    value.words[1] = at + 8 < s.bytes ? read_user(from + 8, rest_of_word(s, at + 8)) : 0;
    return value.raw;
}

__device__ __noinline__ void write_end(const span &s, uint64_t at, uint4 data)
{
    unsigned char *to = (unsigned char *)s.address + at;
    union {
        uint4 raw;
        uint64_t words[2];
    } value;

    value.raw = data;
    if (at < s.bytes)
        write_user(to, rest_of_word(s, at), value.words[0]);
    if (at + 8 < s.bytes)
        write_user(to + 8, rest_of_word(s, at + 8), value.words[1]);
}

/* All of a chunk is whole vectors. */
__device__ __forceinline__ bool is_whole(const span &s, uint64_t at, uint32_t vectors)
{
    return (s.address & 15) == 0 && at + 16ull * vectors <= s.bytes;
}

/* ---- rings ---- */

/* The rings that this warp works at, in all directions. */
struct rings {
    const pki_fused_args &args;
    uint32_t count, mine; /* of the grid; this warp's */
    uint32_t bytes;       /* of a ring */
    uint32_t chunk, slots;
    uint32_t turns; /* chunks that go through this warp's */
    uint64_t block; /* all that goes through the rings from one rank to another */
};

__device__ __forceinline__ rings rings_of(const pki_fused_args &args, uint64_t block, uint32_t area, uint32_t per_cta,
                                          uint32_t mine)
{
    uint32_t count = gridDim.x * per_cta, bytes = area / count / 1024 * 1024, chunk = bytes / 2, chunks;
    uint64_t share = (block + (uint64_t)count * PKI_FUSED_GRAIN - 1) / ((uint64_t)count * PKI_FUSED_GRAIN) * PKI_FUSED_GRAIN;

    if (chunk > PKI_FUSED_CHUNK)
        chunk = PKI_FUSED_CHUNK;
    if (share < chunk)
        chunk = (uint32_t)share;
    chunks = (uint32_t)((block + chunk - 1) / chunk);
    mine += blockIdx.x * per_cta;
    return { args, count, mine, bytes, chunk, bytes / chunk, mine < chunks ? (chunks - mine + count - 1) / count : 0, block };
}

/* Where chunk `turn` of this warp begins in the block. */
__device__ __forceinline__ uint64_t chunk_at(const rings &s, uint32_t turn)
{
    return ((uint64_t)turn * s.count + s.mine) * s.chunk;
}

__device__ __forceinline__ uint32_t chunk_vectors(const rings &s, uint32_t turn)
{
    uint64_t rest = s.block - chunk_at(s, turn);

    return (uint32_t)(rest < s.chunk ? rest + 15 : s.chunk) / 16;
}

/* Of chunk `turn`, in a half. */
__device__ __forceinline__ uint4 *slot_of(const rings &s, uint64_t half, uint32_t area, uint32_t turn)
{
    return (uint4 *)(half + area + (uint64_t)s.mine * s.bytes + turn % s.slots * s.chunk);
}

__device__ __forceinline__ uint64_t mark_of(const rings &s, uint64_t half, uint32_t which)
{
    return half + PKI_FUSED_MARKS + (uint64_t)(PKI_FUSED_RING_MARKS * s.mine + which) * PKI_FUSED_MARK_BYTES;
}

/* Lane p tells rank p of `ranks` that it has come to `count`. */
__device__ __forceinline__ void mark(const rings &s, uint32_t ranks, uint32_t which, uint32_t count, bool has_written)
{
    uint32_t rank = threadIdx.x % 32;

    __syncwarp();
    if ((ranks >> rank & 1) == 0)
        return;
    if (has_written)
        __threadfence_system();
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(mark_of(s, peer_half(s.args, s.args.epoch, rank), which)),
                 "l"((uint64_t)count << 32 | s.args.epoch)
                 : "memory");
}

/* On lane p: rank p of `ranks` has come to `count`; true on the others. */
__device__ __forceinline__ bool is_marked(const rings &s, uint32_t ranks, uint32_t which, uint32_t count)
{
    uint32_t rank = threadIdx.x % 32;
    uint64_t value;

    if ((ranks >> rank & 1) == 0)
        return true;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                 : "=l"(value)
                 : "l"(mark_of(s, inbox_half(s.args, s.args.epoch, rank), which))
                 : "memory");
    return (uint32_t)value == s.args.epoch && (uint32_t)(value >> 32) >= count;
}

/* The slot of chunk `turn` is empty again at all of `ranks`. */
__device__ __forceinline__ bool has_room(const rings &s, uint32_t ranks, uint32_t which, uint32_t turn)
{
    return turn < s.slots || is_marked(s, ranks, which, turn - s.slots + 1);
}

__device__ __forceinline__ uint32_t rank_after(const pki_fused_args &args, uint32_t hop)
{
    return args.rank + hop < args.size ? args.rank + hop : args.rank + hop - args.size;
}

__device__ __forceinline__ uint32_t other_ranks(const pki_fused_args &args, uint32_t ranks)
{
    return ranks & ~(1u << args.rank);
}

/* ---- chunks: from user memory into a slot, from a slot, and between two places of user memory ---- */

__device__ __noinline__ void fill_odd(const span &from, uint64_t at, uint4 *to, uint32_t vectors)
{
#pragma unroll 1
    for (uint32_t v = threadIdx.x % 32; v < vectors; v += 32)
        to[v] = read_end(from, at + 16ull * v);
}

__device__ __noinline__ void empty_odd(const uint4 *from, const span &to, uint64_t at, uint32_t vectors)
{
#pragma unroll 1
    for (uint32_t v = threadIdx.x % 32; v < vectors; v += 32)
        write_end(to, at + 16ull * v, __ldcg(from + v));
}

/* As many at a time as there are, up to Count of a lane. */
template <int Count> __device__ __forceinline__ void copy_from(uint32_t v, const uint4 *from, uint4 *to, uint32_t vectors)
{
#pragma unroll 1
    for (; v + (Count - 1) * 32 < vectors; v += Count * 32) {
        uint4 data[Count];

#pragma unroll
        for (int i = 0; i < Count; i++)
            data[i] = __ldcg(from + v + i * 32);
#pragma unroll
        for (int i = 0; i < Count; i++)
            to[v + i * 32] = data[i];
    }
    if constexpr (Count > 1)
        copy_from<Count / 2>(v, from, to, vectors);
}

template <int Count> __device__ __forceinline__ void copy_vectors(const uint4 *from, uint4 *to, uint32_t vectors)
{
    copy_from<Count>(threadIdx.x % 32, from, to, vectors);
}

template <int Count> __device__ __forceinline__ void fill(const span &from, uint64_t at, uint4 *to, uint32_t vectors)
{
    if (is_whole(from, at, vectors))
        copy_vectors<Count>((const uint4 *)(from.address + at), to, vectors);
    else
        fill_odd(from, at, to, vectors);
}

template <int Count> __device__ __forceinline__ void empty(const uint4 *from, const span &to, uint64_t at, uint32_t vectors)
{
    if (is_whole(to, at, vectors))
        copy_vectors<Count>(from, (uint4 *)(to.address + at), vectors);
    else
        empty_odd(from, to, at, vectors);
}

__device__ __noinline__ void copy_odd(const span &from, const span &to, uint64_t at, uint32_t vectors)
{
#pragma unroll 1
    for (uint32_t v = threadIdx.x % 32; v < vectors; v += 32)
        write_end(to, at + 16ull * v, read_end(from, at + 16ull * v));
}

template <int Count> __device__ __forceinline__ void copy_own(const span &from, const span &to, uint64_t at, uint32_t vectors)
{
    if (is_whole(from, at, vectors) && is_whole(to, at, vectors))
        copy_vectors<Count>((const uint4 *)(from.address + at), (uint4 *)(to.address + at), vectors);
    else
        copy_odd(from, to, at, vectors);
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of medium size and long ones: every rank folds one part and hands out the result. Where all
 * ranks' buffers are mapped by all, it does so in one pass from memory to memory. Else parts and results of an allreduce travel
 * through the inboxes, by plain stores with a flag behind them. A CTA works on its own slice of every piece and talks only to the
 * same CTA of the other ranks. The parts of a piece leave before the results of the one before it are waited for.
 */
#include "kernels/bulk.cuh"
#include "kernels/fold.cuh"
#include "kernels/reach.cuh"

namespace
{

/* What a kernel has code for: sums of the common types, or all types and operations, with little code for each. */
struct common_sums {
    using op = sum;
    template <typename Work> static __device__ __forceinline__ void with(uint32_t type, Work work)
    {
        with_common_type(type, work);
    }
    static constexpr bool in_bulk = true;
    /* Vectors of a thread at a time; registers: halves are summed as floats. */
    template <typename E> struct many {
        enum { vectors = sizeof(typename E::stored) == 4 ? 8 : 4 };
    };
};

struct all_operations {
    using op = any_op;
    template <typename Work> static __device__ __forceinline__ void with(uint32_t type, Work work)
    {
        with_type(type, work);
    }
    static constexpr bool in_bulk = false;
    template <typename E> struct many {
        enum { vectors = sizeof(typename E::stored) >= 4 ? 4 : 1 };
    };
};

struct two_shot {
    const pki_fused_args &args;
    uint64_t part;  /* bytes of each part but the last ones, a multiple of 16 */
    uint64_t piece; /* of a part, that go through the inboxes at a time: as well; the last one may have less */
};

__device__ __forceinline__ two_shot two_shot_of(const pki_fused_args &args)
{
    uint64_t vectors = (args.bytes + 15) / 16, part = args.in_stride != 0 ? vectors : (vectors + args.size - 1) / args.size;

    return { args, part * 16, (part + args.epochs - 1) / args.epochs * 16 };
}

/*
 * What this CTA does of a piece, in 16-byte vectors counted from the piece's start. The same for all parts, and where it ends
 * early the same for all pieces: a place in the inbox is taken again two pieces later, and only the same CTA of the reader has
 * said that it is done with it.
 */
__device__ __forceinline__ void slice(const two_shot &s, uint32_t piece, uint32_t *begin, uint32_t *end)
{
    uint64_t from = piece * s.piece, rest = from < s.part ? s.part - from : 0;
    uint32_t vectors = (uint32_t)((rest < s.piece ? rest : s.piece) / 16);
    uint32_t each = (uint32_t)((s.piece / 16 + gridDim.x - 1) / gridDim.x);

    *begin = blockIdx.x * each < vectors ? blockIdx.x * each : vectors;
    *end = *begin + each < vectors ? *begin + each : vectors;
}

/* A rank's part of a buffer: the blocks lie apart, or it is all one. */
__device__ __forceinline__ span part_of(const two_shot &s, uint64_t base, uint32_t rank)
{
    uint64_t from = rank * s.part;

    if (s.args.in_stride != 0)
        return { base, s.args.bytes };
    if (from >= s.args.bytes)
        return { base + from, 0 };
    return { base + from, s.args.bytes - from < s.part ? s.args.bytes - from : s.part };
}

__device__ __forceinline__ span source_of(const two_shot &s, uint64_t in, uint32_t rank)
{
    return part_of(s, in + rank * s.args.in_stride, rank);
}

/* Where vector v of a piece is in its part, in bytes. */
__device__ __forceinline__ uint64_t place(const two_shot &s, uint32_t piece, uint32_t v)
{
    return piece * s.piece + 16ull * v;
}

__device__ __forceinline__ uint4 read(const span &from, uint64_t at)
{
    return is_whole(from, at, 1) ? *(const uint4 *)(from.address + at) : read_end(from, at);
}

__device__ __forceinline__ void write(const span &to, uint64_t at, uint4 data)
{
    if (is_whole(to, at, 1))
        *(uint4 *)(to.address + at) = data;
    else
        write_end(to, at, data);
}

__device__ __forceinline__ bool gets_results(const two_shot &s, uint32_t rank)
{
    return (s.args.results >> rank & 1) != 0;
}

__device__ __forceinline__ uint32_t after(const two_shot &s, uint32_t hop)
{
    return rank_after(s.args, hop);
}

__device__ __noinline__ void send_parts(const two_shot &s, uint32_t piece)
{
    uint32_t begin, end;

    slice(s, piece, &begin, &end);
    for (uint32_t hop = 1; hop < s.args.size; hop++) {
        uint32_t to = after(s, hop);
        uint4 *target = (uint4 *)(peer_half(s.args, s.args.epoch + piece, to) + PKI_FUSED_PARTS);
        const span part = source_of(s, s.args.in, to);

        for (uint32_t v = begin + threadIdx.x; v < end; v += PKI_TWOSHOT_VECTORS * PKI_FUSED_THREADS) {
            uint4 data[PKI_TWOSHOT_VECTORS];

#pragma unroll
            for (int i = 0; i < PKI_TWOSHOT_VECTORS; i++)
                data[i] = read(part, place(s, piece, v + i * PKI_FUSED_THREADS));
#pragma unroll
            for (int i = 0; i < PKI_TWOSHOT_VECTORS; i++) {
                if (v + i * PKI_FUSED_THREADS < end)
                    target[v + i * PKI_FUSED_THREADS] = data[i];
            }
        }
    }
    raise(s.args, s.args.epoch + piece, 0);
}

/* One vector, of any type. */
template <typename Has, typename Load> __device__ __forceinline__ uint4 fold_one(const two_shot &s, Load load)
{
    uint4 result;

    Has::with(s.args.type, [&](auto e) {
        vec<decltype(e)> data;

        fold_loaded<decltype(e), 1, Has::template many<decltype(e)>::vectors == 1 ? 1 : 2, typename Has::op>(s.args, &data, load);
        result = data.raw;
    });
    return result;
}

template <typename Has> __device__ __forceinline__ void fold_vector(const two_shot &s, uint32_t piece, uint32_t v)
{
    const span own = source_of(s, s.args.in, s.args.rank), to = part_of(s, s.args.out, s.args.rank);
    const uint64_t at = place(s, piece, v);
    const uint4 result = fold_one<Has>(s, [&](uint32_t r, int) {
        const uint4 *parts = (const uint4 *)(inbox_half(s.args, s.args.epoch + piece, r) + PKI_FUSED_PARTS);

        return r == s.args.rank ? read(own, at) : __ldcg(parts + v);
    });

#pragma unroll 1
    for (uint32_t hop = 1; hop < s.args.size; hop++) {
        if (gets_results(s, after(s, hop)))
            ((uint4 *)(peer_half(s.args, s.args.epoch + piece, after(s, hop)) + PKI_FUSED_RESULTS))[v] = result;
    }
    if (gets_results(s, s.args.rank))
        write(to, at, result);
}

template <typename Has> __device__ __noinline__ void fold_part(const two_shot &s, uint32_t piece)
{
    uint32_t v, end;

    slice(s, piece, &v, &end);
#pragma unroll 1
    for (v += threadIdx.x; v < end; v += PKI_FUSED_THREADS)
        fold_vector<Has>(s, piece, v);
    raise(s.args, s.args.epoch + piece, 1);
}

__device__ __noinline__ void take_results(const two_shot &s, uint32_t piece)
{
    uint32_t begin, end;

    slice(s, piece, &begin, &end);
    for (uint32_t hop = 1; hop < s.args.size; hop++) {
        uint32_t from = after(s, hop);
        const uint4 *source = (const uint4 *)(inbox_half(s.args, s.args.epoch + piece, from) + PKI_FUSED_RESULTS);
        const span part = part_of(s, s.args.out, from);

        for (uint32_t v = begin + threadIdx.x; v < end; v += PKI_TWOSHOT_VECTORS * PKI_FUSED_THREADS) {
            uint4 data[PKI_TWOSHOT_VECTORS];

#pragma unroll
            for (int i = 0; i < PKI_TWOSHOT_VECTORS; i++) {
                if (v + i * PKI_FUSED_THREADS < end)
                    data[i] = __ldcg(source + v + i * PKI_FUSED_THREADS);
            }
#pragma unroll
            for (int i = 0; i < PKI_TWOSHOT_VECTORS; i++) {
                if (v + i * PKI_FUSED_THREADS < end)
                    write(part, place(s, piece, v + i * PKI_FUSED_THREADS), data[i]);
            }
        }
    }
}

/* ---- from memory to memory ---- */

/* What this rank folds: where it is in each rank's IN, and where it goes in OUT. */
struct shares {
    uint64_t in[PKI_FUSED_RANKS], out[PKI_FUSED_RANKS], bytes;
};

__device__ __forceinline__ void find_shares(const two_shot &s, const places &found, shares *all)
{
    uint32_t rank = threadIdx.x;

    if (rank < s.args.size) {
        all->in[rank] = source_of(s, found.in[rank], s.args.rank).address;
        all->out[rank] = part_of(s, found.out[rank], s.args.rank).address;
        all->bytes = part_of(s, 0, s.args.rank).bytes;
    }
    __syncthreads();
}

__device__ __forceinline__ uint4 load_of(const shares &all, uint32_t rank, uint64_t at)
{
    return __ldcg((const uint4 *)(all.in[rank] + at));
}

/* Until fewer than Count vectors are left; returns where this thread has come to. */
template <typename E, typename Op, int Count, int Ranks>
__device__ __forceinline__ uint64_t fold_straight(const two_shot &s, const shares &all, uint64_t at, uint64_t whole)
{
    const uint64_t stride = 16ull * gridDim.x * PKI_FUSED_THREADS;

#pragma unroll 1
    for (; at + (Count - 1) * stride < whole; at += Count * stride) {
        vec<E> data[Count];

        fold_loaded<E, Count, Ranks, Op>(s.args, data, [&](uint32_t r, int i) { return load_of(all, r, at + i * stride); });
#pragma unroll 1
        for (uint32_t hop = 0; hop < s.args.size; hop++) {
            uint32_t to = after(s, hop);

            if (!gets_results(s, to))
                continue;
#pragma unroll
            for (int i = 0; i < Count; i++)
                *(uint4 *)(all.out[to] + at + i * stride) = data[i].raw;
        }
    }
    return at;
}

/* Two ranks are served where pointers stay in registers; more, whose pointers must be looked up, and what is left over share
 * code by calls. */
template <typename E, typename Op, int Count, int Ranks>
__device__ __noinline__ uint64_t fold_apart(const two_shot &s, const shares &all, uint64_t at, uint64_t whole)
{
    return fold_straight<E, Op, Count, Ranks>(s, all, at, whole);
}

/* One vector, or what is less. */
template <typename Has> __device__ __noinline__ void fold_last(const two_shot &s, const shares &all, uint64_t at)
{
    const uint4 result = fold_one<Has>(s, [&](uint32_t r, int) { return read({ all.in[r], all.bytes }, at); });

#pragma unroll 1
    for (uint32_t r = 0; r < s.args.size; r++) {
        if (gets_results(s, r))
            write({ all.out[r], all.bytes }, at, result);
    }
}

#ifdef PKI_HAS_BULK_COPIES

/*
 * Long parts of an allreduce of two ranks go by bulk copies through a ring in shared memory, piece by piece. One thread moves
 * them, the warps but its own sum them up, where rank 0's piece lies. The first CTAs do it all; the others end soon and leave
 * their multiprocessors.
 */
struct bulk_ring {
    unsigned char *pieces;
    uint64_t *loaded, *summed; /* barriers of each stage */
    uint32_t step;             /* CTAs */

    __device__ __forceinline__ unsigned char *piece(uint32_t n, uint32_t rank) const
    {
        return pieces + (n % PKI_BULK_STAGES * 2 + rank) * PKI_BULK_PIECE;
    }
};

__device__ __forceinline__ void load_piece(const bulk_ring &ring, const two_shot &s, const shares &all, uint32_t n)
{
    const uint32_t own = s.args.rank, peer = 1 - own;
    const uint64_t at = (blockIdx.x + (uint64_t)n * ring.step) * PKI_BULK_PIECE;
    uint64_t *loaded = &ring.loaded[n % PKI_BULK_STAGES];

    barrier_expect(loaded, 2 * PKI_BULK_PIECE);
    bulk_load(ring.piece(n, peer), all.in[peer] + at, PKI_BULK_PIECE, loaded);
    bulk_load(ring.piece(n, own), all.in[own] + at, PKI_BULK_PIECE, loaded);
}

__device__ __forceinline__ void store_piece(const bulk_ring &ring, const two_shot &s, const shares &all, uint32_t n)
{
    const uint32_t own = s.args.rank, peer = 1 - own;
    const uint64_t at = (blockIdx.x + (uint64_t)n * ring.step) * PKI_BULK_PIECE;

    bulk_store(all.out[peer] + at, ring.piece(n, 0), PKI_BULK_PIECE);
    bulk_store(all.out[own] + at, ring.piece(n, 0), PKI_BULK_PIECE);
    bulk_group();
}

/* A stage is loaded again when the store of the piece before this one has read it. */
__device__ __forceinline__ void move_pieces(const bulk_ring &ring, const two_shot &s, const shares &all, uint32_t count)
{
    constexpr uint32_t ahead = PKI_BULK_STAGES - 1;

    bulk_fence();
    for (uint32_t n = 0; n < ahead && n < count; n++)
        load_piece(ring, s, all, n);
#pragma unroll 1
    for (uint32_t n = 0; n < count; n++) {
        barrier_wait(&ring.summed[n % PKI_BULK_STAGES], n / PKI_BULK_STAGES % 2);
        store_piece(ring, s, all, n);
        if (n + ahead < count) {
            bulk_wait_read<1>();
            load_piece(ring, s, all, n + ahead);
        }
    }
    bulk_wait();
    bulk_fence();
}

template <typename Has> __device__ __forceinline__ void sum_pieces(const bulk_ring &ring, const two_shot &s, uint32_t count)
{
    constexpr uint32_t threads = PKI_FUSED_THREADS - 32, vectors = PKI_BULK_PIECE / 16 / threads;
    static_assert(PKI_BULK_PIECE == vectors * 16 * threads, "each thread has as many");

    Has::with(s.args.type, [&](auto e) {
        const uint32_t thread = threadIdx.x - 32;

#pragma unroll 1
        for (uint32_t n = 0; n < count; n++) {
            vec<decltype(e)> data[vectors];

            barrier_wait(&ring.loaded[n % PKI_BULK_STAGES], n / PKI_BULK_STAGES % 2);
            fold_loaded<decltype(e), vectors, 2, typename Has::op>(
                s.args, data, [&](uint32_t rank, int i) { return ((const uint4 *)ring.piece(n, rank))[thread + i * threads]; });
#pragma unroll
            for (uint32_t i = 0; i < vectors; i++)
                ((uint4 *)ring.piece(n, 0))[thread + i * threads] = data[i].raw;
            bulk_fence_shared();
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                barrier_arrive(&ring.summed[n % PKI_BULK_STAGES]);
        }
    });
}

#endif

/* Returns where the whole pieces end. */
template <typename Has> __device__ __forceinline__ uint64_t fold_pieces(const two_shot &s, const shares &all)
{
#ifdef PKI_HAS_BULK_COPIES
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ uint64_t loaded[PKI_BULK_STAGES], summed[PKI_BULK_STAGES];
    const bulk_ring ring = { memory, loaded, summed, gridDim.x < PKI_BULK_CTAS ? gridDim.x : PKI_BULK_CTAS };
    const uint32_t pieces = (uint32_t)(all.bytes / PKI_BULK_PIECE);
    const uint32_t count = blockIdx.x < ring.step ? (pieces + ring.step - 1 - blockIdx.x) / ring.step : 0;

    if (threadIdx.x < PKI_BULK_STAGES) {
        barrier_begin(&loaded[threadIdx.x], 1);
        barrier_begin(&summed[threadIdx.x], PKI_FUSED_THREADS / 32 - 1);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        move_pieces(ring, s, all, count);
    else if (threadIdx.x >= 32)
        sum_pieces<Has>(ring, s, count);
    return (uint64_t)pieces * PKI_BULK_PIECE;
#else
    return 0;
#endif
}

template <typename Has> __device__ __forceinline__ void fold_all(const two_shot &s, const shares &all)
{
    const uint64_t stride = 16ull * gridDim.x * PKI_FUSED_THREADS, whole = all.bytes / 16 * 16;
    uint64_t at = 16ull * (blockIdx.x * PKI_FUSED_THREADS + threadIdx.x);

    if constexpr (Has::in_bulk) {
        if (s.args.size == 2 && shared_bytes() == PKI_BULK_BYTES)
            at += fold_pieces<Has>(s, all);
    }
    Has::with(s.args.type, [&](auto e) {
        using element = decltype(e);
        constexpr int many = Has::template many<element>::vectors;

        if constexpr (many > 1) {
            if (s.args.size == 2)
                at = fold_straight<element, typename Has::op, many, 2>(s, all, at, whole);
            else if (many > 4)
                at = fold_apart<element, typename Has::op, many / 2, 4>(s, all, at, whole);
            at = fold_apart<element, typename Has::op, 2, 4>(s, all, at, whole);
        }
    });
#pragma unroll 1
    for (; at < all.bytes; at += stride)
        fold_last<Has>(s, all, at);
}

/* ---- by way of the inboxes ---- */

template <typename Has> __device__ __noinline__ uint32_t run_pieces(const two_shot &s, headers &header)
{
    auto check = [&]() { return header.check(s.args); };
    auto report = [&]() { header.report(s.args); };
    uint32_t verdict = go_on;

    send_parts(s, 0);
#pragma unroll 1
    for (uint32_t piece = 0; piece < s.args.epochs; piece++) {
        if (piece + 1 < s.args.epochs)
            send_parts(s, piece + 1);
        if (!await(s.args, s.args.epoch + piece, 0, check, report, &verdict))
            break;
        fold_part<Has>(s, piece);
        if (!await(s.args, s.args.epoch + piece, 1, check, report, &verdict))
            break;
        if (gets_results(s, s.args.rank) && s.args.in_stride == 0)
            take_results(s, piece);
    }
    return verdict;
}

template <typename Has> __device__ __forceinline__ void run(const two_shot &s)
{
    __shared__ places found;
    __shared__ shares all;
    headers header(s.args);
    bool straight = false;
    auto check = [&]() { return header.check(s.args); };
    auto report = [&]() { header.report(s.args); };

    uint32_t verdict = wait_turn(s.args, load_state(s.args));

    if (!__syncthreads_or(verdict != go_on)) {
        header.send_places(s.args);
        header.send(s.args);
        if (meet(s.args, header, report, &found, &straight, &verdict)) {
            if (straight) {
                find_shares(s, found, &all);
                fold_all<Has>(s, all);
                raise(s.args, s.args.epoch, 1);
                await(s.args, s.args.epoch, 1, check, report, &verdict);
            } else {
                verdict = run_pieces<Has>(s, header);
            }
        }
    }
    finish(s.args, verdict, s.args.epoch + s.args.epochs - 1);
}

} // namespace

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_twoshot(const __grid_constant__ pki_fused_args args)
{
    early_begin();
    run<common_sums>(two_shot_of(args));
}

extern "C" __global__ void PKI_ALONE(PKI_FUSED_THREADS) pki_twoshot_any(const __grid_constant__ pki_fused_args args)
{
    early_begin();
    run<all_operations>(two_shot_of(args));
}

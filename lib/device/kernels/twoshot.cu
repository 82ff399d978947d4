/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce of medium size, for the types that are reduced in bulk: every rank folds one part and hands out the result. Parts and results travel by plain stores with a flag
 * behind them, so that the link carries nothing else. A CTA works on its own slice of every piece and talks only to the same CTA of the
 * other ranks. The parts of a piece leave before the results of the one before it are waited for.
 */
#include "device/kernels/element.cuh"
#include "device/kernels/rings.cuh"

namespace
{

constexpr int vectors_a_thread = 4; /* in flight */

struct two_shot {
    const pki_fused_args &args;
    uint64_t part; /* bytes of each part but the last ones, a multiple of 16 */
    uint32_t pieces;
};

__device__ __forceinline__ two_shot two_shot_of(const pki_fused_args &args)
{
    uint64_t part = (args.bytes + 16ull * args.size - 1) / (16ull * args.size) * 16;

    return { args, part, (uint32_t)((part + PKI_FUSED_PIECE - 1) / PKI_FUSED_PIECE) };
}

/* What this CTA does of a piece, in 16-byte vectors counted from the piece's start. The same for all parts. */
__device__ __forceinline__ void slice(const two_shot &s, uint32_t piece, uint32_t *begin, uint32_t *end)
{
    uint64_t rest = s.part - (uint64_t)piece * PKI_FUSED_PIECE;
    uint32_t vectors = (uint32_t)((rest < PKI_FUSED_PIECE ? rest : PKI_FUSED_PIECE) / 16);
    uint32_t each = (vectors + gridDim.x - 1) / gridDim.x;

    *begin = blockIdx.x * each < vectors ? blockIdx.x * each : vectors;
    *end = *begin + each < vectors ? *begin + each : vectors;
}

/* Where in the user's buffers vector v of a rank's part lies, in bytes. */
__device__ __forceinline__ uint64_t place(const two_shot &s, uint32_t rank, uint32_t piece, uint32_t v)
{
    return rank * s.part + (uint64_t)piece * PKI_FUSED_PIECE + 16ull * v;
}

__device__ __forceinline__ uint4 read(const two_shot &s, uint64_t at)
{
    return at + 16 <= s.args.bytes && (s.args.in & 15) == 0 ? *(const uint4 *)(s.args.in + at) : read_end({ s.args.in, s.args.bytes }, at);
}

__device__ __forceinline__ void write(const two_shot &s, uint64_t at, uint4 data)
{
    if (at + 16 <= s.args.bytes && (s.args.out & 15) == 0)
        *(uint4 *)(s.args.out + at) = data;
    else
        write_end({ s.args.out, s.args.bytes }, at, data);
}

__device__ __forceinline__ uint32_t after(const two_shot &s, uint32_t hop)
{
    return rank_after(s.args, hop);
}

__device__ __forceinline__ uint64_t flag_of(uint64_t half, uint32_t which)
{
    return half + PKI_FUSED_FLAGS + (2 * blockIdx.x + which) * PKI_FUSED_FLAG_BYTES;
}

/* The barrier collects what the CTA has written; each fence then orders it before that thread's flag. */
__device__ __forceinline__ void raise(const two_shot &s, uint32_t piece, uint32_t which)
{
    __syncthreads();
    if (threadIdx.x >= s.args.size || threadIdx.x == s.args.rank)
        return;
    __threadfence_system();
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag_of(peer_half(s.args, s.args.epoch + piece, threadIdx.x), which)),
                 "r"(s.args.epoch + piece)
                 : "memory");
}

/* Lane p of the first warp waits for rank p. False: the CTA has to stop. */
template <typename Check, typename Report>
__device__ __forceinline__ bool await(const two_shot &s, uint32_t piece, uint32_t which, Check check, Report report,
                                      uint32_t *verdict)
{
    if (threadIdx.x < 32) {
        bool watches = threadIdx.x < s.args.size && threadIdx.x != s.args.rank;
        uint64_t address = flag_of(inbox_half(s.args, s.args.epoch + piece, threadIdx.x), which);

        *verdict = wait_until(
            s.args,
            [&]() {
                uint32_t flag = s.args.epoch + piece;

                if (watches)
                    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(address) : "memory");
                return (int32_t)(flag - (s.args.epoch + piece)) >= 0 && check();
            },
            report);
    }
    return !__syncthreads_or(*verdict != go_on);
}

__device__ __noinline__ void send_parts(const two_shot &s, uint32_t piece)
{
    uint32_t begin, end;

    slice(s, piece, &begin, &end);
    for (uint32_t hop = 1; hop < s.args.size; hop++) {
        uint32_t to = after(s, hop);
        uint4 *target = (uint4 *)(peer_half(s.args, s.args.epoch + piece, to) + PKI_FUSED_PARTS);

        for (uint32_t v = begin + threadIdx.x; v < end; v += vectors_a_thread * PKI_FUSED_THREADS) {
            uint4 data[vectors_a_thread];

#pragma unroll
            for (int i = 0; i < vectors_a_thread; i++)
                data[i] = read(s, place(s, to, piece, v + i * PKI_FUSED_THREADS));
#pragma unroll
            for (int i = 0; i < vectors_a_thread; i++) {
                if (v + i * PKI_FUSED_THREADS < end)
                    target[v + i * PKI_FUSED_THREADS] = data[i];
            }
        }
    }
    raise(s, piece, 0);
}

template <typename E, typename Op, int Count>
__device__ __forceinline__ void fold_vectors(const two_shot &s, uint32_t piece, const Op &op, uint32_t first)
{
    total<E, Op, 16> totals[Count];
    vec<E> data[Count];

#pragma unroll 1
    for (uint32_t r = 0; r < s.args.size; r++) {
        const uint4 *source = (const uint4 *)(inbox_half(s.args, s.args.epoch + piece, r) + PKI_FUSED_PARTS) + first;

#pragma unroll
        for (int i = 0; i < Count; i++)
            data[i].raw = r == s.args.rank ? read(s, place(s, r, piece, first + i * PKI_FUSED_THREADS))
                                         : __ldcg(source + i * PKI_FUSED_THREADS);
#pragma unroll
        for (int i = 0; i < Count; i++) {
            if (r == 0)
                totals[i].begin(data[i]);
            else
                totals[i].add(op, data[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < Count; i++)
        totals[i].end(s.args.divisor, &data[i]);
#pragma unroll 1
    for (uint32_t hop = 1; hop < s.args.size; hop++) {
        uint4 *target = (uint4 *)(peer_half(s.args, s.args.epoch + piece, after(s, hop)) + PKI_FUSED_RESULTS) + first;

#pragma unroll
        for (int i = 0; i < Count; i++)
            target[i * PKI_FUSED_THREADS] = data[i].raw;
    }
#pragma unroll
    for (int i = 0; i < Count; i++)
        write(s, place(s, s.args.rank, piece, first + i * PKI_FUSED_THREADS), data[i].raw);
}

template <typename E, typename Op> __device__ __forceinline__ void fold_part(const two_shot &s, uint32_t piece, const Op &op)
{
    uint32_t v, end;

    slice(s, piece, &v, &end);
    v += threadIdx.x;
    for (; v + (E::vectors - 1) * PKI_FUSED_THREADS < end; v += E::vectors * PKI_FUSED_THREADS)
        fold_vectors<E, Op, E::vectors>(s, piece, op, v);
    if (E::vectors > 1) {
        for (; v < end; v += PKI_FUSED_THREADS)
            fold_vectors<E, Op, 1>(s, piece, op, v);
    }
    raise(s, piece, 1);
}

__device__ __noinline__ void take_results(const two_shot &s, uint32_t piece)
{
    uint32_t begin, end;

    slice(s, piece, &begin, &end);
    for (uint32_t hop = 1; hop < s.args.size; hop++) {
        uint32_t from = after(s, hop);
        const uint4 *source = (const uint4 *)(inbox_half(s.args, s.args.epoch + piece, from) + PKI_FUSED_RESULTS);

        for (uint32_t v = begin + threadIdx.x; v < end; v += vectors_a_thread * PKI_FUSED_THREADS) {
            uint4 data[vectors_a_thread];

#pragma unroll
            for (int i = 0; i < vectors_a_thread; i++) {
                if (v + i * PKI_FUSED_THREADS < end)
                    data[i] = __ldcg(source + v + i * PKI_FUSED_THREADS);
            }
#pragma unroll
            for (int i = 0; i < vectors_a_thread; i++) {
                if (v + i * PKI_FUSED_THREADS < end)
                    write(s, place(s, from, piece, v + i * PKI_FUSED_THREADS), data[i]);
            }
        }
    }
}

template <typename E, typename Op> __device__ __forceinline__ void run(const two_shot &s)
{
    const Op op(s.args.op);
    headers header(s.args);
    auto check = [&]() { return header.check(s.args); };
    auto report = [&]() { header.report(s.args); };

    uint32_t verdict = wait_turn(s.args, load_state(s.args));

    if (!__syncthreads_or(verdict != go_on)) {
        header.send(s.args);
        send_parts(s, 0);
        for (uint32_t piece = 0; piece < s.pieces; piece++) {
            /* Piece 1 has the half of the operation before this one: all ranks must have come to this one first. */
            if (piece == 0 && !await(s, 0, 0, check, report, &verdict))
                break;
            if (piece + 1 < s.pieces)
                send_parts(s, piece + 1);
            if (piece > 0 && !await(s, piece, 0, check, report, &verdict))
                break;
            fold_part<E>(s, piece, op);
            if (!await(s, piece, 1, check, report, &verdict))
                break;
            take_results(s, piece);
        }
    }
    finish(s.args, verdict, s.args.epoch + s.pieces - 1);
}

} // namespace

#define PKI_TWOSHOT_KERNEL(element) \
    extern "C" __global__ void __launch_bounds__(PKI_FUSED_THREADS, 1) \
        pki_twoshot_##element(const __grid_constant__ pki_fused_args args) \
    { \
        early_begin(); \
        run<element, sum>(two_shot_of(args)); \
    }

PKI_TWOSHOT_KERNEL(f16)
PKI_TWOSHOT_KERNEL(bf16)
PKI_TWOSHOT_KERNEL(f32)

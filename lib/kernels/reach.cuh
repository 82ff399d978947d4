/* SPDX-License-Identifier: Apache-2.0 */
/* From memory to memory: how CTAs of all ranks meet, hear where the others' buffers are, and end together. */
#ifndef PKI_REACH_CUH
#define PKI_REACH_CUH

#include "kernels/rings.cuh"

namespace
{

struct places { /* of each rank's buffers, as mapped here */
    uint64_t in[PKI_FUSED_RANKS], out[PKI_FUSED_RANKS];
};

/*
 * Lane p of every CTA's first warp hears of rank p. Nobody writes into OUT before: a rank that does it in another way needs IN as
 * it was. False: the CTA has to stop. *straight: all ranks' buffers may be reached.
 */
template <typename Report>
__device__ __forceinline__ bool meet(const pki_fused_args &args, headers &header, Report report, places *found, bool *straight,
                                     uint32_t *verdict)
{
    uint32_t rank = threadIdx.x;
    bool watches = rank < args.size && rank != args.rank, reach = args.reach != 0;

    if (threadIdx.x < 32) {
        uint64_t half = inbox_half(args, args.epoch, watches ? rank : 0), sig = 0, in = args.in, out = args.out, seen;

        *verdict = wait_until(
            args,
            [&]() {
                bool here = header.check(args);

                if (!watches)
                    return here;
                return load_pair(half, 0, args.epoch, &sig) && (uint32_t)sig == args.sig && load_pair(half, 1, args.epoch, &in) &&
                       load_pair(half, 2, args.epoch, &out) && here;
            },
            report);
        /* what comes after this load sees what the other rank's stream had done; a fence would wait for this rank's header */
        if (watches)
            asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(half) : "memory");
        reach = reach && (!watches || sig >> 32 != 0);
        if (rank < args.size) {
            found->in[rank] = in;
            found->out[rank] = out;
        }
    }
    *straight = __syncthreads_and(reach);
    return !__syncthreads_or(*verdict != go_on);
}

__device__ __forceinline__ uint64_t flag_of(uint64_t half, uint32_t which)
{
    return half + PKI_FUSED_FLAGS + (2 * blockIdx.x + which) * PKI_FUSED_FLAG_BYTES;
}

/* The barrier collects what the CTA has written; each fence then orders it before that thread's flag. */
__device__ __forceinline__ void raise(const pki_fused_args &args, uint32_t epoch, uint32_t which)
{
    __syncthreads();
    if (threadIdx.x >= args.size || threadIdx.x == args.rank)
        return;
    __threadfence_system();
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag_of(peer_half(args, epoch, threadIdx.x), which)), "r"(epoch)
                 : "memory");
}

/* Lane p of the first warp waits for the same CTA of rank p, whose next word in this half comes only behind what this CTA does
 * after it: so it is this epoch's or an older one, which may be any number. False: this one has to stop. */
template <typename Check, typename Report>
__device__ __forceinline__ bool await(const pki_fused_args &args, uint32_t epoch, uint32_t which, Check check, Report report,
                                      uint32_t *verdict)
{
    if (threadIdx.x < 32) {
        bool watches = threadIdx.x < args.size && threadIdx.x != args.rank;
        uint64_t address = flag_of(inbox_half(args, epoch, watches ? threadIdx.x : 0), which);

        *verdict = wait_until(
            args,
            [&]() {
                uint32_t flag = epoch;

                if (watches)
                    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(address) : "memory");
                return flag == epoch && check();
            },
            report);
    }
    return !__syncthreads_or(*verdict != go_on);
}

} // namespace

#endif

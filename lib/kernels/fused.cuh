/* SPDX-License-Identifier: Apache-2.0 */
/* What the fused kernels share: their turn, headers, waiting, the end. Layout and rules: kernels.h. */
#ifndef PKI_FUSED_CUH
#define PKI_FUSED_CUH

#include "kernels/cells.cuh"

/* One CTA to a multiprocessor, which has registers left for warps that wait there (pki_wait, pki_turn). */
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define PKI_ALONE(threads) __maxnreg__(120)
#else
#define PKI_ALONE(threads) __launch_bounds__(threads, 1)
#endif

namespace
{

constexpr uint32_t full_warp = 0xffffffffu;
constexpr uint32_t header_pairs = 3;

/* How a wait ends. */
constexpr uint32_t go_on = 0, leave = 1, let_others = 2;

/* Counted from 0. */
__device__ __forceinline__ uint32_t nth_other(const pki_fused_args &args, uint32_t rank)
{
    return rank > args.rank ? rank - 1 : rank;
}

__device__ __forceinline__ uint64_t inbox_half(const pki_fused_args &args, uint32_t epoch, uint32_t source)
{
    return args.inbox + (2ull * nth_other(args, source) + (epoch & 1)) * PKI_FUSED_HALF;
}

__device__ __forceinline__ uint64_t peer_half(const pki_fused_args &args, uint32_t epoch, uint32_t target)
{
    return args.peers[target] + (uint64_t)(epoch & 1) * PKI_FUSED_HALF;
}

__device__ __forceinline__ pki_fused_words *words_of(const pki_fused_args &args)
{
    return (pki_fused_words *)args.words;
}

/*
 * Host memory answers a GPU's reads one after another, half a microsecond each or more. Were every warp to ask there, a wait of
 * many CTAs would last as long as all the answers, and the peers, who wait for that, would ask meanwhile. So the warps ask by
 * turns, one of the grid at a time, and who has an answer leaves it where the others look. The first one, which minds the
 * headers, asks every time: where nothing else comes, it waits alone.
 */
__device__ __noinline__ uint32_t look(const pki_fused_args &args, uint32_t looks)
{
    volatile pki_fused_state *state = (volatile pki_fused_state *)args.state;
    const uint32_t warps = blockDim.x / 32, turn = blockIdx.x * warps + threadIdx.x / 32;

    if (state->left != 0)
        return leave;
    if (state->fallen == args.epoch)
        return let_others;
    if (turn != 0 && looks % (gridDim.x * warps) != turn)
        return go_on;
    if (*(const volatile uint32_t *)args.abort_flag != 0) {
        state->left = 1;
        return leave;
    }
    if (*(volatile uint32_t *)&words_of(args)->fall[args.entry] != args.epoch)
        return go_on;
    state->fallen = args.epoch;
    return let_others;
}

/* Until attempt() is true on every lane of the warp, which are all here; report() goes with every look around. */
template <typename Attempt, typename Report>
__device__ __forceinline__ uint32_t wait_until(const pki_fused_args &args, Attempt attempt, Report report)
{
    uint32_t polls = 0, verdict;

    for (;;) {
        if (__all_sync(full_warp, attempt()))
            return go_on;
        if (++polls % PKI_FUSED_POLLS_A_LOOK != 0)
            continue;
        report();
        verdict = threadIdx.x % 32 == 0 ? look(args, polls / PKI_FUSED_POLLS_A_LOOK - 1) : go_on;
        verdict = __shfl_sync(full_warp, verdict, 0);
        if (verdict != go_on)
            return verdict;
    }
}

__device__ __forceinline__ pki_fused_state load_state(const pki_fused_args &args)
{
    pki_fused_state state;

    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(state.ended), "=r"(state.unproven)
                 : "l"(args.state)
                 : "memory");
    return state;
}

/* Lane p of the first warp tells rank p that this rank has begun. */
__device__ __forceinline__ void say_begun(const pki_fused_args &args)
{
    if (blockIdx.x == 0 && threadIdx.x < args.size && threadIdx.x != args.rank)
        asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(args.peers[threadIdx.x] + PKI_FUSED_BEGUN), "r"(args.epoch)
                     : "memory");
}

/* Until all other ranks have come as far as the epoch before this one; then their operations before it have ended. */
__device__ __noinline__ uint32_t wait_for_all_to_come(const pki_fused_args &args)
{
    uint32_t rank = threadIdx.x % 32;
    uint64_t begun = args.inbox + 2ull * nth_other(args, rank) * PKI_FUSED_HALF + PKI_FUSED_BEGUN;

    return wait_until(
        args,
        [&]() {
            uint32_t value = args.epoch;

            if (rank < args.size && rank != args.rank)
                asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(begun) : "memory");
            return (int32_t)(value - (args.epoch - 1)) >= 0;
        },
        []() {});
}

/* True: this rank's kernels before this one have ended. */
__device__ __forceinline__ bool is_turn(const pki_fused_args &args, pki_fused_state state)
{
    return (int32_t)(state.ended - args.ended_before) >= 0;
}

/* Until this rank may write into the inboxes of the other ranks. The kernel before this one may be in another stream. */
__device__ __forceinline__ uint32_t wait_turn(const pki_fused_args &args, pki_fused_state state)
{
    uint32_t verdict = wait_until(
        args,
        [&]() {
            bool turn = is_turn(args, state);

            if (!turn)
                state = load_state(args);
            return turn;
        },
        []() {});

    if (verdict != go_on)
        return verdict;
    say_begun(args);
    return args.careful || state.unproven == args.epoch - 1 ? wait_for_all_to_come(args) : go_on;
}

/* ---- headers: lane p of the first warp minds rank p's ---- */

struct headers {
    bool mine;      /* this lane has a header to wait for */
    uint32_t their; /* the other rank's sig, once it is there */
    bool here;

    __device__ __forceinline__ headers(const pki_fused_args &args)
        : mine(blockIdx.x == 0 && threadIdx.x < args.size && threadIdx.x != args.rank), their(args.sig), here(false)
    {
    }
    __device__ __forceinline__ void send(const pki_fused_args &args) const
    {
        if (mine)
            store_pair(peer_half(args, args.epoch, threadIdx.x), 0, (uint64_t)args.reach << 32 | args.sig, args.epoch);
    }
    /* Before the rest of the header. */
    __device__ __forceinline__ void send_places(const pki_fused_args &args) const
    {
        if (!mine)
            return;
        store_pair(peer_half(args, args.epoch, threadIdx.x), 1, args.in_there[threadIdx.x], args.epoch);
        store_pair(peer_half(args, args.epoch, threadIdx.x), 2, args.out_there[threadIdx.x], args.epoch);
    }
    __device__ __forceinline__ bool check(const pki_fused_args &args)
    {
        uint64_t data;

        if (!mine)
            return true;
        if (!here && load_pair(inbox_half(args, args.epoch, threadIdx.x), 0, args.epoch, &data)) {
            here = true;
            their = (uint32_t)data;
        }
        return here && their == args.sig;
    }
    __device__ __forceinline__ void forget(const pki_fused_args &args) const
    {
        for (uint32_t pair = 0; mine && pair < header_pairs; pair++)
            store_pair(inbox_half(args, args.epoch, threadIdx.x), pair, 0, 0);
    }
    __device__ __forceinline__ void report(const pki_fused_args &args) const
    {
        volatile pki_fused_words *words = words_of(args);

        if (mine)
            words->missing[threadIdx.x] = here ? 0 : args.epoch;
        if (mine && here && their != args.sig)
            words->differs[threadIdx.x] = (uint64_t)args.epoch << 32 | their;
    }
};

/* data[r] without an address: it stays in registers. */
__device__ __forceinline__ uint64_t pick(const uint64_t *data, uint32_t r)
{
    uint64_t value = data[0];

#pragma unroll
    for (int i = 1; i < PKI_FUSED_RANKS; i++)
        value = r == (uint32_t)i ? data[i] : value;
    return value;
}

/* ---- the end ---- */

/* False: aborted meanwhile. */
__device__ __noinline__ bool others_have_done_it(const pki_fused_args &args)
{
    volatile pki_fused_words *words = words_of(args);

    if (blockIdx.x == 0)
        words->came[args.entry] = args.epoch;
    while (words->release[args.entry] != args.epoch) {
        if (*(const volatile uint32_t *)args.abort_flag != 0)
            return false;
        __nanosleep(PKI_FUSED_SLEEP_NS);
    }
    __threadfence_system();
    return true;
}

/* All threads of the CTA come here, each with its verdict. tell(fell): the CPU learns that the last epoch has ended; fell: it
 * was done in another way. */
template <typename Tell>
__device__ __forceinline__ void finish_telling(const pki_fused_args &args, uint32_t verdict, uint32_t last_epoch, Tell tell)
{
    const bool fell = __syncthreads_or(verdict != go_on);

    if (fell) {
        if (__syncthreads_or(verdict == leave) || threadIdx.x != 0 || !others_have_done_it(args))
            return;
        ((volatile pki_fused_state *)args.state)->unproven = last_epoch;
        __threadfence();
    }
    if (threadIdx.x != 0)
        return;
    if (args.fence)
        __threadfence_system();
    tell(fell);
    /* What matters is that this CTA reads its inbox no more: the barrier has seen to that. */
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(args.state) : "memory");
}

__device__ __forceinline__ void finish(const pki_fused_args &args, uint32_t verdict, uint32_t last_epoch)
{
    finish_telling(args, verdict, last_epoch,
                   [&](bool) { *(volatile uint32_t *)&words_of(args)->done[blockIdx.x] = last_epoch; });
}

} // namespace

#endif

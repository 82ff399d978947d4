/* SPDX-License-Identifier: Apache-2.0 */
/* A stream that waits, and does meanwhile what the CPU orders. Layout: kernels.h. */
#include "kernels/copy.cuh"
#include "kernels/reduce.cuh"
#include "kernels/scale.cuh"
#include "kernels/words.cuh"

static_assert(sizeof(pki_order) == 256, "a warp fetches one by 8 bytes a lane");

namespace
{

/* A unit of an order that this CTA has taken; in shared memory. */
struct serve_job {
    uint32_t lane, number, unit;
    pki_order order;      /* as the CPU wrote it: of `lane` and `number` */
    pki_reduce_args work; /* of the unit alone */
};

__device__ __forceinline__ uint64_t load_next(const pki_serve_state *state)
{
    uint64_t value;

    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(&state->next) : "memory");
    return value;
}

__device__ __forceinline__ pki_serve_state *state_of(const pki_serve_args &args, uint32_t lane)
{
    return (pki_serve_state *)args.states + lane;
}

/* The functions below, up to next_job, are for the first warp. */

/* From host memory, past L1: an order of a round before may be there. */
__device__ __forceinline__ void fetch(const pki_serve_args &args, uint32_t lane, uint32_t number, serve_job *job)
{
    const pki_serve_board *board = (const pki_serve_board *)args.board;
    const volatile uint64_t *from = (const volatile uint64_t *)&board->orders[lane][number % PKI_SERVE_ORDERS];

    ((uint64_t *)&job->order)[threadIdx.x] = from[threadIdx.x];
    if (threadIdx.x == 0) {
        job->lane = lane;
        job->number = number;
    }
    __syncwarp();
}

/* What of the order's work is the unit's. */
__device__ __forceinline__ void cut(serve_job *job)
{
    const pki_order &order = job->order;
    uint64_t first = job->unit * order.unit, left = order.work.count - first;
    uint64_t bytes = first * order.width;

    if (threadIdx.x < PKI_REDUCE_SOURCES)
        job->work.srcs[threadIdx.x] = order.work.srcs[threadIdx.x] + bytes;
    if (threadIdx.x == 0) {
        job->work.dst = order.work.dst + bytes;
        job->work.count = left < order.unit ? left : order.unit;
        job->work.n = order.work.n;
        job->work.op = order.work.op;
        job->work.divisor = order.work.divisor;
    }
}

/* One more unit of the lane's order, of which there are `head`, if it has no more than `most`. Another CTA may have been
 * faster: then it is looked for again. */
__device__ __forceinline__ bool take(const pki_serve_args &args, uint32_t lane, uint32_t head, uint32_t most, serve_job *job)
{
    pki_serve_state *state = state_of(args, lane);
    uint64_t now = __shfl_sync(~0u, load_next(state), 0);
    uint32_t number = (uint32_t)(now >> 32), unit = (uint32_t)now;
    bool taken = false;

    const bool fetched = job->lane == lane && job->number == number;

    __syncwarp();
    if (head - number - 1 >= PKI_SERVE_ORDERS) /* none; or `head` is what a slot of long ago says */
        return false;
    if (!fetched)
        fetch(args, lane, number, job);
    if (unit >= job->order.units || job->order.units > most)
        return false;
    if (threadIdx.x == 0)
        taken = atomicCAS((unsigned long long *)&state->next, now, now + 1) == now;
    if (!__shfl_sync(~0u, taken, 0))
        return false;
    if (threadIdx.x == 0)
        job->unit = unit;
    __syncwarp();
    cut(job);
    return true;
}

__device__ __forceinline__ bool is_shut(const pki_wait_word &word, uint32_t value)
{
    return word.equal ? value != word.value : (int32_t)(value - word.value) < 0;
}

/* What is heard, each in a thread of its own, so that all of it is on the way at once: words that are waited for, from thread
 * 0 on, how many orders there are, from thread `heads_at` on, and in the last one the abort word; or, of a CTA that does not
 * ask the host, that it is to leave. */
static_assert(PKI_WAIT_WORDS_MAX <= 16 && PKI_SERVE_LANES < 15, "a thread for each");
constexpr uint32_t heads_at = 16, last_at = 31;

__device__ __forceinline__ bool asks_host()
{
    return blockIdx.x == 0;
}

__device__ __forceinline__ uint64_t address_for(const pki_serve_args &args, uint32_t thread)
{
    const pki_serve_board *board = (const pki_serve_board *)args.board;
    const pki_serve_slot *slot = (const pki_serve_slot *)args.slot;
    const bool is_head = thread >= heads_at && thread < heads_at + PKI_SERVE_LANES;

    if (is_head)
        return (uint64_t)(asks_host() ? &board->heads[thread - heads_at] : &slot->heads[thread - heads_at]);
    if (!asks_host())
        return thread == last_at ? (uint64_t)&slot->left : 0;
    if (thread < args.wait.n)
        return args.wait.words[thread].address;
    return thread == last_at ? args.abort_flag : 0;
}

/* What the first CTA has heard of orders, for the others. */
__device__ __forceinline__ void pass_on(const pki_serve_args &args, uint32_t heard)
{
    pki_serve_slot *slot = (pki_serve_slot *)args.slot;

    if (gridDim.x > 1 && asks_host() && threadIdx.x >= heads_at && threadIdx.x < heads_at + PKI_SERVE_LANES)
        store_release((uint64_t)&slot->heads[threadIdx.x - heads_at], heard);
}

/* Every order that has been written is done. */
__device__ __forceinline__ bool is_empty(const pki_serve_args &args, uint32_t heard)
{
    uint32_t lane = threadIdx.x - heads_at;

    return !__any_sync(~0u, threadIdx.x >= heads_at && lane < PKI_SERVE_LANES &&
                                (uint32_t)(load_next(state_of(args, lane)) >> 32) != heard);
}

/* Behind a look at the host. The abort word is asked for once more: who aborts sets it first, and then opens the words. */
__device__ __forceinline__ bool is_over(const pki_serve_args &args, uint32_t heard)
{
    bool shut = threadIdx.x < args.wait.n && is_shut(args.wait.words[threadIdx.x], heard);
    bool aborted = __shfl_sync(~0u, heard, last_at) != 0;

    if (__any_sync(~0u, shut) && !aborted)
        return false;
    if (!aborted && !__any_sync(~0u, is_aborted(args.abort_flag)))
        return true;
    /* Orders that came meanwhile */
    heard = address_for(args, threadIdx.x) != 0 ? load_acquire(address_for(args, threadIdx.x)) : 0;
    return is_empty(args, heard);
}

__device__ __forceinline__ void say_left(const pki_serve_args &args)
{
    pki_serve_slot *slot = (pki_serve_slot *)args.slot;

    if (threadIdx.x == 0 && gridDim.x > 1)
        store_release((uint64_t)&slot->left, args.launch);
}

/* first: nothing has been done yet. Who comes behind a failure does nothing, for buffers may be somebody else's by now. */
__device__ __forceinline__ bool leaves(const pki_serve_args &args, uint32_t heard, bool first)
{
    if (!asks_host()) /* a later launch may have the slot by now */
        return (int32_t)(__shfl_sync(~0u, heard, last_at) - args.launch) >= 0;
    if (!(first && __shfl_sync(~0u, heard, last_at) != 0) && !is_over(args, heard))
        return false;
    say_left(args);
    return true;
}

/* Who asks the host for others does what is short, and leaves the rest to them; but they may not have found a place on the
 * GPU. */
__device__ __forceinline__ bool take_any(const pki_serve_args &args, uint32_t heard, uint32_t looks, serve_job *job)
{
    const uint32_t most = asks_host() && gridDim.x > 1 && looks % PKI_SERVE_LOOKS != 0 ? 1 : UINT32_MAX;

    for (uint32_t i = 0; i < PKI_SERVE_LANES; i++) {
        uint32_t lane = (i + blockIdx.x) % PKI_SERVE_LANES;

        if (take(args, lane, __shfl_sync(~0u, heard, heads_at + lane), most, job))
            return true;
    }
    return false;
}

/* Before the first look: no lane has more orders than are done. */
__device__ __forceinline__ uint32_t first_heard(const pki_serve_args &args)
{
    const bool is_head = threadIdx.x >= heads_at && threadIdx.x < heads_at + PKI_SERVE_LANES;

    return is_head ? (uint32_t)(load_next(state_of(args, threadIdx.x - heads_at)) >> 32) : 0;
}

/* False: this CTA leaves. heard: by this thread, at the last look. */
__device__ __forceinline__ bool next_job(const pki_serve_args &args, bool first, uint32_t *heard, serve_job *job)
{
    const uint64_t address = address_for(args, threadIdx.x);

    if (first && !asks_host() && __any_sync(~0u, is_aborted(args.abort_flag)))
        return false;
    for (uint32_t looks = 1; !take_any(args, *heard, looks, job); looks++) {
        *heard = address != 0 ? load_acquire(address) : 0;
        __syncwarp();
        pass_on(args, *heard);
        if (leaves(args, *heard, first && looks == 1))
            return false;
        __nanosleep(PKI_SERVE_SLEEP_NS);
    }
    return true;
}

__device__ __forceinline__ void do_job(const serve_job &job)
{
    const pki_order &order = job.order;

    if (order.kind == PKI_ORDER_COPY) {
        copy_bytes(job.work.dst, job.work.srcs[0], job.work.count, { threadIdx.x, PKI_SERVE_THREADS });
    } else if (order.kind == PKI_ORDER_REDUCE) {
        with_type(order.type, [&](auto element) { reduce_plainly<decltype(element)>(job.work, threadIdx.x, PKI_SERVE_THREADS); });
    } else if (order.kind == PKI_ORDER_SCALE) {
        pki_scale_args args = { job.work.dst, job.work.srcs[0], order.factor, order.value, job.work.count, order.type, 0 };

        with_type(order.type, [&](auto element) { scale<decltype(element)>(args, threadIdx.x, PKI_SERVE_THREADS); });
    }
}

/* By thread 0, behind the barrier of all that have done the unit. The fence orders their stores before the count; who counts
 * last has seen the others' counts, and its releases order all of it before the words. */
__device__ __forceinline__ void end_job(const pki_serve_args &args, const serve_job &job)
{
    pki_serve_state *state = state_of(args, job.lane);
    pki_serve_board *board = (pki_serve_board *)args.board;

    __threadfence_system();
    if (job.order.units > 1) {
        if (atomicAdd(&state->finished, 1) + 1 != job.order.units)
            return;
        __threadfence_system();
        atomicExch(&state->finished, 0);
    }
    for (uint32_t i = 0; i < job.order.ndone; i++)
        store_release(job.order.done[i], job.order.done_value[i]);
    store_release((uint64_t)&board->ended[job.lane], job.number + 1);
    __threadfence();
    atomicExch((unsigned long long *)&state->next, (unsigned long long)(job.number + 1) << 32);
}

} // namespace

extern "C" __global__ void __launch_bounds__(PKI_SERVE_THREADS, 2) pki_serve(const __grid_constant__ pki_serve_args args)
{
    __shared__ serve_job job;
    __shared__ bool goes_on; /* the first warp's; all read it before the second barrier */
    uint32_t heard = first_heard(args);

    if (threadIdx.x == 0)
        job.lane = PKI_SERVE_LANES; /* none */
    __syncwarp();
    for (bool first = true;; first = false) {
        if (threadIdx.x < 32) {
            bool more = next_job(args, first, &heard, &job);

            if (threadIdx.x == 0)
                goes_on = more;
        }
        __syncthreads();
        if (!goes_on)
            return;
        do_job(job);
        __syncthreads();
        if (threadIdx.x == 0)
            end_job(args, job);
    }
}

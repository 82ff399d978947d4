/* SPDX-License-Identifier: Apache-2.0 */
/* What the operations do, on the thread of their stream. Called without the lock. */
#include "kernels/kernels.h"
#include "fakecuda.h"

#include <sched.h>
#include <string.h>
#include <time.h>

static void sleep_us(unsigned us)
{
    struct timespec pause = { .tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000 };

    nanosleep(&pause, NULL);
}

void fc_relax(unsigned *round)
{
    unsigned n = (*round)++;

    if (n < 64)
        atomic_thread_fence(memory_order_acquire);
    else if (n < 256)
        sched_yield();
    else
        sleep_us(n < 1024 ? 20 : n < 2048 ? 100 : 500);
}

static void jitter(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    if (fc.jitter_us > 0)
        sleep_us((unsigned)(*random % (fc.jitter_us + 1)));
}

/* All hardware queues are held by pending waits: nothing that needs one can start. Lock held. */
static bool queues_full(const struct fc_ctx *ctx)
{
    if (fc.sticky != CUDA_SUCCESS || fc.queues == FC_QUEUES_OFF)
        return false;
    return (fc.queues == FC_QUEUES_PROCESS ? fc.pending_waits : ctx->pending_waits) >= fc.connections;
}

static void await_queue(const struct fc_ctx *ctx)
{
    fc_lock();
    while (queues_full(ctx))
        pthread_cond_wait(&fc.changed, &fc.lock);
    fc_unlock();
}

static char *access_or_fault(const struct fc_ctx *ctx, const char *what, uintptr_t address, size_t bytes)
{
    char *alias;

    fc_lock();
    alias = fc_access(ctx, address, bytes);
    fc_unlock();
    if (alias == NULL)
        fc_fault(what, address, bytes);
    return alias;
}

/* Was it device or registered memory at the call, and is no longer? */
static bool place_of(uintptr_t address, size_t bytes, bool pageable, struct fc_place *place)
{
    CUresult result;

    fc_lock();
    result = fc_resolve(address, bytes, place);
    fc_unlock();
    if (result == CUDA_SUCCESS && (pageable || place->kind != FC_PAGEABLE))
        return true;
    fc_fault("copy", address, bytes);
    return false;
}

/* What was before it in its queue has left. */
static void await_place(const struct fc_op *op)
{
    if (op->queue == NULL)
        return;
    fc_lock();
    while (op->queue->completed != op->place && fc.sticky == CUDA_SUCCESS)
        pthread_cond_wait(&fc.changed, &fc.lock);
    fc_unlock();
}

static void leave_place(const struct fc_op *op)
{
    if (op->queue == NULL)
        return;
    fc_lock();
    op->queue->completed++;
    pthread_cond_broadcast(&fc.changed);
    fc_unlock();
}

static void run_copy(const struct fc_op *op)
{
    struct fc_place dst, src;

    if (!place_of(op->copy.dst, op->copy.bytes, op->copy.dst_pageable, &dst))
        return;
    if (op->copy.snapshot != NULL)
        src = (struct fc_place){ .alias = op->copy.snapshot, .physical = -1 };
    else if (!place_of(op->copy.src, op->copy.bytes, op->copy.src_pageable, &src))
        return;
    if (!dst.on_device || !src.on_device) {
        fc_count(FC_HOST_COPIES, 1);
    } else if (dst.physical != src.physical) {
        fc_count(FC_PEER_COPIES, 1);
    } else {
        await_queue(op->ctx);
        fc_count(FC_LOCAL_COPIES, 1);
    }
    fc_bytes_copy(dst.alias, src.alias, op->copy.bytes);
    if (fc.corrupt && dst.on_device && src.on_device && dst.physical != src.physical)
        dst.alias[op->copy.bytes / 2] ^= 1;
}

static void run_set(const struct fc_op *op)
{
    size_t bytes = op->set.count * op->set.width;
    char *to = access_or_fault(op->ctx, "memset", op->set.dst, bytes);

    if (to == NULL)
        return;
    await_queue(op->ctx);
    fc_count(FC_MEMSETS, 1);
    if (op->set.width == 1) {
        fc_bytes_set(to, (unsigned char)op->set.value, bytes);
        return;
    }
    for (size_t i = 0; i < op->set.count; i++)
        memcpy(to + i * op->set.width, &op->set.value, op->set.width);
}

bool fc_word_open(uint64_t word, uint64_t value, unsigned flags, unsigned width)
{
    uint64_t mask = width == 4 ? UINT32_MAX : UINT64_MAX;
    uint64_t sign = width == 4 ? (uint64_t)1 << 31 : (uint64_t)1 << 63;

    switch (flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return ((word - value) & sign) == 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return ((word ^ value) & mask) == 0;
    case CU_STREAM_WAIT_VALUE_AND:
        return (word & value & mask) != 0;
    default:
        return (~(word | value) & mask) != 0;
    }
}

static uint64_t load_word(const char *word, unsigned width)
{
    if (width == 4)
        return atomic_load_explicit((const _Atomic uint32_t *)(const void *)word, memory_order_acquire);
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)word, memory_order_acquire);
}

static bool is_open(const struct fc_op *op, const char *word)
{
    return fc_word_open(load_word(word, op->word.width), op->word.value, op->word.flags, op->word.width);
}

static bool poisoned(void)
{
    bool yes;

    fc_lock();
    yes = fc.sticky != CUDA_SUCCESS;
    fc_unlock();
    return yes;
}

/* Lock held. */
static void add_pending(struct fc_ctx *ctx, int by)
{
    fc.pending_waits += by;
    ctx->pending_waits += by;
    fc_count(FC_PENDING_WAITS, by);
    fc_max(FC_PENDING_WAITS_MAX, (unsigned long)fc.pending_waits);
    pthread_cond_broadcast(&fc.changed);
}

/* A wait needs a queue to be looked at, even one whose word is there already, and holds it while it is pending. */
static void run_wait(const struct fc_op *op)
{
    char *word = access_or_fault(op->ctx, "wait for a word", op->word.address, op->word.width);
    unsigned round = 0;

    if (word == NULL)
        return;
    fc_count(FC_WAITS, 1);
    fc_lock();
    while (queues_full(op->ctx))
        pthread_cond_wait(&fc.changed, &fc.lock);
    if (is_open(op, word)) {
        fc_unlock();
        return;
    }
    add_pending(op->ctx, 1);
    fc_unlock();
    while (!is_open(op, word)) {
        fc_relax(&round);
        if (round > 256 && poisoned())
            break;
    }
    fc_lock();
    add_pending(op->ctx, -1);
    fc_unlock();
}

static void run_write(const struct fc_op *op)
{
    char *word = access_or_fault(op->ctx, "write of a word", op->word.address, op->word.width);

    if (word == NULL)
        return;
    fc_count(FC_WRITES, 1);
    if (op->word.width == 4)
        atomic_store_explicit((_Atomic uint32_t *)(void *)word, (uint32_t)op->word.value, memory_order_release);
    else
        atomic_store_explicit((_Atomic uint64_t *)(void *)word, op->word.value, memory_order_release);
}

bool fc_waits_for_ranks(const struct fc_kernel *kernel)
{
    static const char *const waiting[] = { PKI_KERNEL_SERVE,
                                           PKI_KERNEL_LL,
                                           PKI_KERNEL_LL_ROW,
                                           PKI_KERNEL_MOVE,
                                           PKI_KERNEL_EXCHANGE,
                                           PKI_KERNEL_FOLD,
                                           PKI_KERNEL_RELAY,
                                           PKI_KERNEL_TWOSHOT,
                                           PKI_KERNEL_TWOSHOT_ANY,
                                           PKI_KERNEL_PUSH,
                                           PKI_KERNEL_PUSH_SUM,
                                           PKI_KERNEL_PAIR_EXCHANGE,
                                           (PKI_KERNEL_PAIR_SUM "f32"),
                                           (PKI_KERNEL_PAIR_SUM "f16"),
                                           (PKI_KERNEL_PAIR_SUM "bf16") };

    if (strncmp(kernel->name, PKI_KERNEL_REPLAY, strlen(PKI_KERNEL_REPLAY)) == 0)
        return true;
    for (size_t i = 0; i < sizeof waiting / sizeof waiting[0]; i++)
        if (strcmp(kernel->name, waiting[i]) == 0)
            return true;
    return false;
}

bool fc_waits_for_stream(const struct fc_kernel *kernel)
{
    return fc_waits_for_ranks(kernel) && strcmp(kernel->name, PKI_KERNEL_MOVE) != 0 &&
           strcmp(kernel->name, PKI_KERNEL_SERVE) != 0;
}

/* The library's kernels that may wait for other ranks fill an SM with each block of more than a warp. They take SMs one by one, as a GPU places
 * blocks, and give them back at the end; all others run wherever one is free. */
static int sms_of(const struct fc_op *op)
{
    return fc_waits_for_ranks(op->launch.kernel) ? (int)op->launch.grid.x : 0;
}

static void take_sms(struct fc_ctx *ctx, int blocks, unsigned threads)
{
    fc_lock();
    for (int taken = 0; taken < blocks || blocks == 0; taken++) {
        while (ctx->held_sms >= FC_SMS && (blocks > 0 || threads > 32) && fc.sticky == CUDA_SUCCESS)
            pthread_cond_wait(&fc.changed, &fc.lock);
        if (blocks == 0)
            break;
        ctx->held_sms++;
    }
    fc_unlock();
}

static void give_sms(struct fc_ctx *ctx, int blocks)
{
    if (blocks == 0)
        return;
    fc_lock();
    ctx->held_sms -= blocks;
    pthread_cond_broadcast(&fc.changed);
    fc_unlock();
}

static void run_kernel(const struct fc_op *op)
{
    struct fc_launch launch = { .ctx = op->ctx, .params = op->launch.params, .grid = op->launch.grid, .block = op->launch.block };
    int sms = sms_of(op);

    await_queue(op->ctx);
    take_sms(op->ctx, sms, op->launch.block.x);
    fc_count(FC_KERNELS, 1);
    op->launch.kernel->run(&launch);
    give_sms(op->ctx, sms);
}

void *fc_ptr(const struct fc_launch *launch, uintptr_t address, size_t bytes)
{
    return access_or_fault(launch->ctx, "kernel", address, bytes);
}

static void run_host(const struct fc_op *op)
{
    fc_self.in_callback = true;
    op->host.fn(op->host.data);
    fc_self.in_callback = false;
}

static void run_point(const struct fc_op *op)
{
    fc_lock();
    if (op->kind == FC_OP_JOIN) {
        fc_point_wait(op->point);
    } else {
        op->point->ns = fc_now_ns();
        op->point->done = true;
        pthread_cond_broadcast(&fc.changed);
    }
    fc_unlock();
}

static void run_graph(const struct fc_op *op)
{
    fc_lock();
    if (op->graph.before != NULL)
        fc_point_wait(op->graph.before);
    fc_exec_run(op->graph.exec, op->graph.external);
    op->graph.done->done = true;
    pthread_cond_broadcast(&fc.changed);
    fc_unlock();
}

void fc_execute(const struct fc_op *op, uint64_t *random)
{
    static void (*const handlers[])(const struct fc_op *) = {
        [FC_OP_COPY] = run_copy,   [FC_OP_SET] = run_set,       [FC_OP_WAIT] = run_wait,
        [FC_OP_WRITE] = run_write, [FC_OP_KERNEL] = run_kernel, [FC_OP_HOST] = run_host,
    };

    jitter(random);
    await_place(op);
    if (op->kind == FC_OP_KERNEL) /* it leaves the queue when it begins */
        leave_place(op);
    if (op->kind == FC_OP_RECORD || op->kind == FC_OP_JOIN)
        run_point(op);
    else if (op->kind == FC_OP_GRAPH)
        run_graph(op);
    else if (op->kind != FC_OP_EMPTY && (op->kind == FC_OP_HOST || !poisoned()))
        handlers[op->kind](op);
    if (op->kind != FC_OP_KERNEL)
        leave_place(op);
}

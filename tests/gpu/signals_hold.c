/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel holds every multiprocessor while data moves with sm_policy PK_SM_NONE: it must arrive anyway, before the kernel is let
 * go. Argument: bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu_rank.h"

#define LIMIT_MS 20000

enum { BYTES };

struct holder {
    gpu_kernel_t kernel;
    gpu_stream_t stream;
    uint32_t *flag;
    int blocks, threads;
};

static void open_holder(struct holder *h, int gpu)
{
    h->kernel = spin_kernel();
    h->stream = gpu_stream_new();
    h->flag = gpu_host_alloc(sizeof *h->flag);
    h->threads = 1024;
    h->blocks = gpu_multiprocessors(gpu) * gpu_kernel_blocks_per_multiprocessor(h->kernel, h->threads);
    *(volatile uint32_t *)h->flag = 1;
    spin_launch(h->kernel, h->blocks, h->threads, h->flag, h->stream); /* loads it */
    report(stream_idle_within(h->stream, 5000, NULL), "a kernel of %d blocks of %d threads runs", h->blocks, h->threads);
}

static void hold(struct holder *h)
{
    *(volatile uint32_t *)h->flag = 0;
    __sync_synchronize();
    spin_launch(h->kernel, h->blocks, h->threads, h->flag, h->stream);
    usleep(100000); /* it runs by now */
    report(gpu_stream_query(h->stream) == GPU_NOT_READY, "the kernel holds all multiprocessors");
}

static void let_go(struct holder *h)
{
    *(volatile uint32_t *)h->flag = 1;
    report(stream_idle_within(h->stream, 5000, NULL), "the kernel was let go and ended");
}

static void transfer(struct gpu_rank *self, char *source, char *result, size_t bytes)
{
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(source, bytes, PK_UINT8, 1 - self->rank, self->comm, self->in_stream), "pk_send");
    must_be_ok(pk_recv(result, bytes, PK_UINT8, 1 - self->rank, self->comm, self->in_stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
}

/* of the longest transfer, and made once: a peer's call may close the mapping of freed memory, which waits for kernels */
struct buffers {
    char *source, *result;
};

static void try_while_held(struct gpu_rank *self, struct holder *holder, const struct buffers *b, size_t bytes)
{
    double free_ms, held_ms;
    bool arrived;

    pattern_to_gpu(b->source, bytes, (uint64_t)self->rank + bytes);
    transfer(self, b->source, b->result, bytes); /* maps the buffers */
    report(stream_idle_within(self->stream, LIMIT_MS, NULL), "%zu bytes: the first transfer", bytes);
    ranks_meet();
    transfer(self, b->source, b->result, bytes);
    arrived = stream_idle_within(self->stream, LIMIT_MS, &free_ms);
    report(arrived, "%zu bytes on a free GPU: %.3f ms", bytes, free_ms);
    gpu_fill(b->result, 0x5a, bytes);
    ranks_meet();
    hold(holder);
    ranks_meet();
    transfer(self, b->source, b->result, bytes);
    arrived = stream_idle_within(self->stream, LIMIT_MS, &held_ms);
    report(arrived, "%zu bytes while every multiprocessor is held: %.3f ms", bytes, held_ms);
    report(gpu_stream_query(holder->stream) == GPU_NOT_READY, "%zu bytes: the kernel still holds them", bytes);
    ranks_meet();
    let_go(holder);
    stream_idle_within(self->stream, LIMIT_MS, NULL);
    report(pattern_wrong_on_gpu(b->result, bytes, (uint64_t)(1 - self->rank) + bytes) == bytes, "%zu bytes: the data is right",
           bytes);
    ranks_meet();
}

static int rank_main(void)
{
    struct gpu_rank self;
    struct holder holder;
    size_t bytes = (size_t)atomic_load(&ranks_shared()->words[BYTES]);
    pk_stats_t stats = { .struct_size = sizeof stats };
    struct buffers buffers;

    gpu_rank_open(&self, PK_SM_NONE, 30000);
    open_holder(&holder, self.rank % gpu_count());
    buffers = (struct buffers){ .source = gpu_alloc(bytes), .result = gpu_alloc(bytes) };
    try_while_held(&self, &holder, &buffers, 4096);
    try_while_held(&self, &holder, &buffers, (size_t)1 << 20);
    try_while_held(&self, &holder, &buffers, bytes);
    gpu_free(buffers.source);
    gpu_free(buffers.result);
    must_be_ok(pk_comm_stats(self.comm, &stats), "pk_comm_stats");
    report(stats.kernels == 0, "PK_SM_NONE: %llu kernels were launched", (unsigned long long)stats.kernels);
    gpu_rank_close(&self);
    return report_end();
}

int main(int argc, char **argv)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "hold",
                                      .size = 2,
                                      .timeout_ms = 90000,
                                      .word = argc > 1            ? atoll(argv[1])
                                              : gpu_is_software() ? 16 << 20
                                                                  : 1 << 30 },
                "zero SM");
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of many communicators wait in as many streams, each long enough for a kernel of many blocks, and the other rank calls them in
 * opposite order. While they wait another stream's kernels must run; and whatever waits first on the one side and on the other, all must
 * end. Then those of one communicator in many streams, of which the first is held up. Once with 16 communicators and once with 40.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define COMMS_MAX 40
#define TURNS 3
#define STREAMS 12 /* of one communicator */
#define FLOATS ((size_t)256 << 10)
#define BLOCKS 264
#define THREADS 512
#define LIMIT_MS 20000

enum { ROUND_POSTED };

struct side {
    pk_comm_t *comm;
    gpu_stream_t stream;
    float *in, *out;
};

static struct side sides[COMMS_MAX];
static int comms;
static float *host;
static uint32_t *flags; /* what kernels beside wait for: [0] is set, [1] is not before it is */

static void open_sides(struct gpu_rank *self)
{
    host = malloc(FLOATS * sizeof *host);
    if (host == NULL)
        exit(2);
    for (int c = 0; c < comms; c++) {
        sides[c].comm = gpu_rank_another(self, 60000);
        sides[c].stream = gpu_stream_new();
        sides[c].in = gpu_alloc(FLOATS * sizeof *host);
        sides[c].out = gpu_alloc(FLOATS * sizeof *host);
    }
}

static float number(size_t i, int turn, int side, int rank)
{
    return (float)((i + (size_t)turn * 3 + (size_t)side * 5 + (size_t)rank * 7) % 97);
}

static void fill(const struct gpu_rank *self, int turn, int n)
{
    for (int c = 0; c < n; c++) {
        for (size_t i = 0; i < FLOATS; i++)
            host[i] = number(i, turn, c, self->rank);
        gpu_copy(sides[c].in, host, FLOATS * sizeof *host);
    }
}

static void call(pk_comm_t *comm, int side, int turn)
{
    pk_stream_t stream = PK_CUDA_STREAM(sides[side].stream);

    if (turn % 2 == 0)
        must_be_ok(pk_allreduce(sides[side].in, sides[side].out, FLOATS, PK_F32, PK_SUM, comm, stream), "pk_allreduce");
    else
        must_be_ok(pk_allgather(sides[side].in, sides[side].out, FLOATS / 2, PK_F32, comm, stream), "pk_allgather");
}

static float expected(size_t i, int turn, int side)
{
    if (turn % 2 == 0)
        return number(i, turn, side, 0) + number(i, turn, side, 1);
    return number(i % (FLOATS / 2), turn, side, (int)(i / (FLOATS / 2)));
}

static size_t wrong_in(int side, int turn)
{
    size_t wrong = 0;

    gpu_copy(host, sides[side].out, FLOATS * sizeof *host);
    for (size_t i = 0; i < FLOATS; i++)
        wrong += host[i] != expected(i, turn, side);
    return wrong;
}

/* Kernels that need every multiprocessor sooner or later, beside those that wait. */
static void compute_beside(const struct gpu_rank *self, gpu_kernel_t kernel, int turn)
{
    double took_ms = 0;
    bool ended;

    for (int i = 0; i < 4; i++)
        spin_launch(kernel, BLOCKS, THREADS, &flags[0], self->stream);
    ended = stream_idle_within(self->stream, 5000, &took_ms);
    report(ended, "turn %d: kernels of %d blocks beside %d collectives that wait took %.1f ms", turn, BLOCKS, comms, took_ms);
    if (!ended)
        exit(1);
}

/* What the library says of those that do not end. */
static void show_all(const struct gpu_rank *self)
{
    for (int c = -1; c < comms; c++) {
        printf("communicator %d:\n", c);
        gpu_show_pending(c < 0 ? self->comm : sides[c].comm);
    }
}

static void all_must_end(const struct gpu_rank *self, int turn, int n)
{
    for (int c = 0; c < n; c++)
        if (!stream_idle_within(sides[c].stream, LIMIT_MS, NULL)) {
            report(false, "turn %d: rank %d: stream %d of %d has ended", turn, self->rank, c, n);
            show_all(self);
            exit(1);
        }
    for (int c = 0; c < n; c++)
        if (wrong_in(c, turn) != 0)
            report(false, "turn %d: rank %d: all elements of stream %d are right", turn, self->rank, c);
    report(true, "turn %d: rank %d: %d streams have ended, all elements compared", turn, self->rank, n);
}

static void turn_once(struct gpu_rank *self, gpu_kernel_t kernel, int turn)
{
    fill(self, turn, comms);
    ranks_meet();
    if (self->rank == 0) {
        for (int c = 0; c < comms; c++)
            call(sides[c].comm, c, turn);
        usleep(20000);
        compute_beside(self, kernel, turn);
        atomic_store(&ranks_shared()->words[ROUND_POSTED], (unsigned)turn + 1);
    } else {
        while (turn < TURNS / 2 && atomic_load(&ranks_shared()->words[ROUND_POSTED]) < (unsigned)turn + 1)
            usleep(500); /* later both call at the same time */
        for (int c = comms - 1; c >= 0; c--)
            call(sides[c].comm, c, turn);
    }
    all_must_end(self, turn, comms);
}

/* One communicator: what its first operation waits for comes last, and those behind it in other streams must leave it room. */
static void many_streams(struct gpu_rank *self, gpu_kernel_t kernel, int turn)
{
    flags[1] = 0;
    fill(self, turn, STREAMS);
    ranks_meet();
    spin_launch(kernel, 1, 32, &flags[1], sides[0].stream);
    for (int c = 0; c < STREAMS; c++)
        call(sides[0].comm, c, turn);
    usleep(20000);
    *(volatile uint32_t *)&flags[1] = 1;
    all_must_end(self, turn, STREAMS);
}

static int rank_main(int n)
{
    struct gpu_rank self;
    gpu_kernel_t kernel;

    comms = n;
    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    kernel = spin_kernel();
    flags = gpu_host_alloc(2 * sizeof *flags);
    flags[0] = 1;
    spin_launch(kernel, 1, 32, &flags[0], self.stream); /* loads it */
    (void)gpu_stream_sync(self.stream);
    open_sides(&self);
    for (int turn = 0; turn < TURNS; turn++)
        turn_once(&self, kernel, turn);
    for (int turn = TURNS; turn < TURNS + 2; turn++)
        many_streams(&self, kernel, turn);
    ranks_meet();
    for (int c = 0; c < comms; c++)
        must_be_ok(pk_comm_destroy(sides[c].comm), "pk_comm_destroy");
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main(atoi(ranks_role()));
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "16", .size = 2, .timeout_ms = 60000 }, "collectives of 16 communicators");
    ranks_drive(&(struct ranks_turn){ .role = "40", .size = 2, .timeout_ms = 90000 }, "collectives of 40 communicators");
    return report_end();
}

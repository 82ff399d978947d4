/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of 16 communicators wait in 16 streams, each long enough for a kernel of many blocks, and the other rank calls them in opposite
 * order. While they wait another stream's kernels must run; and whatever waits first on the one side and on the other, all must end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu_rank.h"

#define COMMS 16
#define TURNS 4
#define FLOATS ((size_t)256 << 10)
#define BLOCKS 264
#define THREADS 512

enum { ROUND_POSTED };

struct side {
    pk_comm_t *comm;
    gpu_stream_t stream;
    float *in, *out;
};

static struct side sides[COMMS];
static float *host;
static uint32_t *flag; /* what the kernels beside wait for: it is set */

static void open_sides(struct gpu_rank *self)
{
    host = malloc(FLOATS * sizeof *host);
    if (host == NULL)
        exit(2);
    for (int c = 0; c < COMMS; c++) {
        sides[c].comm = gpu_rank_another(self, 60000);
        sides[c].stream = gpu_stream_new();
        sides[c].in = gpu_alloc(FLOATS * sizeof *host);
        sides[c].out = gpu_alloc(FLOATS * sizeof *host);
    }
}

static float number(size_t i, int turn, int comm, int rank)
{
    return (float)((i + (size_t)turn * 3 + (size_t)comm * 5 + (size_t)rank * 7) % 97);
}

static void fill(const struct gpu_rank *self, int turn)
{
    for (int c = 0; c < COMMS; c++) {
        for (size_t i = 0; i < FLOATS; i++)
            host[i] = number(i, turn, c, self->rank);
        gpu_copy(sides[c].in, host, FLOATS * sizeof *host);
    }
}

static void call(int c, int turn)
{
    pk_stream_t stream = PK_CUDA_STREAM(sides[c].stream);

    if (turn % 2 == 0)
        must_be_ok(pk_allreduce(sides[c].in, sides[c].out, FLOATS, PK_F32, PK_SUM, sides[c].comm, stream), "pk_allreduce");
    else
        must_be_ok(pk_allgather(sides[c].in, sides[c].out, FLOATS / 2, PK_F32, sides[c].comm, stream), "pk_allgather");
}

static float expected(size_t i, int turn, int comm)
{
    if (turn % 2 == 0)
        return number(i, turn, comm, 0) + number(i, turn, comm, 1);
    return number(i % (FLOATS / 2), turn, comm, (int)(i / (FLOATS / 2)));
}

static size_t wrong_in(int c, int turn)
{
    size_t wrong = 0;

    gpu_copy(host, sides[c].out, FLOATS * sizeof *host);
    for (size_t i = 0; i < FLOATS; i++)
        wrong += host[i] != expected(i, turn, c);
    return wrong;
}

/* Kernels that need every multiprocessor sooner or later, beside those that wait. */
static void compute_beside(const struct gpu_rank *self, gpu_kernel_t kernel, int turn)
{
    double took_ms = 0;
    bool ended;

    for (int i = 0; i < 4; i++)
        spin_launch(kernel, BLOCKS, THREADS, flag, self->stream);
    ended = stream_idle_within(self->stream, 5000, &took_ms);
    report(ended, "turn %d: kernels of %d blocks beside %d collectives that wait took %.1f ms", turn, BLOCKS, COMMS, took_ms);
    if (!ended)
        exit(1);
}

/* What the library says of those that do not end. */
static void show_all(void)
{
    static char text[65536];
    size_t needed;

    for (int c = 0; c < COMMS; c++)
        if (gpu_stream_query(sides[c].stream) != 0 && pk_pending_dump(sides[c].comm, text, sizeof text, &needed) == PK_OK)
            printf("communicator %d: %s\n", c, text);
}

static void turn_once(struct gpu_rank *self, gpu_kernel_t kernel, int turn)
{
    fill(self, turn);
    ranks_meet();
    if (self->rank == 0) {
        for (int c = 0; c < COMMS; c++)
            call(c, turn);
        usleep(20000);
        compute_beside(self, kernel, turn);
        atomic_store(&ranks_shared()->words[ROUND_POSTED], (unsigned)turn + 1);
    } else {
        while (turn < TURNS / 2 && atomic_load(&ranks_shared()->words[ROUND_POSTED]) < (unsigned)turn + 1)
            usleep(500); /* later both call at the same time */
        for (int c = COMMS - 1; c >= 0; c--)
            call(c, turn);
    }
    for (int c = 0; c < COMMS; c++)
        if (!report(stream_idle_within(sides[c].stream, 10000, NULL), "turn %d: rank %d: communicator %d has ended", turn, self->rank, c)) {
            show_all();
            exit(1);
        }
    for (int c = 0; c < COMMS; c++)
        report(wrong_in(c, turn) == 0, "turn %d: rank %d: communicator %d: all elements are right", turn, self->rank, c);
}

static int rank_main(void)
{
    struct gpu_rank self;
    gpu_kernel_t kernel;

    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    kernel = spin_kernel();
    flag = gpu_host_alloc(sizeof *flag);
    *flag = 1;
    spin_launch(kernel, 1, 32, flag, self.stream); /* loads it */
    (void)gpu_stream_sync(self.stream);
    open_sides(&self);
    for (int turn = 0; turn < TURNS; turn++)
        turn_once(&self, kernel, turn);
    ranks_meet();
    for (int c = 0; c < COMMS; c++)
        must_be_ok(pk_comm_destroy(sides[c].comm), "pk_comm_destroy");
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "fused_many", .size = 2, .timeout_ms = 60000 }, "collectives of %d communicators", COMMS);
    return report_end();
}

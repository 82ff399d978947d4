/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams wait for messages, and kernels of the program stand behind: each keeps one of the process's hardware queues.
 *
 *   ends   an operation that began before them, and needs kernels and copies of the library once its peer has come, ends while they wait
 *   all    they keep all queues: what they wait for is done by copy engines, and must not stand behind a sum that cannot begin
 *   mixed  long messages to a rank on the same GPU and to one on another, of one group: each is there when the stream goes on
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define HELD 5 /* of 8 hardware queues; the operation's own stream holds one more */
#define TURNS 15
#define LONGEST ((size_t)8 << 20)
#define MIXED_TURNS 10
#define LONG_BYTES ((size_t)4 << 20)
#define CROWD 12
#define CROWD_BYTES ((size_t)16 << 20)
#define SUM_BYTES ((size_t)16 << 20) /* a block of it */
#define LIMIT_MS 10000
#define TIMEOUT_MS 30000

enum { POSTED, SERVE }; /* shared words: turns of which rank 0 has posted all, and of which the operation has ended */

enum kind { LOW_LATENCY, COPY, FROM_HOST, ALLTOALL, REDUCE_SCATTER, KINDS };

static const char *const names[KINDS] = { "a send of 16 KiB", "a send of 4 MiB", "a receive of 8 KiB from host memory",
                                          "an alltoall of 2 MiB", "a reduce_scatter of 2 MiB" };

struct held {
    gpu_stream_t stream;
    char *buffer;
};

static char host_memory[8 << 10];
static gpu_kernel_t kernel;
static uint32_t *open_flag;

static size_t held_bytes(int i)
{
    return i % 2 == 0 ? 4 << 10 : (size_t)1 << 20;
}

static uint64_t key_of(int turn, int i)
{
    return (uint64_t)(turn * 100 + i + 1);
}

/* One end of the operation, with a kernel behind it. */
static void post(struct gpu_rank *self, enum kind kind, char *in, char *out)
{
    size_t bytes = kind == LOW_LATENCY ? 16 << 10 : (size_t)4 << 20, block = (size_t)2 << 20;
    pk_result_t result;

    if (kind == ALLTOALL)
        result = pk_alltoall(in, out, block, PK_UINT8, self->comm, self->in_stream);
    else if (kind == REDUCE_SCATTER)
        result = pk_reduce_scatter(in, out, block / 4, PK_INT32, PK_SUM, self->comm, self->in_stream);
    else if (kind == FROM_HOST && self->rank == 0)
        result = pk_recv(out, sizeof host_memory, PK_UINT8, 1, self->comm, self->in_stream);
    else if (kind == FROM_HOST)
        result = pk_send(host_memory, sizeof host_memory, PK_UINT8, 0, self->comm, self->in_stream);
    else if (self->rank == 0)
        result = pk_send(in, bytes, PK_UINT8, 1, self->comm, self->in_stream);
    else
        result = pk_recv(out, bytes, PK_UINT8, 0, self->comm, self->in_stream);
    must_be_ok(result, names[kind]);
    spin_launch(kernel, 1, 32, open_flag, self->stream);
}

static void post_held(struct held *held, pk_comm_t *comm)
{
    for (int i = 0; i < HELD; i++) {
        must_be_ok(pk_recv(held[i].buffer, held_bytes(i), PK_UINT8, 1, comm, PK_CUDA_STREAM(held[i].stream)), "pk_recv");
        spin_launch(kernel, 1, 32, open_flag, held[i].stream);
    }
}

static void check_held(struct held *held, int turn)
{
    int idle = 0, right = 0;

    for (int i = 0; i < HELD; i++) {
        idle += stream_idle_within(held[i].stream, LIMIT_MS, NULL);
        right += pattern_wrong_on_gpu(held[i].buffer, held_bytes(i), key_of(turn, i)) == held_bytes(i);
    }
    report(idle == HELD && right == HELD, "turn %d: %d of %d streams that waited have gone on, %d messages are right", turn, idle,
           HELD, right);
}

static void hold(struct gpu_rank *self, struct held *held, pk_comm_t *comm, char *in, char *out)
{
    struct ranks_shared *shared = ranks_shared();

    for (int turn = 0; turn < TURNS; turn++) {
        enum kind kind = (enum kind)(turn % KINDS);
        double took_ms;
        bool idle;

        for (int i = 0; i < HELD; i++)
            gpu_fill(held[i].buffer, 0x5a, held_bytes(i));
        post(self, kind, in, out);
        post_held(held, comm);
        usleep(20000);
        atomic_store(&shared->words[POSTED], turn + 1);
        idle = stream_idle_within(self->stream, LIMIT_MS, &took_ms);
        report(idle, "turn %d: beside %d streams that wait %s took %.1f ms", turn, HELD, names[kind], took_ms);
        atomic_store(&shared->words[SERVE], turn + 1);
        check_held(held, turn);
    }
}

static void serve(struct gpu_rank *self, pk_comm_t *comm, char *in, char *out)
{
    struct ranks_shared *shared = ranks_shared();

    for (int turn = 0; turn < TURNS; turn++) {
        while (atomic_load(&shared->words[POSTED]) <= turn)
            usleep(100);
        post(self, (enum kind)(turn % KINDS), in, out);
        while (atomic_load(&shared->words[SERVE]) <= turn)
            usleep(100);
        for (int i = 0; i < HELD; i++) {
            pattern_to_gpu(in, held_bytes(i), key_of(turn, i));
            must_be_ok(pk_send(in, held_bytes(i), PK_UINT8, 0, comm, self->in_stream), "pk_send");
            report(stream_idle_within(self->stream, LIMIT_MS, NULL), "turn %d: message %d was sent", turn, i);
        }
    }
}

/* ---- all queues are kept ---- */

static void post_crowd(struct gpu_rank *self, struct held *crowd, char *in, char *out)
{
    if (self->rank == 1)
        while (atomic_load(&ranks_shared()->words[POSTED]) == 0)
            usleep(100);
    must_be_ok(pk_reduce_scatter(in, out, SUM_BYTES / 4, PK_INT32, PK_SUM, self->comm, self->in_stream), "pk_reduce_scatter");
    if (self->rank == 0)
        spin_launch(kernel, 1, 32, open_flag, self->stream);
    if (self->rank == 1)
        usleep(200000);
    for (int i = 0; i < CROWD; i++) {
        pk_stream_t stream = PK_CUDA_STREAM(crowd[i].stream);

        if (self->rank == 1) {
            must_be_ok(pk_recv(crowd[i].buffer, CROWD_BYTES, PK_UINT8, 0, self->comm, stream), "pk_recv");
            continue;
        }
        must_be_ok(pk_send(crowd[i].buffer, CROWD_BYTES, PK_UINT8, 1, self->comm, stream), "pk_send");
        spin_launch(kernel, 1, 32, open_flag, crowd[i].stream);
    }
    if (self->rank == 0) {
        usleep(50000);
        atomic_store(&ranks_shared()->words[POSTED], 1);
    }
}

static void all(struct gpu_rank *self)
{
    char *in = gpu_alloc(2 * SUM_BYTES), *out = gpu_alloc(SUM_BYTES);
    struct held crowd[CROWD];
    int idle = 0;

    gpu_fill(in, 1, 2 * SUM_BYTES);
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = (struct held){ gpu_stream_new(), gpu_alloc(CROWD_BYTES) };
        gpu_fill(crowd[i].buffer, (uint8_t)self->rank, CROWD_BYTES);
    }
    ranks_meet();
    post_crowd(self, crowd, in, out);
    for (int i = 0; i < CROWD; i++)
        idle += stream_idle_within(crowd[i].stream, LIMIT_MS, NULL);
    report(idle == CROWD, "rank %d: %d of %d streams have gone on", self->rank, idle, CROWD);
    report(stream_idle_within(self->stream, LIMIT_MS, NULL), "rank %d: and so has the sum's", self->rank);
    must_be_ok(pk_comm_async_error(self->comm), "the communicator");
}

/* ---- messages to both sorts of peers ---- */

static void send_both(struct gpu_rank *self, struct held *held, pk_comm_t *comm, char *same, char *other, int turn)
{
    bool idle;

    pattern_to_gpu(same, LONG_BYTES, key_of(turn, 2));
    pattern_to_gpu(other, LONG_BYTES, key_of(turn, 1));
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(same, LONG_BYTES, PK_UINT8, 2, self->comm, self->in_stream), "pk_send");
    must_be_ok(pk_send(other, LONG_BYTES, PK_UINT8, 1, self->comm, self->in_stream), "pk_send");
    must_be_ok(pk_group_end(), "pk_group_end");
    post_held(held, comm);
    usleep(20000);
    atomic_store(&ranks_shared()->words[POSTED], turn + 1);
    idle = stream_idle_within(self->stream, LIMIT_MS, NULL);
    report(idle, "turn %d: both messages have left", turn);
    if (idle)
        pattern_to_gpu(other, LONG_BYTES, 0); /* it is the program's again */
    atomic_store(&ranks_shared()->words[SERVE], turn + 1);
    for (int i = 0; i < HELD; i++)
        report(stream_idle_within(held[i].stream, LIMIT_MS, NULL), "turn %d: stream %d has gone on", turn, i);
}

static void take_one(struct gpu_rank *self, pk_comm_t *comm, char *to, char *from, int turn)
{
    while (atomic_load(&ranks_shared()->words[POSTED]) <= turn)
        usleep(100);
    must_be_ok(pk_recv(to, LONG_BYTES, PK_UINT8, 0, self->comm, self->in_stream), "pk_recv");
    while (self->rank == 1 && atomic_load(&ranks_shared()->words[SERVE]) <= turn)
        usleep(100);
    for (int i = 0; i < HELD && self->rank == 1; i++)
        must_be_ok(pk_send(from, held_bytes(i), PK_UINT8, 0, comm, PK_BLOCKING), "pk_send");
    report(stream_idle_within(self->stream, LIMIT_MS, NULL), "turn %d: rank %d has its message", turn, self->rank);
    report(pattern_wrong_on_gpu(to, LONG_BYTES, key_of(turn, self->rank)) == LONG_BYTES, "turn %d: rank %d: and it is right",
           turn, self->rank);
}

/* ---- ---- */

static void run(struct gpu_rank *self, struct held *held, pk_comm_t *comm, char *in, char *out)
{
    if (strcmp(ranks_role(), "all") == 0) {
        all(self);
        return;
    }
    if (strcmp(ranks_role(), "mixed") == 0) {
        for (int turn = 0; turn < MIXED_TURNS; turn++) {
            if (self->rank == 0)
                send_both(self, held, comm, in, out, turn);
            else
                take_one(self, comm, out, in, turn);
            ranks_meet();
        }
        return;
    }
    if (self->rank == 0)
        hold(self, held, comm, in, out);
    else
        serve(self, comm, in, out);
}

static int rank_main(void)
{
    struct held held[HELD];
    struct gpu_rank self;
    pk_comm_t *comm;
    char *in, *out;

    gpu_rank_open(&self, PK_SM_DEFAULT, TIMEOUT_MS);
    comm = gpu_rank_another(&self, TIMEOUT_MS);
    kernel = spin_kernel();
    open_flag = gpu_host_alloc(sizeof *open_flag);
    *open_flag = 1;
    in = gpu_alloc(LONGEST);
    out = gpu_alloc(LONGEST);
    gpu_fill(in, 1, LONGEST);
    for (int i = 0; i < HELD; i++)
        held[i] = (struct held){ gpu_stream_new(), gpu_alloc(held_bytes(1)) };
    ranks_meet();
    run(&self, held, comm, in, out);
    ranks_meet();
    must_be_ok(pk_comm_destroy(comm), "pk_comm_destroy");
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(1)) /* two ranks may share it */
        return GPU_SKIPPED;
    if (queues != NULL && atoi(queues) < 8) {
        printf("SKIPPED: 8 hardware queues are needed\n");
        return GPU_SKIPPED;
    }
    ranks_drive(&(struct ranks_turn){ .role = "ends", .size = 2, .timeout_ms = 100000 }, "an operation beside streams that wait");
    if (gpu_count() > 1) /* copies inside a GPU would stand still too */
        ranks_drive(&(struct ranks_turn){ .role = "all", .size = 2, .timeout_ms = 60000 }, "all queues are kept");
    ranks_drive(&(struct ranks_turn){ .role = "mixed", .size = 3, .timeout_ms = 60000 },
                "messages to the same GPU and to another");
    return report_end();
}

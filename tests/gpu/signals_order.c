/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two communicators on two streams, used in opposite order by the two ranks: nothing waits for anything but its own counterpart. With one hardware
 * queue too, where a kernel that cannot start yet holds up whatever is put in behind it: no rank has one of its own making in there.
 */
#include <stdio.h>
#include <stdlib.h>

#include "gpu_rank.h"

#define TURNS 200
#define COMMS 2
#define KERNEL_TURNS 100
#define MANY 24 /* messages each way: more waits than a waiting kernel takes */
#define BYTES ((size_t)96 << 10)
#define FLOATS 4096

struct side {
    pk_comm_t *comm;
    gpu_stream_t stream, beside;
    char *source, *result;
    float *sums;
};

static void open_side(struct gpu_rank *self, struct side *side)
{
    side->comm = gpu_rank_another(self, 30000);
    side->stream = gpu_stream_new();
    side->beside = gpu_stream_new();
    side->source = gpu_alloc(BYTES);
    side->result = gpu_alloc(BYTES);
    side->sums = gpu_alloc(FLOATS * sizeof *side->sums);
}

/* In so many messages each way, by turns in so many streams. */
static void exchange_in(struct gpu_rank *self, struct side *side, int parts, int streams)
{
    const size_t bytes = BYTES / (size_t)parts;

    must_be_ok(pk_group_start(), "pk_group_start");
    for (int i = 0; i < parts; i++) {
        pk_stream_t stream = PK_CUDA_STREAM(i % streams == 0 ? side->stream : side->beside);
        const size_t at = (size_t)i * bytes;

        must_be_ok(pk_send(side->source + at, bytes, PK_UINT8, 1 - self->rank, side->comm, stream), "pk_send");
        must_be_ok(pk_recv(side->result + at, bytes, PK_UINT8, 1 - self->rank, side->comm, stream), "pk_recv");
    }
    must_be_ok(pk_group_end(), "pk_group_end");
}

static void exchange(struct gpu_rank *self, struct side *side)
{
    exchange_in(self, side, 1, 1);
}

static void ones(float *device)
{
    static float host[FLOATS];

    for (int i = 0; i < FLOATS; i++)
        host[i] = 1;
    gpu_copy(device, host, sizeof host);
}

/* Copies of 2^turns in every element, if all went well: each allreduce doubles it. */
static void check_sums(const struct side *side, int c, int turns)
{
    static float host[FLOATS];
    float wanted = (float)(1u << turns);
    int wrong = 0;

    gpu_copy(host, side->sums, sizeof host);
    for (int i = 0; i < FLOATS; i++)
        wrong += host[i] != wanted;
    report(wrong == 0, "communicator %d: %d of %d sums are wrong (%g instead of %g)", c, wrong, FLOATS, host[0], wanted);
}

static void p2p_turns(struct gpu_rank *self, struct side *sides)
{
    int wrong = 0;

    for (int turn = 0; turn < TURNS; turn++) {
        for (int c = 0; c < COMMS; c++)
            pattern_to_gpu(sides[c].source, BYTES, (uint64_t)(turn * 10 + c * 2 + self->rank + 1));
        for (int k = 0; k < COMMS; k++)
            exchange(self, &sides[self->rank == 0 ? k : COMMS - 1 - k]);
        for (int c = 0; c < COMMS; c++) {
            if (!stream_idle_within(sides[c].stream, 20000, NULL)) {
                report(false, "turn %d: communicator %d does not end", turn, c);
                exit(1);
            }
            wrong += pattern_wrong_on_gpu(sides[c].result, BYTES, (uint64_t)(turn * 10 + c * 2 + 1 - self->rank + 1)) != BYTES;
        }
    }
    report(wrong == 0, "rank %d: %d of %d exchanges are wrong", self->rank, wrong, TURNS * COMMS);
}

static void end_turn(struct gpu_rank *self, struct side *side, const char *what, int turn)
{
    if (stream_idle_within(side->stream, 20000, NULL) && stream_idle_within(side->beside, 20000, NULL))
        return;
    report(false, "rank %d: turn %d, %s: an exchange does not end", self->rank, turn, what);
    gpu_show_pending(side->comm);
    exit(1);
}

/* Rank 1 has put a kernel of its own behind its exchange of communicator 0 when both come to communicator 1; rank 0 comes to communicator 0 last. */
static void kernel_turns(struct gpu_rank *self, struct side *sides, int parts, int streams)
{
    gpu_kernel_t kernel = spin_kernel();
    uint32_t *ended = gpu_host_alloc(sizeof *ended);
    int wrong = 0;
    char what[64];

    snprintf(what, sizeof what, "a kernel behind, %d messages in %d streams", parts, streams);
    *ended = 1;
    for (int turn = 0; turn < KERNEL_TURNS; turn++) {
        for (int c = 0; c < COMMS; c++)
            pattern_to_gpu(sides[c].source, BYTES, (uint64_t)(turn * 10 + c * 2 + self->rank + 1));
        ranks_meet();
        if (self->rank == 1) {
            exchange(self, &sides[0]);
            spin_launch(kernel, 1, 32, ended, sides[0].stream);
            /* so the GPU says that these buffers are free, and not the call */
            spin_launch(kernel, 1, 32, ended, sides[1].stream);
            spin_launch(kernel, 1, 32, ended, sides[1].beside);
        }
        ranks_meet();
        exchange_in(self, &sides[1], parts, streams);
        if (self->rank == 0)
            exchange(self, &sides[0]);
        for (int c = 0; c < COMMS; c++) {
            end_turn(self, &sides[c], what, turn);
            wrong += pattern_wrong_on_gpu(sides[c].result, BYTES, (uint64_t)(turn * 10 + c * 2 + 1 - self->rank + 1)) != BYTES;
        }
    }
    report(wrong == 0, "rank %d: %s: %d of %d exchanges are wrong", self->rank, what, wrong, KERNEL_TURNS * COMMS);
    gpu_host_free(ended);
}

/* Several in flight without waiting in between. With one hardware queue reductions are done within the call, so both ranks have to
 * call them in one order there, as with any blocking call. */
static void allreduce_turns(struct gpu_rank *self, struct side *sides)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    bool one_order = connections != NULL && atoi(connections) <= 2;
    const int turns = 20;

    for (int c = 0; c < COMMS; c++)
        ones(sides[c].sums);
    for (int turn = 0; turn < turns; turn++) {
        for (int k = 0; k < COMMS; k++) {
            struct side *side = &sides[self->rank == 0 || one_order ? k : COMMS - 1 - k];

            must_be_ok(pk_allreduce(side->sums, side->sums, FLOATS, PK_F32, PK_SUM, side->comm, PK_CUDA_STREAM(side->stream)),
                       "pk_allreduce");
        }
    }
    for (int c = 0; c < COMMS; c++) {
        report(stream_idle_within(sides[c].stream, 20000, NULL), "rank %d: allreduces of communicator %d end", self->rank, c);
        check_sums(&sides[c], c, turns);
    }
}

static int rank_main(void)
{
    struct gpu_rank self;
    struct side sides[COMMS];

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    for (int c = 0; c < COMMS; c++)
        open_side(&self, &sides[c]);
    p2p_turns(&self, sides);
    kernel_turns(&self, sides, 1, 1);
    kernel_turns(&self, sides, MANY, 1);
    kernel_turns(&self, sides, 2, 2);
    allreduce_turns(&self, sides);
    ranks_meet();
    for (int c = 0; c < COMMS; c++)
        must_be_ok(pk_comm_destroy(sides[c].comm), "pk_comm_destroy");
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    const char *only = getenv("ORDER_CONNECTIONS");
    const char *const connections[] = { only != NULL ? only : "8", only != NULL ? NULL : "1", NULL };

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (int i = 0; connections[i] != NULL; i++) {
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections[i], 1);
        ranks_drive(&(struct ranks_turn){ .role = "order", .size = 2, .timeout_ms = 90000 }, "opposite order, connections %s",
                    connections[i]);
    }
    return report_end();
}

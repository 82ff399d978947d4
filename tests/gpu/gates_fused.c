/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused collectives where they are put to the test: rows of operations of all sizes in streams that change, blocking calls in between,
 * ranks whose memory is the host's, ranks that disagree, and a rank that does not come.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

#define TURNS 300
#define STREAMS 3
#define COUNT_MAX 200000u

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Whole numbers small enough that all sums are exact; the operation's number is in them. */
static float number(size_t i, int rank, int turn)
{
    return (float)((i * 3 + (size_t)rank * 5 + (size_t)turn * 7) % 61);
}

static void fill(float *device, float *host, size_t count, int rank, int turn)
{
    for (size_t i = 0; i < count; i++)
        host[i] = number(i, rank, turn);
    gpu_copy(device, host, count * sizeof *host);
}

static int wrong_sums(const float *device, float *host, size_t count, int size, int turn)
{
    int wrong = 0;

    gpu_copy(host, device, count * sizeof *host);
    for (size_t i = 0; i < count; i++) {
        float sum = 0;

        for (int r = 0; r < size; r++)
            sum += number(i, r, turn);
        wrong += host[i] != sum;
    }
    return wrong;
}

/* All ranks draw the same numbers; what is each rank's own affair they draw apart. */
static int turn_once(struct gpu_rank *self, const gpu_stream_t *streams, float *in, float *out, float *host, int turn)
{
    uint32_t common = (uint32_t)turn * 2654435761u, own = common ^ (uint32_t)(self->rank * 7919);
    size_t count = 1 + next(&common) % (next(&common) % 4 == 0 ? COUNT_MAX : 3000);
    bool from_host = next(&own) % 8 == 0, blocking = next(&own) % 6 == 0;
    gpu_stream_t stream = streams[next(&own) % STREAMS];
    float *memory = malloc(count * sizeof *memory);
    int wrong = 0;

    fill(in, host, count, self->rank, turn);
    memcpy(memory, host, count * sizeof *host);
    must_be_ok(pk_allreduce(from_host ? memory : in, from_host ? memory : out, count, PK_F32, PK_SUM, self->comm,
                            blocking || from_host ? PK_BLOCKING : PK_CUDA_STREAM(stream)),
               "pk_allreduce");
    for (int s = 0; s < STREAMS; s++)
        if (!stream_idle_within(streams[s], 20000, NULL))
            report(false, "rank %d: turn %d does not end", self->rank, turn);
    for (size_t i = 0; i < count && from_host; i++) {
        float sum = 0;

        for (int r = 0; r < self->size; r++)
            sum += number(i, r, turn);
        wrong += memory[i] != sum;
    }
    free(memory);
    return from_host ? wrong : wrong_sums(out, host, count, self->size, turn);
}

static void rows(struct gpu_rank *self)
{
    float *in = gpu_alloc(COUNT_MAX * sizeof(float)), *out = gpu_alloc(COUNT_MAX * sizeof(float));
    float *host = malloc(COUNT_MAX * sizeof *host);
    gpu_stream_t streams[STREAMS];
    int wrong = 0;

    for (int s = 0; s < STREAMS; s++)
        streams[s] = gpu_stream_new();
    for (int turn = 0; turn < TURNS; turn++)
        wrong += turn_once(self, streams, in, out, host, turn) != 0;
    report(wrong == 0, "rank %d: %d of %d allreduces in changing streams and memory are wrong", self->rank, wrong, TURNS);
    for (int s = 0; s < STREAMS; s++)
        gpu_stream_free(streams[s]);
    free(host);
}

/* Many behind one another without a look, alternating between streams: out of turn, one would overwrite another's inbox. */
static void without_a_look(struct gpu_rank *self)
{
    size_t bytes = 4096;
    char *all = gpu_alloc(bytes * (size_t)self->size * TURNS);
    gpu_stream_t second = gpu_stream_new();
    int wrong = 0;

    for (int turn = 0; turn < TURNS; turn++)
        pattern_to_gpu(all + bytes * (size_t)(turn * self->size + self->rank), bytes, (uint64_t)(turn * 64 + self->rank));
    for (int turn = 0; turn < TURNS; turn++) {
        char *at = all + bytes * (size_t)(turn * self->size);

        must_be_ok(pk_allgather(at + bytes * (size_t)self->rank, at, bytes, PK_UINT8, self->comm,
                                PK_CUDA_STREAM(turn % 3 == self->rank % 3 ? second : self->stream)),
                   "pk_allgather");
    }
    report(stream_idle_within(self->stream, 20000, NULL) && stream_idle_within(second, 20000, NULL), "rank %d: the row ends",
           self->rank);
    for (int turn = 0; turn < TURNS; turn++)
        for (int r = 0; r < self->size; r++)
            wrong += pattern_wrong_on_gpu(all + bytes * (size_t)(turn * self->size + r), bytes, (uint64_t)(turn * 64 + r)) != bytes;
    report(wrong == 0, "rank %d: %d of %d blocks in a row without a look are wrong", self->rank, wrong, TURNS * self->size);
    gpu_stream_free(second);
}

/* Another communicator that ends as `expected` says. */
static void ends_badly(struct gpu_rank *self, size_t count, bool calls, pk_result_t expected, const char *what)
{
    pk_comm_t *comm = gpu_rank_another(self, 3000);
    float *buffer = gpu_alloc(4096 * sizeof(float));
    pk_error_info_t info = { .struct_size = sizeof info };
    double begin = monotonic_ms();
    pk_result_t result = PK_OK;

    if (calls)
        must_be_ok(pk_allreduce(buffer, buffer, count, PK_F32, PK_SUM, comm, self->in_stream), "pk_allreduce");
    while (result == PK_OK && monotonic_ms() - begin < 10000)
        result = pk_comm_async_error(comm);
    pk_last_error(&info);
    report((result == expected || (!calls && result != PK_OK)) && (!calls || strstr(info.text, "rank 1") != NULL),
           "rank %d: %s: %s, %.200s", self->rank, what, pk_strerror(result), info.text);
    report(stream_idle_within(self->stream, 5000, NULL), "rank %d: %s: the kernel has left", self->rank, what);
    (void)pk_comm_destroy(comm);
}

static int rank_main(void)
{
    struct gpu_rank self;

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    rows(&self);
    without_a_look(&self);
    ends_badly(&self, self.rank == 0 ? 100 : 200, true, PK_ERR_MISMATCH, "two counts");
    ends_badly(&self, 100, self.rank != 1, PK_ERR_TIMEOUT, "rank 1 does not come");
    gpu_rank_close(&self);
    return report_end();
}

int main(int argc, char **argv)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "fused", .size = argc > 1 ? atoi(argv[1]) : gpu_ranks(4), .timeout_ms = 100000 },
                "fused collectives");
    return report_end();
}

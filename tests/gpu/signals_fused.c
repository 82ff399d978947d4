/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused collectives where they are put to the test: a row that mixes all kinds, lengths on both sides of every change of kernel, roots, streams
 * that change, blocking calls in between, ranks whose memory is the host's and who do an operation by an ordinary plan; ranks that
 * disagree, and a rank that does not come.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

#define TURNS 160
#define STREAMS 3
#define PIECES_TURNS 80
#define COUNT_MAX 1100000u /* of all blocks together */

enum what { ALLREDUCE, REDUCE, BROADCAST, GATHER, SCATTER, ALLGATHER, ALLTOALL, REDUCE_SCATTER, WHATS };

struct turn {
    struct gpu_rank *self;
    int number, root;
    enum what what;
    size_t count; /* of a block */
    bool in_place;
    pk_stream_t stream;
};

/* Mixed well: the low bits choose the operation, the next ones who does it in another way. */
static uint32_t next(uint32_t *state)
{
    uint32_t x = *state += 0x9e3779b9u;

    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (x ^ x >> 16) >> 8;
}

/* Whole numbers small enough that all sums are exact; the operation's number is in them. */
static float number(size_t i, int rank, int turn)
{
    return (float)((i * 3 + (size_t)rank * 5 + (size_t)turn * 7) % 61);
}

static bool many_in(enum what what)
{
    return what == SCATTER || what == ALLTOALL || what == REDUCE_SCATTER;
}

static bool many_out(enum what what)
{
    return what == GATHER || what == ALLGATHER || what == ALLTOALL;
}

static bool has_out(const struct turn *t)
{
    return (t->what != REDUCE && t->what != GATHER) || t->self->rank == t->root;
}

static float expected(const struct turn *t, size_t i)
{
    size_t block = (size_t)t->self->rank * t->count;
    float sum = 0;

    switch (t->what) {
    case BROADCAST:
        return number(i, t->root, t->number);
    case SCATTER:
        return number(block + i, t->root, t->number);
    case GATHER:
    case ALLGATHER:
        return number(i % t->count, (int)(i / t->count), t->number);
    case ALLTOALL:
        return number(block + i % t->count, (int)(i / t->count), t->number);
    default:
        break;
    }
    for (int r = 0; r < t->self->size; r++)
        sum += number(t->what == REDUCE_SCATTER ? block + i : i, r, t->number);
    return sum;
}

static pk_result_t call(const struct turn *t, const float *in, float *out)
{
    pk_comm_t *comm = t->self->comm;

    switch (t->what) {
    case REDUCE:
        return pk_reduce(in, out, t->count, PK_F32, PK_SUM, t->root, comm, t->stream);
    case BROADCAST:
        return pk_broadcast(in, out, t->count, PK_F32, t->root, comm, t->stream);
    case GATHER:
        return pk_gather(in, out, t->count, PK_F32, t->root, comm, t->stream);
    case SCATTER:
        return pk_scatter(in, out, t->count, PK_F32, t->root, comm, t->stream);
    case ALLGATHER:
        return pk_allgather(in, out, t->count, PK_F32, comm, t->stream);
    case ALLTOALL:
        return pk_alltoall(in, out, t->count, PK_F32, comm, t->stream);
    case REDUCE_SCATTER:
        return pk_reduce_scatter(in, out, t->count, PK_F32, PK_SUM, comm, t->stream);
    default:
        return pk_allreduce(in, out, t->count, PK_F32, PK_SUM, comm, t->stream);
    }
}

/* Short ones, those about as long as cells carry, and long ones. */
static size_t draw_count(uint32_t *state, int size)
{
    uint32_t range = next(state) % 8;
    size_t count = range < 5 ? 1 + next(state) % 3000 : range < 7 ? 60000 + next(state) % 12000 : 70000 + next(state) % 1000000;

    count = next(state) % 3 != 0 ? (count + 3) / 4 * 4 : count;
    return count * (size_t)size <= COUNT_MAX ? count : COUNT_MAX / (size_t)size / 4 * 4;
}

static bool draw(struct turn *t, uint32_t *own)
{
    uint32_t common = (uint32_t)t->number * 2654435761u;

    *own = common ^ (uint32_t)((t->self->rank + 1) * 7919);
    t->what = next(&common) % WHATS;
    t->root = (int)(next(&common) % (uint32_t)t->self->size);
    t->count = draw_count(&common, t->self->size);
    t->in_place = next(&common) % 3 == 0;
    return next(own) % 8 == 0;
}

static size_t wrong_in(const struct turn *t, const float *out)
{
    size_t wrong = 0, n = t->count * (many_out(t->what) ? (size_t)t->self->size : 1);

    for (size_t i = 0; i < n && has_out(t); i++)
        wrong += out[i] != expected(t, i);
    return wrong;
}

/* In place: where the other buffer lies within the one that has all blocks. */
static void place(const struct turn *t, float **in, float **out)
{
    size_t own = (size_t)t->self->rank * t->count;

    if (!t->in_place)
        return;
    if (many_in(t->what) == many_out(t->what))
        *in = *out;
    else if (many_in(t->what))
        *out = *in + own;
    else
        *in = *out + own;
}

static bool turn_once(struct turn *t, const gpu_stream_t *streams, float *const device[2], float *const host[2])
{
    uint32_t own;
    bool from_host = draw(t, &own);
    float *in = from_host ? host[0] : device[0], *out = from_host ? host[1] : device[1];
    size_t blocks = many_in(t->what) ? (size_t)t->self->size : 1;

    t->stream = from_host || next(&own) % 6 == 0 ? PK_BLOCKING : PK_CUDA_STREAM(streams[next(&own) % STREAMS]);
    place(t, &in, &out);
    for (size_t i = 0; i < t->count * blocks; i++)
        (from_host ? in : host[0])[i] = number(i, t->self->rank, t->number);
    if (!from_host)
        gpu_copy(in, host[0], t->count * blocks * sizeof *in);
    must_be_ok(call(t, in, out), "a collective");
    for (int s = 0; s < STREAMS; s++)
        if (!stream_idle_within(streams[s], 20000, NULL))
            report(false, "rank %d: turn %d does not end", t->self->rank, t->number);
    if (from_host)
        return wrong_in(t, out) == 0;
    gpu_copy(host[0], out, t->count * (many_out(t->what) ? (size_t)t->self->size : 1) * sizeof *out);
    return wrong_in(t, host[0]) == 0;
}

static void rows(struct gpu_rank *self)
{
    struct turn turn = { .self = self };
    float *device[2], *host[2];
    gpu_stream_t streams[STREAMS];
    pk_stats_t stats = { .struct_size = sizeof stats };
    int wrong = 0;

    for (int i = 0; i < 2; i++) {
        device[i] = gpu_alloc(COUNT_MAX * sizeof(float));
        host[i] = malloc(COUNT_MAX * sizeof(float));
    }
    for (int s = 0; s < STREAMS; s++)
        streams[s] = gpu_stream_new();
    for (turn.number = 0; turn.number < TURNS && host[0] != NULL && host[1] != NULL; turn.number++)
        if (!turn_once(&turn, streams, device, host)) {
            report(false, "rank %d: turn %d, collective %d of %zu, root %d, is wrong", self->rank, turn.number, (int)turn.what,
                   turn.count, turn.root);
            wrong++;
        }
    report(wrong == 0 && turn.number == TURNS,
           "rank %d: %d of %d collectives of all kinds, in changing streams and memory, are wrong", self->rank, wrong,
           turn.number);
    must_be_ok(pk_comm_stats(self->comm, &stats), "pk_comm_stats");
    report(stats.kernels_reaching > 0, "rank %d: %llu kernels of long ones had all buffers mapped", self->rank,
           (unsigned long long)stats.kernels_reaching);
    for (int s = 0; s < STREAMS; s++)
        gpu_stream_free(streams[s]);
    for (int i = 0; i < 2; i++)
        free(host[i]);
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
            wrong +=
                pattern_wrong_on_gpu(all + bytes * (size_t)(turn * self->size + r), bytes, (uint64_t)(turn * 64 + r)) != bytes;
    report(wrong == 0, "rank %d: %d of %d blocks in a row without a look are wrong", self->rank, wrong, TURNS * self->size);
    gpu_stream_free(second);
}

/* Through the inboxes in three pieces, of which the third takes the places of the first: buffers that are not aligned are never mapped by others. */
static void in_pieces(struct gpu_rank *self)
{
    struct turn t = { .self = self, .what = ALLREDUCE, .count = 275000 * (size_t)self->size, .stream = self->in_stream };
    float *in = (float *)gpu_alloc((t.count + 1) * sizeof *in) + 1, *out = (float *)gpu_alloc((t.count + 1) * sizeof *out) + 1;
    float *host = malloc(t.count * sizeof *host);
    int wrong = 0;

    for (t.number = 0; t.number < PIECES_TURNS && host != NULL; t.number++) {
        for (size_t i = 0; i < t.count; i++)
            host[i] = number(i, self->rank, t.number);
        gpu_copy(in, host, t.count * sizeof *in);
        must_be_ok(call(&t, in, out), "pk_allreduce");
        if (!stream_idle_within(self->stream, 20000, NULL))
            report(false, "rank %d: sum %d in pieces does not end", self->rank, t.number);
        gpu_copy(host, out, t.count * sizeof *out);
        wrong += wrong_in(&t, host) != 0;
    }
    report(wrong == 0 && t.number == PIECES_TURNS, "rank %d: %d of %d sums in pieces are wrong", self->rank, wrong, t.number);
    free(host);
    gpu_free(in - 1);
    gpu_free(out - 1);
}

/* Another communicator that ends as `expected` says; whoever calls reads of `culprit`. */
static void ends_badly(struct gpu_rank *self, size_t count, bool calls, pk_result_t expected, const char *culprit,
                       const char *what)
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
    report((result == expected || (!calls && result != PK_OK)) && (!calls || strstr(info.text, culprit) != NULL),
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
    in_pieces(&self);
    ends_badly(&self, self.rank == 0 ? 100 : 200, true, PK_ERR_MISMATCH, "rank 0 calls", "rank 0 has another count");
    ends_badly(&self, 100, self.rank != 1, PK_ERR_TIMEOUT, "rank 1", "rank 1 does not come");
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

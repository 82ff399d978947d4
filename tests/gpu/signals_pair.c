/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of two ranks in cells, whose kernels tell the CPU of their end only where no other follows at once: rows of them in one stream and
 * in several are right, and their ends are known soon after the last, also while the next one's stream is held up. And a row whose last one the
 * peer skips, so that nobody tells of the one before: the error names that rank anyway.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define ROW 200
#define STREAMS 3
#define COUNT ((size_t)40000)        /* 19 CTAs and a bit */
#define LONG_COUNT ((size_t)1 << 18) /* 1 MiB, all 32 CTAs */
#define LONG_BYTES ((LONG_COUNT + 1) * sizeof(float))
#define TIMEOUT_MS 10000
#define SOON_MS 2000
#define SKIPPED_MS 3000

static int pending(struct gpu_rank *self)
{
    char text[8192], *at;

    must_be_ok(pk_pending_dump(self->comm, text, sizeof text, NULL), "pk_pending_dump");
    at = strstr(text, " operations in streams");
    while (at != NULL && at > text && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return at != NULL ? atoi(at) : -1;
}

static bool comes_to(struct gpu_rank *self, int n)
{
    double until = monotonic_ms() + SOON_MS * test_slack() / 4;

    while (pending(self) != n && monotonic_ms() < until)
        usleep(1000);
    return pending(self) == n;
}

struct row {
    float *in, *out[ROW], *host;
    gpu_stream_t streams[STREAMS];
};

static float value(int rank, int turn, size_t i)
{
    return (float)((i + (size_t)turn * 7 + (size_t)rank * 3) % 50);
}

/* Lengths of one CTA and of several, so that not all of them have something to say. */
static size_t count_of(int turn)
{
    static const size_t counts[] = { COUNT, 1, 400, 5000 };

    return counts[turn % 4];
}

static void one(struct gpu_rank *self, struct row *r, int turn, gpu_stream_t stream)
{
    float *in = r->in + (size_t)(turn % 2) * COUNT;

    must_be_ok(pk_allreduce(in, r->out[turn], count_of(turn), PK_F32, PK_SUM, self->comm, PK_CUDA_STREAM(stream)),
               "pk_allreduce");
}

static bool is_right(struct row *r, int turn)
{
    gpu_copy(r->host, r->out[turn], count_of(turn) * sizeof(float));
    for (size_t i = 0; i < count_of(turn); i++)
        if (r->host[i] != value(0, turn % 2, i) + value(1, turn % 2, i))
            return false;
    return true;
}

static void row(struct gpu_rank *self, struct row *r, int streams)
{
    int wrong = 0;
    bool known;

    ranks_meet();
    for (int turn = 0; turn < ROW; turn++)
        one(self, r, turn, r->streams[turn / 5 % streams]);
    for (int s = 0; s < streams; s++)
        report(stream_idle_within(r->streams[s], 20000, NULL), "rank %d: %d streams: number %d is over", self->rank, streams, s);
    known = comes_to(self, 0);
    report(known, "rank %d: %d streams: all ends are known: %d are not", self->rank, streams, pending(self));
    for (int turn = 0; turn < ROW; turn++)
        wrong += !is_right(r, turn);
    report(wrong == 0, "rank %d: %d streams: %d of %d are wrong", self->rank, streams, wrong, ROW);
}

/* As long as there are kernels for, in place and not, where all multiprocessors that the kernels may have are this communicator's. */
static void long_ones(struct gpu_rank *self, gpu_stream_t stream)
{
    static const size_t counts[] = { LONG_COUNT, LONG_COUNT - 1, LONG_COUNT / 2 + 1, LONG_COUNT + 1 };
    float *in = gpu_alloc(LONG_BYTES), *out = gpu_alloc(LONG_BYTES), *host = malloc(LONG_BYTES);
    size_t wrong = 0;

    for (int turn = 0; turn < 16; turn++) {
        size_t count = counts[turn % 4];
        bool in_place = turn / 4 % 2 == 1;

        for (size_t i = 0; i < count; i++)
            host[i] = value(self->rank, turn, i);
        gpu_copy(in, host, count * sizeof *host);
        must_be_ok(pk_allreduce(in, in_place ? in : out, count, PK_F32, PK_SUM, self->comm, PK_CUDA_STREAM(stream)),
                   "pk_allreduce");
        report(stream_idle_within(stream, 20000, NULL), "rank %d: %zu elements are over", self->rank, count);
        gpu_copy(host, in_place ? in : out, count * sizeof *host);
        for (size_t i = 0; i < count; i++)
            wrong += host[i] != value(0, turn, i) + value(1, turn, i);
    }
    report(wrong == 0, "rank %d: of long ones %zu elements are wrong", self->rank, wrong);
    gpu_free(in);
    gpu_free(out);
    free(host);
}

/* One after another in two streams, of which the second is held up. */
static void held_up(struct gpu_rank *self, struct row *r)
{
    uint32_t *flag = gpu_host_alloc(sizeof *flag);
    gpu_kernel_t kernel = spin_kernel();
    bool known;

    atomic_store((_Atomic uint32_t *)flag, 0);
    ranks_meet();
    spin_launch(kernel, 1, 32, flag, r->streams[1]);
    one(self, r, 0, r->streams[0]);
    one(self, r, 1, r->streams[1]);
    report(stream_idle_within(r->streams[0], 20000, NULL), "rank %d: the first is over", self->rank);
    known = comes_to(self, 1);
    report(known, "rank %d: the first's end is known while the second is held up: %d pending", self->rank, pending(self));
    atomic_store((_Atomic uint32_t *)flag, 1);
    report(stream_idle_within(r->streams[1], 20000, NULL) && comes_to(self, 0), "rank %d: the second is over, and known",
           self->rank);
    gpu_host_free(flag);
}

/* Behind a stream that is held up until all are in it. */
static void last_is_skipped(struct gpu_rank *self, struct row *r)
{
    pk_comm_t *comm = gpu_rank_another(self, SKIPPED_MS);
    uint32_t *flag = gpu_host_alloc(sizeof *flag);
    gpu_kernel_t kernel = spin_kernel();
    pk_error_info_t info = { .struct_size = sizeof info };
    double until = monotonic_ms() + 4 * SKIPPED_MS;
    pk_result_t result = PK_OK;

    atomic_store((_Atomic uint32_t *)flag, 0);
    spin_launch(kernel, 1, 32, flag, r->streams[0]);
    for (int turn = 0; turn < 3 - self->rank; turn++)
        must_be_ok(pk_allreduce(r->in, r->out[turn], 1, PK_F32, PK_SUM, comm, PK_CUDA_STREAM(r->streams[0])), "pk_allreduce");
    atomic_store((_Atomic uint32_t *)flag, 1);
    while (result == PK_OK && monotonic_ms() < until)
        result = pk_comm_async_error(comm);
    pk_last_error(&info);
    report(self->rank == 0 ? result == PK_ERR_TIMEOUT && strstr(info.text, "waiting for rank 1") != NULL : result != PK_OK,
           "rank %d: the last of a row is skipped by rank 1: %s, %.200s", self->rank, pk_strerror(result), info.text);
    report(stream_idle_within(r->streams[0], 5000, NULL), "rank %d: the kernel has left", self->rank);
    (void)pk_comm_destroy(comm);
    gpu_host_free(flag);
}

static int rank_main(void)
{
    struct gpu_rank self;
    struct row r;

    gpu_rank_open(&self, PK_SM_DEFAULT, TIMEOUT_MS);
    r.host = malloc(2 * COUNT * sizeof *r.host);
    r.in = gpu_alloc(2 * COUNT * sizeof *r.in);
    for (int turn = 0; turn < ROW; turn++)
        r.out[turn] = gpu_alloc(COUNT * sizeof *r.out[turn]);
    for (int s = 0; s < STREAMS; s++)
        r.streams[s] = gpu_stream_new();
    for (size_t i = 0; i < 2 * COUNT; i++)
        r.host[i] = value(self.rank, (int)(i / COUNT), i % COUNT);
    gpu_copy(r.in, r.host, 2 * COUNT * sizeof *r.in);
    row(&self, &r, 1);
    row(&self, &r, STREAMS);
    long_ones(&self, r.streams[0]);
    held_up(&self, &r);
    usleep((TIMEOUT_MS + 1000) * 1000); /* the last one's end is known, so no deadline is missed */
    must_be_ok(pk_comm_async_error(self.comm), "a communicator at rest");
    row(&self, &r, 1);
    last_is_skipped(&self, &r);
    for (int turn = 0; turn < ROW; turn++)
        gpu_free(r.out[turn]);
    gpu_free(r.in);
    for (int s = 0; s < STREAMS; s++)
        gpu_stream_free(r.streams[s]);
    free(r.host);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "pair", 60000, "collectives of two ranks in cells");
}

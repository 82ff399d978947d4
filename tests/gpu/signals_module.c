/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program loads a module, or frees memory, while streams wait for operations: calls that wait for all work of the GPU, and during which
 * other threads' calls of the driver may stand still. Nothing may stand for ever.
 *
 *   kernels  operations that are one kernel on each rank need nobody: both ranks load while their kernels wait, and all is right
 *   plan     longer ones need copies, which are in the streams when the calls return: right as well
 *   abort    the same without the other rank, which calls when pk_comm_abort has ended it
 *   others   the same, and operations of another communicator end before, meanwhile and afterwards
 *
 * What pk_comm_abort has not ended is to be right: no deadline excuses it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define ROUNDS 6
#define LATE_US 150000
#define TIMEOUT_MS 60000
#define OTHERS 10 /* exchanges */
#define OTHERS_EVERY_US 50000
#define BLOCK ((size_t)12 << 20) /* longer than what goes by kernels */
#define OTHER_BYTES ((size_t)1 << 20)

/* Words of the shared memory. */
enum { ABORTED };

static bool is_role(const char *role)
{
    return strcmp(ranks_role(), role) == 0;
}

/* Calls that wait for all work of the GPU, by turns. Milliseconds. */
static double disturb(int turn)
{
    void *spare = turn % 2 != 0 ? gpu_alloc(4096) : NULL;
    double begin = monotonic_ms();

    if (spare != NULL)
        gpu_free(spare);
    else
        (void)spin_kernel();
    return monotonic_ms() - begin;
}

/* ---- operations that are kernels ---- */

static void sum(struct gpu_rank *self, int turn, size_t count)
{
    float *host = malloc(count * sizeof *host), *in = gpu_alloc(count * sizeof *in), *out = gpu_alloc(count * sizeof *out);
    bool right = true;
    double took_ms;

    for (size_t i = 0; i < count; i++)
        host[i] = (float)(i % 100 + (size_t)self->rank);
    gpu_copy(in, host, count * sizeof *in);
    ranks_meet();
    if (turn % 2 == self->rank)
        usleep(LATE_US);
    must_be_ok(pk_allreduce(in, out, count, PK_F32, PK_SUM, self->comm, self->in_stream), "pk_allreduce");
    took_ms = disturb(turn / 2);
    report(took_ms < 1000 * test_slack(), "rank %d: allreduce of %zu pending: the call took %.1f ms", self->rank, count, took_ms);
    report(stream_idle_within(self->stream, 20000, NULL), "rank %d: the allreduce has ended", self->rank);
    gpu_copy(host, out, count * sizeof *out);
    for (size_t i = 0; i < count; i++)
        right = right && host[i] == (float)(2 * (i % 100) + 1);
    report(right, "rank %d: allreduce of %zu is right", self->rank, count);
    ranks_meet();
    gpu_free(in);
    gpu_free(out);
    free(host);
}

static void kernels(struct gpu_rank *self)
{
    static const size_t counts[] = { 8, 1024, 100000 };

    for (int turn = 0; turn < 2 * ROUNDS; turn++)
        sum(self, turn, counts[turn % 3]);
    must_be_ok(pk_comm_async_error(self->comm), "the communicator");
}

/* ---- operations that are not ---- */

static void *abort_soon(void *arg)
{
    double begin;
    pk_result_t result;

    usleep(2 * LATE_US);
    begin = monotonic_ms();
    result = pk_comm_abort(arg);
    report(result == PK_OK && monotonic_ms() - begin < 200 * test_slack(), "pk_comm_abort returned %d after %.1f ms", (int)result,
           monotonic_ms() - begin);
    atomic_store(&ranks_shared()->words[ABORTED], 1);
    return NULL;
}

struct other {
    pk_comm_t *comm;
    int rank;
};

/* Messages that the service thread moves. Milliseconds. */
static double exchange(const struct other *o, const char *in, char *out, pk_stream_t stream)
{
    const double begin = monotonic_ms();

    memset(out, 0, OTHER_BYTES);
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(in, OTHER_BYTES, PK_UINT8, 1 - o->rank, o->comm, stream), "pk_send");
    must_be_ok(pk_recv(out, OTHER_BYTES, PK_UINT8, 1 - o->rank, o->comm, stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
    must_be_ok(pk_stream_synchronize(stream), "pk_stream_synchronize");
    return monotonic_ms() - begin;
}

static void *others(void *arg)
{
    const struct other *o = arg;
    char *in = malloc(OTHER_BYTES), *out = malloc(OTHER_BYTES);
    double longest_ms = 0;
    bool right = true;
    pk_stream_t stream;

    pattern_fill(in, OTHER_BYTES, (uint64_t)o->rank);
    must_be_ok(pk_stream_create(&stream), "pk_stream_create");
    for (int i = 0; i < OTHERS; i++) {
        double took_ms;

        usleep(OTHERS_EVERY_US);
        took_ms = exchange(o, in, out, stream);
        longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
        right = right && pattern_wrong(out, OTHER_BYTES, (uint64_t)(1 - o->rank)) == OTHER_BYTES;
    }
    report(longest_ms < 100 * test_slack(), "rank %d: another communicator's messages took at most %.1f ms", o->rank, longest_ms);
    report(right, "rank %d: and are right", o->rank);
    pk_stream_destroy(stream);
    free(in);
    free(out);
    return NULL;
}

/* The rank that calls after the abort may find the communicator failed or not. */
static bool is_ended(const struct gpu_rank *self, pk_result_t result)
{
    return result == PK_ERR_ABORTED || (self->rank == 1 && result == PK_ERR_PEER);
}

static void judge(struct gpu_rank *self, const char *out, pk_result_t called, double took_ms)
{
    bool idle = stream_idle_within(self->stream, TIMEOUT_MS + 5000, NULL);
    pk_result_t result = pk_comm_async_error(self->comm);
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    report(idle, "rank %d: the stream goes on; the driver kept the caller for %.1f ms", self->rank, took_ms);
    if (is_role("abort")) {
        report(is_ended(self, result), "rank %d: the alltoall was ended by the abort: %d: %.200s", self->rank, (int)result,
               info.text);
        return;
    }
    report(called == PK_OK && result == PK_OK, "rank %d: the alltoall has no error: %d, %d: %.200s", self->rank, (int)called,
           (int)result, info.text);
    report(idle && pattern_wrong_on_gpu(out + (size_t)(1 - self->rank) * BLOCK, BLOCK, (uint64_t)(1 - self->rank)) == BLOCK,
           "rank %d: the alltoall is right", self->rank);
}

/* Rank 1 is late; where rank 0 aborts, until it has. */
static void be_late(void)
{
    usleep(LATE_US);
    while (is_role("abort") && atomic_load(&ranks_shared()->words[ABORTED]) == 0)
        usleep(1000);
}

static void plan(struct gpu_rank *self)
{
    char *in = gpu_alloc(2 * BLOCK), *out = gpu_alloc(2 * BLOCK);
    struct other other = { .rank = self->rank };
    pk_result_t called;
    pthread_t thread;
    double took_ms;

    if (is_role("others"))
        other.comm = gpu_rank_another(self, TIMEOUT_MS);
    for (size_t r = 0; r < 2; r++)
        pattern_to_gpu(in + r * BLOCK, BLOCK, (uint64_t)self->rank);
    gpu_fill(out, 0x5a, 2 * BLOCK);
    ranks_meet();
    if (is_role("abort") && self->rank == 0 && pthread_create(&thread, NULL, abort_soon, self->comm) != 0)
        abort();
    if (is_role("others") && pthread_create(&thread, NULL, others, &other) != 0)
        abort();
    if (self->rank == 1)
        be_late();
    called = pk_alltoall(in, out, BLOCK, PK_UINT8, self->comm, self->in_stream);
    took_ms = disturb(0);
    judge(self, out, called, took_ms);
    if ((is_role("abort") && self->rank == 0) || is_role("others"))
        pthread_join(thread, NULL);
    ranks_meet();
    if (other.comm != NULL)
        pk_comm_destroy(other.comm);
    pk_comm_destroy(self->comm);
    gpu_free(in);
    gpu_free(out);
}

static int rank_main(void)
{
    struct gpu_rank self;

    gpu_rank_open(&self, PK_SM_DEFAULT, TIMEOUT_MS);
    if (is_role("kernels")) {
        kernels(&self);
        gpu_rank_close(&self);
    } else {
        plan(&self);
    }
    return report_end();
}

int main(void)
{
    static const char *const roles[] = { "kernels", "plan", "abort", "others" };

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (int hold = 0; hold <= gpu_is_software(); hold++) {
        if (hold != 0)
            setenv("FAKECUDA_HOLD", "cuModuleLoadData,cuMemFree_v2", 1);
        for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
            ranks_drive(&(struct ranks_turn){ .role = roles[i], .size = 2, .timeout_ms = 90000 }, "%s%s", roles[i],
                        hold != 0 ? ", the driver keeps other threads out" : "");
    }
    return report_end();
}

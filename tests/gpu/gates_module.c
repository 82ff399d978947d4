/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program loads a module, or frees memory, while streams wait for operations: calls that wait for all work of the GPU, and during which
 * other threads' calls of the driver may stand still. Nothing may stand for ever.
 *
 *   kernels  operations that are one kernel on each rank need nobody: both ranks load while their kernels wait, and all is right
 *   plan     longer ones need copies, which the CPU gives the driver: right, or over by the communicator's deadline
 *   abort    the same, ended by pk_comm_abort long before that
 *   others   and meanwhile operations of another communicator end
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define ROUNDS 6
#define LATE_US 150000
#define SHORT_TIMEOUT_MS 3000
#define LONG_TIMEOUT_MS 60000
#define BLOCK ((size_t)12 << 20) /* longer than what goes by kernels */
#define OTHER_BYTES ((size_t)1 << 20)

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
    return NULL;
}

struct other {
    pk_comm_t *comm;
    int rank;
};

/* Messages that the service thread moves. */
static void *others(void *arg)
{
    struct other *o = arg;
    char *in = malloc(OTHER_BYTES), *out = malloc(OTHER_BYTES);
    pk_stream_t stream;
    double begin;

    pattern_fill(in, OTHER_BYTES, (uint64_t)o->rank);
    must_be_ok(pk_stream_create(&stream), "pk_stream_create");
    usleep(3 * LATE_US);
    begin = monotonic_ms();
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(in, OTHER_BYTES, PK_UINT8, 1 - o->rank, o->comm, stream), "pk_send");
    must_be_ok(pk_recv(out, OTHER_BYTES, PK_UINT8, 1 - o->rank, o->comm, stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
    must_be_ok(pk_stream_synchronize(stream), "pk_stream_synchronize");
    report(monotonic_ms() - begin < SHORT_TIMEOUT_MS / 2, "rank %d: another communicator's messages took %.1f ms", o->rank,
           monotonic_ms() - begin);
    report(pattern_wrong(out, OTHER_BYTES, (uint64_t)(1 - o->rank)) == OTHER_BYTES, "rank %d: and are right", o->rank);
    pk_stream_destroy(stream);
    free(in);
    free(out);
    return NULL;
}

static void judge(struct gpu_rank *self, const char *out, double took_ms, pk_result_t wanted)
{
    bool idle = stream_idle_within(self->stream, SHORT_TIMEOUT_MS + 5000 * test_slack(), NULL);
    bool right = idle && pattern_wrong_on_gpu(out + (size_t)(1 - self->rank) * BLOCK, BLOCK, (uint64_t)(1 - self->rank)) == BLOCK;
    pk_result_t result = pk_comm_async_error(self->comm);
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    report(idle, "rank %d: the stream goes on; the call took %.1f ms", self->rank, took_ms);
    if (result == PK_OK)
        report(right, "rank %d: the alltoall is right", self->rank);
    else
        report(result == wanted || result == PK_ERR_PEER || result == PK_ERR_ABORTED,
               "rank %d: the alltoall has failed: %d: %.200s", self->rank, (int)result, info.text);
}

static void plan(struct gpu_rank *self)
{
    char *in = gpu_alloc(2 * BLOCK), *out = gpu_alloc(2 * BLOCK);
    struct other other = { .rank = self->rank };
    pthread_t thread;
    double took_ms;

    if (is_role("others"))
        other.comm = gpu_rank_another(self, LONG_TIMEOUT_MS);
    for (size_t r = 0; r < 2; r++)
        pattern_to_gpu(in + r * BLOCK, BLOCK, (uint64_t)self->rank);
    gpu_fill(out, 0x5a, 2 * BLOCK);
    ranks_meet();
    if (is_role("abort") && self->rank == 0 && pthread_create(&thread, NULL, abort_soon, self->comm) != 0)
        abort();
    if (is_role("others") && pthread_create(&thread, NULL, others, &other) != 0)
        abort();
    if (self->rank == 1)
        usleep(LATE_US);
    must_be_ok(pk_alltoall(in, out, BLOCK, PK_UINT8, self->comm, self->in_stream), "pk_alltoall");
    took_ms = disturb(0);
    judge(self, out, took_ms, is_role("abort") ? PK_ERR_ABORTED : PK_ERR_TIMEOUT);
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

    gpu_rank_open(&self, PK_SM_DEFAULT, is_role("plan") || is_role("others") ? SHORT_TIMEOUT_MS : LONG_TIMEOUT_MS);
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
            ranks_drive(&(struct ranks_turn){ .role = roles[i], .size = 2, .timeout_ms = 40000 }, "%s%s", roles[i],
                        hold != 0 ? ", the driver keeps other threads out" : "");
    }
    return report_end();
}

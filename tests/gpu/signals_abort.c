/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU stream waits for a peer that gives up, or dies: the stream goes on within a second, and the error names the peer. Streams are
 * released whether the wait was short or one of many.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define STREAMS 12
#define BYTES ((size_t)1 << 20)
#define LIMIT_MS 1000

enum { EVENT_NS, WAITING };

struct waiting {
    gpu_stream_t streams[STREAMS];
    char *buffers[STREAMS];
};

static void post(struct gpu_rank *self, struct waiting *w)
{
    for (int s = 0; s < STREAMS; s++) {
        w->streams[s] = gpu_stream_new();
        w->buffers[s] = gpu_alloc(BYTES);
        gpu_fill(w->buffers[s], 0x11, BYTES);
    }
    for (int s = 0; s < STREAMS; s++)
        must_be_ok(pk_recv(w->buffers[s], BYTES, PK_UINT8, 1 - self->rank, self->comm, PK_CUDA_STREAM(w->streams[s])), "pk_recv");
}

static int idle(const struct waiting *w)
{
    int n = 0;

    for (int s = 0; s < STREAMS; s++)
        n += gpu_stream_query(w->streams[s]) != GPU_NOT_READY;
    return n;
}

/* All streams go on soon after the event. */
static void judge(struct gpu_rank *self, struct waiting *w, const char *what, pk_result_t wanted)
{
    int64_t begin = atomic_load(&ranks_shared()->words[EVENT_NS]);
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_result_t result;
    double took_ms;

    while (idle(w) < STREAMS && monotonic_ns() - begin < 10 * (int64_t)1000000000)
        usleep(200);
    took_ms = (double)(monotonic_ns() - begin) * 1e-6;
    report(idle(w) == STREAMS && took_ms < LIMIT_MS * test_slack(), "%s: rank %d: %d of %d streams were released after %.1f ms",
           what, self->rank, idle(w), STREAMS, took_ms);
    result = pk_comm_async_error(self->comm);
    pk_last_error(&info);
    report(result == wanted, "%s: rank %d: the error is %d: %.200s", what, self->rank, (int)result, info.text);
    if (wanted == PK_ERR_PEER)
        report(info.peer == 1 - self->rank, "%s: rank %d: the error names rank %d", what, self->rank, info.peer);
    result = pk_send(w->buffers[0], 1, PK_UINT8, 1 - self->rank, self->comm, PK_CUDA_STREAM(w->streams[0]));
    report(result == wanted, "%s: rank %d: the next operation returned %d", what, self->rank, (int)result);
}

static void *abort_soon(void *arg)
{
    pk_comm_t *comm = arg;
    double begin;
    pk_result_t result;

    usleep(200000);
    atomic_store(&ranks_shared()->words[EVENT_NS], monotonic_ns());
    begin = monotonic_ms();
    result = pk_comm_abort(comm);
    report(result == PK_OK && monotonic_ms() - begin < 100 * test_slack(), "pk_comm_abort returned %d after %.1f ms", (int)result,
           monotonic_ms() - begin);
    return NULL;
}

static int rank_main(void)
{
    bool aborted = strcmp(ranks_role(), "abort") == 0;
    struct gpu_rank self;
    struct waiting waiting;
    pthread_t thread;

    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    post(&self, &waiting);
    report(idle(&waiting) == 0, "%s: rank %d: all streams wait", ranks_role(), self.rank);
    ranks_meet();
    atomic_fetch_add(&ranks_shared()->words[WAITING], 1);
    if (aborted && self.rank == 0 && pthread_create(&thread, NULL, abort_soon, self.comm) != 0)
        abort();
    while (atomic_load(&ranks_shared()->words[EVENT_NS]) == 0)
        usleep(500);
    judge(&self, &waiting, ranks_role(), aborted ? PK_ERR_ABORTED : PK_ERR_PEER);
    if (aborted && self.rank == 0)
        pthread_join(thread, NULL);
    if (aborted)
        ranks_meet();
    pk_comm_destroy(self.comm);
    for (int s = 0; s < STREAMS; s++) {
        gpu_stream_free(waiting.streams[s]);
        gpu_free(waiting.buffers[s]);
    }
    return report_end();
}

static void drive(const char *role, const char *connections, int victim)
{
    struct ranks ranks;
    int wrong;

    setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, role, NULL, NULL);
    for (int i = 0; victim >= 0 && i < 300 && atomic_load(&ranks.shared->words[WAITING]) < 2; i++)
        usleep(100000);
    if (victim >= 0) {
        usleep(200000);
        atomic_store(&ranks.shared->words[EVENT_NS], monotonic_ns());
        kill(ranks.pids[victim], SIGKILL);
    }
    wrong = ranks_wait(&ranks, 60000, victim);
    report(wrong == 0, "%s, connections %s: %d ranks failed", role, connections, wrong);
    ranks_close(&ranks);
}

int main(void)
{
    static const char *const connections[] = { "8", "1" };

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (int i = 0; i < 2; i++) {
        drive("abort", connections[i], -1);
        drive("kill", connections[i], 1);
        drive("kill", connections[i], 0);
    }
    return report_end();
}

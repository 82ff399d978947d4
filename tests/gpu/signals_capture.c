/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A send and a receive captured into a graph, replayed a thousand times with changing data, while another thread of
 * each rank exchanges eagerly over another communicator. And a capture that cannot be: refused, and the capture still ends well.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"
#include "gpu_vmm.h"

#define REPLAYS 1000
#define BYTES ((size_t)256 << 10)
#define EAGER_BYTES ((size_t)48 << 10)
#define EAGER_TURNS 200

/* Kernels of the program stand in front of its exchanges and behind them; they end at once. */
static gpu_kernel_t kernel;
static uint32_t *ended;

static void put_kernel(gpu_stream_t stream)
{
    spin_launch(kernel, 1, 32, ended, stream);
}

/* The thread that exchanges on the side. */
struct eager {
    struct gpu_rank *self;
    pk_comm_t *comm;
    pthread_barrier_t *made;
    int wrong, turns;
};

static void *exchange_eagerly(void *arg)
{
    struct eager *e = arg;
    char *source, *result;
    gpu_stream_t stream;
    int other = 1 - e->self->rank;

    gpu_use(e->self->rank % gpu_count());
    source = gpu_alloc(EAGER_BYTES);
    result = gpu_alloc(EAGER_BYTES);
    stream = gpu_stream_new();
    pattern_to_gpu(source, EAGER_BYTES, 0);
    pthread_barrier_wait(e->made);
    for (e->turns = 0; e->turns < EAGER_TURNS; e->turns++) {
        pattern_to_gpu(source, EAGER_BYTES, (uint64_t)(e->turns * 2 + e->self->rank + 1));
        put_kernel(stream);
        must_be_ok(pk_group_start(), "pk_group_start");
        must_be_ok(pk_send(source, EAGER_BYTES, PK_UINT8, other, e->comm, PK_CUDA_STREAM(stream)), "eager pk_send");
        must_be_ok(pk_recv(result, EAGER_BYTES, PK_UINT8, other, e->comm, PK_CUDA_STREAM(stream)), "eager pk_recv");
        must_be_ok(pk_group_end(), "eager pk_group_end");
        if (!stream_idle_within(stream, 20000, NULL)) {
            report(false, "rank %d: eager exchange %d does not end", e->self->rank, e->turns);
            gpu_show_pending(e->comm);
            exit(1);
        }
        e->wrong += pattern_wrong_on_gpu(result, EAGER_BYTES, (uint64_t)(e->turns * 2 + other + 1)) != EAGER_BYTES;
    }
    return NULL;
}

/* Rank 0 sends, then receives what rank 1 sends back. */
static void exchange(struct gpu_rank *self, char *source, char *result)
{
    int other = 1 - self->rank;

    if (self->rank == 0)
        must_be_ok(pk_send(source, BYTES, PK_UINT8, other, self->comm, self->in_stream), "captured pk_send");
    must_be_ok(pk_recv(result, BYTES, PK_UINT8, other, self->comm, self->in_stream), "captured pk_recv");
    if (self->rank == 1)
        must_be_ok(pk_send(source, BYTES, PK_UINT8, other, self->comm, self->in_stream), "captured pk_send");
}

static gpu_graph_t capture(struct gpu_rank *self, char *source, char *result)
{
    gpu_graph_t graph;
    int code;

    gpu_capture_begin(self->stream);
    exchange(self, source, result);
    put_kernel(self->stream);
    code = gpu_capture_end(self->stream, &graph);
    if (!report(code == 0, "rank %d: the capture ended: %s", self->rank, gpu_error(code)))
        exit(1);
    return graph;
}

static void replay(struct gpu_rank *self, gpu_graph_t graph, char *source, char *result)
{
    int wrong = 0;
    int reported = 0;

    for (int turn = 0; turn < REPLAYS; turn++) {
        pattern_to_gpu(source, BYTES, (uint64_t)(turn * 2 + self->rank + 1) << 20);
        put_kernel(self->stream);
        gpu_graph_launch(graph, self->stream);
        if (!stream_idle_within(self->stream, 20000, NULL)) {
            report(false, "rank %d: replay %d does not end", self->rank, turn);
            exit(1);
        }
        if (pattern_wrong_on_gpu(result, BYTES, (uint64_t)(turn * 2 + 2 - self->rank) << 20) != BYTES) {
            if (reported++ < 3)
                report(false, "rank %d: replay %d brought wrong data", self->rank, turn);
            wrong++;
        }
    }
    report(wrong == 0, "rank %d: %d of %d replays brought wrong data", self->rank, wrong, REPLAYS);
}

/* Many launches behind one another, waited for once. */
static void replay_in_a_row(struct gpu_rank *self, gpu_graph_t graph, char *source, char *result)
{
    pattern_to_gpu(source, BYTES, 77 + (uint64_t)self->rank);
    gpu_fill(result, 0x5a, BYTES);
    for (int i = 0; i < 50; i++)
        gpu_graph_launch(graph, self->stream);
    report(stream_idle_within(self->stream, 20000, NULL), "rank %d: 50 replays in a row end", self->rank);
    report(pattern_wrong_on_gpu(result, BYTES, 78 - (uint64_t)self->rank) == BYTES, "rank %d: 50 replays in a row, right data",
           self->rank);
}

/* Memory that a peer cannot map may be sent, and nothing can be received into it; host memory is not captured at all. */
static void refused(struct gpu_rank *self)
{
    struct gpu_vmm hidden = gpu_vmm_alloc_private(self->rank % gpu_count(), BYTES);
    char *pinned = gpu_host_alloc(BYTES), *target = gpu_alloc(BYTES);
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_result_t received, sent;
    gpu_graph_t graph;
    int code;

    pattern_to_gpu(hidden.ptr, BYTES, (uint64_t)(500 + self->rank));
    gpu_capture_begin(self->stream);
    received = pk_recv(hidden.ptr, BYTES, PK_UINT8, 1 - self->rank, self->comm, self->in_stream);
    pk_last_error(&info);
    sent = pk_send(pinned, BYTES, PK_UINT8, 1 - self->rank, self->comm, self->in_stream);
    exchange(self, hidden.ptr, target);
    code = gpu_capture_end(self->stream, &graph);
    report(received == PK_ERR_UNSUPPORTED && strstr(info.text, "cannot be shared") != NULL,
           "rank %d: a captured receive into memory that cannot be shared returned %d: %s", self->rank, (int)received, info.text);
    report(sent == PK_ERR_UNSUPPORTED, "rank %d: a captured send of host memory returned %d", self->rank, (int)sent);
    if (!report(code == 0 && graph != NULL, "rank %d: the capture ended well anyway: %s", self->rank, gpu_error(code)))
        exit(1);
    gpu_graph_launch(graph, self->stream);
    report(stream_idle_within(self->stream, 20000, NULL), "rank %d: the graph runs", self->rank);
    report(pattern_wrong_on_gpu(target, BYTES, (uint64_t)(501 - self->rank)) == BYTES, "rank %d: what was sent from it is right",
           self->rank);
    report(pk_comm_async_error(self->comm) == PK_OK, "rank %d: the communicator is well", self->rank);
    ranks_meet();
    gpu_graph_free(graph);
    gpu_free(target);
    gpu_host_free(pinned);
    gpu_vmm_free(&hidden);
}

static int rank_main(void)
{
    struct gpu_rank self;
    pthread_barrier_t made;
    struct eager eager = { .self = &self, .made = &made };
    char *source, *result;
    gpu_graph_t graph;
    pthread_t thread;

    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    source = gpu_alloc(BYTES);
    result = gpu_alloc(BYTES);
    eager.comm = gpu_rank_another(&self, 60000);
    ranks_meet();
    kernel = spin_kernel();
    ended = gpu_host_alloc(sizeof *ended);
    *ended = 1;
    /* Streams, those of copies too, are made before any waits: to make one may wait for them (docs/design/0024). */
    pattern_to_gpu(source, BYTES, 0);
    if (pthread_barrier_init(&made, NULL, 2) != 0 || pthread_create(&thread, NULL, exchange_eagerly, &eager) != 0)
        abort();
    pthread_barrier_wait(&made);
    graph = capture(&self, source, result);
    replay(&self, graph, source, result);
    replay_in_a_row(&self, graph, source, result);
    pthread_join(thread, NULL);
    report(eager.wrong == 0 && eager.turns == EAGER_TURNS, "rank %d: beside it %d eager exchanges, %d wrong", self.rank,
           eager.turns, eager.wrong);
    pthread_barrier_destroy(&made);
    ranks_meet();
    gpu_graph_free(graph);
    refused(&self);
    ranks_meet();
    must_be_ok(pk_comm_destroy(eager.comm), "pk_comm_destroy");
    gpu_host_free(ended);
    gpu_rank_close(&self);
    return report_end();
}

static void drive(const char *connections)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    ranks_drive(&(struct ranks_turn){ .role = "capture", .size = 2, .timeout_ms = 100000 }, "capture, connections %s",
                connections);
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    drive("8");
    drive("1");
    return report_end();
}

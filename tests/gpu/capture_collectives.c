/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective in CUDA graphs: captured once, replayed with changing data; several collectives in one graph; a
 * group of several GPUs captured by one thread; refused where it cannot be, with the capture intact; the communicator destroyed while the
 * graph still exists; a peer killed while a replay waits for it.
 */
#include <signal.h>

#include "capture_bed.h"

enum { EVENT_NS, WAITING };

/* What one replay does is counted when it is captured, and apart from what has been done. */
static void check_counts(const struct gpu_rank *self, enum operation op, const pk_stats_t *before)
{
    pk_stats_t after = stats_of(self);
    uint64_t copies = after.captured_copies - before->captured_copies,
             kernels = after.captured_kernels - before->captured_kernels;

    if (after.captured_operations != before->captured_operations + 1 || after.captured_steps == before->captured_steps ||
        after.kernels != before->kernels || after.copies != before->copies || after.words != before->words)
        report(false, "rank %d: %s is not counted as captured", self->rank, names[op]);
    /* One kernel; or out of place a block to every other rank, and the own one by a kernel. Waits may be kernels too. */
    if (op == ALLGATHER && (by_plan() ? copies != (uint64_t)self->size - 1 || kernels == 0 : copies != 0 || kernels != 1))
        report(false, "rank %d: a replay of allgather is %llu copies and %llu kernels", self->rank, (unsigned long long)copies,
               (unsigned long long)kernels);
}

static void one(struct bed *bed, enum operation op)
{
    struct gpu_rank *self = &bed->self;
    pk_stats_t before = stats_of(self);
    int root = (int)op % self->size;
    gpu_graph_t graph;

    gpu_capture_begin(self->stream);
    must_be_ok(call(self, op, bed->in, bed->out, root), names[op]);
    graph = end_capture(self, names[op]);
    check_counts(self, op, &before);
    for (int turn = 0; turn < REPLAYS; turn++) {
        prepare(bed, turn);
        ranks_meet(); /* a peer may write as soon as this rank replays */
        gpu_graph_launch(graph, self->stream);
        must_end(self, names[op]);
        verify(bed, op, root, turn);
    }
    ranks_meet();
    gpu_graph_free(graph);
}

/* A step of training: many collectives in one graph, replayed in a row without looking. */
static void many(struct bed *bed)
{
    struct gpu_rank *self = &bed->self;
    gpu_graph_t graph;

    prepare(bed, 3);
    ranks_meet();
    gpu_capture_begin(self->stream);
    for (int i = 0; i < 40; i++) {
        must_be_ok(call(self, ALLREDUCE, bed->in, bed->out, 0), "allreduce of many");
        must_be_ok(call(self, (enum operation)(i % OPERATIONS), bed->in, bed->out, i % self->size), names[i % OPERATIONS]);
    }
    must_be_ok(call(self, ALLTOALL, bed->in, bed->out, 0), "alltoall at the end");
    graph = end_capture(self, "many");
    for (int i = 0; i < 10; i++)
        gpu_graph_launch(graph, self->stream);
    must_end(self, "many");
    verify(bed, ALLTOALL, 0, 3);
    ranks_meet();
    gpu_graph_free(graph);
}

static void refused(struct bed *bed)
{
    struct gpu_rank *self = &bed->self;
    struct gpu_vmm hidden = gpu_vmm_alloc_private(self->rank % gpu_count(), N * sizeof(float));
    float *pinned = gpu_host_alloc(N * sizeof(float)), *other = (float *)(void *)hidden.ptr;
    pk_result_t first, second;
    gpu_graph_t graph;

    gpu_capture_begin(self->stream);
    first = pk_allgather(bed->in, other, N / (size_t)self->size, PK_F32, self->comm, self->in_stream);
    second = pk_broadcast(pinned, pinned, N, PK_F32, 0, self->comm, self->in_stream);
    must_be_ok(call(self, ALLREDUCE, bed->in, bed->out, 0), "allreduce after refused ones");
    graph = end_capture(self, "refused");
    report(first == (by_plan() ? PK_ERR_UNSUPPORTED : PK_OK) && second == PK_ERR_UNSUPPORTED,
           "rank %d: memory that cannot be shared %d (a kernel writes there itself, and no peer), host memory %d", self->rank,
           (int)first, (int)second);
    prepare(bed, 9);
    ranks_meet();
    gpu_graph_launch(graph, self->stream);
    must_end(self, "refused");
    verify(bed, ALLREDUCE, 0, 9);
    ranks_meet();
    gpu_graph_free(graph);
    gpu_vmm_free(&hidden);
    gpu_host_free(pinned);
}

static int rank_main(void)
{
    struct bed bed = { .wrong = 0 };
    gpu_graph_t kept;

    bed_open(&bed);
    for (int op = 0; op < OPERATIONS; op++)
        one(&bed, (enum operation)op);
    many(&bed);
    refused(&bed);
    report(bed.wrong == 0, "rank %d: %d collectives, %d replays each: %u wrong", bed.self.rank, OPERATIONS, REPLAYS, bed.wrong);
    gpu_capture_begin(bed.self.stream);
    must_be_ok(call(&bed.self, ALLREDUCE, bed.in, bed.out, 0), "last allreduce");
    kept = end_capture(&bed.self, "last");
    prepare(&bed, 7);
    ranks_meet();
    gpu_graph_launch(kept, bed.self.stream); /* it may be under way when the communicator goes */
    must_be_ok(pk_comm_destroy(bed.self.comm), "pk_comm_destroy with a graph left");
    must_end(&bed.self, "last");
    verify(&bed, ALLREDUCE, 0, 7);
    report(bed.wrong == 0, "rank %d: a replay that was under way when the communicator was destroyed is right", bed.self.rank);
    gpu_graph_free(kept);
    gpu_free(bed.in);
    gpu_free(bed.out);
    free(bed.host);
    return report_end();
}

/* Rank 0's replays wait for a rank that is killed: all of them are released. */
static int victim_main(void)
{
    struct bed bed = { .wrong = 0 };
    pk_error_info_t info = { .struct_size = sizeof info };
    gpu_graph_t graph;
    double took_ms;

    bed_open(&bed);
    gpu_capture_begin(bed.self.stream);
    must_be_ok(call(&bed.self, ALLREDUCE, bed.in, bed.out, 0), "allreduce");
    graph = end_capture(&bed.self, "victim");
    ranks_meet();
    if (bed.self.rank != 0) {
        atomic_fetch_add(&ranks_shared()->words[WAITING], 1);
        for (;;)
            pause();
    }
    for (int i = 0; i < 5; i++)
        gpu_graph_launch(graph, bed.self.stream);
    report(!stream_idle_within(bed.self.stream, 300, NULL), "rank 0: the replays wait");
    atomic_fetch_add(&ranks_shared()->words[WAITING], 1);
    report(stream_idle_within(bed.self.stream, 10000, &took_ms), "rank 0: released");
    report(pk_comm_async_error(bed.self.comm) == PK_ERR_PEER, "rank 0: the communicator knows");
    pk_last_error(&info);
    report(info.peer == 1, "rank 0: it names rank %d: %.200s", info.peer, info.text);
    for (int i = 0; i < 5; i++)
        gpu_graph_launch(graph, bed.self.stream);
    report(stream_idle_within(bed.self.stream, 10000, &took_ms), "rank 0: replays after the failure end too, in %.0f ms",
           took_ms);
    gpu_graph_free(graph);
    (void)pk_comm_destroy(bed.self.comm);
    return report_end();
}

static void drive(const char *role, int size, int victim)
{
    struct ranks ranks;
    int wrong;

    ranks_open(&ranks, size);
    ranks_start_all(&ranks, role, NULL, NULL);
    for (int i = 0; victim >= 0 && i < 300 && atomic_load(&ranks.shared->words[WAITING]) < 2; i++)
        usleep(100000);
    if (victim >= 0)
        kill(ranks.pids[victim], SIGKILL);
    wrong = ranks_wait(&ranks, 120000, victim);
    report(wrong == 0, "%s, %d ranks: %d failed", role, size, wrong);
    ranks_close(&ranks);
}

static pk_comm_t *other_comms[8];

/* One thread, all GPUs: captured in a group, replayed. */
static int one_thread_main(void)
{
    struct gpu_rank ranks[8];
    int n = gpu_ranks(4);
    float *in[8], *out[8], *host = malloc(N * sizeof(float));
    gpu_stream_t streams[8];
    gpu_graph_t graphs[8];
    pk_unique_id_t id;
    size_t wrong = 0;
    int code;

    must_be_ok(pk_get_unique_id(&id), "pk_get_unique_id");
    for (int r = 0; r < n; r++) {
        pk_comm_config_t config = PK_COMM_CONFIG_INIT;
        pk_result_t result;

        gpu_use(r);
        config.device = PK_DEVICE_CUDA(r);
        config.nonblocking = 1;
        result = pk_comm_init_rank(&other_comms[r], n, r, &id, &config);
        must_be_ok(result == PK_IN_PROGRESS ? PK_OK : result, "pk_comm_init_rank");
        ranks[r] = (struct gpu_rank){ .rank = r, .size = n, .comm = other_comms[r], .stream = gpu_stream_new() };
        ranks[r].in_stream = PK_CUDA_STREAM(ranks[r].stream);
        in[r] = gpu_alloc(N * sizeof(float));
        out[r] = gpu_alloc(N * sizeof(float));
        for (size_t i = 0; i < N; i++)
            host[i] = given(r, 0, i);
        gpu_copy(in[r], host, N * sizeof(float));
    }
    for (int r = 0; r < n; r++)
        while (pk_comm_async_error(other_comms[r]) == PK_IN_PROGRESS)
            usleep(1000);
    for (int r = 0; r < n; r++) {
        gpu_use(r);
        gpu_capture_begin(ranks[r].stream);
        streams[r] = ranks[r].stream;
    }
    must_be_ok(pk_group_start(), "pk_group_start");
    for (int r = 0; r < n; r++)
        must_be_ok(call(&ranks[r], ALLREDUCE, in[r], out[r], 0), "allreduce in a group");
    must_be_ok(pk_group_end(), "pk_group_end");
    code = gpu_capture_end_all(streams, n, graphs);
    if (!report(code == 0, "one thread: the captures ended: %s", gpu_error(code)))
        exit(1);
    for (int turn = 0; turn < 5; turn++)
        for (int r = 0; r < n; r++) {
            gpu_use(r);
            gpu_graph_launch(graphs[r], ranks[r].stream);
        }
    for (int r = 0; r < n; r++) {
        gpu_use(r);
        must_end(&ranks[r], "one thread");
        gpu_copy(host, out[r], N * sizeof(float));
        for (size_t i = 0; i < N; i++)
            wrong += host[i] != total(n, 0, i);
        gpu_graph_free(graphs[r]);
    }
    report(wrong == 0, "one thread drives %d GPUs: a captured group of allreduces, %zu wrong", n, wrong);
    for (int r = 0; r < n; r++)
        must_be_ok(pk_comm_destroy(other_comms[r]), "pk_comm_destroy");
    free(host);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL && strcmp(ranks_role(), "victim") == 0)
        return victim_main();
    if (ranks_role() != NULL && strcmp(ranks_role(), "one thread") == 0)
        return one_thread_main();
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    drive("graphs", 2, -1);
    if (gpu_count() > 2)
        drive("graphs", gpu_ranks(4), -1);
    drive("victim", 2, 1);
    drive("one thread", 1, -1);
    setenv("PK_ALGORITHM", "direct", 1);
    drive("graphs, by plans", 2, -1);
    if (gpu_count() > 2)
        drive("graphs, by plans", gpu_ranks(4), -1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    drive("graphs, by plans, one hardware queue", 2, -1);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    drive("victim", 2, 1);
    drive("one thread", 1, -1);
    return report_end();
}

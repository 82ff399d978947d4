/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs of more than one collective after another: groups, messages of a rank to itself, branches of a graph; captures that are
 * spoiled; a rank that gives up while its replays wait.
 */
#include "capture_bed.h"

/* A group of collectives and an exchange. */
static void grouped(struct bed *bed)
{
    struct gpu_rank *self = &bed->self;
    int next = (self->rank + 1) % self->size, previous = (self->rank + self->size - 1) % self->size;
    gpu_graph_t graph;
    size_t i = 0;

    prepare(bed, 1);
    ranks_meet();
    gpu_capture_begin(self->stream);
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(bed->in, N, PK_F32, next, self->comm, self->in_stream), "pk_send");
    must_be_ok(call(self, BROADCAST, bed->in + N, bed->out + N, 0), "broadcast");
    must_be_ok(pk_recv(bed->out, N, PK_F32, previous, self->comm, self->in_stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
    graph = end_capture(self, "group");
    for (int turn = 0; turn < 3; turn++)
        gpu_graph_launch(graph, self->stream);
    must_end(self, "group");
    gpu_copy(bed->host, bed->out, 2 * N * sizeof(float));
    while (i < 2 * N && bed->host[i] == given(i < N ? previous : 0, 1, i))
        i++;
    report(i == 2 * N, "rank %d: a group of an exchange and a broadcast, captured", self->rank);
    ranks_meet();
    gpu_graph_free(graph);
}

/* Groups in which a rank sends to itself, as an exchange of all with all by messages does. */
static void to_itself(struct bed *bed)
{
    struct gpu_rank *self = &bed->self;
    pk_result_t alone, uneven;
    gpu_graph_t graph;
    size_t i = 0, all = N * (size_t)self->size;

    gpu_capture_begin(self->stream);
    alone = pk_send(bed->in, N, PK_F32, self->rank, self->comm, self->in_stream);
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(bed->in, N, PK_F32, self->rank, self->comm, self->in_stream), "pk_send");
    must_be_ok(pk_recv(bed->out, N - 1, PK_F32, self->rank, self->comm, self->in_stream), "pk_recv");
    uneven = pk_group_end();
    must_be_ok(pk_group_start(), "pk_group_start");
    for (int r = 0; r < self->size; r++) {
        must_be_ok(pk_send(bed->in + (size_t)r * N, N, PK_F32, r, self->comm, self->in_stream), "pk_send");
        must_be_ok(pk_recv(bed->out + (size_t)r * N, N, PK_F32, r, self->comm, self->in_stream), "pk_recv");
    }
    must_be_ok(call(self, BROADCAST, bed->in, bed->out + all, 0), "broadcast");
    must_be_ok(pk_group_end(), "pk_group_end");
    graph = end_capture(self, "to itself");
    report(alone == PK_ERR_UNSUPPORTED && uneven == PK_ERR_MISMATCH,
           "rank %d: a send to itself without its receive returned %d, with a shorter one %d", self->rank, (int)alone,
           (int)uneven);
    prepare(bed, 4);
    ranks_meet();
    gpu_graph_launch(graph, self->stream);
    must_end(self, "to itself");
    gpu_copy(bed->host, bed->out, (all + N) * sizeof(float));
    while (i < all + N &&
           bed->host[i] == (i < all ? given((int)(i / N), 4, (size_t)self->rank * N + i % N) : given(0, 4, i - all)))
        i++;
    report(i == all + N,
           "rank %d: a group of messages to all ranks, itself among them, and a broadcast, captured: right up to %zu of %zu",
           self->rank, i, all + N);
    ranks_meet();
    gpu_graph_free(graph);
}

/* Captures that come to nothing, because of a call that none allows, give back what they had as graphs do that are destroyed. */
static void spoiled(struct bed *bed)
{
    struct gpu_rank *self = &bed->self;
    uint64_t before, after;
    int ended = 0;

    ranks_meet();
    must_be_ok(pk_barrier(self->comm, PK_BLOCKING), "pk_barrier");
    before = stats_of(self).device_bytes;
    for (int i = 0; i < 20; i++) {
        gpu_graph_t graph;

        gpu_capture_begin(self->stream);
        must_be_ok(call(self, ALLREDUCE, bed->in, bed->out, 0), "allreduce");
        (void)gpu_stream_query(self->stream);
        ended += gpu_capture_end(self->stream, &graph) == 0;
    }
    ranks_meet();
    usleep(200000); /* the driver tells of it in a thread of its own */
    must_be_ok(pk_barrier(self->comm, PK_BLOCKING), "pk_barrier");
    after = stats_of(self).device_bytes;
    report(ended == 0 && after <= before,
           "rank %d: 20 spoiled captures, %d ended well; %llu bytes of GPU memory held before, %llu after", self->rank, ended,
           (unsigned long long)before, (unsigned long long)after);
}

/* Two branches of one graph: the communicator's collectives follow one another anyway. */
static void branches(struct bed *bed)
{
    struct gpu_rank *self = &bed->self, beside = *self;
    gpu_event_t fork = gpu_event_new(), join = gpu_event_new();
    gpu_graph_t graph;

    beside.stream = gpu_stream_new();
    beside.in_stream = PK_CUDA_STREAM(beside.stream);
    gpu_capture_begin(self->stream);
    gpu_event_record(fork, self->stream);
    gpu_stream_wait(beside.stream, fork);
    for (int i = 0; i < 8; i++) {
        if (i == 3 || i == 5) { /* this branch comes straight from the other's collective */
            gpu_event_record(fork, self->stream);
            gpu_stream_wait(beside.stream, fork);
        }
        must_be_ok(call(i % 2 == 0 ? self : &beside, i % 4 < 2 ? REDUCE_SCATTER : ALLREDUCE, bed->in, bed->out, 0),
                   "a collective in a branch");
    }
    must_be_ok(call(&beside, ALLTOALL, bed->in, bed->out, 0), "alltoall in a branch");
    gpu_event_record(join, beside.stream);
    gpu_stream_wait(self->stream, join);
    graph = end_capture(self, "branches");
    for (int turn = 0; turn < REPLAYS; turn++) {
        prepare(bed, turn);
        ranks_meet();
        gpu_graph_launch(graph, turn % 2 == 0 ? self->stream : beside.stream);
        gpu_graph_launch(graph, turn % 2 == 0 ? beside.stream : self->stream);
        must_end(self, "branches");
        must_end(&beside, "branches");
        verify(bed, ALLTOALL, 0, turn);
    }
    ranks_meet();
    gpu_graph_free(graph);
    gpu_stream_free(beside.stream);
    gpu_event_free(fork);
    gpu_event_free(join);
}

static int rank_main(void)
{
    struct bed bed = { .wrong = 0 };

    bed_open(&bed);
    grouped(&bed);
    branches(&bed);
    to_itself(&bed);
    spoiled(&bed);
    report(bed.wrong == 0, "rank %d: groups and branches: %u wrong", bed.self.rank, bed.wrong);
    gpu_free(bed.in);
    gpu_free(bed.out);
    free(bed.host);
    gpu_rank_close(&bed.self);
    return report_end();
}

/* Rank 0 gives up while its replays wait, and closes its communicator: when they have ended, or at once. */
static int aborted_main(bool at_once)
{
    struct bed bed = { .wrong = 0 };
    gpu_graph_t graph;
    double took_ms = 0;

    bed_open(&bed);
    gpu_capture_begin(bed.self.stream);
    for (int i = 0; i < 20; i++)
        must_be_ok(call(&bed.self, (enum operation)(i % OPERATIONS), bed.in, bed.out, 0), names[i % OPERATIONS]);
    graph = end_capture(&bed.self, "aborted");
    ranks_meet();
    for (int i = 0; bed.self.rank == 0 && i < 5; i++)
        gpu_graph_launch(graph, bed.self.stream);
    if (bed.self.rank == 0) {
        report(!stream_idle_within(bed.self.stream, 300, NULL), "rank 0: the replays wait");
        must_be_ok(pk_comm_abort(bed.self.comm), "pk_comm_abort");
        if (at_once)
            (void)pk_comm_destroy(bed.self.comm);
        report(stream_idle_within(bed.self.stream, 30000, &took_ms),
               "rank 0: five replays of 20 collectives end %.0f ms after the abort%s", took_ms, at_once ? " and the close" : "");
    }
    ranks_meet();
    gpu_graph_free(graph);
    if (bed.self.rank != 0 || !at_once)
        (void)pk_comm_destroy(bed.self.comm);
    free(bed.host);
    return report_end();
}

static void drive(const char *role, int size)
{
    ranks_drive(&(struct ranks_turn){ .role = role, .size = size, .timeout_ms = 120000 }, "%s, %d ranks, %s", role, size,
                by_plan() ? "by plans" : "short collectives by one kernel");
}

static void drive_all(void)
{
    drive("groups", 2);
    if (gpu_count() > 2)
        drive("groups", gpu_ranks(4));
    drive("aborted", 2);
    drive("closed", 2);
}

int main(void)
{
    if (ranks_role() != NULL && strcmp(ranks_role(), "aborted") == 0)
        return aborted_main(false);
    if (ranks_role() != NULL && strcmp(ranks_role(), "closed") == 0)
        return aborted_main(true);
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    drive_all();
    setenv("PK_ALGORITHM", "direct", 1);
    drive_all();
    return report_end();
}

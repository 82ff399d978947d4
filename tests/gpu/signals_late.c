/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A receive waits for a peer that posts late, while eight other streams work: they must go on as if nothing were pending, whatever
 * CUDA_DEVICE_MAX_CONNECTIONS is. Argument: seconds that the peer is late; it stays away longer until each stream has done enough.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define STREAMS 8
#define BYTES ((size_t)4 << 20)
#define LOCAL_BYTES ((size_t)256 << 10)
#define ENOUGH_BATCHES 20
#define GIVE_UP_MS 20000 /* the streams stand still: send anyway */

/* Words of the shared memory. */
enum { LATE_MS, ENOUGH, SENDING };

/* A stream that computes: one batch of a kernel, a local copy and an event at a time. */
struct worker {
    gpu_stream_t stream;
    gpu_event_t event;
    char *from, *to;
    double last_ms, gap_ms;
    unsigned batches;
};

static void submit(struct worker *w, gpu_kernel_t kernel, uint32_t *open_flag)
{
    spin_launch(kernel, 1, 32, open_flag, w->stream);
    gpu_copy_async(w->to, w->from, LOCAL_BYTES, w->stream);
    gpu_event_record(w->event, w->stream);
}

static void note_gap(struct worker *w)
{
    double now = monotonic_ms();

    if (now - w->last_ms > w->gap_ms)
        w->gap_ms = now - w->last_ms;
}

/* Batches that each of them has done before the peer sends. */
static unsigned least_batches(const struct worker *workers)
{
    unsigned least = workers[0].batches;

    for (int i = 1; i < STREAMS; i++)
        if (workers[i].batches < least)
            least = workers[i].batches;
    return least;
}

/* Keep all workers busy for a time, or until `until` is idle. */
static void work(struct worker *workers, gpu_kernel_t kernel, uint32_t *open_flag, double for_ms, gpu_stream_t until)
{
    double begin = monotonic_ms();

    for (int i = 0; i < STREAMS; i++) {
        workers[i].last_ms = begin;
        workers[i].gap_ms = 0;
        workers[i].batches = 0;
        submit(&workers[i], kernel, open_flag);
    }
    while (monotonic_ms() - begin < for_ms && (until == NULL || gpu_stream_query(until) == GPU_NOT_READY)) {
        for (int i = 0; i < STREAMS; i++) {
            if (gpu_event_query(workers[i].event) != 0)
                continue;
            note_gap(&workers[i]);
            workers[i].last_ms = monotonic_ms();
            workers[i].batches += atomic_load(&ranks_shared()->words[SENDING]) == 0;
            submit(&workers[i], kernel, open_flag);
        }
        if (until != NULL && least_batches(workers) >= ENOUGH_BATCHES)
            atomic_store(&ranks_shared()->words[ENOUGH], 1);
    }
    for (int i = 0; i < STREAMS; i++)
        note_gap(&workers[i]); /* a batch that never ended */
}

static double worst_gap(const struct worker *workers)
{
    double worst = 0;

    for (int i = 0; i < STREAMS; i++)
        if (workers[i].gap_ms > worst)
            worst = workers[i].gap_ms;
    return worst;
}

static void open_workers(struct worker *workers, gpu_kernel_t kernel, uint32_t *open_flag)
{
    for (int i = 0; i < STREAMS; i++) {
        workers[i].stream = gpu_stream_new();
        workers[i].event = gpu_event_new();
        workers[i].from = gpu_alloc(LOCAL_BYTES);
        workers[i].to = gpu_alloc(LOCAL_BYTES);
    }
    work(workers, kernel, open_flag, 200, NULL); /* everything has been used once */
}

static void receive_late(struct gpu_rank *self, double late_ms)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    struct worker workers[STREAMS];
    gpu_kernel_t kernel = spin_kernel();
    uint32_t *open_flag = gpu_host_alloc(sizeof *open_flag);
    char *buffer = gpu_alloc(BYTES);
    pk_stats_t stats = { .struct_size = sizeof stats };
    double begin;

    *open_flag = 1;
    memset(workers, 0, sizeof workers);
    open_workers(workers, kernel, open_flag);
    work(workers, kernel, open_flag, 500, NULL);
    printf("INFO connections %s: alone %u batches in 500 ms, worst gap %.1f ms\n", connections, least_batches(workers),
           worst_gap(workers));
    ranks_meet();
    begin = monotonic_ms();
    must_be_ok(pk_recv(buffer, BYTES, PK_UINT8, 1, self->comm, self->in_stream), "pk_recv");
    report(atomic_load(&ranks_shared()->words[SENDING]) == 0, "connections %s: pk_recv returned after %.2f ms", connections,
           monotonic_ms() - begin);
    work(workers, kernel, open_flag, late_ms + 2 * GIVE_UP_MS, self->stream);
    report(least_batches(workers) >= ENOUGH_BATCHES && (gpu_is_software() || worst_gap(workers) < late_ms / 2),
           "connections %s: beside a pending receive %u batches, worst gap %.1f ms", connections, least_batches(workers),
           worst_gap(workers));
    report(monotonic_ms() - begin > late_ms * 0.9, "connections %s: the receive ended after %.0f ms, not before the send",
           connections, monotonic_ms() - begin);
    report(stream_idle_within(self->stream, 5000, NULL), "connections %s: the receive ended", connections);
    report(pattern_wrong_on_gpu(buffer, BYTES, 7) == BYTES, "connections %s: the data is right", connections);
    must_be_ok(pk_comm_stats(self->comm, &stats), "pk_comm_stats");
    printf("INFO connections %s: at most %llu stream waits, %llu kernels\n", connections, (unsigned long long)stats.waits_max,
           (unsigned long long)stats.kernels);
}

static void send_late(struct gpu_rank *self, double late_ms)
{
    struct ranks_shared *shared = ranks_shared();
    char *buffer = gpu_alloc(BYTES);
    double begin;

    pattern_to_gpu(buffer, BYTES, 7);
    ranks_meet();
    begin = monotonic_ms();
    usleep((useconds_t)(late_ms * 1000));
    while (atomic_load(&shared->words[ENOUGH]) == 0 && monotonic_ms() - begin < GIVE_UP_MS)
        usleep(1000);
    atomic_store(&shared->words[SENDING], 1);
    must_be_ok(pk_send(buffer, BYTES, PK_UINT8, 0, self->comm, self->in_stream), "pk_send");
    report(stream_idle_within(self->stream, 20000, NULL), "the late send ended");
}

static int rank_main(void)
{
    struct gpu_rank self;
    double late_ms = (double)atomic_load(&ranks_shared()->words[LATE_MS]);

    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    if (self.rank == 0)
        receive_late(&self, late_ms);
    else
        send_late(&self, late_ms);
    gpu_rank_close(&self);
    return report_end();
}

static void drive(const char *connections, double late_s)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    ranks_drive(
        &(struct ranks_turn){
            .role = "late", .size = 2, .timeout_ms = (int)(late_s * 1000 + 60000), .word = (int64_t)(late_s * 1000) },
        "connections %s", connections);
}

int main(int argc, char **argv)
{
    double late_s;

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    late_s = argc > 1 ? atof(argv[1]) : gpu_is_software() ? 1 : 5;
    drive("1", late_s);
    drive("2", late_s);
    drive("8", late_s);
    return report_end();
}

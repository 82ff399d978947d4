/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of a rank to itself in CUDA streams, while the threads of the library stand still: both ends in one call or in two, in one
 * stream or in two, the send called first or the receive. What a kernel of the program holds in one stream waits in the other.
 */
#include <stdio.h>

#include "gpu_rank.h"
#include "own_threads.h"

#define LIMIT_MS 30000
#define MANY 30

static const size_t lengths[] = { 1, 4096, (size_t)4 << 20 };

enum way { GROUP, SEND_FIRST, RECV_FIRST, WAYS };

static const char *const way_names[] = { "in one group", "the send first", "the receive first" };

struct bed {
    struct gpu_rank self;
    gpu_stream_t other;
    uint32_t *go;
    gpu_kernel_t spin;
    char *from, *to;
};

static void call(struct bed *bed, bool sends, size_t bytes, gpu_stream_t stream)
{
    const struct gpu_rank *self = &bed->self;

    if (sends)
        must_be_ok(pk_send(bed->from, bytes, PK_UINT8, self->rank, self->comm, PK_CUDA_STREAM(stream)), "pk_send to itself");
    else
        must_be_ok(pk_recv(bed->to, bytes, PK_UINT8, self->rank, self->comm, PK_CUDA_STREAM(stream)), "pk_recv of itself");
}

static void call_both(struct bed *bed, enum way way, size_t bytes, gpu_stream_t second)
{
    if (way == GROUP)
        must_be_ok(pk_group_start(), "pk_group_start");
    call(bed, way != RECV_FIRST, bytes, bed->self.stream);
    call(bed, way == RECV_FIRST, bytes, second);
    if (way == GROUP)
        must_be_ok(pk_group_end(), "pk_group_end");
}

static bool ends_right(struct bed *bed, size_t bytes, uint64_t turn)
{
    return stream_idle_within(bed->self.stream, LIMIT_MS, NULL) && stream_idle_within(bed->other, LIMIT_MS, NULL) &&
           pattern_wrong_on_gpu(bed->to, bytes, turn) == bytes;
}

static void one(struct bed *bed, enum way way, size_t bytes, gpu_stream_t second, const char *streams)
{
    bool right = true;

    for (uint64_t turn = 0; turn < MANY && right; turn++) {
        pattern_to_gpu(bed->from, bytes, turn);
        call_both(bed, way, bytes, second);
        right = ends_right(bed, bytes, turn);
    }
    report(right, "%zu bytes, %s, %s", bytes, way_names[way], streams);
}

static void held(struct bed *bed, enum way way, size_t bytes)
{
    bool right;

    *bed->go = 0;
    pattern_to_gpu(bed->from, bytes, MANY + 1);
    gpu_fill(bed->to, 0x5a, bytes);
    spin_launch(bed->spin, 1, 32, bed->go, bed->self.stream);
    call_both(bed, way, bytes, bed->other);
    right = !stream_idle_within(bed->other, 50, NULL);
    *(volatile uint32_t *)bed->go = 1;
    right = ends_right(bed, bytes, MANY + 1) && right;
    report(right, "%zu bytes, %s, the first stream is held", bytes, way_names[way]);
}

static int rank_main(void)
{
    struct bed bed;

    gpu_rank_open(&bed.self, PK_SM_DEFAULT, LIMIT_MS);
    bed.other = gpu_stream_new();
    bed.go = gpu_host_alloc(sizeof *bed.go);
    bed.spin = spin_kernel();
    bed.from = gpu_alloc(lengths[2]);
    bed.to = gpu_alloc(lengths[2]);
    one(&bed, GROUP, lengths[1], bed.self.stream, "one stream, the first messages of all");
    report(own_threads_stop() > 0, "the threads of the library stand still");
    for (enum way way = GROUP; way < WAYS; way++)
        for (int i = 0; i < 3; i++) {
            if (way == GROUP) /* else the stream would wait for what is called behind it */
                one(&bed, way, lengths[i], bed.self.stream, "one stream");
            one(&bed, way, lengths[i], bed.other, "two streams");
            held(&bed, way, lengths[i]);
        }
    own_threads_go();
    gpu_rank_close(&bed.self);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "self", 120000, "messages to oneself");
}

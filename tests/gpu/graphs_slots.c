/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs with messages that come and go, one at a time, while other messages go outside of graphs: more of them than a pair has
 * signal slots.
 */
#include <unistd.h>

#include "gpu_rank.h"

#define BYTES ((size_t)256 << 10)
#define ROUNDS 1200 /* a pair has 1,024 */

static void exchange(struct gpu_rank *self, char *from, char *to, pk_stream_t stream)
{
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(from, BYTES, PK_UINT8, 1 - self->rank, self->comm, stream), "pk_send");
    must_be_ok(pk_recv(to, BYTES, PK_UINT8, 1 - self->rank, self->comm, stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
}

static int rank_main(void)
{
    struct gpu_rank self;
    char *from, *to;
    bool right = true;

    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    from = gpu_alloc(BYTES);
    to = gpu_alloc(BYTES);
    pattern_to_gpu(from, BYTES, (uint64_t)self.rank);
    for (int i = 0; i < ROUNDS && right; i++) {
        gpu_graph_t graph;

        gpu_capture_begin(self.stream);
        exchange(&self, from, to, self.in_stream);
        right = gpu_capture_end(self.stream, &graph) == 0;
        if (right)
            gpu_graph_launch(graph, self.stream);
        right = right && stream_idle_within(self.stream, 60000, NULL);
        gpu_graph_free(graph);
        usleep(1000); /* the driver tells of it in a thread of its own */
        exchange(&self, from, to, PK_BLOCKING);
    }
    right = right && pattern_wrong_on_gpu(to, BYTES, (uint64_t)(1 - self.rank)) == BYTES;
    report(right, "rank %d: %d graphs one after another, with other messages between them", self.rank, ROUNDS);
    gpu_free(from);
    gpu_free(to);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "graphs_slots", 120000, "graphs that come and go between messages");
}

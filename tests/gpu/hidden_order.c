/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives into memory that no other process can map, in one stream, behind one whose sender is late: pieces of those that come first
 * keep no slot of the host, of which the late one's bytes need some.
 */
#include <stdlib.h>
#include <unistd.h>

#include "gpu_rank.h"
#include "gpu_vmm.h"

#define RANKS 3
#define BYTES ((size_t)8 << 20) /* two of them fill all slots */
#define LATE_US 300000

enum { RECEIVER, LATE, EARLY };

static uint64_t key_of(int from, int message)
{
    return (uint64_t)from * 8 + (uint64_t)message;
}

static void receive_all(struct gpu_rank *self)
{
    struct gpu_vmm memory = gpu_vmm_alloc_private(self->rank % gpu_count(), RANKS * BYTES);
    static const int from[RANKS] = { LATE, EARLY, EARLY };

    for (int i = 0; i < RANKS; i++)
        must_be_ok(pk_recv(memory.ptr + (size_t)i * BYTES, BYTES, PK_UINT8, from[i], self->comm, self->in_stream), "pk_recv");
    if (!report(stream_idle_within(self->stream, 30000, NULL), "the stream has ended"))
        gpu_show_pending(self->comm);
    for (int i = 0; i < RANKS; i++)
        report(pattern_wrong_on_gpu(memory.ptr + (size_t)i * BYTES, BYTES, key_of(from[i], i)) == BYTES, "message %d is right",
               i);
    ranks_meet();
    gpu_vmm_free(&memory);
}

static void send_all(struct gpu_rank *self)
{
    char *memory = gpu_alloc(RANKS * BYTES);
    const int first = self->rank == LATE ? 0 : 1, last = self->rank == LATE ? 0 : RANKS - 1;

    if (self->rank == LATE)
        usleep(LATE_US);
    for (int i = first; i <= last; i++) {
        pattern_to_gpu(memory + (size_t)i * BYTES, BYTES, key_of(self->rank, i));
        must_be_ok(pk_send(memory + (size_t)i * BYTES, BYTES, PK_UINT8, RECEIVER, self->comm, self->in_stream), "pk_send");
    }
    report(stream_idle_within(self->stream, 30000, NULL), "rank %d: the stream has ended", self->rank);
    ranks_meet();
    gpu_free(memory);
}

int main(void)
{
    struct gpu_rank self;

    if (ranks_role() == NULL) {
        if (!gpu_enough(2))
            return GPU_SKIPPED;
        ranks_drive(&(struct ranks_turn){ .role = "hidden", .size = RANKS, .timeout_ms = 60000 },
                    "hidden memory behind a late sender");
        return report_end();
    }
    gpu_rank_open(&self, PK_SM_DEFAULT, 20000);
    if (self.rank == RECEIVER)
        receive_all(&self);
    else
        send_all(&self);
    gpu_rank_close(&self);
    return report_end();
}

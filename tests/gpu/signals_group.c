/* SPDX-License-Identifier: Apache-2.0 */
/* As many operations in CUDA streams as a group has room for; one more is refused with words, nothing of it happens, and all goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

#define ROOM 512 /* p2p.h */
#define BYTES ((size_t)256)

static pk_result_t exchange(const struct gpu_rank *self, char *buffer, int n)
{
    must_be_ok(pk_group_start(), "pk_group_start");
    for (int i = 0; i < n; i++) {
        char *place = buffer + (size_t)i * BYTES;

        if (self->rank == 0)
            must_be_ok(pk_send(place, BYTES, PK_UINT8, 1, self->comm, self->in_stream), "pk_send");
        else
            must_be_ok(pk_recv(place, BYTES, PK_UINT8, 0, self->comm, self->in_stream), "pk_recv");
    }
    return pk_group_end();
}

static void whole(struct gpu_rank *self, char *buffer, uint64_t turn)
{
    size_t bytes = ROOM * BYTES;
    pk_result_t result;

    if (self->rank == 0)
        pattern_to_gpu(buffer, bytes, turn);
    else
        gpu_fill(buffer, 0x5a, bytes);
    ranks_meet();
    result = exchange(self, buffer, ROOM);
    must_be_ok(result, "a group of 512");
    report(stream_idle_within(self->stream, 30000, NULL), "rank %d: the group has ended", self->rank);
    report(pattern_wrong_on_gpu(buffer, bytes, turn) == bytes, "rank %d: turn %d: what came is right", self->rank, (int)turn);
}

static int rank_main(void)
{
    pk_error_info_t info = { .struct_size = sizeof info };
    struct gpu_rank self;
    char *buffer;
    pk_result_t result;

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    buffer = gpu_alloc((ROOM + 1) * BYTES);
    whole(&self, buffer, 1);
    result = exchange(&self, buffer, ROOM + 1);
    pk_last_error(&info);
    report(result == PK_ERR_UNSUPPORTED, "rank %d: a group of %d: %d", self.rank, ROOM + 1, (int)result);
    report(strstr(info.text, "512") != NULL, "rank %d: it says how many: %s", self.rank, info.text);
    report(stream_idle_within(self.stream, 1000, NULL), "rank %d: nothing of it is in the stream", self.rank);
    whole(&self, buffer, 2);
    gpu_free(buffer);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "group", 90000, "large groups");
}

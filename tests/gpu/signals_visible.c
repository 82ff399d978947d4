/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank sees nothing but its own GPU (CUDA_VISIBLE_DEVICES, as launchers set it), which is number 0 to each: all operations work. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

#define BYTES ((size_t)3 << 20)

static void see_one(int rank, void *arg)
{
    char text[16];

    (void)arg;
    snprintf(text, sizeof text, "%d", rank);
    setenv("CUDA_VISIBLE_DEVICES", text, 1);
}

static void see_all(int rank, void *arg)
{
    const char *before = arg;

    (void)rank;
    if (before != NULL)
        setenv("CUDA_VISIBLE_DEVICES", before, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
}

static bool finished(struct gpu_rank *self, const char *what)
{
    bool idle = stream_idle_within(self->stream, 20000, NULL);

    must_be_ok(pk_comm_async_error(self->comm), what);
    return idle;
}

static void ring(struct gpu_rank *self, char *source, char *result)
{
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;

    pattern_to_gpu(source, BYTES, 10 + (uint64_t)self->rank);
    gpu_fill(result, 0x5a, BYTES);
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(source, BYTES, PK_UINT8, next, self->comm, self->in_stream), "pk_send");
    must_be_ok(pk_recv(result, BYTES, PK_UINT8, previous, self->comm, self->in_stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
    report(finished(self, "ring") && pattern_wrong_on_gpu(result, BYTES, 10 + (uint64_t)previous) == BYTES,
           "rank %d: send and receive", self->rank);
}

static void allgather(struct gpu_rank *self, char *source, char *result, bool in_place)
{
    char *from = in_place ? result + (size_t)self->rank * BYTES : source;
    int wrong = 0;

    gpu_fill(result, 0x5a, BYTES * (size_t)self->size);
    pattern_to_gpu(from, BYTES, 20 + (uint64_t)self->rank);
    must_be_ok(pk_allgather(from, result, BYTES, PK_UINT8, self->comm, self->in_stream), "pk_allgather");
    report(finished(self, "allgather"), "rank %d: allgather ends", self->rank);
    for (int r = 0; r < self->size; r++)
        wrong += pattern_wrong_on_gpu(result + (size_t)r * BYTES, BYTES, 20 + (uint64_t)r) != BYTES;
    report(wrong == 0, "rank %d: allgather %s: %d parts are wrong", self->rank, in_place ? "in place" : "out of place", wrong);
}

static void allreduce(struct gpu_rank *self, char *source, char *result)
{
    size_t count = BYTES / sizeof(float);
    float *host = malloc(BYTES);
    size_t wrong = 0;

    if (host == NULL)
        abort();
    for (size_t i = 0; i < count; i++)
        host[i] = (float)(i % 1000) + (float)self->rank;
    gpu_copy(source, host, BYTES);
    must_be_ok(pk_allreduce(source, result, count, PK_F32, PK_SUM, self->comm, self->in_stream), "pk_allreduce");
    report(finished(self, "allreduce"), "rank %d: allreduce ends", self->rank);
    gpu_copy(host, result, BYTES);
    for (size_t i = 0; i < count; i++)
        wrong += host[i] != (float)(i % 1000) * (float)self->size + (float)(self->size * (self->size - 1) / 2);
    report(wrong == 0, "rank %d: allreduce: %zu of %zu sums are wrong", self->rank, wrong, count);
    free(host);
}

static int rank_main(void)
{
    struct gpu_rank self;
    char *source, *result;
    pk_path_t path = { .struct_size = sizeof path };

    report(gpu_count() == 1, "rank %d sees %d GPUs", ranks_rank(), gpu_count());
    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    must_be_ok(pk_comm_path(self.comm, (self.rank + 1) % self.size, PK_MEM_DEVICE, PK_MEM_DEVICE, &path), "pk_comm_path");
    printf("INFO rank %d: %s (%s): %s\n", self.rank, path.transport, path.device, path.reason);
    source = gpu_alloc(BYTES);
    result = gpu_alloc(BYTES * (size_t)self.size);
    ring(&self, source, result);
    allgather(&self, source, result, true);
    allgather(&self, source, result, false);
    allreduce(&self, source, result);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    const struct ranks_hooks hooks = { see_one, see_all, getenv("CUDA_VISIBLE_DEVICES") };

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "visible", .size = gpu_ranks(8), .hooks = &hooks }, "ranks that see one GPU each");
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Right bytes at every power of two and its odd neighbours, from nothing to `max`: send and receive in a ring, allgather in place,
 * allreduce. Arguments: max bytes of a message (default 1 GiB), number of ranks (default: all GPUs).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

#define GUARD_BYTES 512
#define GUARD 0xa5

enum { MAX_BYTES };

struct bed {
    struct gpu_rank self;
    size_t max;
    char *source, *result; /* max, and size * max, guards behind */
    unsigned wrong, done;
};

static void fail_at(struct bed *bed, const char *what, size_t bytes, const char *why)
{
    bed->wrong++;
    report(false, "rank %d: %s of %zu bytes: %s", bed->self.rank, what, bytes, why);
}

static bool finished(struct bed *bed, const char *what, size_t bytes)
{
    if (!stream_idle_within(bed->self.stream, 30000, NULL)) {
        fail_at(bed, what, bytes, "does not end");
        exit(1);
    }
    must_be_ok(pk_comm_async_error(bed->self.comm), what);
    bed->done++;
    return true;
}

static void check_guard(struct bed *bed, const char *what, size_t bytes, const char *end)
{
    unsigned char guard[GUARD_BYTES];

    gpu_copy(guard, end, sizeof guard);
    for (size_t i = 0; i < sizeof guard; i++) {
        if (guard[i] != GUARD) {
            fail_at(bed, what, bytes, "bytes behind the buffer were written");
            return;
        }
    }
}

static void ring(struct bed *bed, size_t bytes)
{
    struct gpu_rank *self = &bed->self;
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;

    pattern_to_gpu(bed->source, bytes, bytes * 31 + (uint64_t)self->rank);
    gpu_fill(bed->result, 0x5a, bytes);
    gpu_fill(bed->result + bytes, GUARD, GUARD_BYTES);
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(bed->source, bytes, PK_UINT8, next, self->comm, self->in_stream), "pk_send");
    must_be_ok(pk_recv(bed->result, bytes, PK_UINT8, previous, self->comm, self->in_stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
    finished(bed, "ring", bytes);
    if (pattern_wrong_on_gpu(bed->result, bytes, bytes * 31 + (uint64_t)previous) != bytes)
        fail_at(bed, "ring", bytes, "the data is wrong");
    check_guard(bed, "ring", bytes, bed->result + bytes);
}

static void allgather(struct bed *bed, size_t bytes)
{
    struct gpu_rank *self = &bed->self;
    size_t total = bytes * (size_t)self->size;
    char *own = bed->result + bytes * (size_t)self->rank;

    gpu_fill(bed->result, 0x5a, total);
    gpu_fill(bed->result + total, GUARD, GUARD_BYTES);
    pattern_to_gpu(own, bytes, bytes * 37 + (uint64_t)self->rank);
    must_be_ok(pk_allgather(own, bed->result, bytes, PK_UINT8, self->comm, self->in_stream), "pk_allgather");
    finished(bed, "allgather", bytes);
    for (int r = 0; r < self->size; r++)
        if (pattern_wrong_on_gpu(bed->result + bytes * (size_t)r, bytes, bytes * 37 + (uint64_t)r) != bytes)
            fail_at(bed, "allgather", bytes, "a part is wrong");
    check_guard(bed, "allgather", bytes, bed->result + total);
}

/* Whole numbers below 64: exact whatever the order of additions. */
static float number(size_t i, int rank)
{
    return (float)((i * 7 + (size_t)rank * 13) % 64);
}

static bool sums_right(const float *host, size_t count, int size)
{
    for (size_t i = 0; i < count; i++) {
        float sum = 0;

        for (int r = 0; r < size; r++)
            sum += number(i, r);
        if (host[i] != sum)
            return false;
    }
    return true;
}

static void allreduce(struct bed *bed, size_t bytes)
{
    struct gpu_rank *self = &bed->self;
    size_t count = bytes / sizeof(float);
    float *host = malloc(bytes + sizeof(float));

    bytes = count * sizeof(float);
    if (host == NULL)
        abort();
    for (size_t i = 0; i < count; i++)
        host[i] = number(i, self->rank);
    gpu_copy(bed->source, host, bytes);
    gpu_fill(bed->result, 0x5a, bytes);
    gpu_fill(bed->result + bytes, GUARD, GUARD_BYTES);
    must_be_ok(pk_allreduce(bed->source, bed->result, count, PK_F32, PK_SUM, self->comm, self->in_stream), "pk_allreduce");
    finished(bed, "allreduce", bytes);
    gpu_copy(host, bed->result, bytes);
    if (!sums_right(host, count, self->size))
        fail_at(bed, "allreduce", bytes, "a sum is wrong");
    check_guard(bed, "allreduce", bytes, bed->result + bytes);
    free(host);
}

static void all_operations(struct bed *bed, size_t bytes)
{
    if (bytes > bed->max)
        return;
    ring(bed, bytes);
    allgather(bed, bytes);
    allreduce(bed, bytes);
}

static int rank_main(void)
{
    struct bed bed = { .max = (size_t)atomic_load(&ranks_shared()->words[MAX_BYTES]) };

    gpu_rank_open(&bed.self, PK_SM_DEFAULT, 60000);
    bed.source = gpu_alloc(bed.max + GUARD_BYTES);
    bed.result = gpu_alloc(bed.max * (size_t)bed.self.size + GUARD_BYTES);
    all_operations(&bed, 0);
    all_operations(&bed, 1);
    for (size_t bytes = 2; bytes <= bed.max; bytes *= 2) {
        all_operations(&bed, bytes - 1);
        all_operations(&bed, bytes);
        all_operations(&bed, bytes + 1);
        if (bed.wrong > 20)
            break;
    }
    report(bed.wrong == 0, "rank %d: %u operations up to %zu bytes, %u wrong", bed.self.rank, bed.done, bed.max, bed.wrong);
    gpu_rank_close(&bed.self);
    return report_end();
}

int main(int argc, char **argv)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "sizes",
                                      .size = argc > 2 ? atoi(argv[2]) : gpu_ranks(8),
                                      .timeout_ms = 250000,
                                      .word = argc > 1            ? atoll(argv[1])
                                              : gpu_is_software() ? 2 << 20
                                                                  : 1 << 30 },
                "all sizes");
    return report_end();
}

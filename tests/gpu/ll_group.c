/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency messages of groups: up to 130 of all lengths in one stream, both ways, more than the receiver has room for among them, host memory
 * here and there. Short ones of a group are one launch at either end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define LATE_US 2000
#define ROUNDS 60
#define MOST 130
#define LONGEST ((size_t)512 << 10)

struct message {
    size_t bytes;
    bool sends, on_host;
    char *buffer;
};

static char *device, *host;

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static size_t draw_bytes(uint32_t *state, int n)
{
    static const size_t lengths[] = { 1, 8, 500, 4096, 4096, 10000, 65536, LONGEST, LONGEST + 1 };
    size_t bytes = lengths[next(state) % (sizeof lengths / sizeof lengths[0])];

    return n > 40 && bytes > 4096 && next(state) % 8 != 0 ? 4096 : bytes;
}

static void begin(struct message *m, int i, int round)
{
    uint64_t key = (uint64_t)(round * MOST + i + 1);

    m->buffer = (m->on_host ? host : device) + (size_t)i * (LONGEST + 64);
    if (m->sends && m->on_host)
        pattern_fill(m->buffer, m->bytes, key);
    else if (m->sends)
        pattern_to_gpu(m->buffer, m->bytes, key);
    else if (m->on_host)
        memset(m->buffer, 0x5a, m->bytes);
    else
        gpu_fill(m->buffer, 0x5a, m->bytes);
}

static void post(const struct gpu_rank *self, const struct message *all, int n)
{
    must_be_ok(pk_group_start(), "pk_group_start");
    for (int i = 0; i < n; i++) {
        if (all[i].sends)
            must_be_ok(pk_send(all[i].buffer, all[i].bytes, PK_UINT8, 1 - self->rank, self->comm, self->in_stream), "pk_send");
        else
            must_be_ok(pk_recv(all[i].buffer, all[i].bytes, PK_UINT8, 1 - self->rank, self->comm, self->in_stream), "pk_recv");
    }
    must_be_ok(pk_group_end(), "pk_group_end");
}

static bool is_right(const struct message *m, int i, int round)
{
    uint64_t key = (uint64_t)(round * MOST + i + 1);

    if (m->sends)
        return true;
    return (m->on_host ? pattern_wrong(m->buffer, m->bytes, key) : pattern_wrong_on_gpu(m->buffer, m->bytes, key)) == m->bytes;
}

static int round_once(const struct gpu_rank *self, int round)
{
    uint32_t common = (uint32_t)round * 2654435761u, own = common ^ (uint32_t)(self->rank * 7919 + 1);
    int n = round % 3 == 0 ? MOST : 1 + (int)(next(&common) % 20), wrong = 0;
    uint32_t pattern = next(&common) % 3; /* one way, the other, both ways */
    struct message all[MOST];

    for (int i = 0; i < n; i++) {
        all[i].bytes = draw_bytes(&common, n);
        all[i].sends = (pattern == 2 ? (int)(next(&common) % 2) : (int)pattern) == self->rank;
        all[i].on_host = round % 2 == 1 && next(&own) % 8 == 0;
        begin(&all[i], i, round);
    }
    if (next(&own) % 4 == 0)
        usleep(next(&own) % 500);
    post(self, all, n);
    if (!stream_idle_within(self->stream, 20000, NULL)) {
        report(false, "rank %d: round %d of %d messages does not end", self->rank, round, n);
        exit(1);
    }
    for (int i = 0; i < n; i++)
        wrong += !is_right(&all[i], i, round);
    return wrong;
}

/* Both are in the stream before either begins, so the sender finds its grants, in turns in which it comes late however busy the machine. */
static void count_launches(const struct gpu_rank *self)
{
    pk_stats_t before = { .struct_size = sizeof before }, after = before;
    struct message all[64];
    uint64_t least = UINT64_MAX;

    for (int turn = 0; turn < 10; turn++) {
        for (int i = 0; i < 64; i++) {
            all[i] = (struct message){ .bytes = 4096, .sends = self->rank == 0 };
            begin(&all[i], i, turn);
        }
        must_be_ok(pk_comm_stats(self->comm, &before), "pk_comm_stats");
        ranks_meet();
        if (turn % 2 == self->rank)
            usleep(LATE_US);
        post(self, all, 64);
        report(stream_idle_within(self->stream, 20000, NULL), "rank %d: turn %d: 64 messages have come", self->rank, turn);
        must_be_ok(pk_comm_stats(self->comm, &after), "pk_comm_stats");
        if (after.kernels - before.kernels < least)
            least = after.kernels - before.kernels;
        ranks_meet();
    }
    report(least == 1, "rank %d: 64 messages of 4 KiB in a group took %llu launches at least", self->rank,
           (unsigned long long)least);
}

static int rank_main(void)
{
    struct gpu_rank self;
    int wrong = 0;

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    device = gpu_alloc(MOST * (LONGEST + 64));
    host = malloc(MOST * (LONGEST + 64));
    if (host == NULL)
        return 2;
    for (int round = 0; round < ROUNDS; round++) {
        wrong += round_once(&self, round);
        ranks_meet();
    }
    report(wrong == 0, "rank %d: %d messages are wrong", self.rank, wrong);
    count_launches(&self);
    free(host);
    gpu_free(device);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "ll_group", 120000, "groups of low-latency messages");
}

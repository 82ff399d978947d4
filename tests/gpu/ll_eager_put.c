/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency messages in rows of one length, posted ahead, and everything that breaks a row: another length, host memory at either end,
 * another stream, blocking calls, a receiver that runs ahead and one that is behind; at last lengths that disagree.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define ROUNDS 200
#define DEPTH 12 /* messages of a round, none waited for before the last is posted, if streams take them */
#define LONGEST ((size_t)64 << 10)
#define STREAMS 2

struct message {
    size_t bytes;
    bool sends, on_host;
    uint64_t key;
    char *buffer;
};

static char *device[DEPTH], *host[DEPTH];
static gpu_stream_t streams[STREAMS];

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static size_t draw_bytes(uint32_t *common)
{
    static const size_t lengths[] = { 8, 4096, 4096, 10000, 32768, LONGEST };

    return lengths[next(common) % (sizeof lengths / sizeof lengths[0])];
}

static void begin(const struct gpu_rank *self, struct message *m, int i, bool odd, uint32_t *own)
{
    m->on_host = odd && next(own) % 4 == 0;
    m->buffer = m->on_host ? host[i] : device[i];
    if (m->sends && m->on_host)
        pattern_fill(m->buffer, m->bytes, m->key);
    else if (m->sends)
        pattern_to_gpu(m->buffer, m->bytes, m->key);
    else if (m->on_host)
        memset(m->buffer, 0x5a, m->bytes);
    else
        gpu_fill(m->buffer, 0x5a, m->bytes);
    (void)self;
}

static void post(const struct gpu_rank *self, const struct message *m, bool odd, uint32_t *own)
{
    pk_stream_t stream = odd && next(own) % 3 == 0 ? PK_BLOCKING : PK_CUDA_STREAM(streams[odd ? next(own) % STREAMS : 0]);

    if (m->sends)
        must_be_ok(pk_send(m->buffer, m->bytes, PK_UINT8, 1 - self->rank, self->comm, stream), "pk_send");
    else
        must_be_ok(pk_recv(m->buffer, m->bytes, PK_UINT8, 1 - self->rank, self->comm, stream), "pk_recv");
}

static bool is_right(const struct message *m)
{
    if (m->sends)
        return true;
    return m->on_host ? pattern_wrong(m->buffer, m->bytes, m->key) == m->bytes
                      : pattern_wrong_on_gpu(m->buffer, m->bytes, m->key) == m->bytes;
}

/* Rounds in which all is as promised, and rounds in which it is not at one end, or at both. */
static int round_once(const struct gpu_rank *self, int round)
{
    uint32_t common = (uint32_t)round * 2654435761u, own = common ^ (uint32_t)(self->rank * 7919 + 1);
    struct message all[DEPTH];
    size_t bytes = draw_bytes(&common);
    bool odd = next(&common) % 2 == 0 && next(&own) % 3 != 0;
    uint32_t pattern = next(&common) % 3; /* one way, the other, both ways */
    int wrong = 0;

    for (int i = 0; i < DEPTH; i++) {
        if (next(&common) % 10 == 0)
            bytes = draw_bytes(&common);
        all[i].bytes = bytes;
        all[i].sends = (pattern == 2 ? i % 2 : (int)pattern) == self->rank;
        all[i].key = (uint64_t)(round * DEPTH + i + 1);
        begin(self, &all[i], i, odd, &own);
    }
    if (next(&own) % 4 == 0)
        usleep(next(&own) % 500);
    for (int i = 0; i < DEPTH; i++)
        post(self, &all[i], odd, &own);
    for (int s = 0; s < STREAMS; s++)
        if (!stream_idle_within(streams[s], 20000, NULL)) {
            report(false, "rank %d: round %d does not end", self->rank, round);
            exit(1);
        }
    for (int i = 0; i < DEPTH; i++)
        wrong += !is_right(&all[i]);
    return wrong;
}

/* A few of one length, and then the ends disagree: both must learn it. */
static void disagree(struct gpu_rank *self)
{
    pk_result_t result = PK_OK;
    size_t bytes = 4096;

    for (int i = 0; i < 6 && result == PK_OK; i++) {
        if (self->rank == 1 && i == 5)
            bytes = 512;
        if (self->rank == 0)
            result = pk_send(device[i], bytes, PK_UINT8, 1, self->comm, PK_CUDA_STREAM(streams[0]));
        else
            result = pk_recv(device[i], bytes, PK_UINT8, 0, self->comm, PK_CUDA_STREAM(streams[0]));
    }
    (void)stream_idle_within(streams[0], 10000, NULL);
    for (int i = 0; i < 10000 && result == PK_OK; i++) {
        usleep(1000);
        result = pk_comm_async_error(self->comm);
    }
    report(result == PK_ERR_MISMATCH || result == PK_ERR_PEER, "rank %d: lengths that disagree: %s", self->rank,
           pk_strerror(result));
}

static int rank_main(void)
{
    struct gpu_rank self;
    int wrong = 0;

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    for (int s = 0; s < STREAMS; s++)
        streams[s] = gpu_stream_new();
    for (int i = 0; i < DEPTH; i++) {
        device[i] = gpu_alloc(LONGEST);
        host[i] = malloc(LONGEST);
        if (host[i] == NULL)
            return 2;
    }
    for (int round = 0; round < ROUNDS; round++)
        wrong += round_once(&self, round);
    report(wrong == 0, "rank %d: %d of %d messages are wrong", self.rank, wrong, ROUNDS * DEPTH);
    ranks_meet();
    disagree(&self);
    ranks_meet();
    (void)pk_comm_destroy(self.comm); /* it says what was wrong with it */
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "ll_eager_put", 90000, "rows of messages posted ahead");
}

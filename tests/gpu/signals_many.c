/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 64 streams wait at once, eight communicators with eight streams each; the peer serves the communicators in reverse order, so that what
 * was posted last ends first. A finished one must not release another, and an unfinished one not hold another back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu_rank.h"

#define COMMS 8
#define STREAMS 8
#define LONGEST ((size_t)1 << 20)
#define LENGTHS 5

enum { ROUND_SERVED };

struct lot {
    pk_comm_t *comm;
    gpu_stream_t streams[STREAMS];
    char *buffers[STREAMS];
};

static struct lot lots[COMMS];
static size_t length; /* of every message; 0: they differ */

/* Kernels, value waits and wait kernels stand beside one another where lengths differ. */
static size_t length_of(int lot, int stream)
{
    static const size_t lengths[LENGTHS] = { 4 << 10, 64 << 10, 1 << 20, 16 << 10, 512 << 10 };

    return length > 0 ? length : lengths[(lot * STREAMS + stream) % LENGTHS];
}

static uint64_t key_of(int turn, int lot, int stream)
{
    return (uint64_t)(turn * 1000 + lot * 10 + stream + 1);
}

static void open_lots(struct gpu_rank *self)
{
    for (int c = 0; c < COMMS; c++) {
        lots[c].comm = gpu_rank_another(self, 30000);
        for (int s = 0; s < STREAMS; s++) {
            lots[c].streams[s] = gpu_stream_new();
            lots[c].buffers[s] = gpu_alloc(LONGEST);
            gpu_fill(lots[c].buffers[s], 0x5a, LONGEST);
        }
    }
}

static int idle_streams(const struct lot *lot)
{
    int n = 0;

    for (int s = 0; s < STREAMS; s++)
        n += gpu_stream_query(lot->streams[s]) == 0;
    return n;
}

static bool all_idle_within(const struct lot *lot, double limit_ms)
{
    double begin = monotonic_ms();

    while (idle_streams(lot) < STREAMS && monotonic_ms() - begin < limit_ms)
        usleep(100);
    return idle_streams(lot) == STREAMS;
}

static void receive_all(int turn)
{
    double begin = monotonic_ms();
    int early = 0;
    int wrong = 0;

    for (int c = 0; c < COMMS; c++)
        for (int s = 0; s < STREAMS; s++)
            must_be_ok(
                pk_recv(lots[c].buffers[s], length_of(c, s), PK_UINT8, 1, lots[c].comm, PK_CUDA_STREAM(lots[c].streams[s])),
                "pk_recv");
    printf("INFO turn %d: 64 receives posted in %.2f ms\n", turn, monotonic_ms() - begin);
    usleep(20000);
    for (int c = 0; c < COMMS; c++)
        early += idle_streams(&lots[c]);
    report(early == 0, "turn %d: %d of 64 streams went on before anything was sent", turn, early);
    for (int c = COMMS - 1; c >= 0; c--) {
        atomic_store(&ranks_shared()->words[ROUND_SERVED], turn * COMMS + COMMS - c);
        if (!report(all_idle_within(&lots[c], 10000), "turn %d: communicator %d was served and %d of 8 streams went on", turn, c,
                    idle_streams(&lots[c]))) {
            gpu_show_pending(lots[c].comm);
            exit(1);
        }
        for (int other = 0; other < c; other++)
            early += idle_streams(&lots[other]);
    }
    report(early == 0, "turn %d: %d streams went on before their turn", turn, early);
    for (int c = 0; c < COMMS; c++)
        for (int s = 0; s < STREAMS; s++)
            wrong += pattern_wrong_on_gpu(lots[c].buffers[s], length_of(c, s), key_of(turn, c, s)) != length_of(c, s);
    report(wrong == 0, "turn %d: %d of 64 messages are wrong", turn, wrong);
}

static void send_all(int turn)
{
    for (int c = 0; c < COMMS; c++)
        for (int s = 0; s < STREAMS; s++)
            pattern_to_gpu(lots[c].buffers[s], length_of(c, s), key_of(turn, c, s));
    for (int c = COMMS - 1; c >= 0; c--) {
        while (atomic_load(&ranks_shared()->words[ROUND_SERVED]) < turn * COMMS + COMMS - c)
            usleep(500);
        for (int s = 0; s < STREAMS; s++)
            must_be_ok(
                pk_send(lots[c].buffers[s], length_of(c, s), PK_UINT8, 0, lots[c].comm, PK_CUDA_STREAM(lots[c].streams[s])),
                "pk_send");
    }
    for (int c = 0; c < COMMS; c++)
        report(all_idle_within(&lots[c], 20000), "turn %d: the sends of communicator %d ended", turn, c);
}

static int rank_main(void)
{
    struct gpu_rank self;

    length = strtoul(getenv("MANY_BYTES"), NULL, 10);
    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    open_lots(&self);
    for (int turn = 0; turn < 2; turn++) {
        ranks_meet();
        if (self.rank == 0)
            receive_all(turn);
        else
            send_all(turn);
    }
    ranks_meet();
    for (int c = 0; c < COMMS; c++)
        must_be_ok(pk_comm_destroy(lots[c].comm), "pk_comm_destroy");
    gpu_rank_close(&self);
    return report_end();
}

static void drive(const char *connections, size_t bytes)
{
    char text[32];

    snprintf(text, sizeof text, "%zu", bytes); /* 0: of all lengths */
    setenv("MANY_BYTES", text, 1);
    if (connections != NULL)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    else
        unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    ranks_drive(&(struct ranks_turn){ .role = "many", .size = 2, .timeout_ms = 90000 }, "64 streams, %zu bytes, connections %s",
                bytes, connections != NULL ? connections : "by default");
}

int main(void)
{
    static const size_t lengths[] = { 4 << 10, 16 << 10, 64 << 10, 0 };

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        drive(NULL, lengths[i]);
        drive(i % 2 == 0 ? "1" : "32", lengths[i]);
    }
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More streams with a pending receive than a GPU has room for kernels that wait (128 of all kinds): what the library takes leaves room for others'
 * kernels, the rest is refused with words and soon, and when the peer has served the streams, the last communicator first, the rest is taken too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define COMMS 20
#define STREAMS 10 /* of each: 200 in all */
#define LONGEST ((size_t)576 << 10)
#define OTHERS 4
#define LEAST 64       /* that must be taken */
#define ROOM 128       /* of a GPU */
#define TIMEOUT_MS 100 /* of the first call that finds no room; of each that is refused after another, half as long */

enum { POSTED, SERVED }; /* shared words: posts so far, communicators served so far */

static pk_comm_t *comms[COMMS];
static gpu_stream_t streams[COMMS][STREAMS];
static char *buffers[COMMS][STREAMS];

/* Low-latency kernels and wait kernels. */
static size_t length_of(int stream)
{
    return stream % 2 == 0 ? 4 << 10 : LONGEST;
}

static uint64_t key_of(int c, int s)
{
    return (uint64_t)(c * 100 + s + 1);
}

static int idle_streams(int c)
{
    int n = 0;

    for (int s = 0; s < STREAMS; s++)
        n += gpu_stream_query(streams[c][s]) == 0;
    return n;
}

static bool all_idle_within(int c, double limit_ms)
{
    double begin = monotonic_ms();

    while (idle_streams(c) < STREAMS && monotonic_ms() - begin < limit_ms)
        usleep(100);
    return idle_streams(c) == STREAMS;
}

static void check_refusal(pk_result_t result)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    if (result != PK_ERR_UNSUPPORTED || strstr(info.text, "kernels that wait") == NULL)
        report(false, "a receive too many: %d, %s", (int)result, info.text);
}

/* Bit s: stream s of communicator c has a receive. `done`: it has had one before, and needs none. `soonest_ms`: of the calls that
 * were refused. */
static int post_all(int64_t *taken, const int64_t *done, double *soonest_ms)
{
    int n = 0;

    *soonest_ms = 0;
    for (int c = 0; c < COMMS; c++) {
        taken[c] = 0;
        for (int s = 0; s < STREAMS; s++) {
            double begin = monotonic_ms();
            pk_result_t result;

            if ((done[c] >> s & 1) != 0)
                continue;
            result = pk_recv(buffers[c][s], length_of(s), PK_UINT8, 1, comms[c], PK_CUDA_STREAM(streams[c][s]));
            n += result == PK_OK;
            if (result == PK_OK) {
                taken[c] |= INT64_C(1) << s;
                continue;
            }
            check_refusal(result);
            if (*soonest_ms == 0 || monotonic_ms() - begin < *soonest_ms)
                *soonest_ms = monotonic_ms() - begin;
        }
    }
    return n;
}

static void kernels_go_on(const char *when)
{
    static gpu_stream_t others[OTHERS];
    static uint32_t *open_flag;
    static gpu_kernel_t kernel;
    int ended = 0;

    if (kernel == NULL) {
        kernel = spin_kernel();
        open_flag = gpu_host_alloc(sizeof *open_flag);
        *open_flag = 1;
        for (int i = 0; i < OTHERS; i++)
            others[i] = gpu_stream_new();
    }
    for (int i = 0; i < OTHERS; i++)
        spin_launch(kernel, 4, 32, open_flag, others[i]);
    for (int i = 0; i < OTHERS; i++)
        ended += stream_idle_within(others[i], 3000, NULL);
    report(ended == OTHERS, "%s: kernels of %d of %d other streams have ended", when, ended, OTHERS);
}

static void receive_round(int round, int64_t *done)
{
    struct ranks_shared *shared = ranks_shared();
    int64_t taken[COMMS];
    double soonest_ms;
    int n = post_all(taken, done, &soonest_ms), wrong = 0;

    report(n >= LEAST && n < ROOM, "round %d: %d receives were taken", round, n);
    report(soonest_ms < TIMEOUT_MS / 2, "round %d: what is refused is so within %.1f ms", round, soonest_ms);
    kernels_go_on("beside streams that wait");
    for (int c = 0; c < COMMS; c++)
        atomic_store(&shared->rank_words[0][c], taken[c]);
    atomic_store(&shared->words[POSTED], round + 1);
    for (int c = COMMS - 1; c >= 0; c--) {
        if (!all_idle_within(c, 40000)) {
            report(false, "round %d: communicator %d was served and %d of %d streams went on", round, c, idle_streams(c),
                   STREAMS);
            exit(1);
        }
        atomic_fetch_add(&shared->words[SERVED], 1);
    }
    for (int c = 0; c < COMMS; c++)
        for (int s = 0; s < STREAMS; s++) {
            done[c] |= taken[c];
            if ((taken[c] >> s & 1) != 0)
                wrong += pattern_wrong_on_gpu(buffers[c][s], length_of(s), key_of(c, s)) != length_of(s);
        }
    report(wrong == 0, "round %d: %d of %d messages are wrong", round, wrong, n);
}

/* One communicator after the other, the last first. */
static void send_round(int round)
{
    struct ranks_shared *shared = ranks_shared();

    while (atomic_load(&shared->words[POSTED]) <= round)
        usleep(1000);
    for (int c = COMMS - 1; c >= 0; c--) {
        int64_t taken = atomic_load(&shared->rank_words[0][c]);

        for (int s = 0; s < STREAMS; s++)
            if ((taken >> s & 1) != 0)
                must_be_ok(pk_send(buffers[c][s], length_of(s), PK_UINT8, 0, comms[c], PK_CUDA_STREAM(streams[c][s])), "pk_send");
        while (atomic_load(&shared->words[SERVED]) < round * COMMS + COMMS - c)
            usleep(100);
    }
}

static int rank_main(void)
{
    int64_t done[COMMS] = { 0 };
    struct gpu_rank self;

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    for (int c = 0; c < COMMS; c++) {
        comms[c] = gpu_rank_another(&self, 30000);
        for (int s = 0; s < STREAMS; s++) {
            streams[c][s] = gpu_stream_new();
            buffers[c][s] = gpu_alloc(LONGEST);
            if (self.rank == 1)
                pattern_to_gpu(buffers[c][s], LONGEST, key_of(c, s));
            else
                gpu_fill(buffers[c][s], 0x5a, LONGEST);
        }
    }
    if (self.rank == 0)
        kernels_go_on("before"); /* the kernel is loaded */
    ranks_meet();
    for (int round = 0; round < 2; round++) {
        if (self.rank == 0)
            receive_round(round, done);
        else
            send_round(round);
    }
    ranks_meet();
    for (int c = 0; c < COMMS; c++)
        must_be_ok(pk_comm_destroy(comms[c]), "pk_comm_destroy");
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "crowd", 90000, "200 streams");
}

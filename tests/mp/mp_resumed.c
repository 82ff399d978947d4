/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A short blocking collective whose peer is late becomes an ordinary operation in its caller's thread. Meanwhile another thread
 * has begun as many collectives as the library keeps scratch memory for: it needs none of that.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 3 /* where sums are made of blocks that lie in scratch memory */
#define STREAMS 80
#define COUNT 64
#define AHEAD_US 50000
#define LATE_US 2000000

struct bed {
    pk_comm_t *comm;
    int32_t in[COUNT], first[COUNT], out[STREAMS][COUNT];
    pk_result_t result;
};

static void *call_first(void *arg)
{
    struct bed *bed = arg;

    bed->result = pk_allreduce(bed->in, bed->first, COUNT, PK_INT32, PK_SUM, bed->comm, PK_BLOCKING);
    return NULL;
}

static bool sums_are_right(const struct bed *bed)
{
    for (int i = 0; i < COUNT; i++) {
        int32_t sum = SIZE * i + 100 * SIZE * (SIZE - 1) / 2;

        if (bed->first[i] != sum)
            return false;
        for (int s = 0; s < STREAMS; s++)
            if (bed->out[s][i] != sum)
                return false;
    }
    return true;
}

/* Collectives are numbered as they are called: the thread's is the first, for it waits in its call when the others are called. */
static void call_all(struct bed *bed)
{
    pk_stream_t streams[STREAMS];
    pthread_t thread;
    bool right = true;

    if (pthread_create(&thread, NULL, call_first, bed) != 0)
        exit(2);
    usleep(AHEAD_US);
    if (ranks_rank() == SIZE - 1)
        (void)pthread_join(thread, NULL);
    for (int s = 0; s < STREAMS && right; s++) {
        right = pk_stream_create(&streams[s]) == PK_OK &&
                pk_allreduce(bed->in, bed->out[s], COUNT, PK_INT32, PK_SUM, bed->comm, streams[s]) == PK_OK;
    }
    if (ranks_rank() != SIZE - 1)
        (void)pthread_join(thread, NULL);
    report(bed->result == PK_OK, "rank %d: the first call: %s", ranks_rank(), pk_strerror(bed->result));
    for (int s = 0; s < STREAMS && right; s++)
        right = pk_stream_synchronize(streams[s]) == PK_OK && pk_stream_destroy(streams[s]) == PK_OK;
    report(right && sums_are_right(bed), "rank %d: %d sums behind it", ranks_rank(), STREAMS);
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    struct bed *bed = calloc(1, sizeof *bed);

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    if (bed == NULL || !report(pk_comm_init(&bed->comm, &config) == PK_OK, "rank %d: init", ranks_rank()))
        return report_end();
    for (int i = 0; i < COUNT; i++)
        bed->in[i] = i + 100 * ranks_rank();
    ranks_meet();
    if (ranks_rank() == SIZE - 1)
        usleep(LATE_US);
    call_all(bed);
    report(pk_comm_destroy(bed->comm) == PK_OK, "rank %d: destroy", ranks_rank());
    free(bed);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    setenv("PICKLE_TEST_TUNING", "wait.inline_turns=100000", 1); /* long enough for all the others to be called meanwhile */
    ranks_drive(&(struct ranks_turn){ .role = "resumed", .size = SIZE }, "a call resumed behind %d others", STREAMS);
    return report_end();
}

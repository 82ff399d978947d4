/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short collectives between two "hosts": up to 64 KiB one message each way and nothing else, for credit and acknowledgements travel along. Where all goes
 * one way, credit comes by itself; where one rank is late, what the other sent is kept.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define MOST ((size_t)80 << 10)
#define TIMES 200

static float in[MOST / sizeof(float)], out[MOST / sizeof(float)];

static uint64_t messages(pk_comm_t *comm)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    return pk_comm_stats(comm, &stats) == PK_OK ? stats.messages : 0;
}

static bool sums(pk_comm_t *comm, int rank, size_t count, int turn)
{
    for (size_t i = 0; i < count; i++)
        in[i] = (float)(i % 1000 + (size_t)turn + (size_t)rank);
    if (pk_allreduce(in, out, count, PK_F32, PK_SUM, comm, PK_BLOCKING) != PK_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (out[i] != (float)(2 * (i % 1000 + (size_t)turn) + 1))
            return false;
    return true;
}

/* How many messages each operation took; 0: a wrong sum. */
static double messages_each(pk_comm_t *comm, int rank, size_t bytes)
{
    uint64_t before = messages(comm);

    for (int turn = 0; turn < TIMES; turn++)
        if (!sums(comm, rank, bytes / sizeof(float), turn))
            return 0;
    return (double)(messages(comm) - before) / TIMES;
}

/* Only rank 0 sends, and rank 1 is late occasionally. */
static bool one_way(pk_comm_t *comm, int rank)
{
    for (int turn = 0; turn < TIMES; turn++) {
        size_t count = turn % 3 == 2 ? 100 : ((size_t)64 << 10) / sizeof(float);

        for (size_t i = 0; i < count; i++)
            in[i] = rank == 0 ? (float)(i % 1000 + (size_t)turn) : -1;
        if (rank == 1 && turn % 50 == 7)
            usleep(20000);
        if (pk_broadcast(in, in, count, PK_F32, 0, comm, PK_BLOCKING) != PK_OK)
            return false;
        for (size_t i = 0; i < count; i++)
            if (in[i] != (float)(i % 1000 + (size_t)turn))
                return false;
    }
    return true;
}

static int run_rank(void)
{
    static const size_t sizes[] = { 4, 8192, 32768, 32772, 50000, 65532, 65536 };
    int rank = ranks_rank(), wrong = 0;
    pk_comm_t *comm;

    if (pk_comm_init(&comm, NULL) != PK_OK)
        return 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double each = messages_each(comm, rank, sizes[i]);

        /* A peer that is given no core for long asks, and is answered. */
        if (each < 1 || each > 1.2) {
            fprintf(stderr, "rank %d: allreduce of %zu bytes: %.2f messages each\n", rank, sizes[i], each);
            wrong++;
        }
    }
    wrong += messages_each(comm, rank, MOST) == 0;
    wrong += !one_way(comm, rank);
    return pk_comm_destroy(comm) == PK_OK && wrong == 0 ? 0 : 1;
}

int main(void)
{
    if (ranks_role() != NULL)
        return run_rank();
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    setenv("PK_SOCKETS", "1/0", 1);
    ranks_drive(&(struct ranks_turn){ .role = "sends", .size = 2 }, "short collectives, one connection for chunks");
    setenv("PK_SOCKETS", "2/0", 1);
    ranks_drive(&(struct ranks_turn){ .role = "sends", .size = 2 }, "short collectives, two connections");
    setenv("PK_SOCKETS", "1/1", 1);
    ranks_drive(&(struct ranks_turn){ .role = "sends", .size = 2 }, "short collectives, a thread");
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The work through MPI. Errors end the job, which is MPI's default. */
#include "compare.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static void open_world(struct compare_rank *self, int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &self->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &self->size);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    snprintf(self->settings, sizeof self->settings, "%.200s", version);
}

static void close_world(struct compare_rank *self)
{
    (void)self;
    MPI_Finalize();
}

static void pingpong(struct compare_rank *self, int count)
{
    int peer = 1 - self->rank;

    if (self->rank == 0)
        MPI_Send(self->send, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
    MPI_Recv(self->recv, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (self->rank == 1)
        MPI_Send(self->send, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

static void one_way(struct compare_rank *self, int count)
{
    if (self->rank == 0)
        MPI_Send(self->send, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
    else
        MPI_Recv(self->recv, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void run(struct compare_rank *self, const struct compare_work *work)
{
    int count = (int)work->count, block = (int)work->block;

    switch (work->op) {
    case COMPARE_PINGPONG:
        pingpong(self, count);
        break;
    case COMPARE_ALLREDUCE:
        MPI_Allreduce(self->send, self->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case COMPARE_ALLGATHER:
        MPI_Allgather(self->send, block, MPI_FLOAT, self->recv, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case COMPARE_ALLTOALL:
        MPI_Alltoall(self->send, block, MPI_FLOAT, self->recv, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case COMPARE_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(self->send, self->recv, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case COMPARE_BROADCAST:
        MPI_Bcast(self->recv, count, MPI_FLOAT, work->root, MPI_COMM_WORLD);
        break;
    case COMPARE_REDUCE:
        MPI_Reduce(self->send, self->recv, count, MPI_FLOAT, MPI_SUM, work->root, MPI_COMM_WORLD);
        break;
    case COMPARE_BARRIER:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    case COMPARE_WAKE:
        one_way(self, count);
        break;
    case COMPARE_OPS:
        break;
    }
}

int main(int argc, char **argv)
{
    static const struct compare_library library = {
        .operations = (1u << COMPARE_OPS) - 1,
        .open = open_world,
        .close = close_world,
        .run = run,
    };

    return compare_main(argc, argv, &library);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values by Open MPI, to compare with: MPI_Iallgather, with MPI_Test between the tasks of the attention, since it makes progress
 * only in calls.
 */
#include "attention.h"

#ifdef HAVE_MPI
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>

static MPI_Request request = MPI_REQUEST_NULL;

static void fetch(void *state, void *parts, size_t elements)
{
    (void)state;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, parts, (int)elements, MPI_FLOAT, MPI_COMM_WORLD);
}

static void begin(void *state, void *parts, size_t elements)
{
    (void)state;
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, parts, (int)elements, MPI_FLOAT, MPI_COMM_WORLD, &request);
}

static void poke(void *state)
{
    int done;

    (void)state;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
}

static void end(void *state)
{
    (void)state;
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void close_mpi(void *state)
{
    (void)state;
    MPI_Finalize();
}

bool gather_mpi(struct gather *gather, const struct job *job, const char **why)
{
    const struct shape *shape = &job->shape;
    int rank, size;

    *why = "it is compared with in host memory";
    if (job->compute->memory != PK_MEM_HOST)
        return false;
    *why = "mpirun did not start this job";
    if (getenv("OMPI_COMM_WORLD_SIZE") == NULL)
        return false;
    *why = "a part has more elements than its counts can say";
    if (shape_part(shape) > INT_MAX)
        return false;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != shape->rank || size != shape->ranks) {
        *why = "it numbers the ranks in another way";
        MPI_Finalize();
        return false;
    }
    *gather = (struct gather){ "Open MPI", "MPI_Iallgather, MPI_Test between tasks", NULL, fetch, begin, poke, end, close_mpi };
    return true;
}
#else
bool gather_mpi(struct gather *gather, const struct job *job, const char **why)
{
    (void)gather;
    (void)job;
    *why = "it was not there when this program was built";
    return false;
}
#endif

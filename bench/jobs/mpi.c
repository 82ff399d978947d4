/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs' work through MPI: what begins is a nonblocking operation. Errors end the job, which is MPI's default. */
#include "jobs.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char library_name[] = "Open MPI", library_program[] = "jobs-mpi";
const bool library_has_gpu = false;

#define REQUESTS_MAX 4096

struct channel {
    MPI_Request requests[REQUESTS_MAX];
    int count;
};

static struct channel channels[JOBS_CHANNELS];

static MPI_Comm comm_of(const struct jobs_group *group)
{
    return *(MPI_Comm *)group->handle;
}

static void know(struct jobs_group *group, MPI_Comm comm)
{
    MPI_Comm *kept = malloc(sizeof *kept);

    if (kept == NULL)
        abort();
    *kept = comm;
    group->handle = kept;
    MPI_Comm_rank(comm, &group->rank);
    MPI_Comm_size(comm, &group->size);
}

void library_open(struct jobs_run *run, int *argc, char ***argv)
{
    int provided;

    MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
    know(&run->world, MPI_COMM_WORLD);
}

void library_describe(struct jobs_run *run, char text[JOBS_TEXT_BYTES])
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;

    (void)run;
    MPI_Get_library_version(version, &length);
    snprintf(text, JOBS_TEXT_BYTES, "%.*s", (int)strcspn(version, ",\n"), version);
}

void library_close(struct jobs_run *run)
{
    free(run->world.handle);
    MPI_Finalize();
}

void library_split(struct jobs_run *run, int color, struct jobs_group *group)
{
    MPI_Comm comm;

    MPI_Comm_split(MPI_COMM_WORLD, color, run->world.rank, &comm);
    know(group, comm);
}

void library_join(struct jobs_group *group)
{
    MPI_Comm_free(group->handle);
    free(group->handle);
}

/* MPI counts in int. Never freed: nonblocking operations may look at them until they end. */
static const int *ints(const size_t *counts, int n)
{
    static struct {
        const size_t *from;
        int *to;
    } known[16];
    int i = 0;

    while (i < 15 && known[i].from != NULL && known[i].from != counts)
        i++;
    if (known[i].from == counts)
        return known[i].to;
    known[i].from = counts;
    known[i].to = calloc((size_t)n, sizeof *known[i].to);
    if (known[i].to == NULL)
        abort();
    for (int r = 0; r < n; r++)
        known[i].to[r] = (int)counts[r];
    return known[i].to;
}

static void alltoallv(const struct jobs_transfer *t, MPI_Request *request)
{
    int n = t->group->size;

    MPI_Ialltoallv(t->source, ints(t->send_counts, n), ints(t->send_offsets, n), MPI_FLOAT, t->result, ints(t->recv_counts, n),
                   ints(t->recv_offsets, n), MPI_FLOAT, comm_of(t->group), request);
}

/* The number of requests that it makes: 1 or 2. */
static int post(const struct jobs_transfer *t, MPI_Request *request)
{
    MPI_Comm comm = comm_of(t->group);
    int n = (int)t->count;

    switch (t->kind) {
    case JOBS_ALLREDUCE:
        MPI_Iallreduce(t->source, t->result, n, MPI_FLOAT, MPI_SUM, comm, request);
        break;
    case JOBS_ALLGATHER:
        MPI_Iallgather(t->source, n, MPI_FLOAT, t->result, n, MPI_FLOAT, comm, request);
        break;
    case JOBS_REDUCE_SCATTER:
        MPI_Ireduce_scatter_block(t->source, t->result, n, MPI_FLOAT, MPI_SUM, comm, request);
        break;
    case JOBS_ALLTOALLV:
        alltoallv(t, request);
        break;
    case JOBS_SEND:
        MPI_Isend(t->source, n, MPI_FLOAT, t->to, 0, comm, request);
        break;
    case JOBS_RECV:
        MPI_Irecv(t->result, n, MPI_FLOAT, t->from, 0, comm, request);
        break;
    case JOBS_SENDRECV:
        MPI_Irecv(t->result, n, MPI_FLOAT, t->from, 0, comm, request);
        MPI_Isend(t->source, n, MPI_FLOAT, t->to, 0, comm, request + 1);
        return 2;
    }
    return 1;
}

void library_begin(struct jobs_run *run, const struct jobs_transfer *transfer, int channel)
{
    struct channel *c = &channels[channel];

    if (c->count + 2 > REQUESTS_MAX)
        library_wait(run, channel);
    c->count += post(transfer, c->requests + c->count);
}

void library_wait(struct jobs_run *run, int channel)
{
    (void)run;
    MPI_Waitall(channels[channel].count, channels[channel].requests, MPI_STATUSES_IGNORE);
    channels[channel].count = 0;
}

void library_allreduce(struct jobs_run *run, const void *source, void *result, size_t count, enum jobs_type type)
{
    static const int bytes[JOBS_TYPES] = { 4, 4, 8, 8 };
    MPI_Datatype types[JOBS_TYPES] = { MPI_FLOAT, MPI_INT32_T, MPI_DOUBLE, MPI_INT64_T };
    const size_t most = 1 << 30; /* of one call */

    for (size_t at = 0; at < count; at += most)
        MPI_Allreduce((const char *)source + at * (size_t)bytes[type], (char *)result + at * (size_t)bytes[type],
                      (int)(count - at < most ? count - at : most), types[type], MPI_SUM, comm_of(&run->world));
}

void library_now(const struct jobs_transfer *transfer)
{
    MPI_Request requests[2];

    MPI_Waitall(post(transfer, requests), requests, MPI_STATUSES_IGNORE);
}

void library_share(struct jobs_run *run, const void *value, void *values, size_t bytes)
{
    MPI_Allgather(value, (int)bytes, MPI_BYTE, values, (int)bytes, MPI_BYTE, comm_of(&run->world));
}

int library_least(const struct jobs_group *group, int number)
{
    int result;

    MPI_Allreduce(&number, &result, 1, MPI_INT, MPI_MIN, comm_of(group));
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several communicators at once: each in a thread of its own, and all in one thread by streams, in opposite order on odd and even ranks.
 * The communicators' ids travel through a first one.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define COMMS 4
#define TURNS 60
#define COUNT 3000
#define SIZE_MAX_HERE 4

struct job {
    pk_comm_t *comm;
    pk_unique_id_t id;
    int index, rank, size;
    pk_stream_t stream;
    int32_t source[COUNT], sum[COUNT];
    bool failed;
};

static struct job jobs[COMMS];

static void must(struct job *job, pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    report(false, "rank %d, communicator %d: %s: %d %.200s", job->rank, job->index, what, (int)result, info.text);
    job->failed = true;
}

static void fill(struct job *job, int turn)
{
    for (int i = 0; i < COUNT; i++)
        job->source[i] = (job->rank + 1) * (job->index + 1) * 1000 + i + turn;
}

static void verify(struct job *job, int turn)
{
    int ranks_sum = job->size * (job->size + 1) / 2;

    for (int i = 0; i < COUNT; i++) {
        if (job->sum[i] != ranks_sum * (job->index + 1) * 1000 + job->size * (i + turn)) {
            report(false, "rank %d, communicator %d, turn %d: element %d is %d", job->rank, job->index, turn, i, job->sum[i]);
            job->failed = true;
            return;
        }
    }
}

static void *thread_main(void *arg)
{
    struct job *job = arg;
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 20000;
    must(job, pk_comm_init_rank(&job->comm, job->size, job->rank, &job->id, &config), "init");
    for (int turn = 0; turn < TURNS && !job->failed; turn++) {
        fill(job, turn);
        must(job, pk_allreduce(job->source, job->sum, COUNT, PK_INT32, PK_SUM, job->comm, PK_BLOCKING), "allreduce");
        verify(job, turn);
    }
    return NULL;
}

/* Threads started in opposite order, so that the communicators also come up in opposite order. */
static void in_threads(int rank)
{
    pthread_t threads[COMMS];

    for (int k = 0; k < COMMS; k++) {
        int i = rank % 2 == 0 ? k : COMMS - 1 - k;

        if (pthread_create(&threads[i], NULL, thread_main, &jobs[i]) != 0)
            abort();
    }
    for (int i = 0; i < COMMS; i++)
        pthread_join(threads[i], NULL);
}

static void in_streams(int rank)
{
    for (int i = 0; i < COMMS; i++)
        must(&jobs[i], pk_stream_create(&jobs[i].stream), "pk_stream_create");
    for (int turn = 0; turn < TURNS; turn++) {
        for (int k = 0; k < COMMS; k++) {
            struct job *job = &jobs[rank % 2 == 0 ? k : COMMS - 1 - k];

            fill(job, turn);
            must(job, pk_allreduce(job->source, job->sum, COUNT, PK_INT32, PK_SUM, job->comm, job->stream), "allreduce");
        }
        for (int i = 0; i < COMMS; i++) {
            must(&jobs[i], pk_stream_synchronize(jobs[i].stream), "pk_stream_synchronize");
            verify(&jobs[i], turn);
        }
    }
    for (int i = 0; i < COMMS; i++)
        must(&jobs[i], pk_stream_destroy(jobs[i].stream), "pk_stream_destroy");
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_unique_id_t ids[COMMS];
    pk_unique_id_t all[COMMS * SIZE_MAX_HERE];
    int rank = ranks_rank();
    pk_comm_t *first = NULL;
    bool failed = false;

    memset(ids, 0, sizeof ids);
    config.device = PK_DEVICE_HOST;
    if (!report(pk_comm_init(&first, &config) == PK_OK, "rank %d: the first communicator", rank))
        return report_end();
    for (int i = 0; rank == 0 && i < COMMS; i++)
        must(&jobs[i], pk_get_unique_id(&ids[i]), "pk_get_unique_id");
    report(pk_allgather(ids, all, sizeof ids, PK_UINT8, first, PK_BLOCKING) == PK_OK, "rank %d: the ids", rank);
    for (int i = 0; i < COMMS; i++) {
        jobs[i].id = all[i];
        jobs[i].index = i;
        jobs[i].rank = rank;
        jobs[i].size = ranks_size();
    }
    in_threads(rank);
    if (!jobs[0].failed)
        in_streams(rank);
    ranks_meet();
    for (int i = 0; i < COMMS; i++) {
        must(&jobs[i], pk_comm_destroy(jobs[i].comm), "pk_comm_destroy");
        failed = failed || jobs[i].failed;
    }
    report(!failed, "rank %d of %d: %d communicators in threads and in streams", rank, ranks_size(), COMMS);
    report(pk_comm_destroy(first) == PK_OK, "rank %d: pk_comm_destroy", rank);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    ranks_drive(&(struct ranks_turn){ .role = "many", .size = 2 }, "many");
    ranks_drive(&(struct ranks_turn){ .role = "many", .size = SIZE_MAX_HERE }, "many");
    return report_end();
}

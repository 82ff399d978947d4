/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few descriptors: a rank keeps one for each other rank of its host and no more, init needs hardly more than that, and where they are not enough
 * it says at once how many are. The kernel also bounds how many a user has sent that nobody has taken yet.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define THREADS 24
#define THREADS_LIMIT 720 /* 552 sockets between them, and what init needs meanwhile */
#define TOO_MANY 64
#define TOO_MANY_LIMIT 1024
#define PROCESSES 20
#define PROCESSES_LIMIT 100 /* 380 are sent */
#define NOBODY 65533

struct rank {
    pthread_t thread;
    pk_unique_id_t id;
    int rank, size;
    pk_result_t result;
    pk_error_info_t error;
    float sum;
    double took_ms;
};

static pthread_barrier_t all_up;
static int kept;

static bool limit_descriptors(rlim_t limit)
{
    struct rlimit limits;

    if (getrlimit(RLIMIT_NOFILE, &limits) != 0 || limits.rlim_max < limit)
        return false;
    limits.rlim_cur = limit;
    return setrlimit(RLIMIT_NOFILE, &limits) == 0;
}

static void *thread_main(void *arg)
{
    struct rank *self = arg;
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    float one = 1;
    double began = monotonic_ms();

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 20000;
    self->error.struct_size = sizeof self->error;
    self->result = pk_comm_init_rank(&comm, self->size, self->rank, &self->id, &config);
    self->took_ms = monotonic_ms() - began;
    if (self->result == PK_OK)
        self->result = pk_allreduce(&one, &self->sum, 1, PK_F32, PK_SUM, comm, PK_BLOCKING);
    (void)pk_last_error(&self->error);
    if (pthread_barrier_wait(&all_up) == PTHREAD_BARRIER_SERIAL_THREAD)
        kept = open_files();
    (void)pthread_barrier_wait(&all_up);
    if (comm != NULL)
        (void)pk_comm_destroy(comm);
    return NULL;
}

static void run_threads(struct rank *ranks, int size)
{
    pk_unique_id_t id;

    pthread_barrier_init(&all_up, NULL, (unsigned)size);
    if (!report(pk_get_unique_id(&id) == PK_OK, "an id"))
        return;
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct rank){ .id = id, .rank = r, .size = size };
        (void)pthread_create(&ranks[r].thread, NULL, thread_main, &ranks[r]);
    }
    for (int r = 0; r < size; r++)
        (void)pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&all_up);
}

static void enough(void)
{
    static struct rank ranks[THREADS];
    int before = open_files(), right = 0;

    if (!report(limit_descriptors(THREADS_LIMIT), "a limit of %d descriptors", THREADS_LIMIT))
        return;
    run_threads(ranks, THREADS);
    for (int r = 0; r < THREADS; r++)
        right += ranks[r].result == PK_OK && ranks[r].sum == THREADS;
    report(right == THREADS, "%d of %d thread ranks are right; rank 0: %d, %s", right, THREADS, (int)ranks[0].result,
           ranks[0].error.text);
    report(kept - before <= THREADS * (THREADS - 1) + THREADS, "they keep %d descriptors, for %d ends of sockets", kept - before,
           THREADS * (THREADS - 1));
    report(open_files() == before, "%d are left of %d", open_files(), before);
}

static void too_few(void)
{
    static struct rank ranks[TOO_MANY];
    int clear = 0;

    if (!report(limit_descriptors(TOO_MANY_LIMIT), "a limit of %d descriptors", TOO_MANY_LIMIT))
        return;
    run_threads(ranks, TOO_MANY);
    for (int r = 0; r < TOO_MANY; r++)
        clear += ranks[r].result == PK_ERR_SYSTEM && strstr(ranks[r].error.text, "64 ranks in this process") != NULL &&
                 strstr(ranks[r].error.text, "ulimit -n allows 1024") != NULL;
    report(clear == TOO_MANY, "%d of %d are told how many there are; rank 0: %d, errno %d, %s", clear, TOO_MANY,
           (int)ranks[0].result, ranks[0].error.sys_errno, ranks[0].error.text);
}

static void rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    float one = 1, sum = 0;
    pk_result_t result;

    if (!report(limit_descriptors(PROCESSES_LIMIT) && (geteuid() != 0 || setresuid(NOBODY, NOBODY, NOBODY) == 0),
                "rank %d: an ordinary user", ranks_rank()))
        return;
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 20000;
    result = pk_comm_init(&comm, &config);
    if (result == PK_OK)
        result = pk_allreduce(&one, &sum, 1, PK_F32, PK_SUM, comm, PK_BLOCKING);
    (void)pk_last_error(&info);
    report(result == PK_OK && sum == PROCESSES, "rank %d: %d, sum %g: %s", ranks_rank(), (int)result, (double)sum, info.text);
    if (comm != NULL)
        (void)pk_comm_destroy(comm);
}

int main(void)
{
    if (ranks_role() != NULL) {
        rank_main();
        return report_end();
    }
    ranks_drive(&(struct ranks_turn){ .role = "process", .size = PROCESSES }, "many in flight");
    enough();
    too_few();
    return report_end();
}

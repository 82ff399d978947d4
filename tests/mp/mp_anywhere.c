/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ids whose rank 0 may be anywhere: made by a process that is no rank, by rank 1, by rank 0; rank 0 comes last and first;
 * several at once; a communicator of one; and an id that is given back, whose maker has ended, or whose rank 0 has failed,
 * leads nowhere.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 3
#define LATE_US 300000

enum { WORD_MAKER, WORD_LATE };

static void put_id(const pk_unique_id_t *id)
{
    for (size_t i = 0; i < sizeof *id; i++)
        atomic_store(&ranks_shared()->rank_words[RANKS_MAX - 1 - i / RANKS_WORDS][i % RANKS_WORDS], id->bytes[i]);
}

static void get_id(pk_unique_id_t *id)
{
    for (size_t i = 0; i < sizeof *id; i++)
        id->bytes[i] = (unsigned char)atomic_load(&ranks_shared()->rank_words[RANKS_MAX - 1 - i / RANKS_WORDS][i % RANKS_WORDS]);
}

/* The process after the last rank is the maker that is none. */
static int rank_main(int maker, int late)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    const int own = ranks_rank();
    pk_unique_id_t id;
    pk_comm_t *comm = NULL;
    int mine = own + 1, sum = 0;
    pk_result_t result = PK_OK;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    if (own == maker) {
        result = pk_get_unique_id_anywhere(&id);
        put_id(&id);
    }
    ranks_meet();
    get_id(&id);
    if (own == late)
        usleep(LATE_US);
    if (own < SIZE && result == PK_OK)
        result = pk_comm_init_rank(&comm, SIZE, own, &id, &config);
    if (own < SIZE && result == PK_OK)
        result = pk_allreduce(&mine, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING);
    report(result == PK_OK && (own == SIZE || sum == 6), "rank %d: made by %d, %d late: %s, sum %d", own, maker, late,
           pk_strerror(result), sum);
    ranks_meet();
    pk_comm_destroy(comm);
    return report_end();
}

/* Both ranks in one thread of the process that made the id, and many ids at once. */
static void here(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comms[8][2];
    pk_unique_id_t ids[8];
    pk_result_t result = PK_OK;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    config.nonblocking = 1;
    for (int i = 0; i < 8 && result == PK_OK; i++)
        result = pk_get_unique_id_anywhere(&ids[i]);
    for (int i = 0; i < 16 && (result == PK_OK || result == PK_IN_PROGRESS); i++)
        result = pk_comm_init_rank(&comms[i / 2][i % 2], 2, i % 2, &ids[7 - i / 2], &config);
    for (int i = 0; i < 16 && (result == PK_OK || result == PK_IN_PROGRESS); i++)
        while ((result = pk_comm_async_error(comms[i / 2][i % 2])) == PK_IN_PROGRESS)
            usleep(1000);
    if (!report(result == PK_OK, "eight communicators of two ranks in one thread: %s", pk_strerror(result)))
        exit(report_end());
    for (int i = 0; i < 16; i++)
        pk_comm_destroy(comms[i / 2][i % 2]);
}

/* The threads that lead have closed what they had; an id that is given back too. */
static void nothing_is_left(int before)
{
    const double until = monotonic_ms() + 20000;

    while (open_files() != before && monotonic_ms() < until)
        usleep(10000);
    report(open_files() == before, "%d descriptors are open, before the ids %d were", open_files(), before);
}

static void alone(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm;
    pk_unique_id_t id;
    pk_result_t result = pk_get_unique_id_anywhere(&id);

    config.device = PK_DEVICE_HOST;
    if (result == PK_OK)
        result = pk_comm_init_rank(&comm, 1, 0, &id, &config);
    if (report(result == PK_OK, "a communicator of one: %s", pk_strerror(result)))
        pk_comm_destroy(comm);
    report(pk_unique_id_release(&id) == PK_ERR_ARG, "its id is used up");
}

static void given_back(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;
    pk_result_t result = pk_get_unique_id_anywhere(&id);

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    report(result == PK_OK && pk_unique_id_release(&id) == PK_OK, "an id is given back");
    for (int rank = 0; rank < 2; rank++) {
        result = pk_comm_init_rank(&comm, 2, rank, &id, &config);
        (void)pk_last_error(&info);
        report(result == PK_ERR_PEER && comm == NULL, "rank %d finds nobody: %s", rank, info.text);
    }
}

static pk_comm_config_t config_of(int nonblocking, int timeout_ms)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.nonblocking = nonblocking;
    config.timeout_ms = timeout_ms;
    return config;
}

/* What came of an init that does not block; it is destroyed. */
static pk_result_t outcome(pk_comm_t *comm, pk_error_info_t *info)
{
    pk_result_t result;

    while ((result = pk_comm_async_error(comm)) == PK_IN_PROGRESS)
        usleep(1000);
    (void)pk_last_error(info);
    pk_comm_destroy(comm);
    return result;
}

/* The others hear of it when rank 0 does not even begin: long before their deadline. */
static void refused(void)
{
    const pk_comm_config_t config = config_of(1, 30000);
    pk_comm_config_t wrong = config_of(0, 30000);
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL, *none = NULL;
    pk_unique_id_t id;
    double began, took;
    pk_result_t result;

    wrong.sm_policy = 77;
    if (!report(pk_get_unique_id_anywhere(&id) == PK_OK && pk_comm_init_rank(&comm, 2, 1, &id, &config) == PK_IN_PROGRESS,
                "rank 1 waits for a rank 0 that is refused"))
        return;
    usleep(LATE_US);
    began = monotonic_ms();
    report(pk_comm_init_rank(&none, 2, 0, &id, &wrong) == PK_ERR_ARG, "rank 0 is refused");
    result = outcome(comm, &info);
    took = monotonic_ms() - began;
    report(result == PK_ERR_PEER && took < 10000, "rank 1 hears of it after %.0f ms: %s", took, info.text);
    report(pk_unique_id_release(&id) == PK_ERR_ARG, "rank 0 has given its id back");
}

/* On one processor an abort comes before the thread of the init has begun. */
static void begin_and_abort(const pk_unique_id_t *id, int after_us)
{
    const pk_comm_config_t config = config_of(1, 30000);
    pk_comm_t *comm = NULL;
    cpu_set_t all, one;
    int first = 0;

    CPU_ZERO(&all);
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) == 0)
        while (first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &all))
            first++;
    CPU_SET(first, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    if (report(pk_comm_init_rank(&comm, 2, 0, id, &config) == PK_IN_PROGRESS, "rank 0 begins")) {
        if (after_us > 0)
            usleep((useconds_t)after_us);
        (void)pk_comm_abort(comm);
        pk_comm_destroy(comm);
    }
    (void)sched_setaffinity(0, sizeof all, &all);
}

/* The same when it is aborted, before and after it has said where it is. */
static void aborted(int after_us)
{
    const pk_comm_config_t config = config_of(1, 30000);
    pk_error_info_t info = { .struct_size = sizeof info };
    const double began = monotonic_ms();
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;
    pk_result_t result = pk_get_unique_id_anywhere(&id);
    double took;

    if (!report(result == PK_OK, "an id for a rank 0 that is aborted"))
        return;
    begin_and_abort(&id, after_us);
    if (!report(pk_comm_init_rank(&comm, 2, 1, &id, &config) == PK_IN_PROGRESS, "rank 1 comes too late"))
        return;
    result = outcome(comm, &info);
    took = monotonic_ms() - began;
    report(result == PK_ERR_PEER && took < 10000, "rank 0 aborted after %d us: rank 1 hears of it after %.0f ms: %s", after_us,
           took, info.text);
    report(pk_unique_id_release(&id) == PK_ERR_ARG, "rank 0 has given its id back");
}

static atomic_int warned;

static void count_line(void *arg, int level, const char *line)
{
    (void)arg;
    if (level == 2 && strstr(line, "rank 0 has not come yet (asked the process that made the id)") != NULL)
        atomic_fetch_add(&warned, 1);
}

/* It is rank 0 that is missing, not the process that made the id: said after five seconds, and at the deadline. */
static void absent(void)
{
    const pk_comm_config_t config = config_of(0, 6500);
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;
    pk_result_t result = pk_get_unique_id_anywhere(&id);

    pk_log_set_callback(count_line, NULL);
    if (result == PK_OK)
        result = pk_comm_init_rank(&comm, 2, 1, &id, &config);
    pk_log_set_callback(NULL, NULL);
    (void)pk_last_error(&info);
    report(result == PK_ERR_TIMEOUT && info.peer == 0 && strstr(info.text, "rank 0 has not come yet (asked the process") != NULL,
           "rank 1 waits in vain: %s", info.text);
    report(atomic_load(&warned) == 1, "%d lines have said so before", atomic_load(&warned));
    report(pk_unique_id_release(&id) == PK_OK, "its id is given back");
}

/* Two that call themselves rank 0: the second one is told so. */
static void twice(void)
{
    const pk_comm_config_t begins = config_of(1, 30000), config = config_of(0, 5000);
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *first = NULL, *second = NULL;
    pk_unique_id_t id;
    pk_result_t result = pk_get_unique_id_anywhere(&id);

    if (!report(result == PK_OK && pk_comm_init_rank(&first, 2, 0, &id, &begins) == PK_IN_PROGRESS, "rank 0 begins"))
        return;
    usleep(LATE_US);
    result = pk_comm_init_rank(&second, 2, 0, &id, &config);
    (void)pk_last_error(&info);
    report(result == PK_ERR_MISMATCH && strstr(info.text, "two processes call themselves rank 0 of 2") != NULL,
           "another rank 0 is refused: %s", info.text);
    report(pk_comm_async_error(first) == PK_IN_PROGRESS, "the first one goes on");
    (void)pk_comm_abort(first);
    pk_comm_destroy(first);
}

int main(void)
{
    static const int makers[] = { SIZE, 1, 0 };
    struct ranks ranks;
    int before;

    if (ranks_role() != NULL)
        return rank_main((int)atomic_load(&ranks_shared()->words[WORD_MAKER]),
                         (int)atomic_load(&ranks_shared()->words[WORD_LATE]));
    for (int i = 0; i < 3; i++)
        for (int late = 0; late < 2; late++) {
            ranks_open(&ranks, SIZE + 1);
            atomic_store(&ranks.shared->words[WORD_MAKER], makers[i]);
            atomic_store(&ranks.shared->words[WORD_LATE], late);
            ranks_start_all(&ranks, "rank", NULL, NULL);
            report(ranks_wait(&ranks, 60000, -1) == 0, "made by %d, %d late", makers[i], late);
            ranks_close(&ranks);
        }
    before = open_files();
    alone();
    given_back();
    refused();
    aborted(0);
    aborted(LATE_US);
    absent();
    twice();
    nothing_is_left(before);
    here(); /* its service thread keeps what it has */
    before = open_files();
    here();
    nothing_is_left(before);
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that comes two seconds late is waited for, in a split whatever the new one's time is; one that never comes is named by all that came. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 4
#define LATE_US 2000000
#define TIMEOUT_MS 1500
#define SPLIT_TIMEOUT_MS 3000
#define SPLIT_LATE_US 4000000

/* Words of the shared memory. */
enum { MISSING, ARRIVED };

static int late_rank(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    int32_t own = ranks_rank();
    int32_t all[SIZE] = { -1, -1, -1, -1 };

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 20000;
    if (own == SIZE - 1)
        usleep(LATE_US);
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "late: rank %d: init", own))
        return report_end();
    report(pk_allgather(&own, all, 1, PK_INT32, comm, PK_BLOCKING) == PK_OK && all[0] == 0 && all[3] == 3,
           "late: rank %d: allgather", own);
    report(pk_comm_destroy(comm) == PK_OK, "late: rank %d: destroy", own);
    return report_end();
}

/* Until the last rank has called it the parent's time counts, and the new one's only then. */
static int split_rank(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL, *child = NULL;
    int32_t own = ranks_rank(), sum = 0;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "split: rank %d: init", own))
        return report_end();
    config.timeout_ms = SPLIT_TIMEOUT_MS;
    if (own == SIZE - 1)
        usleep(SPLIT_LATE_US);
    report(pk_comm_split(comm, 0, 0, &child, &config) == PK_OK, "split: rank %d: the last rank is late", own);
    report(child != NULL && pk_allreduce(&own, &sum, 1, PK_INT32, PK_SUM, child, PK_BLOCKING) == PK_OK &&
               sum == SIZE * (SIZE - 1) / 2,
           "split: rank %d: allreduce", own);
    report(pk_comm_destroy(child) == PK_OK && pk_comm_destroy(comm) == PK_OK, "split: rank %d: destroy", own);
    return report_end();
}

/* All processes have started but the one that never comes: a slow start is not what is measured. */
static void meet_but_one(void)
{
    _Atomic int64_t *arrived = &ranks_shared()->words[ARRIVED];

    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < SIZE - 1)
        usleep(1000);
}

static int missing_rank(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    int missing = (int)atomic_load(&ranks_shared()->words[MISSING]);
    int64_t begin;
    pk_result_t result;
    double took_ms;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = TIMEOUT_MS;
    meet_but_one();
    begin = monotonic_ns();
    result = pk_comm_init(&comm, &config);
    took_ms = (double)(monotonic_ns() - begin) * 1e-6;
    pk_last_error(&info);
    report(result == PK_ERR_TIMEOUT, "missing %d: rank %d: init returned %d: %.200s", missing, ranks_rank(), (int)result,
           info.text);
    report(info.peer == missing, "missing %d: rank %d: the record names rank %d", missing, ranks_rank(), info.peer);
    report(took_ms >= TIMEOUT_MS * 0.9 && took_ms < TIMEOUT_MS + 500 * test_slack(), "missing %d: rank %d: after %.0f ms",
           missing, ranks_rank(), took_ms);
    report(comm == NULL, "missing %d: rank %d: no handle was set", missing, ranks_rank());
    return report_end();
}

static void drive(const char *role, int missing)
{
    struct ranks ranks;
    int wrong;

    ranks_open(&ranks, SIZE);
    atomic_store(&ranks.shared->words[MISSING], missing);
    for (int r = 0; r < SIZE; r++)
        if (r != missing)
            ranks_start(&ranks, r, role, NULL, NULL);
    wrong = ranks_wait(&ranks, 30000, -1);
    report(wrong == 0, "%s (missing: %d): %d ranks failed", role, missing, wrong);
    ranks_close(&ranks);
}

int main(void)
{
    if (ranks_role() != NULL && strcmp(ranks_role(), "split") == 0)
        return split_rank();
    if (ranks_role() != NULL)
        return strcmp(ranks_role(), "late") == 0 ? late_rank() : missing_rank();
    drive("late", -1);
    drive("split", -1);
    drive("missing", SIZE - 1);
    drive("missing", 1);
    drive("missing", 0);
    return report_end();
}

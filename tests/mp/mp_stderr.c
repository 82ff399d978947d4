/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0's standard error has no reader any more, or is a pipe that nobody reads and that is full. The lines about a rank that is late are
 * lost: operations end with the right result if it comes in time, and at their deadline if it does not.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 2
#define COUNT 1000
#define LATE_TIMEOUT_MS 12000
#define LATE_US 6500000 /* the line is due after 5 s */
#define NEVER_TIMEOUT_MS 2000

enum { TIMED_OUT }; /* words of the shared memory */

static bool asks_for(const char *word)
{
    return strstr(ranks_role(), word) != NULL;
}

/* Nobody reads; full: and nothing more goes in. */
static void replace_stderr(bool full)
{
    static const char zeros[4096];
    int ends[2];

    if (pipe(ends) != 0)
        exit(4);
    if (!full)
        close(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (full && write(ends[1], zeros, sizeof zeros) > 0)
        continue;
    fcntl(ends[1], F_SETFL, 0);
}

static bool all_are(const float *values, float value)
{
    for (size_t i = 0; i < COUNT; i++)
        if (values[i] != value)
            return false;
    return true;
}

static void rank_is_late(pk_comm_t *comm, float *values)
{
    pk_result_t result;

    if (ranks_rank() == 1)
        usleep(LATE_US);
    result = pk_allreduce(values, values, COUNT, PK_F32, PK_SUM, comm, PK_BLOCKING);
    report(result == PK_OK && all_are(values, SIZE), "%s: rank %d: result %d, data %s", ranks_role(), ranks_rank(), (int)result,
           all_are(values, SIZE) ? "right" : "WRONG");
}

/* Rank 0 waits in a stream, so that the library's thread writes the lines; rank 1 stays until it has given up. */
static void rank_never_comes(pk_comm_t *comm, float *values)
{
    pk_stream_t stream = PK_BLOCKING;
    const double began_ms = monotonic_ms();
    pk_result_t result = PK_OK;

    if (ranks_rank() == 1) {
        while (atomic_load(&ranks_shared()->words[TIMED_OUT]) == 0)
            usleep(10000);
        return;
    }
    result = pk_stream_create(&stream);
    if (result == PK_OK)
        result = pk_allreduce(values, values, COUNT, PK_F32, PK_SUM, comm, stream);
    if (result == PK_OK)
        result = pk_stream_destroy(stream);
    report(result == PK_ERR_TIMEOUT && monotonic_ms() - began_ms < NEVER_TIMEOUT_MS + 200 * test_slack(),
           "%s: result %d after %.0f ms", ranks_role(), (int)result, monotonic_ms() - began_ms);
    atomic_store(&ranks_shared()->words[TIMED_OUT], 1);
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    float values[COUNT];
    pk_comm_t *comm = NULL;

    for (size_t i = 0; i < COUNT; i++)
        values[i] = 1;
    if (ranks_rank() == 0)
        replace_stderr(asks_for("full"));
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = asks_for("late") ? LATE_TIMEOUT_MS : NEVER_TIMEOUT_MS;
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "%s: rank %d: init", ranks_role(), ranks_rank()))
        return report_end();
    if (asks_for("late"))
        rank_is_late(comm, values);
    else
        rank_never_comes(comm, values);
    (void)pk_comm_destroy(comm);
    return report_end();
}

static void set_host(int rank, void *arg)
{
    setenv("PK_HOST_ID", strstr(arg, "hosts") != NULL && rank == 1 ? "there" : "here", 1);
}

int main(void)
{
    static char jobs[][40] = { "full, late",        "gone, late",  "full, late, hosts",
                               "gone, late, hosts", "full, never", "gone, never, hosts" };
    enum { JOBS = sizeof jobs / sizeof jobs[0] };
    struct ranks ranks[JOBS];

    if (ranks_role() != NULL)
        return rank_main();
    unsetenv("PK_LOG");
    for (int i = 0; i < JOBS; i++) {
        ranks_open(&ranks[i], SIZE);
        ranks_start_all(&ranks[i], jobs[i], NULL, &(struct ranks_hooks){ .before = set_host, .arg = jobs[i] });
    }
    for (int i = 0; i < JOBS; i++) {
        int wrong = ranks_wait(&ranks[i], 20000, -1);

        report(wrong == 0, "standard error is %s: %d of %d ranks failed", jobs[i], wrong, SIZE);
        ranks_close(&ranks[i]);
    }
    return report_end();
}

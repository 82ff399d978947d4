/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups with operations of two and three communicators, of ranks on one host, on two, and of both kinds: the results are right whichever rank is
 * late, a rank that waits rests, and when one communicator fails (a deadline, an abort) the operations of the others end right.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 3
#define COMMS 3
#define COUNT 5000 /* of the longer operation */
#define ROUNDS 12
#define LATE_US 20000
#define WAIT_MS 1000
#define CPU_MOST_MS 200 /* of them: at first a rank looks, and yields; beside sockets it naps */
#define TIMEOUT_MS 1000
#define ABORT_US 500000

static pk_comm_t *comms[COMMS];

static bool open_comms(uint64_t last_timeout_ms)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    bool good;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    good = pk_comm_init(&comms[0], &config) == PK_OK && pk_comm_split(comms[0], 0, ranks_rank(), &comms[1], &config) == PK_OK;
    config.timeout_ms = last_timeout_ms;
    good = good && pk_comm_split(comms[0], 0, ranks_rank(), &comms[2], &config) == PK_OK;
    return report(good, "%s: rank %d: init", ranks_role(), ranks_rank());
}

static void close_comms(int n)
{
    for (int i = COMMS - 1; i >= 0; i--) {
        pk_result_t result = pk_comm_destroy(comms[i]);

        report(result == PK_OK || i >= n, "%s: rank %d: destroy: %s", ranks_role(), ranks_rank(), pk_strerror(result));
    }
}

/* In communicator c: a long sum, and a value round the ring. */
struct work {
    int32_t in[COUNT], sum[COUNT], next, previous;
};

static struct work works[COMMS];

static void fill(struct work *w, int round, int c)
{
    for (int i = 0; i < COUNT; i++)
        w->in[i] = ranks_rank() + i + 100 * c + round;
    memset(w->sum, 0xff, sizeof w->sum);
    w->next = 1000 * ranks_rank() + 10 * round + c;
    w->previous = -1;
}

static pk_result_t call(struct work *w, pk_comm_t *comm)
{
    int next = (ranks_rank() + 1) % SIZE, previous = (ranks_rank() + SIZE - 1) % SIZE;
    pk_result_t result = pk_allreduce(w->in, w->sum, COUNT, PK_INT32, PK_SUM, comm, PK_BLOCKING);

    if (result == PK_OK)
        result = pk_send(&w->next, 1, PK_INT32, next, comm, PK_BLOCKING);
    return result == PK_OK ? pk_recv(&w->previous, 1, PK_INT32, previous, comm, PK_BLOCKING) : result;
}

static bool is_right(const struct work *w, int round, int c)
{
    bool right = w->previous == 1000 * ((ranks_rank() + SIZE - 1) % SIZE) + 10 * round + c;

    for (int i = 0; i < COUNT; i++)
        right &= w->sum[i] == SIZE * (SIZE - 1) / 2 + SIZE * (i + 100 * c + round);
    return right;
}

/* In the first n communicators. */
static pk_result_t group_of(int n, int round)
{
    pk_result_t result = pk_group_start();

    for (int c = 0; c < n; c++) {
        fill(&works[c], round, c);
        if (result == PK_OK)
            result = call(&works[c], comms[c]);
    }
    return result == PK_OK ? pk_group_end() : result;
}

static void right_results(int n)
{
    int right = 0;

    for (int round = 0; round < ROUNDS; round++) {
        if (round % (SIZE + 1) == ranks_rank()) /* and in some rounds none */
            usleep(LATE_US);
        if (group_of(n, round) != PK_OK)
            break;
        for (int c = 0; c < n; c++)
            right += is_right(&works[c], round, c);
    }
    report(right == n * ROUNDS, "%s: rank %d: %d of %d results in %d communicators", ranks_role(), ranks_rank(), right,
           n * ROUNDS, n);
}

static double cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void rest(int n)
{
    double before, used;

    ranks_meet();
    before = cpu_ms();
    if (ranks_rank() == 0)
        usleep(WAIT_MS * 1000);
    report(group_of(n, 0) == PK_OK && is_right(&works[n - 1], 0, n - 1), "%s: rank %d: a group with a late rank", ranks_role(),
           ranks_rank());
    used = cpu_ms() - before;
    report(used < CPU_MOST_MS, "%s: rank %d: %.0f ms of CPU in %d ms, in %d communicators", ranks_role(), ranks_rank(), used,
           WAIT_MS, n);
}

static int results_rank(void)
{
    if (!open_comms(60000))
        return report_end();
    for (int n = 2; n <= COMMS; n++)
        right_results(n);
    for (int n = 2; n <= COMMS; n++)
        rest(n);
    close_comms(COMMS);
    return report_end();
}

/* ---- One fails ---- */

static void *abort_last(void *arg)
{
    usleep(ABORT_US);
    report(pk_comm_abort(comms[COMMS - 1]) == PK_OK, "%s: abort", ranks_role());
    return arg;
}

/* The last rank calls what the others call in all communicators but the last: there they wait in vain. */
static int failing_rank(pk_result_t expected)
{
    bool aborts = expected == PK_ERR_ABORTED, absent = ranks_rank() == SIZE - 1;
    pk_result_t result;
    pthread_t thread;

    if (!open_comms(aborts ? 60000 : TIMEOUT_MS))
        return report_end();
    ranks_meet();
    if (aborts && ranks_rank() == 0 && pthread_create(&thread, NULL, abort_last, NULL) != 0)
        return 2;
    if (absent)
        usleep(ABORT_US / 2);
    result = group_of(absent ? COMMS - 1 : COMMS, 7);
    report(result == (absent ? PK_OK : expected), "%s: rank %d: %s", ranks_role(), ranks_rank(), pk_strerror(result));
    for (int c = 0; c < COMMS - 1; c++)
        report(is_right(&works[c], 7, c), "%s: rank %d: communicator %d is not the one that failed", ranks_role(), ranks_rank(),
               c);
    if (aborts && ranks_rank() == 0)
        pthread_join(thread, NULL);
    ranks_meet();
    report(group_of(COMMS - 1, 8) == PK_OK && is_right(&works[0], 8, 0) && is_right(&works[1], 8, 1),
           "%s: rank %d: the others go on", ranks_role(), ranks_rank());
    close_comms(COMMS - 1);
    return report_end();
}

/* ---- The driver ---- */

/* One host, each its own, or two of the three on one. */
static const char *const places[][SIZE] = { { "a", "a", "a" }, { "a", "b", "c" }, { "a", "a", "b" } };
static const char *const names[] = { "one host", "three hosts", "two hosts" };

static void before(int rank, void *arg)
{
    setenv("PK_HOST_ID", ((const char *const *)arg)[rank], 1);
}

int main(void)
{
    const char *role = ranks_role();

    if (role != NULL)
        return strcmp(role, "results") == 0 ? results_rank()
                                            : failing_rank(strcmp(role, "deadline") == 0 ? PK_ERR_TIMEOUT : PK_ERR_ABORTED);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct ranks_hooks hooks = { .before = before, .arg = (void *)(uintptr_t)places[i] };

        ranks_drive(&(struct ranks_turn){ .role = "results", .size = SIZE, .hooks = &hooks }, "results, %s", names[i]);
        ranks_drive(&(struct ranks_turn){ .role = "deadline", .size = SIZE, .hooks = &hooks }, "deadline, %s", names[i]);
        ranks_drive(&(struct ranks_turn){ .role = "abort", .size = SIZE, .hooks = &hooks }, "abort, %s", names[i]);
    }
    unsetenv("PK_HOST_ID");
    return report_end();
}

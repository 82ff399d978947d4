/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank with nothing unfinished leaves, by pk_comm_abort or by the end of its process without pk_comm_destroy: the others,
 * idle too, see no error and log none, and what does not need it goes on; what needs it is told who has left, and how. A rank
 * that is killed, or ends amid an operation, is another matter: the idle ones hear of it. Within a machine, and between "hosts"
 * on the loopback interface.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 3
#define LEAVER 1
#define COUNT 3000
#define QUIET_MS 700 /* longer than a peer that is refused is waited for */
#define NOTICE_MS 5000
#define LONG_MS 60000

/* Words of the shared memory. */
enum { PID, QUIET };

static atomic_int errors_logged;
static float in[COUNT], out[COUNT];

static void count_line(void *arg, int level, const char *line)
{
    (void)arg;
    if (level > 2)
        return;
    fprintf(stderr, "rank %d: %s\n", ranks_rank(), line);
    if (level == 1)
        atomic_fetch_add(&errors_logged, 1);
}

static pk_comm_t *open_comm(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;

    pk_log_set_callback(count_line, NULL);
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = LONG_MS;
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "rank %d: pk_comm_init", ranks_rank()))
        exit(report_end());
    for (int i = 0; i < 10; i++)
        if (pk_allreduce(in, out, i % 2 == 0 ? 2 : COUNT, PK_F32, PK_SUM, comm, PK_BLOCKING) != PK_OK)
            exit(report_end() + 1);
    return comm;
}

/* Asks for so long, or until it is not PK_OK. */
static pk_result_t ask(pk_comm_t *comm, double ms)
{
    double until = monotonic_ms() + ms;
    pk_result_t result = PK_OK;

    while (result == PK_OK && monotonic_ms() < until) {
        result = pk_comm_async_error(comm);
        usleep(1000);
    }
    return result;
}

/* The two that stay. */
static pk_result_t exchange(pk_comm_t *comm)
{
    int other = ranks_rank() == 0 ? 2 : 0;
    pk_result_t result = pk_group_start();

    if (result == PK_OK)
        result = pk_send(in, COUNT, PK_F32, other, comm, PK_BLOCKING);
    if (result == PK_OK)
        result = pk_recv(out, COUNT, PK_F32, other, comm, PK_BLOCKING);
    return result == PK_OK ? pk_group_end() : result;
}

static void judge_end(pk_comm_t *comm, pk_result_t result, pk_result_t wanted, const char *text)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    report(result == wanted && info.peer == LEAVER && strstr(info.text, text) != NULL,
           "rank %d: what needs it returns %d, peer %d: %s", ranks_rank(), (int)result, info.peer, info.text);
    report(pk_comm_destroy(comm) == wanted, "rank %d: pk_comm_destroy says so too", ranks_rank());
}

/* Until it is a zombie, or gone. */
static void await_end(void)
{
    double until = monotonic_ms() + NOTICE_MS * test_slack();
    char path[64], line[256] = "";
    const char *state = "";

    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)atomic_load(&ranks_shared()->words[PID]));
    while (*state != 'Z' && *state != 'X' && monotonic_ms() < until) {
        FILE *file = fopen(path, "r");

        if (file == NULL)
            return;
        state = fgets(line, sizeof line, file) != NULL && strrchr(line, ')') != NULL ? strrchr(line, ')') + 2 : "";
        fclose(file);
        usleep(1000);
    }
    report(*state == 'Z' || *state == 'X', "rank %d: the process has ended", ranks_rank());
}

/* What the two see of one that has left in good order. */
static void stay(pk_comm_t *comm, pk_result_t wanted, const char *text)
{
    report(ask(comm, QUIET_MS) == PK_OK && atomic_load(&errors_logged) == 0, "rank %d: no error while nothing needs it",
           ranks_rank());
    report(exchange(comm) == PK_OK && exchange(comm) == PK_OK, "rank %d: the others exchange", ranks_rank());
    report(pk_comm_async_error(comm) == PK_OK && atomic_load(&errors_logged) == 0, "rank %d: and no error yet", ranks_rank());
    atomic_fetch_add(&ranks_shared()->words[QUIET], 1);
    while (atomic_load(&ranks_shared()->words[QUIET]) < SIZE - 1) /* what the other needs next is an error of both */
        usleep(1000);
    /* Each sends to it at once and waits for it: neither hears it from the other alone. */
    judge_end(comm, pk_barrier(comm, PK_BLOCKING), wanted, text);
}

static int abort_main(void)
{
    pk_comm_t *comm = open_comm();

    ranks_meet();
    if (ranks_rank() == LEAVER)
        report(pk_comm_abort(comm) == PK_OK && pk_comm_async_error(comm) == PK_ERR_ABORTED &&
                   pk_barrier(comm, PK_BLOCKING) == PK_ERR_ABORTED && atomic_load(&errors_logged) == 0,
               "an abort with nothing unfinished");
    ranks_meet();
    if (ranks_rank() != LEAVER)
        stay(comm, PK_ERR_ABORTED, "aborted its communicator");
    ranks_meet();
    if (ranks_rank() == LEAVER)
        report(pk_comm_destroy(comm) == PK_ERR_ABORTED, "pk_comm_destroy after the abort");
    return report_end();
}

/* Another that waits for it is let go. */
static int awaited_main(void)
{
    pk_comm_t *comm = open_comm();
    double begun;

    ranks_meet();
    if (ranks_rank() == LEAVER) {
        usleep(50000);
        report(pk_comm_abort(comm) == PK_OK, "an abort that a rank waits for");
    }
    begun = monotonic_ms();
    if (ranks_rank() == 0) {
        pk_result_t result = pk_recv(out, COUNT, PK_F32, LEAVER, comm, PK_BLOCKING);

        report(monotonic_ms() - begun < NOTICE_MS * test_slack(), "rank 0: back after %.0f ms", monotonic_ms() - begun);
        judge_end(comm, result, PK_ERR_ABORTED, "aborted its communicator");
        ranks_meet();
        return report_end();
    }
    ranks_meet();
    (void)pk_comm_destroy(comm);
    return report_end();
}

/* By exit, with the communicator open; or in the middle of something; or killed. */
static int end_main(const char *how)
{
    pk_comm_t *comm = open_comm();
    pk_stream_t stream;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_result_t result;

    ranks_meet();
    if (ranks_rank() == LEAVER) {
        atomic_store(&ranks_shared()->words[PID], getpid());
        if (strcmp(how, "busy") == 0 && (pk_stream_create(&stream) != PK_OK || pk_recv(out, 4, PK_F32, 0, comm, stream) != PK_OK))
            report(false, "a receive in a host stream");
        ranks_meet();
        if (strcmp(how, "killed") == 0)
            raise(SIGKILL);
        return report_end(); /* no pk_comm_destroy */
    }
    ranks_meet();
    await_end();
    if (strcmp(how, "exit") == 0) {
        stay(comm, PK_ERR_PEER, "ended its process");
        return report_end();
    }
    result = ask(comm, NOTICE_MS * test_slack());
    pk_last_error(&info);
    report(result == PK_ERR_PEER && info.peer == LEAVER, "rank %d: the idle hear of it: %d, peer %d: %s", ranks_rank(),
           (int)result, info.peer, info.text);
    (void)pk_comm_destroy(comm);
    return report_end();
}

static void drive(const char *role, bool hosts)
{
    struct ranks ranks;
    int failed;

    ranks_open(&ranks, SIZE);
    ranks_start_all(&ranks, role, NULL, NULL);
    failed = ranks_wait(&ranks, LONG_MS, strcmp(role, "killed") == 0 ? LEAVER : -1);
    ranks_close(&ranks);
    report(failed == 0, "%s, %s: %d ranks failed", role, hosts ? "between hosts" : "in a machine", failed);
}

int main(void)
{
    static const char *const roles[] = { "abort", "awaited", "exit", "busy", "killed" };
    const char *role = ranks_role();

    if (role != NULL && strcmp(role, "abort") == 0)
        return abort_main();
    if (role != NULL)
        return strcmp(role, "awaited") == 0 ? awaited_main() : end_main(role);
    for (int hosts = 0; hosts < 2; hosts++) {
        for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
            drive(roles[i], hosts != 0);
        setenv("PICKLE_TEST_HOSTS", "3", 1); /* SIZE: a host each */
    }
    return report_end();
}

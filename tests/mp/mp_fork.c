/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank forks. In the child every call on what the parent made is refused, at once and with a text, and does nothing to the parent; the child
 * can make its own. And a rank's children do not hide its death.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "turns.h"

#define SIZE 3
#define VICTIM 1
#define COUNT 1000
#define CHILD_SECONDS 30

/* Words of the shared memory. */
enum { KILLED, OVER, CHILD_IS_UP };

static struct made {
    pk_comm_t *comm;
    pk_stream_t stream;
    struct turn_loop blocking, streamed;
} made;

static void expect_refused(pk_result_t result, const char *call)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    report(result == PK_ERR_UNSUPPORTED && strstr(info.text, "fork") != NULL, "child of rank %d: %s returns %d: %s", ranks_rank(),
           call, (int)result, info.text);
}

static void try_inspection(pk_comm_t *comm)
{
    pk_path_t path = { .struct_size = sizeof path };
    pk_stats_t stats = { .struct_size = sizeof stats };
    pk_explanation_t explanation = { .struct_size = sizeof explanation };
    char text[16];
    size_t needed;
    int n;

    expect_refused(pk_comm_rank(comm, &n), "pk_comm_rank");
    expect_refused(pk_comm_size(comm, &n), "pk_comm_size");
    expect_refused(pk_comm_path(comm, 0, PK_MEM_HOST, PK_MEM_HOST, &path), "pk_comm_path");
    expect_refused(pk_comm_stats(comm, &stats), "pk_comm_stats");
    expect_refused(pk_explain(comm, PK_OP_ALLREDUCE, 1, PK_F32, PK_MEM_HOST, 0, 0, &explanation), "pk_explain");
    expect_refused(pk_config_dump(comm, text, sizeof text, &needed), "pk_config_dump");
    expect_refused(pk_pending_dump(comm, text, sizeof text, &needed), "pk_pending_dump");
    expect_refused(pk_topology_dump(comm, text, sizeof text, &needed), "pk_topology_dump");
}

static void try_parents(void)
{
    pk_comm_t *other = NULL;
    float word[2];

    for (size_t i = 0; i < turns_count; i++) {
        expect_refused(turn_run(&turns[i], &made.blocking), turns[i].name);
        expect_refused(turn_run(&turns[i], &made.streamed), turns[i].name);
    }
    expect_refused(pk_register(made.comm, word, sizeof word), "pk_register");
    expect_refused(pk_deregister(made.comm, word, sizeof word), "pk_deregister");
    expect_refused(pk_comm_async_error(made.comm), "pk_comm_async_error");
    expect_refused(pk_comm_split(made.comm, 0, 0, &other, NULL), "pk_comm_split");
    expect_refused(pk_comm_abort(made.comm), "pk_comm_abort");
    expect_refused(pk_stream_query(made.stream), "pk_stream_query");
    expect_refused(pk_stream_synchronize(made.stream), "pk_stream_synchronize");
    expect_refused(pk_stream_destroy(made.stream), "pk_stream_destroy");
    try_inspection(made.comm);
    expect_refused(pk_comm_destroy(made.comm), "pk_comm_destroy");
}

static void make_own(void)
{
    pk_unique_id_t id;
    pk_comm_t *comm = NULL;
    pk_stream_t stream;
    struct turn_loop loop;
    const struct turn *turn = turn_named("allreduce");

    report(pk_get_unique_id(&id) == PK_OK && pk_comm_init_rank(&comm, 1, 0, &id, NULL) == PK_OK &&
               pk_stream_create(&stream) == PK_OK,
           "child of rank %d: a communicator and a stream of its own", ranks_rank());
    if (comm == NULL || !turn_open(&loop, comm, stream, 0, 1, COUNT))
        return;
    report(turn_run(turn, &loop) == PK_OK && turn_was_right(turn, &loop), "child of rank %d: works in its stream", ranks_rank());
    report(pk_stream_destroy(stream) == PK_OK && pk_comm_destroy(comm) == PK_OK, "child of rank %d: ends them", ranks_rank());
    turn_close(&loop);
}

static bool set_up(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 40000;
    return report(pk_comm_init(&made.comm, &config) == PK_OK && pk_stream_create(&made.stream) == PK_OK &&
                      turn_open(&made.blocking, made.comm, PK_BLOCKING, ranks_rank(), SIZE, COUNT) &&
                      turn_open(&made.streamed, made.comm, made.stream, ranks_rank(), SIZE, COUNT),
                  "rank %d: init", ranks_rank());
}

static void all_turns(const char *when)
{
    for (size_t i = 0; i < turns_count; i++) {
        report(turn_run(&turns[i], &made.blocking) == PK_OK && turn_was_right(&turns[i], &made.blocking), "%s: rank %d: %s", when,
               ranks_rank(), turns[i].name);
        report(turn_run(&turns[i], &made.streamed) == PK_OK && turn_was_right(&turns[i], &made.streamed),
               "%s: rank %d: %s in a stream", when, ranks_rank(), turns[i].name);
    }
}

/* ---- a fork while another thread writes to the log ---- */

static atomic_int talk; /* 1: a thread is inside the callback, 2: it may leave */

static void log_slowly(void *unused, int level, const char *line)
{
    (void)unused;
    (void)level;
    (void)line;
    if (atomic_exchange(&talk, 1) == 0)
        while (atomic_load(&talk) != 2)
            usleep(1000);
}

static void *talk_long(void *unused)
{
    (void)pk_send(NULL, 1, PK_F32, 0, NULL, PK_BLOCKING);
    return unused;
}

static pid_t fork_amid_a_line(pthread_t *talker)
{
    pid_t child;

    pk_log_set_callback(log_slowly, NULL);
    if (pthread_create(talker, NULL, talk_long, NULL) != 0)
        abort();
    while (atomic_load(&talk) == 0)
        usleep(1000);
    child = fork();
    if (child != 0)
        atomic_store(&talk, 2);
    return child;
}

static int fork_main(void)
{
    int status = -1;
    pthread_t talker;
    pid_t child;

    if (!set_up())
        return 1;
    all_turns("before");
    fflush(stdout);
    child = fork_amid_a_line(&talker);
    if (child == 0) {
        alarm(CHILD_SECONDS);
        try_parents();
        make_own();
        fflush(stdout);
        _exit(report_end());
    }
    pthread_join(talker, NULL);
    pk_log_set_callback(NULL, NULL);
    report(waitpid(child, &status, 0) == child && status == 0, "rank %d: its child ended with status %d", ranks_rank(), status);
    all_turns("after");
    report(pk_stream_destroy(made.stream) == PK_OK && pk_comm_destroy(made.comm) == PK_OK, "rank %d: ends what it made",
           ranks_rank());
    turn_close(&made.blocking);
    turn_close(&made.streamed);
    return report_end();
}

static void live_on(void)
{
    alarm(CHILD_SECONDS);
    atomic_store(&ranks_shared()->words[CHILD_IS_UP], 1);
    while (!atomic_load(&ranks_shared()->words[OVER]))
        usleep(10000);
    _exit(0);
}

/* The victim is killed while its child lives on. */
static int death_main(void)
{
    const struct turn *turn = turn_named("allreduce");
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_result_t result = PK_OK;

    if (!set_up())
        return 1;
    if (ranks_rank() == VICTIM && fork() == 0)
        live_on();
    while (result == PK_OK)
        result = turn_run(turn, &made.blocking);
    pk_last_error(&info);
    report(result == PK_ERR_PEER && info.peer == VICTIM && atomic_load(&ranks_shared()->words[OVER]) == 0,
           "death: rank %d got %d naming rank %d: %.200s", ranks_rank(), (int)result, info.peer, info.text);
    return report_end();
}

static void drive_death(void)
{
    struct ranks ranks;
    int wrong;

    ranks_open(&ranks, SIZE);
    ranks_start_all(&ranks, "death", NULL, NULL);
    for (int i = 0; i < 6000 && !atomic_load(&ranks.shared->words[CHILD_IS_UP]); i++)
        usleep(10000);
    usleep(50000);
    kill(ranks.pids[VICTIM], SIGKILL);
    wrong = ranks_wait(&ranks, 20000, VICTIM);
    atomic_store(&ranks.shared->words[OVER], 1);
    report(wrong == 0, "death: %d ranks failed", wrong);
    ranks_close(&ranks);
}

int main(void)
{
    if (ranks_role() != NULL)
        return strcmp(ranks_role(), "fork") == 0 ? fork_main() : death_main();
    ranks_drive(&(struct ranks_turn){ .role = "fork", .size = SIZE }, "fork");
    drive_death();
    return report_end();
}

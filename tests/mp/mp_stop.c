/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that is stopped (SIGSTOP) amid operations. All others say so in the log after a while, naming rank and operation, and return
 * PK_ERR_TIMEOUT at the deadline, naming it too, whomever they themselves wait for. If it goes on in time, nothing is lost.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "turns.h"

#define SIZE 4
#define VICTIM 2
#define COUNT 5000
#define ENOUGH_TURNS 20
#define TIMEOUT_MS 5000 /* nobody who goes on is without a core for so long */
#define LONG_MS 60000
#define ENDS_MS 30000 /* the victim goes on when the others have given up, or then */
#define PAUSES 6
#define PAUSE_US 60000

/* Words of the shared memory. */
enum { ENDED, PAUSED };
enum { TURNS };

static struct {
    char words[64]; /* what the line must say */
    unsigned seen;
} expected_line;

static void on_line(void *arg, int level, const char *line)
{
    (void)arg;
    (void)level;
    if (strstr(line, "has waited") != NULL && strstr(line, expected_line.words) != NULL)
        expected_line.seen++;
    fprintf(stderr, "%s\n", line);
}

static pk_comm_t *make(uint64_t timeout_ms)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = timeout_ms;
    report(pk_comm_init(&comm, &config) == PK_OK, "rank %d: init", ranks_rank());
    return comm;
}

/* "stop OPERATION": until the deadline of the operation in which the victim was stopped. */
static void stop_main(const struct turn *turn)
{
    pk_error_info_t info = { .struct_size = sizeof info };
    struct turn_loop loop;
    pk_comm_t *comm = make(TIMEOUT_MS);
    pk_result_t result = PK_OK;
    double began_ms = 0, took_ms;

    snprintf(expected_line.words, sizeof expected_line.words, "for rank %d", VICTIM);
    pk_log_set_callback(on_line, NULL);
    if (comm == NULL || !turn_open(&loop, comm, PK_BLOCKING, ranks_rank(), SIZE, COUNT))
        return;
    while (result == PK_OK) {
        began_ms = monotonic_ms();
        result = turn_run(turn, &loop);
        atomic_fetch_add(&ranks_shared()->rank_words[loop.rank][TURNS], 1);
    }
    took_ms = monotonic_ms() - began_ms;
    pk_last_error(&info);
    if (loop.rank != VICTIM)
        atomic_fetch_add(&ranks_shared()->words[ENDED], 1);
    if (loop.rank == VICTIM) { /* it finds the others gone, or its own deadline passed */
        report(result == PK_ERR_TIMEOUT || result == PK_ERR_PEER, "stop %s: the victim got %d", turn->name, (int)result);
    } else {
        report(result == PK_ERR_TIMEOUT && info.peer == VICTIM, "stop %s: rank %d got %d naming rank %d after %.0f ms: %.200s",
               turn->name, loop.rank, (int)result, info.peer, took_ms, info.text);
        report(took_ms > TIMEOUT_MS * 0.9 && took_ms < TIMEOUT_MS + 200 * test_slack(), "stop %s: rank %d: after %.0f ms",
               turn->name, loop.rank, took_ms);
        report(strcmp(info.op, strcmp(turn->name, "p2p") == 0 ? info.op : turn->name) == 0,
               "stop %s: rank %d: the operation is '%s'", turn->name, loop.rank, info.op);
        report(expected_line.seen > 0, "stop %s: rank %d: the log has named rank %d", turn->name, loop.rank, VICTIM);
    }
    (void)pk_comm_destroy(comm);
    turn_close(&loop);
}

/* "pause OPERATION": the victim always goes on. Rank 0 ends it, by a broadcast, when the driver has paused often enough. */
static void pause_main(const struct turn *turn)
{
    struct turn_loop loop;
    pk_comm_t *comm = make(LONG_MS);
    pk_result_t result = PK_OK;
    bool right = true;
    int32_t enough = 0;

    if (comm == NULL || !turn_open(&loop, comm, PK_BLOCKING, ranks_rank(), SIZE, COUNT))
        return;
    while (result == PK_OK && right && !enough) {
        result = turn_run(turn, &loop);
        right = result == PK_OK && turn_was_right(turn, &loop);
        enough = atomic_load(&ranks_shared()->words[PAUSED]) >= PAUSES;
        if (result == PK_OK)
            result = pk_broadcast(&enough, &enough, 1, PK_INT32, 0, comm, PK_BLOCKING);
        atomic_fetch_add(&ranks_shared()->rank_words[loop.rank][TURNS], 1);
    }
    report(result == PK_OK && right, "pause %s: rank %d: %d, data %s, %lld turns", turn->name, loop.rank, (int)result,
           right ? "right" : "WRONG", (long long)atomic_load(&ranks_shared()->rank_words[loop.rank][TURNS]));
    report(pk_comm_destroy(comm) == PK_OK, "pause %s: rank %d: destroy", turn->name, loop.rank);
    turn_close(&loop);
}

static int rank_main(void)
{
    const char *name = strchr(ranks_role(), ' ');
    const struct turn *turn = turn_named(name + 1);

    if (turn == NULL)
        return 2;
    if (strncmp(ranks_role(), "stop", 4) == 0)
        stop_main(turn);
    else
        pause_main(turn);
    return report_end();
}

/* The victim is alone on its host. */
static void set_host(int rank, void *arg)
{
    (void)arg;
    setenv("PK_HOST_ID", rank == VICTIM ? "there" : "here", 1);
}

static void forget_host(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    unsetenv("PK_HOST_ID");
}

static void drive_stop(const char *operation, const char *algorithm, bool apart)
{
    const struct ranks_hooks hosts = { .before = set_host, .after = forget_host };
    char role[64];
    struct ranks ranks;
    bool under_way;

    if (algorithm != NULL)
        setenv("PK_ALGORITHM", algorithm, 1);
    else
        unsetenv("PK_ALGORITHM");
    snprintf(role, sizeof role, "stop %s", operation);
    ranks_open(&ranks, SIZE);
    ranks_start_all(&ranks, role, NULL, apart ? &hosts : NULL);
    under_way = ranks_under_way(&ranks, TURNS, ENOUGH_TURNS);
    kill(ranks.pids[VICTIM], SIGSTOP);
    for (int ms = 0; ms < ENDS_MS && atomic_load(&ranks.shared->words[ENDED]) < SIZE - 1; ms++)
        usleep(1000);
    kill(ranks.pids[VICTIM], SIGCONT);
    report(ranks_wait(&ranks, 60000, -1) == 0 && under_way, "%s (%s%s)", role, algorithm != NULL ? algorithm : "as chosen",
           apart ? ", between hosts" : "");
    ranks_close(&ranks);
    unsetenv("PK_ALGORITHM");
}

static void drive_pause(const char *operation)
{
    char role[64];
    struct ranks ranks;
    bool under_way;

    snprintf(role, sizeof role, "pause %s", operation);
    ranks_open(&ranks, SIZE);
    ranks_start_all(&ranks, role, NULL, NULL);
    under_way = ranks_under_way(&ranks, TURNS, ENOUGH_TURNS);
    for (int i = 0; i < PAUSES && under_way; i++) {
        kill(ranks.pids[i % SIZE], SIGSTOP);
        usleep(PAUSE_US);
        kill(ranks.pids[i % SIZE], SIGCONT);
        atomic_fetch_add(&ranks.shared->words[PAUSED], 1);
        usleep(PAUSE_US / 10);
    }
    report(ranks_wait(&ranks, 60000, -1) == 0 && under_way, "%s", role);
    ranks_close(&ranks);
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    for (size_t i = 0; i < turns_count; i++)
        drive_pause(turns[i].name);
    drive_stop("p2p", NULL, false);
    drive_stop("barrier", NULL, false);
    drive_stop("allreduce", NULL, false);
    drive_stop("allreduce", "ring", false);
    drive_stop("allreduce", "doubling", false);
    drive_stop("allreduce", "halving", false);
    drive_stop("allgather", "ring", false);
    drive_stop("allreduce", NULL, true);
    return report_end();
}

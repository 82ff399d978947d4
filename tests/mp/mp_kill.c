/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is killed (SIGKILL) amid operations: every other rank gets PK_ERR_PEER that names it, within a second, and nothing is left in
 * /dev/shm, for nothing was ever there. Between hosts the other rank of its host ends then while the rest agrees, who notice it as soon, though
 * their communicator has failed already.
 *
 * usage: mp.kill [TEXT]   only what has TEXT in its name
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "turns.h"

#define SIZE 4
#define ENOUGH_TURNS 50
#define COUNT 20000
#define NOTICE_MS 1000

/* Words of the shared memory. */
enum { KILLED_AT_NS, VICTIM, TOLD, ENDED_AT_NS }; /* TOLD: who has been told of it, and agrees next */
enum { TURNS };

/* A rank that only waits, for someone who is not the victim: it must hear of the death anyway. */
static pk_result_t only_wait(struct turn_loop *l)
{
    int victim = (int)atomic_load(&ranks_shared()->words[VICTIM]);
    int peer = (l->rank + 1) % SIZE == victim ? (l->rank + 2) % SIZE : (l->rank + 1) % SIZE;

    atomic_store(&ranks_shared()->rank_words[l->rank][TURNS], ENOUGH_TURNS + 1);
    return pk_recv(l->out, 4, PK_INT32, peer, l->comm, l->stream);
}

static const struct turn wait_turn = { "wait", only_wait, NULL, NULL };

/* In the driver and, by its name, in the ranks: "OPERATION", "OPERATION in a host stream", "OPERATION by ALGORITHM", "OPERATION between
 * hosts". */
struct role {
    char name[64];
    const struct turn *turn;
    bool stream;
};

static const char *const with_algorithm[] = { "allreduce by ring", "allreduce by doubling", "allreduce by halving",
                                              "broadcast by tree" };

static const char *const between_hosts[] = { "p2p between hosts", "barrier between hosts", "allreduce between hosts",
                                             "alltoall between hosts", "wait between hosts" };

static struct role role_of(const char *name)
{
    struct role role = { .stream = strstr(name, " in a host stream") != NULL };
    char *blank;

    snprintf(role.name, sizeof role.name, "%s", name);
    blank = strchr(role.name, ' ');
    if (blank != NULL)
        *blank = '\0';
    role.turn = strcmp(role.name, "wait") == 0 ? &wait_turn : turn_named(role.name);
    if (role.turn == NULL)
        exit(2);
    snprintf(role.name, sizeof role.name, "%s", name);
    return role;
}

/* Is this the death that the driver caused, noticed in time and named rightly? */
static int judge(const struct role *role, struct turn_loop *loop, pk_result_t result)
{
    struct ranks_shared *shared = ranks_shared();
    pk_error_info_t info = { .struct_size = sizeof info };
    int64_t took_ns = monotonic_ns() - atomic_load(&shared->words[KILLED_AT_NS]);
    int victim = (int)atomic_load(&shared->words[VICTIM]);
    bool right;

    pk_last_error(&info);
    right = atomic_load(&shared->words[KILLED_AT_NS]) != 0 && result == PK_ERR_PEER && info.peer == victim &&
            took_ns < NOTICE_MS * 1e6 * test_slack();
    report(right, "%s: rank %d got %d naming rank %d (killed: %d) after %.1f ms: %.200s", role->name, loop->rank, (int)result,
           info.peer, victim, (double)took_ns * 1e-6, info.text);
    if (pk_comm_async_error(loop->comm) != PK_ERR_PEER)
        report(false, "%s: rank %d: pk_comm_async_error is %d", role->name, loop->rank, (int)pk_comm_async_error(loop->comm));
    if (turn_run(role->turn, loop) != PK_ERR_PEER)
        report(false, "%s: rank %d: the next operation does not return PK_ERR_PEER", role->name, loop->rank);
    return right ? 0 : 1;
}

static void agree_without(const struct role *role, const struct turn_loop *loop)
{
    _Atomic int64_t *words = ranks_shared()->words;
    const int killed = (int)atomic_load(&words[VICTIM]), ends = (killed + SIZE / 2) % SIZE;
    int failed[SIZE] = { -1, -1 }, count = 0;
    int64_t took_ns;
    pk_result_t result;

    if (loop->rank == ends) {
        for (int ms = 0; ms < 20000 && atomic_load(&words[TOLD]) < SIZE - 2; ms++)
            usleep(1000);
        usleep(20000); /* they agree by now */
        atomic_store(&words[ENDED_AT_NS], monotonic_ns());
        _exit(report_end());
    }
    atomic_fetch_add(&words[TOLD], 1);
    result = pk_comm_agree(loop->comm, 0, NULL, failed, &count, NULL);
    took_ns = monotonic_ns() - atomic_load(&words[ENDED_AT_NS]);
    report(result == PK_OK && count == 2 && failed[0] + failed[1] == killed + ends && took_ns < NOTICE_MS * 1e6 * test_slack(),
           "%s: rank %d agrees (%d) that %d ranks are dead, %d and %d, %.1f ms after the last has ended", role->name, loop->rank,
           (int)result, count, failed[0], failed[1], (double)took_ns * 1e-6);
}

/* Files of other programs come and go there, so what counts is that the ranks have none: not mapped, not open. */
static bool has_file_in_dev_shm(pid_t pid)
{
    char line[4096], target[256];
    bool found = false;
    FILE *maps;

    snprintf(line, sizeof line, "/proc/%d/maps", (int)pid);
    maps = fopen(line, "r");
    while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL)
        found = strstr(line, " /dev/shm/") != NULL;
    if (maps != NULL)
        fclose(maps);
    for (int fd = 0; fd < 1024 && !found; fd++) {
        ssize_t length;

        snprintf(line, sizeof line, "/proc/%d/fd/%d", (int)pid, fd);
        length = readlink(line, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        found = strncmp(target, "/dev/shm/", 9) == 0;
    }
    return found;
}

static int rank_main(void)
{
    const struct role role = role_of(ranks_role());
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_stream_t stream = PK_BLOCKING;
    struct turn_loop loop;
    pk_comm_t *comm;
    pk_result_t result;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 20000;
    if (pk_comm_init(&comm, &config) != PK_OK || (role.stream && pk_stream_create(&stream) != PK_OK) ||
        !turn_open(&loop, comm, stream, ranks_rank(), SIZE, COUNT))
        return report(false, "%s: rank %d: init", role.name, ranks_rank()), 1;
    do {
        result = turn_run(role.turn, &loop);
        if (result == PK_OK && !turn_was_right(role.turn, &loop))
            report(false, "%s: rank %d: wrong data", role.name, loop.rank);
        atomic_fetch_add(&ranks_shared()->rank_words[loop.rank][TURNS], 1);
    } while (result == PK_OK);
    if (has_file_in_dev_shm(getpid()))
        report(false, "%s: rank %d has a file in /dev/shm", role.name, loop.rank);
    judge(&role, &loop, result);
    if (strstr(role.name, " between hosts") != NULL)
        agree_without(&role, &loop);
    if (role.stream)
        pk_stream_destroy(stream);
    if (pk_comm_destroy(comm) != PK_ERR_PEER)
        report(false, "%s: rank %d: pk_comm_destroy does not return PK_ERR_PEER", role.name, loop.rank);
    turn_close(&loop);
    return report_end();
}

static void set_algorithm(const char *role)
{
    const char *by = strstr(role, " by ");

    if (by != NULL)
        setenv("PK_ALGORITHM", by + 4, 1);
    else
        unsetenv("PK_ALGORITHM");
}

/* "OPERATION between hosts": two ranks on each of two. */
static void set_host(int rank, void *arg)
{
    (void)arg;
    setenv("PK_HOST_ID", rank % 2 == 0 ? "even" : "odd", 1);
}

static void forget_host(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    unsetenv("PK_HOST_ID");
}

static const char *wanted = ""; /* only roles in whose names this is */

static void kill_one(const char *role, int victim)
{
    const struct ranks_hooks hosts = { .before = set_host, .after = forget_host };
    struct ranks ranks;
    bool under_way;
    int wrong;

    if (strstr(role, wanted) == NULL)
        return;
    set_algorithm(role);
    ranks_open(&ranks, SIZE);
    atomic_store(&ranks.shared->words[VICTIM], victim);
    ranks_start_all(&ranks, role, NULL, strstr(role, " between hosts") != NULL ? &hosts : NULL);
    under_way = ranks_under_way(&ranks, TURNS, ENOUGH_TURNS);
    usleep(20000); /* those that only wait are waiting by now */
    if (has_file_in_dev_shm(ranks.pids[victim]))
        report(false, "%s: rank %d leaves a file in /dev/shm", role, victim);
    atomic_store(&ranks.shared->words[KILLED_AT_NS], monotonic_ns());
    kill(ranks.pids[victim], SIGKILL);
    wrong = ranks_wait(&ranks, 40000, victim);
    report(under_way && wrong == 0, "%s: rank %d killed, %s%d others failed", role, victim,
           under_way ? "" : "the ranks had not come to work, ", wrong);
    ranks_close(&ranks);
    /* What a rank might have started would be the driver's child by now. */
    if (waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD)
        report(false, "%s: a process is left", role);
}

int main(int argc, char **argv)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (argc > 1)
        wanted = argv[1];
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return 2;
    for (size_t i = 0; i < turns_count; i++)
        kill_one(turns[i].name, 2);
    for (size_t i = 0; i < sizeof with_algorithm / sizeof with_algorithm[0]; i++)
        kill_one(with_algorithm[i], 2);
    for (size_t i = 0; i < sizeof between_hosts / sizeof between_hosts[0]; i++)
        kill_one(between_hosts[i], 2);
    kill_one("wait", 2);
    kill_one("p2p in a host stream", 2);
    kill_one("allreduce in a host stream", 2);
    kill_one("p2p", 0);
    kill_one("allreduce", 0);
    kill_one("allreduce between hosts", 0);
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How processes come together: by torchrun's variables, by a nonblocking init that is polled or aborted, several at once; and how a rank
 * that cannot take part tells the others.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

/* For the address sanitizer: what the launcher's library leaks at its end is not ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libpmix";
}

#define SIZE 3
#define COMMS 3
#define LATE_US 500000
#define LONG_MS 30000

static pk_comm_config_t config_of(int nonblocking)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = LONG_MS;
    config.nonblocking = nonblocking;
    return config;
}

static pk_result_t poll_until_made(pk_comm_t *comm)
{
    int64_t until = monotonic_ns() + LONG_MS * (int64_t)1000000;
    pk_result_t result = PK_IN_PROGRESS;

    while (result == PK_IN_PROGRESS && monotonic_ns() < until) {
        usleep(1000);
        result = pk_comm_async_error(comm);
    }
    return result;
}

/* All ranks and their numbers are there. */
static bool works(pk_comm_t *comm)
{
    int32_t own = -1, all[SIZE] = { -1 }, size = 0;
    bool right = pk_comm_rank(comm, &own) == PK_OK && pk_comm_size(comm, &size) == PK_OK && size == SIZE &&
                 pk_allgather(&own, all, 1, PK_INT32, comm, PK_BLOCKING) == PK_OK;

    for (int r = 0; right && r < SIZE; r++)
        right = all[r] == r;
    return right;
}

static void torch_main(int rank)
{
    pk_comm_config_t config = config_of(0);
    pk_comm_t *comm = NULL;

    if (!report(pk_comm_init(&comm, &config) == PK_OK, "torchrun: rank %d: init", rank))
        return;
    report(works(comm), "torchrun: rank %d: allgather", rank);
    report(pk_comm_destroy(comm) == PK_OK, "torchrun: rank %d: destroy", rank);
}

/* Rank 0 comes late; the others are back at once, and can look and wait. Several communicators, all begun before one is made. */
static void poll_main(int rank)
{
    pk_comm_config_t config = config_of(1);
    pk_comm_t *comms[COMMS] = { NULL };
    double begun;

    if (rank == 0)
        usleep(LATE_US);
    begun = monotonic_ms();
    for (int c = 0; c < COMMS; c++)
        report(pk_comm_init(&comms[c], &config) == PK_IN_PROGRESS && comms[c] != NULL, "poll: rank %d: init %d is in progress",
               rank, c);
    report(monotonic_ms() - begun < 20 * test_slack(), "poll: rank %d: %d inits began in %.1f ms", rank, COMMS,
           monotonic_ms() - begun);
    for (int c = COMMS - 1; c >= 0; c--)
        report(poll_until_made(comms[c]) == PK_OK && works(comms[c]), "poll: rank %d: communicator %d works", rank, c);
    for (int c = 0; c < COMMS; c++)
        report(pk_comm_destroy(comms[c]) == PK_OK, "poll: rank %d: destroy %d", rank, c);
}

/* The last rank never comes, and the others give up soon after they began, at whatever point of the init that is. */
static void abort_main(int rank)
{
    pk_comm_config_t config = config_of(1);
    pk_comm_t *comm = NULL;
    double begun, took;
    pk_result_t error;

    if (rank == SIZE - 1)
        return;
    if (!report(pk_comm_init(&comm, &config) == PK_IN_PROGRESS, "abort: rank %d: init is in progress", rank))
        return;
    usleep((useconds_t)atomic_load(&ranks_shared()->words[0]));
    begun = monotonic_ms();
    report(pk_comm_abort(comm) == PK_OK, "abort: rank %d", rank);
    took = monotonic_ms() - begun;
    report(took < 100 * test_slack(), "abort: rank %d: took %.1f ms", rank, took);
    error = pk_comm_async_error(comm);
    /* The other's abort may have been first, and its connection gone before it could say so. */
    report(error == PK_ERR_ABORTED || error == PK_ERR_PEER, "abort: rank %d: the communicator's error is %d", rank, (int)error);
    report(pk_comm_destroy(comm) == error, "abort: rank %d: destroy", rank);
}

/* Connected once: rank 0 listens. */
static bool listens(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                   .sin_port = htons((uint16_t)atoi(strrchr(getenv("PK_ROOT"), ':') + 1)) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool connected = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;

    close(fd);
    return connected;
}

/* Rank 1 gives up while rank 0 stands still, and rank 2 never comes: when rank 0 goes on it hears of it. */
static void still_main(int rank)
{
    _Atomic int64_t *words = ranks_shared()->words;
    pk_comm_config_t config = config_of(1);
    pk_comm_t *comm = NULL;
    pk_result_t error;

    if (rank == SIZE - 1)
        return;
    if (rank == 0)
        atomic_store(&words[1], getpid());
    while (rank == 1 && (atomic_load(&words[1]) == 0 || !listens()))
        usleep(1000);
    if (rank == 1)
        kill((pid_t)atomic_load(&words[1]), SIGSTOP);
    if (!report(pk_comm_init(&comm, &config) == PK_IN_PROGRESS, "still: rank %d: init is in progress", rank))
        return;
    if (rank == 1) {
        report(pk_comm_abort(comm) == PK_OK, "still: rank %d: abort", rank);
        usleep(600000);
        kill((pid_t)atomic_load(&words[1]), SIGCONT);
    }
    error = poll_until_made(comm);
    report(error == PK_ERR_ABORTED || (rank == 0 && error == PK_ERR_PEER), "still: rank %d: the communicator's error is %d", rank,
           (int)error);
    report(pk_comm_destroy(comm) == error, "still: rank %d: destroy", rank);
}

/* One rank has no device: all are told at once, and not by the deadline. */
static void device_main(int rank)
{
    pk_comm_config_t config = config_of(0);
    pk_error_info_t info = { .struct_size = sizeof info };
    int victim = (int)atomic_load(&ranks_shared()->words[0]);
    pk_comm_t *comm = NULL;
    double begun = monotonic_ms(), took;
    pk_result_t result;

    if (rank == victim)
        config.device = PK_DEVICE_CUDA(999);
    result = pk_comm_init(&comm, &config);
    took = monotonic_ms() - begun;
    pk_last_error(&info);
    report(result == PK_ERR_UNSUPPORTED || result == PK_ERR_ARG || result == PK_ERR_SYSTEM,
           "device: rank %d: init returned %d: %s", rank, (int)result, info.text);
    report(strstr(info.text, "cuda device 999") != NULL || strstr(info.text, "999") != NULL, "device: rank %d: the text says why",
           rank);
    report(rank == victim || info.peer == victim, "device: rank %d: the record names rank %d", rank, info.peer);
    report(took < LONG_MS / 2, "device: rank %d: after %.0f ms", rank, took);
}

/* Out of ranks on two hosts: a group across both, and what is left; both work, and so does the parent. */
static void split_main(int rank)
{
    pk_comm_config_t config = config_of(0);
    pk_comm_t *parent = NULL, *group = NULL;
    int32_t own = rank, all[SIZE] = { -1, -1, -1 };
    bool right;

    if (!report(pk_comm_init(&parent, &config) == PK_OK, "split: rank %d: init", rank) ||
        !report(pk_comm_split(parent, rank == 0, -rank, &group, NULL) == PK_OK, "split: rank %d: pk_comm_split", rank))
        return;
    right = pk_allgather(&own, all, 1, PK_INT32, group, PK_BLOCKING) == PK_OK &&
            (rank == 0 ? all[0] == 0 : all[0] == 2 && all[1] == 1);
    report(right, "split: rank %d: its group has ranks %d, %d", rank, (int)all[0], (int)all[1]);
    report(works(parent), "split: rank %d: the parent works", rank);
    report(pk_comm_destroy(group) == PK_OK && pk_comm_destroy(parent) == PK_OK, "split: rank %d: destroy", rank);
}

static const struct role {
    const char *name;
    void (*main)(int rank);
} roles[] = { { "torch", torch_main }, { "poll", poll_main },     { "abort", abort_main },
              { "still", still_main }, { "device", device_main }, { "split", split_main } };

/* Ranks 1 and 2 are on different hosts. */
static void apart_before(int rank, void *arg)
{
    (void)arg;
    setenv("PK_HOST_ID", rank == 2 ? "there" : "here", 1);
}

static void apart_after(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    unsetenv("PK_HOST_ID");
}

static void torch_before(int rank, void *arg)
{
    char text[16];

    (void)arg;
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", text, 1);
    snprintf(text, sizeof text, "%d", SIZE);
    setenv("WORLD_SIZE", text, 1);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", strrchr(getenv("PK_ROOT"), ':') + 1, 1);
    unsetenv("PK_RANK");
    unsetenv("PK_SIZE");
    unsetenv("PK_ROOT");
}

static void torch_after(int rank, void *arg)
{
    static const char *const names[] = { "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT" };

    (void)rank;
    (void)arg;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

static void drive(const char *role, int64_t word, const struct ranks_hooks *hooks)
{
    ranks_drive(&(struct ranks_turn){ .role = role, .size = SIZE, .timeout_ms = 40000, .word = word, .hooks = hooks },
                "%s (%lld)", role, (long long)word);
}

static int own_rank(void)
{
    static const char *const names[] = { "RANK", "PK_RANK", "PMIX_RANK" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]) != NULL)
            return atoi(getenv(names[i]));
    return -1;
}

/* mpirun itself is the only "rank" that the driver starts. */
static void drive_mpirun(void)
{
    static const struct ranks_hooks hooks = { .before = ranks_forget };
    static char mpirun[] = "/usr/bin/mpirun", self[4096], size[16];
    char *argv[] = { mpirun, "--allow-run-as-root", "--oversubscribe", "-n", size, self, NULL };
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    if (access(mpirun, X_OK) != 0 || length < 0) {
        printf("SKIPPED: there is no %s here\n", mpirun);
        return;
    }
    self[length] = '\0';
    snprintf(size, sizeof size, "%d", SIZE);
    ranks_drive(&(struct ranks_turn){ .role = "poll", .argv = argv, .size = 1, .hooks = &hooks }, "poll under mpirun");
}

int main(void)
{
    static const struct ranks_hooks torch = { .before = torch_before, .after = torch_after };
    static const struct ranks_hooks apart = { .before = apart_before, .after = apart_after };

    if (ranks_role() != NULL) {
        for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
            if (strcmp(ranks_role(), roles[i].name) == 0)
                roles[i].main(own_rank());
        return report_end();
    }
    drive("torch", 0, &torch);
    drive("poll", 0, NULL);
    drive_mpirun();
    for (int64_t us = 0; us <= 100000; us = us == 0 ? 1000 : us * 10)
        drive("abort", us, NULL);
    drive("still", 0, NULL);
    drive("split", 0, NULL);
    drive("split", 1, &apart);
    drive("device", 0, NULL);
    drive("device", 1, NULL);
    return report_end();
}

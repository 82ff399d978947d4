/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are children of one process, each in a pid namespace of its own: both are process 1 there, both have the parent's memory at the same addresses,
 * and neither is the other. Made by fork and by a bare clone (which runs no handlers), with and without a user namespace, by a parent that has used the
 * library, one that has a communicator in the making, and one that has done neither. Collectives, transfers and streams have the right results.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ports.h"
#include "ranks.h"

#define SIZE 2
#define COUNT 10000
#define LONG_COUNT ((size_t)1 << 20)
#define SECONDS 60

enum use { UNUSED, USED, BEGUN };

struct kind {
    const char *name;
    int namespaces;
    bool bare; /* clone */
    enum use use;
};

static const struct kind kinds[] = {
    { "unused parent, pid namespaces", CLONE_NEWPID, false, UNUSED },
    { "pid namespaces", CLONE_NEWPID, false, USED },
    { "pid namespaces, bare clone", CLONE_NEWPID, true, USED },
    { "pid and user namespaces", CLONE_NEWPID | CLONE_NEWUSER, false, USED },
    { "pid namespaces, init under way", CLONE_NEWPID, false, BEGUN },
    { "pid namespaces, init under way, bare clone", CLONE_NEWPID, true, BEGUN },
};

#define KINDS (sizeof kinds / sizeof *kinds)

static char root[64];

static bool is_all(const float *out, size_t count, float each)
{
    for (size_t i = 0; i < count; i++)
        if (out[i] != each)
            return false;
    return true;
}

static bool allreduce(pk_comm_t *comm, size_t count, int rank, pk_stream_t stream)
{
    float *in = malloc(count * sizeof *in), *out = calloc(count, sizeof *out);
    pk_result_t result;
    bool right;

    for (size_t i = 0; i < count; i++)
        in[i] = (float)(rank + 1);
    result = pk_allreduce(in, out, count, PK_F32, PK_SUM, comm, stream);
    if (result == PK_OK && stream.kind == PK_STREAM_KIND_HOST)
        result = pk_stream_synchronize(stream);
    right = result == PK_OK && is_all(out, count, 3);
    free(in);
    free(out);
    return right;
}

static bool exchange(pk_comm_t *comm, int rank)
{
    float *in = malloc(LONG_COUNT * sizeof *in), *out = calloc(LONG_COUNT, sizeof *out);
    pk_result_t result = pk_group_start();
    bool right;

    for (size_t i = 0; i < LONG_COUNT; i++)
        in[i] = (float)(rank + 10);
    if (result == PK_OK)
        result = pk_send(in, LONG_COUNT, PK_F32, 1 - rank, comm, PK_BLOCKING);
    if (result == PK_OK)
        result = pk_recv(out, LONG_COUNT, PK_F32, 1 - rank, comm, PK_BLOCKING);
    right = result == PK_OK && pk_group_end() == PK_OK && is_all(out, LONG_COUNT, (float)(11 - rank));
    free(in);
    free(out);
    return right;
}

static int rank_main(const struct kind *kind, int rank)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    pk_stream_t stream;

    alarm(SECONDS);
    setenv("PK_RANK", rank == 0 ? "0" : "1", 1);
    setenv("PK_SIZE", "2", 1);
    setenv("PK_ROOT", root, 1);
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 30000;
    if (pk_comm_init(&comm, &config) != PK_OK) {
        pk_last_error(&info);
        return !report(false, "%s: rank %d, process %d: init: %.300s", kind->name, rank, (int)getpid(), info.text);
    }
    report(getpid() == 1, "%s: rank %d is process 1", kind->name, rank);
    report(allreduce(comm, COUNT, rank, PK_BLOCKING), "%s: rank %d: allreduce", kind->name, rank);
    report(allreduce(comm, LONG_COUNT, rank, PK_BLOCKING), "%s: rank %d: long allreduce", kind->name, rank);
    report(exchange(comm, rank), "%s: rank %d: exchange", kind->name, rank);
    report(pk_stream_create(&stream) == PK_OK && allreduce(comm, COUNT, rank, stream) && pk_stream_destroy(stream) == PK_OK,
           "%s: rank %d: allreduce in a stream", kind->name, rank);
    report(pk_comm_destroy(comm) == PK_OK, "%s: rank %d: destroy", kind->name, rank);
    fflush(stdout);
    return report_end();
}

static void map_user(void)
{
    int fd = open("/proc/self/uid_map", O_WRONLY);

    if (fd >= 0 && write(fd, "0 0 1", 5) == 5)
        close(fd);
}

/* The child is process 1 of a new pid namespace. */
static int rank_in_namespace(const struct kind *kind, int rank)
{
    int status = -1;
    pid_t pid;

    if (kind->bare) {
        pid = (pid_t)syscall(SYS_clone, kind->namespaces | SIGCHLD, NULL, NULL, NULL, NULL);
    } else {
        if (unshare(kind->namespaces) != 0)
            return 77;
        if ((kind->namespaces & CLONE_NEWUSER) != 0)
            map_user();
        pid = fork();
    }
    if (pid == 0)
        _exit(rank_main(kind, rank));
    if (pid < 0)
        return 77;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void use_library(enum use use)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_unique_id_t id;
    pk_comm_t *comm = NULL;
    float one = 1, out = 0;
    bool works;

    config.device = PK_DEVICE_HOST;
    config.nonblocking = use == BEGUN;
    config.timeout_ms = 2000;
    works = pk_get_unique_id(&id) == PK_OK &&
            pk_comm_init_rank(&comm, use == BEGUN ? 2 : 1, 0, &id, &config) == (use == BEGUN ? PK_IN_PROGRESS : PK_OK);
    if (use == USED)
        works =
            works && pk_allreduce(&one, &out, 1, PK_F32, PK_SUM, comm, PK_BLOCKING) == PK_OK && pk_comm_destroy(comm) == PK_OK;
    if (!works)
        _exit(2);
}

/* The parent of both, whose memory they inherit. */
static int parent_main(const struct kind *kind)
{
    pid_t pids[SIZE];
    int worst = 0;

    alarm(SECONDS + 10);
    if (kind->use != UNUSED)
        use_library(kind->use);
    for (int rank = 0; rank < SIZE; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            _exit(rank_in_namespace(kind, rank));
    }
    for (int rank = 0; rank < SIZE; rank++) {
        int status = -1;

        if (waitpid(pids[rank], &status, 0) != pids[rank] || !WIFEXITED(status))
            worst = 1;
        else if (WEXITSTATUS(status) > worst)
            worst = WEXITSTATUS(status);
    }
    return worst;
}

int main(void)
{
    int tried = 0;

    unsetenv("PICKLE_TEST_TUNING");
    unsetenv("PK_HOST_ID");
    for (size_t i = 0; i < KINDS; i++) {
        int status = -1;
        pid_t pid;

        snprintf(root, sizeof root, "127.0.0.1:%d", free_port((const int[]){ 0 }, 0));
        fflush(stdout);
        pid = fork();
        if (pid == 0)
            _exit(parent_main(&kinds[i]));
        if (waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 77)
            continue; /* not allowed here */
        tried++;
        report(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %#x", kinds[i].name, (unsigned)status);
    }
    return tried == 0 ? 77 : report_end();
}

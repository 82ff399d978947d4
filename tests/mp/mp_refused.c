/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel copies between two processes at init and refuses to later, as it does when a program drops its privileges or goes into a sandbox: the operation
 * goes on with two copies, whichever ends are refused, at the first call or in the middle of a transfer, and so do all that follow. Every operation, with the
 * right result on every rank. And one line warns of it.
 *
 * The calls of this program stand in for the C library's: they are refused from a given number on.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "turns.h"

#define NEVER INT64_MAX

static atomic_llong left = NEVER; /* calls that are not refused yet */
static atomic_int refusals, error = EPERM;
static atomic_int warnings;

/* Of a peer's memory. The last call before the first that is refused does half of its work. */
static ssize_t call(long number, pid_t pid, const struct iovec *local, const struct iovec *remote)
{
    struct iovec here = *local, there = *remote;
    long long n = pid == getpid() ? NEVER : atomic_fetch_sub(&left, 1);

    if (n <= 0) {
        atomic_fetch_add(&refusals, 1);
        errno = atomic_load(&error);
        return -1;
    }
    if (n == 1)
        here.iov_len = there.iov_len = here.iov_len / 2 + 1;
    return syscall(number, pid, &here, 1ul, &there, 1ul, 0ul);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                         unsigned long remotes, unsigned long flags)
{
    (void)locals, (void)remotes, (void)flags;
    return call(SYS_process_vm_readv, pid, local, remote);
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                          unsigned long remotes, unsigned long flags)
{
    (void)locals, (void)remotes, (void)flags;
    return call(SYS_process_vm_writev, pid, local, remote);
}

static void count_warnings(void *unused, int level, const char *line)
{
    (void)unused;
    if (level > 2)
        return;
    if (strstr(line, "process_vm_") != NULL && strstr(line, strerror(atomic_load(&error))) != NULL)
        atomic_fetch_add(&warnings, 1);
    else
        fprintf(stderr, "%s\n", line);
}

static const size_t counts[] = { 5000, 40000, 300000 }; /* int32 */
static const int64_t allowed[] = { 0, 1, 3 };
static const int errors[] = { EPERM, ENOSYS, EACCES, EINVAL, ESRCH };

/* Which ranks are refused. */
static bool is_refused(int rank, int pattern)
{
    return pattern == 0 ? rank == 0 : pattern == 1 ? rank == 1 : true;
}

static bool must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return true;
    pk_last_error(&info);
    return report(false, "rank %d: %s: %d %.300s", ranks_rank(), what, (int)result, info.text);
}

static bool turn_twice(const struct turn *turn, struct turn_loop *loop, const char *what)
{
    for (int i = 0; i < 2; i++) /* the second has all of it by two copies */
        if (!must(turn_run(turn, loop), what) ||
            (!turn_was_right(turn, loop) && !report(false, "rank %d: %s: wrong result, time %d", ranks_rank(), what, i)))
            return false;
    return true;
}

/* A communicator that is refused in one operation. */
static bool try_one(pk_comm_t *parent, pk_stream_t stream, const struct turn *turn, int number)
{
    int rank = ranks_rank(), k = number / 3 % 3, pattern = number % 3, sizes = number / 9 % 3;
    struct turn_loop loop;
    pk_comm_t *comm = NULL;
    bool passed;
    char what[128];

    snprintf(what, sizeof what, "%s of %zu, refused after %d calls, pattern %d", turn->name, counts[sizes], (int)allowed[k],
             pattern);
    if (!must(pk_comm_split(parent, 0, rank, &comm, NULL), "pk_comm_split") ||
        !turn_open(&loop, comm, number % 2 == 0 ? PK_BLOCKING : stream, rank, ranks_size(), counts[sizes]))
        return false;
    atomic_store(&error, errors[number % 5]);
    atomic_store(&warnings, 0);
    atomic_store(&refusals, 0);
    ranks_meet(); /* nobody's init is refused */
    atomic_store(&left, is_refused(rank, pattern) ? allowed[k] : NEVER);
    passed = turn_twice(turn, &loop, what);
    passed = passed && must(pk_barrier(comm, PK_BLOCKING), what);
    if (errors[number % 5] != ESRCH && (refusals > 0) != (warnings == 1))
        passed = report(false, "rank %d: %s: %d refusals, %d warnings", rank, what, (int)refusals, (int)warnings);
    ranks_shared()->rank_words[rank][0] += refusals;
    ranks_meet();
    atomic_store(&left, NEVER);
    turn_close(&loop);
    return must(pk_comm_destroy(comm), "pk_comm_destroy") && passed;
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *parent = NULL;
    pk_stream_t stream;
    bool passed;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    pk_log_set_callback(count_warnings, NULL);
    passed = must(pk_comm_init(&parent, &config), "pk_comm_init") && must(pk_stream_create(&stream), "pk_stream_create");
    for (size_t i = 0; i < turns_count && passed; i++)
        for (int number = 0; number < 27 && passed; number += ranks_size() == 2 ? 4 : 7)
            passed = try_one(parent, stream, &turns[i], number);
    if (!passed)
        _exit(1);
    report(ranks_shared()->rank_words[ranks_rank()][0] > 0, "rank %d: was refused %d times", ranks_rank(),
           (int)ranks_shared()->rank_words[ranks_rank()][0]);
    must(pk_stream_destroy(stream), "pk_stream_destroy");
    must(pk_comm_destroy(parent), "pk_comm_destroy");
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    unsetenv("PICKLE_TEST_TUNING");
    unsetenv("PK_HOST_ID");
    for (int quick = 0; quick < 2; quick++) {
        setenv("PICKLE_TEST_TUNING", quick ? "shm.one_copy_fast=1" : "shm.one_copy_fast=0", 1);
        for (int size = 2; size <= 4; size += 2)
            ranks_drive(&(struct ranks_turn){ .role = "rank", .size = size, .timeout_ms = 120000 }, "quick %d, %d ranks", quick,
                        size);
    }
    return report_end();
}

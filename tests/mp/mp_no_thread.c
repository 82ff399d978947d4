/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank may make no threads any more (ulimit -u, a pids cgroup, a sandbox). A host stream cannot be made then, nor a nonblocking init begun: PK_ERR_SYSTEM with
 * EAGAIN and a text that says so, and nothing else fails: blocking operations go on on all ranks, also over TCP with threads of its own. Who has made a stream
 * before goes on in it, and may make more, with communicators that are made later too.
 */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "seccomp.h"

#define COUNT ((size_t)1 << 20)
#define NOBODY 65534

enum { BY_LIMIT, BY_SANDBOX, OVER_TCP, CASES };

static const char *const names[CASES] = { "ulimit -u", "sandbox", "sandbox, over tcp" };
static const char *name;
static int rank;

/* For root there is no limit. */
static bool become_nobody(void)
{
    return setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0;
}

static bool limit(void)
{
    const struct rlimit one = { 1, 1 };

    return setrlimit(RLIMIT_NPROC, &one) == 0;
}

static bool sandbox(void)
{
    return seccomp_deny(SYS_clone3, SECCOMP_ANY, EAGAIN) && seccomp_deny(SYS_clone, SECCOMP_ANY, EAGAIN);
}

static bool allreduce(pk_comm_t *comm, pk_stream_t stream)
{
    float *in = malloc(COUNT * sizeof *in), *out = calloc(COUNT, sizeof *out);
    pk_result_t result;
    bool right;

    for (size_t i = 0; i < COUNT; i++)
        in[i] = (float)(rank + 1);
    result = pk_allreduce(in, out, COUNT, PK_F32, PK_SUM, comm, stream);
    if (stream.kind == PK_STREAM_KIND_HOST && result == PK_OK)
        result = pk_stream_synchronize(stream);
    right = result == PK_OK;
    for (size_t i = 0; i < COUNT; i++)
        right = right && out[i] == 3;
    free(in);
    free(out);
    return right;
}

static void expect_no_thread(pk_result_t result, const char *call)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    report(result == PK_ERR_SYSTEM && info.sys_errno == EAGAIN && strstr(info.text, "pthread_create") != NULL,
           "%s: rank %d: %s: %d, errno %d: %.200s", name, rank, call, (int)result, info.sys_errno, info.text);
}

/* Rank 0, which may make none. */
static void refused(const pk_comm_config_t *config)
{
    pk_comm_config_t nonblocking = *config;
    pk_unique_id_t id;
    pk_stream_t stream = PK_BLOCKING;
    pk_comm_t *comm = NULL;

    nonblocking.nonblocking = 1;
    expect_no_thread(pk_stream_create(&stream), "pk_stream_create");
    report(stream.handle == NULL, "%s: no stream", name);
    expect_no_thread(pk_get_unique_id(&id) == PK_OK ? pk_comm_init_rank(&comm, 1, 0, &id, &nonblocking) : PK_ERR_INTERNAL,
                     "a nonblocking init");
}

static bool expect(bool condition, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    return report(condition, "%s: rank %d: %s%s%.200s", name, rank, what, condition ? "" : ": ", condition ? "" : info.text);
}

static bool in_streams(pk_comm_t *comm, pk_stream_t old)
{
    pk_stream_t another;

    return allreduce(comm, old) && pk_stream_create(&another) == PK_OK && allreduce(comm, another) &&
           pk_stream_destroy(another) == PK_OK;
}

static int rank_main(void)
{
    int number = (int)ranks_shared()->words[0] / 2;
    bool has_stream = ranks_rank() == 1 || ranks_shared()->words[0] % 2 == 1;
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL, *later = NULL;
    pk_stream_t old = PK_BLOCKING;

    name = names[number];
    rank = ranks_rank();
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 30000;
    if ((number == BY_LIMIT && !expect(become_nobody(), "another user")) ||
        (has_stream && !expect(pk_stream_create(&old) == PK_OK, "a stream")) ||
        !expect(pk_comm_init(&comm, &config) == PK_OK, "init") ||
        (rank == 0 && !expect(number == BY_LIMIT ? limit() : sandbox(), "no more threads")))
        return report_end();
    ranks_meet();
    if (!has_stream)
        refused(&config);
    expect(allreduce(comm, PK_BLOCKING), "blocking");
    expect(pk_comm_split(comm, 0, rank, &later, NULL) == PK_OK && allreduce(later, PK_BLOCKING), "by a communicator made later");
    if (ranks_shared()->words[0] % 2 == 1)
        expect(in_streams(comm, old) && in_streams(later, old), "in streams");
    expect(pk_comm_destroy(later) == PK_OK && pk_comm_destroy(comm) == PK_OK, "destroy");
    expect(pk_comm_init(&comm, &config) == PK_OK && allreduce(comm, old) && pk_comm_destroy(comm) == PK_OK,
           "by one made when there was none");
    if (has_stream)
        expect(pk_stream_destroy(old) == PK_OK, "pk_stream_destroy");
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    unsetenv("PK_HOST_ID");
    for (int i = geteuid() == 0 ? 0 : 2 * BY_SANDBOX; i < 2 * CASES; i++) {
        if (i / 2 == OVER_TCP) {
            setenv("PICKLE_TEST_HOSTS", "2", 1);
            setenv("PK_SOCKETS", "4/2", 1);
        }
        ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .word = i }, "%s, %s", names[i / 2],
                    i % 2 == 0 ? "no stream yet" : "a stream before");
    }
    return report_end();
}

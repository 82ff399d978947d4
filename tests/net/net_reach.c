/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job whose hosts reach one another by some of their addresses only (reach.sh).
 * usage: net.reach jail                   as ok, in a sandbox that has IPv4 alone and does not tell of network interfaces
 *        net.reach denied                 the same sandbox, which says that this is not permitted
 *        net.reach ok                     init, a collective, every peer on another host is reached over tcp, and splits of which each rank is
 *                                         the first once
 *        net.reach cut ERRNO TEXT...      init fails at its deadline with this errno ("-": whichever), every TEXT is in the error's text, and before
 *                                         that a warning has named the first
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "seccomp.h"

#define COUNT 100000
#define WARN 2 /* of pk_log_callback_t */

static struct {
    const char *text;
    bool seen;
} expected;

static void look(void *arg, int level, const char *line)
{
    (void)arg;
    expected.seen = expected.seen || (level == WARN && expected.text != NULL && strstr(line, expected.text) != NULL);
    fprintf(stderr, "%s\n", line);
}

static void work(pk_comm_t *comm, int rank, int size)
{
    static float in[COUNT], out[COUNT];
    pk_path_t path = { .struct_size = sizeof path };
    int right = 0;

    for (int i = 0; i < COUNT; i++)
        in[i] = (float)(i % 1000 + rank);
    report(pk_allreduce(in, out, COUNT, PK_F32, PK_SUM, comm, PK_BLOCKING) == PK_OK, "rank %d: allreduce", rank);
    for (int i = 0; i < COUNT; i++)
        right += out[i] == (float)(size * (i % 1000) + size * (size - 1) / 2);
    report(right == COUNT, "rank %d: %d of %d elements are right", rank, right, COUNT);
    for (int r = 0; r < size; r++)
        if (r != rank)
            report(pk_comm_path(comm, r, PK_MEM_HOST, PK_MEM_HOST, &path) == PK_OK && strstr(path.reason, "address 127.") == NULL,
                   "rank %d to %d: %s, %s", rank, r, path.transport, path.reason);
}

/* Each rank is rank 0 of one: the others come to where it listens. */
static void split(pk_comm_t *comm, int rank, int size)
{
    for (int first = 0; first < size; first++) {
        pk_error_info_t info = { .struct_size = sizeof info };
        int32_t one = 1, sum = 0;
        pk_comm_t *group = NULL;
        pk_result_t result = pk_comm_split(comm, 0, (rank - first + size) % size, &group, NULL);

        (void)pk_last_error(&info);
        if (!report(result == PK_OK, "rank %d: split whose first is rank %d: %s", rank, first,
                    result == PK_OK ? "ok" : info.text))
            return;
        report(pk_allreduce(&one, &sum, 1, PK_INT32, PK_SUM, group, PK_BLOCKING) == PK_OK && sum == size,
               "rank %d: allreduce of the group", rank);
        report(pk_comm_destroy(group) == PK_OK, "destroy of the group");
    }
}

/* A sandbox. */
static bool confine(const char *name)
{
    const int error = strcmp(name, "denied") == 0 ? EACCES : EAFNOSUPPORT;

    return seccomp_deny(SYS_socket, AF_NETLINK, error) && seccomp_deny(SYS_socket, AF_INET6, error);
}

static void expect_cut(pk_result_t result, int argc, char **argv)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    (void)pk_last_error(&info);
    report(result == PK_ERR_TIMEOUT && (argv[2][0] == '-' || info.sys_errno == atoi(argv[2])), "result %d, errno %d: %s",
           (int)result, info.sys_errno, info.text);
    for (int i = 3; i < argc; i++)
        report(strstr(info.text, argv[i]) != NULL, "the text has '%s'", argv[i]);
    report(expected.seen, "a warning had '%s'", expected.text);
}

int main(int argc, char **argv)
{
    bool cut = argc > 3 && strcmp(argv[1], "cut") == 0;
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    pk_result_t result;

    if (!cut && (argc != 2 || (strcmp(argv[1], "ok") != 0 && strcmp(argv[1], "jail") != 0 && strcmp(argv[1], "denied") != 0)))
        return 2;
    if (!cut && strcmp(argv[1], "ok") != 0 && !confine(argv[1]))
        return 77;
    expected.text = cut ? argv[3] : NULL;
    pk_log_set_callback(look, NULL);
    config.device = PK_DEVICE_HOST;
    result = pk_comm_init(&comm, &config);
    if (cut) {
        expect_cut(result, argc, argv);
        return report_end();
    }
    (void)pk_last_error(&info);
    if (report(result == PK_OK, "init: %s", result == PK_OK ? "ok" : info.text)) {
        work(comm, ranks_rank(), ranks_size());
        split(comm, ranks_rank(), ranks_size());
        report(pk_comm_destroy(comm) == PK_OK, "destroy");
    }
    return report_end();
}

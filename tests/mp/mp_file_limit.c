/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit on the length of files (ulimit -f, RLIMIT_FSIZE), which holds for shared memory too, and whose signal ends a process: no rank gets the signal.
 * Memory that would be too long is refused with EFBIG and the limit's name, and the communicator goes on; where what two ranks would share is too long they use TCP.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define LIMIT ((rlim_t)1 << 20)
#define COUNT ((size_t)1 << 20)

enum { AFTER_INIT, BEFORE_INIT, TWO_HOSTS, CASES };

static const char *const names[CASES] = { "limit after init", "limit before init", "limit before init, two hosts" };
static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

static bool set_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) != 0)
        return false;
    limit.rlim_cur = LIMIT;
    return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

static bool allreduce(pk_comm_t *comm, int rank)
{
    float *in = malloc(COUNT * sizeof *in), *out = calloc(COUNT, sizeof *out);
    bool right;

    for (size_t i = 0; i < COUNT; i++)
        in[i] = (float)(rank + 1);
    right = pk_allreduce(in, out, COUNT, PK_F32, PK_SUM, comm, PK_BLOCKING) == PK_OK;
    for (size_t i = 0; i < COUNT; i++)
        right = right && out[i] == 3;
    free(in);
    free(out);
    return right;
}

static void allocate(pk_comm_t *comm, const char *name, int rank)
{
    pk_error_info_t info = { .struct_size = sizeof info };
    void *memory = NULL;
    pk_result_t result = pk_mem_alloc(comm, 4 * LIMIT, &memory);

    pk_last_error(&info);
    report(result == PK_ERR_MEMORY && info.sys_errno == EFBIG && strstr(info.text, "RLIMIT_FSIZE") != NULL && memory == NULL,
           "%s: rank %d: 4 MiB: %d, errno %d: %.200s", name, rank, (int)result, info.sys_errno, info.text);
    report(pk_mem_alloc(comm, LIMIT / 2, &memory) == PK_OK && pk_mem_free(comm, memory) == PK_OK, "%s: rank %d: 512 KiB", name,
           rank);
}

/* They cannot share memory, and say why. */
static void check_path(pk_comm_t *comm, const char *name, int rank)
{
    pk_path_t path = { .struct_size = sizeof path };
    pk_result_t result = pk_comm_path(comm, 1 - rank, PK_MEM_HOST, PK_MEM_HOST, &path);

    report(result == PK_OK && strcmp(path.transport, "tcp") == 0 && strstr(path.reason, strerror(EFBIG)) != NULL &&
               strstr(path.reason, "RLIMIT_FSIZE") != NULL,
           "%s: rank %d: %s: %s", name, rank, path.transport, path.reason);
    report(signals == 0, "%s: rank %d: %d signals", name, rank, (int)signals);
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    int number = (int)ranks_shared()->words[0], rank = ranks_rank();
    const char *name = names[number];
    pk_comm_t *comm = NULL;
    pk_result_t result;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 30000;
    if (number == BEFORE_INIT)
        signal(SIGXFSZ, count_signal); /* else it would end the process */
    if (number != AFTER_INIT && !report(set_limit(), "%s: rank %d: setrlimit", name, rank))
        return report_end();
    result = pk_comm_init(&comm, &config);
    pk_last_error(&info);
    if (number == BEFORE_INIT && result == PK_OK)
        check_path(comm, name, rank);
    if (!report(result == PK_OK && allreduce(comm, rank), "%s: rank %d: init and allreduce: %d %.200s", name, rank, (int)result,
                result == PK_OK ? "" : info.text))
        return report_end();
    if (number == AFTER_INIT && report(set_limit(), "%s: rank %d: setrlimit", name, rank))
        allocate(comm, name, rank);
    report(allreduce(comm, rank) && pk_comm_destroy(comm) == PK_OK, "%s: rank %d: goes on", name, rank);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    unsetenv("PICKLE_TEST_TUNING");
    unsetenv("PK_HOST_ID");
    for (int i = 0; i < CASES; i++) {
        if (i == TWO_HOSTS)
            setenv("PICKLE_TEST_HOSTS", "2", 1);
        ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .word = i }, "%s", names[i]);
    }
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank gives up after init what copies between processes need: it becomes another user, may not be traced any more, or goes into a sandbox. Its
 * transfers, long ones too, go on with two copies; both ranks have the right result, in that operation and in those after it.
 */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "seccomp.h"

#define COUNT ((size_t)1 << 20)
#define NOBODY 65534
#define SIZE 2

static bool become_nobody(void)
{
    return setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0;
}

static bool hide(void)
{
    return become_nobody() && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0 && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
}

static bool refuse(int error)
{
    return seccomp_deny(SYS_process_vm_readv, SECCOMP_ANY, error) && seccomp_deny(SYS_process_vm_writev, SECCOMP_ANY, error);
}

static bool sandbox(void)
{
    return refuse(EPERM);
}

static bool old_sandbox(void)
{
    return refuse(ENOSYS);
}

static const struct loss {
    const char *name;
    bool (*lose)(void);
    int ranks; /* bit r: rank r */
    bool as_root;
} losses[] = {
    { "rank 0 becomes nobody", become_nobody, 1, true },
    { "both become nobody", become_nobody, 3, true },
    { "both hide", hide, 3, true },
    { "rank 1 goes into a sandbox", sandbox, 2, false },
    { "both go into a sandbox", sandbox, 3, false },
    { "rank 0 goes into one that knows no such call", old_sandbox, 1, false },
};

#define LOSSES (sizeof losses / sizeof *losses)

static bool is_sum(const float *out, float each)
{
    for (size_t i = 0; i < COUNT; i++)
        if (out[i] != each)
            return false;
    return true;
}

static bool turn(pk_comm_t *comm, float *in, float *out, const char *when)
{
    pk_error_info_t info = { .struct_size = sizeof info };
    int rank = ranks_rank();
    pk_result_t result;

    memset(out, 0, COUNT * sizeof *out);
    result = pk_allreduce(in, out, COUNT, PK_F32, PK_SUM, comm, PK_BLOCKING);
    pk_last_error(&info);
    if (!report(result == PK_OK && is_sum(out, 3), "%s: rank %d: allreduce: %d %.200s", when, rank, (int)result,
                result == PK_OK ? "" : info.text))
        return false;
    memset(out, 0, COUNT * sizeof *out);
    result = rank == 0 ? pk_send(in, COUNT, PK_F32, 1, comm, PK_BLOCKING) : pk_recv(out, COUNT, PK_F32, 0, comm, PK_BLOCKING);
    return report(result == PK_OK && (rank == 0 || is_sum(out, 1)), "%s: rank %d: send and receive: %d", when, rank, (int)result);
}

static int rank_main(void)
{
    const struct loss *loss = &losses[ranks_shared()->words[0]];
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    int rank = ranks_rank();
    pk_comm_t *comm = NULL;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    for (size_t i = 0; i < COUNT; i++)
        in[i] = (float)(rank + 1);
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "%s: rank %d: init", loss->name, rank) || !turn(comm, in, out, "before"))
        return report_end();
    ranks_meet();
    if ((loss->ranks >> rank & 1) != 0 && !report(loss->lose(), "%s: rank %d", loss->name, rank))
        return report_end();
    ranks_meet();
    for (int i = 0; i < 3 && turn(comm, in, out, loss->name); i++)
        continue;
    report(pk_comm_destroy(comm) == PK_OK, "%s: rank %d: destroy", loss->name, rank);
    free(in);
    free(out);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    unsetenv("PICKLE_TEST_TUNING");
    unsetenv("PK_HOST_ID");
    for (size_t i = 0; i < LOSSES; i++)
        if (!losses[i].as_root || geteuid() == 0)
            ranks_drive(&(struct ranks_turn){ .role = "rank", .size = SIZE, .word = (int64_t)i }, "%s", losses[i].name);
    return report_end();
}

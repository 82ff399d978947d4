/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks in a control group that has CPU time for one and a half CPUs yield when they wait; with time for two they need not. 77 where no
 * group can be made.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "engine/life.h"
#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 2

static char group[512];
static bool version_2;

static bool put(const char *folder, const char *name, const char *text)
{
    char path[1024];
    FILE *file;
    bool good;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "w");
    if (file == NULL)
        return false;
    good = fputs(text, file) >= 0;
    return fclose(file) == 0 && good;
}

/* Inside the group of this process; the older version's controller has a tree of its own. */
static bool make_group(void)
{
    snprintf(group, sizeof group, "/sys/fs/cgroup/cpu/pickle-test-%d", (int)getpid());
    if (mkdir(group, 0700) == 0)
        return true;
    version_2 = true;
    (void)put("/sys/fs/cgroup", "cgroup.subtree_control", "+cpu");
    snprintf(group, sizeof group, "/sys/fs/cgroup/pickle-test-%d", (int)getpid());
    return mkdir(group, 0700) == 0;
}

static bool set_quota(int percent)
{
    char text[64];

    snprintf(text, sizeof text, version_2 ? "%d000 100000" : "%d000", percent);
    return put(group, version_2 ? "cpu.max" : "cpu.cfs_quota_us", text);
}

/* False: the folder is no control group, or there may be no processes in it. */
static bool join(const char *folder)
{
    char text[32];

    snprintf(text, sizeof text, "%d", (int)getpid());
    return put(folder, "cgroup.procs", text);
}

static bool can_be_joined(void)
{
    int status = 1;
    pid_t pid = fork();

    if (pid == 0)
        _exit(join(group) ? 0 : 1);
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    cpu_set_t mine;
    bool shares = strcmp(ranks_role(), "shares") == 0;
    int own = ranks_rank(), sum = 0;

    if (!report(join(getenv("PICKLE_TEST_GROUP")), "%s: rank %d joins the group", ranks_role(), own))
        return report_end();
    config.device = PK_DEVICE_HOST;
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "%s: rank %d: init", ranks_role(), own))
        return report_end();
    if (sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) < SIZE)
        shares = true;
    report(comm->engine->config.shares_cpu == shares, "%s: rank %d %s", ranks_role(), own,
           comm->engine->config.shares_cpu ? "yields" : "spins");
    report(pk_allreduce(&own, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING) == PK_OK && sum == 1, "%s: rank %d: allreduce",
           ranks_role(), own);
    report(pk_comm_destroy(comm) == PK_OK, "%s: rank %d: destroy", ranks_role(), own);
    return report_end();
}

static void drive(const char *role, int percent)
{
    report(set_quota(percent), "a quota of %d %%", percent);
    ranks_drive(&(struct ranks_turn){ .role = role, .size = SIZE }, "%d %% of a CPU", percent);
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!make_group() || !set_quota(150) || !can_be_joined()) {
        printf("SKIPPED: no control group with a quota can be made here\n");
        (void)rmdir(group);
        return 77;
    }
    setenv("PICKLE_TEST_GROUP", group, 1);
    drive("shares", 150);
    drive("has its own", 200);
    (void)rmdir(group);
    return report_end();
}

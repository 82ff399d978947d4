/* SPDX-License-Identifier: Apache-2.0 */
/* Who has a CPU of its own, what control groups allow, and PK_THREAD_CPUS. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pickle/base.h"
#include "util/cpus.h"
#include "util/thread.h"

/* ---- shares ---- */

#define RANKS 8

static struct pki_cpus cpus_of(int first, int last)
{
    struct pki_cpus cpus = { .mask = { 0 } };

    for (int cpu = first; cpu <= last; cpu++)
        cpus.mask[cpu / 64] |= 1ull << cpu % 64;
    return cpus;
}

static void expect_shares(const struct pki_cpus *ranks, int n, const char *own, const int *cpus)
{
    const struct pki_cpus *all[RANKS];

    for (int i = 0; i < n; i++)
        all[i] = &ranks[i];
    for (int i = 0; i < n; i++) {
        struct pki_cpu_share share;

        cr_assert_eq(pki_cpus_share(all, n, i, &share), PK_OK);
        cr_expect_eq(share.own, own[i] == 'y', "rank %d of %d: own %d", i, n, share.own);
        cr_expect_eq(share.cpus, cpus[i], "rank %d of %d: %d CPUs", i, n, share.cpus);
    }
}

Test(cpus, ranks_that_may_use_the_same)
{
    struct pki_cpus ranks[RANKS];

    for (int i = 0; i < RANKS; i++)
        ranks[i] = cpus_of(0, 1);
    expect_shares(ranks, 1, "y", (int[]){ 2 });
    expect_shares(ranks, 2, "yy", (int[]){ 1, 1 });
    expect_shares(ranks, 3, "nnn", (int[]){ 0, 0, 0 });
    for (int i = 0; i < RANKS; i++)
        ranks[i] = cpus_of(0, 23);
    expect_shares(ranks, 3, "yyy", (int[]){ 8, 8, 8 });
    expect_shares(ranks, 7, "yyyyyyy", (int[]){ 3, 3, 3, 3, 3, 3, 3 });
}

Test(cpus, bound_ranks)
{
    /* Two on one CPU, though the four may use sixteen together. */
    const struct pki_cpus two_of_four[] = { cpus_of(0, 0), cpus_of(0, 0), cpus_of(1, 15), cpus_of(1, 15) };
    /* The one that may go elsewhere does, whoever comes first. */
    const struct pki_cpus gives_way[] = { cpus_of(0, 1), cpus_of(0, 0), cpus_of(1, 2) },
                          row[] = { cpus_of(0, 1), cpus_of(1, 2), cpus_of(2, 3), cpus_of(0, 0) };
    /* Three have two CPUs, the fourth has more. */
    const struct pki_cpus tight[] = { cpus_of(4, 5), cpus_of(3, 5), cpus_of(5, 5), cpus_of(4, 4) };
    const struct pki_cpus one_each[] = { cpus_of(700, 700), cpus_of(1, 1), cpus_of(1023, 1023) };

    expect_shares(two_of_four, 4, "nnyy", (int[]){ 0, 0, 7, 7 });
    expect_shares(gives_way, 3, "yyy", (int[]){ 1, 0, 1 });
    expect_shares(row, 4, "yyyy", (int[]){ 1, 1, 1, 0 });
    expect_shares(tight, 4, "nynn", (int[]){ 0, 1, 0, 0 });
    expect_shares(one_each, 3, "yyy", (int[]){ 1, 1, 1 });
}

Test(cpus, ranks_with_a_quota)
{
    struct pki_cpus ranks[4];

    for (int i = 0; i < 4; i++)
        ranks[i] = cpus_of(0, 15);
    for (int i = 0; i < 2; i++)
        ranks[i].quotas[0] = (struct pki_cpu_quota){ .group = 7, .millicpus = 1500 };
    expect_shares(ranks, 4, "nnyy", (int[]){ 0, 0, 4, 4 });
    ranks[0].quotas[0].millicpus = ranks[1].quotas[0].millicpus = 2000;
    expect_shares(ranks, 4, "yyyy", (int[]){ 1, 1, 4, 4 });
    for (int i = 0; i < 4; i++) /* enough inside, not outside */
        ranks[i].quotas[i < 2] = (struct pki_cpu_quota){ .group = 8, .millicpus = 3999 };
    expect_shares(ranks, 4, "nnnn", (int[]){ 0, 0, 0, 0 });
}

/* ---- quotas ---- */

static char root[] = "/tmp/pickle-cpus-XXXXXX";

static void put(const char *path, const char *text)
{
    char all[512];
    FILE *file;

    snprintf(all, sizeof all, "%s%s", root, path);
    for (char *slash = all + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; *slash++ = '/') {
        *slash = '\0';
        (void)mkdir(all, 0700);
    }
    file = fopen(all, "w");
    cr_assert_not_null(file, "%s", all);
    fputs(text, file);
    fclose(file);
}

static void make_root(void)
{
    cr_assert_not_null(mkdtemp(root));
}

static void remove_root(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -rf %s", root);
    cr_assert_eq(system(command), 0);
}

/* `limits`: of the groups with a quota, innermost first, 0 behind the last. */
static void expect_quotas(const uint64_t *limits)
{
    struct pki_cpu_quota quotas[PKI_CPU_QUOTAS];

    pki_cpus_read_quotas(root, quotas);
    for (int i = 0; i < PKI_CPU_QUOTAS; i++) {
        cr_expect_eq(quotas[i].millicpus, limits[i], "quota %d: %d", i, (int)quotas[i].millicpus);
        cr_expect_eq(quotas[i].group != 0, limits[i] != 0);
    }
}

Test(quotas, of_version_2, .init = make_root, .fini = remove_root)
{
    static const uint64_t none[PKI_CPU_QUOTAS], two[PKI_CPU_QUOTAS] = { 1500, 4000 };

    expect_quotas(none);
    put("/proc/self/cgroup", "0::/pod/inner/own\n");
    expect_quotas(none);
    put("/sys/fs/cgroup/pod/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/pod/inner/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/pod/inner/own/cpu.max", "75000 50000\n");
    put("/sys/fs/cgroup/other/cpu.max", "1000 100000\n");
    expect_quotas(two);
    put("/sys/fs/cgroup/pod/inner/cpu.max", "nonsense\n");
    expect_quotas(two);
    put("/sys/fs/cgroup/pod/inner/cpu.max", "100000 0\n");
    expect_quotas(two);
    put("/sys/fs/cgroup/pod/inner/cpu.max", "-5 100000\n");
    expect_quotas(two);
    put("/sys/fs/cgroup/pod/inner/cpu.max", "");
    expect_quotas(two);
}

Test(quotas, of_version_1, .init = make_root, .fini = remove_root)
{
    static const uint64_t none[PKI_CPU_QUOTAS], one[PKI_CPU_QUOTAS] = { 500 };

    put("/proc/self/cgroup", "9:memory:/a\n4:cpuacct,cpu:/jobs/a:b\n1:cpuset:/c\n0::/\nno colon\n");
    put("/sys/fs/cgroup/cpu/jobs/a:b/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/jobs/a:b/cpu.cfs_period_us", "100000\n");
    expect_quotas(none);
    put("/sys/fs/cgroup/cpu/jobs/a:b/cpu.cfs_quota_us", "50000\n");
    expect_quotas(one);
    put("/proc/self/cgroup", "4:cpuacct:/jobs/a:b\n");
    expect_quotas(none);
}

/* In a container the path may be the host's, and the container's own group is what is mounted. */
Test(quotas, where_the_path_is_not_there, .init = make_root, .fini = remove_root)
{
    static const uint64_t one[PKI_CPU_QUOTAS] = { 3000 };

    put("/proc/self/cgroup", "4:cpu,cpuacct:/docker/0123/own\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    expect_quotas(one);
    put("/proc/self/cgroup", "4:cpu,cpuacct:/\n");
    expect_quotas(one);
    put("/proc/self/cgroup", "4:cpu,cpuacct:/../..\n");
    expect_quotas(one);
}

Test(quotas, of_more_groups_than_are_kept, .init = make_root, .fini = remove_root)
{
    static const uint64_t four[PKI_CPU_QUOTAS] = { 1000, 2000, 3000, 4000 };

    put("/proc/self/cgroup", "0::/e/d/c/b/a\n");
    put("/sys/fs/cgroup/e/cpu.max", "500000 100000\n");
    put("/sys/fs/cgroup/e/d/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/e/d/c/cpu.max", "300000 100000\n");
    put("/sys/fs/cgroup/e/d/c/b/cpu.max", "200000 100000\n");
    put("/sys/fs/cgroup/e/d/c/b/a/cpu.max", "100000 100000\n");
    expect_quotas(four);
}

/* ---- PK_THREAD_CPUS ---- */

Test(thread_cpus, lists)
{
    static const char *const bad[] = { "",    " ",    "x",     "0x1", "-",     "-1",    "1-",   "3-1",    "1,",
                                       ",1",  "1,,2", "1-2-3", "1 2", "0-3;8", "all,1", "8192", "0-8192", "99999999999999999999",
                                       "1.5", "+1",   "0-1:2" };
    union pki_cpu_set cpus;

    cr_assert(pki_cpus_parse("0-3,8", &cpus));
    cr_expect_eq(CPU_COUNT_S(sizeof cpus, &cpus.set), 5);
    cr_expect(CPU_ISSET_S(3, sizeof cpus, &cpus.set) && !CPU_ISSET_S(4, sizeof cpus, &cpus.set) &&
              CPU_ISSET_S(8, sizeof cpus, &cpus.set));
    cr_assert(pki_cpus_parse("8191", &cpus));
    cr_expect_eq(CPU_COUNT_S(sizeof cpus, &cpus.set), 1);
    cr_assert(pki_cpus_parse("5,5,4-5", &cpus));
    cr_expect_eq(CPU_COUNT_S(sizeof cpus, &cpus.set), 2);
    cr_assert(pki_cpus_parse("007", &cpus));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_not(pki_cpus_parse(bad[i], &cpus), "'%s'", bad[i]);
}

Test(thread_cpus, an_error_names_the_variable)
{
    static const char *const bad[] = { "everywhere", "0-", "8191" };
    pk_error_info_t info = { .struct_size = sizeof info };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("PK_THREAD_CPUS", bad[i], 1);
        cr_expect_eq(pki_cpus_configure(), PK_ERR_ARG, "'%s'", bad[i]);
        (void)pk_last_error(&info);
        cr_expect_not_null(strstr(info.text, "PK_THREAD_CPUS"), "%s", info.text);
        cr_expect_not_null(strstr(info.text, bad[i]), "%s", info.text);
    }
    setenv("PK_THREAD_CPUS", "inherit", 1);
    cr_expect_eq(pki_cpus_configure(), PK_OK);
    setenv("PK_THREAD_CPUS", "", 1);
    cr_expect_eq(pki_cpus_configure(), PK_OK);
}

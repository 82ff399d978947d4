/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much CPU time control groups let a process have. Each group on the way from its own to the root may have a quota. In a
 * container the root that can be seen may be the container's own group, while the path is still the host's: what is missing on
 * the way is passed by.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "util/cpus.h"

#define PATH_BYTES 4352 /* the longest path, and what stands before and behind it */

/* Where groups are mounted, and the controllers' names in /proc/self/cgroup; version 2 has none. */
static const struct mount {
    const char *controller, *at;
} mounts[] = { { "", "/sys/fs/cgroup" }, { "cpu", "/sys/fs/cgroup/cpu" } };

/* One line of a file in a group's folder. */
static bool read_line(const char *folder, const char *name, char *line, int capacity)
{
    char path[PATH_BYTES + 32];
    FILE *file;
    bool good;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    good = fgets(line, capacity, file) != NULL;
    (void)fclose(file);
    return good;
}

/* "150000 100000", or "max 100000"; the older version has a file for each, and -1. */
static bool read_quota(const char *folder, uint64_t *millicpus)
{
    char line[64], period_line[32];
    int64_t quota, period;

    if (read_line(folder, "cpu.max", line, sizeof line)) {
        if (sscanf(line, "%" SCNd64 " %" SCNd64, &quota, &period) != 2)
            return false;
    } else if (!read_line(folder, "cpu.cfs_quota_us", line, sizeof line) ||
               !read_line(folder, "cpu.cfs_period_us", period_line, sizeof period_line) ||
               sscanf(line, "%" SCNd64, &quota) != 1 || sscanf(period_line, "%" SCNd64, &period) != 1) {
        return false;
    }
    if (quota <= 0 || period <= 0 || quota > INT64_MAX / 1000)
        return false;
    *millicpus = (uint64_t)(quota * 1000 / period);
    return true;
}

static void add(struct pki_cpu_quota quotas[PKI_CPU_QUOTAS], uint64_t group, uint64_t millicpus)
{
    for (int i = 0; i < PKI_CPU_QUOTAS; i++)
        if (quotas[i].group == 0) {
            quotas[i] = (struct pki_cpu_quota){ .group = group, .millicpus = millicpus };
            return;
        }
}

/* From the group at `path` to the root that is mounted at `at`. */
static void walk(const char *root, const char *at, const char *path, struct pki_cpu_quota quotas[PKI_CPU_QUOTAS])
{
    char folder[PATH_BYTES];
    size_t top = (size_t)snprintf(folder, sizeof folder, "%s%s", root, at);
    uint64_t millicpus;
    struct stat of;

    if (top + strlen(path) >= sizeof folder)
        return;
    strcpy(folder + top, path);
    for (;;) {
        char *last = strrchr(folder, '/');

        if (read_quota(folder, &millicpus) && stat(folder, &of) == 0)
            add(quotas, of.st_ino, millicpus);
        if (last == NULL || last < folder + top)
            return;
        *last = '\0';
    }
}

static bool names(const char *controllers, const char *controller)
{
    size_t len = strlen(controller);

    for (const char *c = controllers;; c++) {
        size_t n = strcspn(c, ",");

        if (n == len && memcmp(c, controller, len) == 0)
            return true;
        c += n;
        if (*c == '\0')
            return false;
    }
}

void pki_cpus_read_quotas(const char *root, struct pki_cpu_quota quotas[PKI_CPU_QUOTAS])
{
    char line[PATH_BYTES], path[512];
    FILE *file;

    memset(quotas, 0, PKI_CPU_QUOTAS * sizeof *quotas);
    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) { /* number:controllers:path */
        char *controllers = strchr(line, ':'), *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

        if (group == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *group++ = '\0';
        for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++)
            if (names(controllers + 1, mounts[i].controller))
                walk(root, mounts[i].at, strcmp(group, "/") == 0 ? "" : group, quotas);
    }
    if (file != NULL)
        (void)fclose(file);
}

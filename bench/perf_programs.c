/* SPDX-License-Identifier: Apache-2.0 */
/* What pickle-perf measures by programs of their own: `pickle-perf jobs` is pickle-perf-jobs, with the rest of the command line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf.h"

static const char *const programs[] = { "jobs", "overlap" };

/* Beside this program, in the folder of that name of a build tree, or in PATH. */
static void become(const char *name, char **argv)
{
    char here[3000], path[4096];
    ssize_t n = readlink("/proc/self/exe", here, sizeof here - 1);
    char *slash;

    here[n > 0 ? n : 0] = '\0';
    slash = strrchr(here, '/');
    if (slash != NULL) {
        *slash = '\0';
        (void)snprintf(path, sizeof path, "%s/pickle-perf-%s", here, name);
        (void)execv(path, argv);
        (void)snprintf(path, sizeof path, "%s/%s/pickle-perf-%s", here, name, name);
        (void)execv(path, argv);
    }
    (void)snprintf(path, sizeof path, "pickle-perf-%s", name);
    (void)execvp(path, argv);
    fprintf(stderr, "pickle-perf: %s cannot be started, neither from %s nor from PATH: %s\n", path, here, strerror(errno));
    exit(2);
}

void perf_subcommand(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof programs / sizeof programs[0]; i++)
        if (strcmp(argv[1], programs[i]) == 0)
            become(programs[i], argv + 1);
}

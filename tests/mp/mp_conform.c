/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance list with processes as ranks: 2 and 4 by PK_RANK, PK_SIZE, PK_ROOT, and 2 under mpirun where there is one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

#define TIMEOUT_MS 110000

static char conform[4096];

static void find_conform(void)
{
    const char *dir = getenv("PICKLE_TEST_DIR");
    char self[2048];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    if (dir == NULL && length > 0) {
        self[length] = '\0';
        *strrchr(self, '/') = '\0';
        dir = self;
    }
    snprintf(conform, sizeof conform, "%s/pickle-conform", dir != NULL ? dir : ".");
    if (access(conform, X_OK) != 0) {
        fprintf(stderr, "%s is not there: set PICKLE_TEST_DIR to the folder of pickle-conform\n", conform);
        exit(2);
    }
}

/* more: a further argument, or NULL. Errors of four ranks are run by `conform` and `net.two_hosts`. */
static void by_environment(int size, char *cases, char *more)
{
    char *argv[] = { conform, "--env", "--cases", cases, more, NULL };

    ranks_drive(&(struct ranks_turn){ .argv = argv, .size = size, .timeout_ms = TIMEOUT_MS },
                "pickle-conform, processes by PK_RANK");
}

static bool find_mpirun(char *out, size_t bytes)
{
    char path[4096];
    const char *all = getenv("PATH");

    snprintf(path, sizeof path, "%s", all != NULL ? all : "");
    for (char *dir = strtok(path, ":"); dir != NULL; dir = strtok(NULL, ":")) {
        snprintf(out, bytes, "%s/mpirun", dir);
        if (access(out, X_OK) == 0)
            return true;
    }
    return false;
}

static void by_mpirun(void)
{
    static const struct ranks_hooks hooks = { .before = ranks_forget };
    char mpirun[4200];
    char *argv[] = { mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", conform, "--env", "--cases", "40", NULL };

    if (!find_mpirun(mpirun, sizeof mpirun)) {
        printf("SKIPPED: there is no mpirun here\n");
        return;
    }
    ranks_drive(&(struct ranks_turn){ .argv = argv, .size = 1, .timeout_ms = TIMEOUT_MS, .hooks = &hooks },
                "pickle-conform, 2 processes by mpirun");
}

int main(void)
{
    find_conform();
    if (getenv("PICKLE_TEST_HOSTS") != NULL) { /* net.* do more of it, under mpirun too */
        by_environment(2, "30", NULL);
        by_environment(4, "15", "--no-errors");
        return report_end();
    }
    by_environment(2, "50", NULL);
    by_environment(4, "25", "--no-errors");
    by_mpirun();
    return report_end();
}

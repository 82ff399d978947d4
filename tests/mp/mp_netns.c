/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Containers of one machine: ranks in two network namespaces, joined by a veth pair, share memory by PK_RUN_DIR. Needs root and
 * ip; skipped (77) where that is not allowed.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "turns.h"

#define SIZE 4
#define COUNT 3000
#define SKIPPED 77

static struct {
    char names[2][32], dir[64], secret[96];
} place;

static void rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_path_t path = { .struct_size = sizeof path };
    bool alone = strcmp(ranks_role(), "apart") == 0;
    pk_comm_t *comm = NULL;
    struct turn_loop loop;
    pk_result_t result;
    int rank = ranks_rank();

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 20000;
    result = pk_comm_init(&comm, &config);
    pk_last_error(&info);
    if (alone) { /* told that they share a host, and not how */
        report(result != PK_OK && strstr(info.text, "PK_RUN_DIR") != NULL, "apart: rank %d got %d: %s", rank, (int)result,
               info.text);
        return;
    }
    if (!report(result == PK_OK, "%s: rank %d: init: %s", ranks_role(), rank, result == PK_OK ? "ok" : info.text) ||
        !turn_open(&loop, comm, PK_BLOCKING, rank, SIZE, COUNT))
        return;
    for (int r = 0; r < SIZE; r++)
        if (r != rank)
            report(pk_comm_path(comm, r, PK_MEM_HOST, PK_MEM_HOST, &path) == PK_OK && strcmp(path.transport, "shm") == 0,
                   "%s: rank %d to %d: %s: %s", ranks_role(), rank, r, path.transport, path.reason);
    for (size_t i = 0; i < turns_count; i++)
        report(turn_run(&turns[i], &loop) == PK_OK && turn_was_right(&turns[i], &loop), "%s: rank %d: %s", ranks_role(), rank,
               turns[i].name);
    report(pk_comm_destroy(comm) == PK_OK, "%s: rank %d: destroy", ranks_role(), rank);
    turn_close(&loop);
}

static bool shell(const char *format, const char *a, const char *b)
{
    char command[512];

    snprintf(command, sizeof command, format, a, b);
    return system(command) == 0; /* NOLINT(cert-env33-c): a test's own words */
}

static void take_down(void)
{
    for (int i = 0; i < 2; i++)
        (void)shell("ip netns del %s 2>/dev/null%s", place.names[i], "");
    unlink(place.secret);
    rmdir(place.dir);
}

static bool set_up(void)
{
    FILE *secret;

    snprintf(place.dir, sizeof place.dir, "/tmp/pickle-netns-%d", (int)getpid());
    snprintf(place.secret, sizeof place.secret, "%s.secret", place.dir);
    for (int i = 0; i < 2; i++)
        snprintf(place.names[i], sizeof place.names[i], "pk%d%c", (int)getpid(), 'a' + i);
    if (geteuid() != 0 || mkdir(place.dir, 0700) != 0)
        return false;
    secret = fopen(place.secret, "w");
    if (secret == NULL)
        return false;
    fprintf(secret, "the secret of this test is no secret\n");
    fclose(secret);
    chmod(place.secret, 0600);
    return shell("ip netns add %s 2>/dev/null && ip netns add %s 2>/dev/null", place.names[0], place.names[1]) &&
           shell("ip link add pka netns %s type veth peer name pkb netns %s 2>/dev/null", place.names[0], place.names[1]) &&
           shell("ip -n %s addr add 10.231.7.1/30 dev pka && ip -n %s addr add 10.231.7.2/30 dev pkb", place.names[0],
                 place.names[1]) &&
           shell("ip -n %s link set pka up && ip -n %s link set pkb up", place.names[0], place.names[1]) &&
           shell("ip -n %s link set lo up && ip -n %s link set lo up", place.names[0], place.names[1]);
}

static void before(int rank, void *arg)
{
    const char *role = arg;
    char root[64];

    (void)rank;
    snprintf(root, sizeof root, "10.231.7.1:%s", strrchr(getenv("PK_ROOT"), ':') + 1);
    setenv("PK_ROOT", root, 1);
    setenv("PK_SECRET_FILE", place.secret, 1);
    if (strcmp(role, "directory") != 0)
        setenv("PK_HOST_ID", "one machine", 1);
    if (strcmp(role, "apart") != 0)
        setenv("PK_RUN_DIR", place.dir, 1);
}

static void after(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    unsetenv("PK_SECRET_FILE");
    unsetenv("PK_HOST_ID");
    unsetenv("PK_RUN_DIR");
}

static int files_in(const char *path)
{
    DIR *dir = opendir(path);
    int n = -2; /* . and .. */

    while (dir != NULL && readdir(dir) != NULL)
        n++;
    if (dir != NULL)
        closedir(dir);
    return n;
}

static void drive(char *role)
{
    struct ranks_hooks hooks = { .before = before, .after = after, .arg = role };
    char self[4096], ip[] = "/usr/sbin/ip", netns[] = "netns", exec[] = "exec";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    struct ranks ranks;

    self[length > 0 ? length : 0] = '\0';
    ranks_open(&ranks, SIZE);
    for (int r = 0; r < SIZE; r++) {
        char *argv[] = { ip, netns, exec, place.names[r % 2], self, NULL };

        ranks_start(&ranks, r, role, argv, &hooks);
    }
    report(ranks_wait(&ranks, 60000, -1) == 0, "%s", role);
    report(files_in(place.dir) == 0, "%s: %d files are left in PK_RUN_DIR", role, files_in(place.dir));
    ranks_close(&ranks);
}

int main(void)
{
    static char roles[][16] = { "both", "directory", "apart" };

    if (ranks_role() != NULL) {
        rank_main();
        return report_end();
    }
    if (access("/usr/sbin/ip", X_OK) != 0 || !set_up()) {
        printf("SKIPPED: network namespaces cannot be made here (needs root and iproute2)\n");
        take_down();
        return SKIPPED;
    }
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        drive(roles[i]);
    take_down();
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one machine of which one cannot share memory: a sandbox denies it, it runs as another user, or it has no /proc. They talk over
 * tcp, and say why; the others share memory as ever. What the machine does not let a test do (users and mounts need root) is skipped.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "seccomp.h"
#include "turns.h"

#define SIZE 3
#define ODD 1 /* the rank that is different */
#define COUNT 5000
#define OTHER_USER 65533
#define WARN 2 /* of pk_log_callback_t */
#define SKIPPED 77

static bool deny_memfd(void)
{
    return seccomp_deny(SYS_memfd_create, SECCOMP_ANY, EPERM);
}

static bool deny_unix(void)
{
    return seccomp_deny(SYS_socket, AF_UNIX, EAFNOSUPPORT);
}

static bool other_user(void)
{
    return setresuid(OTHER_USER, OTHER_USER, OTHER_USER) == 0;
}

static bool without_proc(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", "/proc", "tmpfs", 0, NULL) == 0;
}

static const struct odd {
    const char *role;
    bool (*become)(void);
    bool all; /* every rank is so */
    bool needs_root;
    const char *host;         /* PK_HOST_ID */
    const char *transport;    /* to the odd rank */
    const char *here, *there; /* in the reason, on the odd rank and on the others */
    const char *line;         /* in the warning of the odd rank; NULL: there is none */
} odds[] = {
    { "memfd", deny_memfd, false, false, NULL, "tcp", "shm does not work here: memfd_create: Operation not permitted; over tcp",
      "shm does not work on the peer: memfd_create: Operation not permitted; over tcp", "memfd_create: Operation not permitted" },
    { "unix", deny_unix, false, false, NULL, "tcp",
      "shm does not work here: socket of a unix socket: Address family not supported",
      "shm does not work on the peer: socket of a unix socket: Address family not supported", "Address family not supported" },
    { "memfd of all", deny_memfd, true, false, NULL, "tcp", "shm does not work here: memfd_create",
      "shm does not work here: memfd_create", "memfd_create: Operation not permitted" },
    { "user", other_user, false, true, NULL, "tcp", "the peer runs as another user (uid 0, this rank uid 65533); over tcp",
      "the peer runs as another user (uid 65533, this rank uid 0); over tcp", "another user" },
    { "proc", without_proc, false, true, NULL, "tcp",
      "this rank cannot tell its machine: /proc/sys/kernel/random/boot_id: No such file or directory",
      "the peer cannot tell its machine: /proc/sys/kernel/random/boot_id: No such file or directory", "PK_HOST_ID" },
    { "proc of all", without_proc, true, true, NULL, "tcp", "this rank cannot tell its machine: /proc/sys",
      "this rank cannot tell its machine: /proc/sys", "PK_HOST_ID" },
    { "proc of all, named", without_proc, true, true, "together", "shm", "on one host", "on one host", NULL },
};

static char warning[1024];
static int warnings;

static void keep_warning(void *arg, int level, const char *line)
{
    (void)arg;
    if (level != WARN)
        return;
    if (warnings++ == 0)
        snprintf(warning, sizeof warning, "%s", line);
}

static const struct odd *find_odd(const char *role)
{
    for (size_t i = 0; i < sizeof odds / sizeof odds[0]; i++)
        if (strcmp(odds[i].role, role) == 0)
            return &odds[i];
    return NULL;
}

static void check_paths(pk_comm_t *comm, const struct odd *odd, int rank)
{
    pk_path_t path = { .struct_size = sizeof path };

    for (int r = 0; r < SIZE; r++) {
        bool apart = r != rank && (odd->all || r == ODD || rank == ODD);
        bool here = odd->all || rank == ODD;
        const char *transport = apart ? odd->transport : "shm", *reason = !apart ? "on one host" : here ? odd->here : odd->there;

        if (r == rank)
            continue;
        report(pk_comm_path(comm, r, PK_MEM_HOST, PK_MEM_HOST, &path) == PK_OK && strcmp(path.transport, transport) == 0 &&
                   strstr(path.reason, reason) != NULL,
               "%s: rank %d to %d, %s: %s: %s", odd->role, rank, r, transport, path.transport, path.reason);
    }
}

/* Memory that the library allocates is there too, whoever can share it. */
static void check_memory(pk_comm_t *comm, const struct odd *odd, int rank)
{
    int32_t *memory = NULL;
    pk_result_t result = pk_mem_alloc(comm, COUNT * sizeof *memory, (void **)&memory);
    int right = 0;

    if (!report(result == PK_OK, "%s: rank %d: pk_mem_alloc: %d", odd->role, rank, (int)result))
        return;
    for (int i = 0; i < COUNT; i++)
        memory[i] = i + rank;
    result = pk_allreduce(memory, memory, COUNT, PK_INT32, PK_SUM, comm, PK_BLOCKING);
    for (int i = 0; i < COUNT; i++)
        right += memory[i] == SIZE * i + SIZE * (SIZE - 1) / 2;
    report(result == PK_OK && right == COUNT, "%s: rank %d: allreduce of it: %d, %d of %d right", odd->role, rank, (int)result,
           right, COUNT);
    report(pk_mem_free(comm, memory) == PK_OK, "%s: rank %d: pk_mem_free", odd->role, rank);
}

static void rank_main(void)
{
    const struct odd *odd = find_odd(ranks_role());
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    struct turn_loop loop;
    pk_result_t result;
    int rank = ranks_rank();
    bool is_odd = odd->all || rank == ODD;

    pk_log_set_callback(keep_warning, NULL);
    if (is_odd && !report(odd->become(), "%s: rank %d becomes so: %s", odd->role, rank, strerror(errno)))
        return;
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 20000;
    result = pk_comm_init(&comm, &config);
    pk_last_error(&info);
    if (!report(result == PK_OK, "%s: rank %d: init: %s", odd->role, rank, result == PK_OK ? "ok" : info.text) ||
        !turn_open(&loop, comm, PK_BLOCKING, rank, SIZE, COUNT))
        return;
    check_paths(comm, odd, rank);
    if (is_odd && odd->line != NULL)
        report(warnings == 1 && strstr(warning, odd->line) != NULL, "%s: rank %d: one warning of %d: %s", odd->role, rank,
               warnings, warning);
    for (size_t i = 0; i < turns_count; i++)
        report(turn_run(&turns[i], &loop) == PK_OK && turn_was_right(&turns[i], &loop), "%s: rank %d: %s", odd->role, rank,
               turns[i].name);
    check_memory(comm, odd, rank);
    report(pk_comm_destroy(comm) == PK_OK, "%s: rank %d: destroy", odd->role, rank);
    turn_close(&loop);
    if (is_odd && odd->become == without_proc) /* who looks for leaks at the end needs it */
        (void)umount2("/proc", MNT_DETACH);
}

static void before(int rank, void *arg)
{
    const struct odd *odd = arg;

    (void)rank;
    if (odd->host != NULL)
        setenv("PK_HOST_ID", odd->host, 1);
}

static void after(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    unsetenv("PK_HOST_ID");
}

int main(void)
{
    bool skipped = false;

    if (ranks_role() != NULL) {
        rank_main();
        return report_end();
    }
    for (size_t i = 0; i < sizeof odds / sizeof odds[0]; i++) {
        struct odd odd = odds[i];
        struct ranks_hooks hooks = { .before = before, .after = after, .arg = &odd };

        skipped = skipped || (odd.needs_root && geteuid() != 0);
        if (!odd.needs_root || geteuid() == 0)
            ranks_drive(&(struct ranks_turn){ .role = odd.role, .hooks = &hooks, .size = SIZE }, "%s", odd.role);
    }
    if (skipped)
        printf("SKIPPED: other users and mounts need root\n");
    return report_end() != 0 ? 1 : skipped ? SKIPPED : 0;
}

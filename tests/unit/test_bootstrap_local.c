/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets between the ranks of one host. */
#include "bootstrap_ranks.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

#include "util/socket.h"

static pk_result_t pass_memory(struct rank *self, const int *fds)
{
    const struct pki_wait wait = { .deadline_ns = pki_deadline_ns(LIMIT_MS) };
    const struct pki_where where = { .rank = self->rank, .peer = -1 };
    int memory = memfd_create("test", MFD_CLOEXEC);
    pk_result_t result = PK_OK;

    if (memory < 0 || write(memory, &self->rank, sizeof self->rank) != (ssize_t)sizeof self->rank)
        result = PK_ERR_SYSTEM;
    for (int r = 0; r < self->size && result == PK_OK; r++)
        if (fds[r] >= 0)
            result = pki_fd_send_wait(fds[r], &self->rank, sizeof self->rank, &memory, 1, &wait, &where);
    for (int r = 0; r < self->size && result == PK_OK; r++) {
        int from = -1, stored = -1, theirs = -1;
        struct pki_frame_in in = { .data = &from, .capacity = sizeof from, .fds = &theirs, .fd_capacity = 1 };

        if (fds[r] < 0)
            continue;
        result = pki_fd_recv_wait(fds[r], &in, &wait, &where);
        if (result == PK_OK && (in.bytes != sizeof from || in.fd_count != 1 || from != r ||
                                pread(theirs, &stored, sizeof stored, 0) != (ssize_t)sizeof stored || stored != r ||
                                (fcntl(theirs, F_GETFD) & FD_CLOEXEC) == 0))
            result = PK_ERR_INTERNAL;
        if (theirs >= 0)
            close(theirs);
    }
    close(memory);
    return result;
}

/* Even ranks are on one "host", odd ones on another, unless there are only a few. */
static pk_result_t mesh_body(struct rank *self, struct pki_bootstrap *b)
{
    bool local[RANKS_MAX];
    int fds[RANKS_MAX];
    pk_result_t result;

    for (int r = 0; r < self->size; r++)
        local[r] = self->size < 8 || self->size == 16 || r % 2 == self->rank % 2;
    result = pki_bootstrap_connect_local(b, local, fds, pki_deadline_ns(LIMIT_MS));
    if (result != PK_OK)
        return result;
    for (int r = 0; r < self->size; r++) {
        if ((fds[r] >= 0) != (local[r] && r != self->rank))
            result = PK_ERR_INTERNAL;
        if (fds[r] >= 0 && ((fcntl(fds[r], F_GETFL) & O_NONBLOCK) == 0 || (fcntl(fds[r], F_GETFD) & FD_CLOEXEC) == 0))
            result = PK_ERR_INTERNAL;
    }
    if (result == PK_OK)
        result = pass_memory(self, fds);
    if (result == PK_OK)
        result = pki_bootstrap_barrier(b, pki_deadline_ns(LIMIT_MS));
    for (int r = 0; r < self->size; r++)
        if (fds[r] >= 0)
            close(fds[r]);
    return result;
}

static void mesh_among(int size)
{
    struct rank ranks[RANKS_MAX];
    int before;

    open_files();
    before = open_files();
    make_ranks(ranks, size, mesh_body);
    start_ranks(ranks, size);
    join_ranks(ranks, size);
    expect_all(ranks, size, PK_OK, NULL);
    cr_expect_eq(open_files(), before);
}

static void make_socket(const char *dir, const char *file, time_t age_s)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct timespec times[2] = { { .tv_sec = time(NULL) - age_s }, { .tv_sec = time(NULL) - age_s } };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(name.sun_path, sizeof name.sun_path, "%s/%s", dir, file);
    cr_assert_eq(bind(fd, (struct sockaddr *)&name, sizeof name), 0);
    close(fd);
    cr_assert_eq(utimensat(AT_FDCWD, name.sun_path, times, 0), 0);
}

static bool exists(const char *dir, const char *file)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, file);
    return access(path, F_OK) == 0;
}

/* Sockets in a directory; those of the dead go, and nothing else. */
Test(bootstrap_local, mesh_in_a_directory, .timeout = 20)
{
    static const char *const made[] = { "pickle-dead", "pickle-young", "other", "pickle-file" };
    char dir[] = "/tmp/pickle-run-XXXXXX", path[300];
    int fd;

    cr_assert(mkdtemp(dir) != NULL);
    make_socket(dir, made[0], 3600);
    make_socket(dir, made[1], 0);
    make_socket(dir, made[2], 3600);
    snprintf(path, sizeof path, "%s/%s", dir, made[3]);
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(futimens(fd, (struct timespec[2]){ { 0 }, { 0 } }), 0);
    close(fd);
    setenv("PK_RUN_DIR", dir, 1);
    mesh_among(4);
    unsetenv("PK_RUN_DIR");
    cr_expect(!exists(dir, made[0]) && exists(dir, made[1]) && exists(dir, made[2]) && exists(dir, made[3]));
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, made[i]);
        (void)unlink(path);
    }
    cr_expect_eq(rmdir(dir), 0); /* nothing of the ranks' is left */
}

Test(bootstrap_local, directory_with_too_long_a_name)
{
    struct pki_bootstrap b = { .rank = 1 };
    struct sockaddr_un name;
    socklen_t bytes;

    setenv("PK_RUN_DIR", "/tmp/a/directory/whose/name/is/so/long/that/no/path/of/a/unix/socket/in/it/fits/into/its/address", 1);
    cr_expect_eq(pki_place_name(&b, 1, &name, &bytes), PK_ERR_ARG);
    unsetenv("PK_RUN_DIR");
}

Test(bootstrap_local, mesh_1, .timeout = 20)
{
    mesh_among(1);
}
Test(bootstrap_local, mesh_2, .timeout = 20)
{
    mesh_among(2);
}
Test(bootstrap_local, mesh_16, .timeout = 20)
{
    mesh_among(16);
}
Test(bootstrap_local, mesh_32_on_two_hosts, .timeout = 20)
{
    mesh_among(32);
}

static pk_result_t half_mesh_body(struct rank *self, struct pki_bootstrap *b)
{
    bool local[4] = { true, true, true, true };
    int fds[4];

    if (self->rank == 2)
        memset(local, 0, sizeof local); /* thinks that it is alone */
    return pki_bootstrap_connect_local(b, local, fds, pki_deadline_ns(300));
}

Test(bootstrap_local, with_one_missing, .timeout = 20)
{
    struct rank ranks[4];
    int before = open_files();

    make_ranks(ranks, 4, half_mesh_body);
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    for (int r = 0; r < 4; r++)
        if (r != 2)
            cr_expect(ranks[r].result == PK_ERR_TIMEOUT || ranks[r].result == PK_ERR_PEER, "rank %d: %s", r, ranks[r].error.text);
    cr_expect(strstr(ranks[0].error.text, "rank 2") != NULL, "%s", ranks[0].error.text);
    cr_expect_eq(open_files(), before);
}

static pk_result_t mesh_death_body(struct rank *self, struct pki_bootstrap *b)
{
    bool local[4] = { true, true, true, true };
    int fds[4] = { -1, -1, -1, -1 };
    pk_result_t result;

    if (self->rank == 1) {
        result = pki_bootstrap_barrier(b, pki_deadline_ns(LIMIT_MS)); /* the one inside connect_local, for the others */
        shutdown(b->conns[0].fd, SHUT_RDWR);
        return result;
    }
    return pki_bootstrap_connect_local(b, local, fds, pki_deadline_ns(LIMIT_MS));
}

Test(bootstrap_local, death_is_noticed, .timeout = 20)
{
    struct rank ranks[4];

    make_ranks(ranks, 4, mesh_death_body);
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    for (int r = 0; r < 4; r++)
        if (r != 1) {
            cr_expect_eq(ranks[r].result, PK_ERR_PEER, "rank %d: %s", r, ranks[r].error.text);
            cr_expect_eq(ranks[r].error.peer, 1);
            cr_expect_lt(ranks[r].took_ms, SOON_MS);
        }
}

/* The system call itself changes this thread alone. */
static pk_result_t user_body(struct rank *self, struct pki_bootstrap *b)
{
    static const bool local[] = { true, true };
    int fds[2];

    if (self->rank == 1 && syscall(SYS_setresuid, 65533, 65533, 65533) != 0)
        return PK_ERR_SYSTEM;
    return pki_bootstrap_connect_local(b, local, fds, pki_deadline_ns(LIMIT_MS));
}

/* Where cards cannot tell: nobody is let in, both say who is who, and neither names itself. */
Test(bootstrap_local, another_user, .timeout = 20)
{
    struct rank ranks[2];

    if (geteuid() != 0)
        cr_skip_test("needs root");
    make_ranks(ranks, 2, user_body);
    start_ranks(ranks, 2);
    join_ranks(ranks, 2);
    expect_all(ranks, 2, PK_ERR_UNSUPPORTED, "rank 0 on this host runs as another user (uid 0, rank 1 as uid 65533)");
    expect_all(ranks, 2, PK_ERR_UNSUPPORTED, "PK_HOST_ID");
    cr_expect_eq(ranks[0].error.peer, 1);
    cr_expect_eq(ranks[1].error.peer, 0);
}

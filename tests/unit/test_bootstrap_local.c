/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets between the ranks of one host. */
#include "bootstrap_ranks.h"

#include <fcntl.h>
#include <sys/mman.h>

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

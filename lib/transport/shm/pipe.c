/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages lent through a pipe. vmsplice puts references to the sender's pages into a pipe, and the receiver's read copies from them: one
 * copy, as by process_vm_readv, but each process looks up only pages of its own, which the kernel does without the other's page tables and
 * locks. Between cores that share a cache that takes 0.7 of the time; between others the pages' reference counts, which go to and fro,
 * cost more than it saves (docs/design/0006): the engine measures.
 *
 * The pipe is made when it is first used. The receiver takes its end out of the sender's process: who may read its memory may do that.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/shm/shm.h"
#include "util/fork.h"

#define PIPE_BYTES (512 << 10) /* a user without privileges may have 64 MiB of pages in pipes: enough for 8 ranks and some */

static int take_descriptor(const struct pki_ep *ep, int number)
{
    int process = (int)syscall(SYS_pidfd_open, (pid_t)ep->peer_pid, 0u), fd = -1, error;

    if (process >= 0)
        fd = (int)syscall(SYS_pidfd_getfd, process, number, 0u);
    error = errno;
    if (process >= 0)
        close(process);
    errno = error;
    return fd;
}

/* `number`: of the descriptor in the peer's process that `same` is a copy of. */
bool pki_shm_pipe_works(const struct pki_ep *ep, int number, int same)
{
    struct stat a, b;
    int fd = take_descriptor(ep, number);
    bool works = fd >= 0 && fstat(fd, &a) == 0 && fstat(same, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;

    if (fd >= 0)
        close(fd);
    return works;
}

static bool pipe_make(struct pki_shm_ep *shm)
{
    if (pipe2(shm->lends, O_CLOEXEC | O_NONBLOCK) != 0) {
        shm->lends[0] = shm->lends[1] = -1;
        return false;
    }
    pki_fork_guard(shm->lends[0]);
    pki_fork_guard(shm->lends[1]);
    return fcntl(shm->lends[1], F_SETPIPE_SZ, PIPE_BYTES) >= PIPE_BYTES;
}

/* Both ends stay open here: a peer that is gone must not become a signal. */
pk_result_t pki_shm_lend(struct pki_ep *ep, const void *src, size_t bytes, size_t *lent, uint32_t *through)
{
    struct pki_shm_ep *shm = pki_shm_ep_of(ep);
    struct iovec pages = { .iov_base = (void *)(uintptr_t)src, .iov_len = bytes };
    ssize_t n;

    if (ep->dead)
        return PK_ERR_PEER;
    if (ep->can_lend && shm->lends[0] < 0)
        ep->can_lend = pipe_make(shm);
    if (!ep->can_lend)
        return PK_ERR_UNSUPPORTED;
    n = vmsplice(shm->lends[1], &pages, 1, SPLICE_F_NONBLOCK);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return PK_ERR_UNSUPPORTED;
    *lent = n > 0 ? (size_t)n : 0;
    *through = (uint32_t)shm->lends[0];
    return PK_OK;
}

static pk_result_t find_pipe(struct pki_shm_ep *shm, uint32_t through)
{
    struct pki_where where = pki_shm_where(&shm->base);
    struct stat st;

    if (shm->borrows >= 0)
        return PK_OK;
    shm->borrows = take_descriptor(&shm->base, (int)through);
    if (shm->borrows < 0)
        return pki_fail_errno(PK_ERR_PEER, &where, "over shm: pidfd_getfd of the peer's pipe %u", through);
    pki_fork_guard(shm->borrows);
    if (fstat(shm->borrows, &st) != 0 || !S_ISFIFO(st.st_mode))
        return pki_fail(PK_ERR_PEER, &where, "over shm: the peer's descriptor %u is no pipe", through);
    return PK_OK;
}

pk_result_t pki_shm_borrow(struct pki_ep *ep, uint32_t through, void *dst, size_t bytes)
{
    struct pki_shm_ep *shm = pki_shm_ep_of(ep);
    struct pki_where where = pki_shm_where(ep);
    pk_result_t result = ep->dead ? PK_ERR_PEER : find_pipe(shm, through);

    for (size_t done = 0; result == PK_OK && done < bytes;) {
        ssize_t n = read(shm->borrows, (char *)dst + done, bytes - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* it was all there before the message was written */
            result = pki_fail_errno(PK_ERR_PEER, &where, "over shm: read of %zu bytes that the peer has lent, after %zu", bytes, done);
        else
            done += (size_t)n;
    }
    return result;
}

void pki_shm_pipe_close(struct pki_shm_ep *shm)
{
    int *fds[] = { &shm->lends[0], &shm->lends[1], &shm->borrows };

    for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (*fds[i] < 0)
            continue;
        pki_fork_let_go(*fds[i]);
        close(*fds[i]);
        *fds[i] = -1;
    }
}

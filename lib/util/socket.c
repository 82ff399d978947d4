/* SPDX-License-Identifier: Apache-2.0 */
#include "util/socket.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/fd.h"

#define FRAME_MAGIC 0x664b50u /* "PKf" */

/* Both ends are on one machine, so the bytes are in its own order. */
struct frame_header {
    uint32_t magic;
    uint32_t bytes;
    uint32_t fd_count;
};

_Static_assert(sizeof(struct frame_header) == PKI_FD_HEADER_BYTES, "what lies before a frame's bytes");

union control {
    struct cmsghdr align;
    char room[CMSG_SPACE(sizeof(int) * PKI_FRAME_FDS)];
};

static bool is_off(const struct pki_call_off *cancel)
{
    return atomic_load_explicit(&cancel->state, memory_order_acquire) != PKI_GOES_ON;
}

bool pki_is_called_off(struct pki_call_off *cancel)
{
    uint64_t now;

    if (cancel == NULL)
        return false;
    if (cancel->look == NULL || is_off(cancel))
        return is_off(cancel);
    now = pki_now_ns();
    if (now - cancel->looked_ns >= pki_tuning.wait.slice_ns) {
        cancel->looked_ns = now;
        cancel->look(cancel);
    }
    return is_off(cancel);
}

pk_result_t pki_poll(struct pollfd *fds, size_t count, const struct pki_wait *wait)
{
    for (;;) {
        uint64_t now = pki_now_ns();
        uint64_t left = wait->deadline_ns > now ? wait->deadline_ns - now : 0;
        uint64_t slice = left < pki_tuning.wait.slice_ns ? left : pki_tuning.wait.slice_ns;
        struct timespec timeout = { .tv_nsec = (long)slice };
        int ready;

        pk_result_t news;

        if (pki_is_called_off(wait->cancel))
            return PK_ERR_ABORTED;
        ready = ppoll(fds, (nfds_t)count, &timeout, NULL);
        if (ready > 0)
            return PK_OK;
        if (ready < 0 && errno != EINTR)
            return pki_fail_errno(PK_ERR_SYSTEM, NULL, "poll of %zu descriptors", count);
        if (left == 0)
            return PK_IN_PROGRESS;
        news = wait->listen != NULL ? wait->listen(wait->arg) : PK_OK;
        if (news != PK_OK)
            return news;
    }
}

/* Wait for one descriptor in the middle of a transfer; here running out of time is an error that can be named. */
static pk_result_t wait_one(int fd, short events, const struct pki_wait *wait, const struct pki_where *where, const char *doing)
{
    struct pollfd p = { .fd = fd, .events = events };
    pk_result_t result = pki_poll(&p, 1, wait);

    if (result == PK_IN_PROGRESS)
        return pki_fail(PK_ERR_TIMEOUT, where, "deadline passed while %s", doing);
    if (result == PK_ERR_ABORTED && pki_is_called_off(wait->cancel))
        return pki_fail(PK_ERR_ABORTED, where, "aborted while %s", doing);
    return result;
}

static bool would_block(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK;
}

static bool peer_gone(int error)
{
    return error == EPIPE || error == ECONNRESET || error == ETIMEDOUT || error == EHOSTUNREACH || error == ENOTCONN;
}

pk_result_t pki_send_all(int fd, const void *data, size_t bytes, const struct pki_wait *wait, const struct pki_where *where)
{
    const char *from = data;
    size_t done = 0;

    while (done < bytes) {
        ssize_t n = send(fd, from + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        pk_result_t result = PK_OK;

        if (n >= 0)
            done += (size_t)n;
        else if (would_block(errno))
            result = wait_one(fd, POLLOUT, wait, where, "sending");
        else if (errno != EINTR)
            result = pki_fail_errno(peer_gone(errno) ? PK_ERR_PEER : PK_ERR_SYSTEM, where, "send failed after %zu of %zu bytes",
                                    done, bytes);
        if (result != PK_OK)
            return result;
    }
    return PK_OK;
}

static void attach_fds(struct msghdr *message, union control *control, const int *fds, int fd_count)
{
    const size_t bytes = sizeof(int) * (size_t)fd_count;
    struct cmsghdr *c;

    if (fd_count == 0)
        return;
    memset(control, 0, sizeof *control);
    message->msg_control = control;
    message->msg_controllen = CMSG_SPACE(bytes);
    c = CMSG_FIRSTHDR(message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(c), fds, bytes);
}

pk_result_t pki_fd_send(int fd, const void *data, size_t bytes, const int *fds, int fd_count, const struct pki_where *where)
{
    struct frame_header header = { .magic = FRAME_MAGIC, .bytes = (uint32_t)bytes, .fd_count = (uint32_t)fd_count };
    struct iovec parts[2] = { { &header, sizeof header }, { (void *)(uintptr_t)data, bytes } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    union control control;
    ssize_t n;

    if (bytes > PKI_FRAME_MAX || fd_count < 0 || fd_count > PKI_FRAME_FDS)
        return pki_fail(PK_ERR_ARG, where, "a frame of %zu bytes and %d descriptors is over the limit of %d and %d", bytes,
                        fd_count, PKI_FRAME_MAX, PKI_FRAME_FDS);
    attach_fds(&message, &control, fds, fd_count);
    do {
        n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n == (ssize_t)(sizeof header + bytes))
        return PK_OK;
    /* ETOOMANYREFS: this user has as many descriptors in flight as it may have open; it passes when receivers read. */
    if (n < 0 && (would_block(errno) || errno == ETOOMANYREFS))
        return PK_IN_PROGRESS;
    if (n < 0 && where == NULL)
        return peer_gone(errno) ? PK_ERR_PEER : PK_ERR_SYSTEM;
    if (n < 0)
        return pki_fail_errno(peer_gone(errno) ? PK_ERR_PEER : PK_ERR_SYSTEM, where, "sendmsg of %zu bytes and %d descriptors",
                              bytes, fd_count);
    return pki_fail(PK_ERR_SYSTEM, where, "the system took %zd bytes of a frame of %zu: is SO_SNDBUF too small?", n,
                    sizeof header + bytes);
}

/* Look at the next frame's header without taking it. */
static pk_result_t peek_header(int fd, struct frame_header *header, const struct pki_where *where)
{
    ssize_t n;

    do {
        n = recv(fd, header, sizeof *header, MSG_PEEK | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && would_block(errno))
        return PK_IN_PROGRESS;
    if (n < 0)
        return pki_fail_errno(peer_gone(errno) ? PK_ERR_PEER : PK_ERR_SYSTEM, where, "receive of a frame");
    if (n == 0)
        return pki_fail(PK_ERR_PEER, where, "connection closed");
    if (n != (ssize_t)sizeof *header || header->magic != FRAME_MAGIC)
        return pki_fail(PK_ERR_INTERNAL, where, "the socket carries bytes that are not a frame");
    return PK_OK;
}

/* Take every descriptor out of the control data: the first `room` go to `fds`, any others are closed. Returns how many there
 * were, less those that could not be kept. */
static int detach_fds(struct msghdr *message, int *fds, int room)
{
    int count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            fd = pki_fd_keep(fd);
            if (fd >= 0 && count < room)
                fds[count] = fd;
            else if (fd >= 0)
                close(fd);
            count += fd >= 0;
        }
    }
    return count;
}

static void close_fds(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

/* Take exactly the frame that `header` announces. Its descriptors land in `fds`, which has room for PKI_FRAME_FDS. */
static pk_result_t take_frame(int fd, const struct frame_header *header, void *data, int *fds, const struct pki_where *where)
{
    struct frame_header again;
    struct iovec parts[2] = { { &again, sizeof again }, { data, header->bytes } };
    union control control;
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control };
    ssize_t n;
    int count;

    do {
        n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, where, "recvmsg of a frame of %u bytes", header->bytes);
    count = detach_fds(&message, fds, PKI_FRAME_FDS);
    if (n == (ssize_t)(sizeof again + header->bytes) && count == (int)header->fd_count && (message.msg_flags & MSG_CTRUNC) == 0)
        return PK_OK;
    close_fds(fds, count < PKI_FRAME_FDS ? count : PKI_FRAME_FDS);
    if ((message.msg_flags & MSG_CTRUNC) != 0 || count < (int)header->fd_count)
        return pki_fail(PK_ERR_SYSTEM, where, "%d of %u descriptors arrived: too many files are open here", count,
                        header->fd_count);
    return pki_fail(PK_ERR_INTERNAL, where, "a frame of %u bytes came in pieces", header->bytes);
}

pk_result_t pki_fd_recv(int fd, struct pki_frame_in *in, const struct pki_where *where)
{
    struct frame_header header;
    int fds[PKI_FRAME_FDS];
    pk_result_t result = peek_header(fd, &header, where);

    if (result != PK_OK)
        return result;
    if (header.bytes > in->capacity || header.bytes > PKI_FRAME_MAX || header.fd_count > (uint32_t)in->fd_capacity ||
        header.fd_count > PKI_FRAME_FDS)
        return pki_fail(PK_ERR_ARG, where, "a frame of %u bytes and %u descriptors came where %zu and %d were expected",
                        header.bytes, header.fd_count, in->capacity, in->fd_capacity);
    result = take_frame(fd, &header, in->data, fds, where);
    if (result != PK_OK)
        return result;
    in->bytes = header.bytes;
    in->fd_count = (int)header.fd_count;
    if (in->fd_count > 0)
        memcpy(in->fds, fds, sizeof(int) * (size_t)in->fd_count);
    return PK_OK;
}

pk_result_t pki_fd_send_wait(int fd, const void *data, size_t bytes, const int *fds, int fd_count, const struct pki_wait *wait,
                             const struct pki_where *where)
{
    for (;;) {
        pk_result_t result = pki_fd_send(fd, data, bytes, fds, fd_count, where);

        if (result != PK_IN_PROGRESS)
            return result;
        /* Out of descriptors in flight is no matter of room in the socket: poll would return at once. */
        if (errno == ETOOMANYREFS)
            usleep(pki_tuning.wait.turn_us);
        result = wait_one(fd, POLLOUT, wait, where, "sending a frame");
        if (result != PK_OK)
            return result;
    }
}

pk_result_t pki_fd_recv_wait(int fd, struct pki_frame_in *in, const struct pki_wait *wait, const struct pki_where *where)
{
    for (;;) {
        pk_result_t result = pki_fd_recv(fd, in, where);

        if (result != PK_IN_PROGRESS)
            return result;
        result = wait_one(fd, POLLIN, wait, where, "waiting for a frame");
        if (result != PK_OK)
            return result;
    }
}

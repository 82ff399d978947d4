/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/bootstrap/accept.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tuning/tuning.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

/* A rank answers within a round trip; a stranger may hold a slot this long. */
#define PENDING_NS (5 * PKI_NS_PER_S)
#define WARNINGS 3

struct pki_acceptor *pki_acceptor_open(const struct pki_secret *secret, enum pki_hello_kind kind, int rank, const int *listeners,
                                       int listener_count)
{
    struct pki_acceptor *a = calloc(1, sizeof *a);

    if (a == NULL)
        return NULL;
    a->secret = secret;
    a->kind = kind;
    a->rank = (uint32_t)rank;
    a->listeners = listeners;
    a->listener_count = listener_count;
    return a;
}

void pki_acceptor_close(struct pki_acceptor *a)
{
    if (a == NULL)
        return;
    for (size_t i = 0; i < a->pending_count; i++)
        close(a->pending[i].fd);
    free(a);
}

size_t pki_acceptor_polls(struct pki_acceptor *a, struct pollfd *polls)
{
    const bool resting = a->pause_until_ns > pki_now_ns();
    size_t count = 0;

    for (int i = 0; i < a->listener_count; i++)
        polls[count++] = (struct pollfd){ .fd = resting ? -1 : a->listeners[i], .events = POLLIN };
    for (size_t i = 0; i < a->pending_count; i++)
        polls[count++] = (struct pollfd){ .fd = a->pending[i].fd, .events = POLLIN };
    return count;
}

uint64_t pki_acceptor_due_ns(const struct pki_acceptor *a)
{
    uint64_t due = UINT64_MAX;

    for (size_t i = a->done_count; i < a->pending_count; i++)
        if (a->pending[i].deadline_ns < due)
            due = a->pending[i].deadline_ns;
    if (a->pause_until_ns != 0 && a->pause_until_ns < due)
        due = a->pause_until_ns;
    return due;
}

static void remove_pending(struct pki_acceptor *a, size_t i)
{
    a->pending_count--;
    memmove(&a->pending[i], &a->pending[i + 1], (a->pending_count - i) * sizeof a->pending[0]);
}

/* Ranks that have found rank 0 at another one of its addresses leave so, and whoever only looks whether somebody listens. */
static bool left_early(const struct pki_handshake *h, pk_result_t result)
{
    return result == PK_ERR_PEER && (errno == ECONNRESET || (h->state == PKI_HS_HELLO && h->have == 0));
}

static const char *reason_to_drop(pk_result_t result)
{
    if (result == PK_ERR_AUTH)
        return "could not prove the secret";
    return result == PK_ERR_PEER ? "left" : "said nothing more";
}

/* Who came and was no rank of this job: a few of them are worth a line, a flood is not. A rank that leaves after its hello has
 * found rank 0 at another address, or has another secret, and says so itself. */
static void drop(struct pki_acceptor *a, size_t i, const char *why)
{
    const bool left = strcmp(why, reason_to_drop(PK_ERR_PEER)) == 0;
    const struct pki_handshake *h = &a->pending[i];
    const struct pki_where where = { .rank = (int)a->rank, .peer = -1, .op = "init" };

    if (a->dropped++ < WARNINGS) {
        if (h->state == PKI_HS_PROOF)
            pki_log(left ? PKI_LOG_INFO : PKI_LOG_WARN, &where, "dropped a connection that called itself rank %u and %s",
                    h->hello.from, why);
        else
            pki_log(PKI_LOG_WARN, &where, "dropped a connection that %s before its hello", why);
    }
    close(h->fd);
    remove_pending(a, i);
}

static void drop_version(struct pki_acceptor *a, size_t i)
{
    const struct pki_where where = { .rank = (int)a->rank, .peer = -1, .op = "init" };

    if (!a->other_version)
        pki_log(PKI_LOG_WARN, &where, "dropped a connection of a process with another version of the library");
    a->other_version = true;
    a->dropped++;
    close(a->pending[i].fd);
    remove_pending(a, i);
}

bool pki_unix_same_user(int fd, uint32_t *user)
{
    struct ucred who = { .uid = UINT32_MAX };
    socklen_t bytes = sizeof who;
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0;

    *user = who.uid;
    return known && who.uid == geteuid();
}

/* Of those that are not done, one that has said nothing if there is one: a rank speaks at once. */
static size_t oldest(const struct pki_acceptor *a)
{
    for (size_t i = a->done_count; i < a->pending_count; i++)
        if (a->pending[i].state == PKI_HS_HELLO)
            return i;
    return a->done_count;
}

static void take_in(struct pki_acceptor *a, int fd)
{
    const struct pki_where where = { .rank = (int)a->rank, .peer = -1, .op = "init" };
    const int on = 1;
    uint32_t user;

    if (a->kind == PKI_HELLO_LOCAL && !pki_unix_same_user(fd, &user)) {
        if (a->dropped++ < WARNINGS)
            pki_log(PKI_LOG_WARN, &where, "dropped a connection of another user (uid %u, this rank uid %u)", user,
                    (unsigned)geteuid());
        close(fd);
        return;
    }
    if (a->kind == PKI_HELLO_CONTROL)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (a->pending_count == PKI_ACCEPT_PENDING)
        drop(a, oldest(a), "was dropped to make room for newer connections");
    pki_handshake_accept(&a->pending[a->pending_count++], fd, a->secret, pki_now_ns() + PENDING_NS);
}

/* Too many open files is no reason to fail while strangers hold some of them: let the oldest go, and rest when there is none.
 * Whoever waits here until the deadline has to learn why from the log: the ranks at the door cannot say it. */
static void make_room(struct pki_acceptor *a, int error)
{
    const struct pki_where where = { .rank = (int)a->rank, .peer = -1, .op = "init" };
    char reason[128];

    if (a->pending_count > a->done_count) {
        drop(a, oldest(a), "was dropped because this process has too many open files");
        return;
    }
    a->pause_until_ns = pki_now_ns() + pki_tuning.start.rest_ns;
    if (!a->said_why)
        pki_log(PKI_LOG_WARN, &where, "cannot accept connections; trying again: %s", strerror_r(error, reason, sizeof reason));
    a->said_why = true;
}

static pk_result_t accept_some(struct pki_acceptor *a, int listener)
{
    for (int i = 0; i < PKI_ACCEPT_PENDING / 4 && a->done_count < PKI_ACCEPT_PENDING; i++) {
        int fd = pki_fd_keep(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));

        if (fd >= 0) {
            take_in(a, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            make_room(a, errno);
            return PK_OK;
        } else if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EFAULT) {
            return pki_fail_errno(PK_ERR_SYSTEM, NULL, "accept");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return PK_OK;
        } /* anything else is the fate of one connection, and the next may be fine */
    }
    return PK_OK;
}

/* Done ones move to the front, where pki_acceptor_take finds them. */
static void finish(struct pki_acceptor *a, size_t i)
{
    struct pki_handshake done = a->pending[i];

    if (done.hello.kind != a->kind || done.hello.to != a->rank) {
        drop(a, i, "meant another rank");
        return;
    }
    memmove(&a->pending[a->done_count + 1], &a->pending[a->done_count], (i - a->done_count) * sizeof done);
    a->pending[a->done_count++] = done;
}

static pk_result_t step_one(struct pki_acceptor *a, size_t i, bool readable)
{
    pk_result_t result = readable ? pki_handshake_step(&a->pending[i]) : PK_IN_PROGRESS;

    if (result == PK_OK) {
        finish(a, i);
    } else if (left_early(&a->pending[i], result)) {
        close(a->pending[i].fd);
        remove_pending(a, i);
    } else if (result == PK_ERR_SYSTEM) {
        return result;
    } else if (result == PK_ERR_MISMATCH) {
        drop_version(a, i);
    } else if (result != PK_IN_PROGRESS || pki_now_ns() >= a->pending[i].deadline_ns) {
        drop(a, i, reason_to_drop(result));
    }
    return PK_OK;
}

pk_result_t pki_acceptor_step(struct pki_acceptor *a, const struct pollfd *polls)
{
    const struct pollfd *mine = polls + a->listener_count;
    pk_result_t result = PK_OK;

    /* Backwards: removing one, or moving one to the front, leaves those before it where poll saw them. */
    for (size_t i = a->pending_count, front = a->done_count; i > front && result == PK_OK;) {
        size_t done = a->done_count;

        i--;
        result = step_one(a, i + (done - front), mine[i].revents != 0);
    }
    if (a->pause_until_ns != 0 && pki_now_ns() >= a->pause_until_ns)
        a->pause_until_ns = 0;
    for (int i = 0; i < a->listener_count && result == PK_OK; i++)
        if (polls[i].revents != 0)
            result = accept_some(a, a->listeners[i]);
    return result;
}

bool pki_acceptor_take(struct pki_acceptor *a, int *fd, struct pki_hello *hello)
{
    if (a->done_count == 0)
        return false;
    *fd = a->pending[0].fd;
    *hello = a->pending[0].hello;
    a->done_count--;
    remove_pending(a, 0);
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets between the ranks of one host. A rank listens for higher ones and connects to lower ones, all of it side by
 * side. */
#include "comm/bootstrap/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "comm/bootstrap/accept.h"
#include "tuning/tuning.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/fork.h"

#define BACKLOG 4096

struct mesh {
    struct pki_bootstrap *b;
    const bool *local;
    struct pki_secret secret; /* of this mesh alone, from the id's secret and the session */
    int *fds;                 /* [size], finished ones */
    int listener;
    struct pki_handshake *out; /* [rank], to the lower ranks; fd -1 where not begun or over */
    struct pki_acceptor *acceptor;
    struct pollfd *polls;
    bool retry; /* some connection could not be begun yet */
};

static pk_result_t derive_secret(struct mesh *m)
{
    static const char label[] = "pickle local";
    unsigned char text[sizeof label + PKI_SESSION_BYTES], mac[PKI_HASH_BYTES];
    pk_result_t result;

    memcpy(text, label, sizeof label);
    memcpy(text + sizeof label, m->b->session, PKI_SESSION_BYTES);
    result = pki_auth_mac(m->b->secret.key, PKI_SECRET_BYTES, text, sizeof text, mac);
    if (result != PK_OK)
        return result;
    memcpy(m->secret.key, mac, PKI_SECRET_BYTES);
    memcpy(m->secret.job, m->b->session, PKI_JOB_BYTES);
    return PK_OK;
}

static bool is_full(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* Where system calls are filtered any of these may be denied. The kernel makes up an abstract name. */
static const char *try_unix(int listener, int client)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    socklen_t bytes = sizeof name;

    if (listener < 0 || client < 0)
        return "socket";
    if (bind(listener, (const struct sockaddr *)&name, sizeof name.sun_family) != 0)
        return "bind";
    if (listen(listener, 1) != 0)
        return "listen";
    if (getsockname(listener, (struct sockaddr *)&name, &bytes) != 0)
        return "getsockname";
    return connect(client, (const struct sockaddr *)&name, bytes) != 0 ? "connect" : NULL;
}

bool pki_bootstrap_unix_works(char *why, size_t room)
{
    int listener = pki_fd_keep(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), error;
    int client = listener >= 0 ? pki_fd_keep(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) : -1;
    const char *denied = try_unix(listener, client);
    char reason[64];

    error = errno;
    if (client >= 0)
        close(client);
    if (listener >= 0)
        close(listener);
    if (denied == NULL || is_full(error))
        return true;
    snprintf(why, room, "%s of a unix socket: %s", denied, strerror_r(error, reason, sizeof reason));
    return false;
}

static pk_result_t listen_local(struct mesh *m)
{
    pk_result_t result;

    m->listener = pki_fd_keep(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (m->listener < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "socket");
    result = pki_place_bind(m->b, m->listener);
    if (result == PK_OK && listen(m->listener, BACKLOG) != 0)
        result = pki_fail_errno(PK_ERR_SYSTEM, NULL, "listen on a unix socket");
    return result;
}

/* Rank r is not where it should be. */
static pk_result_t attribute_failure(struct mesh *m, int r, int error)
{
    pk_result_t result = pki_bootstrap_news(m->b);

    if (result != PK_OK)
        return result;
    if (error == EPERM || error == EACCES) /* it may be well */
        return pki_bootstrap_fail_errno(m->b, PK_ERR_SYSTEM, r, error,
                                        "may not connect to rank %d on this host by a unix socket (with "
                                        "different PK_HOST_ID the two ranks use tcp)",
                                        r);
    return pki_bootstrap_fail_errno(m->b, PK_ERR_PEER, r, error, "cannot connect to rank %d on this host by a unix socket%s", r,
                                    pki_place_hint());
}

/* Ranks whose peer infos name different users do not come here: these are in user namespaces within namespaces. */
static pk_result_t check_user(struct mesh *m, int r, int fd)
{
    uint32_t theirs;

    if (pki_unix_same_user(fd, &theirs))
        return PK_OK;
    return pki_bootstrap_fail(m->b, PK_ERR_UNSUPPORTED, r,
                              "rank %d on this host runs as another user (uid %u, rank %d as uid %u): with different "
                              "PK_HOST_ID the two ranks use tcp",
                              r, theirs, m->b->rank, (unsigned)geteuid());
}

/* Begin to connect to a lower rank. PK_IN_PROGRESS: its backlog is full. */
static pk_result_t begin(struct mesh *m, int r)
{
    const struct pki_hello hello = {
        .kind = PKI_HELLO_LOCAL, .from = (uint32_t)m->b->rank, .to = (uint32_t)r, .size = (uint32_t)m->b->size
    };
    struct sockaddr_un name;
    socklen_t bytes;
    pk_result_t result = pki_place_name(m->b, r, &name, &bytes);
    int fd;

    if (result != PK_OK)
        return result;
    fd = pki_fd_keep(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "socket");
    if (connect(fd, (struct sockaddr *)&name, bytes) != 0) {
        result = PK_IN_PROGRESS;
        if (errno != EAGAIN && errno != EINTR)
            result = attribute_failure(m, r, errno);
        close(fd);
        return result;
    }
    result = check_user(m, r, fd);
    if (result == PK_OK)
        result = pki_handshake_connect(&m->out[r], fd, &m->secret, &hello);
    if (result == PK_ERR_PEER)
        result = attribute_failure(m, r, ECONNRESET);
    if (result != PK_OK) {
        m->out[r].fd = -1;
        close(fd);
    }
    return result;
}

static pk_result_t begin_all(struct mesh *m)
{
    m->retry = false;
    for (int r = 0; r < m->b->rank; r++) {
        pk_result_t result;

        if (!m->local[r] || m->fds[r] >= 0 || m->out[r].fd >= 0)
            continue;
        result = begin(m, r);
        if (result == PK_IN_PROGRESS)
            m->retry = true;
        else if (result != PK_OK)
            return result;
    }
    return PK_OK;
}

static pk_result_t step_out(struct mesh *m, int r)
{
    pk_result_t result = pki_handshake_step(&m->out[r]);

    if (result == PK_IN_PROGRESS)
        return PK_OK;
    if (result == PK_OK)
        m->fds[r] = m->out[r].fd;
    else
        close(m->out[r].fd);
    m->out[r].fd = -1;
    if (result == PK_ERR_AUTH)
        return pki_bootstrap_fail(m->b, PK_ERR_AUTH, r, "the unix socket of rank %d belongs to another user", r);
    /* Pushed out by strangers, perhaps; while rank r lives it will take us again. */
    if (result == PK_ERR_PEER)
        m->retry = true;
    return result == PK_ERR_PEER ? PK_OK : result;
}

static pk_result_t take_in(struct mesh *m)
{
    struct pki_hello hello;
    int fd;

    while (m->acceptor != NULL && pki_acceptor_take(m->acceptor, &fd, &hello)) {
        const uint32_t r = hello.from;

        if (r <= (uint32_t)m->b->rank || r >= (uint32_t)m->b->size || !m->local[r] || m->fds[r] >= 0) {
            close(fd);
            return pki_bootstrap_fail(m->b, PK_ERR_MISMATCH, -1, "a local connection of rank %u was not expected", r);
        }
        m->fds[r] = fd;
    }
    return PK_OK;
}

/* The control connections tell when a rank dies or gives up meanwhile. Rank 0 must leave alone what ranks that are done send
 * ahead. */
static size_t poll_control(struct mesh *m, struct pollfd *polls)
{
    size_t count = 0;

    for (int r = 0; r < m->b->conn_count; r++)
        if (m->b->conns[r].fd >= 0)
            polls[count++] = (struct pollfd){ .fd = m->b->conns[r].fd, .events = m->b->rank == 0 ? POLLRDHUP : POLLIN };
    return count;
}

static bool any_event(const struct pollfd *polls, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (polls[i].revents != 0)
            return true;
    return false;
}

static bool mesh_missing(const struct mesh *m, int *rank)
{
    for (int r = 0; r < m->b->size; r++)
        if (r != m->b->rank && m->local[r] && m->fds[r] < 0) {
            *rank = r;
            return true;
        }
    return false;
}

/* Poll once over the handshakes out, the acceptor and the control connections, and go on with whatever moved. */
static pk_result_t turn(struct mesh *m, uint64_t deadline_ns)
{
    const uint64_t again = pki_now_ns() + pki_tuning.start.again_ns;
    struct pki_wait wait = { .deadline_ns = m->retry && again < deadline_ns ? again : deadline_ns, .cancel = m->b->cancel };
    struct pollfd *control = m->polls + m->b->rank, *in;
    size_t control_count = poll_control(m, control), in_count = 0;
    uint64_t due;
    pk_result_t result;

    for (int r = 0; r < m->b->rank; r++)
        m->polls[r] = (struct pollfd){ .fd = m->out[r].fd, .events = POLLIN };
    in = control + control_count;
    if (m->acceptor != NULL) {
        in_count = pki_acceptor_polls(m->acceptor, in);
        due = pki_acceptor_due_ns(m->acceptor);
        wait.deadline_ns = due < wait.deadline_ns ? due : wait.deadline_ns;
    }
    result = pki_poll(m->polls, (size_t)m->b->rank + control_count + in_count, &wait);
    if (result == PK_ERR_ABORTED)
        return pki_bootstrap_fail(m->b, PK_ERR_ABORTED, -1, "aborted");
    if (result != PK_OK && result != PK_IN_PROGRESS)
        return result;
    result = any_event(control, control_count) ? pki_bootstrap_poll(m->b) : PK_OK;
    for (int r = 0; r < m->b->rank && result == PK_OK; r++)
        if (m->out[r].fd >= 0 && m->polls[r].revents != 0)
            result = step_out(m, r);
    if (result == PK_OK && m->acceptor != NULL)
        result = pki_acceptor_step(m->acceptor, in);
    return result == PK_OK ? take_in(m) : result;
}

static pk_result_t weave(struct mesh *m, uint64_t deadline_ns)
{
    pk_result_t result = PK_OK;
    int missing;

    while (result == PK_OK && mesh_missing(m, &missing)) {
        result = begin_all(m);
        if (result == PK_OK)
            result = turn(m, deadline_ns);
        if (result == PK_OK && pki_now_ns() >= deadline_ns && mesh_missing(m, &missing))
            result = pki_bootstrap_fail(m->b, PK_ERR_TIMEOUT, missing, "rank %d did not connect on this host within %llu ms",
                                        missing, pki_bootstrap_elapsed_ms(m->b));
    }
    return result;
}

static pk_result_t mesh_open(struct mesh *m)
{
    const size_t size = (size_t)m->b->size;
    pk_result_t result = derive_secret(m);
    bool higher = false;

    for (int r = m->b->rank + 1; r < m->b->size; r++)
        higher = higher || m->local[r];
    m->out = calloc(size, sizeof m->out[0]);
    m->fds = calloc(size, sizeof m->fds[0]);
    m->polls = calloc(2 * size + PKI_ACCEPT_POLLS, sizeof m->polls[0]);
    if (m->out == NULL || m->fds == NULL || m->polls == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to connect to %d ranks", m->b->size);
    for (size_t r = 0; r < size; r++)
        m->out[r].fd = m->fds[r] = -1;
    if (result == PK_OK && higher)
        result = listen_local(m);
    if (result != PK_OK || !higher)
        return result;
    m->acceptor = pki_acceptor_open(&m->secret, PKI_HELLO_LOCAL, m->b->rank, &m->listener, 1);
    return m->acceptor != NULL ? PK_OK : pki_fail(PK_ERR_MEMORY, NULL, "no memory to accept connections");
}

static void mesh_close(struct mesh *m, bool keep_fds)
{
    for (int r = 0; r < m->b->size && m->out != NULL && m->fds != NULL && m->polls != NULL; r++) {
        if (m->out[r].fd >= 0)
            close(m->out[r].fd);
        if (!keep_fds && m->fds[r] >= 0)
            close(m->fds[r]);
    }
    pki_acceptor_close(m->acceptor);
    if (m->listener >= 0) {
        close(m->listener);
        pki_place_leave(m->b);
    }
    pki_auth_wipe(&m->secret, sizeof m->secret);
    free(m->polls);
    free(m->fds);
    free(m->out);
}

pk_result_t pki_bootstrap_connect_local(struct pki_bootstrap *b, const bool *local, int *fds, uint64_t deadline_ns)
{
    struct mesh m = { .b = b, .local = local, .listener = -1 };
    pk_result_t result = pki_bootstrap_check(b);

    if (result != PK_OK)
        return result;
    result = pki_bootstrap_adopt(b, mesh_open(&m));
    /* Behind this barrier everybody listens. */
    if (result == PK_OK)
        result = pki_bootstrap_barrier(b, deadline_ns);
    if (result == PK_OK)
        result = pki_bootstrap_adopt(b, weave(&m, deadline_ns));
    for (int r = 0; r < b->size && result == PK_OK; r++) {
        fds[r] = m.fds[r];
        pki_fork_guard(fds[r]);
    }
    mesh_close(&m, result == PK_OK);
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Every other rank's side of pki_bootstrap_open. */
#include "comm/bootstrap_int.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap_accept.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/netif.h"

/* One address of several must not keep us from the others; a single one may take all the time there is. */
#define TRY_NS (10 * PKI_NS_PER_S)
#define GONE_NS (500 * PKI_NS_PER_MS) /* nobody listens for so long where somebody has: rank 0 has died, or given up */
#define FAREWELL_NS (300 * PKI_NS_PER_MS) /* an abort need not wait for its end */
#define PAUSE_MIN_NS (1 * PKI_NS_PER_MS)
#define PAUSE_MAX_NS (50 * PKI_NS_PER_MS)

struct joining {
    struct pki_bootstrap *b;
    const struct pki_id *id;
    uint64_t deadline_ns;
    int errno_seen;     /* of the last attempt; 0: the connection was closed or silent */
    uint64_t lost_ns;   /* when a connection broke that rank 0 may not have admitted, or nobody listened any more; 0: neither */
    unsigned strangers; /* addresses, as bits, where somebody with another secret answered */
};

/* A connection from a port to itself: what connecting again and again to a free port of this host ends in by chance. It would
 * also keep rank 0 from that port. */
static bool is_self(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;

    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 && here_bytes == there_bytes &&
           memcmp(&here, &there, here_bytes) == 0;
}

/* PK_IN_PROGRESS: not this time. */
static pk_result_t connect_to(struct joining *j, const struct sockaddr_storage *address, int fd, const struct pki_wait *wait)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    int error = 0;
    socklen_t bytes = sizeof error;
    pk_result_t result;

    if (connect(fd, (const struct sockaddr *)address, pki_netif_bytes(address)) != 0) {
        if (errno != EINPROGRESS && errno != EINTR) {
            j->errno_seen = errno;
            return PK_IN_PROGRESS;
        }
        result = pki_poll(&p, 1, wait);
        if (result == PK_IN_PROGRESS)
            j->errno_seen = ETIMEDOUT;
        if (result != PK_OK)
            return result;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
            error = errno;
    }
    if (error == 0 && is_self(fd))
        error = ECONNREFUSED;
    j->errno_seen = error;
    return error == 0 ? PK_OK : PK_IN_PROGRESS;
}

static pk_result_t prove_to(struct joining *j, int fd, const struct pki_wait *wait)
{
    const struct pki_hello hello = { .kind = PKI_HELLO_CONTROL, .from = (uint32_t)j->b->rank, .size = (uint32_t)j->b->size };
    struct pollfd p = { .fd = fd, .events = POLLIN };
    struct pki_handshake h;
    pk_result_t result = pki_handshake_connect(&h, fd, &j->b->secret, &hello);

    while (result == PK_OK && h.state != PKI_HS_DONE) {
        result = pki_poll(&p, 1, wait);
        if (result != PK_OK)
            return result;
        result = pki_handshake_step(&h);
        if (result == PK_IN_PROGRESS)
            result = PK_OK;
    }
    return result == PK_ERR_PEER ? PK_IN_PROGRESS : result;
}

/* One attempt at one address. PK_OK: the connection is the bootstrap's. PK_IN_PROGRESS: try again. */
static pk_result_t attempt(struct joining *j, int index)
{
    const struct sockaddr_storage *address = &j->id->address[index];
    struct pki_wait wait = { .deadline_ns = j->deadline_ns, .cancel = j->b->cancel };
    const uint64_t try_until = pki_now_ns() + TRY_NS;
    const int on = 1;
    pk_result_t result;
    int fd = pki_fd_keep(socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

    if (fd < 0) {
        j->errno_seen = errno;
        return errno == EAFNOSUPPORT && j->id->address_count > 1 ? PK_IN_PROGRESS : pki_fail_errno(PK_ERR_SYSTEM, NULL, "socket");
    }
    if (j->id->address_count > 1 && try_until < wait.deadline_ns)
        wait.deadline_ns = try_until;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    result = connect_to(j, address, fd, &wait);
    if (result == PK_OK)
        result = prove_to(j, fd, &wait);
    if (result == PK_OK) {
        j->b->conns[0].fd = fd;
        return PK_OK;
    }
    close(fd);
    if (result != PK_ERR_AUTH)
        return result;
    j->strangers |= 1u << index;
    return j->strangers == (1u << j->id->address_count) - 1 ? PK_ERR_AUTH : PK_IN_PROGRESS;
}

/* Rank 0 and all who have come would wait for this one until their deadline: a moment for one more attempt, to tell them. */
static pk_result_t aborted(struct joining *j)
{
    struct pki_bootstrap *b = j->b;
    const atomic_bool *cancel = b->cancel;

    b->cancel = NULL;
    j->deadline_ns = pki_now_ns() + FAREWELL_NS;
    for (int i = 0; i < j->id->address_count && b->conns[0].fd < 0; i++)
        (void)attempt(j, i);
    b->cancel = cancel;
    return pki_bootstrap_fail(b, PK_ERR_ABORTED, -1, "aborted");
}

static pk_result_t pause_for(struct joining *j, uint64_t ns)
{
    const uint64_t until = pki_now_ns() + ns;
    const struct pki_wait wait = { .deadline_ns = until < j->deadline_ns ? until : j->deadline_ns, .cancel = j->b->cancel };

    return pki_poll(NULL, 0, &wait);
}

static pk_result_t not_found(struct joining *j, pk_result_t result)
{
    char where[PKI_NETIF_TEXT], reason[128];

    pki_netif_format(&j->id->address[0], where);
    if (result == PK_ERR_ABORTED)
        return aborted(j);
    if (result == PK_ERR_AUTH)
        return pki_bootstrap_fail(j->b, PK_ERR_AUTH, 0, "who listens at %s does not know this rank's secret", where);
    if (result != PK_IN_PROGRESS)
        return pki_bootstrap_adopt(j->b, result);
    if (j->errno_seen == 0)
        return pki_bootstrap_fail(j->b, PK_ERR_TIMEOUT, 0, "rank 0 at %s did not let this rank in within %llu ms", where,
                                  pki_bootstrap_elapsed_ms(j->b));
    return pki_bootstrap_fail(j->b, PK_ERR_TIMEOUT, 0, "rank 0 did not come within %llu ms: %s: %s",
                              pki_bootstrap_elapsed_ms(j->b), where, strerror_r(j->errno_seen, reason, sizeof reason));
}

/* Strangers who crowd rank 0's door may push this rank's connection out before it is admitted. PK_IN_PROGRESS: that has happened, connect
 * again. PK_OK: there is something to read, or it is too late. */
static pk_result_t wait_admitted(struct joining *j)
{
    const struct pki_wait wait = { .deadline_ns = j->deadline_ns, .cancel = j->b->cancel };
    struct pki_conn *c = &j->b->conns[0];
    struct pollfd p = { .fd = c->fd, .events = POLLIN };
    pk_result_t result = PK_IN_PROGRESS;

    while (result == PK_IN_PROGRESS) {
        if (pki_poll(&p, 1, &wait) != PK_OK)
            return PK_OK;
        result = pki_conn_read(c, 0, (size_t)j->b->size * PKI_BOOTSTRAP_GATHER_MAX);
    }
    if (result != PK_ERR_PEER)
        return PK_OK;
    j->lost_ns = pki_now_ns();
    pki_conn_close(c);
    return PK_IN_PROGRESS;
}

/* Rank 0 listened before this rank had its id. */
static void note_refusal(struct joining *j)
{
    if (j->lost_ns == 0 && j->id->listened && j->errno_seen == ECONNREFUSED)
        j->lost_ns = pki_now_ns();
}

static bool is_gone(const struct joining *j)
{
    return j->lost_ns != 0 && j->errno_seen == ECONNREFUSED && pki_now_ns() - j->lost_ns > GONE_NS;
}

pk_result_t pki_bootstrap_join(struct pki_bootstrap *b, const struct pki_id *id, uint64_t deadline_ns)
{
    struct joining j = { .b = b, .id = id, .deadline_ns = deadline_ns };
    uint64_t pause = PAUSE_MIN_NS;
    pk_result_t result;

    for (int i = 0;; i = (i + 1) % id->address_count) {
        result = attempt(&j, i);
        if (result == PK_OK)
            result = wait_admitted(&j);
        note_refusal(&j);
        if (result == PK_IN_PROGRESS && is_gone(&j))
            return pki_bootstrap_fail(b, PK_ERR_PEER, 0, "rank 0 died or gave up: nobody listens any more");
        if (result == PK_IN_PROGRESS && pki_now_ns() < deadline_ns && i == id->address_count - 1) {
            result = pause_for(&j, pause);
            pause = 2 * pause < PAUSE_MAX_NS ? 2 * pause : PAUSE_MAX_NS;
        }
        if (result != PK_IN_PROGRESS || pki_now_ns() >= deadline_ns)
            break;
    }
    if (result != PK_OK)
        return not_found(&j, result);
    result = pki_bootstrap_await(b, PKI_FRAME_WELCOME, deadline_ns);
    if (result == PK_OK) {
        memcpy(b->session, b->conns[0].payload, sizeof b->session);
        pki_conn_release(&b->conns[0]);
    }
    return result;
}

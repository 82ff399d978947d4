/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank comes to its place at the aggregator: name, connection, proofs, a socket for packets. Every wait ends at the
 * deadline of init. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "switchml/internal.h"
#include "tuning/tuning.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/fork.h"
#include "util/log.h"
#include "util/netif.h"
#include "util/resolve.h"

/* ---- waiting ---- */

/* What pki_poll has said, as an error that is recorded; but what listen has returned is that already. */
static pk_result_t ended(const struct pki_switchml *s, pk_result_t result, const struct pki_wait *wait, const char *what)
{
    if (result == PK_IN_PROGRESS)
        return pki_fail(PK_ERR_TIMEOUT, NULL, "%s: %s before the deadline", s->name, what);
    if (result == PK_ERR_ABORTED && pki_is_called_off(wait->cancel))
        return pki_fail(PK_ERR_ABORTED, NULL, "%s: init was aborted", s->name);
    return result;
}

static pk_result_t receive(const struct pki_switchml *s, void *data, size_t bytes, const struct pki_wait *wait, const char *what)
{
    size_t have = 0;

    while (have < bytes) {
        ssize_t n = recv(s->connection, (char *)data + have, bytes - have, MSG_DONTWAIT);
        pk_result_t result = PK_OK;

        if (n == 0)
            return pki_fail(PK_ERR_PEER, NULL, "%s closed the connection %s", s->name, what);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return pki_fail_errno(PK_ERR_PEER, NULL, "%s %s", s->name, what);
        if (n < 0)
            result = ended(s, pki_poll(&(struct pollfd){ .fd = s->connection, .events = POLLIN }, 1, wait), wait, "no answer");
        if (result != PK_OK)
            return result;
        have += n > 0 ? (size_t)n : 0;
    }
    return PK_OK;
}

/* ---- the name ---- */

/* A thread looks it up, which no descriptor tells of. */
static pk_result_t nap(const struct pki_switchml *s, const struct pki_wait *wait)
{
    struct pki_wait some = *wait;
    const uint64_t soon = pki_now_ns() + 5 * PKI_NS_PER_MS;
    const bool last = soon >= wait->deadline_ns;
    pk_result_t result;

    if (!last)
        some.deadline_ns = soon;
    result = pki_poll(NULL, 0, &some);
    return result == PK_IN_PROGRESS && !last ? PK_OK : ended(s, result, wait, "its name was not resolved");
}

static pk_result_t look_up(const struct pki_switchml *s, const char *host, const struct pki_wait *wait,
                           struct sockaddr_storage *addresses, int *count)
{
    pk_result_t result = PK_OK;
    struct pki_lookup *lookup;
    char why[128];

    *count = pki_resolve_literal(host, addresses, PKI_RESOLVE_MAX);
    if (*count > 0)
        return PK_OK;
    if (strlen(host) >= PKI_RESOLVE_HOST || (lookup = pki_lookup_start(host)) == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to look up %.200s", host);
    while (result == PK_OK && !pki_lookup_is_done(lookup))
        result = nap(s, wait);
    if (result == PK_OK)
        *count = pki_lookup_result(lookup, addresses, PKI_RESOLVE_MAX, why);
    pki_lookup_drop(lookup);
    if (result != PK_OK)
        return result;
    return *count > 0 ? PK_OK : pki_fail(PK_ERR_PEER, NULL, "%s: %s", s->name, why);
}

/* ---- the connection ---- */

/* *result as of pki_poll, or PK_OK: why there is none stands in errno. */
static int connect_one(const struct sockaddr_storage *address, const struct pki_wait *wait, pk_result_t *result)
{
    int fd = pki_fd_keep(socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), error = 0;
    socklen_t length = sizeof error;

    *result = PK_OK;
    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)address, pki_netif_bytes(address)) == 0)
        return fd;
    error = errno;
    if (error == EINPROGRESS) {
        *result = pki_poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, wait);
        if (*result == PK_OK && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0)
            return fd;
    }
    close(fd);
    errno = error;
    return -1;
}

/* Each address but the last gets its share of the time that is left: behind it may be nobody who answers. */
pk_result_t pki_switchml_connect(struct pki_switchml *s, const struct sockaddr_storage *addresses, int count,
                                 const struct pki_wait *wait)
{
    pk_result_t result = PK_OK;

    for (int i = 0; i < count; i++) {
        const uint64_t now = pki_now_ns(), left = wait->deadline_ns > now ? wait->deadline_ns - now : 0;
        struct pki_wait share = *wait;

        share.deadline_ns = now + left / (unsigned)(count - i);
        s->connection = connect_one(&addresses[i], &share, &result);
        if (s->connection >= 0) {
            pki_switchml_keep_alive(s->connection);
            pki_fork_guard(s->connection);
            s->peer = addresses[i];
            return PK_OK;
        }
        if (result != PK_OK && result != PK_IN_PROGRESS)
            break;
    }
    return result != PK_OK ? ended(s, result, wait, "no connection")
                           : pki_fail_errno(PK_ERR_PEER, NULL, "%s cannot be reached", s->name);
}

static pk_result_t connect_to(struct pki_switchml *s, const struct pki_switchml_settings *settings, const struct pki_wait *wait)
{
    struct sockaddr_storage addresses[PKI_RESOLVE_MAX];
    int count = 0;
    pk_result_t result = look_up(s, settings->host, wait, addresses, &count);

    for (int i = 0; i < count; i++)
        pki_netif_set_port(&addresses[i], settings->port);
    return result == PK_OK ? pki_switchml_connect(s, addresses, count, wait) : result;
}

/* ---- packets ---- */

/* All sockets, at ports in a row from *port on; 0: from any. PK_IN_PROGRESS: one is in use, and *port is the one behind it. */
static pk_result_t open_row(struct pki_switchml *s, struct sockaddr_storage *own, uint32_t *port)
{
    const size_t bytes = (size_t)s->window / s->nslices * pki_datagrams_memory(s->elements) * 2;
    pk_result_t result = PK_OK;
    uint32_t i;

    pki_netif_set_port(own, (uint16_t)*port);
    for (i = 0; i < s->nslices && result == PK_OK; i++) {
        if (i > 0)
            pki_netif_set_port(own, (uint16_t)(*port + i));
        result = pki_datagrams_open(&s->slices[i].datagrams, own, bytes, PKI_DATAGRAMS_TRY);
        if (i == 0 && result == PK_OK)
            *port = pki_netif_port(own);
        if (*port + s->nslices - 1 > UINT16_MAX)
            result = PK_IN_PROGRESS;
    }
    if (result == PK_IN_PROGRESS)
        *port = *port == 0 ? UINT16_MAX + 1u : *port + i; /* the system has none */
    for (i = 0; i < s->nslices && result != PK_OK; i++)
        pki_datagrams_close(&s->slices[i].datagrams);
    return result;
}

/* From the address that the connection has: by it the aggregator knows this rank. The ports of its threads follow one another;
 * the one that the system gives may have too few behind it. */
static pk_result_t open_datagrams(struct pki_switchml *s, uint16_t *port)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    pk_result_t result = PK_IN_PROGRESS;
    uint32_t first = 0;

    if (getsockname(s->connection, (struct sockaddr *)&own, &length) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "%s: getsockname", s->name);
    for (int pass = 0; pass < 2 && result == PK_IN_PROGRESS; pass++)
        for (first = pass * IPPORT_RESERVED; result == PK_IN_PROGRESS && first + s->nslices - 1 <= UINT16_MAX;)
            result = open_row(s, &own, &first);
    if (result == PK_IN_PROGRESS)
        return pki_fail(PK_ERR_SYSTEM, NULL, "%s: no %u UDP ports in a row are free for num_worker_threads", s->name, s->nslices);
    *port = (uint16_t)first;
    return result;
}

/* What has come before: from others, or for an earlier owner of the port. What stays is looked at by pki_switchml_slice_take. */
static void empty(int fd)
{
    char byte;

    for (int left = UINT16_MAX; left > 0 && recv(fd, &byte, 1, MSG_DONTWAIT | MSG_TRUNC) >= 0; left--)
        ;
}

static pk_result_t connect_datagrams(struct pki_switchml *s, uint16_t port)
{
    socklen_t length = sizeof s->peer;

    pki_netif_set_port(&s->peer, port);
    for (uint32_t i = 0; i < s->nslices; i++) {
        if (connect(s->slices[i].datagrams.fd, (struct sockaddr *)&s->peer, pki_netif_bytes(&s->peer)) != 0)
            return pki_fail_errno(PK_ERR_SYSTEM, NULL, "%s: connect of a datagram socket", s->name);
        empty(s->slices[i].datagrams.fd);
    }
    /* Whom the system lets through: of 0.0.0.0 it has made an address of this machine. */
    if (getpeername(s->slices[0].datagrams.fd, (struct sockaddr *)&s->peer, &length) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "%s: getpeername of a datagram socket", s->name);
    return PK_OK;
}

/* ---- proofs ---- */

static pk_result_t exchange(struct pki_switchml *s, const struct pki_switchml_join *join, uint16_t port,
                            struct pki_switchml_answer *answer)
{
    struct pki_switchml_hello hello = { .rank = (uint32_t)join->rank,
                                        .workers = (uint32_t)join->size,
                                        .elements = s->elements,
                                        .window = s->window,
                                        .port = port,
                                        .threads = (uint16_t)s->nslices };
    struct pki_switchml_greeting greeting;
    uint32_t version;
    unsigned char bytes[PKI_SWITCHML_ANSWER_BYTES];
    pk_result_t result = receive(s, bytes, PKI_SWITCHML_GREETING_BYTES, &join->wait, "before its first message");

    if (result != PK_OK)
        return result;
    version = pki_switchml_greeting_unpack(bytes, &greeting);
    if (version == 0)
        return pki_fail(PK_ERR_PEER, NULL, "%s: the process there is no pickle-aggregator", s->name);
    if (version != PKI_SWITCHML_SESSION)
        return pki_fail(PK_ERR_PEER, NULL, "%s speaks version %u of its session, and this rank version %u", s->name, version,
                        PKI_SWITCHML_SESSION);
    memcpy(hello.id, join->id, sizeof hello.id);
    result = pki_auth_random(hello.nonce, sizeof hello.nonce);
    if (result == PK_OK)
        result = pki_switchml_hello_pack(&hello, join->key, &greeting, bytes);
    if (result == PK_OK)
        result = pki_send_all(s->connection, bytes, PKI_SWITCHML_HELLO_BYTES, &join->wait, NULL);
    if (result == PK_OK)
        result = receive(s, bytes, sizeof bytes, &join->wait, "after this rank's proof (does it use another PK_SECRET_FILE?)");
    if (result != PK_OK)
        return result;
    if (!pki_switchml_answer_unpack(bytes, join->key, &greeting, &hello, answer))
        return pki_fail(PK_ERR_AUTH, NULL, "%s does not prove that it knows the secret", s->name);
    if (!answer->accepted)
        return pki_fail(PK_ERR_PEER, NULL, "%s refuses this rank: %s", s->name, answer->text);
    return PK_OK;
}

static pk_result_t make_workers(struct pki_switchml *s, const struct pki_switchml_timing *timing)
{
    const uint32_t window = s->window / s->nslices;

    for (uint32_t i = 0; i < s->nslices; i++)
        if (pki_switchml_worker_init(&s->slices[i].worker, pki_switchml_base(window, i), window, timing) != PK_OK)
            return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %u packets on their way", s->window);
    return PK_OK;
}

static pk_result_t meet(struct pki_switchml *s, const struct pki_switchml_settings *settings,
                        const struct pki_switchml_join *join)
{
    struct pki_switchml_answer answer;
    uint16_t port = 0;
    pk_result_t result = connect_to(s, settings, &join->wait);

    if (result == PK_OK)
        result = open_datagrams(s, &port);
    if (result == PK_OK)
        result = exchange(s, join, port, &answer);
    if (result == PK_OK)
        result = connect_datagrams(s, answer.port);
    if (result != PK_OK)
        return result;
    s->window = answer.window;
    result = make_workers(s, &settings->timing);
    return result == PK_OK ? pki_switchml_threads_start(s) : result;
}

/* Nothing is open, and no thread has been started. */
static struct pki_switchml *make(const struct pki_switchml_settings *settings, const struct pki_switchml_join *join)
{
    struct pki_switchml *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    (void)snprintf(s->name, sizeof s->name, "aggregator %s:%u", settings->host, (unsigned)settings->port);
    s->connection = s->threads.stop = s->threads.ended = s->threads.both = -1;
    s->size = join->size;
    memcpy(s->id, join->id, sizeof s->id);
    s->elements = settings->elements;
    s->window = settings->window;
    s->nslices = settings->threads;
    for (uint32_t i = 0; i < s->nslices; i++) {
        s->slices[i].session = s;
        s->slices[i].datagrams.fd = -1;
    }
    return s;
}

pk_result_t pki_switchml_open(const struct pki_switchml_join *join, struct pki_switchml **out)
{
    struct pki_switchml_settings settings;
    struct pki_switchml *s;
    pk_result_t result;

    if (join->size < 2 || join->size > PKI_SWITCHML_WORKERS_MAX)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "an aggregator sums for 2 to %d ranks, not %d", PKI_SWITCHML_WORKERS_MAX,
                        join->size);
    result = pki_switchml_settings_read(join->where, &settings);
    if (result != PK_OK)
        return result;
    s = make(&settings, join);
    if (s == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the connection to an aggregator");
    result = meet(s, &settings, join);
    if (result != PK_OK) {
        pki_switchml_close(s);
        return result;
    }
    *out = s;
    return PK_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever connects to this rank is unproven until it has proved the communicator's key. Garbage, half-open and idle
 * connections cost a place until they are shown out, and delay nobody. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/tcp/conn/reach.h"
#include "tuning/tuning.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/listen.h"
#include "util/netif.h"

#define BACKLOG 4096
#define STAY_NS (5 * PKI_NS_PER_S)
#define WARNINGS 3

/* ---- Listening ---- */

/* With a port for `address`. PK_IN_PROGRESS, if `optional`: this host does not have it. */
static pk_result_t listen_on(struct pki_tcp_iface *iface, struct sockaddr_storage *address, bool optional)
{
    struct pki_tcp_source *source = &iface->accepting.listener[iface->accepting.listeners];
    int fd;
    pk_result_t result;

    pki_netif_set_port(address, 0);
    result = pki_listen(address, BACKLOG, optional, &fd);
    if (result != PK_OK)
        return result;
    pki_tcp_socket_options(iface, fd); /* what it accepts inherits them */
    source->kind = PKI_TCP_LISTENER;
    source->fd = -1;
    if (!pki_tcp_source(iface, source, fd, false)) {
        close(fd);
        return PK_ERR_SYSTEM;
    }
    iface->accepting.listeners++;
    return PK_OK;
}

static void leave_out(struct pki_tcp_iface *iface, sa_family_t family)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < iface->own.count; i++)
        if (iface->own.address[i].ss_family != family) {
            iface->own.prefix[kept] = iface->own.prefix[i];
            iface->own.address[kept++] = iface->own.address[i];
        }
    iface->own.count = kept;
}

/* At every address of the family, with one port, if some of those that the others are told are of it. */
static pk_result_t listen_to_family(struct pki_tcp_iface *iface, sa_family_t family)
{
    struct sockaddr_storage any = { .ss_family = family };
    bool wanted = false;
    pk_result_t result;

    for (uint32_t i = 0; i < iface->own.count; i++)
        wanted = wanted || iface->own.address[i].ss_family == family;
    if (!wanted)
        return PK_OK;
    result = listen_on(iface, &any, true);
    if (result == PK_IN_PROGRESS) {
        leave_out(iface, family);
        return PK_OK;
    }
    for (uint32_t i = 0; i < iface->own.count && result == PK_OK; i++)
        if (iface->own.address[i].ss_family == family)
            pki_netif_set_port(&iface->own.address[i], pki_netif_port(&any));
    return result;
}

static pk_result_t listen_to_all(struct pki_tcp_iface *iface)
{
    pk_result_t result = listen_to_family(iface, AF_INET);

    if (result == PK_OK)
        result = listen_to_family(iface, AF_INET6);
    if (result == PK_OK && iface->own.count == 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "over tcp: cannot listen at any address of this host");
    return result;
}

pk_result_t pki_tcp_listen(struct pki_tcp_iface *iface, const struct pki_tcp_choice *choice)
{
    pk_result_t result = PK_OK;

    iface->own.how = choice->how;
    iface->own.count = choice->count;
    for (uint32_t i = 0; i < choice->count; i++) {
        iface->own.prefix[i] = choice->nics[i].prefix;
        iface->own.address[i] = choice->nics[i].address;
    }
    if (choice->how == PKI_TCP_ALL)
        return listen_to_all(iface);
    for (uint32_t i = 0; i < choice->count && result == PK_OK; i++)
        result = listen_on(iface, &iface->own.address[i], false);
    return result;
}

/* ---- Guests ---- */

static void show_out(struct pki_tcp_iface *iface, struct pki_tcp_unproven *unproven, const char *why)
{
    const struct pki_where where = { .rank = iface->rank, .peer = -1 };

    if (iface->accepting.dropped++ < WARNINGS)
        pki_log(unproven->challenged ? PKI_LOG_WARN : PKI_LOG_INFO, &where, "over tcp: dropped a connection that %s (%u so far)",
                why, iface->accepting.dropped);
    pki_tcp_source_remove(&unproven->source);
}

/* A free place, or that of the one who has been here longest: idle ones must not shut out a rank. */
static struct pki_tcp_unproven *place(struct pki_tcp_iface *iface)
{
    struct pki_tcp_unproven *oldest = &iface->accepting.unproven[0];

    for (int i = 0; i < PKI_TCP_UNPROVEN_MAX; i++) {
        if (iface->accepting.unproven[i].source.fd < 0)
            return &iface->accepting.unproven[i];
        if (iface->accepting.unproven[i].until_ns < oldest->until_ns)
            oldest = &iface->accepting.unproven[i];
    }
    show_out(iface, oldest, "was pushed out by others");
    return oldest;
}

static void take_in(struct pki_tcp_iface *iface, int fd)
{
    struct pki_tcp_unproven *unproven = place(iface);

    memset(unproven, 0, sizeof *unproven);
    unproven->source.kind = PKI_TCP_UNPROVEN;
    unproven->source.fd = -1;
    unproven->until_ns = pki_now_ns() + STAY_NS;
    pki_tcp_socket_options(iface, fd);
    if (!pki_tcp_source(iface, &unproven->source, fd, true))
        close(fd);
    pki_tcp_trouble(iface);
}

/* Whoever waits outside cannot know why. */
static void cannot_accept(struct pki_tcp_iface *iface, int error)
{
    const struct pki_where where = { .rank = iface->rank, .peer = -1 };
    char reason[128];

    iface->accepting.pause_until_ns = pki_now_ns() + pki_tuning.start.rest_ns;
    if (!iface->accepting.said_full)
        pki_log(PKI_LOG_WARN, &where, "over tcp: cannot accept connections; trying again: %s",
                strerror_r(error, reason, sizeof reason));
    iface->accepting.said_full = true;
}

void pki_tcp_accept(struct pki_tcp_iface *iface, struct pki_tcp_source *listener)
{
    if (iface->accepting.pause_until_ns != 0 && pki_now_ns() < iface->accepting.pause_until_ns)
        return;
    iface->accepting.pause_until_ns = 0;
    for (int i = 0; i < pki_tuning.tcp.accepts; i++) {
        int fd = pki_fd_keep(accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));

        if (fd >= 0) {
            take_in(iface, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            cannot_accept(iface, errno);
            return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } /* anything else is the fate of one connection, and the next may be fine */
    }
}

/* The link that the hello speaks of; NULL: it meant somebody else. */
static struct pki_tcp_link *link_of(struct pki_tcp_iface *iface, const struct pki_tcp_hello *hello)
{
    struct pki_tcp_ep *ep = hello->from < (uint32_t)iface->size ? iface->eps[hello->from] : NULL;

    if (hello->to != (uint32_t)iface->rank || hello->size != (uint32_t)iface->size || ep == NULL || ep->connects ||
        hello->link >= ep->nlinks || ep->links[hello->link].state == PKI_TCP_OVER)
        return NULL;
    return &ep->links[hello->link];
}

static bool challenge(struct pki_tcp_iface *iface, struct pki_tcp_unproven *unproven)
{
    const struct pki_tcp_link *link;
    unsigned char out[PKI_TCP_CHALLENGE_BYTES];

    if (!pki_tcp_get_hello(unproven->in, &unproven->hello))
        return false;
    link = link_of(iface, &unproven->hello);
    if (link == NULL)
        return false;
    memcpy(unproven->hello_bytes, unproven->in, sizeof unproven->hello_bytes);
    unproven->challenge.received = link->received;
    if (pki_auth_random(unproven->challenge.nonce, sizeof unproven->challenge.nonce) != PK_OK ||
        pki_tcp_prove(iface, PKI_TCP_LABEL_ACCEPT, unproven->hello_bytes, &unproven->challenge, unproven->challenge.mac) != PK_OK)
        return false;
    pki_tcp_put_challenge(out, &unproven->challenge);
    unproven->challenged = true;
    unproven->have = 0;
    return send(unproven->source.fd, out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof out;
}

/* Frames that the old connection brought after the challenge was made would come again: then the peer must ask once more. */
static const char *admit(struct pki_tcp_iface *iface, struct pki_tcp_unproven *unproven)
{
    struct pki_tcp_link *link = link_of(iface, &unproven->hello);
    unsigned char mac[PKI_TCP_MAC_BYTES];
    int fd = unproven->source.fd;

    if (pki_tcp_prove(iface, PKI_TCP_LABEL_CONNECT, unproven->hello_bytes, &unproven->challenge, mac) != PK_OK ||
        !pki_auth_equal(mac, unproven->in, sizeof mac))
        return "could not prove the key";
    if (link == NULL || link->state == PKI_TCP_OVER)
        return "came too late";
    if (link->state == PKI_TCP_UP)
        pki_tcp_link_broken(link, 0);
    if (link->state == PKI_TCP_OVER) /* what broke was a shutdown message */
        return "came too late";
    if (link->received != unproven->challenge.received)
        return "is out of date: more frames have come since it began";
    unproven->source.fd = -1;
    if (!pki_tcp_link_up(link, fd, unproven->hello.received)) {
        unproven->source.fd = fd;
        return "acknowledged frames that were not sent";
    }
    return NULL;
}

void pki_tcp_unproven_step(struct pki_tcp_iface *iface, struct pki_tcp_unproven *unproven)
{
    while (unproven->source.fd >= 0) {
        size_t want = unproven->challenged ? PKI_TCP_MAC_BYTES : PKI_TCP_HELLO_BYTES;
        ssize_t n = recv(unproven->source.fd, unproven->in + unproven->have, want - unproven->have, MSG_DONTWAIT);
        const char *why = NULL;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        unproven->have += n > 0 ? (size_t)n : 0;
        if (n <= 0)
            why = unproven->challenged ? "closed before its proof" : "closed before its hello";
        else if (unproven->have == want && unproven->challenged)
            why = admit(iface, unproven);
        else if (unproven->have == want && !challenge(iface, unproven))
            why = "sent a hello that no rank of this communicator sends";
        if (why != NULL)
            show_out(iface, unproven, why);
    }
}

bool pki_tcp_unproven_timers(struct pki_tcp_iface *iface, uint64_t now, uint64_t away_ns)
{
    bool some = false;

    for (int i = 0; i < PKI_TCP_UNPROVEN_MAX; i++) {
        struct pki_tcp_unproven *unproven = &iface->accepting.unproven[i];

        unproven->until_ns = pki_tcp_put_off(unproven->until_ns, away_ns, now + STAY_NS);
        if (unproven->source.fd >= 0 && now > unproven->until_ns)
            show_out(iface, unproven, unproven->challenged ? "sent no proof" : "said nothing");
        some = some || unproven->source.fd >= 0;
    }
    return some;
}

void pki_tcp_unproven_close(struct pki_tcp_iface *iface)
{
    for (int i = 0; i < PKI_TCP_UNPROVEN_MAX; i++)
        pki_tcp_source_remove(&iface->accepting.unproven[i].source);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever connects to this rank is a guest until it has proved the communicator's key. Garbage, half-open and idle connections cost
 * a place until they are shown out, and delay nobody. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/tcp/reach.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/listen.h"
#include "util/netif.h"

#define BACKLOG 4096
#define STAY_NS (5 * PKI_NS_PER_S)
#define REST_NS (10 * PKI_NS_PER_MS)
#define ACCEPTS_A_ROUND 64
#define WARNINGS 3

/* ---- Listening ---- */

/* With a port for `address`. PK_IN_PROGRESS, if `optional`: this host does not have it. */
static pk_result_t listen_on(struct pki_tcp_iface *iface, struct sockaddr_storage *address, bool optional)
{
    struct pki_tcp_watch *watch = &iface->listener[iface->listeners];
    int fd;
    pk_result_t result;

    pki_netif_set_port(address, 0);
    result = pki_listen(address, BACKLOG, optional, &fd);
    if (result != PK_OK)
        return result;
    pki_tcp_socket_options(iface, fd); /* what it accepts inherits them */
    watch->kind = PKI_TCP_LISTENER;
    watch->fd = -1;
    if (!pki_tcp_watch(iface, watch, fd, false)) {
        close(fd);
        return PK_ERR_SYSTEM;
    }
    iface->listeners++;
    return PK_OK;
}

static void leave_out(struct pki_tcp_iface *iface, sa_family_t family)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < iface->addresses; i++)
        if (iface->address[i].ss_family != family) {
            iface->prefix[kept] = iface->prefix[i];
            iface->address[kept++] = iface->address[i];
        }
    iface->addresses = kept;
}

/* At every address of the family, with one port, if some of those that the others are told are of it. */
static pk_result_t listen_to_family(struct pki_tcp_iface *iface, sa_family_t family)
{
    struct sockaddr_storage any = { .ss_family = family };
    bool wanted = false;
    pk_result_t result;

    for (uint32_t i = 0; i < iface->addresses; i++)
        wanted = wanted || iface->address[i].ss_family == family;
    if (!wanted)
        return PK_OK;
    result = listen_on(iface, &any, true);
    if (result == PK_IN_PROGRESS) {
        leave_out(iface, family);
        return PK_OK;
    }
    for (uint32_t i = 0; i < iface->addresses && result == PK_OK; i++)
        if (iface->address[i].ss_family == family)
            pki_netif_set_port(&iface->address[i], pki_netif_port(&any));
    return result;
}

static pk_result_t listen_to_all(struct pki_tcp_iface *iface)
{
    pk_result_t result = listen_to_family(iface, AF_INET);

    if (result == PK_OK)
        result = listen_to_family(iface, AF_INET6);
    if (result == PK_OK && iface->addresses == 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "over tcp: cannot listen at any address of this host");
    return result;
}

pk_result_t pki_tcp_listen(struct pki_tcp_iface *iface, const struct pki_tcp_choice *choice)
{
    pk_result_t result = PK_OK;

    iface->how = choice->how;
    iface->addresses = choice->count;
    for (uint32_t i = 0; i < choice->count; i++) {
        iface->prefix[i] = choice->nics[i].prefix;
        iface->address[i] = choice->nics[i].address;
    }
    if (choice->how == PKI_TCP_ALL)
        return listen_to_all(iface);
    for (uint32_t i = 0; i < choice->count && result == PK_OK; i++)
        result = listen_on(iface, &iface->address[i], false);
    return result;
}

/* ---- Guests ---- */

static void show_out(struct pki_tcp_iface *iface, struct pki_tcp_guest *guest, const char *why)
{
    const struct pki_where where = { .rank = iface->rank, .peer = -1 };

    if (iface->dropped++ < WARNINGS)
        pki_log(guest->challenged ? PKI_LOG_WARN : PKI_LOG_INFO, &where,
                "over tcp: dropped a connection that %s (%u so far)", why, iface->dropped);
    pki_tcp_unwatch(&guest->watch);
}

/* A free place, or that of the one who has been here longest: idle ones must not shut out a rank. */
static struct pki_tcp_guest *place(struct pki_tcp_iface *iface)
{
    struct pki_tcp_guest *oldest = &iface->guests[0];

    for (int i = 0; i < PKI_TCP_GUESTS; i++) {
        if (iface->guests[i].watch.fd < 0)
            return &iface->guests[i];
        if (iface->guests[i].until_ns < oldest->until_ns)
            oldest = &iface->guests[i];
    }
    show_out(iface, oldest, "was pushed out by others");
    return oldest;
}

static void take_in(struct pki_tcp_iface *iface, int fd)
{
    struct pki_tcp_guest *guest = place(iface);

    memset(guest, 0, sizeof *guest);
    guest->watch.kind = PKI_TCP_GUEST;
    guest->watch.fd = -1;
    guest->until_ns = pki_now_ns() + STAY_NS;
    pki_tcp_socket_options(iface, fd);
    if (!pki_tcp_watch(iface, &guest->watch, fd, true))
        close(fd);
    pki_tcp_trouble(iface);
}

/* Whoever waits outside cannot know why. */
static void cannot_accept(struct pki_tcp_iface *iface, int error)
{
    const struct pki_where where = { .rank = iface->rank, .peer = -1 };
    char reason[128];

    iface->rest_until_ns = pki_now_ns() + REST_NS;
    if (!iface->said_full)
        pki_log(PKI_LOG_WARN, &where, "over tcp: cannot accept connections, and tries again: %s", strerror_r(error, reason, sizeof reason));
    iface->said_full = true;
}

void pki_tcp_accept(struct pki_tcp_iface *iface, struct pki_tcp_watch *listener)
{
    if (iface->rest_until_ns != 0 && pki_now_ns() < iface->rest_until_ns)
        return;
    iface->rest_until_ns = 0;
    for (int i = 0; i < ACCEPTS_A_ROUND; i++) {
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

static bool challenge(struct pki_tcp_iface *iface, struct pki_tcp_guest *guest)
{
    const struct pki_tcp_link *link;
    unsigned char out[PKI_TCP_CHALLENGE_BYTES];

    if (!pki_tcp_get_hello(guest->in, &guest->hello))
        return false;
    link = link_of(iface, &guest->hello);
    if (link == NULL)
        return false;
    memcpy(guest->hello_bytes, guest->in, sizeof guest->hello_bytes);
    guest->challenge.received = link->received;
    if (pki_auth_random(guest->challenge.nonce, sizeof guest->challenge.nonce) != PK_OK ||
        pki_tcp_prove(iface, PKI_TCP_LABEL_ACCEPT, guest->hello_bytes, &guest->challenge, guest->challenge.mac) != PK_OK)
        return false;
    pki_tcp_put_challenge(out, &guest->challenge);
    guest->challenged = true;
    guest->have = 0;
    return send(guest->watch.fd, out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof out;
}

/* Frames that the old connection brought after the challenge was made would come again: then the peer must ask once more. */
static const char *admit(struct pki_tcp_iface *iface, struct pki_tcp_guest *guest)
{
    struct pki_tcp_link *link = link_of(iface, &guest->hello);
    unsigned char mac[PKI_TCP_MAC_BYTES];
    int fd = guest->watch.fd;

    if (pki_tcp_prove(iface, PKI_TCP_LABEL_CONNECT, guest->hello_bytes, &guest->challenge, mac) != PK_OK ||
        !pki_auth_equal(mac, guest->in, sizeof mac))
        return "could not prove the key";
    if (link == NULL || link->state == PKI_TCP_OVER)
        return "came too late";
    if (link->state == PKI_TCP_UP)
        pki_tcp_link_broken(link, 0);
    if (link->state == PKI_TCP_OVER) /* what broke was a goodbye */
        return "came too late";
    if (link->received != guest->challenge.received)
        return "knew less than the one before it";
    guest->watch.fd = -1;
    if (!pki_tcp_link_up(link, fd, guest->hello.received)) {
        guest->watch.fd = fd;
        return "counted what was not sent";
    }
    return NULL;
}

void pki_tcp_guest_step(struct pki_tcp_iface *iface, struct pki_tcp_guest *guest)
{
    while (guest->watch.fd >= 0) {
        size_t want = guest->challenged ? PKI_TCP_MAC_BYTES : PKI_TCP_HELLO_BYTES;
        ssize_t n = recv(guest->watch.fd, guest->in + guest->have, want - guest->have, MSG_DONTWAIT);
        const char *why = NULL;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        guest->have += n > 0 ? (size_t)n : 0;
        if (n <= 0)
            why = guest->challenged ? "left before its proof" : "left before it said who it is";
        else if (guest->have == want && guest->challenged)
            why = admit(iface, guest);
        else if (guest->have == want && !challenge(iface, guest))
            why = "said what no rank of this communicator says";
        if (why != NULL)
            show_out(iface, guest, why);
    }
}

bool pki_tcp_guest_timers(struct pki_tcp_iface *iface, uint64_t now, uint64_t away_ns)
{
    bool some = false;

    for (int i = 0; i < PKI_TCP_GUESTS; i++) {
        struct pki_tcp_guest *guest = &iface->guests[i];

        guest->until_ns = pki_tcp_put_off(guest->until_ns, away_ns, now + STAY_NS);
        if (guest->watch.fd >= 0 && now > guest->until_ns)
            show_out(iface, guest, guest->challenged ? "sent no proof" : "said nothing");
        some = some || guest->watch.fd >= 0;
    }
    return some;
}

void pki_tcp_guests_close(struct pki_tcp_iface *iface)
{
    for (int i = 0; i < PKI_TCP_GUESTS; i++)
        pki_tcp_unwatch(&iface->guests[i].watch);
}

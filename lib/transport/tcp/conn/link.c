/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a connection: made, proved, broken, made again, given up. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/tcp/conn/reach.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/netif.h"
#include "util/text.h"

#define LABEL_BYTES 32
#define BACKOFF_MAX_NS (100 * PKI_NS_PER_MS)
#define REFUSED_NS (300 * PKI_NS_PER_MS)   /* a process that lives listens: nobody there means that it has ended */
#define UNANSWERED_TRIES 3                 /* retransmissions or probes without an answer */
#define PROBE_NS (100 * PKI_NS_PER_MS)
#define SHOWS_PART 8                       /* of the patience: so long stands what a living process has accepted, or will */

/* ---- Small things ---- */

bool pki_tcp_source(struct pki_tcp_iface *iface, struct pki_tcp_source *source, int fd, bool both_ways)
{
    struct epoll_event event = { .events = both_ways ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : EPOLLIN, .data.ptr = source };
    int op = source->fd == fd ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

    /* An accepted connection was watched as an unproven one. */
    if (epoll_ctl(iface->epoll_fd, op, fd, &event) != 0 &&
        (errno != EEXIST || epoll_ctl(iface->epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0)) {
        (void)pki_fail_errno(PK_ERR_SYSTEM, NULL, "over tcp: epoll_ctl");
        return false;
    }
    source->fd = fd;
    return true;
}

void pki_tcp_source_remove(struct pki_tcp_source *source)
{
    if (source->fd >= 0)
        close(source->fd);
    source->fd = -1;
}

void pki_tcp_link_ready(struct pki_tcp_link *link)
{
    if (pki_list_empty(&link->ready))
        pki_list_push(&link->ep->iface->ready, &link->ready);
}

void pki_tcp_look_again(struct pki_tcp_link *link)
{
    link->readable = true;
    pki_tcp_link_ready(link);
}

void pki_tcp_link_drop(struct pki_tcp_link *link)
{
    pki_tcp_recall(link);
    pki_tcp_source_remove(&link->source);
}

/* A host that vanishes sends nothing. Where nothing is on its way the kernel asks it now and then; else see
 * pki_tcp_link_health. */
void pki_tcp_socket_options(const struct pki_tcp_iface *iface, int fd)
{
    const int on = 1, quarter = (int)(iface->params.retry_ns / 4 / PKI_NS_PER_S);
    const int idle = quarter > 0 ? quarter : 1, probes = 3;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    /* There is nobody to be fair to, and no bandwidth to be estimated and paced by. Before it connects or listens: a
     * connection that has been paced once stays so. */
    if (iface->one_machine)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno"));
}

pk_result_t pki_tcp_prove(const struct pki_tcp_iface *iface, const char *label, const unsigned char hello[PKI_TCP_HELLO_BYTES],
                          const struct pki_tcp_challenge *challenge, unsigned char mac[PKI_TCP_MAC_BYTES])
{
    unsigned char transcript[LABEL_BYTES + PKI_TCP_HELLO_BYTES + PKI_TCP_CHALLENGE_BYTES] = { 0 };
    struct pki_tcp_challenge plain = *challenge;

    memset(plain.mac, 0, sizeof plain.mac);
    (void)snprintf((char *)transcript, LABEL_BYTES, "%s", label);
    memcpy(transcript + LABEL_BYTES, hello, PKI_TCP_HELLO_BYTES);
    pki_tcp_put_challenge(transcript + LABEL_BYTES + PKI_TCP_HELLO_BYTES, &plain);
    return pki_auth_mac(iface->key, sizeof iface->key, transcript, sizeof transcript, mac);
}

void pki_tcp_trouble(struct pki_tcp_iface *iface)
{
    if (!iface->trouble) /* until now there was nothing to look at: that is not to have been away */
        iface->looked_ns = pki_now_ns();
    iface->trouble = true;
    iface->timers_ns = 0;
}

/* ---- The end ---- */

/* The links from `first` on. */
static void over(struct pki_tcp_ep *ep, uint32_t first)
{
    for (uint32_t i = first; i < ep->nlinks; i++) {
        struct pki_tcp_link *link = &ep->links[i];

        pki_list_remove(&link->ready);
        pki_tcp_link_drop(link);
        link->state = PKI_TCP_OVER;
        if (link->grant != NULL)
            link->grant->fillers--;
        link->grant = NULL;
        pki_tcp_unexpected_drop(link);
    }
}

void pki_tcp_lost(struct pki_tcp_ep *ep, int error, const char *fmt, ...)
{
    struct pki_where where = pki_tcp_where(ep);
    char text[256];
    va_list args;

    if (ep->base.dead)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (ep->iface->shutdown_ns > 0 || ep->base.farewell.theirs) { /* this rank leaves anyway, or the peer has */
        pki_log(PKI_LOG_INFO, &where, "over tcp: %s", text);
        pki_tcp_left(ep);
        return;
    }
    (void)pki_ep_fail(&ep->base, PK_ERR_PEER, error, "over tcp: %s", text);
    over(ep, 0);
    ep->base.connecting = false;
    ep->base.dead = true;
    pki_tcp_data_lost(ep);
}

static bool all_up(const struct pki_tcp_ep *ep)
{
    for (uint32_t i = 0; i < ep->nlinks; i++)
        if (ep->links[i].state != PKI_TCP_UP && ep->links[i].state != PKI_TCP_OVER)
            return false;
    return true;
}

void pki_tcp_data_give_up(struct pki_tcp_ep *ep)
{
    over(ep, 1);
    pki_tcp_data_lost(ep);
    pki_tcp_grants_forget(ep);
    ep->base.connecting = ep->base.connecting && !all_up(ep);
}

/* Puts under way stay where they are: the engine knows that the peer is gone, and names what waited for it. */
void pki_tcp_left(struct pki_tcp_ep *ep)
{
    pki_tcp_is_shutting_down(ep);
    over(ep, 0);
    ep->base.left = true;
}

/* Its last acknowledgements may be behind its shutdown message. */
void pki_tcp_is_shutting_down(struct pki_tcp_ep *ep)
{
    ep->left = true;
    ep->base.connecting = false;
    over(ep, 1);
}

/* ---- Broken ---- */

static void wait_again(struct pki_tcp_link *link, uint64_t pause)
{
    pki_tcp_link_drop(link);
    pki_list_remove(&link->ready);
    link->state = PKI_TCP_WAITING;
    link->retry_ns = pki_now_ns() + pause;
    link->have = 0;
    pki_tcp_trouble(link->ep->iface);
}

void pki_tcp_try_again(struct pki_tcp_link *link)
{
    wait_again(link, 0);
    link->attempts = 0;
}

static const char *reason(int error, char *text, size_t bytes)
{
    return error == 0 ? "closed by the other end" : strerror_r(error, text, bytes);
}

void pki_tcp_link_broken(struct pki_tcp_link *link, int error)
{
    struct pki_tcp_ep *ep = link->ep;
    struct pki_where where = pki_tcp_where(ep);
    char text[128];

    if (link->state != PKI_TCP_UP)
        return;
    if (ep->left) {
        pki_tcp_left(ep);
        return;
    }
    pki_log(PKI_LOG_INFO, &where, "over tcp: connection %u: %s", link->index, reason(error, text, sizeof text));
    link->broken_ns = pki_now_ns();
    link->error = error;
    if (error == ETIMEDOUT)
        link->broken_ns -= ep->iface->params.retry_ns / 2;
    link->refused_ns = 0;
    link->attempts = 0;
    link->readable = link->writable = link->hangup = false;
    if (link->ctrl != NULL)
        pki_tcp_ctrl_rewind(link->ctrl);
    else
        pki_tcp_data_rewind(link);
    ep->retransmit.never |= link->index == 1;
    wait_again(link, ep->connects ? 0 : PROBE_NS / 2);
}

/*
 * Bytes are on their way and the peer's kernel has been silent for half of the patience, whatever it was asked. (The kernel's own
 * limit, TCP_USER_TIMEOUT, counts a peer as gone that only does not read.)
 */
void pki_tcp_link_health(struct pki_tcp_link *link)
{
    const uint64_t half_ms = link->ep->iface->params.retry_ns / 2 / PKI_NS_PER_MS;
    struct tcp_info info;
    socklen_t bytes = sizeof info;

    if (link->state != PKI_TCP_UP || getsockopt(link->source.fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return;
    /* No edge is missed that we know of; a transfer that stood still for one would stand still for ever. */
    link->readable = link->writable = true;
    pki_tcp_link_ready(link);
    if (info.tcpi_last_ack_recv > half_ms && (info.tcpi_retransmits >= UNANSWERED_TRIES || info.tcpi_probes >= UNANSWERED_TRIES))
        pki_tcp_link_broken(link, ETIMEDOUT);
}

/*
 * Its process lives, though it may be at something else: until it comes back to the library nobody counts the time. That a
 * connection was made does not show it yet: a proxy, or whoever has the port now, accepts for a process that has ended, and then
 * hangs up.
 */
static void lives(struct pki_tcp_ep *ep)
{
    for (uint32_t i = 0; i < ep->nlinks; i++)
        if (ep->links[i].state != PKI_TCP_UP)
            ep->links[i].broken_ns = pki_now_ns();
}

/* Where it had been reached. */
static void process_ended(struct pki_tcp_link *link)
{
    char text[2 * PKI_NETIF_TEXT] = "";
    struct pki_text out = { .start = text, .capacity = sizeof text };

    pki_tcp_target_text(&link->ep->targets[link->target], &out);
    pki_tcp_lost(link->ep, link->error != 0 ? link->error : ECONNRESET,
                 "its process has ended: connection %u broke, and nobody listens at %s any more", link->index, text);
}

/* It was connected, and did not come back. */
static void stays_broken(struct pki_tcp_link *link)
{
    const struct pki_tcp_target *target = &link->ep->targets[link->target];
    char text[2 * PKI_NETIF_TEXT] = "", why[128];
    struct pki_text out = { .start = text, .capacity = sizeof text };
    int error = target->state == PKI_TCP_FAILED && target->error != 0 ? target->error : ETIMEDOUT;

    pki_tcp_target_text(target, &out);
    pki_tcp_lost(link->ep, error, "connection %u broke (%s) and was not restored within PK_RETRY_MS (%llu ms); the peer is at %s", link->index,
                 reason(link->error, why, sizeof why), (unsigned long long)(link->ep->iface->params.retry_ns / PKI_NS_PER_MS), text);
}

static void refused(struct pki_tcp_link *link)
{
    uint64_t now = pki_now_ns();

    /* The engine may yet have to take news, which may say that the peer leaves. When this rank leaves nobody may take them. */
    if (link->refused_ns == 0 || pki_tcp_has_gone(link->ep) ||
        (pki_tcp_ctrl_has_news(&link->ep->ctrl) && link->ep->iface->shutdown_ns == 0))
        link->refused_ns = now;
    else if (now - link->refused_ns > REFUSED_NS)
        process_ended(link);
}

/* An attempt came to nothing. */
static void attempt_failed(struct pki_tcp_link *link, int error)
{
    struct pki_where where = pki_tcp_where(link->ep);
    uint64_t pause = PKI_NS_PER_MS << (link->attempts < 7 ? link->attempts : 7);
    bool is_refused;
    char text[128];

    pki_log(PKI_LOG_DEBUG, &where, "over tcp: connection %u, attempt %u: %s", link->index, link->attempts,
            reason(error, text, sizeof text));
    if (link->state == PKI_TCP_PROBING)
        pause = PROBE_NS;
    /* For who leaves it is enough that the peer's place answers nothing but a closed connection. */
    pki_tcp_target_failed(link, error);
    is_refused = error == ECONNREFUSED || (link->ep->iface->shutdown_ns > 0 && link->shows_ns > 0 && (error == 0 || error == ECONNRESET));
    wait_again(link, pause < BACKOFF_MAX_NS ? pause : BACKOFF_MAX_NS);
    link->attempts++;
    if (!pki_tcp_target_is_known(link)) /* that nobody listens at some address says nothing of the peer */
        return;
    if (is_refused)
        refused(link);
    else
        link->refused_ns = 0;
}

/* ---- Made ---- */

static uint64_t shows_after(const struct pki_tcp_link *link, uint64_t now)
{
    return now + link->ep->iface->params.retry_ns / SHOWS_PART;
}

static void begin(struct pki_tcp_link *link, enum pki_tcp_state state)
{
    int fd = pki_tcp_target_socket(link);

    link->state = state;
    link->shows_ns = 0;
    link->attempt_ends_ns = pki_now_ns() + pki_tcp_target_ns(link);
    if (fd < 0) {
        attempt_failed(link, errno);
    } else if (!pki_tcp_source(link->ep->iface, &link->source, fd, true)) {
        close(fd);
        attempt_failed(link, 0);
    }
}

static void say_hello(struct pki_tcp_link *link)
{
    struct pki_tcp_ep *ep = link->ep;
    struct pki_tcp_hello hello = { .from = (uint32_t)ep->base.rank, .to = (uint32_t)ep->base.peer, 
                                   .size = (uint32_t)ep->iface->size, .link = link->index, .received = link->received };

    if (pki_auth_random(hello.nonce, sizeof hello.nonce) != PK_OK) {
        attempt_failed(link, 0);
        return;
    }
    pki_tcp_put_hello(link->hello, &hello);
    link->state = PKI_TCP_CHALLENGED;
    link->have = 0;
    if (send(link->source.fd, link->hello, sizeof link->hello, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof link->hello)
        attempt_failed(link, errno);
}

static void connected(struct pki_tcp_link *link)
{
    struct sockaddr_storage there;
    socklen_t bytes = sizeof there, error_bytes = sizeof(int);
    int error = 0;

    if (getsockopt(link->source.fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0 || error != 0) {
        attempt_failed(link, error);
        return;
    }
    if (getpeername(link->source.fd, (struct sockaddr *)&there, &bytes) != 0) /* not yet */
        return;
    if (link->shows_ns == 0) {
        link->shows_ns = shows_after(link, pki_now_ns());
        link->attempt_ends_ns = pki_now_ns() + pki_tcp_target_ns(link);
    }
    if (link->state != PKI_TCP_PROBING)
        say_hello(link);
    else if (recv(link->source.fd, &(char){ 0 }, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        attempt_failed(link, 0);
}

static bool answer(struct pki_tcp_link *link, const struct pki_tcp_challenge *challenge)
{
    const struct pki_tcp_iface *iface = link->ep->iface;
    unsigned char mac[PKI_TCP_MAC_BYTES];

    if (pki_tcp_prove(iface, PKI_TCP_LABEL_ACCEPT, link->hello, challenge, mac) != PK_OK ||
        !pki_auth_equal(mac, challenge->mac, sizeof mac))
        return false;
    if (pki_tcp_prove(iface, PKI_TCP_LABEL_CONNECT, link->hello, challenge, mac) != PK_OK)
        return false;
    return send(link->source.fd, mac, sizeof mac, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof mac;
}

static void challenged(struct pki_tcp_link *link)
{
    struct pki_tcp_challenge challenge;
    int fd = link->source.fd;

    while (link->have < sizeof link->challenge) {
        ssize_t n = recv(fd, link->challenge + link->have, sizeof link->challenge - link->have, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            attempt_failed(link, n < 0 ? errno : 0);
            return;
        }
        link->have += (size_t)n;
    }
    if (!pki_tcp_get_challenge(link->challenge, &challenge) || !answer(link, &challenge) ||
        !pki_tcp_link_up(link, fd, challenge.received))
        attempt_failed(link, 0);
}

void pki_tcp_link_step(struct pki_tcp_link *link)
{
    if (link->state == PKI_TCP_CONNECTING || link->state == PKI_TCP_PROBING)
        connected(link);
    if (link->state == PKI_TCP_CHALLENGED)
        challenged(link);
}

bool pki_tcp_link_up(struct pki_tcp_link *link, int fd, uint64_t received)
{
    struct pki_tcp_ep *ep = link->ep;

    if (received < link->acked || received > link->end)
        return false;
    if (link->source.fd != fd)
        pki_tcp_link_drop(link);
    if (!pki_tcp_source(ep->iface, &link->source, fd, true))
        return false;
    link->state = PKI_TCP_UP;
    link->readable = link->writable = true;
    link->heard = !ep->connects;
    if (link->ctrl != NULL) {
        pki_tcp_ctrl_acked(link->ctrl, received);
        pki_tcp_ctrl_rewind(link->ctrl);
    } else {
        pki_tcp_data_acked(link, received);
        pki_tcp_data_rewind(link);
        pki_tcp_data_stripe(ep);
    }
    pki_tcp_link_ready(link);
    pki_tcp_target_reached(link);
    ep->base.connecting = ep->base.connecting && !all_up(ep);
    pki_tcp_report(ep);
    return true;
}

/* ---- Time ---- */

/* Who accepts can do nothing but wait, and need not count: while the control channel stands, the peer will say so when it has
 * given up. */
static bool is_the_peers_to_reconnect(const struct pki_tcp_link *link)
{
    return !link->ep->connects && link->index > 0 && link->ep->links[0].state == PKI_TCP_UP && !link->ep->links[0].hangup;
}

void pki_tcp_link_timers(struct pki_tcp_link *link, uint64_t now, uint64_t away_ns)
{
    struct pki_tcp_ep *ep = link->ep;

    if (link->state == PKI_TCP_UP || link->state == PKI_TCP_OVER || link->state == PKI_TCP_IDLE)
        return;
    ep->iface->trouble = true;
    link->broken_ns = pki_tcp_put_off(link->broken_ns, is_the_peers_to_reconnect(link) || pki_tcp_has_gone(ep) ? now : away_ns, now);
    link->attempt_ends_ns = pki_tcp_put_off(link->attempt_ends_ns, away_ns, now + pki_tcp_target_ns(link));
    if (link->shows_ns > 0)
        link->shows_ns = pki_tcp_put_off(link->shows_ns, away_ns, shows_after(link, now));
    if (link->shows_ns > 0 && now > link->shows_ns && (link->state == PKI_TCP_PROBING || link->state == PKI_TCP_CHALLENGED) &&
        !pki_tcp_target_may_be_foreign(link))
        lives(ep); /* what is connected still stands */
    if (!ep->base.connecting && now > link->broken_ns && now - link->broken_ns > ep->iface->params.retry_ns) {
        stays_broken(link);
        return;
    }
    if (link->state != PKI_TCP_WAITING) {
        if (now > link->attempt_ends_ns)
            attempt_failed(link, ETIMEDOUT);
    } else if (now >= link->retry_ns && ep->connects) {
        begin(link, PKI_TCP_CONNECTING);
    } else if (now >= link->retry_ns && link->index == 0 && !ep->base.connecting) {
        begin(link, PKI_TCP_PROBING);
    }
}

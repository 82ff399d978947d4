/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that do not stand, or do not answer: does the peer's process live, and how long is it waited for? */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "transport/tcp/conn/reach.h"
#include "util/clock.h"
#include "util/netif.h"
#include "util/text.h"

/* A process that lives listens. It has ended when for so long nobody does at one of its addresses, or who does hangs up;
 * where it had been reached, and its host says that nobody listens, an eighth of that is enough. */
#define REFUSED_NS (300 * PKI_NS_PER_MS)
#define UNANSWERED_TRIES 3 /* retransmissions or probes without an answer */

/*
 * Bytes are on their way and the peer's kernel has been silent for half of PK_RETRY_MS, whatever it was asked. (The kernel's own
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
            ep->links[i].attempt.broken_ns = pki_now_ns();
}

/* Where it had been reached. */
static void process_ended(struct pki_tcp_link *link)
{
    char text[2 * PKI_NETIF_TEXT] = "";
    struct pki_text out = { .start = text, .capacity = sizeof text };

    pki_tcp_target_text(&link->ep->targets.target[link->attempt.target], &out);
    pki_tcp_lost(link->ep, link->attempt.error != 0 ? link->attempt.error : ECONNRESET,
                 "its process has ended: connection %u broke, and nobody listens at %s any more", link->index, text);
    link->ep->base.cause.peer_ended = true;
}

/* It was connected, and did not come back. */
static void stays_broken(struct pki_tcp_link *link)
{
    const struct pki_tcp_target *target = &link->ep->targets.target[link->attempt.target];
    char text[2 * PKI_NETIF_TEXT] = "", why[128];
    struct pki_text out = { .start = text, .capacity = sizeof text };
    int error = target->state == PKI_TCP_FAILED && target->error != 0 ? target->error : ETIMEDOUT;
    uint64_t retry_ms = link->ep->iface->params.retry_ns / PKI_NS_PER_MS;

    pki_tcp_target_text(target, &out);
    pki_tcp_lost(link->ep, error, "connection %u broke (%s) and was not restored within PK_RETRY_MS (%llu ms); the peer is at %s",
                 link->index, pki_tcp_reason(link->attempt.error, why, sizeof why), (unsigned long long)retry_ms, text);
}

static bool has_news(const struct pki_tcp_ep *ep)
{
    const struct pki_tcp_link *link = &ep->links[0];

    return link->user->has_news(link);
}

void pki_tcp_refused(struct pki_tcp_link *link, int error)
{
    const bool is_proof = error == ECONNREFUSED && pki_tcp_target_is_reached(link);
    uint64_t now = pki_now_ns();

    if (is_proof && pki_tcp_leaves_failed(link->ep->iface)) { /* the others leave it at the same time */
        process_ended(link);
        return;
    }
    /* The engine may yet have to take news, which may say that the peer leaves. When this rank leaves nobody may take them. */
    if (link->attempt.refused_ns == 0 || pki_tcp_has_gone(link->ep) || (has_news(link->ep) && link->ep->iface->shutdown_ns == 0))
        link->attempt.refused_ns = now;
    else if (now - link->attempt.refused_ns > (is_proof ? REFUSED_NS / 8 : REFUSED_NS))
        process_ended(link);
}

/* Who accepts can do nothing but wait, and need not count: while the control channel stands, the peer will say so when it has
 * given up. */
static bool is_the_peers_to_reconnect(const struct pki_tcp_link *link)
{
    return !link->ep->connects && link->index > 0 && link->ep->links[0].state == PKI_TCP_UP && !link->ep->links[0].hangup;
}

static bool may_be_connected(const struct pki_tcp_link *link)
{
    return link->state == PKI_TCP_PROBING || link->state == PKI_TCP_CHALLENGED;
}

void pki_tcp_link_timers(struct pki_tcp_link *link, uint64_t now, uint64_t away_ns)
{
    struct pki_tcp_attempt *attempt = &link->attempt;
    struct pki_tcp_ep *ep = link->ep;
    uint64_t not_counted_ns = is_the_peers_to_reconnect(link) || pki_tcp_has_gone(ep) ? now : away_ns;

    if (link->state == PKI_TCP_UP || link->state == PKI_TCP_OVER || link->state == PKI_TCP_IDLE)
        return;
    ep->iface->trouble = true;
    attempt->broken_ns = pki_tcp_put_off(attempt->broken_ns, not_counted_ns, now);
    attempt->ends_ns = pki_tcp_put_off(attempt->ends_ns, away_ns, now + pki_tcp_target_ns(link));
    if (attempt->shows_ns > 0)
        attempt->shows_ns = pki_tcp_put_off(attempt->shows_ns, away_ns, pki_tcp_shows_after(link, now));
    if (attempt->shows_ns > 0 && now > attempt->shows_ns && may_be_connected(link) && !pki_tcp_target_may_be_foreign(link))
        lives(ep); /* what is connected still stands */
    if (ep->base.state != PKI_EP_CONNECTING && now > attempt->broken_ns &&
        now - attempt->broken_ns > ep->iface->params.retry_ns) {
        stays_broken(link);
        return;
    }
    if (link->state != PKI_TCP_WAITING) {
        if (now > attempt->ends_ns)
            pki_tcp_attempt_failed(link, ETIMEDOUT);
    } else if (now >= attempt->retry_ns && ep->connects) {
        pki_tcp_attempt_begin(link, PKI_TCP_CONNECTING);
    } else if (now >= attempt->retry_ns && link->index == 0 && ep->base.state != PKI_EP_CONNECTING) {
        pki_tcp_attempt_begin(link, PKI_TCP_PROBING);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Where a peer may be reached: its addresses one after the other, what came of each, and which one led to it. */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "transport/tcp/conn/reach.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/text.h"

/* for an answer of one address of several; twice as much each time they have all been tried */
#define FIRST_NS (500 * PKI_NS_PER_MS)
#define ROUNDS_LONGER 6 /* what is connected waits twice as long in each */
#define SAY_NS (5 * PKI_NS_PER_S)
#define WARNINGS 3

/* ---- The list ---- */

static uint32_t scope_of(const struct sockaddr_storage *address)
{
    struct sockaddr_in6 v6;

    memcpy(&v6, address, sizeof v6);
    return v6.sin6_scope_id;
}

static void add(struct pki_tcp_ep *ep, const struct sockaddr_storage *address, uint32_t scope)
{
    struct pki_tcp_target *target = &ep->targets.target[ep->targets.count];
    struct sockaddr_in6 v6;

    if (ep->targets.count == PKI_TCP_TARGETS)
        return;
    *target = (struct pki_tcp_target){ .address = *address };
    if (scope != 0) {
        memcpy(&v6, address, sizeof v6);
        v6.sin6_scope_id = scope;
        memcpy(&target->address, &v6, sizeof v6);
    }
    ep->targets.count++;
}

static bool needs_scope(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 && pki_netif_is_link_local(address);
}

static bool has_scope(const struct pki_tcp_iface *iface, uint32_t scope)
{
    for (uint32_t i = 0; i < iface->own.nscopes; i++)
        if (iface->own.scopes[i] == scope)
            return true;
    return false;
}

void pki_tcp_scopes_find(struct pki_tcp_iface *iface)
{
    struct pki_netif own[PKI_NETIF_MAX];
    int count = 0;

    iface->own.nscopes = 0;
    if (iface->own.how != PKI_TCP_ALL || !pki_netif_is_known() || pki_netif_addresses(false, own, PKI_NETIF_MAX, &count) != PK_OK)
        return;
    for (int i = 0; i < count && iface->own.nscopes < PKI_TCP_TARGETS; i++)
        if (needs_scope(&own[i].address) && !has_scope(iface, scope_of(&own[i].address)))
            iface->own.scopes[iface->own.nscopes++] = scope_of(&own[i].address);
}

/* Which of this host's interfaces leads to a link-local address the other host cannot know: first the one by which ranks have
 * been met. */
static void add_by_each(struct pki_tcp_ep *ep, const struct sockaddr_storage *address)
{
    const struct pki_tcp_iface *iface = ep->iface;
    const struct pki_net *net = iface->net;
    const bool has_met = ep->base.peer < net->nmet && needs_scope(&net->met[ep->base.peer]);
    const struct sockaddr_storage *met = has_met ? &net->met[ep->base.peer] : &net->local;
    const uint32_t first = needs_scope(met) ? scope_of(met) : 0, before = ep->targets.count;

    if (first != 0)
        add(ep, address, first);
    for (uint32_t i = 0; i < iface->own.nscopes; i++)
        if (iface->own.scopes[i] != first)
            add(ep, address, iface->own.scopes[i]);
    if (ep->targets.count == before) /* no way there: the kernel says so */
        add(ep, address, 0);
}

void pki_tcp_targets_fill(struct pki_tcp_ep *ep)
{
    ep->targets.reached = -1;
    ep->targets.count = 0;
    for (uint32_t i = 0; i < ep->theirs.addresses; i++) {
        if (ep->iface->own.how != PKI_TCP_NAMED && needs_scope(&ep->theirs.address[i]))
            add_by_each(ep, &ep->theirs.address[i]);
        else
            add(ep, &ep->theirs.address[i], 0); /* PKI_TCP_NAMED: with the scope of the interface that takes it */
        if (i < ep->theirs.near)
            ep->targets.near = ep->targets.count;
    }
}

/* ---- The choice ---- */

static uint32_t turn_of(const struct pki_tcp_link *link)
{
    return link->ctrl != NULL ? 0 : link->index - 1;
}

/* One address is enough for all connections. */
static bool settles(const struct pki_tcp_ep *ep)
{
    return ep->iface->own.how != PKI_TCP_NAMED && ep->theirs.near == 1;
}

/* It has been up, by one address, and broke: that one may only be cut off for a while. */
static bool returns(const struct pki_tcp_ep *ep)
{
    return settles(ep) && ep->targets.reached >= 0 && ep->base.state != PKI_EP_CONNECTING && ep->targets.count > 1;
}

/* The one that has led to the peer is tried alone for a while when it fails: if its process has ended, nobody listens there.
 * Then every second time. */
static uint32_t next_target(const struct pki_tcp_link *link)
{
    const struct pki_tcp_ep *ep = link->ep;
    const struct pki_tcp_targets *targets = &ep->targets;
    const uint32_t reached = targets->reached >= 0 ? (uint32_t)targets->reached : 0, attempts = link->attempt.count;
    const uint32_t first = settles(ep) ? reached : turn_of(link) % targets->near;

    if (settles(ep) && targets->reached >= 0 && pki_now_ns() - link->attempt.broken_ns < ep->iface->params.retry_ns / 4)
        return first;
    if (!returns(ep))
        return (first + attempts) % targets->count;
    return attempts % 2 == 0 ? first : (first + 1 + attempts / 2 % (targets->count - 1)) % targets->count;
}

/* How often the address that is tried has been tried, about. */
static unsigned round_of(const struct pki_tcp_link *link)
{
    const struct pki_tcp_targets *targets = &link->ep->targets;
    const unsigned attempts = link->attempt.count;

    if (!returns(link->ep))
        return attempts / targets->count;
    return (int)link->attempt.target == targets->reached ? attempts / 2 : attempts / (2 * (targets->count - 1));
}

/* Several interfaces carry the connections in turn; one that leads nowhere is left out by the next attempt. */
static void choose_named(struct pki_tcp_link *link, struct sockaddr_storage *to, struct sockaddr_storage *from)
{
    const struct pki_tcp_iface *iface = link->ep->iface;
    const struct pki_tcp_peer_info *theirs = &link->ep->theirs;
    struct pki_tcp_nic_pair pair = pki_tcp_choose_pair(
        &(struct pki_tcp_nics){ iface->own.count, iface->own.near, iface->own.address, iface->own.prefix },
        &(struct pki_tcp_nics){ theirs->addresses, theirs->near, theirs->address, NULL }, turn_of(link), link->attempt.count);
    struct sockaddr_in6 v6;

    link->attempt.target = pair.theirs;
    *to = theirs->address[pair.theirs];
    *from = iface->own.address[pair.mine];
    if (needs_scope(to) && needs_scope(from)) {
        memcpy(&v6, to, sizeof v6);
        v6.sin6_scope_id = scope_of(from);
        memcpy(to, &v6, sizeof v6);
    }
}

int pki_tcp_target_socket(struct pki_tcp_link *link)
{
    struct pki_tcp_ep *ep = link->ep;
    struct sockaddr_storage to, from = { 0 };
    int fd, error;

    if (ep->iface->own.how == PKI_TCP_NAMED) {
        choose_named(link, &to, &from);
    } else {
        link->attempt.target = next_target(link);
        to = ep->targets.target[link->attempt.target].address;
    }
    if (ep->targets.target[link->attempt.target].state == PKI_TCP_UNTRIED)
        ep->targets.target[link->attempt.target].state = PKI_TCP_TRYING;
    pki_tcp_report(ep);
    fd = pki_fd_keep(socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return -1;
    pki_tcp_socket_options(ep->iface, fd);
    if (ep->iface->accepting.listeners > 1 && from.ss_family == to.ss_family) {
        pki_netif_set_port(&from, 0);
        (void)bind(fd, (struct sockaddr *)&from, pki_netif_bytes(&from));
    }
    if (connect(fd, (const struct sockaddr *)&to, pki_netif_bytes(&to)) == 0 || errno == EINPROGRESS || errno == EINTR)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* What has been connected waits in the queue of who is away, also when it is given up: a queue has room for 4096, or 128, of
 * all peers. */
uint64_t pki_tcp_target_ns(const struct pki_tcp_link *link)
{
    const unsigned round = round_of(link);
    uint64_t ns = FIRST_NS << (round < 4 ? round : 4);

    if (link->attempt.shows_ns > 0)
        return PKI_TCP_ATTEMPT_NS << (round < ROUNDS_LONGER ? round : ROUNDS_LONGER);
    return link->ep->targets.count > 1 && ns < PKI_TCP_ATTEMPT_NS ? ns : PKI_TCP_ATTEMPT_NS;
}

/* ---- What came of it ---- */

static bool is_full(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

void pki_tcp_target_failed(struct pki_tcp_link *link, int error)
{
    struct pki_where where = pki_tcp_where(link->ep);
    struct pki_tcp_target *target = &link->ep->targets.target[link->attempt.target];
    char reason[128];

    target->state = link->attempt.shows_ns > 0 && error == ETIMEDOUT ? PKI_TCP_NO_ANSWER : PKI_TCP_FAILED;
    target->error = error;
    if (link->ep->base.state == PKI_EP_CONNECTING)
        link->ep->base.cause.sys_errno = error != 0 ? error : ECONNRESET;
    if (is_full(error) && !link->ep->iface->accepting.said_full) {
        link->ep->iface->accepting.said_full = true;
        pki_log(PKI_LOG_WARN, &where, "over tcp: cannot make a connection; trying again: %s",
                strerror_r(error, reason, sizeof reason));
    }
}

bool pki_tcp_target_is_reached(const struct pki_tcp_link *link)
{
    return (int)link->attempt.target == link->ep->targets.reached;
}

bool pki_tcp_target_is_known(const struct pki_tcp_link *link)
{
    return link->ep->base.state != PKI_EP_CONNECTING && (!settles(link->ep) || pki_tcp_target_is_reached(link));
}

bool pki_tcp_target_may_be_foreign(const struct pki_tcp_link *link)
{
    return link->ep->targets.reached >= 0 && !pki_tcp_target_is_known(link);
}

static bool same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    struct sockaddr_in6 a6, b6;
    struct sockaddr_in a4, b4;

    if (a->ss_family != b->ss_family)
        return false;
    memcpy(&a6, a, sizeof a6);
    memcpy(&b6, b, sizeof b6);
    memcpy(&a4, a, sizeof a4);
    memcpy(&b4, b, sizeof b4);
    if (a->ss_family == AF_INET6)
        return memcmp(&a6.sin6_addr, &b6.sin6_addr, sizeof a6.sin6_addr) == 0 && a6.sin6_scope_id == b6.sin6_scope_id;
    return a4.sin_addr.s_addr == b4.sin_addr.s_addr;
}

/* Who accepts knows by where the peer comes from. */
static int came_from(const struct pki_tcp_link *link)
{
    struct sockaddr_storage there = { 0 };
    socklen_t bytes = sizeof there;

    if (getpeername(link->source.fd, (struct sockaddr *)&there, &bytes) != 0)
        return -1;
    for (uint32_t i = 0; i < link->ep->targets.count; i++)
        if (same_host(&link->ep->targets.target[i].address, &there))
            return (int)i;
    return -1;
}

void pki_tcp_target_reached(struct pki_tcp_link *link)
{
    struct pki_tcp_ep *ep = link->ep;

    if (!settles(ep))
        return;
    if (!ep->connects) {
        ep->targets.reached = ep->targets.reached >= 0 ? ep->targets.reached : came_from(link);
        return;
    }
    ep->targets.reached = (int)link->attempt.target;
    for (uint32_t i = 0; i < ep->nlinks; i++) /* they need not wait for what does not answer */
        if (ep->links[i].state == PKI_TCP_CONNECTING && ep->links[i].attempt.target != link->attempt.target)
            pki_tcp_try_again(&ep->links[i]);
}

/* ---- Texts ---- */

void pki_tcp_target_text(const struct pki_tcp_target *target, struct pki_text *out)
{
    char text[PKI_NETIF_TEXT];

    pki_netif_format(&target->address, text);
    pki_text_add(out, "%s", text);
}

static void add_outcome(const struct pki_tcp_target *target, struct pki_text *out)
{
    char reason[128];

    if (target->state == PKI_TCP_UNTRIED)
        pki_text_add(out, " (not tried yet)");
    else if (target->state == PKI_TCP_TRYING)
        pki_text_add(out, " (no answer yet)");
    else if (target->state == PKI_TCP_NO_ANSWER)
        pki_text_add(out, " (accepts, but does not answer)");
    else if (target->error == 0)
        pki_text_add(out, " (closed by the process that listens there)");
    else
        pki_text_add(out, " (%s)", strerror_r(target->error, reason, sizeof reason));
}

static void describe(const struct pki_tcp_ep *ep, struct pki_text *out)
{
    struct pki_tcp_target own = { 0 };

    if (ep->connects) {
        pki_text_add(out, "this rank tries to connect to");
        for (uint32_t i = 0; i < ep->targets.count; i++) {
            pki_text_add(out, i > 0 ? ", " : " ");
            pki_tcp_target_text(&ep->targets.target[i], out);
            add_outcome(&ep->targets.target[i], out);
        }
        return;
    }
    pki_text_add(out, "it has not connected to this rank, which listens at");
    for (uint32_t i = 0; i < ep->iface->own.count; i++) {
        own.address = ep->iface->own.address[i];
        pki_text_add(out, i > 0 ? ", " : " ");
        pki_tcp_target_text(&own, out);
    }
}

void pki_tcp_report(struct pki_tcp_ep *ep)
{
    struct pki_text out = { .start = ep->targets.report, .capacity = sizeof ep->targets.report };

    ep->targets.report[0] = '\0';
    if (ep->base.state == PKI_EP_CONNECTING)
        describe(ep, &out);
}

void pki_tcp_say_connecting(struct pki_tcp_ep *ep, uint64_t now, uint64_t away_ns)
{
    struct pki_where where = pki_tcp_where(ep);

    if (ep->base.state != PKI_EP_CONNECTING || ep->targets.said)
        return;
    ep->targets.connecting_ns = ep->targets.connecting_ns == 0 ? now : pki_tcp_put_off(ep->targets.connecting_ns, away_ns, now);
    if (now - ep->targets.connecting_ns < SAY_NS)
        return;
    ep->targets.said = true;
    if (ep->iface->said++ >= WARNINGS)
        return;
    pki_log(PKI_LOG_WARN, &where, "over tcp: no connection for %llu ms: %s",
            (unsigned long long)((now - ep->targets.connecting_ns) / PKI_NS_PER_MS), ep->targets.report);
}

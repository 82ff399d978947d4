/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: watched, standing, broken, to be made again. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/tcp/conn/reach.h"
#include "util/clock.h"

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

/* A host that vanishes sends nothing. Where nothing is on its way the kernel asks it occasionally; else see
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

void pki_tcp_trouble(struct pki_tcp_iface *iface)
{
    if (!iface->trouble) /* until now there was nothing to look at: that is not to have been away */
        iface->timers.looked_ns = pki_now_ns();
    iface->trouble = true;
    iface->timers.next_ns = 0;
}

/* ---- Broken ---- */

void pki_tcp_wait_again(struct pki_tcp_link *link, uint64_t pause)
{
    pki_tcp_source_remove(&link->source);
    pki_list_remove(&link->ready);
    link->state = PKI_TCP_WAITING;
    link->attempt.retry_ns = pki_now_ns() + pause;
    link->attempt.have = 0;
    pki_tcp_trouble(link->ep->iface);
}

void pki_tcp_try_again(struct pki_tcp_link *link)
{
    pki_tcp_wait_again(link, 0);
    link->attempt.count = 0;
}

const char *pki_tcp_reason(int error, char *text, size_t bytes)
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
    pki_log(PKI_LOG_INFO, &where, "over tcp: connection %u: %s", link->index, pki_tcp_reason(error, text, sizeof text));
    link->attempt.broken_ns = pki_now_ns();
    link->attempt.error = error;
    if (error == ETIMEDOUT)
        link->attempt.broken_ns -= ep->iface->params.retry_ns / 2;
    link->attempt.refused_ns = 0;
    link->attempt.count = 0;
    link->readable = link->writable = link->hangup = false;
    link->user->broken(link);
    pki_tcp_wait_again(link, ep->connects || pki_tcp_leaves_failed(ep->iface) ? 0 : PKI_TCP_PROBE_NS / 2);
}

/* ---- Made ---- */

static bool all_up(const struct pki_tcp_ep *ep)
{
    for (uint32_t i = 0; i < ep->nlinks; i++)
        if (ep->links[i].state != PKI_TCP_UP && ep->links[i].state != PKI_TCP_OVER)
            return false;
    return true;
}

void pki_tcp_look_connected(struct pki_tcp_ep *ep)
{
    if (ep->base.state == PKI_EP_CONNECTING && all_up(ep))
        pki_ep_enter(&ep->base, PKI_EP_UP);
}

bool pki_tcp_link_up(struct pki_tcp_link *link, int fd, uint64_t received)
{
    struct pki_tcp_ep *ep = link->ep;

    if (received < link->acked || received > link->end)
        return false;
    if (link->source.fd != fd)
        pki_tcp_source_remove(&link->source);
    if (!pki_tcp_source(ep->iface, &link->source, fd, true))
        return false;
    link->state = PKI_TCP_UP;
    link->readable = link->writable = true;
    link->user->reset(link, received);
    pki_tcp_link_ready(link);
    pki_tcp_target_reached(link);
    pki_tcp_look_connected(ep);
    pki_tcp_report(ep);
    return true;
}

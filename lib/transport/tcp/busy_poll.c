/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that are read without asking epoll first. While epoll watches one, every segment and every acknowledgement that reaches it calls epoll
 * back, within the peer's system call where both are on one machine: 1 us of a message, that is a sixth of an allreduce of 1 KiB. So a control channel that is read at
 * every look anyway is taken out, and a connection for chunks while those are looked for; they are put back before anybody sleeps or stops looking.
 */
#include <errno.h>
#include <sys/epoll.h>

#include "transport/tcp/tcp.h"
#include "util/hot.h"

#define FINDS 16           /* looks that found something since it was put back: who sleeps after each message pays two system calls for one in 17 */
#define ROUNDS 8           /* of progress, between looks that are not the engine's: it looks where it waits for a message, but acknowledgements come as well */

PKI_HOT void pki_tcp_found(struct pki_tcp_link *link)
{
    struct pki_tcp_iface *iface = link->ep->iface;

    if (link->finds < FINDS) {
        link->finds++;
        return;
    }
    if (!pki_list_empty(&link->busy_polled) || link->state != PKI_TCP_UP || !link->writable || link->hangup ||
        atomic_load_explicit(&iface->base.sleepers, memory_order_relaxed) != 0)
        return;
    if (epoll_ctl(iface->epoll_fd, EPOLL_CTL_DEL, link->source.fd, NULL) == 0)
        pki_list_push(&iface->busy_polled, &link->busy_polled);
    else
        link->finds = 0;
}

void pki_tcp_put_back(struct pki_tcp_link *link)
{
    struct pki_tcp_source *source = &link->source;
    int fd = source->fd;

    link->finds = 0;
    if (pki_list_empty(&link->busy_polled))
        return;
    pki_list_remove(&link->busy_polled);
    source->fd = -1; /* what is there already is an event, too */
    if (pki_tcp_source(link->ep->iface, source, fd, true))
        return;
    source->fd = fd;
    pki_tcp_link_broken(link, errno);
}

void pki_tcp_busy_poll_start(struct pki_tcp_link *link)
{
    link->writable = false;
    pki_tcp_put_back(link);
}

void pki_tcp_put_all_back(struct pki_tcp_iface *iface)
{
    while (!pki_list_empty(&iface->busy_polled))
        pki_tcp_put_back(pki_container_of(iface->busy_polled.next, struct pki_tcp_link, busy_polled));
}

bool pki_tcp_look_after(struct pki_tcp_iface *iface)
{
    if (!pki_tcp_ctrls_are_polled(iface)) {
        pki_tcp_put_all_back(iface);
        return false;
    }
    if (iface->round % ROUNDS != 0)
        return false;
    for (struct pki_list *n = iface->busy_polled.next; n != &iface->busy_polled; n = n->next)
        pki_tcp_look_again(pki_container_of(n, struct pki_tcp_link, busy_polled));
    return true;
}

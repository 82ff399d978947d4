/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Acknowledgements of chunks. Of short transfers, on the connection that brought them: its sender waits for nothing else, and looks there for what comes the
 * other way as well, so that neither of the two touches a second connection. Where chunks go both ways the head of the next one says it, if that is soon
 * enough. All others ride on the lane (lane.c).
 */
#include <errno.h>
#include <sys/socket.h>

#include "transport/tcp/tcp.h"

ssize_t pki_tcp_came_send(struct pki_tcp_link *link)
{
    ssize_t n = send(link->watch.fd, link->came + sizeof link->came - link->came_left, link->came_left, MSG_NOSIGNAL | MSG_DONTWAIT);

    link->came_left -= n > 0 ? (size_t)n : 0;
    return n;
}

/* A whole transfer in one chunk, and nothing of ours that the acknowledgement would have to wait for. */
static bool pays(const struct pki_tcp_link *link)
{
    return pki_tcp_is_alone(link) && link->chunk.ahead == link->chunk.bytes &&
           link->writable && link->next == link->end && link->came_left == 0 &&
           link->outstanding + (link->ep->keep.end - link->ep->keep.head) <= PKI_TCP_AHEAD_MAX;
}

int pki_tcp_came_say(struct pki_tcp_link *link)
{
    ssize_t n;

    if (!pays(link))
        return 0;
    link->came_left = sizeof link->came;
    pki_tcp_put_came(link->came, link->received + 1);
    n = pki_tcp_came_send(link);
    if (n <= 0) {
        link->came_left = 0;
        return n == 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
    }
    link->told = link->received + 1;
    if (link->came_left > 0) /* the rest before anything else: data_write finds out whether there is room */
        pki_tcp_link_ready(link);
    return 1;
}

void pki_tcp_owe(struct pki_tcp_link *link)
{
    if (link->owes)
        return;
    link->owes = true;
    link->ep->iface->owing++;
}

static void pay_peer(struct pki_tcp_ep *ep)
{
    struct pki_tcp_lane *lane = &ep->lane;

    for (uint32_t i = 1; i <= ep->params.sockets; i++) {
        struct pki_tcp_link *link = &ep->links[i];

        lane->acks_due = lane->acks_due || (link->owes && link->told < link->received);
        ep->iface->owing -= link->owes;
        link->owes = false;
    }
    if (lane->acks_due)
        pki_tcp_lane_flush(lane);
}

void pki_tcp_pay(struct pki_tcp_iface *iface)
{
    for (int i = 0; i < iface->size && iface->owing > 0; i++)
        if (iface->eps[i] != NULL)
            pay_peer(iface->eps[i]);
}

bool pki_tcp_came_take(struct pki_tcp_link *link, uint64_t frames)
{
    if (frames > link->end || !pki_tcp_data_was_sent(link, frames)) {
        pki_tcp_lost(link->ep, 0, "acknowledged chunks that it was never sent");
        return false;
    }
    pki_tcp_data_acked(link, frames);
    return link->state == PKI_TCP_UP;
}

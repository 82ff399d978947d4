/* SPDX-License-Identifier: Apache-2.0 */
/* A control channel at its end: what was sent is seen out, and a shutdown message behind it. */
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "transport/tcp/tcp.h"
#include "util/clock.h"

#define SHUTDOWN_NS (200 * PKI_NS_PER_MS) /* after a failure, or where only notes went */

/* Of a connection that has been given up no more comes. */
uint64_t pki_tcp_sent_before(const struct pki_tcp_ep *ep, bool leaves)
{
    return leaves && ep->links[1].state != PKI_TCP_OVER ? ep->retransmit.frames : 0;
}

/* All is written, and the peer's kernel has it. */
static bool is_out(struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_link *link = ctrl->link;
    int waiting = 0;

    link->writable = true;
    ctrl->acks.due = true;
    pki_tcp_ctrl_flush(ctrl);
    return link->state == PKI_TCP_UP && ctrl->heard && ctrl->tx_sent == ctrl->tx_end && ctrl->acks.bytes == 0 &&
           (ioctl(link->source.fd, SIOCOUTQ, &waiting) != 0 || waiting == 0);
}

static bool copies_are_out(struct pki_tcp_ctrl *ctrl)
{
    return pki_tcp_copies_are_out(ctrl->link->ep);
}

static bool has_room(struct pki_tcp_ctrl *ctrl)
{
    return PKI_TCP_TX_BYTES - (size_t)(ctrl->tx_end - ctrl->tx_head) >= PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES;
}

/* A connection that is broken is made again first: the peer may still wait for the last messages or acknowledgements. */
static void await(struct pki_tcp_ctrl *ctrl, bool (*is_so)(struct pki_tcp_ctrl *ctrl))
{
    struct pki_tcp_link *link = ctrl->link;
    struct pki_tcp_ep *ep = link->ep;

    while (link->state != PKI_TCP_OVER && !is_so(ctrl) && pki_now_ns() < ep->iface->shutdown_ns) {
        struct pollfd p = { .fd = link->source.fd, .events = POLLOUT };

        (void)poll(&p, link->state == PKI_TCP_UP && ctrl->tx_sent < ctrl->tx_end ? 1 : 0, 1);
        (void)ep->iface->base.transport->progress(&ep->iface->base);
    }
}

/* What was sent has gone when this returns, or PK_RETRY_MS has passed for all peers together: its sender has been told that it
 * was sent. */
void pki_tcp_ctrl_close(struct pki_tcp_ep *ep)
{
    struct pki_tcp_ctrl *ctrl = &ep->ctrl;
    unsigned char head[PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES];

    if (ep->base.state == PKI_EP_CONNECTING)
        return;
    for (uint32_t i = 1; i <= ep->params.sockets; i++)
        /* the peer closes that connection when it hears of this, and may not have read it to its end */
        ep->links[i].reported = UINT64_MAX;
    if (ep->iface->shutdown_ns == 0)
        ep->iface->shutdown_ns =
            pki_now_ns() + (ep->iface->revoked || !ep->iface->base.carries ? SHUTDOWN_NS : ep->iface->params.retry_ns);
    await(ctrl, copies_are_out);
    await(ctrl, has_room);
    if (!has_room(ctrl))
        return;
    pki_tcp_put_close(head, pki_tcp_sent_before(ep, true));
    pki_tcp_ctrl_write(ctrl, head, sizeof head);
    await(ctrl, is_out);
}

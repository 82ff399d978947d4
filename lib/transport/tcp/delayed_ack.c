/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Acknowledgements of chunks. Of short transfers, on the connection that brought them: its sender waits for nothing else, and looks there for what comes the
 * other way as well, so that neither of the two touches a second connection. Where chunks go both ways the head of the next one says it, if that is soon
 * enough. All others ride on the control channel (ctrl.c).
 */
#include <errno.h>
#include <sys/socket.h>

#include "transport/tcp/tcp.h"

ssize_t pki_tcp_data_ack_send(struct pki_tcp_link *link)
{
    ssize_t n = send(link->source.fd, link->ack_frame + sizeof link->ack_frame - link->ack_left, link->ack_left, MSG_NOSIGNAL | MSG_DONTWAIT);

    link->ack_left -= n > 0 ? (size_t)n : 0;
    return n;
}

/* A whole transfer in one chunk, and nothing of ours that the acknowledgement would have to wait for. */
static bool pays(const struct pki_tcp_link *link)
{
    return pki_tcp_is_alone(link) && link->chunk.eager_put == link->chunk.bytes &&
           link->writable && link->next == link->end && link->ack_left == 0 &&
           link->outstanding + (link->ep->retransmit.end - link->ep->retransmit.head) <= PKI_TCP_EAGER_PUT_MAX;
}

int pki_tcp_data_ack(struct pki_tcp_link *link)
{
    ssize_t n;

    if (!pays(link))
        return 0;
    link->ack_left = sizeof link->ack_frame;
    pki_tcp_put_data_ack(link->ack_frame, link->received + 1);
    n = pki_tcp_data_ack_send(link);
    if (n <= 0) {
        link->ack_left = 0;
        return n == 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
    }
    link->reported = link->received + 1;
    if (link->ack_left > 0) /* the rest before anything else: data_write finds out whether there is room */
        pki_tcp_link_ready(link);
    return 1;
}

void pki_tcp_ack_delay(struct pki_tcp_link *link)
{
    if (link->ack_delayed)
        return;
    link->ack_delayed = true;
    link->ep->iface->acks_delayed++;
}

static void send_peer_acks(struct pki_tcp_ep *ep)
{
    struct pki_tcp_ctrl *ctrl = &ep->ctrl[0];

    for (uint32_t i = 1; i <= ep->params.sockets; i++) {
        struct pki_tcp_link *link = &ep->links[i];

        ctrl->acks_due = ctrl->acks_due || (link->ack_delayed && link->reported < link->received);
        ep->iface->acks_delayed -= link->ack_delayed;
        link->ack_delayed = false;
    }
    if (ctrl->acks_due)
        pki_tcp_ctrl_flush(ctrl);
}

void pki_tcp_acks_send(struct pki_tcp_iface *iface)
{
    for (int i = 0; i < iface->size && iface->acks_delayed > 0; i++)
        if (iface->eps[i] != NULL)
            send_peer_acks(iface->eps[i]);
}

bool pki_tcp_data_ack_arrived(struct pki_tcp_link *link, uint64_t frames)
{
    if (frames > link->end || !pki_tcp_data_was_sent(link, frames)) {
        pki_tcp_lost(link->ep, 0, "acknowledged chunks that it was never sent");
        return false;
    }
    pki_tcp_data_acked(link, frames);
    return link->state == PKI_TCP_UP;
}

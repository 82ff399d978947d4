/* SPDX-License-Identifier: Apache-2.0 */
/* Acknowledgements: how many frames of each connection have come, there and here. They travel on the control channel. */
#include "transport/tcp/tcp.h"

void pki_tcp_acks_gather(struct pki_tcp_ep *ep)
{
    struct pki_tcp_ctrl *ctrl = &ep->ctrl;

    ctrl->acks.bytes = ctrl->acks.sent = 0;
    ctrl->acks.due = false;
    for (uint32_t i = 0; i < ep->nlinks; i++) {
        struct pki_tcp_ack ack = { .link = i, .frames = ep->links[i].received };

        if (ep->links[i].reported == ack.frames)
            continue;
        pki_tcp_put_ack(ctrl->acks.row + ctrl->acks.bytes, &ack);
        ctrl->acks.bytes += PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES;
        ep->links[i].reported = ack.frames;
    }
    ctrl->acks.unreported = 0;
}

void pki_tcp_acks_repeat(struct pki_tcp_ep *ep)
{
    ep->ctrl.acks.sent = ep->ctrl.acks.bytes = 0;
    for (uint32_t i = 0; i < ep->nlinks; i++)
        ep->links[i].reported = UINT64_MAX;
    ep->ctrl.acks.due = true;
}

bool pki_tcp_ack_take(struct pki_tcp_ep *ep, const unsigned char bytes[PKI_TCP_ACK_BYTES])
{
    struct pki_tcp_link *link;
    struct pki_tcp_ack ack;

    if (!pki_tcp_get_ack(bytes, &ack) || ack.link >= ep->nlinks || ack.frames > ep->links[ack.link].end)
        return false;
    link = &ep->links[ack.link];
    return link->user->acked(link, ack.frames);
}

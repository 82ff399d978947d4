/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between hosts a pair of ranks has an endpoint of every transport that can join them. One carries; the others stand by, and carry notes
 * for it when it must talk to its other end though its own control channel does not work.
 */
#include "engine/channel/channel.h"

/* An endpoint that carries notes is none that carries messages: those are taken in by their control channel's own reader. */
static struct pki_ep *find_carrier(const struct pki_peer *peer, const struct pki_ep *ep)
{
    for (int i = 0; i < peer->neps; i++) {
        struct pki_ep *other = peer->eps[i];

        if (other != ep && other != peer->ctrl && !other->dead && other->iface->transport->between_hosts &&
            other->iface->msg_payload_max >= PKI_NOTE_MAX)
            return other;
    }
    return NULL;
}

void pki_note_open(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size; i++)
        for (int k = 0; k < e->peers[i].neps; k++)
            e->peers[i].eps[k]->has_notes = find_carrier(&e->peers[i], e->peers[i].eps[k]) != NULL;
}

static void take_notes(struct pki_ep *carrier, struct pki_ep *ep)
{
    struct pki_msg msg;
    const void *payload;

    while (carrier->iface->transport->peek(carrier, &msg, &payload)) {
        if (msg.kind == PKI_MSG_NOTE)
            ep->iface->transport->noted(ep, payload, msg.payload);
        carrier->iface->transport->pop(carrier);
    }
}

void pki_note_carry(const struct pki_peer *peer)
{
    struct pki_ep *ep = peer->ctrl, *carrier = ep != NULL && ep->has_notes ? find_carrier(peer, ep) : NULL;

    if (carrier == NULL)
        return;
    take_notes(carrier, ep);
    ep->iface->transport->recover(ep, carrier);
}

bool pki_note_needs_background(const struct pki_engine *e)
{
    for (int i = 0; i < e->config.size; i++) {
        const struct pki_ep *ctrl = e->peers[i].ctrl;

        if (ctrl != NULL && ctrl->has_notes && ctrl->iface->transport->needs_background)
            return true;
    }
    return false;
}

/* Messages that come meanwhile stay where they are, for whoever asks for them. */
void pki_note_background(struct pki_engine *e)
{
    bool recovering = false;

    for (int i = 0; i < e->nifaces; i++)
        if (e->ifaces[i]->transport->between_hosts)
            (void)e->ifaces[i]->transport->progress(e->ifaces[i]);
    for (int i = 0; i < e->config.size; i++) {
        pki_note_carry(&e->peers[i]);
        recovering |= e->peers[i].ctrl != NULL && e->peers[i].ctrl->recovering;
    }
    atomic_store_explicit(&e->recovering, recovering, memory_order_relaxed);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between hosts a pair of ranks has an endpoint of every transport that can join them. One carries; the others stand by, and
 * carry notes for it when it must talk to its other end though its own control channel does not work.
 */
#include <string.h>

#include "engine/channel/channel.h"
#include "util/clock.h"

/* An endpoint that carries notes is none that carries messages: those are taken in by their control channel's own reader. */
static struct pki_ep *find_carrier(const struct pki_peer *peer, const struct pki_ep *ep)
{
    for (int i = 0; i < peer->neps; i++) {
        struct pki_ep *other = peer->eps[i];

        if (other != ep && other != peer->ctrl && other->state != PKI_EP_DEAD && other->iface->transport->between_hosts &&
            other->iface->caps.msg_payload_max >= PKI_NOTE_MAX)
            return other;
    }
    return NULL;
}

void pki_note_open(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size; i++)
        for (int k = 0; k < e->peers[i].neps; k++) {
            struct pki_ep *ep = e->peers[i].eps[k];

            if (ep->notes == NULL)
                continue;
            ep->notes->carried = find_carrier(&e->peers[i], ep) != NULL;
            e->service.needs_background |= ep == e->peers[i].ctrl && ep->notes->carried;
        }
}

/* One at a time: the next when the endpoint has read it. */
static void take_note(struct pki_ep *carrier, struct pki_note *in)
{
    struct pki_msg msg;
    const void *payload;

    while (in->bytes == 0 && carrier->iface->transport->peek(carrier, &msg, &payload)) {
        if (msg.kind == PKI_MSG_NOTE && msg.payload <= sizeof in->data) {
            memcpy(in->data, payload, msg.payload);
            in->bytes = msg.payload;
        }
        carrier->iface->transport->pop(carrier);
    }
}

static void send_note(struct pki_ep *carrier, struct pki_note *out)
{
    const struct pki_msg msg = { .kind = PKI_MSG_NOTE, .payload = out->bytes };

    if (out->bytes > 0 && carrier->iface->transport->send(carrier, &msg, out->data) == PK_OK)
        out->bytes = 0;
}

void pki_note_carry(const struct pki_peer *peer)
{
    struct pki_notes *notes = peer->ctrl != NULL ? peer->ctrl->notes : NULL;
    struct pki_ep *carrier = notes != NULL && notes->carried ? find_carrier(peer, peer->ctrl) : NULL;

    if (carrier == NULL)
        return;
    take_note(carrier, &notes->in);
    notes->carrier_left |= carrier->state == PKI_EP_LEFT;
    notes->due = true;
    if (notes->in.bytes > 0) /* the other end waits for what follows from it */
        (void)peer->ctrl->iface->transport->progress(peer->ctrl->iface);
    send_note(carrier, &notes->out);
}

uint64_t pki_note_every_ns(const struct pki_engine *e)
{
    if (!e->service.needs_background)
        return 0;
    return atomic_load_explicit(&e->service.recovering, memory_order_relaxed) ? pki_tuning.wait.recover_ns
                                                                              : pki_tuning.wait.background_ns;
}

bool pki_note_is_due(const struct pki_engine *e)
{
    const uint64_t every = pki_note_every_ns(e);

    return every != 0 && pki_now_ns() - atomic_load_explicit(&e->service.background_ns, memory_order_relaxed) >= every;
}

/* Messages that come meanwhile stay where they are, for whoever asks for them. */
static void look_at_all(struct pki_engine *e)
{
    bool recovering = false;

    for (int i = 0; i < e->ifaces.n; i++)
        if (e->ifaces.at[i]->transport->between_hosts)
            (void)e->ifaces.at[i]->transport->progress(e->ifaces.at[i]);
    for (int i = 0; i < e->config.size; i++) {
        pki_note_carry(&e->peers[i]);
        recovering |= e->peers[i].ctrl != NULL && e->peers[i].ctrl->state == PKI_EP_RECOVERING;
    }
    atomic_store_explicit(&e->service.recovering, recovering, memory_order_relaxed);
}

void pki_note_background(struct pki_engine *e)
{
    if (!pki_engine_trylock(e))
        return;
    look_at_all(e);
    atomic_store_explicit(&e->service.background_ns, pki_now_ns(), memory_order_relaxed);
    pki_engine_unlock(e);
}

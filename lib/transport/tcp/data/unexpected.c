/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of transfers that their sender did not wait to be granted. The receive is most often posted while they come: so their
 * payload stays in the connection for some rounds, and is read straight into the buffer as soon as there is one. After that it is
 * read into memory of this transport, for others behind it must not wait, and copied when the grant comes. How much of it there
 * may be, both ends know.
 */
#include <stdlib.h>
#include <string.h>

#include "transport/tcp/tcp.h"
#include "tuning/tuning.h"

static bool same_bytes(const struct pki_tcp_chunk *a, const struct pki_tcp_chunk *b)
{
    return a->op == b->op && a->index == b->index && a->flags == b->flags && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

bool pki_tcp_unexpected_may(struct pki_tcp_ep *ep, const struct pki_tcp_chunk *chunk)
{
    unsigned kept = 0;

    if (chunk->eager_put == 0 || ep->unexpected_bytes + chunk->bytes > PKI_TCP_EAGER_PUT_CREDIT)
        return false;
    for (struct pki_list *n = ep->unexpected_queue.next; n != &ep->unexpected_queue; n = n->next)
        if (++kept == PKI_TCP_UNEXPECTED_MAX || same_bytes(&pki_container_of(n, struct pki_tcp_unexpected, node)->chunk, chunk))
            return false;
    return true;
}

static void unexpected_free(struct pki_tcp_ep *ep, struct pki_tcp_unexpected *unexpected)
{
    ep->unexpected_bytes -= unexpected->chunk.bytes;
    pki_list_remove(&unexpected->arrival.event.node);
    pki_list_remove(&unexpected->node);
    free(unexpected);
}

/* Once for all chunks of a transfer. */
static void tell(struct pki_tcp_ep *ep, struct pki_tcp_unexpected *unexpected)
{
    const struct pki_tcp_chunk *chunk = &unexpected->chunk;

    unexpected->arrival.ep = &ep->base;
    unexpected->arrival.about = (struct pki_msg){
        .flags = chunk->flags, .index = chunk->index, .sig = chunk->sig, .op = chunk->op, .bytes = chunk->eager_put
    };
    pki_list_init(&unexpected->arrival.event.node);
    if (chunk->offset == 0)
        pki_event_push(&ep->iface->base, &unexpected->arrival.event, PKI_EVENT_UNEXPECTED);
}

static bool keep_chunk(struct pki_tcp_link *link)
{
    struct pki_tcp_ep *ep = link->ep;
    struct pki_tcp_unexpected *unexpected = NULL;

    /* Other connections may have brought more meanwhile. */
    if (pki_tcp_unexpected_may(ep, &link->chunk))
        unexpected = malloc(sizeof *unexpected + link->chunk.bytes);
    if (unexpected == NULL) {
        pki_tcp_lost(ep, 0, "sent %u bytes of operation %llu, which was not granted, and they cannot be kept", link->chunk.bytes,
                     (unsigned long long)link->chunk.op);
        return false;
    }
    pki_list_init(&unexpected->node);
    unexpected->chunk = link->chunk;
    unexpected->whole = false;
    pki_list_push(&ep->unexpected_queue, &unexpected->node);
    ep->unexpected_bytes += unexpected->chunk.bytes;
    tell(ep, unexpected);
    link->unexpected = unexpected;
    return true;
}

bool pki_tcp_unexpected_place(struct pki_tcp_link *link)
{
    link->grant = pki_tcp_grant_find(link->ep, &link->chunk);
    if (link->grant != NULL) {
        link->grant->fillers++;
        return true;
    }
    return (++link->polls > pki_tuning.tcp.unexpected_polls || pki_tcp_has_gone(link->ep)) && keep_chunk(link);
}

void pki_tcp_unexpected_ended(struct pki_tcp_link *link)
{
    link->unexpected->whole = true;
    link->unexpected = NULL;
}

void pki_tcp_unexpected_drop(struct pki_tcp_link *link)
{
    if (link->unexpected != NULL)
        unexpected_free(link->ep, link->unexpected);
    link->unexpected = NULL;
}

/* The rest is read into the buffer itself. */
static void go_on_in_place(struct pki_tcp_ep *ep, struct pki_recv *grant, struct pki_tcp_unexpected *unexpected)
{
    for (uint32_t i = 1; i <= ep->params.sockets; i++) {
        struct pki_tcp_link *link = &ep->links[i];

        if (link->unexpected != unexpected)
            continue;
        memcpy(grant->addr + unexpected->chunk.offset, unexpected->payload, unexpected->chunk.bytes - link->left);
        link->unexpected = NULL;
        link->grant = grant;
        grant->fillers++;
    }
}

bool pki_tcp_unexpected_adopt(struct pki_tcp_ep *ep, struct pki_recv *grant)
{
    struct pki_list *n = ep->unexpected_queue.next;

    while (n != &ep->unexpected_queue) {
        struct pki_tcp_unexpected *unexpected = pki_container_of(n, struct pki_tcp_unexpected, node);
        struct pki_tcp_chunk chunk = unexpected->chunk;
        bool whole = unexpected->whole;

        n = n->next;
        if (!pki_tcp_is_of(grant, &chunk) || chunk.eager_put != grant->bytes || chunk.sig != grant->sig)
            continue;
        if (whole)
            memcpy(grant->addr + chunk.offset, unexpected->payload, chunk.bytes);
        else
            go_on_in_place(ep, grant, unexpected);
        unexpected_free(ep, unexpected);
        if (whole && !pki_tcp_grant_filled(ep, grant, &chunk))
            return false;
    }
    return true;
}

void pki_tcp_unexpected_close(struct pki_tcp_ep *ep)
{
    while (ep->unexpected_queue.next != NULL && !pki_list_empty(&ep->unexpected_queue))
        unexpected_free(ep, pki_container_of(ep->unexpected_queue.next, struct pki_tcp_unexpected, node));
}

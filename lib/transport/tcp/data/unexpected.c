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

    if (chunk->eager_put == 0 || ep->unexpected.bytes + chunk->bytes > PKI_TCP_EAGER_PUT_CREDIT)
        return false;
    for (struct pki_list *n = ep->unexpected.list.next; n != &ep->unexpected.list; n = n->next)
        if (++kept == PKI_TCP_UNEXPECTED_MAX || same_bytes(&pki_container_of(n, struct pki_tcp_unexpected, node)->chunk, chunk))
            return false;
    return true;
}

static void unexpected_free(struct pki_tcp_ep *ep, struct pki_tcp_unexpected *unexpected)
{
    ep->unexpected.bytes -= unexpected->chunk.bytes;
    pki_list_remove(&unexpected->put.event.node);
    pki_list_remove(&unexpected->node);
    free(unexpected);
}

/* Once for all chunks of a transfer. */
static void tell(struct pki_tcp_ep *ep, struct pki_tcp_unexpected *unexpected)
{
    const struct pki_tcp_chunk *chunk = &unexpected->chunk;

    unexpected->put.ep = &ep->base;
    unexpected->put.about = (struct pki_msg){
        .flags = chunk->flags, .index = chunk->index, .sig = chunk->sig, .op = chunk->op, .bytes = chunk->eager_put
    };
    pki_list_init(&unexpected->put.event.node);
    if (chunk->offset == 0)
        pki_event_push(&ep->iface->base, &unexpected->put.event, PKI_EVENT_UNEXPECTED);
}

static bool keep_chunk(struct pki_tcp_link *link)
{
    struct pki_tcp_in *in = link->in;
    struct pki_tcp_ep *ep = link->ep;
    struct pki_tcp_unexpected *unexpected = NULL;

    /* Other connections may have brought more meanwhile. */
    if (pki_tcp_unexpected_may(ep, &in->chunk))
        unexpected = malloc(sizeof *unexpected + in->chunk.bytes);
    if (unexpected == NULL) {
        pki_tcp_lost(ep, 0, "sent %u bytes of operation %llu, which was not granted, and they cannot be kept", in->chunk.bytes,
                     (unsigned long long)in->chunk.op);
        return false;
    }
    pki_list_init(&unexpected->node);
    unexpected->chunk = in->chunk;
    unexpected->whole = false;
    pki_list_push(&ep->unexpected.list, &unexpected->node);
    ep->unexpected.bytes += unexpected->chunk.bytes;
    tell(ep, unexpected);
    in->unexpected = unexpected;
    return true;
}

bool pki_tcp_unexpected_place(struct pki_tcp_link *link)
{
    struct pki_tcp_in *in = link->in;

    in->grant = pki_tcp_grant_find(link->ep, &in->chunk);
    if (in->grant != NULL) {
        in->grant->fillers++;
        return true;
    }
    return (++in->polls > pki_tuning.tcp.unexpected_polls || pki_tcp_has_gone(link->ep)) && keep_chunk(link);
}

void pki_tcp_unexpected_ended(struct pki_tcp_link *link)
{
    struct pki_tcp_in *in = link->in;

    in->unexpected->whole = true;
    in->unexpected = NULL;
}

void pki_tcp_unexpected_drop(struct pki_tcp_link *link)
{
    struct pki_tcp_in *in = link->in;

    if (in->unexpected != NULL)
        unexpected_free(link->ep, in->unexpected);
    in->unexpected = NULL;
}

/* The rest is read into the buffer itself. */
static void go_on_in_place(struct pki_tcp_ep *ep, struct pki_recv *grant, struct pki_tcp_unexpected *unexpected)
{
    for (uint32_t i = 1; i <= ep->params.sockets; i++) {
        struct pki_tcp_in *in = ep->links[i].in;

        if (in->unexpected != unexpected)
            continue;
        memcpy(grant->addr + unexpected->chunk.offset, unexpected->payload, unexpected->chunk.bytes - in->left);
        in->unexpected = NULL;
        in->grant = grant;
        grant->fillers++;
    }
}

bool pki_tcp_unexpected_adopt(struct pki_tcp_ep *ep, struct pki_recv *grant)
{
    struct pki_list *n = ep->unexpected.list.next;

    while (n != &ep->unexpected.list) {
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
    while (ep->unexpected.list.next != NULL && !pki_list_empty(&ep->unexpected.list))
        unexpected_free(ep, pki_container_of(ep->unexpected.list.next, struct pki_tcp_unexpected, node));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of transfers that their sender did not wait to be granted. The receive is most often posted while they come: so their payload stays
 * in the connection for some rounds, and is read straight into the buffer as soon as there is one. After that it is read into memory of this
 * transport, for others behind it must not wait, and copied when the grant comes. How much of it there may be, both ends know.
 */
#include <stdlib.h>
#include <string.h>

#include "transport/tcp/tcp.h"
#include "util/hot.h"

#define EARLY_MAX 1024 /* chunks kept of a peer: the credit is of their bytes alone, and a chunk may be of one */
#define LOOKS 64 /* rounds of progress for which a chunk waits in its connection, unless its sender has gone */

static bool same_bytes(const struct pki_tcp_chunk *a, const struct pki_tcp_chunk *b)
{
    return a->op == b->op && a->index == b->index && a->flags == b->flags && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

bool pki_tcp_early_may(struct pki_tcp_ep *ep, const struct pki_tcp_chunk *chunk)
{
    unsigned kept = 0;

    if (chunk->ahead == 0 || ep->early_bytes + chunk->bytes > PKI_TCP_AHEAD_CREDIT)
        return false;
    for (struct pki_list *n = ep->earlies.next; n != &ep->earlies; n = n->next)
        if (++kept == EARLY_MAX || same_bytes(&pki_container_of(n, struct pki_tcp_early, node)->chunk, chunk))
            return false;
    return true;
}

static void early_free(struct pki_tcp_ep *ep, struct pki_tcp_early *early)
{
    ep->early_bytes -= early->chunk.bytes;
    ep->untold -= !early->told;
    pki_list_remove(&early->node);
    free(early);
}

static bool keep(struct pki_tcp_link *link)
{
    struct pki_tcp_ep *ep = link->ep;
    struct pki_tcp_early *early = NULL;

    /* Other connections may have brought more meanwhile. */
    if (pki_tcp_early_may(ep, &link->chunk))
        early = malloc(sizeof *early + link->chunk.bytes);
    if (early == NULL) {
        pki_tcp_lost(ep, 0, "sent %u bytes of operation %llu, which was not granted, and they cannot be kept", link->chunk.bytes,
                     (unsigned long long)link->chunk.op);
        return false;
    }
    pki_list_init(&early->node);
    early->chunk = link->chunk;
    early->whole = early->told = false;
    pki_list_push(&ep->earlies, &early->node);
    ep->early_bytes += early->chunk.bytes;
    ep->untold++;
    link->early = early;
    return true;
}

bool pki_tcp_early_place(struct pki_tcp_link *link)
{
    link->grant = pki_tcp_grant_find(link->ep, &link->chunk);
    if (link->grant != NULL) {
        link->grant->fillers++;
        return true;
    }
    return (++link->looks > LOOKS || pki_tcp_has_gone(link->ep)) && keep(link);
}

void pki_tcp_early_ended(struct pki_tcp_link *link)
{
    link->early->whole = true;
    link->early = NULL;
}

void pki_tcp_early_drop(struct pki_tcp_link *link)
{
    if (link->early != NULL)
        early_free(link->ep, link->early);
    link->early = NULL;
}

/* The rest is read into the buffer itself. */
static void go_on_in_place(struct pki_tcp_ep *ep, struct pki_tcp_grant *grant, struct pki_tcp_early *early)
{
    for (uint32_t i = 1; i <= ep->params.sockets; i++) {
        struct pki_tcp_link *link = &ep->links[i];

        if (link->early != early)
            continue;
        memcpy(grant->addr + early->chunk.offset, early->payload, early->chunk.bytes - link->left);
        link->early = NULL;
        link->grant = grant;
        grant->fillers++;
    }
}

bool pki_tcp_early_adopt(struct pki_tcp_ep *ep, struct pki_tcp_grant *grant)
{
    struct pki_list *n = ep->earlies.next;

    while (n != &ep->earlies) {
        struct pki_tcp_early *early = pki_container_of(n, struct pki_tcp_early, node);
        struct pki_tcp_chunk chunk = early->chunk;
        bool whole = early->whole;

        n = n->next;
        if (!pki_tcp_is_of(grant, &chunk) || chunk.ahead != grant->bytes || chunk.sig != grant->sig)
            continue;
        if (whole)
            memcpy(grant->addr + chunk.offset, early->payload, chunk.bytes);
        else
            go_on_in_place(ep, grant, early);
        early_free(ep, early);
        ep->wants = ep->wants && (ep->want.op != chunk.op || ep->want.index != chunk.index);
        if (whole && !pki_tcp_grant_filled(ep, grant, &chunk))
            return false;
    }
    return true;
}

PKI_HOT bool pki_tcp_early_peek(struct pki_tcp_ep *ep, struct pki_msg *msg)
{
    for (struct pki_list *n = ep->earlies.next; !ep->wants && ep->untold > 0 && n != &ep->earlies; n = n->next) {
        struct pki_tcp_early *early = pki_container_of(n, struct pki_tcp_early, node);
        const struct pki_tcp_chunk *chunk = &early->chunk;

        if (early->told)
            continue;
        early->told = true;
        ep->untold--;
        ep->wants = chunk->offset == 0; /* once for all chunks of a transfer */
        ep->want = (struct pki_msg){ .kind = PKI_MSG_WANT, .flags = chunk->flags, .index = chunk->index, .sig = chunk->sig,
                                     .op = chunk->op, .bytes = chunk->ahead, .extra = PKI_WANT_AHEAD };
    }
    *msg = ep->wants ? ep->want : *msg;
    return ep->wants;
}

void pki_tcp_early_close(struct pki_tcp_ep *ep)
{
    while (ep->earlies.next != NULL && !pki_list_empty(&ep->earlies))
        early_free(ep, pki_container_of(ep->earlies.next, struct pki_tcp_early, node));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Grants that went out on the control channel: where chunks may be written, and how much of each transfer has come. */
#include <stdlib.h>

#include "transport/tcp/tcp.h"
#include "util/hot.h"

#define KEY_FLAGS (PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED | PKI_MSG_FLAG_BOUNCE)

struct slab {
    struct pki_list node;
    struct pki_tcp_grant grants[PKI_TCP_GRANTS_A_SLAB];
};

static bool grow(struct pki_tcp_ep *ep)
{
    struct slab *slab = calloc(1, sizeof *slab);

    if (slab == NULL)
        return false;
    pki_list_push(&ep->slabs, &slab->node);
    for (int i = 0; i < PKI_TCP_GRANTS_A_SLAB; i++)
        pki_list_push(&ep->free_grants, &slab->grants[i].node);
    return true;
}

/* Between two islands lies a chunk that is on its way, so there are no more of them than the window allows. */
pk_result_t pki_tcp_grants_open(struct pki_tcp_ep *ep)
{
    ep->out_of_order_max = ep->params.sockets * ep->params.window + 1;
    ep->out_of_order = calloc(ep->out_of_order_max, sizeof *ep->out_of_order);
    if (ep->out_of_order == NULL || !grow(ep)) {
        struct pki_where where = pki_tcp_where(ep);

        return pki_fail(PK_ERR_MEMORY, &where, "over tcp: no memory for an endpoint");
    }
    return PK_OK;
}

void pki_tcp_grants_close(struct pki_tcp_ep *ep)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&ep->slabs)) != NULL)
        free(pki_container_of(node, struct slab, node));
    free(ep->out_of_order);
    ep->out_of_order = NULL;
}

static void fill(struct pki_tcp_ep *ep, struct pki_tcp_grant *grant, const struct pki_msg *msg, struct pki_msg *out)
{
    *grant = (struct pki_tcp_grant){ .flags = msg->flags & KEY_FLAGS, .index = msg->index, .sig = msg->sig, .op = msg->op,
                                     .addr = (char *)(uintptr_t)msg->offset, .bytes = msg->bytes };
    out->offset = 0;
    if (msg->kind != PKI_MSG_BOUNCE_CREDIT)
        return;
    grant->flags = PKI_MSG_FLAG_BOUNCE;
    grant->index = 0;
    grant->sig = 0;
    grant->op = ++ep->places;
    grant->bytes = msg->signal_value;
    out->offset = grant->op;
}

pk_result_t pki_tcp_grant(struct pki_tcp_ep *ep, const struct pki_msg *msg, struct pki_msg *out)
{
    struct pki_list *node;
    struct pki_tcp_grant *grant;

    if (msg->kind == PKI_MSG_CTS && (msg->extra == PKI_CTS_AGAIN || (msg->flags & (PKI_MSG_FLAG_BOUNCE | PKI_MSG_FLAG_DEVICE)) != 0))
        return PK_OK;
    node = pki_list_pop(&ep->free_grants);
    if (node == NULL && grow(ep))
        node = pki_list_pop(&ep->free_grants);
    if (node == NULL) {
        struct pki_where where = pki_tcp_where(ep);

        return pki_fail(PK_ERR_MEMORY, &where, "over tcp: no memory for a grant");
    }
    grant = pki_container_of(node, struct pki_tcp_grant, node);
    fill(ep, grant, msg, out);
    pki_list_init(&grant->events);
    pki_list_init(&grant->node);
    pki_list_push(&ep->grants, &grant->node);
    ep->iface->busy++;
    if (!pki_tcp_unexpected_adopt(ep, grant))
        pki_tcp_lost(ep, 0, "sent bytes of operation %llu twice", (unsigned long long)grant->op);
    return PK_OK;
}

static bool has_come(const struct pki_tcp_ep *ep, const struct pki_tcp_grant *grant, const struct pki_tcp_chunk *chunk)
{
    if (chunk->offset < grant->prefix)
        return true;
    for (uint32_t i = 0; i < ep->nout_of_order; i++)
        if (ep->out_of_order[i].grant == grant && chunk->offset < ep->out_of_order[i].end &&
            chunk->offset + chunk->bytes > ep->out_of_order[i].begin)
            return true;
    return false;
}

/* Else the engine hears of the chunk as of a RTS, which does not fit. */
static bool agree(const struct pki_tcp_grant *grant, const struct pki_tcp_chunk *chunk)
{
    return chunk->eager_put == 0 || (chunk->eager_put == grant->bytes && chunk->sig == grant->sig);
}

struct pki_tcp_grant *pki_tcp_grant_find(struct pki_tcp_ep *ep, const struct pki_tcp_chunk *chunk)
{
    for (struct pki_list *n = ep->grants.next; n != &ep->grants; n = n->next) {
        struct pki_tcp_grant *grant = pki_container_of(n, struct pki_tcp_grant, node);

        if (!pki_tcp_is_of(grant, chunk))
            continue;
        if (!agree(grant, chunk) || chunk->offset > grant->bytes || chunk->bytes > grant->bytes - chunk->offset || has_come(ep, grant, chunk))
            return NULL;
        return grant;
    }
    return NULL;
}

/* Islands that the prefix has reached become part of it. */
static void absorb(struct pki_tcp_ep *ep, struct pki_tcp_grant *grant)
{
    for (uint32_t i = 0; i < ep->nout_of_order;) {
        if (ep->out_of_order[i].grant != grant || ep->out_of_order[i].begin != grant->prefix) {
            i++;
            continue;
        }
        grant->prefix = ep->out_of_order[i].end;
        ep->out_of_order[i] = ep->out_of_order[--ep->nout_of_order];
        i = 0;
    }
}

static bool add_out_of_order(struct pki_tcp_ep *ep, struct pki_tcp_grant *grant, size_t begin, size_t end)
{
    for (uint32_t i = 0; i < ep->nout_of_order;) {
        struct pki_tcp_out_of_order *out_of_order = &ep->out_of_order[i];

        if (out_of_order->grant != grant || (out_of_order->end != begin && out_of_order->begin != end)) {
            i++;
            continue;
        }
        begin = out_of_order->begin < begin ? out_of_order->begin : begin;
        end = out_of_order->end > end ? out_of_order->end : end;
        *out_of_order = ep->out_of_order[--ep->nout_of_order];
        i = 0;
    }
    if (ep->nout_of_order == ep->out_of_order_max)
        return false;
    ep->out_of_order[ep->nout_of_order++] = (struct pki_tcp_out_of_order){ .grant = grant, .begin = begin, .end = end };
    return true;
}

static void end(struct pki_tcp_ep *ep, struct pki_tcp_grant *grant)
{
    pki_list_remove(&grant->node);
    pki_list_push(&ep->free_grants, &grant->node);
    ep->iface->busy--;
}

void pki_tcp_grants_forget(struct pki_tcp_ep *ep)
{
    while (!pki_list_empty(&ep->grants)) {
        struct pki_tcp_grant *grant = pki_container_of(ep->grants.next, struct pki_tcp_grant, node);

        pki_list_remove(&grant->events);
        end(ep, grant);
    }
    ep->nout_of_order = 0;
}

bool pki_tcp_grant_filled(struct pki_tcp_ep *ep, struct pki_tcp_grant *grant, const struct pki_tcp_chunk *chunk)
{
    if (has_come(ep, grant, chunk))
        return false;
    if (chunk->offset != grant->prefix)
        return add_out_of_order(ep, grant, chunk->offset, chunk->offset + chunk->bytes);
    grant->prefix += chunk->bytes;
    absorb(ep, grant);
    if (grant->prefix == grant->bytes && grant->fillers > 0)
        return false;
    if (grant->flags == PKI_MSG_FLAG_BOUNCE && grant->prefix == grant->bytes)
        end(ep, grant); /* the engines tell each other of it */
    else if (grant->flags != PKI_MSG_FLAG_BOUNCE && pki_list_empty(&grant->events))
        pki_list_push(&ep->events, &grant->events);
    return true;
}

PKI_HOT bool pki_tcp_news_peek(struct pki_tcp_ep *ep, struct pki_msg *msg)
{
    const struct pki_tcp_grant *grant;

    if (pki_list_empty(&ep->events))
        return false;
    grant = pki_container_of(ep->events.next, struct pki_tcp_grant, events);
    *msg = (struct pki_msg){ .kind = PKI_MSG_FIN, .flags = grant->flags, .index = grant->index, .sig = grant->sig,
                             .op = grant->op, .offset = grant->prefix, .bytes = grant->bytes };
    return true;
}

void pki_tcp_news_pop(struct pki_tcp_ep *ep)
{
    struct pki_tcp_grant *grant = pki_container_of(ep->events.next, struct pki_tcp_grant, events);

    pki_list_remove(&grant->events);
    if (grant->prefix == grant->bytes)
        end(ep, grant);
}

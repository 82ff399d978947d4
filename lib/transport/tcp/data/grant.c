/* SPDX-License-Identifier: Apache-2.0 */
/* Receives that have been posted: where chunks may be written, and how much of each transfer has come. */
#include <stdlib.h>

#include "transport/tcp/tcp.h"

#define KEY_FLAGS (PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED | PKI_MSG_FLAG_BOUNCE)

/* Between two islands lies a chunk that is on its way, so there are no more of them than the window allows. */
bool pki_tcp_grants_open(struct pki_tcp_ep *ep)
{
    ep->grants.out_of_order_max = ep->params.sockets * ep->params.window + 1;
    ep->grants.out_of_order = calloc(ep->grants.out_of_order_max, sizeof *ep->grants.out_of_order);
    return ep->grants.out_of_order != NULL;
}

void pki_tcp_grants_close(struct pki_tcp_ep *ep)
{
    free(ep->grants.out_of_order);
    ep->grants.out_of_order = NULL;
}

/* What the peer is told instead of an address: offsets count from the transfer's first byte, and a place outside a transfer has a
 * number. */
static void name(struct pki_tcp_ep *ep, struct pki_recv *recv, struct pki_msg *tell)
{
    recv->flags &= KEY_FLAGS;
    tell->offset = 0;
    if (tell->kind != PKI_MSG_BOUNCE_CREDIT)
        return;
    recv->flags = PKI_MSG_FLAG_BOUNCE;
    recv->index = 0;
    recv->sig = 0;
    recv->op = tell->offset = ++ep->grants.places;
}

pk_result_t pki_tcp_recv_post(struct pki_recv *recv, const struct pki_msg *tell)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(recv->ep);
    struct pki_msg out = tell != NULL ? *tell : (struct pki_msg){ .kind = PKI_MSG_CTS };

    if (ep->base.state == PKI_EP_DEAD)
        return PK_ERR_PEER;
    if (tell != NULL && !pki_tcp_has_room(ep, &out))
        return PK_IN_PROGRESS;
    name(ep, recv, &out);
    recv->have = 0;
    recv->fillers = 0;
    pki_list_init(&recv->event.node);
    pki_list_init(&recv->node);
    pki_list_push(&ep->grants.list, &recv->node);
    ep->iface->busy++;
    if (!pki_tcp_unexpected_adopt(ep, recv))
        pki_tcp_lost(ep, 0, "sent bytes of operation %llu twice", (unsigned long long)recv->op);
    return tell != NULL && ep->base.state != PKI_EP_DEAD ? pki_tcp_send(&ep->base, &out, NULL) : PK_OK;
}

static bool has_come(const struct pki_tcp_grants *grants, const struct pki_recv *grant, const struct pki_tcp_chunk *chunk)
{
    if (chunk->offset < grant->have)
        return true;
    for (uint32_t i = 0; i < grants->nout_of_order; i++)
        if (grants->out_of_order[i].grant == grant && chunk->offset < grants->out_of_order[i].end &&
            chunk->offset + chunk->bytes > grants->out_of_order[i].begin)
            return true;
    return false;
}

/* Else the engine hears of the chunk as of a RTS, which does not fit. */
static bool agree(const struct pki_recv *grant, const struct pki_tcp_chunk *chunk)
{
    return chunk->eager_put == 0 || (chunk->eager_put == grant->bytes && chunk->sig == grant->sig);
}

struct pki_recv *pki_tcp_grant_find(struct pki_tcp_ep *ep, const struct pki_tcp_chunk *chunk)
{
    for (struct pki_list *n = ep->grants.list.next; n != &ep->grants.list; n = n->next) {
        struct pki_recv *grant = pki_container_of(n, struct pki_recv, node);

        if (!pki_tcp_is_of(grant, chunk))
            continue;
        if (!agree(grant, chunk) || chunk->offset > grant->bytes || chunk->bytes > grant->bytes - chunk->offset ||
            has_come(&ep->grants, grant, chunk))
            return NULL;
        return grant;
    }
    return NULL;
}

/* Islands that the prefix has reached become part of it. */
static void absorb(struct pki_tcp_grants *grants, struct pki_recv *grant)
{
    for (uint32_t i = 0; i < grants->nout_of_order;) {
        if (grants->out_of_order[i].grant != grant || grants->out_of_order[i].begin != grant->have) {
            i++;
            continue;
        }
        grant->have = grants->out_of_order[i].end;
        grants->out_of_order[i] = grants->out_of_order[--grants->nout_of_order];
        i = 0;
    }
}

static bool add_out_of_order(struct pki_tcp_grants *grants, struct pki_recv *grant, size_t begin, size_t end)
{
    for (uint32_t i = 0; i < grants->nout_of_order;) {
        struct pki_tcp_out_of_order *out_of_order = &grants->out_of_order[i];

        if (out_of_order->grant != grant || (out_of_order->end != begin && out_of_order->begin != end)) {
            i++;
            continue;
        }
        begin = out_of_order->begin < begin ? out_of_order->begin : begin;
        end = out_of_order->end > end ? out_of_order->end : end;
        *out_of_order = grants->out_of_order[--grants->nout_of_order];
        i = 0;
    }
    if (grants->nout_of_order == grants->out_of_order_max)
        return false;
    grants->out_of_order[grants->nout_of_order++] = (struct pki_tcp_out_of_order){ .grant = grant, .begin = begin, .end = end };
    return true;
}

static void end(struct pki_tcp_ep *ep, struct pki_recv *grant)
{
    pki_list_remove(&grant->node);
    ep->iface->busy--;
}

void pki_tcp_grants_forget(struct pki_tcp_ep *ep)
{
    while (!pki_list_empty(&ep->grants.list)) {
        struct pki_recv *grant = pki_container_of(ep->grants.list.next, struct pki_recv, node);

        pki_list_remove(&grant->event.node);
        end(ep, grant);
    }
    ep->grants.nout_of_order = 0;
}

bool pki_tcp_grant_filled(struct pki_tcp_ep *ep, struct pki_recv *grant, const struct pki_tcp_chunk *chunk)
{
    if (has_come(&ep->grants, grant, chunk))
        return false;
    if (chunk->offset != grant->have)
        return add_out_of_order(&ep->grants, grant, chunk->offset, chunk->offset + chunk->bytes);
    grant->have += chunk->bytes;
    absorb(&ep->grants, grant);
    if (grant->have == grant->bytes && grant->fillers > 0)
        return false;
    if (grant->have == grant->bytes)
        end(ep, grant);
    if (grant->flags != PKI_MSG_FLAG_BOUNCE && pki_list_empty(&grant->event.node)) /* else the engines tell each other of it */
        pki_event_push(&ep->iface->base, &grant->event, PKI_EVENT_RECEIVED);
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the peer may write here (grants), and what may be written there (targets). */
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"

#define KEY_FLAGS (PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED)

bool pki_rdma_names_memory(const struct pki_msg *msg)
{
    const uint8_t elsewhere = PKI_MSG_FLAG_DEVICE | PKI_MSG_FLAG_LL | PKI_MSG_FLAG_BOUNCE; /* no host memory, or none yet */

    if (msg->kind == PKI_MSG_BOUNCE_CREDIT)
        return true;
    return msg->kind == PKI_MSG_CTS && msg->region == 0 && (msg->flags & elsewhere) == 0;
}

/* A place for one piece says its own length. */
static uint64_t length(const struct pki_msg *msg)
{
    return msg->kind == PKI_MSG_BOUNCE_CREDIT ? msg->signal_value : msg->bytes;
}

static bool is_of(const struct pki_rdma_grant *grant, const struct pki_msg *msg)
{
    return grant->op == msg->op && grant->index == msg->index && ((grant->flags ^ msg->flags) & KEY_FLAGS) == 0;
}

/* Pieces of one transfer go through the same place many times. */
static struct pki_rdma_grant *known(struct pki_rdma_grants *grants, const struct pki_msg *msg)
{
    for (size_t i = 0; i < grants->n; i++) {
        struct pki_rdma_grant *grant = &grants->at[i];

        if (is_of(grant, msg) && grant->begin == msg->offset && grant->bytes == length(msg))
            return grant;
    }
    return NULL;
}

static struct pki_rdma_grant *add(struct pki_rdma_ep *ep, struct pki_rdma_grants *grants, const struct pki_msg *msg)
{
    if (grants->n == grants->room) {
        size_t room = grants->room == 0 ? 32 : 2 * grants->room;
        struct pki_rdma_grant *grown = realloc(grants->at, room * sizeof *grown);

        if (grown == NULL) {
            struct pki_where where = pki_rdma_where(ep);

            (void)pki_fail(PK_ERR_MEMORY, &where, "rdma: no memory for %zu grants", room);
            return NULL;
        }
        grants->at = grown;
        grants->room = room;
    }
    grants->at[grants->n] = (struct pki_rdma_grant){ .flags = msg->flags & KEY_FLAGS,
                                                     .index = msg->index,
                                                     .op = msg->op,
                                                     .begin = msg->offset,
                                                     .bytes = length(msg),
                                                     .is_slot = msg->kind == PKI_MSG_BOUNCE_CREDIT };
    return &grants->at[grants->n++];
}

uint32_t pki_rdma_grant_keys(const struct pki_msg *msg, uint32_t nrails, uint32_t shift)
{
    uint64_t bytes = length(msg), pieces;

    if (bytes > 0 && msg->offset + (bytes - 1) < msg->offset)
        return 0;
    pieces = pki_rdma_pieces(msg->offset, bytes, shift);
    return pieces <= PKI_RDMA_KEYS_MAX / nrails ? (uint32_t)pieces * nrails : 0;
}

/* Numbers that are out are few, so that a receive is posted for every write that may carry one. */
static uint32_t take_number(struct pki_rdma_ep *ep, const struct pki_msg *msg)
{
    if (!ep->immediate || msg->kind != PKI_MSG_CTS || ep->numbers_out == PKI_RDMA_NUMBERS)
        return 0;
    ep->numbers_out++;
    if (++ep->number == 0)
        ep->number = 1;
    return ep->number;
}

static void copy_keys(const struct pki_rdma_iface *iface, const struct pki_rdma_grant *grant, uint32_t nkeys, uint32_t *rkeys)
{
    uint64_t first = pki_rdma_piece(grant->mr->monitored.begin, grant->begin, iface->piece_shift) * (uint64_t)iface->nrails;

    for (uint32_t i = 0; i < nkeys; i++)
        rkeys[i] = grant->mr->mrs[first + i]->rkey;
}

pk_result_t pki_rdma_grant_out(struct pki_rdma_ep *ep, struct pki_recv *recv, const struct pki_msg *msg,
                               uint32_t rkeys[PKI_RDMA_KEYS_MAX], uint32_t *number)
{
    struct pki_rdma_grant *grant = known(&ep->grants, msg);
    uint32_t nkeys = pki_rdma_grant_keys(msg, (uint32_t)ep->iface->nrails, ep->iface->piece_shift);
    struct pki_rdma_mr *mr;
    pk_result_t result;

    if (nkeys == 0) {
        struct pki_where where = pki_rdma_where(ep);

        return pki_fail(PK_ERR_UNSUPPORTED, &where, "rdma: a transfer of %llu bytes needs more than %u keys",
                        (unsigned long long)length(msg), PKI_RDMA_KEYS_MAX);
    }

    if (grant == NULL) {
        result = pki_rdma_mr_get(ep->iface, (void *)(uintptr_t)msg->offset, length(msg), &mr);
        if (result != PK_OK)
            return result;
        grant = add(ep, &ep->grants, msg);
        if (grant == NULL) {
            pki_rdma_mr_put(ep->iface, mr);
            return PK_ERR_MEMORY;
        }
        grant->mr = mr;
        grant->number = take_number(ep, msg);
    }
    grant->recv = recv->owner != NULL ? recv : NULL;
    copy_keys(ep->iface, grant, nkeys, rkeys);
    *number = grant->number;
    return PK_OK;
}

pk_result_t pki_rdma_grant_in(struct pki_rdma_ep *ep, const struct pki_msg *msg, const uint32_t *rkeys)
{
    struct pki_rdma_grant *target = known(&ep->targets, msg);
    uint32_t nkeys = pki_rdma_grant_keys(msg, ep->nrails_there, ep->shift_there);

    if (target == NULL)
        target = add(ep, &ep->targets, msg);
    if (target == NULL)
        return PK_ERR_MEMORY;
    target->keys.begin = target->begin;
    target->number = msg->kind == PKI_MSG_CTS ? msg->signal_value : 0;
    if (nkeys <= PKI_RDMA_RAILS_MAX) {
        memcpy(target->keys.few, rkeys, nkeys * sizeof *rkeys);
        return PK_OK;
    }
    if (target->keys.many == NULL)
        target->keys.many = malloc(nkeys * sizeof *rkeys);
    if (target->keys.many == NULL) {
        struct pki_where where = pki_rdma_where(ep);

        return pki_fail(PK_ERR_MEMORY, &where, "rdma: no memory for %u keys", nkeys);
    }
    memcpy(target->keys.many, rkeys, nkeys * sizeof *rkeys);
    return PK_OK;
}

static void forget(struct pki_rdma_ep *ep, struct pki_rdma_grants *grants, size_t i)
{
    struct pki_rdma_grant *grant = &grants->at[i];

    if (grant->mr != NULL) {
        ep->numbers_out -= grant->number != 0;
        pki_rdma_mr_put(ep->iface, grant->mr);
    }
    free(grant->keys.many);
    *grant = grants->at[--grants->n];
}

void pki_rdma_grant_end(struct pki_rdma_ep *ep, const struct pki_msg *fin, bool ours)
{
    struct pki_rdma_grants *grants = ours ? &ep->grants : &ep->targets;

    for (size_t i = grants->n; i-- > 0;) {
        const struct pki_rdma_grant *grant = &grants->at[i];

        if (is_of(grant, fin))
            forget(ep, grants, i);
    }
}

void pki_rdma_target_used(struct pki_rdma_ep *ep, const struct pki_rdma_grant *target)
{
    forget(ep, &ep->targets, (size_t)(target - ep->targets.at));
}

static struct pki_rdma_grant *numbered(const struct pki_rdma_ep *ep, uint32_t number)
{
    for (size_t i = 0; i < ep->grants.n; i++)
        if (ep->grants.at[i].number == number)
            return &ep->grants.at[i];
    return NULL;
}

/* Of a grant of the receive's, to its owner; all of it: the grant is over. */
static void tell(struct pki_rdma_ep *ep, const struct pki_rdma_grant *grant, uint64_t have)
{
    const struct pki_msg whole = { .flags = grant->flags, .index = grant->index, .op = grant->op };
    struct pki_recv *recv = grant->recv;

    if (recv != NULL) {
        recv->have = have;
        if (pki_list_empty(&recv->event.node))
            pki_event_push(&ep->iface->base, &recv->event, PKI_EVENT_RECEIVED);
    }
    if (have == grant->bytes)
        pki_rdma_grant_end(ep, &whole, true);
}

bool pki_rdma_grant_told(struct pki_rdma_ep *ep, const struct pki_msg *fin)
{
    for (size_t i = 0; i < ep->grants.n; i++) {
        const struct pki_rdma_grant *grant = &ep->grants.at[i];

        if (!is_of(grant, fin) || grant->is_slot)
            continue;
        if (fin->offset <= grant->bytes)
            tell(ep, grant, fin->offset);
        else
            pki_rdma_ep_failed(ep, "the peer has written more than was granted");
        return true;
    }
    return false;
}

bool pki_rdma_grant_written(struct pki_rdma_ep *ep, uint32_t number, uint32_t bytes)
{
    struct pki_rdma_grant *grant = number != 0 ? numbered(ep, number) : NULL;

    if (grant == NULL || bytes > grant->bytes - grant->written)
        return false;
    grant->written += bytes;
    if (grant->written == grant->bytes)
        tell(ep, grant, grant->bytes);
    return true;
}

uint32_t pki_rdma_grants_unfilled(struct pki_rdma_ep *ep, uint32_t numbers[PKI_RDMA_NUMBERS])
{
    uint32_t n = 0;

    for (size_t i = 0; i < ep->grants.n; i++) {
        struct pki_rdma_grant *grant = &ep->grants.at[i];

        if (grant->number == 0 || grant->written == grant->bytes)
            continue;
        grant->written = 0;
        numbers[n++] = grant->number;
    }
    return n;
}

const struct pki_rdma_grant *pki_rdma_target(const struct pki_rdma_ep *ep, const struct pki_msg *about, uint64_t begin,
                                             uint64_t bytes)
{
    for (size_t i = 0; i < ep->targets.n; i++) {
        const struct pki_rdma_grant *target = &ep->targets.at[i];

        if (is_of(target, about) && begin >= target->begin && begin - target->begin <= target->bytes &&
            bytes <= target->bytes - (begin - target->begin))
            return target;
    }
    return NULL;
}

void pki_rdma_grants_close(struct pki_rdma_ep *ep)
{
    for (size_t i = 0; i < ep->grants.n; i++)
        pki_rdma_mr_put(ep->iface, ep->grants.at[i].mr);
    for (size_t i = 0; i < ep->targets.n; i++)
        free(ep->targets.at[i].keys.many);
    free(ep->grants.at);
    free(ep->targets.at);
    memset(&ep->grants, 0, sizeof ep->grants);
    memset(&ep->targets, 0, sizeof ep->targets);
}

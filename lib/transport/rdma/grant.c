/* SPDX-License-Identifier: Apache-2.0 */
/* What the peer may write here (grants), and what may be written there (targets). */
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"

#define KEY_FLAGS (PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED)

bool pki_rdma_names_memory(const struct pki_msg *msg)
{
    const uint8_t elsewhere = PKI_MSG_FLAG_DEVICE | PKI_MSG_FLAG_LL | PKI_MSG_FLAG_STAGED; /* no host memory, or none yet */

    if (msg->kind == PKI_MSG_SLOT)
        return true;
    return msg->kind == PKI_MSG_GRANT && msg->region == 0 && (msg->flags & elsewhere) == 0;
}

/* A place for one piece says its own length. */
static uint64_t length(const struct pki_msg *msg)
{
    return msg->kind == PKI_MSG_SLOT ? msg->gate_value : msg->bytes;
}

/* Pieces of one transfer go through the same place many times. */
static struct pki_rdma_grant *known(struct pki_rdma_grants *grants, const struct pki_msg *msg)
{
    for (size_t i = 0; i < grants->n; i++) {
        struct pki_rdma_grant *grant = &grants->at[i];

        if (grant->op == msg->op && grant->index == msg->index && ((grant->flags ^ msg->flags) & KEY_FLAGS) == 0 &&
            grant->begin == msg->offset && grant->bytes == length(msg))
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
    grants->at[grants->n] = (struct pki_rdma_grant){
        .flags = msg->flags & KEY_FLAGS, .index = msg->index, .op = msg->op, .begin = msg->offset, .bytes = length(msg)
    };
    return &grants->at[grants->n++];
}

pk_result_t pki_rdma_grant_out(struct pki_rdma_ep *ep, const struct pki_msg *msg, uint32_t rkeys[PKI_RDMA_RAILS_MAX])
{
    struct pki_rdma_grant *grant = known(&ep->grants, msg);
    struct pki_rdma_mr *mr;
    pk_result_t result;

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
    }
    for (int i = 0; i < ep->iface->nrails; i++)
        rkeys[i] = grant->mr->mrs[i]->rkey;
    return PK_OK;
}

pk_result_t pki_rdma_grant_in(struct pki_rdma_ep *ep, const struct pki_msg *msg, const uint32_t *rkeys)
{
    struct pki_rdma_grant *target = known(&ep->targets, msg);

    if (target == NULL)
        target = add(ep, &ep->targets, msg);
    if (target == NULL)
        return PK_ERR_MEMORY;
    memcpy(target->rkeys, rkeys, ep->nrails_there * sizeof *rkeys);
    return PK_OK;
}

void pki_rdma_grant_end(struct pki_rdma_ep *ep, const struct pki_msg *fin, bool ours)
{
    struct pki_rdma_grants *grants = ours ? &ep->grants : &ep->targets;

    for (size_t i = grants->n; i-- > 0;) {
        struct pki_rdma_grant *grant = &grants->at[i];

        if (grant->op != fin->op || grant->index != fin->index || ((grant->flags ^ fin->flags) & KEY_FLAGS) != 0)
            continue;
        if (grant->mr != NULL)
            pki_rdma_mr_put(ep->iface, grant->mr);
        *grant = grants->at[--grants->n];
    }
}

const struct pki_rdma_grant *pki_rdma_target(const struct pki_rdma_ep *ep, uint64_t begin, uint64_t bytes)
{
    for (size_t i = 0; i < ep->targets.n; i++) {
        const struct pki_rdma_grant *target = &ep->targets.at[i];

        if (begin >= target->begin && begin - target->begin <= target->bytes && bytes <= target->bytes - (begin - target->begin))
            return target;
    }
    return NULL;
}

void pki_rdma_grants_close(struct pki_rdma_ep *ep)
{
    for (size_t i = 0; i < ep->grants.n; i++)
        pki_rdma_mr_put(ep->iface, ep->grants.at[i].mr);
    free(ep->grants.at);
    free(ep->targets.at);
    memset(&ep->grants, 0, sizeof ep->grants);
    memset(&ep->targets, 0, sizeof ep->targets);
}

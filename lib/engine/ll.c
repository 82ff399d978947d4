/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency slots: memory of this rank's GPU that each peer writes small messages into, a flag beside every word; and behind them, in
 * the same allocation, the inboxes of fused collectives. */
#include "engine/internal.h"

static struct pki_iface *gpu_iface(struct pki_engine *e)
{
    for (int i = 0; i < e->nifaces; i++)
        if (e->ifaces[i]->transport->reaches[PKI_MEM_DEVICE][PKI_MEM_DEVICE])
            return e->ifaces[i];
    return NULL;
}

static size_t bytes_a_peer(void)
{
    return (size_t)PKI_LL_SLOTS * PKI_LL_SLOT_BYTES;
}

pk_result_t pki_engine_ll_export(struct pki_engine *e, struct pki_export *out, uint64_t *offset)
{
    struct pki_iface *iface = gpu_iface(e);
    struct pki_mem mem;
    void *ptr;
    pk_result_t result;

    if (iface == NULL || !(e->config.kernels || e->config.fused))
        return PK_ERR_UNSUPPORTED;
    result = e->gpu->ops->alloc(e->gpu, (size_t)e->config.size * bytes_a_peer() + pki_fused_inbox_bytes(e), &ptr);
    if (result != PK_OK)
        return result;
    result = e->gpu->ops->classify(e->gpu, ptr, 1, &mem);
    if (result == PK_OK)
        result = iface->transport->reg(iface, &mem, out);
    if (result == PK_OK)
        result = pki_fused_open(e, (char *)ptr + (size_t)e->config.size * bytes_a_peer());
    if (result != PK_OK) {
        e->gpu->ops->free(e->gpu, ptr);
        return result;
    }
    e->ll_memory = ptr;
    *offset = (uint64_t)(uintptr_t)ptr - out->base;
    return PK_OK;
}

pk_result_t pki_engine_ll_import(struct pki_engine *e, int rank, const struct pki_export *in, uint64_t offset)
{
    struct pki_peer *peer = &e->peers[rank];
    struct pki_ep *way = peer->way[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
    uint64_t remote;
    pk_result_t result;

    if (way == NULL)
        return PK_OK; /* no way into its memory: no slots either */
    result = pki_engine_map(e, way, in, &remote);
    if (result != PK_OK)
        return result;
    peer->ll_exported = *in;
    peer->ll_mapping = remote;
    if (e->config.fused)
        pki_fused_reach(e, rank, remote + offset + (uint64_t)e->config.size * bytes_a_peer());
    peer->ll_remote = (uint64_t *)(uintptr_t)(remote + offset + (uint64_t)e->config.rank * bytes_a_peer());
    return PK_OK;
}

void pki_ll_unimport(struct pki_engine *e, struct pki_peer *peer)
{
    struct pki_ep *way = peer->way[PKI_MEM_DEVICE][PKI_MEM_DEVICE];

    (void)e;
    if (peer->ll_remote != NULL)
        way->iface->transport->unmap(way, &peer->ll_exported, peer->ll_mapping);
    peer->ll_remote = NULL;
}

uint64_t *pki_ll_slot(struct pki_engine *e, int peer, int slot)
{
    return (uint64_t *)(void *)(e->ll_memory + (size_t)peer * bytes_a_peer() + (size_t)slot * PKI_LL_SLOT_BYTES);
}

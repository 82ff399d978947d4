/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this rank's GPU that its peers write: rings of low-latency messages (proto/ll.c), behind them inboxes of fused
 * collectives. */
#include "engine/fused/fused.h"

static struct pki_iface *gpu_iface(struct pki_engine *e)
{
    for (int i = 0; i < e->ifaces.n; i++)
        if (e->ifaces.at[i]->transport->reaches[PKI_MEM_DEVICE][PKI_MEM_DEVICE])
            return e->ifaces.at[i];
    return NULL;
}

pk_result_t pki_engine_ll_export(struct pki_engine *e, struct pki_export *out, uint64_t *offset)
{
    struct pki_iface *iface = gpu_iface(e);
    size_t rings = pki_ll_ring_at(0, e->config.size), inbox = pki_fused_inbox_bytes(e), bytes = rings + inbox;
    struct pki_mem mem;
    void *ptr;
    pk_result_t result;

    if (iface == NULL || !(e->config.gpus == PKI_GPUS_KERNELS || e->config.fused))
        return PK_ERR_UNSUPPORTED;
    result = pki_retained_alloc(e->gpu, bytes, &ptr);
    if (result != PK_OK)
        return result;
    result = e->gpu->ops->zero(e->gpu, ptr, bytes);
    if (result == PK_OK)
        result = e->gpu->ops->classify(e->gpu, ptr, 1, &mem);
    if (result == PK_OK)
        result = iface->transport->reg(iface, &mem, out);
    if (result == PK_OK && inbox > 0)
        result = pki_fused_open(e, (char *)ptr + rings, (char *)ptr + bytes - PKI_FUSED_STATE_BYTES);
    if (result != PK_OK) {
        pki_retained_give(ptr);
        return result;
    }
    e->proto.ll_memory = ptr;
    *offset = (uint64_t)(uintptr_t)ptr - out->base;
    return PK_OK;
}

pk_result_t pki_engine_ll_import(struct pki_engine *e, int rank, const struct pki_export *in, uint64_t offset)
{
    struct pki_peer *peer = &e->peers[rank];
    struct pki_ep *path = peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
    uint64_t remote;
    pk_result_t result;

    if (path == NULL)
        return PK_OK; /* no way into its memory: no slots either */
    if (path->same_process) {
        if (!pki_retained_take((void *)(uintptr_t)(in->base + offset)))
            return PK_OK; /* its owner has left init, and the rest of it says why */
        peer->ll.held = (char *)(uintptr_t)(in->base + offset);
    }
    result = pki_engine_map(e, path, in, &remote);
    if (result != PK_OK)
        return result;
    peer->ll.exported = *in;
    peer->ll.mapping = remote;
    if (e->config.fused && !e->fused.host.used)
        pki_fused_reach(e, rank, remote + offset + pki_ll_ring_at(0, e->config.size));
    peer->ll.remote = (char *)(uintptr_t)(remote + offset + pki_ll_ring_at(rank, e->config.rank));
    return PK_OK;
}

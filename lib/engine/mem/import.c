/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of peers: what they described, and what of it is mapped here. */
#include <stdlib.h>
#include <string.h>

#include "engine/mem/mem.h"

#define DROPS_MADE 1000 /* another thread may be about it, and new ones come */

struct retired { /* a mapping that nobody needs any more */
    struct pki_list node;
    struct pki_ep *path;
    struct pki_export exported;
    uint64_t remote;
};

struct pki_import *pki_region_import(struct pki_peer *peer, uint32_t id)
{
    uint32_t index = pki_region_index(id);

    if (id == 0 || index >= peer->regions.nimports || peer->regions.imports[index].id != id)
        return NULL;
    return &peer->regions.imports[index];
}

static struct pki_ep *path_of(struct pki_peer *peer, const struct pki_export *exported)
{
    return exported->kind == PKI_EXPORT_MEMFD ? peer->ctrl : peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
}

/* Closing a mapping of cuMemAlloc's memory waits for all work of the GPU, and in a stream that may wait for this very thread: so
 * not now. */
static void retire(struct pki_engine *e, struct pki_peer *peer, struct pki_import *import)
{
    struct pki_ep *path = path_of(peer, &import->exported);
    bool host = import->exported.kind == PKI_EXPORT_MEMFD;
    struct retired *r = import->mapped && !host ? malloc(sizeof *r) : NULL;

    pki_export_release(&import->exported);
    if (import->mapped && host)
        path->iface->transport->unmap(path, &import->exported, import->remote);
    if (r != NULL) { /* else it stays mapped until the process ends: memory is short anyhow */
        *r = (struct retired){ .path = path, .exported = import->exported, .remote = import->remote };
        pki_list_push(&e->mem.mappings.retired, &r->node);
        e->mem.mappings.nretired++;
        e->mem.mappings.nretired_vmm += r->exported.kind == PKI_EXPORT_VMM;
        e->mem.mappings.retired_bytes += r->exported.bytes;
    }
    *import = (struct pki_import){ .id = 0 };
}

bool pki_streams_are_idle(const struct pki_engine *e)
{
    return pki_list_empty(&e->mem.graphs) && !pki_streams_wait();
}

bool pki_streams_hold_idle(const struct pki_engine *e)
{
    return pki_list_empty(&e->mem.graphs) && pki_streams_hold();
}

static void close_one(struct pki_engine *e, struct retired *r)
{
    pki_list_remove(&r->node);
    e->mem.mappings.nretired--;
    e->mem.mappings.nretired_vmm -= r->exported.kind == PKI_EXPORT_VMM;
    e->mem.mappings.retired_bytes -= r->exported.bytes;
    r->path->iface->transport->unmap(r->path, &r->exported, r->remote);
    free(r);
}

void pki_region_close_retired(struct pki_engine *e)
{
    while (!pki_list_empty(&e->mem.mappings.retired))
        close_one(e, pki_container_of(e->mem.mappings.retired.next, struct retired, node));
}

/* To unmap VMM memory waits for nothing. */
static void close_vmm(struct pki_engine *e)
{
    struct pki_list *next;

    for (struct pki_list *n = e->mem.mappings.retired.next; e->mem.mappings.nretired_vmm > 0 && n != &e->mem.mappings.retired;
         n = next) {
        struct retired *r = pki_container_of(n, struct retired, node);

        next = n->next;
        if (r->exported.kind == PKI_EXPORT_VMM)
            close_one(e, r);
    }
}

void pki_region_forgotten(struct pki_engine *e, struct pki_peer *peer, uint32_t id)
{
    struct pki_import *import = pki_region_import(peer, id);

    if (import != NULL)
        retire(e, peer, import);
}

static pk_result_t import_entry(struct pki_engine *e, struct pki_peer *peer, uint32_t id, struct pki_import **out)
{
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    uint32_t index = pki_region_index(id);

    if (index >= PKI_REGIONS_MAX || (index < peer->regions.nimports && peer->regions.imports[index].id == id))
        return pki_fail(PK_ERR_INTERNAL, &where, "described region %#x, which is invalid or has been described already", id);
    if (index >= peer->regions.imports_cap) {
        uint32_t cap = 2 * index + 16;
        struct pki_import *grown = realloc(peer->regions.imports, cap * sizeof *grown);

        if (grown == NULL)
            return pki_fail(PK_ERR_MEMORY, &where, "no memory for %u regions", cap);
        memset(grown + peer->regions.imports_cap, 0, (cap - peer->regions.imports_cap) * sizeof *grown);
        peer->regions.imports = grown;
        peer->regions.imports_cap = cap;
    }
    if (index >= peer->regions.nimports)
        peer->regions.nimports = index + 1; /* entries between are of regions that other peers were told of */
    else
        retire(e, peer, &peer->regions.imports[index]);
    *out = &peer->regions.imports[index];
    return PK_OK;
}

/* What was described at these addresses before has been freed: to map it would close the mapping of what is there now. */
static void outlive(struct pki_peer *peer, const struct pki_export *exported)
{
    for (uint32_t i = 0; i < peer->regions.nimports; i++) {
        struct pki_import *old = &peer->regions.imports[i];

        if (old->exported.base < exported->base + exported->bytes && exported->base < old->exported.base + old->exported.bytes)
            old->outlived = true;
    }
}

static pk_result_t arrived(struct pki_engine *e, struct pki_peer *peer, uint32_t id, const struct pki_export *exported)
{
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    struct pki_import import = { .id = id, .exported = *exported }, *entry = NULL;
    pk_result_t result = import_entry(e, peer, id, &entry);

    if (result != PK_OK)
        return result;
    if (exported->pieces > 0) {
        import.exported.fds = malloc(exported->pieces * sizeof(int));
        if (import.exported.fds == NULL)
            return pki_fail(PK_ERR_MEMORY, &where, "no memory for %u descriptors", exported->pieces);
        for (uint32_t i = 0; i < exported->pieces; i++)
            import.exported.fds[i] = -1;
    }
    outlive(peer, exported);
    *entry = import;
    e->mem.mappings.described = true;
    return PK_OK;
}

static pk_result_t keep_pieces(struct pki_import *import, const int *fds, int n)
{
    if ((uint32_t)n > import->exported.pieces - import->pieces_here)
        return PK_ERR_INTERNAL;
    for (int i = 0; i < n; i++)
        import->exported.fds[import->pieces_here++] = fds[i];
    return PK_OK;
}

pk_result_t pki_region_described(struct pki_engine *e, struct pki_peer *peer, uint32_t id, const struct pki_export *exported,
                                 const int *fds, int n)
{
    pk_result_t result = exported != NULL ? arrived(e, peer, id, exported) : PK_OK;
    struct pki_import *import = pki_region_import(peer, id);

    if (result != PK_OK)
        return result;
    return import == NULL ? PK_ERR_INTERNAL : keep_pieces(import, fds, n);
}

pk_result_t pki_engine_map(struct pki_engine *e, struct pki_ep *path, const struct pki_export *in, uint64_t *remote)
{
    const struct pki_transport *transport = path->iface->transport;
    pk_result_t result = transport->map(path, in, remote);

    for (int turn = 0; result == PK_IN_PROGRESS && turn < DROPS_MADE; turn++) {
        e->gpu->ops->drop_stale_mappings(e->gpu);
        result = transport->map(path, in, remote);
    }
    return result == PK_IN_PROGRESS ? pki_fail(PK_ERR_SYSTEM, NULL, "mappings of freed memory cannot be closed") : result;
}

/* What stands in the way cannot be closed while a stream waits for an operation: the close would wait for the stream, and the
 * stream, sooner or later, for this thread. */
static pk_result_t map(struct pki_engine *e, struct pki_peer *peer, struct pki_import *import)
{
    struct pki_ep *path = path_of(peer, &import->exported);
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    pk_result_t result;

    if (path == NULL || import->pieces_here < import->exported.pieces)
        return pki_fail(PK_ERR_INTERNAL, &where, "region %#x came incomplete", import->id);
    if (import->exported.kind != PKI_EXPORT_MEMFD && pki_streams_hold_idle(e)) {
        result = pki_engine_map(e, path, &import->exported, &import->remote);
        pki_streams_release();
    } else {
        result = path->iface->transport->map(path, &import->exported, &import->remote);
    }
    if (result == PK_IN_PROGRESS)
        e->mem.mappings.blocked = true;
    if (result != PK_OK)
        return result;
    pki_export_release(&import->exported);
    import->mapped = true;
    return PK_OK;
}

/* What its owner has freed stays allocated while it is mapped, so not much may gather; but closing it also waits for the
 * program's own kernels, one of which may wait for a transfer that the caller is about to start. */
static void close_old(struct pki_engine *e)
{
    bool many =
        e->mem.mappings.nretired >= pki_tuning.p2p.retired || e->mem.mappings.retired_bytes >= pki_tuning.p2p.retired_bytes;

    close_vmm(e);
    if ((!many && !e->mem.mappings.blocked) || !pki_list_empty(&e->tasks.all) || !pki_streams_hold_idle(e))
        return;
    pki_region_close_retired(e);
    if (e->mem.mappings.blocked)
        e->gpu->ops->drop_stale_mappings(e->gpu);
    e->mem.mappings.blocked = false;
    pki_streams_release();
}

/* Either rank of a pair may have to move the next transfer between two buffers, and to map memory then is late: it may have
 * to wait for what stands in the way, and that for work of the program. */
static void map_described(struct pki_engine *e)
{
    const pk_error_info_t kept = *pki_error_get();

    e->mem.mappings.described = false;
    for (int p = 0; p < e->config.size; p++)
        for (uint32_t i = 0; i < e->peers[p].regions.nimports; i++) {
            struct pki_import *import = &e->peers[p].regions.imports[i];
            struct pki_ep *path = path_of(&e->peers[p], &import->exported);
            pk_result_t result;

            if (import->id == 0 || import->mapped || import->outlived || import->exported.kind == PKI_EXPORT_MEMFD ||
                path == NULL)
                continue;
            if (import->pieces_here < import->exported.pieces) {
                e->mem.mappings.described = true;
                continue;
            }
            pki_log_attempt(true);
            result = map(e, &e->peers[p], import);
            pki_log_attempt(false);
            if (result == PK_OK)
                e->stats.mappings_made++;
            else if (result != PK_IN_PROGRESS)
                import->outlived = true; /* freed before this rank came to it: to be tried again only if a transfer names it */
        }
    pki_error_set(&kept);
}

void pki_region_tidy(struct pki_engine *e)
{
    close_old(e);
    if (e->mem.mappings.described)
        map_described(e);
}

pk_result_t pki_region_map(struct pki_engine *e, struct pki_peer *peer, uint32_t id, uint64_t offset, uint64_t bytes,
                           uint64_t *remote)
{
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    struct pki_import *import = pki_region_import(peer, id);
    pk_result_t result;

    if (import == NULL || import->pieces_here < import->exported.pieces) {
        pki_side_poll(e, peer); /* the description was sent before the grant */
        import = pki_region_import(peer, id);
    }
    if (import == NULL)
        return pki_fail(PK_ERR_INTERNAL, &where, "granted region %#x without describing it", id);
    if (offset > import->exported.bytes || bytes > import->exported.bytes - offset)
        return pki_fail(PK_ERR_INTERNAL, &where, "granted %llu bytes at %llu of region %#x, which has %llu",
                        (unsigned long long)bytes, (unsigned long long)offset, id, (unsigned long long)import->exported.bytes);
    if (import->mapped)
        e->stats.mappings_found++;
    if (!import->mapped) {
        result = map(e, peer, import);
        if (result != PK_OK)
            return result;
        e->stats.mappings_made++;
    }
    *remote = import->remote;
    return PK_OK;
}

pk_result_t pki_region_map_host(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg, bool here,
                                uint64_t *remote)
{
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    const struct pki_import *import;
    uint64_t base = 0;
    pk_result_t result = pki_region_map(e, peer, msg->region, msg->offset, msg->bytes, &base);

    if (result != PK_OK)
        return result;
    import = pki_region_import(peer, msg->region);
    if (import->exported.kind != PKI_EXPORT_MEMFD)
        return pki_fail(PK_ERR_INTERNAL, &where, "named region %#x as host memory", msg->region);
    *remote = (here ? base : import->exported.base) + msg->offset;
    return PK_OK;
}

void pki_region_close_imports(struct pki_peer *peer)
{
    for (uint32_t i = 0; i < peer->regions.nimports; i++) {
        struct pki_import *import = &peer->regions.imports[i];
        struct pki_ep *path = path_of(peer, &import->exported);

        if (import->mapped)
            path->iface->transport->unmap(path, &import->exported, import->remote);
        pki_export_release(&import->exported);
    }
    free(peer->regions.imports);
    peer->regions.imports = NULL;
    peer->regions.nimports = 0;
}

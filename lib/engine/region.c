/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions: allocations of this rank that peers have been told of, and those of peers that are mapped here. An allocation is known by
 * address, length and buffer id, so that memory that was freed and allocated again is a new region.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/internal.h"

void pki_export_release(struct pki_export *x)
{
    for (uint32_t i = 0; x->fds != NULL && i < x->pieces; i++)
        if (x->fds[i] >= 0)
            close(x->fds[i]);
    free(x->fds);
    x->fds = NULL;
}

static struct pki_region *find(struct pki_engine *e, const struct pki_mem *mem)
{
    for (uint32_t i = e->nregions; i-- > 0;) {
        const struct pki_mem *known = &e->regions[i].mem;

        if (known->base == mem->base && known->bytes == mem->bytes && known->buffer_id == mem->buffer_id)
            return &e->regions[i];
    }
    return NULL;
}

static pk_result_t add(struct pki_engine *e, struct pki_iface *iface, const struct pki_mem *mem, struct pki_region **out)
{
    struct pki_region region = { .mem = *mem, .iface = iface, .id = e->nregions + 1 };
    pk_result_t result;

    if (e->nregions == e->regions_cap) {
        uint32_t cap = e->regions_cap == 0 ? 16 : 2 * e->regions_cap;
        struct pki_region *grown = realloc(e->regions, cap * sizeof *grown);

        if (grown == NULL)
            return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %u regions", cap);
        e->regions = grown;
        e->regions_cap = cap;
    }
    result = iface->transport->reg(iface, mem, &region.exported);
    if (result != PK_OK)
        return result;
    e->regions[e->nregions] = region;
    *out = &e->regions[e->nregions++];
    return PK_OK;
}

static bool was_told(const struct pki_peer *peer, uint32_t id)
{
    return id < peer->told_cap && peer->told[id];
}

static pk_result_t remember_told(struct pki_peer *peer, uint32_t id)
{
    if (id >= peer->told_cap) {
        uint32_t cap = 2 * id + 16;
        bool *grown = realloc(peer->told, cap * sizeof *grown);

        if (grown == NULL)
            return pki_fail(PK_ERR_MEMORY, NULL, "no memory to remember %u regions", cap);
        memset(grown + peer->told_cap, 0, (cap - peer->told_cap) * sizeof *grown);
        peer->told = grown;
        peer->told_cap = cap;
    }
    peer->told[id] = true;
    return PK_OK;
}

pk_result_t pki_region_tell(struct pki_engine *e, struct pki_peer *peer, const void *addr, size_t bytes, uint32_t *id,
                            uint64_t *offset)
{
    struct pki_ep *way = peer->way[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    struct pki_region *region;
    struct pki_mem mem;
    pk_result_t result;

    if (way == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, &where, "no way into device memory of this rank from there");
    result = e->gpu->ops->classify(e->gpu, addr, bytes, &mem);
    if (result != PK_OK)
        return result;
    region = find(e, &mem);
    if (region == NULL) {
        result = add(e, way->iface, &mem, &region);
        if (result != PK_OK)
            return result;
    }
    if (!was_told(peer, region->id)) {
        result = pki_side_send_export(e, peer, region->id, &region->exported);
        if (result == PK_OK)
            result = remember_told(peer, region->id);
        if (result != PK_OK)
            return result;
    }
    *id = region->id;
    *offset = (uint64_t)(uintptr_t)addr - region->exported.base;
    return PK_OK;
}

/* ---- the peers' ---- */

struct pki_import *pki_region_import(struct pki_peer *peer, uint32_t id)
{
    return id == 0 || id > peer->nimports || peer->imports[id - 1].id != id ? NULL : &peer->imports[id - 1];
}

pk_result_t pki_region_arrived(struct pki_engine *e, struct pki_peer *peer, uint32_t id, const struct pki_export *exported)
{
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    struct pki_import import = { .id = id, .exported = *exported };

    if (id != peer->nimports + 1 && (id == 0 || id > PKI_REGIONS_MAX || pki_region_import(peer, id) != NULL))
        return pki_fail(PK_ERR_INTERNAL, &where, "described region %u after %u", id, peer->nimports);
    if (id > peer->imports_cap) {
        uint32_t cap = 2 * id;
        struct pki_import *grown = realloc(peer->imports, cap * sizeof *grown);

        if (grown == NULL)
            return pki_fail(PK_ERR_MEMORY, &where, "no memory for %u regions", cap);
        memset(grown + peer->imports_cap, 0, (cap - peer->imports_cap) * sizeof *grown);
        peer->imports = grown;
        peer->imports_cap = cap;
    }
    if (exported->pieces > 0) {
        import.exported.fds = malloc(exported->pieces * sizeof(int));
        if (import.exported.fds == NULL)
            return pki_fail(PK_ERR_MEMORY, &where, "no memory for %u descriptors", exported->pieces);
        for (uint32_t i = 0; i < exported->pieces; i++)
            import.exported.fds[i] = -1;
    }
    peer->imports[id - 1] = import;
    if (id > peer->nimports)
        peer->nimports = id;
    return PK_OK;
}

static pk_result_t map(struct pki_engine *e, struct pki_peer *peer, struct pki_import *import)
{
    struct pki_ep *way = peer->way[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    pk_result_t result;

    if (way == NULL || import->pieces_here < import->exported.pieces)
        return pki_fail(PK_ERR_INTERNAL, &where, "region %u came incomplete", import->id);
    result = way->iface->transport->map(way, &import->exported, &import->remote);
    if (result != PK_OK)
        return result;
    import->mapped = true;
    return PK_OK;
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
        return pki_fail(PK_ERR_INTERNAL, &where, "granted region %u without describing it", id);
    if (offset > import->exported.bytes || bytes > import->exported.bytes - offset)
        return pki_fail(PK_ERR_INTERNAL, &where, "granted %llu bytes at %llu of region %u, which has %llu",
                        (unsigned long long)bytes, (unsigned long long)offset, id, (unsigned long long)import->exported.bytes);
    if (!import->mapped) {
        result = map(e, peer, import);
        if (result != PK_OK)
            return result;
    }
    *remote = import->remote;
    return PK_OK;
}

static void close_imports(struct pki_peer *peer)
{
    struct pki_ep *way = peer->way[PKI_MEM_DEVICE][PKI_MEM_DEVICE];

    for (uint32_t i = 0; i < peer->nimports; i++) {
        struct pki_import *import = &peer->imports[i];

        if (import->mapped)
            way->iface->transport->unmap(way, &import->exported, import->remote);
        pki_export_release(&import->exported);
    }
    free(peer->imports);
    peer->imports = NULL;
    peer->nimports = 0;
}

void pki_region_close_all(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size; i++)
        close_imports(&e->peers[i]);
    for (uint32_t i = 0; i < e->nregions; i++) {
        e->regions[i].iface->transport->dereg(e->regions[i].iface, &e->regions[i].exported);
        pki_export_release(&e->regions[i].exported);
    }
    free(e->regions);
    e->regions = NULL;
    e->nregions = 0;
}

/* ---- registrations ---- */

pk_result_t pki_engine_register(struct pki_engine *e, void *ptr, size_t bytes)
{
    struct pki_registration *r = calloc(1, sizeof *r);
    pk_result_t result = PK_OK;

    if (r == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a registration");
    r->ptr = ptr;
    r->bytes = bytes;
    pki_engine_lock(e);
    if (e->gpu != NULL)
        result = e->gpu->ops->classify(e->gpu, ptr, bytes, &r->mem);
    if (result == PK_OK && r->mem.kind == PKI_MEM_DEVICE && !r->mem.shareable)
        result = pki_fail(PK_ERR_UNSUPPORTED, NULL, "this device memory cannot be shared between processes");
    if (result == PK_OK)
        pki_list_push(&e->registrations, &r->node);
    else
        free(r);
    pki_engine_unlock(e);
    return result;
}

pk_result_t pki_engine_deregister(struct pki_engine *e, void *ptr, size_t bytes)
{
    struct pki_registration *found = NULL;

    pki_engine_lock(e);
    for (struct pki_list *n = e->registrations.next; n != &e->registrations && found == NULL; n = n->next) {
        struct pki_registration *r = pki_container_of(n, struct pki_registration, node);

        if (r->ptr == ptr && r->bytes == bytes)
            found = r;
    }
    if (found != NULL)
        pki_list_remove(&found->node);
    pki_engine_unlock(e);
    free(found);
    return found != NULL ? PK_OK : pki_fail(PK_ERR_ARG, NULL, "no registration of %zu bytes at %p", bytes, ptr);
}

bool pki_region_registered(struct pki_engine *e, const void *ptr, size_t bytes)
{
    uintptr_t first = (uintptr_t)ptr;

    for (struct pki_list *n = e->registrations.next; n != &e->registrations; n = n->next) {
        const struct pki_registration *r = pki_container_of(n, struct pki_registration, node);
        uintptr_t start = (uintptr_t)r->ptr;

        if (first >= start && first - start <= r->bytes && bytes <= r->bytes - (first - start))
            return true;
    }
    return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions: allocations of this rank that peers have been told of, here, and those of peers, in import.c. An allocation is known
 * by address, length and buffer id, so that memory that was freed and allocated again is a new region. An id is the entry of a
 * table and a generation: entries are used again, and a grant that names another generation than the description at hand waits
 * for the newer one.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/mem/mem.h"
#include "tuning/tuning.h"

void pki_export_release(struct pki_export *x)
{
    for (uint32_t i = 0; x->fds != NULL && i < x->pieces; i++)
        if (x->fds[i] >= 0)
            close(x->fds[i]);
    free(x->fds);
    x->fds = NULL;
}

static uint32_t *bucket_of(struct pki_engine *e, uintptr_t base)
{
    return &e->mem.regions.buckets[(base * 0x9e3779b97f4a7c15ull) >> 56];
}

static struct pki_region *find(struct pki_engine *e, const struct pki_mem *mem)
{
    for (uint32_t i = *bucket_of(e, mem->base); i != 0; i = e->mem.regions.at[i - 1].next) {
        const struct pki_mem *known = &e->mem.regions.at[i - 1].mem;

        if (known->base == mem->base && known->bytes == mem->bytes && known->buffer_id == mem->buffer_id)
            return &e->mem.regions.at[i - 1];
    }
    return NULL;
}

static struct pki_region *by_id(struct pki_engine *e, uint32_t id)
{
    uint32_t index = pki_region_index(id);

    return index < e->mem.regions.n && e->mem.regions.at[index].id == id ? &e->mem.regions.at[index] : NULL;
}

void pki_region_hold(struct pki_engine *e, uint32_t id)
{
    struct pki_region *region = by_id(e, id);

    if (region != NULL)
        region->busy++;
}

void pki_region_drop(struct pki_engine *e, uint32_t id)
{
    struct pki_region *region = id != 0 ? by_id(e, id) : NULL;

    if (region != NULL)
        region->busy--;
}

/* Out of the table. The entry keeps its id, from which the next one there is made. */
static void forget(struct pki_engine *e, struct pki_region *region)
{
    uint32_t *link = bucket_of(e, region->mem.base);

    while (*link != pki_region_index(region->id) + 1)
        link = &e->mem.regions.at[*link - 1].next;
    *link = region->next;
    for (int i = 0; i < e->config.size; i++)
        if (e->peers[i].side_fd >= 0 && pki_region_index(region->id) < e->peers[i].regions.reported_cap &&
            e->peers[i].regions.reported[pki_region_index(region->id)] == region->id)
            pki_side_send_forget(e, &e->peers[i], region->id);
    pki_export_release(&region->exported);
    region->used = 0;
}

static bool may_go(const struct pki_engine *e, const struct pki_region *region)
{
    if (region->used == 0 || region->busy > 0)
        return false;
    for (int i = 0; i < e->config.size; i++)
        if (e->peers[i].regions.exporting == region->id)
            return false;
    return true;
}

static bool is_dead(struct pki_engine *e, const struct pki_region *region)
{
    struct pki_mem mem;
    pk_error_info_t kept = *pki_error_get();
    pk_result_t result;

    if (region->mem.kind == PKI_MEM_HOST)
        return false; /* its owner says so */
    result = e->gpu->ops->classify(e->gpu, (const void *)region->mem.base, 1, &mem);

    pki_error_set(&kept);
    if (result != PK_OK || mem.kind != PKI_MEM_DEVICE)
        return true;
    return !region->mem.vmm && mem.buffer_id != region->mem.buffer_id;
}

/* Memory that was freed stays with whoever has it mapped: look at a few regions each time, so that all are looked at in turn. */
static void look_for_dead(struct pki_engine *e)
{
    for (int n = 0; n < pki_tuning.p2p.dead_regions && e->mem.regions.n > 0; n++) {
        struct pki_region *region = &e->mem.regions.at[e->mem.regions.looked++ % e->mem.regions.n];

        if (may_go(e, region) && is_dead(e, region))
            forget(e, region);
    }
}

/* The entry that was used least recently, when there are many. */
static struct pki_region *spare(struct pki_engine *e)
{
    struct pki_region *oldest = NULL;

    for (uint32_t i = 0; i < e->mem.regions.n; i++) {
        struct pki_region *region = &e->mem.regions.at[i];

        if (region->used == 0)
            return region;
        if (e->mem.regions.n >= pki_tuning.p2p.regions && may_go(e, region) && (oldest == NULL || region->used < oldest->used))
            oldest = region;
    }
    if (oldest != NULL)
        forget(e, oldest);
    return oldest;
}

static pk_result_t new_entry(struct pki_engine *e, struct pki_region **out)
{
    *out = e->mem.regions.holes || e->mem.regions.n >= pki_tuning.p2p.regions ? spare(e) : NULL;
    if (*out != NULL)
        return PK_OK;
    e->mem.regions.holes = false;
    if (e->mem.regions.n == PKI_REGIONS_MAX)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "more than %u allocations in use at a time", PKI_REGIONS_MAX);
    if (e->mem.regions.n == e->mem.regions.cap) {
        uint32_t cap = e->mem.regions.cap == 0 ? 16 : 2 * e->mem.regions.cap;
        struct pki_region *grown = realloc(e->mem.regions.at, cap * sizeof *grown);

        if (grown == NULL)
            return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %u regions", cap);
        e->mem.regions.at = grown;
        e->mem.regions.cap = cap;
    }
    *out = &e->mem.regions.at[e->mem.regions.n];
    **out = (struct pki_region){ .id = e->mem.regions.n + 1 };
    e->mem.regions.n++;
    return PK_OK;
}

static pk_result_t add(struct pki_engine *e, struct pki_iface *iface, const struct pki_mem *mem, struct pki_region **out)
{
    struct pki_region *region;
    uint32_t *bucket = bucket_of(e, mem->base);
    struct pki_export exported;
    pk_result_t result;

    look_for_dead(e);
    result = new_entry(e, &region);
    if (result != PK_OK)
        return result;
    e->mem.regions.holes = true; /* until the entry is filled */
    result = iface->transport->reg(iface, mem, &exported);
    if (result != PK_OK)
        return result;
    *region = (struct pki_region){
        .id = region->id + PKI_REGION_GENERATION, .mem = *mem, .iface = iface, .exported = exported, .next = *bucket
    };
    *bucket = pki_region_index(region->id) + 1;
    *out = region;
    return PK_OK;
}

static pk_result_t remember_reported(struct pki_peer *peer, uint32_t id)
{
    uint32_t index = pki_region_index(id);

    if (index >= peer->regions.reported_cap) {
        uint32_t cap = 2 * index + 16;
        uint32_t *grown = realloc(peer->regions.reported, cap * sizeof *grown);

        if (grown == NULL)
            return pki_fail(PK_ERR_MEMORY, NULL, "no memory to remember %u regions", cap);
        memset(grown + peer->regions.reported_cap, 0, (cap - peer->regions.reported_cap) * sizeof *grown);
        peer->regions.reported = grown;
        peer->regions.reported_cap = cap;
    }
    peer->regions.reported[index] = id;
    return PK_OK;
}

/* Descriptors are open only while they are being sent: a program has no great many, and a segment takes one for each piece. */
static pk_result_t describe(struct pki_engine *e, struct pki_peer *peer, struct pki_region *region)
{
    pk_result_t result = PK_OK;

    if (region->exported.pieces > 0 && region->exported.fds == NULL)
        result = region->iface->transport->reg(region->iface, &region->mem, &region->exported);
    if (result == PK_OK)
        result = pki_side_send_export(e, peer, region->id, &region->exported);
    if (result != PK_OK)
        return result;
    for (int i = 0; i < e->config.size; i++)
        if (e->peers[i].regions.exporting == region->id)
            return remember_reported(peer, region->id);
    pki_export_release(&region->exported);
    return remember_reported(peer, region->id);
}

static pk_result_t tell(struct pki_engine *e, struct pki_peer *peer, struct pki_iface *iface, const struct pki_mem *mem,
                        struct pki_region **out)
{
    struct pki_region *region = find(e, mem);
    pk_result_t result;

    if (region == NULL) {
        result = add(e, iface, mem, &region);
        if (result != PK_OK)
            return result;
    }
    region->used = ++e->mem.regions.clock;
    if (pki_region_index(region->id) >= peer->regions.reported_cap ||
        peer->regions.reported[pki_region_index(region->id)] != region->id) {
        result = describe(e, peer, region);
        if (result != PK_OK)
            return result;
    }
    *out = region;
    return PK_OK;
}

pk_result_t pki_region_tell_host(struct pki_engine *e, struct pki_peer *peer, const struct pki_mem *mem, uint32_t *id)
{
    struct pki_region *region;
    pk_result_t result = tell(e, peer, peer->ctrl->iface, mem, &region);

    if (result == PK_OK)
        *id = region->id;
    return result;
}

void pki_region_withdraw(struct pki_engine *e, const struct pki_mem *mem)
{
    struct pki_region *region = find(e, mem);

    if (region == NULL)
        return;
    forget(e, region);
    e->mem.regions.holes = true;
}

/* Once for each kind of memory, not for each call. */
static void say_hidden(const struct pki_engine *e, const struct pki_peer *peer, const struct pki_mem *mem)
{
    static atomic_bool said[2];
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);

    if (!atomic_exchange(&said[mem->vmm], true))
        pki_log(PKI_LOG_WARN, &where,
                "cannot map %zu bytes at %#zx, which are %s: what this rank receives in such memory "
                "comes through the host",
                mem->bytes, (size_t)mem->base,
                mem->vmm ? "virtual memory made without a file descriptor type, or of unequal pieces"
                         : "of a memory pool that allows no IPC (cudaMallocAsync?)");
}

static pk_result_t tell_device(struct pki_engine *e, struct pki_peer *peer, const void *addr, size_t bytes, bool may_be_hidden,
                               uint32_t *id, uint64_t *offset)
{
    struct pki_ep *path = peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    struct pki_region *region;
    struct pki_mem mem;
    pk_result_t result;

    if (path == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, &where, "no path from that rank into device memory of this rank");
    result = e->gpu->ops->classify(e->gpu, addr, bytes, &mem);
    if (result != PK_OK)
        return result;
    if (may_be_hidden && mem.kind == PKI_MEM_DEVICE && mem.ordinal == e->limits.ordinal && !mem.shareable) {
        say_hidden(e, peer, &mem);
        *id = 0;
        *offset = 0;
        return PK_OK;
    }
    result = tell(e, peer, path->iface, &mem, &region);
    if (result != PK_OK)
        return result;
    *id = region->id;
    *offset = (uint64_t)(uintptr_t)addr - region->exported.base;
    return PK_OK;
}

pk_result_t pki_region_tell(struct pki_engine *e, struct pki_peer *peer, const void *addr, size_t bytes, uint32_t *id,
                            uint64_t *offset)
{
    return tell_device(e, peer, addr, bytes, false, id, offset);
}

pk_result_t pki_region_tell_or_hide(struct pki_engine *e, struct pki_peer *peer, const void *addr, size_t bytes, uint32_t *id,
                                    uint64_t *offset)
{
    return tell_device(e, peer, addr, bytes, true, id, offset);
}

bool pki_region_is_shareable(struct pki_engine *e, const void *addr, size_t bytes)
{
    const pk_error_info_t kept = *pki_error_get();
    struct pki_mem mem;
    bool yes = e->gpu->ops->classify(e->gpu, addr, bytes, &mem) == PK_OK && mem.kind == PKI_MEM_DEVICE && mem.shareable;

    pki_error_set(&kept);
    return yes;
}

void pki_region_tell_soon(struct pki_xfer *xfer)
{
    const pk_error_info_t kept = *pki_error_get();
    uint32_t id;
    uint64_t offset;

    if (!pki_region_is_shareable(xfer->engine, xfer->addr, xfer->bytes))
        return;
    (void)pki_region_tell(xfer->engine, xfer->peer, xfer->addr, xfer->bytes, &id, &offset); /* or when it is needed */
    pki_error_set(&kept);
}

uint64_t pki_region_there(struct pki_engine *e, struct pki_peer *peer, const void *addr, size_t bytes, uint32_t *id)
{
    struct pki_msg msg = { .kind = PKI_MSG_MAP };
    const struct pki_region *region;
    uint64_t offset = 0;

    if (pki_region_tell(e, peer, addr, bytes, id, &offset) != PK_OK)
        return 0;
    region = by_id(e, *id);
    if (region->there[peer->rank] == PKI_REGION_NOWHERE)
        return 0;
    if (region->there[peer->rank] != 0)
        return region->there[peer->rank] + offset;
    msg.region = *id;
    (void)pki_ctrl_send(peer, &msg, NULL, e); /* without an answer it is asked again next time */
    return 0;
}

void pki_region_mapped(struct pki_engine *e, int peer, uint32_t id, uint64_t base)
{
    struct pki_region *region = by_id(e, id);

    if (region != NULL && peer < PKI_FUSED_RANKS)
        region->there[peer] = base;
}

void pki_region_close_all(struct pki_engine *e)
{
    pki_region_close_retired(e);
    for (int i = 0; i < e->config.size; i++)
        pki_region_close_imports(&e->peers[i]);
    for (uint32_t i = 0; i < e->mem.regions.n; i++) {
        if (e->mem.regions.at[i].used != 0)
            pki_export_release(&e->mem.regions.at[i].exported);
    }
    free(e->mem.regions.at);
    e->mem.regions.at = NULL;
    e->mem.regions.n = 0;
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
        pki_list_push(&e->mem.registrations, &r->node);
    else
        free(r);
    pki_engine_unlock(e);
    return result;
}

pk_result_t pki_engine_deregister(struct pki_engine *e, void *ptr, size_t bytes)
{
    struct pki_registration *found = NULL;

    pki_engine_lock(e);
    for (struct pki_list *n = e->mem.registrations.next; n != &e->mem.registrations && found == NULL; n = n->next) {
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

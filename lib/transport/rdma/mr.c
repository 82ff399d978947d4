/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory. What a transfer has used stays registered, within bounds, for the next one, if it is monitored: memory that
 * was freed and mapped again at the same address must not be mistaken for the old one, whose pages the device still holds.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/rdma/rdma.h"

#define GPU_FAILURES_MAX 8

static void deregister(struct pki_rdma_iface *iface, struct pki_rdma_mr *mr)
{
    pki_list_remove(&mr->node);
    pki_rdma_monitor_remove(&mr->monitored); /* GPU memory is not monitored */
    for (uint64_t i = 0; i < mr->npieces * (uint64_t)iface->nrails; i++)
        if (mr->mrs[i] != NULL)
            pki_verbs(NULL)->dereg_mr(mr->mrs[i]);
    free(mr);
}

static void evict_oldest(struct pki_rdma_iface *iface)
{
    iface->ncached--;
    deregister(iface, pki_container_of(iface->cached.next, struct pki_rdma_mr, node));
}

/* What is to be registered. GPU memory: a whole allocation, as a dma-buf where there is one. */
struct source {
    uintptr_t begin, end; /* whole pages */
    struct pki_mem mem;
    int dmabuf; /* -1: none */
};

/* A source may be memory that this process may only read. Writes may pass each other on their way through the machine, if they
 * may not pass the message that tells of them: it is of the same device, and strictly ordered. GPU memory by its address:
 * nvidia-peermem, if it is loaded, knows such pages. */
static struct ibv_mr *register_on(const struct pki_rdma_iface *iface, int rail, const struct source *source, uintptr_t at,
                                  size_t bytes)
{
    const struct pki_verbs *verbs = pki_verbs(NULL);
    struct ibv_pd *pd = iface->rails[rail].pd;
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr;

    if (iface->nrails == 1)
        access |= IBV_ACCESS_RELAXED_ORDERING;
    if (source->dmabuf >= 0 && verbs->reg_dmabuf_mr != NULL)
        return verbs->reg_dmabuf_mr(pd, at - source->begin, bytes, at, source->dmabuf, (int)access);
    mr = verbs->reg_mr_iova2(pd, (void *)at, bytes, at, access);
    return mr != NULL || (errno != EFAULT && errno != EACCES) || source->mem.kind != PKI_MEM_HOST
               ? mr
               : verbs->reg_mr_iova2(pd, (void *)at, bytes, at, 0);
}

/* Where the limit of registered memory is reached, unused registrations make room. */
static struct ibv_mr *register_with_room(struct pki_rdma_iface *iface, int rail, const struct source *source, uintptr_t at,
                                         size_t bytes)
{
    struct ibv_mr *mr;

    while ((mr = register_on(iface, rail, source, at, bytes)) == NULL && errno == ENOMEM && iface->ncached > 0)
        evict_oldest(iface);
    if (mr != NULL)
        iface->base.counts.registrations++;
    return mr;
}

/* False: errno, and *failed is the rail. */
static bool register_pieces(struct pki_rdma_iface *iface, const struct source *source, struct pki_rdma_mr *mr, int *failed)
{
    uintptr_t begin = source->begin, end;

    for (uint32_t piece = 0; piece < mr->npieces; piece++, begin = end) {
        end = ((begin >> iface->piece_shift) + 1) << iface->piece_shift;
        end = end < source->end && end != 0 ? end : source->end;
        for (int i = 0; i < iface->nrails; i++) {
            struct ibv_mr **slot = &mr->mrs[piece * (uint64_t)iface->nrails + (uint64_t)i];

            *slot = register_with_room(iface, i, source, begin, end - begin);
            *failed = i;
            if (*slot == NULL)
                return false;
        }
    }
    return true;
}

/* NULL: errno, and *failed is the rail that refused, or -1. */
static struct pki_rdma_mr *register_new(struct pki_rdma_iface *iface, const struct source *source, int *failed)
{
    uint64_t npieces = pki_rdma_pieces(source->begin, source->end - source->begin, iface->piece_shift);
    struct pki_rdma_mr *mr = calloc(1, sizeof *mr + npieces * (uint64_t)iface->nrails * sizeof mr->mrs[0]);

    *failed = -1;
    if (mr == NULL)
        return NULL;
    mr->monitored.begin = source->begin;
    mr->monitored.end = source->end;
    mr->gpu = source->mem;
    mr->users = 1;
    mr->npieces = (uint32_t)npieces;
    pki_list_init(&mr->node);
    if (mr->gpu.kind == PKI_MEM_HOST)
        pki_rdma_monitor_add(&mr->monitored); /* before the pages are taken, so that no change goes unnoticed */
    if (!register_pieces(iface, source, mr, failed)) {
        int error = errno;

        deregister(iface, mr);
        errno = error;
        return NULL;
    }
    pki_list_push(&iface->used, &mr->node);
    return mr;
}

static bool classify(const struct pki_rdma_iface *iface, uintptr_t at, size_t bytes, struct pki_mem *mem)
{
    struct pki_device *device = iface->device;

    return device != NULL && device->ops->classify(device, (const void *)at, bytes, mem) == PK_OK && mem->kind == PKI_MEM_DEVICE;
}

/* Host memory that is not monitored may have changed at any time, and GPU memory whose allocation is another one has. */
static bool is_stale(const struct pki_rdma_iface *iface, const struct pki_rdma_mr *mr)
{
    struct pki_mem mem;

    if (mr->gpu.kind == PKI_MEM_HOST)
        return !mr->monitored.is_monitored || atomic_load(&mr->monitored.stale);
    return !classify(iface, mr->gpu.base, mr->gpu.bytes, &mem) || mem.buffer_id != mr->gpu.buffer_id;
}

static bool is_same(const struct pki_mem *a, const struct pki_mem *b)
{
    return a->kind == b->kind && a->buffer_id == b->buffer_id;
}

/* Who still uses host memory that is not monitored knows it to be what it was. */
static struct pki_rdma_mr *find(struct pki_list *list, const struct source *source)
{
    for (struct pki_list *node = list->next; node != list; node = node->next) {
        struct pki_rdma_mr *mr = pki_container_of(node, struct pki_rdma_mr, node);

        if (mr->monitored.begin <= source->begin && source->end <= mr->monitored.end && is_same(&mr->gpu, &source->mem) &&
            !atomic_load(&mr->monitored.stale))
            return mr;
    }
    return NULL;
}

static void drop_stale(struct pki_rdma_iface *iface)
{
    struct pki_list *next;

    for (struct pki_list *node = iface->cached.next; node != &iface->cached; node = next) {
        struct pki_rdma_mr *mr = pki_container_of(node, struct pki_rdma_mr, node);

        next = node->next;
        if (is_stale(iface, mr)) {
            iface->ncached--;
            deregister(iface, mr);
        }
    }
}

/* GPU memory: all of its allocation, for what is registered by parts of pages cannot be a dma-buf. */
static void describe(const struct pki_rdma_iface *iface, uintptr_t begin, uintptr_t end, struct source *source)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    *source = (struct source){ .dmabuf = -1 };
    if (classify(iface, begin, end - begin, &source->mem)) {
        begin = source->mem.base;
        end = source->mem.base + source->mem.bytes;
    } else {
        source->mem = (struct pki_mem){ .kind = PKI_MEM_HOST };
    }
    source->begin = begin / page * page;
    source->end = (end + page - 1) / page * page;
}

static struct pki_rdma_mr *make(struct pki_rdma_iface *iface, struct source *source, int *failed)
{
    struct pki_rdma_mr *mr;
    int error;

    drop_stale(iface);
    if (source->mem.kind != PKI_MEM_HOST)
        (void)iface->device->ops->dmabuf(iface->device, &source->mem, &source->dmabuf);
    mr = register_new(iface, source, failed);
    error = errno;
    if (source->dmabuf >= 0)
        close(source->dmabuf); /* the registration keeps the memory */
    errno = error;
    return mr;
}

/* NULL: errno. */
static struct pki_rdma_mr *get(struct pki_rdma_iface *iface, const void *addr, size_t bytes, int *failed)
{
    struct pki_rdma_mr *mr;
    struct source source;

    describe(iface, (uintptr_t)addr, (uintptr_t)addr + bytes, &source);
    pki_rdma_monitor_sync();
    mr = find(&iface->used, &source);
    if (mr == NULL) {
        mr = find(&iface->cached, &source);
        if (mr == NULL)
            return make(iface, &source, failed);
        iface->ncached--;
        pki_list_remove(&mr->node);
        pki_list_push(&iface->used, &mr->node);
    }
    mr->users++;
    return mr;
}

pk_result_t pki_rdma_mr_get(struct pki_rdma_iface *iface, const void *addr, size_t bytes, struct pki_rdma_mr **out)
{
    int failed = -1;
    struct pki_rdma_mr *mr = get(iface, addr, bytes, &failed);

    if (mr == NULL && failed < 0)
        return pki_fail(PK_ERR_MEMORY, NULL, "rdma: no memory for a registration");
    if (mr == NULL)
        return pki_fail_errno(errno == ENOMEM ? PK_ERR_MEMORY : PK_ERR_SYSTEM, NULL,
                              "rdma: registering %zu bytes with %s (limit of locked memory: ulimit -l)", bytes,
                              iface->rails[failed].name);
    *out = mr;
    return PK_OK;
}

/* A device that refused so often will not take the next one either. */
pk_result_t pki_rdma_reg(struct pki_iface *base, const struct pki_mem *mem, struct pki_export *out)
{
    struct pki_rdma_iface *iface = pki_rdma_iface_of(base);
    struct pki_rdma_mr *mr;
    int failed = -1;

    if (out != NULL || mem->kind != PKI_MEM_DEVICE || iface->nrails == 0 || iface->gpu_failures == GPU_FAILURES_MAX)
        return PK_ERR_UNSUPPORTED;
    mr = get(iface, (const void *)mem->base, mem->bytes, &failed);
    if (mr == NULL) {
        if (iface->gpu_failures++ == 0)
            pki_log(PKI_LOG_INFO, NULL, "rdma: GPU memory goes through pinned memory of the host: %s cannot register it (%s)",
                    failed >= 0 ? iface->rails[failed].name : "this rank", strerror(errno));
        return PK_ERR_UNSUPPORTED;
    }
    iface->gpu_failures = 0;
    if (!iface->gpu_reported) {
        iface->gpu_reported = true;
        pki_log(PKI_LOG_INFO, NULL, "rdma: %s reads and writes GPU memory itself", iface->rails[0].name);
    }
    pki_rdma_mr_put(iface, mr);
    return PK_OK;
}

void pki_rdma_mr_put(struct pki_rdma_iface *iface, struct pki_rdma_mr *mr)
{
    if (--mr->users > 0)
        return;
    if (is_stale(iface, mr)) {
        deregister(iface, mr);
        return;
    }
    pki_list_remove(&mr->node);
    pki_list_push(&iface->cached, &mr->node);
    if (++iface->ncached > pki_tuning.rdma.cached)
        evict_oldest(iface);
}

void pki_rdma_mr_close_all(struct pki_rdma_iface *iface)
{
    while (!pki_list_empty(&iface->used))
        deregister(iface, pki_container_of(iface->used.next, struct pki_rdma_mr, node));
    while (!pki_list_empty(&iface->cached))
        deregister(iface, pki_container_of(iface->cached.next, struct pki_rdma_mr, node));
    iface->ncached = 0;
}

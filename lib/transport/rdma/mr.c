/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory. What a transfer has used stays registered, within bounds, for the next one, if it is watched: memory that was
 * freed and mapped anew at the same address must not be mistaken for the old one, whose pages the device still holds.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/rdma/rdma.h"

#define CACHED_MAX 256

static void deregister(struct pki_rdma_iface *iface, struct pki_rdma_mr *mr)
{
    pki_list_remove(&mr->node);
    pki_rdma_watch_remove(&mr->watch);
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

/* A source may be memory that this process may only read. Writes may pass each other on their way through the machine, if they may not
 * pass the message that tells of them: it is of the same device, and strictly ordered. */
static struct ibv_mr *register_on(const struct pki_rdma_iface *iface, int rail, void *addr, size_t bytes)
{
    const struct pki_verbs *verbs = pki_verbs(NULL);
    struct ibv_pd *pd = iface->rails[rail].pd;
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr;

    if (iface->nrails == 1)
        access |= IBV_ACCESS_RELAXED_ORDERING;
    mr = verbs->reg_mr_iova2(pd, addr, bytes, (uintptr_t)addr, access);
    return mr != NULL || (errno != EFAULT && errno != EACCES) ? mr : verbs->reg_mr_iova2(pd, addr, bytes, (uintptr_t)addr, 0);
}

/* Where the limit of registered memory is reached, unused registrations make room. */
static struct ibv_mr *register_with_room(struct pki_rdma_iface *iface, int rail, void *addr, size_t bytes)
{
    struct ibv_mr *mr;

    while ((mr = register_on(iface, rail, addr, bytes)) == NULL && errno == ENOMEM && iface->ncached > 0)
        evict_oldest(iface);
    if (mr != NULL)
        iface->registrations++;
    return mr;
}

static pk_result_t register_pieces(struct pki_rdma_iface *iface, struct pki_rdma_mr *mr)
{
    uintptr_t begin = mr->watch.begin, end;

    for (uint32_t piece = 0; piece < mr->npieces; piece++, begin = end) {
        end = ((begin >> iface->piece_shift) + 1) << iface->piece_shift;
        end = end < mr->watch.end && end != 0 ? end : mr->watch.end;
        for (int i = 0; i < iface->nrails; i++) {
            struct ibv_mr **slot = &mr->mrs[piece * (uint64_t)iface->nrails + (uint64_t)i];

            *slot = register_with_room(iface, i, (void *)begin, end - begin);
            if (*slot == NULL)
                return pki_fail_errno(errno == ENOMEM ? PK_ERR_MEMORY : PK_ERR_SYSTEM, NULL,
                                      "rdma: registering %zu bytes with %s (limit of locked memory: ulimit -l)",
                                      (size_t)(end - begin), iface->rails[i].name);
        }
    }
    return PK_OK;
}

static pk_result_t register_new(struct pki_rdma_iface *iface, uintptr_t begin, uintptr_t end, struct pki_rdma_mr **out)
{
    uint64_t npieces = pki_rdma_pieces(begin, end - begin, iface->piece_shift);
    struct pki_rdma_mr *mr = calloc(1, sizeof *mr + npieces * (uint64_t)iface->nrails * sizeof mr->mrs[0]);
    pk_result_t result;

    if (mr == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "rdma: no memory for a registration");
    mr->watch.begin = begin;
    mr->watch.end = end;
    mr->users = 1;
    mr->npieces = (uint32_t)npieces;
    pki_list_init(&mr->node);
    pki_rdma_watch_add(&mr->watch); /* before the pages are taken, so that no change goes unnoticed */
    result = register_pieces(iface, mr);
    if (result != PK_OK) {
        deregister(iface, mr);
        return result;
    }
    pki_list_push(&iface->used, &mr->node);
    *out = mr;
    return PK_OK;
}

static struct pki_rdma_mr *find(struct pki_list *list, uintptr_t begin, uintptr_t end)
{
    for (struct pki_list *node = list->next; node != list; node = node->next) {
        struct pki_rdma_mr *mr = pki_container_of(node, struct pki_rdma_mr, node);

        if (mr->watch.begin <= begin && end <= mr->watch.end && !atomic_load(&mr->watch.stale))
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
        if (atomic_load(&mr->watch.stale)) {
            iface->ncached--;
            deregister(iface, mr);
        }
    }
}

pk_result_t pki_rdma_mr_get(struct pki_rdma_iface *iface, const void *addr, size_t bytes, struct pki_rdma_mr **out)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)addr / page * page, end = ((uintptr_t)addr + bytes + page - 1) / page * page;
    struct pki_rdma_mr *mr;

    pki_rdma_watch_sync();
    mr = find(&iface->used, begin, end);
    if (mr == NULL) {
        mr = find(&iface->cached, begin, end);
        if (mr == NULL) {
            drop_stale(iface);
            return register_new(iface, begin, end, out);
        }
        iface->ncached--;
        pki_list_remove(&mr->node);
        pki_list_push(&iface->used, &mr->node);
    }
    mr->users++;
    *out = mr;
    return PK_OK;
}

void pki_rdma_mr_put(struct pki_rdma_iface *iface, struct pki_rdma_mr *mr)
{
    if (--mr->users > 0)
        return;
    if (!mr->watch.watched || atomic_load(&mr->watch.stale)) {
        deregister(iface, mr);
        return;
    }
    pki_list_remove(&mr->node);
    pki_list_push(&iface->cached, &mr->node);
    if (++iface->ncached > CACHED_MAX)
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shareable host memory of this rank (pk_mem_alloc): memfds, which ranks of the host map once, with the first transfer from or to
 * them, and then read and write without the kernel. Regions like those of a GPU (region.c); found here by address.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/mem/mem.h"
#include "util/fork.h"
#include "util/memfd.h"

#define PAGE 4096ull
#define HUGE_PAGE (2ull << 20)

/* First of those that begin behind `at`. */
static uint32_t behind(const struct pki_engine *e, uintptr_t at)
{
    uint32_t low = 0, high = e->mem.shm_allocs.n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (e->mem.shm_allocs.at[middle].base <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct pki_shm_alloc *find(struct pki_engine *e, const void *addr, size_t bytes)
{
    uintptr_t at = (uintptr_t)addr;
    uint32_t i = behind(e, at);
    struct pki_shm_alloc *s = i > 0 ? &e->mem.shm_allocs.at[i - 1] : NULL;

    return s != NULL && at - s->base < s->bytes && bytes <= s->bytes - (at - s->base) ? s : NULL;
}

static struct pki_mem mem_of(const struct pki_shm_alloc *s)
{
    return (struct pki_mem){ .kind = PKI_MEM_HOST,
                             .ordinal = -1,
                             .shareable = true,
                             .base = s->base,
                             .bytes = s->bytes,
                             .buffer_id = s->buffer_id,
                             .memfd = s->fd };
}

pk_result_t pki_shm_alloc_describe(struct pki_xfer *xfer, struct pki_msg *msg)
{
    struct pki_engine *e = xfer->engine;
    struct pki_peer *peer = xfer->peer;
    const struct pki_shm_alloc *s = find(e, xfer->addr, xfer->bytes);
    struct pki_mem mem;
    pk_result_t result;

    if (s == NULL || s->fd < 0 || peer->ctrl->signals_mine == NULL || peer->side_fd < 0)
        return PK_ERR_UNSUPPORTED;
    mem = mem_of(s);
    result = pki_region_tell_host(e, peer, &mem, &msg->region);
    if (result != PK_OK)
        return result;
    msg->offset = (uintptr_t)xfer->addr - s->base;
    if (xfer->there.region == 0)
        pki_region_hold(e, xfer->there.region = msg->region);
    return PK_OK;
}

static pk_result_t make_room(struct pki_engine *e)
{
    uint32_t cap = e->mem.shm_allocs.cap == 0 ? 16 : 2 * e->mem.shm_allocs.cap;
    struct pki_shm_alloc *grown;

    if (e->mem.shm_allocs.n < e->mem.shm_allocs.cap)
        return PK_OK;
    grown = realloc(e->mem.shm_allocs.at, cap * sizeof *grown);
    if (grown == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %u pieces of shareable memory", cap);
    e->mem.shm_allocs.at = grown;
    e->mem.shm_allocs.cap = cap;
    return PK_OK;
}

static void insert(struct pki_engine *e, struct pki_shm_alloc s)
{
    uint32_t i = behind(e, s.base);

    memmove(&e->mem.shm_allocs.at[i + 1], &e->mem.shm_allocs.at[i], (e->mem.shm_allocs.n - i) * sizeof s);
    e->mem.shm_allocs.at[i] = s;
    e->mem.shm_allocs.n++;
}

/* Where memfds are denied no rank maps this one's memory. */
static pk_result_t map_alone(struct pki_shm_alloc *s)
{
    void *at = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        return pki_fail_errno(PK_ERR_MEMORY, NULL, "mmap of %zu bytes", s->bytes);
    s->base = (uintptr_t)at;
    return PK_OK;
}

/* Sealed, so that nobody's mapping loses its pages. */
pk_result_t pki_shm_alloc_map(struct pki_shm_alloc *s)
{
    size_t page = s->bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    void *at;

    if (s->bytes > SIZE_MAX / 2)
        return pki_fail(PK_ERR_MEMORY, NULL, "no address space for %zu bytes", s->bytes);
    s->bytes = (s->bytes + page - 1) / page * page;
    s->fd = pki_memfd_create("pickle-mem");
    if (s->fd < 0 && errno != EMFILE && errno != ENFILE && errno != ENOMEM)
        return map_alone(s);
    if (s->fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "memfd_create of %zu bytes of shareable memory", s->bytes);
    if (!pki_memfd_resize(s->fd, s->bytes) || fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        (void)pki_fail_errno(PK_ERR_MEMORY, NULL, "%zu bytes of shareable memory%s", s->bytes, pki_memfd_hint(errno));
        goto err_close;
    }
    at = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (at == MAP_FAILED) {
        (void)pki_fail_errno(PK_ERR_MEMORY, NULL, "mmap of %zu bytes of shareable memory", s->bytes);
        goto err_close;
    }
    (void)madvise(at, s->bytes, MADV_HUGEPAGE); /* where shmem_enabled allows it */
    s->base = (uintptr_t)at;
    pki_fork_guard(s->fd);
    return PK_OK;

err_close:
    close(s->fd);
    return PK_ERR_MEMORY;
}

static void release(struct pki_engine *e, struct pki_shm_alloc *s)
{
    struct pki_mem mem = mem_of(s);
    void *at = (void *)s->base; /* NOLINT: the address came from mmap */

    if (e->gpu != NULL)
        e->gpu->ops->host_unregister(e->gpu, at);
    pki_region_withdraw(e, &mem);
    munmap(at, s->bytes);
    pki_fork_let_go(s->fd);
    if (s->fd >= 0)
        close(s->fd);
}

pk_result_t pki_engine_mem_alloc(struct pki_engine *e, size_t bytes, void **ptr)
{
    static _Atomic uint64_t ids;
    struct pki_shm_alloc s = { .bytes = bytes, .fd = -1, .buffer_id = atomic_fetch_add(&ids, 1) + 1 };
    pk_result_t result = pki_shm_alloc_map(&s);

    if (result != PK_OK)
        return result;
    pki_engine_lock(e);
    result = make_room(e);
    if (result == PK_OK && e->gpu != NULL)
        result = e->gpu->ops->host_register(e->gpu, (void *)s.base, s.bytes);
    if (result == PK_OK)
        insert(e, s);
    pki_engine_unlock(e);
    if (result != PK_OK) {
        munmap((void *)s.base, s.bytes);
        pki_fork_let_go(s.fd);
        if (s.fd >= 0)
            close(s.fd);
        return result;
    }
    *ptr = (void *)s.base;
    return PK_OK;
}

pk_result_t pki_engine_mem_free(struct pki_engine *e, void *ptr)
{
    struct pki_shm_alloc *s;
    pk_result_t result = PK_OK;

    pki_engine_lock(e);
    s = find(e, ptr, 1);
    if (s == NULL || s->base != (uintptr_t)ptr) {
        result = pki_fail(PK_ERR_ARG, NULL, "%p is not memory of pk_mem_alloc of this communicator", ptr);
    } else {
        release(e, s);
        e->mem.shm_allocs.n--;
        memmove(s, s + 1, (size_t)(&e->mem.shm_allocs.at[e->mem.shm_allocs.n] - s) * sizeof *s);
    }
    pki_engine_unlock(e);
    return result;
}

void pki_shm_alloc_close_all(struct pki_engine *e)
{
    for (uint32_t i = 0; i < e->mem.shm_allocs.n; i++)
        release(e, &e->mem.shm_allocs.at[i]);
    free(e->mem.shm_allocs.at);
    e->mem.shm_allocs.at = NULL;
    e->mem.shm_allocs.n = 0;
}

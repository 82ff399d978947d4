/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inboxes of fused collectives in host memory, where some of the GPUs do not reach one another. Each rank makes one memfd,
 * sealed, which its peers map, each the part that it writes; all register what they have mapped with their GPUs, and the
 * kernels do as in memory of GPUs. A mapping lasts whatever becomes of the memory's owner.
 *
 * Behind the inboxes lie the slots of this rank's receives: messages that have no kernel of their own go through them
 * (proto/bounce.c), and the sender's GPU fills them.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/fused/fused.h"
#include "engine/mem/mem.h"
#include "util/fork.h"
#include "util/memfd.h"
#include "util/socket.h"

_Static_assert(PKI_FUSED_HALF % 4096 == 0, "parts are whole pages");

static size_t part_bytes(void)
{
    return (size_t)2 * PKI_FUSED_HALF;
}

/* Whole pages of any machine. */
static size_t inboxes_bytes(const struct pki_engine *e)
{
    return (((size_t)e->config.size - 1) * part_bytes() + 0xffff) & ~(size_t)0xffff;
}

/* Which of the others `rank` is to `owner`, counted from 0. */
static size_t nth_other(int owner, int rank)
{
    return (size_t)(rank > owner ? rank - 1 : rank);
}

bool pki_engine_may_fuse(const struct pki_engine *e)
{
    return e->config.fused && e->config.size > 1;
}

/* What the kernels count with is their GPU's own: atomic operations do not reach host memory over every bus. */
static pk_result_t open_state(struct pki_engine *e)
{
    struct pki_fused_host *host = &e->fused.host;
    void *ptr;
    pk_result_t result = pki_retained_alloc(e->gpu, PKI_FUSED_STATE_BYTES, &ptr);

    if (result != PK_OK)
        return result;
    host->state = ptr;
    result = e->gpu->ops->zero(e->gpu, ptr, PKI_FUSED_STATE_BYTES);
    return result == PK_OK ? pki_fused_open(e, host->memory.at, ptr) : result;
}

static pk_result_t open_memory(struct pki_engine *e)
{
    struct pki_fused_host *host = &e->fused.host;
    const size_t inboxes = inboxes_bytes(e);
    struct pki_shm_alloc s = { .bytes = inboxes + PKI_BOUNCE_POOL_BYTES, .fd = -1 };
    pk_result_t result = pki_shm_alloc_map(&s);

    if (result != PK_OK)
        return result;
    host->fd = s.fd;
    host->memory = (struct pki_fused_mapping){ .at = (char *)s.base, .bytes = inboxes };
    host->slots = (struct pki_fused_mapping){ .at = (char *)s.base + inboxes, .bytes = s.bytes - inboxes };
    if (s.fd < 0)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "memfd_create is denied");
    /* The driver takes the pages, on the NUMA node of this thread. */
    result = e->gpu->ops->host_register(e->gpu, host->memory.at, host->memory.bytes);
    host->memory.is_registered = result == PK_OK;
    return result;
}

static void unmap(struct pki_engine *e, struct pki_fused_mapping *m)
{
    if (m->is_registered)
        e->gpu->ops->host_unregister(e->gpu, m->at);
    if (m->at != NULL)
        munmap(m->at, m->bytes);
    *m = (struct pki_fused_mapping){ .at = NULL };
}

static void close_fd(struct pki_fused_host *host)
{
    pki_fork_let_go(host->fd);
    if (host->fd >= 0)
        close(host->fd);
    host->fd = -1;
}

/* Without one all ranks go without: pki_engine_fused_offer. */
static void go_without(struct pki_engine *e)
{
    const struct pki_where where = { .rank = e->config.rank, .peer = -1 };

    pki_log(PKI_LOG_WARN, &where, "no memory for collectives by one kernel through the host: %s", pki_error_get()->text);
}

void pki_engine_host_inbox_open(struct pki_engine *e)
{
    pk_result_t result;

    e->fused.host.fd = -1;
    e->fused.host.used = true;
    result = open_memory(e);
    if (result == PK_OK)
        result = open_state(e);
    if (result != PK_OK) {
        go_without(e);
        close_fd(&e->fused.host);
    }
}

/* Slots of a peer: without them its messages go through slots of this rank as well. */
static void map_slots(struct pki_engine *e, int rank, int fd, uint64_t there)
{
    void *at = MAP_FAILED;

    if (there != 0 && pki_memfd_is_safe(fd, inboxes_bytes(e) + PKI_BOUNCE_POOL_BYTES))
        at = mmap(NULL, PKI_BOUNCE_POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)inboxes_bytes(e));
    if (at != MAP_FAILED)
        e->fused.host.far[rank] = (struct pki_far_slots){ .here = { .at = at, .bytes = PKI_BOUNCE_POOL_BYTES }, .there = there };
}

/* The part of the peer's inbox that this rank writes, in whole pages. */
static pk_result_t map_part(struct pki_engine *e, int rank, int fd)
{
    struct pki_where where = pki_engine_where(e, rank, NULL);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), first = nth_other(rank, e->config.rank) * part_bytes();
    const size_t begin = first / page * page;
    struct pki_fused_mapping m = { .bytes = first + part_bytes() - begin };
    pk_result_t result;
    void *at;

    if (!pki_memfd_is_safe(fd, first + part_bytes()))
        return pki_fail(PK_ERR_PEER, &where, "its inbox of fused collectives, in host memory, is too short or not sealed");
    at = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)begin);
    if (at == MAP_FAILED)
        return pki_fail_errno(PK_ERR_SYSTEM, &where, "mmap of %zu bytes of its inbox of fused collectives", m.bytes);
    m.at = at;
    result = e->gpu->ops->host_register(e->gpu, at, m.bytes);
    if (result != PK_OK) {
        munmap(at, m.bytes);
        return result;
    }
    m.is_registered = true;
    e->fused.host.parts[rank] = m;
    e->fused.remote[rank] = (uint64_t)(uintptr_t)m.at + (first - begin);
    return PK_OK;
}

pk_result_t pki_engine_host_inbox_swap(struct pki_engine *e, int rank, const struct pki_wait *wait)
{
    struct pki_where where = pki_engine_where(e, rank, NULL);
    const int side_fd = e->peers[rank].side_fd, mine = e->fused.host.fd;
    uint64_t own = (uint64_t)(uintptr_t)e->fused.host.slots.at, slots = 0;
    int fd = -1;
    struct pki_frame_in in = { .data = &slots, .capacity = sizeof slots, .fds = &fd, .fd_capacity = 1 };
    pk_result_t result = pki_fd_send_wait(side_fd, &own, sizeof own, &mine, mine >= 0 ? 1 : 0, wait, &where);

    if (result == PK_OK)
        result = pki_fd_recv_wait(side_fd, &in, wait, &where);
    if (result != PK_OK || in.fd_count == 0)
        return result;
    if (e->fused.words != NULL && map_part(e, rank, fd) != PK_OK)
        go_without(e);
    map_slots(e, rank, fd, slots);
    close(fd);
    return PK_OK;
}

void pki_engine_host_inbox_ready(struct pki_engine *e)
{
    const struct pki_where where = { .rank = e->config.rank, .peer = -1 };

    close_fd(&e->fused.host);
    pki_log(PKI_LOG_INFO, &where, "some GPUs do not reach one another: kernels of collectives use %zu bytes of host memory",
            e->fused.host.memory.bytes);
}

/* When this rank's kernels have ended. */
void pki_fused_host_close(struct pki_engine *e)
{
    struct pki_fused_host *host = &e->fused.host;

    if (!host->used)
        return;
    for (int i = 0; i < PKI_FUSED_RANKS; i++) {
        unmap(e, &host->parts[i]);
        unmap(e, &host->far[i].here);
    }
    unmap(e, &host->memory);
    unmap(e, &host->slots);
    close_fd(host);
    if (host->state != NULL)
        pki_retained_give(host->state);
    host->state = NULL;
}

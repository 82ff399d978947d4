/* SPDX-License-Identifier: Apache-2.0 */
/* The shm transport: inboxes made, passed, mapped and closed. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "transport/shm/shm.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/memfd.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* An inbox that nobody uses: the memory is not allocated. That there is no descriptor or memory left now is an error of the
 * communicator that wants one. */
static bool can_make_inbox(struct pki_probe *probe)
{
    int fd = pki_memfd_create("pickle-probe");
    bool resized = fd >= 0 && pki_memfd_resize(fd, sizeof(struct pki_shm_inbox));
    int error = errno;

    if (fd < 0 && (error == EMFILE || error == ENFILE || error == ENOMEM))
        return true;
    if (fd < 0)
        snprintf(probe->reason, sizeof probe->reason, "memfd_create: %s", strerror(error));
    else if (!resized)
        snprintf(probe->reason, sizeof probe->reason, "ftruncate to %zu bytes: %s%s", sizeof(struct pki_shm_inbox),
                 strerror(error), pki_memfd_hint(error));
    if (fd >= 0)
        close(fd);
    return resized;
}

static void shm_probe(const struct pki_iface_config *config, struct pki_probe *probe)
{
    char here = 1, there = 0;
    struct iovec local = { .iov_base = &there, .iov_len = 1 }, remote = { .iov_base = &here, .iov_len = 1 };

    (void)config;
    *probe = (struct pki_probe){ .gbps = PKI_SHM_GBPS };
    probe->usable = can_make_inbox(probe);
    if (!probe->usable)
        return;
    if (pki_tuning.shm.cma == 0)
        snprintf(probe->reason, sizeof probe->reason, "memfd; process_vm_writev is off (shm.cma=0)");
    else if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1)
        snprintf(probe->reason, sizeof probe->reason, "memfd and process_vm_writev");
    else
        snprintf(probe->reason, sizeof probe->reason, "memfd; process_vm_readv: %s", strerror(errno));
}

/* More is faster (ctrl.c), but it is memory of every pair. */
static uint32_t data_used(int local_ranks)
{
    return local_ranks == 2 ? PKI_SHM_DATA_BYTES : PKI_SHM_DATA_USED_MIN;
}

static pk_result_t shm_open_iface(const struct pki_iface_config *config, struct pki_iface *iface)
{
    struct pki_shm_iface *shm = (struct pki_shm_iface *)(void *)iface;

    shm->data_used = data_used(config->local_ranks);
    shm->crowded = config->shares_cpu;
    iface->caps.msg_payload_max = PKI_SHM_PAYLOAD_MAX;
    pki_list_init(&iface->events);
    pki_list_init(&shm->eps);
    pki_list_init(&shm->refused);
    return PK_OK;
}

/* ---- Endpoints ---- */

static pk_result_t inbox_map(struct pki_ep *ep, int fd, const char *whose, struct pki_shm_inbox **inbox)
{
    struct pki_where where = pki_shm_where(ep);
    void *at = mmap(NULL, sizeof **inbox, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return pki_fail_errno(PK_ERR_SYSTEM, &where, "over shm: mmap of %s inbox, %zu bytes", whose, sizeof **inbox);
    *inbox = at;
    return PK_OK;
}

/* On failure ep_close undoes what was done. */
static pk_result_t inbox_make(struct pki_shm_ep *shm)
{
    struct pki_where where = pki_shm_where(&shm->base);

    shm->inbox_fd = pki_memfd_create("pickle-inbox");
    if (shm->inbox_fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, &where, "over shm: memfd_create of an inbox");
    if (!pki_memfd_resize(shm->inbox_fd, sizeof *shm->mine))
        return pki_fail_errno(PK_ERR_SYSTEM, &where, "over shm: ftruncate of an inbox to %zu bytes%s", sizeof *shm->mine,
                              pki_memfd_hint(errno));
    if (fcntl(shm->inbox_fd, F_ADD_SEALS, SEALS) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, &where, "over shm: seals of an inbox");
    return inbox_map(&shm->base, shm->inbox_fd, "own", &shm->mine);
}

static pk_result_t shm_ep_init(struct pki_ep *ep, struct pki_blob *mine)
{
    struct pki_shm_ep *shm = pki_shm_ep_of(ep);
    struct pki_where where = pki_shm_where(ep);
    struct pki_shm_hello hello = { .layout = PKI_SHM_LAYOUT, .cells = PKI_SHM_CELLS, .data_bytes = PKI_SHM_DATA_BYTES };
    pk_result_t result;

    ep->can_put = ep->can_get = false;
    ep->signals_mine = ep->signals_theirs = NULL;
    ep->wake_word = NULL;
    ep->revoked = NULL;
    shm->mine = shm->theirs = NULL;
    shm->inbox_fd = -1;
    pki_list_init(&shm->node);
    if (getrandom(shm->nonce, sizeof shm->nonce, 0) != (ssize_t)sizeof shm->nonce)
        return pki_fail_errno(PK_ERR_SYSTEM, &where, "over shm: getrandom");
    result = inbox_make(shm);
    if (result != PK_OK)
        return result;
    ep->signals_mine = shm->mine->signals;
    ep->wake_word = &shm->mine->header.wake_word;
    pki_shm_rx_init(&shm->rx, shm->mine);
    hello.signal_slots = PKI_PAIR_SLOTS;
    hello.fast_copy = pki_shm_cma_is_fast();
    hello.inbox_bytes = sizeof *shm->mine;
    hello.inbox_address = (uintptr_t)shm->mine;
    hello.nonce_address = (uintptr_t)shm->nonce;
    memcpy(hello.nonce, shm->nonce, sizeof hello.nonce);
    *mine = (struct pki_blob){ .len = sizeof hello, .fd = shm->inbox_fd };
    memcpy(mine->bytes, &hello, sizeof hello);
    return PK_OK;
}

/* Only a sealed memfd of the right size can be mapped without fear of SIGBUS. (One of huge pages could run out of them.) */
static const char *inbox_check(int fd)
{
    struct stat st;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0)
        return "what came with it is not a memfd";
    if ((seals & SEALS) != SEALS || (seals & F_SEAL_WRITE) != 0)
        return "its inbox has the wrong seals";
    if (fs.f_type != TMPFS_MAGIC || st.st_size != (off_t)sizeof(struct pki_shm_inbox))
        return "its inbox has the wrong size or pages";
    return NULL;
}

static pk_result_t shm_ep_connect(struct pki_ep *ep, struct pki_blob *theirs)
{
    struct pki_shm_ep *shm = pki_shm_ep_of(ep);
    struct pki_where where = pki_shm_where(ep);
    struct pki_shm_iface *iface = (struct pki_shm_iface *)(void *)ep->iface;
    struct pki_shm_hello hello;
    const char *why = pki_shm_hello_parse(theirs, &hello);
    pk_result_t result;

    if (why == NULL)
        why = inbox_check(theirs->fd);
    result = why != NULL ? pki_fail(PK_ERR_PEER, &where, "over shm: cannot use the peer's inbox: %s", why)
                         : inbox_map(ep, theirs->fd, "the peer's", &shm->theirs);
    if (theirs->fd >= 0)
        close(theirs->fd);
    theirs->fd = -1;
    if (result != PK_OK)
        return result;
    close(shm->inbox_fd); /* the peer has it, or it is on its way there, and here it is mapped */
    shm->inbox_fd = -1;
    pki_shm_tx_init(&shm->tx, shm->theirs, iface->data_used, ep->same_process ? (uintptr_t)hello.inbox_address : 0);
    shm->tx.crowded = iface->crowded;
    ep->signals_theirs = shm->theirs->signals;
    ep->revoked = &shm->theirs->header.revoked;
    ep->can_put = ep->same_process || (pki_tuning.shm.cma != 0 && pki_shm_cma_works(ep, &hello));
    ep->can_get = ep->can_put;
    ep->copies = pki_shm_cma_is_fast() && hello.fast_copy != 0 ? PKI_COPIES_ONE_FAST : PKI_COPIES_VARY;
    pki_list_push(&iface->eps, &shm->node);
    return PK_OK;
}

static void shm_ep_close(struct pki_ep *ep)
{
    struct pki_shm_ep *shm = pki_shm_ep_of(ep);

    pki_list_remove(&shm->node);
    if (shm->theirs != NULL)
        munmap(shm->theirs, sizeof *shm->theirs);
    if (shm->mine != NULL)
        munmap(shm->mine, sizeof *shm->mine);
    if (shm->inbox_fd >= 0)
        close(shm->inbox_fd);
    shm->mine = shm->theirs = NULL;
    shm->inbox_fd = -1;
    ep->signals_mine = ep->signals_theirs = NULL;
    ep->wake_word = NULL;
    ep->revoked = NULL;
    ep->can_put = ep->can_get = false;
    pki_ep_enter(ep, PKI_EP_DEAD);
}

/* A peer that stands still in the middle of a piece, or has been killed there, is not waited for longer. */
static void shm_recv_cancel(struct pki_iface *iface)
{
    struct pki_shm_iface *shm = (struct pki_shm_iface *)(void *)iface;
    const struct pki_list *eps = &shm->eps;
    uint64_t until = pki_now_ns() + PKI_REVOKE_NS;
    struct pki_list *node;

    for (const struct pki_list *n = eps->next; n != eps; n = n->next)
        atomic_store(&pki_container_of(n, struct pki_shm_ep, node)->mine->header.revoked, 1);
    for (const struct pki_list *n = eps->next; n != eps; n = n->next)
        while (atomic_load(&pki_container_of(n, struct pki_shm_ep, node)->mine->header.at_work) != 0 && pki_now_ns() < until)
            sched_yield();
    while ((node = pki_list_pop(&shm->refused)) != NULL)
        pki_event_push(iface, pki_container_of(node, struct pki_event, node), PKI_EVENT_PUT);
}

/* ---- Memory: an address is all it takes ---- */

static pk_result_t export_memfd(const struct pki_mem *mem, struct pki_export *out)
{
    int *fds = malloc(sizeof *fds);

    if (fds == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "over shm: no memory to describe %zu bytes", mem->bytes);
    *fds = pki_fd_keep(fcntl(mem->memfd, F_DUPFD_CLOEXEC, 0));
    if (*fds < 0) {
        free(fds);
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "over shm: a descriptor of %zu bytes", mem->bytes);
    }
    out->kind = PKI_EXPORT_MEMFD;
    out->buffer_id = mem->buffer_id;
    out->pieces = 1;
    out->fds = fds;
    return PK_OK;
}

static pk_result_t shm_reg(struct pki_iface *iface, const struct pki_mem *mem, struct pki_export *out)
{
    (void)iface;
    if (mem->kind != PKI_MEM_HOST || out == NULL)
        return PK_ERR_UNSUPPORTED;
    *out = (struct pki_export){ .kind = PKI_EXPORT_ADDRESS, .base = mem->base, .bytes = mem->bytes };
    return mem->shareable ? export_memfd(mem, out) : PK_OK;
}

static pk_result_t map_memfd(struct pki_ep *ep, const struct pki_export *in, uint64_t *remote)
{
    struct pki_where where = pki_shm_where(ep);
    void *at;

    if (ep->same_process) {
        *remote = in->base;
        return PK_OK;
    }
    if (in->pieces != 1 || in->fds == NULL || in->bytes == 0 || !pki_memfd_is_safe(in->fds[0], in->bytes))
        return pki_fail(PK_ERR_PEER, &where, "over shm: its shareable memory of %llu bytes is not",
                        (unsigned long long)in->bytes);
    at = mmap(NULL, in->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, in->fds[0], 0);
    if (at == MAP_FAILED)
        return pki_fail_errno(PK_ERR_SYSTEM, &where, "over shm: mmap of %llu bytes of the peer's", (unsigned long long)in->bytes);
    *remote = (uintptr_t)at;
    return PK_OK;
}

static pk_result_t shm_map(struct pki_ep *ep, const struct pki_export *in, uint64_t *remote)
{
    if (in->kind == PKI_EXPORT_MEMFD)
        return map_memfd(ep, in, remote);
    if (!ep->can_put || in->kind != PKI_EXPORT_ADDRESS)
        return PK_ERR_UNSUPPORTED;
    *remote = in->base;
    return PK_OK;
}

static void shm_unmap(struct pki_ep *ep, const struct pki_export *in, uint64_t remote)
{
    if (in->kind == PKI_EXPORT_MEMFD && !ep->same_process)
        munmap((void *)(uintptr_t)remote, in->bytes);
}

const struct pki_transport pki_transport_shm = {
    .name = "shm",
    .iface_bytes = sizeof(struct pki_shm_iface),
    .ep_bytes = sizeof(struct pki_shm_ep),
    .reaches = { [PKI_MEM_HOST] = { [PKI_MEM_HOST] = true } },
    .probe = shm_probe,
    .open = shm_open_iface,
    .ep_init = shm_ep_init,
    .ep_connect = shm_ep_connect,
    .ep_close = shm_ep_close,
    .reg = shm_reg,
    .map = shm_map,
    .unmap = shm_unmap,
    .send = pki_shm_send,
    .peek = pki_shm_peek,
    .pop = pki_shm_pop,
    .put = pki_shm_put,
    .recv_cancel = shm_recv_cancel,
};

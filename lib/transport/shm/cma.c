/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-memory attach: copy into and from the memory of another process, if it is ours to write. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/shm/shm.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/copy.h"

/* Reading proves all that writing needs: that peer_pid means the peer in this process's namespace, and that the kernel lets
 * us. */
bool pki_shm_cma_works(const struct pki_ep *ep, const struct pki_shm_hello *theirs)
{
    uint8_t nonce[PKI_SHM_NONCE_BYTES] = { 0 };
    struct iovec local = { .iov_base = nonce, .iov_len = sizeof nonce };
    struct iovec remote = { .iov_base = (void *)(uintptr_t)theirs->nonce_address, .iov_len = sizeof nonce };
    ssize_t got = process_vm_readv((pid_t)ep->peer_pid, &local, 1, &remote, 1, 0);
    struct pki_where where = pki_shm_where(ep);

    if (got < 0)
        pki_log(PKI_LOG_INFO, &where, "over shm: process_vm_readv of process %lld: %s; data is copied twice",
                (long long)ep->peer_pid, strerror(errno));
    else if (got != (ssize_t)sizeof nonce || memcmp(nonce, theirs->nonce, sizeof nonce) != 0)
        pki_log(PKI_LOG_INFO, &where, "over shm: process %lld is not the peer (another pid namespace?); data is copied twice",
                (long long)ep->peer_pid);
    else
        return true;
    return false;
}

static bool is_one_copy_fast;

/* The best of several counts: what disturbs makes it only longer. */
static void measure(void)
{
    static unsigned char from[PKI_SHM_FAST_BYTES], to[PKI_SHM_FAST_BYTES];
    struct iovec local = { .iov_base = to, .iov_len = sizeof to }, remote = { .iov_base = from, .iov_len = sizeof from };
    uint64_t best = UINT64_MAX;

    memset(from, 1, sizeof from);
    memset(to, 1, sizeof to);
    for (int i = 0; i < PKI_SHM_FAST_TRIES; i++) {
        uint64_t begin = pki_now_ns(), took;

        if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != (ssize_t)sizeof to)
            return;
        took = pki_now_ns() - begin;
        best = took < best ? took : best;
    }
    is_one_copy_fast = best < pki_tuning.shm.fast_ns;
    pki_log(PKI_LOG_DEBUG, NULL, "over shm: process_vm_readv of %d KiB takes %llu ns", PKI_SHM_FAST_BYTES >> 10,
            (unsigned long long)best);
}

bool pki_shm_cma_is_fast(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (pki_tuning.shm.one_copy_fast < 2 || pki_tuning.shm.cma == 0)
        return pki_tuning.shm.one_copy_fast == 1;
    (void)pthread_once(&once, measure);
    return is_one_copy_fast;
}

/* Between this rank's memory and the peer's. */
static ssize_t vm_move(const struct pki_put *put, bool writes, size_t done, size_t bytes)
{
    struct iovec local = { .iov_base = (char *)(uintptr_t)put->src + done, .iov_len = bytes };
    struct iovec remote = { .iov_base = (void *)(uintptr_t)(put->remote + done), .iov_len = bytes };
    pid_t pid = (pid_t)put->ep->peer_pid;

    return writes ? process_vm_writev(pid, &local, 1, &remote, 1, 0) : process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

/* Can this process read the byte there, and write it if `writes`? As the kernel sees it, for here a bad address would be the
 * end. */
static bool is_mine(char *at, bool writes)
{
    char byte;
    struct iovec here = { .iov_base = &byte, .iov_len = 1 }, there = { .iov_base = at, .iov_len = 1 };

    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 &&
           (!writes || process_vm_writev(getpid(), &here, 1, &there, 1, 0) == 1);
}

/* The kernel has moved all bytes before the bad one: it is the next of one of the two buffers. */
static pk_result_t bad_address(struct pki_put *put, bool writes, size_t done)
{
    char *mine = (char *)(uintptr_t)put->src;
    bool peers = is_mine(mine + done, !writes);

    return pki_ep_fail(put->ep, PK_ERR_SYSTEM, EFAULT,
                       "over shm: %s process %lld: %zu bytes of rank %d's buffer, at %#llx, cannot be %s from byte %zu on",
                       writes ? "process_vm_writev to" : "process_vm_readv from", (long long)put->ep->peer_pid, put->bytes,
                       peers ? put->ep->peer : put->ep->rank, (unsigned long long)(peers ? put->remote : (uintptr_t)mine),
                       writes == peers ? "written" : "read", done);
}

/* It worked at init: this process or the peer has dropped its privileges or gone into a sandbox since. What the peer's memory was
 * to have comes by messages then, and all that follows. So it does where there is no such process: the peer's socket tells that
 * it has ended, if it has and not only its first thread. */
static pk_result_t refused(struct pki_put *put, bool writes)
{
    struct pki_shm_iface *iface = (struct pki_shm_iface *)(void *)put->ep->iface;
    struct pki_where where = pki_shm_where(put->ep);
    int error = errno;
    bool warns = error != ESRCH && !iface->said_refused;

    iface->said_refused |= warns;
    put->ep->can_put = put->ep->can_get = false;
    pki_log(warns ? PKI_LOG_WARN : PKI_LOG_INFO, &where, "over shm: %s process %lld: %s: from now on data is copied twice",
            writes ? "process_vm_writev to" : "process_vm_readv from", (long long)put->ep->peer_pid, strerror(error));
    return PK_ERR_UNSUPPORTED;
}

static pk_result_t move_all(struct pki_put *put, bool writes)
{
    size_t done = 0;

    while (done < put->bytes) {
        const size_t rest = put->bytes - done, most = pki_tuning.shm.call_bytes;
        ssize_t moved = vm_move(put, writes, done, rest < most ? rest : most);

        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return moved < 0 && errno == EFAULT ? bad_address(put, writes, done) : refused(put, writes);
        done += (size_t)moved;
    }
    return PK_OK;
}

/* Begin with the peer's memory, if it is still granted; sequentially consistent, as the peer's look is. Else the move is put
 * aside. */
static bool enter(struct pki_put *put)
{
    struct pki_shm_header *header = &pki_shm_ep_of(put->ep)->theirs->header;

    atomic_store(&header->at_work, 1);
    if (atomic_load(&header->revoked) == 0)
        return true;
    atomic_store(&header->at_work, 0);
    put->result = PK_ERR_PEER;
    pki_list_push(&((struct pki_shm_iface *)(void *)put->ep->iface)->refused, &put->event.node);
    return false;
}

static void leave(struct pki_ep *ep)
{
    atomic_store_explicit(&pki_shm_ep_of(ep)->theirs->header.at_work, 0, memory_order_release);
}

/* From this rank's memory into the peer's, or the other way. */
static pk_result_t move(struct pki_put *put)
{
    void *here = (void *)(uintptr_t)put->src, *there = (void *)(uintptr_t)put->remote; /* NOLINT: of this process, or mapped */

    if (!put->ep->same_process && !put->mapped)
        return move_all(put, !put->is_get);
    pki_copy(put->is_get ? here : there, put->is_get ? there : here, put->bytes);
    return PK_OK;
}

pk_result_t pki_shm_put(struct pki_put *put)
{
    struct pki_ep *ep = put->ep;

    if (ep->state == PKI_EP_DEAD)
        return PK_ERR_PEER;
    if (!(put->is_get ? ep->can_get : ep->can_put) && !put->mapped)
        return PK_ERR_UNSUPPORTED;
    if (!enter(put))
        return PK_OK;
    put->result = move(put);
    leave(ep);
    if (put->result == PK_ERR_UNSUPPORTED)
        return PK_ERR_UNSUPPORTED;
    /* The signal's release store is behind the copy: program order here, and the kernel's copy ran on this thread. */
    if (put->result == PK_OK && put->done_remote.word != NULL)
        pki_signal_open(&put->done_remote);
    pki_event_push(ep->iface, &put->event, PKI_EVENT_PUT);
    return PK_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of granted transfers, in. */
#include <errno.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

void pki_tcp_data_forget(struct pki_tcp_link *link)
{
    struct pki_tcp_in *in = link->in;

    in->head_have = 0;
    in->left = 0;
    if (in->grant != NULL)
        in->grant->fillers--;
    in->grant = NULL;
    pki_tcp_unexpected_drop(link);
}

static bool begin_chunk(struct pki_tcp_link *link)
{
    struct pki_tcp_in *in = link->in;
    struct pki_tcp_ep *ep = link->ep;
    bool right = pki_tcp_get_chunk(in->head, &in->chunk);

    if (right)
        in->grant = pki_tcp_grant_find(ep, &in->chunk);
    if (in->grant == NULL && (!right || !pki_tcp_unexpected_may(ep, &in->chunk))) {
        pki_tcp_lost(ep, 0, "sent a chunk of no granted transfer (operation %llu, bytes %llu to %llu)",
                     (unsigned long long)in->chunk.op, (unsigned long long)in->chunk.offset,
                     (unsigned long long)in->chunk.offset + in->chunk.bytes);
        return false;
    }
    if (in->grant != NULL)
        in->grant->fillers++;
    in->left = in->chunk.bytes;
    in->polls = 0;
    return true;
}

static bool end_chunk(struct pki_tcp_link *link)
{
    struct pki_tcp_in *in = link->in;
    struct pki_recv *grant = in->grant;

    link->received++;
    link->ep->ctrl.acks.due = true;
    pki_tcp_ctrl_look(link->ep);
    if (grant == NULL) {
        pki_tcp_unexpected_ended(link);
        return true;
    }
    grant->fillers--;
    in->grant = NULL;
    if (pki_tcp_grant_filled(link->ep, grant, &in->chunk))
        return true;
    pki_tcp_lost(link->ep, 0, "sent bytes %llu to %llu of operation %llu twice", (unsigned long long)in->chunk.offset,
                 (unsigned long long)in->chunk.offset + in->chunk.bytes, (unsigned long long)in->chunk.op);
    return false;
}

ssize_t pki_tcp_chunk_receive(struct pki_tcp_link *link, size_t done)
{
    struct pki_tcp_in *in = link->in;
    size_t left = in->left - done;
    struct iovec parts[2];
    int n = 0;

    if (left > 0) {
        char *begin = in->grant != NULL ? in->grant->addr + in->chunk.offset : in->unexpected->payload;

        parts[n++] = (struct iovec){ begin + (in->chunk.bytes - left), left };
    }
    parts[n++] = (struct iovec){ in->head + in->head_have, sizeof in->head - in->head_have };
    return n == 1 ? recv(link->source.fd, parts->iov_base, parts->iov_len, MSG_DONTWAIT) : readv(link->source.fd, parts, n);
}

bool pki_tcp_advance_in(struct pki_tcp_link *link, size_t bytes)
{
    struct pki_tcp_in *in = link->in;
    size_t payload = bytes < in->left ? bytes : in->left;

    in->left -= payload;
    in->head_have += bytes - payload;
    if (payload > 0 && in->left == 0 && !end_chunk(link))
        return false;
    if (in->head_have < sizeof in->head)
        return true;
    in->head_have = 0;
    return begin_chunk(link);
}

/* That was all for now: the next bytes are an event. */
static bool is_dry(const struct pki_tcp_link *link, size_t got, size_t wanted)
{
    return link->in->left == 0 && !link->hangup && got < wanted;
}

void pki_tcp_data_read(struct pki_tcp_link *link)
{
    struct pki_tcp_in *in = link->in;
    size_t budget = pki_tcp_round_bytes(link);

    while (link->state == PKI_TCP_UP && link->readable) {
        size_t wanted = in->left + sizeof in->head - in->head_have;
        ssize_t n;

        if (in->left > 0 && in->grant == NULL && in->unexpected == NULL && !pki_tcp_unexpected_place(link)) {
            if (link->state == PKI_TCP_UP)
                pki_tcp_link_ready(link);
            return;
        }
        /* what comes before its CTS may move yet */
        if (in->grant != NULL && pki_tcp_offload(link, false, in->left, in->grant->bytes)) {
            link->readable = false;
            return;
        }
        n = pki_tcp_chunk_receive(link, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            link->readable = false;
            return;
        }
        if (n <= 0) {
            pki_tcp_link_broken(link, n < 0 ? errno : 0);
            return;
        }
        link->ep->iface->quiet = 0;
        if (!pki_tcp_advance_in(link, (size_t)n))
            return;
        if (is_dry(link, (size_t)n, wanted)) {
            link->readable = false;
            return;
        }
        if ((size_t)n >= budget) {
            pki_tcp_link_ready(link);
            return;
        }
        budget -= (size_t)n;
    }
}

/* Where the kernel had nothing more, or no room, its next edge tells; it may have come while the thread was at it. */
bool pki_tcp_data_returned(struct pki_tcp_job *job)
{
    struct pki_tcp_link *link = job->link;

    if (link->state != PKI_TCP_UP)
        return true;
    if (!job->out && !pki_tcp_advance_in(link, job->moved))
        return false;
    if (job->how == PKI_TCP_JOB_FAILED) {
        pki_tcp_link_broken(link, job->error);
        return false;
    }
    if (job->out)
        link->writable = link->writable || job->how != PKI_TCP_JOB_BLOCKED;
    else
        link->readable = link->readable || job->how != PKI_TCP_JOB_BLOCKED;
    pki_tcp_link_ready(link);
    return true;
}

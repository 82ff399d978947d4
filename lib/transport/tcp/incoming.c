/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of granted transfers, in. */
#include <errno.h>
#include <poll.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

void pki_tcp_data_rewind(struct pki_tcp_link *link)
{
    pki_tcp_recall(link);
    pki_tcp_pipe_close(link);
    link->next = link->acked;
    link->written = 0;
    for (uint64_t i = link->acked; i < link->end; i++)
        pki_tcp_retransmit_again(&link->slots[i % link->ep->params.window]);
    link->ack_left = 0;
    link->head_have = 0;
    link->left = 0;
    pki_tcp_spill_drop(link);
    if (link->grant != NULL)
        link->grant->fillers--;
    link->grant = NULL;
    pki_tcp_unexpected_drop(link);
}

static bool begin_chunk(struct pki_tcp_link *link)
{
    struct pki_tcp_ep *ep = link->ep;
    bool right = pki_tcp_get_chunk(link->head, &link->chunk);

    if (right)
        link->grant = pki_tcp_grant_find(ep, &link->chunk);
    if (link->grant == NULL && (!right || !pki_tcp_unexpected_may(ep, &link->chunk))) {
        pki_tcp_lost(ep, 0, "sent a chunk of no granted transfer (operation %llu, bytes %llu to %llu)",
                     (unsigned long long)link->chunk.op, (unsigned long long)link->chunk.offset,
                     (unsigned long long)link->chunk.offset + link->chunk.bytes);
        return false;
    }
    if (link->grant != NULL)
        link->grant->fillers++;
    link->left = link->chunk.bytes;
    link->polls = 0;
    return pki_tcp_data_ack_arrived(link, link->chunk.reported);
}

/* Within a machine its pages may have been the sender's own, who has given it up since: whatever they held when they were read. The socket's
 * error would not tell: a thread that writes on the same connection may have taken it away, and what had come can still be read. */
static bool was_given_up(const struct pki_tcp_link *link)
{
    struct pollfd p = { .fd = link->source.fd };
    int n;

    if (!link->ep->iface->one_machine || link->chunk.bytes < PKI_TCP_SPLICE_MIN)
        return false;
    do
        n = poll(&p, 1, 0); /* asked for nothing, it tells of an error and of the end of both directions */
    while (n < 0 && errno == EINTR);
    return n != 0;
}

/* The control channel need not say at once that this chunk has come. Of a transfer that went ahead the engine may hear, and return to its caller, without another round of progress; who is about to sleep makes none either. */
static bool may_delay_ack(const struct pki_tcp_link *link)
{
    return link->chunk.eager_put == 0 && pki_tcp_exchanges(link->ep) &&
           atomic_load_explicit(&link->ep->iface->base.sleepers, memory_order_relaxed) == 0;
}

/* A kept chunk is whole, whatever has become of its sender, who may have left: on its connection nothing is said of it, for what comes to a closed one makes
 * the kernel throw away the rest that is still to be sent. False: what was read is not to be believed. Where the acknowledgement goes out on the same connection, that was not reset. */
static bool acknowledge(struct pki_tcp_link *link)
{
    int said;

    if (link->chunk.has_copy) {
        if (link->reported < link->received) /* else with the next chunk the other way, or the next one this way: nobody waits for it */
            link->ep->ctrl[0].acks_due = true;
        return true;
    }
    /* By the first connection goes the answer, if its put does not wait; one that waits makes another round. */
    if (link->grant != NULL && link->grant->answers && link->index == 1 && link->ep->iface->threads.max == 0) { /* if its pages were lent, and are not any more, what is made of it has no use either: the peer has failed */
        pki_tcp_ack_delay(link);
        return true;
    }
    said = pki_tcp_data_ack(link);
    if (said > 0)
        return true;
    if (said < 0 || was_given_up(link)) {
        pki_tcp_link_broken(link, ECONNRESET);
        return false;
    }
    if (may_delay_ack(link))
        pki_tcp_ack_delay(link);
    else
        link->ep->ctrl[0].acks_due = true;
    return true;
}

static bool end_chunk(struct pki_tcp_link *link)
{
    struct pki_tcp_grant *grant = link->grant;

    if (!acknowledge(link))
        return false;
    link->received++;
    pki_tcp_ctrl_look(link->ep);
    if (grant == NULL) {
        pki_tcp_unexpected_ended(link);
        return true;
    }
    grant->fillers--;
    link->grant = NULL;
    if (pki_tcp_grant_filled(link->ep, grant, &link->chunk))
        return true;
    pki_tcp_lost(link->ep, 0, "sent bytes %llu to %llu of operation %llu twice", (unsigned long long)link->chunk.offset,
                 (unsigned long long)link->chunk.offset + link->chunk.bytes, (unsigned long long)link->chunk.op);
    return false;
}

ssize_t pki_tcp_chunk_receive(struct pki_tcp_link *link, size_t done)
{
    size_t left = link->left - done;
    struct iovec parts[2];
    int n = 0;

    if (left > 0) {
        char *begin = link->grant != NULL ? link->grant->addr + link->chunk.offset : link->unexpected->payload;

        parts[n++] = (struct iovec){ begin + (link->chunk.bytes - left), left };
    }
    parts[n++] = (struct iovec){ link->head + link->head_have, sizeof link->head - link->head_have };
    if (link->spilled > 0)
        return pki_tcp_spill_take(link, parts, n);
    return n == 1 ? recv(link->source.fd, parts->iov_base, parts->iov_len, MSG_DONTWAIT) : readv(link->source.fd, parts, n);
}

bool pki_tcp_advance_in(struct pki_tcp_link *link, size_t bytes)
{
    size_t payload = bytes < link->left ? bytes : link->left;
    uint64_t frames;

    link->left -= payload;
    if (payload > 0 && link->left > 0 && link->grant != NULL)
        pki_tcp_grant_part(link);
    link->head_have += bytes - payload;
    if (payload > 0 && link->left == 0 && !end_chunk(link))
        return false;
    if (link->head_have < sizeof link->head)
        return true;
    link->head_have = 0;
    link->misses -= link->misses > 0;
    return pki_tcp_get_data_ack(link->head, &frames) ? pki_tcp_data_ack_arrived(link, frames) : begin_chunk(link);
}

/* Without an event. */
static bool is_looked_at(const struct pki_tcp_link *link)
{
    return link->ep->iface->polls && pki_tcp_is_alone(link);
}

/* *wanted: 0 where less says nothing about the connection. */
static ssize_t receive(struct pki_tcp_link *link, struct pki_tcp_spec_read *spec, size_t *wanted)
{
    *spec = pki_tcp_spec_read(link);
    *wanted = link->spilled > 0 ? 0 : link->left + sizeof link->head - link->head_have + spec->bytes;
    return spec->bytes > 0 ? pki_tcp_spec_read_receive(link, spec) : pki_tcp_chunk_receive(link, 0);
}

/* That was all for now: the next bytes are an event, or looked for. */
static bool is_dry(const struct pki_tcp_link *link, size_t got, size_t wanted)
{
    return link->left == 0 && link->spilled == 0 && !link->hangup && (got < wanted || !pki_list_empty(&link->busy_polled));
}

void pki_tcp_data_read(struct pki_tcp_link *link)
{
    size_t budget = pki_tcp_round_bytes(link);

    while (link->state == PKI_TCP_UP && link->readable) {
        struct pki_tcp_spec_read spec;
        size_t wanted;
        ssize_t n;

        if (link->left > 0 && link->grant == NULL && link->unexpected == NULL && !pki_tcp_unexpected_place(link)) {
            if (link->state == PKI_TCP_UP)
                pki_tcp_link_ready(link);
            return;
        }
        if (link->grant != NULL && pki_tcp_offload(link, false, link->left, link->grant->bytes)) { /* what comes before its CTS may move yet */
            link->readable = false;
            return;
        }
        n = receive(link, &spec, &wanted);
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
        if (is_looked_at(link))
            pki_tcp_found(link);
        if (!(spec.bytes > 0 ? pki_tcp_spec_read_advance(link, &spec, (size_t)n) : pki_tcp_advance_in(link, (size_t)n)))
            return;
        if (is_dry(link, (size_t)n, wanted)) {
            link->readable = false;
            return;
        }
        if ((size_t)n >= budget || (link->grant != NULL && link->grant->answers)) { /* what has come may be worked on while more comes */
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
    if (job->failed) {
        pki_tcp_link_broken(link, job->error);
        return false;
    }
    if (job->out)
        link->writable = link->writable || !job->blocked;
    else
        link->readable = link->readable || !job->blocked;
    pki_tcp_link_ready(link);
    return true;
}

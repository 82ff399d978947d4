/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of granted transfers, out and in. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

#define MOVE_MASK (PKI_TCP_MOVES - 1)
#define AT_ONCE_MAX PKI_TCP_AHEAD_MAX /* a put that is written before anything else is looked at */
#define ROUND_BYTES (4u << 20) /* of one link in one round of progress, so that none starves the others */

/* And where threads wait for the next one. */
static size_t round_bytes(const struct pki_tcp_link *link)
{
    return link->ep->iface->threads.n > 0 ? PKI_TCP_LEND_MIN : ROUND_BYTES;
}

/* ---- Out ---- */

static struct pki_tcp_slot *slot_of(struct pki_tcp_link *link, uint64_t number)
{
    return &link->slots[number % link->ep->params.window];
}

/* The link with the least on its way, of those that stand and have a free slot. */
static struct pki_tcp_link *least_loaded(struct pki_tcp_ep *ep)
{
    struct pki_tcp_link *best = NULL;

    for (uint32_t i = 1; i < ep->nlinks; i++) {
        struct pki_tcp_link *link = &ep->links[i];

        if (link->state == PKI_TCP_UP && link->end - link->acked < ep->params.window &&
            (best == NULL || link->outstanding < best->outstanding))
            best = link;
    }
    return best;
}

static void take_slot(struct pki_tcp_link *link, struct pki_tcp_move *move)
{
    const struct pki_put *put = move->put;
    struct pki_tcp_slot *slot = slot_of(link, link->end++);
    size_t left = put->bytes - move->issued, max = link->ep->params.chunk_bytes;
    struct pki_tcp_chunk chunk = { .flags = put->about.flags, .index = put->about.index, .sig = put->about.sig,
                                   .op = put->about.op, .offset = put->remote + move->issued,
                                   .bytes = (uint32_t)(left < max ? left : max),
                                   .ahead = put->ahead ? (uint32_t)put->about.bytes : 0 };

    if ((put->about.flags & PKI_MSG_FLAG_STAGED) != 0) /* to a place that the peer gave a number */
        chunk = (struct pki_tcp_chunk){ .flags = PKI_MSG_FLAG_STAGED, .op = put->remote, .offset = move->issued,
                                        .bytes = chunk.bytes };

    slot->move = move;
    slot->src = (const char *)put->src + move->issued;
    slot->bytes = chunk.bytes;
    pki_tcp_put_chunk(slot->head, &chunk);
    move->issued += chunk.bytes;
    link->outstanding += chunk.bytes;
    if (link->writable)
        pki_tcp_link_ready(link);
}

void pki_tcp_data_deal(struct pki_tcp_ep *ep)
{
    while (ep->move_next != ep->move_end) {
        struct pki_tcp_move *move = &ep->moves[ep->move_next & MOVE_MASK];
        struct pki_tcp_link *link = least_loaded(ep);

        if (link == NULL)
            return;
        take_slot(link, move);
        if (move->issued == move->put->bytes)
            ep->move_next++;
    }
}

/* Now, not in the next round of progress: until then a waiting rank looks for what has come, in vain. */
static void write_at_once(struct pki_tcp_ep *ep)
{
    for (uint32_t i = 1; i < ep->nlinks; i++)
        if (ep->links[i].state == PKI_TCP_UP && ep->links[i].writable && !ep->links[i].out.lent)
            pki_tcp_data_write(&ep->links[i]);
}

pk_result_t pki_tcp_put(struct pki_put *put)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(put->ep);

    if (ep->base.dead || ep->iface->revoked)
        return PK_ERR_PEER;
    if (ep->move_end - ep->move_head == PKI_TCP_MOVES)
        return PK_IN_PROGRESS;
    ep->moves[ep->move_end++ & MOVE_MASK] = (struct pki_tcp_move){ .put = put };
    ep->iface->busy++;
    pki_tcp_data_deal(ep);
    if (put->bytes <= AT_ONCE_MAX)
        write_at_once(ep);
    return PK_OK;
}

/* Puts end in the order in which they were given. */
static void end_moves(struct pki_tcp_ep *ep)
{
    while (ep->move_head != ep->move_end) {
        struct pki_tcp_move *move = &ep->moves[ep->move_head & MOVE_MASK];

        if (move->acked < move->put->bytes)
            return;
        move->put->result = PK_OK;
        pki_list_push(&ep->iface->base.done, &move->put->node);
        ep->move_head++;
        ep->iface->busy--;
    }
}

void pki_tcp_data_acked(struct pki_tcp_link *link, uint64_t frames)
{
    if (frames <= link->acked)
        return;
    while (link->acked < frames) {
        struct pki_tcp_slot *slot = slot_of(link, link->acked++);

        slot->move->acked += slot->bytes;
        link->outstanding -= slot->bytes;
    }
    if (link->next < link->acked) /* the connection broke, and the news came on the lane before it stood again */
        link->next = link->acked;
    end_moves(link->ep);
    pki_tcp_data_deal(link->ep);
}

void pki_tcp_data_lost(struct pki_tcp_ep *ep)
{
    for (; ep->move_head != ep->move_end; ep->move_head++) {
        struct pki_put *put = ep->moves[ep->move_head & MOVE_MASK].put;

        put->result = PK_ERR_PEER;
        pki_list_push(&ep->iface->base.done, &put->node);
        ep->iface->busy--;
    }
    ep->move_next = ep->move_end;
}

size_t pki_tcp_chunk_parts(struct pki_tcp_slot *slot, size_t written, struct iovec parts[2])
{
    size_t of_payload = written > sizeof slot->head ? written - sizeof slot->head : 0, n = 0;

    if (written < sizeof slot->head)
        parts[n++] = (struct iovec){ slot->head + written, sizeof slot->head - written };
    parts[n++] = (struct iovec){ (char *)(uintptr_t)slot->src + of_payload, slot->bytes - of_payload };
    return n;
}

/* What is left of the chunks from `next` to `end`. */
static size_t gather(struct pki_tcp_link *link, uint64_t end, struct iovec parts[4])
{
    size_t skip = link->written, n = 0;

    for (uint64_t i = link->next; i < end; i++) {
        if (i > link->next && !link->copies)
            break; /* perhaps it goes without a copy */
        n += pki_tcp_chunk_parts(slot_of(link, i), skip, parts + n);
        skip = 0;
    }
    return n;
}

static void advance_out(struct pki_tcp_link *link, size_t bytes)
{
    link->written += bytes;
    while (link->next < link->end) {
        size_t whole = PKI_TCP_DATA_HEAD_BYTES + slot_of(link, link->next)->bytes;

        if (link->written < whole)
            return;
        link->written -= whole;
        link->next++;
        link->sent = link->next > link->sent ? link->next : link->sent;
    }
}

void pki_tcp_chunk_sent(struct pki_tcp_link *link)
{
    advance_out(link, 0);
}

/*
 * It may be faster than the thread that has just sent the last of them. Or they went over an older connection: then the peer has refused this
 * one, which was told that they were missing, or is about to.
 */
bool pki_tcp_data_was_sent(struct pki_tcp_link *link, uint64_t frames)
{
    if (frames <= link->next || link->state != PKI_TCP_UP)
        return true;
    pki_tcp_settle_out(link);
    if (frames > link->sent)
        return false;
    if (frames > link->next)
        pki_tcp_link_broken(link, 0);
    return true;
}

/* Of the chunk `next`, or of that and others before `end`. */
static ssize_t write_some(struct pki_tcp_link *link, uint64_t end)
{
    struct iovec parts[4];
    struct msghdr message = { .msg_iov = parts };

    if (pki_tcp_goes_spliced(link))
        return pki_tcp_splice(link);
    message.msg_iovlen = gather(link, end, parts);
    return sendmsg(link->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t pki_tcp_chunk_send(struct pki_tcp_link *link)
{
    ssize_t n = write_some(link, link->next + 1);

    link->written += n > 0 ? (size_t)n : 0;
    return n;
}

/* What is left of the chunk `next`. */
static size_t unwritten(struct pki_tcp_link *link)
{
    return PKI_TCP_DATA_HEAD_BYTES + slot_of(link, link->next)->bytes - link->written;
}

void pki_tcp_data_write(struct pki_tcp_link *link)
{
    size_t budget = round_bytes(link);

    while (link->state == PKI_TCP_UP && link->writable && link->next < link->end) {
        uint64_t end = link->next + 2 < link->end ? link->next + 2 : link->end;
        ssize_t n;

        if (pki_tcp_lend(link, true, unwritten(link), slot_of(link, link->next)->move->put->bytes)) {
            link->writable = false;
            return;
        }
        n = write_some(link, end);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            pki_tcp_stand_still(link);
            return;
        }
        if (n < 0) {
            pki_tcp_link_broken(link, errno);
            return;
        }
        advance_out(link, (size_t)n);
        if ((size_t)n >= budget) {
            if (link->next < link->end)
                pki_tcp_link_ready(link);
            return;
        }
        budget -= (size_t)n;
    }
}

/* ---- In ---- */

void pki_tcp_data_rewind(struct pki_tcp_link *link)
{
    pki_tcp_recall(link);
    pki_tcp_pipe_close(link);
    link->next = link->acked;
    link->written = 0;
    link->head_have = 0;
    link->left = 0;
    if (link->grant != NULL)
        link->grant->fillers--;
    link->grant = NULL;
    pki_tcp_early_drop(link);
}

static bool begin_chunk(struct pki_tcp_link *link)
{
    struct pki_tcp_ep *ep = link->ep;

    bool right = pki_tcp_get_chunk(link->head, &link->chunk);

    link->head_have = 0;
    if (right)
        link->grant = pki_tcp_grant_find(ep, &link->chunk);
    if (link->grant == NULL && (!right || !pki_tcp_early_may(ep, &link->chunk))) {
        pki_tcp_lost(ep, "sent a chunk of no granted transfer (operation %llu, bytes %llu to %llu)",
                     (unsigned long long)link->chunk.op, (unsigned long long)link->chunk.offset,
                     (unsigned long long)link->chunk.offset + link->chunk.bytes);
        return false;
    }
    if (link->grant != NULL)
        link->grant->fillers++;
    link->left = link->chunk.bytes;
    link->looks = 0;
    return true;
}

/* Within a machine its pages may have been the sender's own, who has given it up since: whatever they held when they were read. The socket's
 * error would not tell: a thread that writes on the same connection may have taken it away, and what had come can still be read. */
static bool was_given_up(const struct pki_tcp_link *link)
{
    struct pollfd p = { .fd = link->watch.fd };
    int n;

    if (!link->ep->iface->one_machine || link->chunk.bytes < PKI_TCP_SPLICE_MIN)
        return false;
    do
        n = poll(&p, 1, 0); /* asked for nothing, it tells of an error and of the end of both directions */
    while (n < 0 && errno == EINTR);
    return n != 0;
}

static bool end_chunk(struct pki_tcp_link *link)
{
    struct pki_tcp_grant *grant = link->grant;

    if (was_given_up(link)) {
        pki_tcp_link_broken(link, ECONNRESET);
        return false;
    }
    link->received++;
    link->ep->acks_due = true;
    if (grant == NULL) {
        pki_tcp_early_ended(link);
        return true;
    }
    grant->fillers--;
    link->grant = NULL;
    if (pki_tcp_grant_filled(link->ep, grant, &link->chunk))
        return true;
    pki_tcp_lost(link->ep, "sent bytes %llu to %llu of operation %llu twice", (unsigned long long)link->chunk.offset,
                 (unsigned long long)link->chunk.offset + link->chunk.bytes, (unsigned long long)link->chunk.op);
    return false;
}

ssize_t pki_tcp_chunk_receive(struct pki_tcp_link *link, size_t done)
{
    size_t left = link->left - done;
    struct iovec parts[2];
    int n = 0;

    if (left > 0) {
        char *begin = link->grant != NULL ? link->grant->addr + link->chunk.offset : link->early->payload;

        parts[n++] = (struct iovec){ begin + (link->chunk.bytes - left), left };
    }
    parts[n++] = (struct iovec){ link->head + link->head_have, sizeof link->head - link->head_have };
    return readv(link->watch.fd, parts, n);
}

static bool advance_in(struct pki_tcp_link *link, size_t bytes)
{
    size_t payload = bytes < link->left ? bytes : link->left;

    link->left -= payload;
    link->head_have += bytes - payload;
    if (payload > 0 && link->left == 0 && !end_chunk(link))
        return false;
    return link->head_have < sizeof link->head || begin_chunk(link);
}

/* Without an event: the one connection for chunks, while there are no threads, whose next bytes are events. */
static bool is_looked_at(const struct pki_tcp_link *link)
{
    return link->ep->iface->looks && link->ep->nlinks == 2 && link->ep->iface->threads.max == 0;
}

void pki_tcp_data_read(struct pki_tcp_link *link)
{
    size_t budget = round_bytes(link);

    while (link->state == PKI_TCP_UP && link->readable) {
        size_t wanted;
        ssize_t n;

        if (link->left > 0 && link->grant == NULL && link->early == NULL && !pki_tcp_early_place(link)) {
            if (link->state == PKI_TCP_UP)
                pki_tcp_link_ready(link);
            return;
        }
        if (link->grant != NULL && pki_tcp_lend(link, false, link->left, link->grant->bytes)) { /* what comes ahead of its grant may move yet */
            link->readable = false;
            return;
        }
        wanted = link->left + sizeof link->head - link->head_have;
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
        if (is_looked_at(link))
            pki_tcp_found(link);
        if (!advance_in(link, (size_t)n))
            return;
        if ((size_t)n < wanted && link->left == 0 && !link->hangup) { /* that was all: the next bytes are an event, or found */
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
    if (!job->out && !advance_in(link, job->moved))
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

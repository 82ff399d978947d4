/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of granted transfers, out. */
#include <errno.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

#define AT_ONCE_MAX PKI_TCP_EAGER_PUT_MAX /* a put that is written before anything else is looked at */

static struct pki_tcp_move *move_at(struct pki_list *node)
{
    return pki_container_of(node, struct pki_tcp_move, node);
}

void pki_tcp_moves_open(struct pki_tcp_ep *ep)
{
    pki_list_init(&ep->puts);
    pki_list_init(&ep->free_moves);
    ep->unstriped = &ep->puts;
    for (uint32_t i = 0; i < PKI_TCP_MOVES; i++)
        pki_list_push(&ep->free_moves, &ep->moves[i].node);
}

static struct pki_tcp_slot *slot_of(struct pki_tcp_link *link, uint64_t number)
{
    return &link->slots[number % link->ep->params.window];
}

static bool is_free(const struct pki_tcp_link *link)
{
    return link->state == PKI_TCP_UP && link->end - link->acked < link->ep->params.window;
}

/* The link with the least on its way, of those that stand and have a free slot. */
static struct pki_tcp_link *least_loaded(struct pki_tcp_ep *ep)
{
    struct pki_tcp_link *best = NULL;

    for (uint32_t i = 1; i <= ep->params.sockets; i++) {
        struct pki_tcp_link *link = &ep->links[i];

        if (is_free(link) &&
            (best == NULL || link->outstanding < best->outstanding))
            best = link;
    }
    return best;
}

/* What is put from a place need not wait on the first connection. */
static struct pki_tcp_link *link_for(struct pki_tcp_ep *ep, const struct pki_tcp_move *move)
{
    return move->place < PKI_TCP_PLACES && is_free(&ep->links[1]) ? &ep->links[1] : least_loaded(ep);
}

static void take_slot(struct pki_tcp_link *link, struct pki_tcp_move *move)
{
    const struct pki_put *put = move->put;
    struct pki_tcp_slot *slot = slot_of(link, link->end++);
    size_t left = put->bytes - move->issued, max = link->ep->params.chunk_bytes;
    struct pki_tcp_chunk chunk = { .flags = put->about.flags, .index = put->about.index, .sig = put->about.sig,
                                   .op = put->about.op, .offset = put->remote + move->issued,
                                   .bytes = (uint32_t)(left < max ? left : max),
                                   .eager_put = put->eager_put ? (uint32_t)put->about.bytes : 0 };

    if ((put->about.flags & PKI_MSG_FLAG_BOUNCE) != 0) /* to a place that the peer gave a number */
        chunk = (struct pki_tcp_chunk){ .flags = PKI_MSG_FLAG_BOUNCE, .op = put->remote, .offset = move->issued,
                                        .bytes = chunk.bytes };
    chunk.reported = link->received;
    slot->move = move;
    slot->src = (const char *)put->src + move->issued;
    slot->bytes = chunk.bytes;
    if (move->issued == 0)
        move->copied = pki_tcp_is_copied(link->ep, move);
    slot->copied = move->copied;
    slot->place = move->place;
    slot->has_copy = false;
    slot->copy_end = 0;
    if (chunk.eager_put == chunk.bytes)
        pki_tcp_retransmit(link, slot);
    chunk.has_copy = slot->has_copy;
    pki_tcp_put_chunk(slot->head, &chunk);
    move->issued += chunk.bytes;
    link->outstanding += chunk.bytes;
    if (link->writable)
        pki_tcp_link_ready(link);
}

void pki_tcp_data_stripe(struct pki_tcp_ep *ep)
{
    while (ep->unstriped != &ep->puts) {
        struct pki_tcp_move *move = move_at(ep->unstriped);
        struct pki_tcp_link *link = link_for(ep, move);

        if (link == NULL)
            return;
        take_slot(link, move);
        if (move->issued == move->put->bytes)
            ep->unstriped = move->node.next;
    }
}

/* Now, not in the next round of progress: until then a waiting rank looks for what has come, in vain. Not of several where chunks come, too: in between it reads. */
static void write_at_once(struct pki_tcp_ep *ep)
{
    for (uint32_t i = 1; i <= ep->params.sockets; i++)
        if (ep->links[i].state == PKI_TCP_UP && ep->links[i].writable && !ep->links[i].out.offloaded)
            pki_tcp_data_write(&ep->links[i]);
}

pk_result_t pki_tcp_put(struct pki_put *put)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(put->ep);
    unsigned place = pki_tcp_place_of(ep, put->src);
    struct pki_list *node;

    if (ep->base.dead || ep->iface->revoked)
        return PK_ERR_PEER;
    node = pki_list_pop(&ep->free_moves);
    if (node == NULL)
        return PK_IN_PROGRESS;
    *move_at(node) = (struct pki_tcp_move){ .put = put, .place = place };
    pki_list_push(&ep->puts, node);
    if (ep->unstriped == &ep->puts)
        ep->unstriped = node;
    ep->iface->busy++;
    if (place < PKI_TCP_PLACES)
        ep->retransmit.places[place].busy = true;
    pki_tcp_data_stripe(ep);
    if (put->bytes <= AT_ONCE_MAX && (place < PKI_TCP_PLACES || ep->puts.next == node || !pki_tcp_exchanges(ep)))
        write_at_once(ep);
    return PK_OK;
}

static void end_move(struct pki_tcp_ep *ep, struct pki_tcp_move *move, pk_result_t result)
{
    if (move->tuner != NULL && result == PK_OK)
        pki_tcp_tuner_ended(ep, move);
    move->put->result = result;
    pki_list_push(&ep->iface->base.done, &move->put->node);
    pki_list_remove(&move->node);
    pki_list_push(ep->free_moves.next, &move->node); /* to be taken next: it is in a cache */
    ep->iface->busy--;
}

/* An earlier put of the same transfer has not ended. */
static bool waits(struct pki_tcp_ep *ep, const struct pki_tcp_move *move)
{
    for (struct pki_list *n = ep->puts.next; n != &move->node; n = n->next)
        if (move_at(n)->put->owner == move->put->owner)
            return true;
    return false;
}

/* Those of one transfer in order, others not: the peer reads one that it has not asked for when it comes to it, and may leave its calls before. */
static void end_moves(struct pki_tcp_ep *ep)
{
    for (struct pki_list *n = ep->puts.next, *next; n != ep->unstriped; n = next) {
        struct pki_tcp_move *move = move_at(n);

        next = n->next;
        if (move->acked == move->put->bytes && !waits(ep, move))
            end_move(ep, move, PK_OK);
    }
}

void pki_tcp_data_acked(struct pki_tcp_link *link, uint64_t frames)
{
    if (frames <= link->acked)
        return;
    while (link->acked < frames) {
        struct pki_tcp_slot *slot = slot_of(link, link->acked++);

        pki_tcp_retransmit_ends(link->ep, slot);
        if (slot->move == NULL)
            continue;
        slot->move->acked += slot->bytes;
        link->outstanding -= slot->bytes;
    }
    if (link->next < link->acked) /* the connection broke, and the news came on the control channel before it stood again */
        link->next = link->acked;
    end_moves(link->ep);
    pki_tcp_data_stripe(link->ep);
}

void pki_tcp_data_lost(struct pki_tcp_ep *ep)
{
    ep->unstriped = &ep->puts;
    while (!pki_list_empty(&ep->puts))
        end_move(ep, move_at(ep->puts.next), PK_ERR_PEER);
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
        struct pki_tcp_slot *slot = slot_of(link, link->next);
        size_t whole = PKI_TCP_DATA_HEAD_BYTES + slot->bytes;

        if (link->written < whole)
            return;
        link->written -= whole;
        link->next++;
        link->sent = link->next > link->sent ? link->next : link->sent;
        if (slot->has_copy && slot->move != NULL && !link->ep->retransmit.never) {
            pki_tcp_copy_released(link->ep, slot);
            end_moves(link->ep);
        }
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
    return sendmsg(link->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t pki_tcp_chunk_send(struct pki_tcp_link *link)
{
    ssize_t n = write_some(link, link->next + 1);

    link->written += n > 0 ? (size_t)n : 0;
    return n;
}

bool pki_tcp_data_is_zero_copy(const struct pki_tcp_link *link)
{
    for (uint64_t i = link->acked; i < link->end; i++)
        if (slot_of((struct pki_tcp_link *)(uintptr_t)link, i)->move != NULL)
            return true;
    return false;
}

/* What is left of the chunk `next`. */
static size_t unwritten(struct pki_tcp_link *link)
{
    return PKI_TCP_DATA_HEAD_BYTES + slot_of(link, link->next)->bytes - link->written;
}

static size_t transfer_bytes(const struct pki_tcp_slot *slot)
{
    return slot->move != NULL ? slot->move->put->bytes : slot->bytes;
}

/* The heads that go now say what has come until now. Returns what the peer knows of it then. */
static uint64_t tell(struct pki_tcp_link *link, uint64_t end)
{
    if (link->written > 0 || link->piped > 0 || link->ep->iface->threads.max > 0)
        return link->reported;
    for (uint64_t i = link->next; i < end; i++)
        pki_tcp_put_chunk_reported(slot_of(link, i)->head, link->received);
    return link->received;
}

void pki_tcp_data_write(struct pki_tcp_link *link)
{
    size_t budget = pki_tcp_round_bytes(link);

    while (link->state == PKI_TCP_UP && link->writable && (link->next < link->end || link->ack_left > 0)) {
        uint64_t end = link->next + 2 < link->end ? link->next + 2 : link->end;
        bool says = link->ack_left > 0; /* before anything else */
        uint64_t tells = says ? link->reported : tell(link, end);
        ssize_t n;

        if (!says && pki_tcp_offload(link, true, unwritten(link), transfer_bytes(slot_of(link, link->next)))) {
            link->writable = false;
            return;
        }
        n = says ? pki_tcp_data_ack_send(link) : write_some(link, end);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            pki_tcp_busy_poll_start(link);
            return;
        }
        if (n < 0) {
            pki_tcp_link_broken(link, errno);
            return;
        }
        if (says)
            continue;
        if (link->written + (size_t)n >= PKI_TCP_DATA_HEAD_BYTES)
            link->reported = tells;
        advance_out(link, (size_t)n);
        if ((size_t)n >= budget) {
            if (link->next < link->end)
                pki_tcp_link_ready(link);
            return;
        }
        budget -= (size_t)n;
    }
}

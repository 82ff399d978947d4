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
    slot->move = move;
    slot->src = (const char *)put->src + move->issued;
    slot->bytes = chunk.bytes;
    slot->copy_end = 0;
    if (chunk.eager_put == chunk.bytes)
        pki_tcp_copy_keep(link, slot);
    pki_tcp_put_chunk(slot->head, &chunk);
    move->issued += chunk.bytes;
    link->outstanding += chunk.bytes;
    if (link->writable)
        pki_tcp_link_ready(link);
}

/* Hand chunks of the puts that wait to links with free slots. */
static void stripe(struct pki_tcp_ep *ep)
{
    while (ep->unstriped != &ep->puts) {
        struct pki_tcp_move *move = move_at(ep->unstriped);
        struct pki_tcp_link *link = least_loaded(ep);

        if (link == NULL)
            return;
        take_slot(link, move);
        if (move->issued == move->put->bytes)
            ep->unstriped = move->node.next;
    }
}

/* Now, not in the next round of progress: until then a waiting rank looks for what has come, in vain. */
static void write_at_once(struct pki_tcp_ep *ep)
{
    for (uint32_t i = 1; i <= ep->params.sockets; i++)
        if (ep->links[i].state == PKI_TCP_UP && ep->links[i].writable && !ep->links[i].out.offloaded)
            pki_tcp_data_write(&ep->links[i]);
}

pk_result_t pki_tcp_put(struct pki_put *put)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(put->ep);
    struct pki_list *node;

    if (ep->base.dead || ep->iface->revoked)
        return PK_ERR_PEER;
    node = pki_list_pop(&ep->free_moves);
    if (node == NULL)
        return PK_IN_PROGRESS;
    *move_at(node) = (struct pki_tcp_move){ .put = put };
    pki_list_push(&ep->puts, node);
    if (ep->unstriped == &ep->puts)
        ep->unstriped = node;
    ep->iface->busy++;
    stripe(ep);
    if (put->bytes <= AT_ONCE_MAX)
        write_at_once(ep);
    return PK_OK;
}

static void end_move(struct pki_tcp_ep *ep, struct pki_tcp_move *move, pk_result_t result)
{
    move->put->result = result;
    pki_event_push(&ep->iface->base, &move->put->event, PKI_EVENT_PUT);
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

/* Those of one transfer in order, others not: the peer reads one that it has not asked for when it comes to it, and may leave its
 * calls before. */
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

        pki_tcp_copy_ends(link->ep, slot);
        if (slot->move == NULL)
            continue;
        slot->move->acked += slot->bytes;
        link->outstanding -= slot->bytes;
    }
    if (link->next < link->acked) /* the connection broke, and the news came on the control channel before it stood again */
        link->next = link->acked;
    end_moves(link->ep);
    stripe(link->ep);
}

/* Every put ends with PK_ERR_PEER. */
static void end_all(struct pki_tcp_ep *ep)
{
    ep->unstriped = &ep->puts;
    while (!pki_list_empty(&ep->puts))
        end_move(ep, move_at(ep->puts.next), PK_ERR_PEER);
}

/* Head and payload behind `written` of the chunk; returns how many parts. */
static size_t chunk_parts(struct pki_tcp_slot *slot, size_t written, struct iovec parts[2])
{
    size_t of_payload = written > sizeof slot->head ? written - sizeof slot->head : 0, n = 0;

    if (written < sizeof slot->head)
        parts[n++] = (struct iovec){ slot->head + written, sizeof slot->head - written };
    parts[n++] = (struct iovec){ (char *)(uintptr_t)slot->src + of_payload, slot->bytes - of_payload };
    return n;
}

static void advance_out(struct pki_tcp_link *link, size_t bytes)
{
    struct pki_tcp_slot *slot = slot_of(link, link->next);

    link->written += bytes;
    if (link->next == link->end || link->written < PKI_TCP_DATA_HEAD_BYTES + slot->bytes)
        return;
    link->written = 0;
    link->next++;
    link->sent = link->next > link->sent ? link->next : link->sent;
    if (slot->copy_end > 0 && slot->move != NULL && !link->ep->retransmit.never) {
        pki_tcp_copy_released(link->ep, slot);
        end_moves(link->ep);
    }
}

void pki_tcp_chunk_sent(struct pki_tcp_link *link)
{
    advance_out(link, 0);
}

/* What is left of the chunk `next`. */
static ssize_t write_some(struct pki_tcp_link *link)
{
    struct iovec parts[2];
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = chunk_parts(slot_of(link, link->next), link->written, parts) };

    return sendmsg(link->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t pki_tcp_chunk_send(struct pki_tcp_link *link)
{
    ssize_t n = write_some(link);

    link->written += n > 0 ? (size_t)n : 0;
    return n;
}

static size_t unwritten(struct pki_tcp_link *link)
{
    return PKI_TCP_DATA_HEAD_BYTES + slot_of(link, link->next)->bytes - link->written;
}

static size_t transfer_bytes(const struct pki_tcp_slot *slot)
{
    return slot->move != NULL ? slot->move->put->bytes : slot->bytes;
}

void pki_tcp_data_write(struct pki_tcp_link *link)
{
    size_t budget = pki_tcp_round_bytes(link);

    while (link->state == PKI_TCP_UP && link->writable && link->next < link->end) {
        ssize_t n;

        if (pki_tcp_offload(link, true, unwritten(link), transfer_bytes(slot_of(link, link->next)))) {
            link->writable = false;
            return;
        }
        n = write_some(link);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            link->writable = false;
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

void pki_tcp_data_give_up(struct pki_tcp_ep *ep)
{
    pki_tcp_links_over(ep, 1);
    end_all(ep);
    pki_tcp_grants_forget(ep);
}

/* ---- As the user of a connection ---- */

static void readable(struct pki_tcp_link *link)
{
    if (!link->in.offloaded)
        pki_tcp_data_read(link);
}

static void writable(struct pki_tcp_link *link)
{
    struct pki_tcp_ctrl *ctrl = &link->ep->ctrl;

    if (ctrl->acks_due) /* before the long write: the peer waits for them */
        pki_tcp_ctrl_flush(ctrl);
    if (link->writable && !link->out.offloaded)
        pki_tcp_data_write(link);
}

/*
 * The peer may be faster than the thread that has just sent the last of them. Or they went over an older connection: then the
 * peer has refused this one, which was told that they were missing, or is about to.
 */
static bool was_sent(struct pki_tcp_link *link, uint64_t frames)
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

static bool acked(struct pki_tcp_link *link, uint64_t frames)
{
    if (!was_sent(link, frames))
        return false;
    pki_tcp_data_acked(link, frames);
    return true;
}

/* Both ways: a new connection begins with what the peer has not had. */
static void rewind_both(struct pki_tcp_link *link)
{
    pki_tcp_recall(link);
    link->next = link->acked;
    link->written = 0;
    pki_tcp_data_forget(link);
}

static void broken(struct pki_tcp_link *link)
{
    rewind_both(link);
    link->ep->retransmit.never |= link->index == 1;
}

static void reset(struct pki_tcp_link *link, uint64_t received)
{
    pki_tcp_data_acked(link, received);
    rewind_both(link);
    stripe(link->ep);
}

static void lost(struct pki_tcp_link *link)
{
    end_all(link->ep);
}

static bool has_news(const struct pki_tcp_link *link)
{
    (void)link;
    return false;
}

const struct pki_tcp_user pki_tcp_data_user = {
    .readable = readable,
    .writable = writable,
    .acked = acked,
    .broken = broken,
    .reset = reset,
    .lost = lost,
    .has_news = has_news,
};

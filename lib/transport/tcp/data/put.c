/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of granted transfers, out. */
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

#define AT_ONCE_MAX PKI_TCP_EAGER_PUT_MAX /* a put that is written before anything else is looked at */

static struct pki_tcp_move *move_at(struct pki_list *node)
{
    return pki_container_of(node, struct pki_tcp_move, node);
}

bool pki_tcp_puts_open(struct pki_tcp_ep *ep)
{
    struct pki_tcp_puts *puts = &ep->puts;

    puts->moves = calloc(PKI_TCP_MOVES, sizeof *puts->moves);
    puts->slots = calloc((size_t)ep->params.sockets * ep->params.window, sizeof *puts->slots);
    puts->halves = calloc(ep->params.sockets, sizeof *puts->halves);
    if (puts->moves == NULL || puts->slots == NULL || puts->halves == NULL)
        return false;
    pki_list_init(&puts->list);
    pki_list_init(&puts->free);
    puts->unstriped = &puts->list;
    for (uint32_t i = 0; i < PKI_TCP_MOVES; i++)
        pki_list_push(&puts->free, &puts->moves[i].node);
    return true;
}

void pki_tcp_puts_close(struct pki_tcp_ep *ep)
{
    free(ep->puts.moves);
    free(ep->puts.slots);
    free(ep->puts.halves);
    ep->puts = (struct pki_tcp_puts){ 0 };
}

static struct pki_tcp_slot *slot_of(struct pki_tcp_link *link, uint64_t number)
{
    return &link->out->slots[number % link->ep->params.window];
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

        if (is_free(link) && (best == NULL || link->out->outstanding < best->out->outstanding))
            best = link;
    }
    return best;
}

static void take_slot(struct pki_tcp_link *link, struct pki_tcp_move *move)
{
    const struct pki_put *put = move->put;
    struct pki_tcp_slot *slot = slot_of(link, link->end++);
    size_t left = put->bytes - move->issued, max = link->ep->params.chunk_bytes;
    struct pki_tcp_chunk chunk = { .flags = put->about.flags,
                                   .index = put->about.index,
                                   .sig = put->about.sig,
                                   .op = put->about.op,
                                   .offset = put->remote + move->issued,
                                   .bytes = (uint32_t)(left < max ? left : max),
                                   .eager_put = put->eager_put ? (uint32_t)put->about.bytes : 0 };

    if ((put->about.flags & PKI_MSG_FLAG_BOUNCE) != 0) /* to a place that the peer gave a number */
        chunk = (struct pki_tcp_chunk){
            .flags = PKI_MSG_FLAG_BOUNCE, .op = put->remote, .offset = move->issued, .bytes = chunk.bytes
        };
    slot->move = move;
    slot->src = (const char *)put->src + move->issued;
    slot->bytes = chunk.bytes;
    slot->copy_end = 0;
    if (chunk.eager_put == chunk.bytes)
        pki_tcp_copy_keep(link, slot);
    pki_tcp_put_chunk(slot->head, &chunk);
    move->issued += chunk.bytes;
    link->out->outstanding += chunk.bytes;
    if (link->writable)
        pki_tcp_link_ready(link);
}

/* Hand chunks of the puts that wait to links with free slots. */
static void stripe(struct pki_tcp_ep *ep)
{
    while (ep->puts.unstriped != &ep->puts.list) {
        struct pki_tcp_move *move = move_at(ep->puts.unstriped);
        struct pki_tcp_link *link = least_loaded(ep);

        if (link == NULL)
            return;
        take_slot(link, move);
        if (move->issued == move->put->bytes)
            ep->puts.unstriped = move->node.next;
    }
}

/* Now, not in the next round of progress: until then a waiting rank looks for what has come, in vain. */
static void write_at_once(struct pki_tcp_ep *ep)
{
    for (uint32_t i = 1; i <= ep->params.sockets; i++)
        if (ep->links[i].state == PKI_TCP_UP && ep->links[i].writable && !pki_tcp_job_is_offloaded(&ep->links[i].out->job))
            pki_tcp_data_write(&ep->links[i]);
}

pk_result_t pki_tcp_put(struct pki_put *put)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(put->ep);
    struct pki_list *node;

    if (ep->base.state == PKI_EP_DEAD || ep->iface->revoked)
        return PK_ERR_PEER;
    node = pki_list_pop(&ep->puts.free);
    if (node == NULL)
        return PK_IN_PROGRESS;
    *move_at(node) = (struct pki_tcp_move){ .put = put };
    pki_list_push(&ep->puts.list, node);
    if (ep->puts.unstriped == &ep->puts.list)
        ep->puts.unstriped = node;
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
    pki_list_push(ep->puts.free.next, &move->node); /* to be taken next: it is in a cache */
    ep->iface->busy--;
}

/* An earlier put of the same transfer has not ended. */
static bool waits(struct pki_tcp_ep *ep, const struct pki_tcp_move *move)
{
    for (struct pki_list *n = ep->puts.list.next; n != &move->node; n = n->next)
        if (move_at(n)->put->owner == move->put->owner)
            return true;
    return false;
}

/* Those of one transfer in order, others not: the peer reads one that it has not asked for when it comes to it, and may leave its
 * calls before. */
static void end_moves(struct pki_tcp_ep *ep)
{
    for (struct pki_list *n = ep->puts.list.next, *next; n != ep->puts.unstriped; n = next) {
        struct pki_tcp_move *move = move_at(n);

        next = n->next;
        if (move->acked == move->put->bytes && !waits(ep, move))
            end_move(ep, move, PK_OK);
    }
}

void pki_tcp_data_acked(struct pki_tcp_link *link, uint64_t frames)
{
    struct pki_tcp_out *out = link->out;

    if (frames <= link->acked)
        return;
    while (link->acked < frames) {
        struct pki_tcp_slot *slot = slot_of(link, link->acked++);

        pki_tcp_copy_ends(link->ep, slot);
        if (slot->move == NULL)
            continue;
        slot->move->acked += slot->bytes;
        out->outstanding -= slot->bytes;
    }
    if (out->next < link->acked) /* the connection broke, and the news came on the control channel before it stood again */
        out->next = link->acked;
    end_moves(link->ep);
    stripe(link->ep);
}

/* Every put ends with PK_ERR_PEER. */
static void end_all(struct pki_tcp_ep *ep)
{
    ep->puts.unstriped = &ep->puts.list;
    while (!pki_list_empty(&ep->puts.list))
        end_move(ep, move_at(ep->puts.list.next), PK_ERR_PEER);
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
    struct pki_tcp_out *out = link->out;
    struct pki_tcp_slot *slot = slot_of(link, out->next);

    out->written += bytes;
    if (out->next == link->end || out->written < PKI_TCP_DATA_HEAD_BYTES + slot->bytes)
        return;
    out->written = 0;
    out->next++;
    out->sent = out->next > out->sent ? out->next : out->sent;
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
    struct pki_tcp_out *out = link->out;
    struct iovec parts[2];
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = chunk_parts(slot_of(link, out->next), out->written, parts) };

    return sendmsg(link->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t pki_tcp_chunk_send(struct pki_tcp_link *link)
{
    ssize_t n = write_some(link);

    link->out->written += n > 0 ? (size_t)n : 0;
    return n;
}

static size_t unwritten(struct pki_tcp_link *link)
{
    struct pki_tcp_out *out = link->out;

    return PKI_TCP_DATA_HEAD_BYTES + slot_of(link, out->next)->bytes - out->written;
}

static size_t transfer_bytes(const struct pki_tcp_slot *slot)
{
    return slot->move != NULL ? slot->move->put->bytes : slot->bytes;
}

void pki_tcp_data_write(struct pki_tcp_link *link)
{
    size_t budget = pki_tcp_round_bytes(link);

    while (link->state == PKI_TCP_UP && link->writable && link->out->next < link->end) {
        ssize_t n;

        if (pki_tcp_offload(link, true, unwritten(link), transfer_bytes(slot_of(link, link->out->next)))) {
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
            if (link->out->next < link->end)
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
    if (!pki_tcp_job_is_offloaded(&link->in->job))
        pki_tcp_data_read(link);
}

static void writable(struct pki_tcp_link *link)
{
    struct pki_tcp_ctrl *ctrl = &link->ep->ctrl;

    if (ctrl->acks.due) /* before the long write: the peer waits for them */
        pki_tcp_ctrl_flush(ctrl);
    if (link->writable && !pki_tcp_job_is_offloaded(&link->out->job))
        pki_tcp_data_write(link);
}

/*
 * The peer may be faster than the thread that has just sent the last of them. Or they went over an older connection: then the
 * peer has refused this one, which was told that they were missing, or is about to.
 */
static bool was_sent(struct pki_tcp_link *link, uint64_t frames)
{
    struct pki_tcp_out *out = link->out;

    if (frames <= out->next || link->state != PKI_TCP_UP)
        return true;
    pki_tcp_settle_out(link);
    if (frames > out->sent)
        return false;
    if (frames > out->next)
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
    link->out->next = link->acked;
    link->out->written = 0;
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

static const struct pki_tcp_user user = {
    .readable = readable,
    .writable = writable,
    .acked = acked,
    .broken = broken,
    .reset = reset,
    .lost = lost,
    .has_news = has_news,
};

void pki_tcp_data_use(struct pki_tcp_link *link)
{
    struct pki_tcp_puts *puts = &link->ep->puts;
    struct pki_tcp_halves *halves = &puts->halves[link->index - 1];

    link->user = &user;
    link->out = &halves->out;
    link->in = &halves->in;
    link->out->slots = puts->slots + (size_t)(link->index - 1) * link->ep->params.window;
}

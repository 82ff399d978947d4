/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on the lane: kept in a ring until the peer has them, read into a buffer and looked at in place. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"
#include "util/copy.h"
#include "util/hot.h"

#define TX_MASK (PKI_TCP_TX_BYTES - 1)
#define TELL_BYTES (PKI_TCP_TX_BYTES / 4) /* acknowledged after so many bytes with the next message, */
#define TELL_AT_LAST (PKI_TCP_TX_BYTES / 2) /* or else by itself: the writer never stands still for it */

/* ---- Out ---- */

static size_t tx_room(const struct pki_tcp_lane *lane)
{
    return PKI_TCP_TX_BYTES - (size_t)(lane->tx_end - lane->tx_head);
}

void pki_tcp_lane_write(struct pki_tcp_lane *lane, const void *data, size_t bytes)
{
    size_t at = lane->tx_end & TX_MASK;
    size_t first = bytes < PKI_TCP_TX_BYTES - at ? bytes : PKI_TCP_TX_BYTES - at;

    pki_copy(lane->tx + at, data, first);
    pki_copy(lane->tx, (const unsigned char *)data + first, bytes - first);
    lane->tx_end += bytes;
}

/* Up to whole lines: no frame's header goes round the end. */
static void ring_fill(struct pki_tcp_lane *lane)
{
    size_t bytes = -lane->tx_end % PKI_TCP_LINE;

    memset(lane->tx + (lane->tx_end & TX_MASK), 0, bytes);
    lane->tx_end += bytes;
}

/* The length of the frame that begins there. */
static size_t frame_bytes(const struct pki_tcp_lane *lane, uint64_t from)
{
    return pki_tcp_filled(pki_tcp_get_length(lane->tx + (from & TX_MASK)));
}

static void gather_acks(struct pki_tcp_lane *lane)
{
    struct pki_tcp_ep *ep = lane->link->ep;

    lane->acks_bytes = lane->acks_sent = 0;
    lane->acks_due = false;
    for (uint32_t i = 0; i < ep->nlinks; i++) {
        struct pki_tcp_ack ack = { .link = i, .frames = ep->links[i].received };

        if (ep->links[i].told == ack.frames)
            continue;
        pki_tcp_put_ack(lane->acks + lane->acks_bytes, &ack);
        lane->acks_bytes += PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES;
        ep->links[i].told = ack.frames;
    }
    lane->rx_untold = 0;
}

/* A half-written row of acknowledgements first, then the frames, then acknowledgements that are due. */
static int gather(struct pki_tcp_lane *lane, struct iovec parts[3])
{
    size_t at = lane->tx_sent & TX_MASK, bytes = (size_t)(lane->tx_end - lane->tx_sent);
    size_t first = bytes < PKI_TCP_TX_BYTES - at ? bytes : PKI_TCP_TX_BYTES - at;
    int n = 0;

    if (lane->acks_sent == 0 && bytes > 0) {
        parts[n++] = (struct iovec){ lane->tx + at, first };
        if (bytes > first)
            parts[n++] = (struct iovec){ lane->tx, bytes - first };
    }
    if (lane->acks_sent < lane->acks_bytes)
        parts[n++] = (struct iovec){ lane->acks + lane->acks_sent, lane->acks_bytes - lane->acks_sent };
    return n;
}

static void advance_out(struct pki_tcp_lane *lane, size_t bytes)
{
    if (lane->acks_sent == 0) {
        size_t frames = (size_t)(lane->tx_end - lane->tx_sent);

        frames = bytes < frames ? bytes : frames;
        lane->tx_sent += frames;
        bytes -= frames;
    }
    lane->acks_sent += bytes;
    if (lane->acks_sent == lane->acks_bytes)
        lane->acks_sent = lane->acks_bytes = 0;
}

/* Nothing can be written any more, but what the peer wrote before it left, or broke off, is still there. */
static void end_by_reading(struct pki_tcp_link *link)
{
    link->writable = false;
    link->readable = link->hangup = true;
    pki_tcp_link_ready(link);
}

PKI_HOT void pki_tcp_lane_flush(struct pki_tcp_lane *lane)
{
    struct pki_tcp_link *link = lane->link;

    while (link->state == PKI_TCP_UP && link->writable) {
        struct iovec parts[3];
        struct msghdr message = { .msg_iov = parts };
        ssize_t n;

        if (lane->acks_due && lane->acks_bytes == 0)
            gather_acks(lane);
        message.msg_iovlen = (size_t)gather(lane, parts);
        if (message.msg_iovlen == 0)
            return;
        n = message.msg_iovlen == 1 ? send(link->watch.fd, parts->iov_base, parts->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                                    : sendmsg(link->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            advance_out(lane, (size_t)n);
            if (lane->tx_sent == lane->tx_end && lane->acks_bytes == 0 && !lane->acks_due)
                return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            link->writable = false;
        } else if (errno != EINTR) {
            end_by_reading(link);
        }
    }
}

/* So many chunks have come on link 1, or never will. */
static bool have_come(const struct pki_tcp_ep *ep, uint64_t chunks)
{
    return ep->links[1].state == PKI_TCP_OVER || ep->links[1].received >= chunks;
}

PKI_HOT pk_result_t pki_tcp_msg(struct pki_ep *base, const struct pki_msg *msg, const void *payload)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_lane *lane = &ep->lane;
    unsigned char head[PKI_TCP_MSG_HEAD_MAX];
    struct pki_msg out = *msg;
    size_t bytes;

    if (ep->base.dead)
        return PK_ERR_PEER;
    if (msg->kind == PKI_MSG_GRANT && (msg->extra & PKI_GRANT_SILENT) != 0)
        return pki_tcp_grant(ep, msg, &out);
    if (!ep->left && tx_room(lane) < sizeof head + msg->payload + PKI_TCP_LINE)
        return PK_IN_PROGRESS;
    if (msg->kind == PKI_MSG_GRANT || msg->kind == PKI_MSG_SLOT) {
        pk_result_t result = pki_tcp_grant(ep, msg, &out);

        if (result != PK_OK)
            return result;
    }
    if (ep->left) /* nobody reads it any more; what came ahead of a grant has come */
        return PK_OK;
    if (out.kind == PKI_MSG_SIDE)
        out.offset = pki_tcp_sent_before(ep, out.extra == PKI_SIDE_LEAVES);
    bytes = pki_tcp_put_msg(head, &out);
    lane->acks_due = lane->acks_due || lane->rx_untold >= TELL_BYTES;
    pki_tcp_lane_write(lane, head, bytes);
    if (msg->payload > 0)
        pki_tcp_lane_write(lane, payload, msg->payload);
    ring_fill(lane);
    lane->link->end++;
    pki_tcp_lane_flush(lane);
    return PK_OK;
}

PKI_HOT void pki_tcp_lane_acked(struct pki_tcp_lane *lane, uint64_t frames)
{
    struct pki_tcp_link *link = lane->link;

    for (; link->acked < frames; link->acked++)
        lane->tx_head += frame_bytes(lane, lane->tx_head);
}

/* While it stands. False: not all of them have been sent. */
static bool take_acked(struct pki_tcp_lane *lane, uint64_t frames)
{
    if (frames > lane->link->end)
        return false;
    pki_tcp_lane_acked(lane, frames);
    return lane->tx_head <= lane->tx_sent;
}

void pki_tcp_lane_rewind(struct pki_tcp_lane *lane)
{
    lane->tx_sent = lane->tx_head;
    lane->acks_sent = lane->acks_bytes = 0;
    lane->rx_tail = lane->rx_scan;
    lane->link->ep->gone = false;
    for (uint32_t i = 0; i < lane->link->ep->nlinks; i++)
        lane->link->ep->links[i].told = UINT64_MAX; /* what was told may not have come */
    lane->acks_due = true;
}

/* ---- In ---- */

static bool take_ack(struct pki_tcp_lane *lane, const unsigned char *bytes)
{
    struct pki_tcp_ep *ep = lane->link->ep;
    struct pki_tcp_ack ack;

    if (!pki_tcp_get_ack(bytes, &ack) || ack.link >= ep->nlinks || ack.frames > ep->links[ack.link].end)
        return false;
    if (ack.link == 0)
        return take_acked(lane, ack.frames);
    if (!pki_tcp_data_was_sent(&ep->links[ack.link], ack.frames))
        return false;
    pki_tcp_data_acked(&ep->links[ack.link], ack.frames);
    return true;
}

static void take_msg(struct pki_tcp_lane *lane, const struct pki_tcp_frame *frame)
{
    lane->link->received++;
    lane->rx_untold += pki_tcp_filled(frame->bytes);
    lane->acks_due = lane->acks_due || lane->rx_untold >= TELL_AT_LAST;
}

static bool take_frame(struct pki_tcp_lane *lane, const struct pki_tcp_frame *frame)
{
    switch (frame->type) {
    case PKI_TCP_MSG:
        take_msg(lane, frame);
        return true;
    case PKI_TCP_ACK:
        return take_ack(lane, lane->rx + lane->rx_scan + PKI_TCP_HEADER_BYTES);
    case PKI_TCP_CLOSE:
        pki_tcp_leaves(lane->link->ep);
        return true;
    case PKI_TCP_DATA:
        break;
    }
    return false;
}

/* A goodbye that came before what was sent ahead of it by another connection, whose frames will have this lane looked at again. */
static PKI_HOT bool is_held(const struct pki_tcp_lane *lane, const struct pki_tcp_frame *frame)
{
    const unsigned char *bytes = lane->rx + lane->rx_scan + PKI_TCP_HEADER_BYTES;

    return frame->type == PKI_TCP_CLOSE && !have_come(lane->link->ep, pki_tcp_get_close(bytes));
}

static bool holds_goodbye(const struct pki_tcp_lane *lane)
{
    struct pki_tcp_frame frame;

    return lane->rx_tail - lane->rx_scan >= PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES && pki_tcp_get_header(lane->rx + lane->rx_scan, &frame) &&
           is_held(lane, &frame);
}

/* Behind a frame that has been taken. Where no message is kept in front of it, only a message stays, for peek. */
static inline void pass(struct pki_tcp_lane *lane, const struct pki_tcp_frame *frame)
{
    bool stays = frame->type == PKI_TCP_MSG || lane->rx_head != lane->rx_scan;

    lane->rx_scan += pki_tcp_filled(frame->bytes);
    if (stays)
        return;
    lane->rx_head = lane->rx_scan;
    if (lane->rx_scan == lane->rx_tail)
        lane->rx_head = lane->rx_scan = lane->rx_tail = 0;
}

/* Look at the frames that are whole now. False: the endpoint is lost. */
static PKI_HOT bool scan(struct pki_tcp_lane *lane)
{
    while (lane->rx_tail - lane->rx_scan >= PKI_TCP_HEADER_BYTES) {
        struct pki_tcp_frame frame;
        bool right = pki_tcp_get_header(lane->rx + lane->rx_scan, &frame) && frame.type != PKI_TCP_DATA;

        if (right && lane->rx_tail - lane->rx_scan < pki_tcp_filled(frame.bytes))
            return true;
        if (right && is_held(lane, &frame))
            return true;
        if (!right || !take_frame(lane, &frame)) {
            pki_tcp_lost(lane->link->ep, 0, "sent bytes on the lane that make no sense");
            return false;
        }
        pass(lane, &frame);
    }
    return true;
}

static void make_room(struct pki_tcp_lane *lane)
{
    if (lane->rx_head > 0 && PKI_TCP_RX_BYTES - lane->rx_head < PKI_TCP_MSG_FRAME_MAX) {
        memmove(lane->rx, lane->rx + lane->rx_head, lane->rx_tail - lane->rx_head);
        lane->rx_tail -= lane->rx_head;
        lane->rx_scan -= lane->rx_head;
        lane->rx_head = 0;
    }
}

/* What its goodbye waits for lies in this rank's kernel. */
static void await_rest(struct pki_tcp_ep *ep)
{
    if (ep->gone)
        return;
    ep->gone = true;
    pki_tcp_look_again(&ep->links[1]);
}

/* Behind recv, which returned n for `room` bytes. False: nothing more can be had there now. */
static PKI_HOT bool take_read(struct pki_tcp_lane *lane, ssize_t n, size_t room)
{
    struct pki_tcp_link *link = lane->link;

    if (n > 0) {
        bool right;

        link->heard = true;
        lane->rx_tail += (size_t)n;
        right = scan(lane);
        if (lane->acks_due)
            pki_tcp_lane_flush(lane);
        return right && ((size_t)n == room || link->hangup);
    }
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        link->readable = false;
    } else if (holds_goodbye(lane)) { /* it may end behind that */
        link->readable = false;
        link->hangup = true;
        await_rest(link->ep);
    } else {
        pki_tcp_link_broken(link, n < 0 ? errno : 0);
    }
    return false;
}

PKI_HOT bool pki_tcp_lane_read(struct pki_tcp_lane *lane)
{
    struct pki_tcp_link *link = lane->link;
    bool moved = false, more = true;

    if (link->state == PKI_TCP_UP && lane->rx_tail > lane->rx_scan && !scan(lane)) /* a goodbye that was held */
        return false;
    while (more && link->state == PKI_TCP_UP) {
        size_t room;
        ssize_t n;

        make_room(lane);
        room = PKI_TCP_RX_BYTES - lane->rx_tail;
        if (room == 0) { /* the engine has not taken them yet: pop comes back here */
            link->readable = true;
            return moved;
        }
        n = recv(link->watch.fd, lane->rx + lane->rx_tail, room, MSG_DONTWAIT);
        moved = moved || n > 0;
        more = take_read(lane, n, room);
    }
    return moved;
}

void pki_tcp_lane_look(struct pki_tcp_ep *ep)
{
    struct pki_tcp_lane *lane = &ep->lane;

    if (lane->link->state == PKI_TCP_UP && lane->rx_tail > lane->rx_scan)
        pki_tcp_look_again(lane->link);
}

static PKI_HOT bool look_directly(struct pki_tcp_lane *lane)
{
    struct pki_tcp_iface *iface = lane->link->ep->iface;

    if (!pki_tcp_lanes_are_polled(iface) || lane->link->state != PKI_TCP_UP || !pki_tcp_lane_read(lane))
        return false;
    iface->quiet = 0;
    return true;
}

/* News of the engine comes after the chunks that its sender did not wait for. */
static bool is_early(const struct pki_tcp_ep *ep, const struct pki_msg *msg)
{
    return msg->kind == PKI_MSG_SIDE && !have_come(ep, msg->offset);
}

static PKI_HOT bool peek_lane(struct pki_tcp_lane *lane, struct pki_msg *msg, const void **payload)
{
    struct pki_tcp_ep *ep = lane->link->ep;

    while (lane->rx_head < lane->rx_scan) {
        const unsigned char *at = lane->rx + lane->rx_head, *bytes;
        struct pki_tcp_frame frame;

        if (!pki_tcp_get_header(at, &frame))
            return false;
        if (frame.type != PKI_TCP_MSG) {
            lane->rx_head += pki_tcp_filled(frame.bytes);
            continue;
        }
        if (pki_tcp_get_msg(at + PKI_TCP_HEADER_BYTES, frame.bytes, msg, &bytes)) {
            *payload = bytes;
            return !is_early(ep, msg);
        }
        pki_tcp_lost(ep, 0, "sent a message that makes no sense");
        return false;
    }
    return false;
}

bool pki_tcp_lane_has_news(const struct pki_tcp_lane *lane)
{
    struct pki_tcp_frame frame;
    struct pki_msg msg;
    const unsigned char *bytes;

    for (size_t at = lane->rx_head; at < lane->rx_scan; at += pki_tcp_filled(frame.bytes)) {
        if (!pki_tcp_get_header(lane->rx + at, &frame))
            return false;
        if (frame.type == PKI_TCP_MSG && pki_tcp_get_msg(lane->rx + at + PKI_TCP_HEADER_BYTES, frame.bytes, &msg, &bytes) &&
            msg.kind == PKI_MSG_SIDE)
            return true;
    }
    return false;
}

PKI_HOT bool pki_tcp_peek(struct pki_ep *base, struct pki_msg *msg, const void **payload)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_lane *lane = &ep->lane;

    ep->peeked_news = pki_tcp_news_peek(ep, msg);
    ep->peeked_want = !ep->peeked_news && pki_tcp_early_peek(ep, msg);
    *payload = NULL;
    if (ep->peeked_news || ep->peeked_want)
        return true;
    return (lane->rx_head != lane->rx_scan || look_directly(lane)) && peek_lane(lane, msg, payload);
}

PKI_HOT void pki_tcp_pop(struct pki_ep *base)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_lane *lane = &ep->lane;
    struct pki_tcp_frame frame;

    if (ep->peeked_news) {
        pki_tcp_news_pop(ep);
        return;
    }
    if (ep->peeked_want) {
        ep->wants = false;
        return;
    }
    if (pki_tcp_get_header(lane->rx + lane->rx_head, &frame))
        lane->rx_head += pki_tcp_filled(frame.bytes);
    if (lane->rx_head == lane->rx_tail)
        lane->rx_head = lane->rx_scan = lane->rx_tail = 0;
    if (lane->link->readable)
        pki_tcp_link_ready(lane->link);
}

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
#define AT_ONCE_BYTES 8192 /* payload that it pays to keep only after it has been sent; not of a collective, most of whose ranks send at the same time: nobody waits for it */
#define LANE_LOOKS 16 /* without a message, after which, */
#define LANE_RESTS 8 /* while chunks are awaited, one look of so many is at the lane */
#define SOLE_LOOKS 3 /* at a time at the lane of the only peer, where a message is waited for and nothing else */

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
            pki_tcp_stand_still(link);
        } else if (errno != EINTR) {
            end_by_reading(link);
        }
    }
}

/* Nothing waits in front of it. */
static bool may_go_at_once(const struct pki_tcp_lane *lane, const struct pki_msg *msg)
{
    const struct pki_tcp_link *link = lane->link;

    return (msg->flags & PKI_MSG_FLAG_COLL) == 0 && msg->payload >= AT_ONCE_BYTES && link->state == PKI_TCP_UP && link->writable && lane->tx_sent == lane->tx_end &&
           lane->acks_bytes == 0;
}

/* Before it is kept in the ring: the peer reads it while it is copied there. Acknowledgements that are due go behind it. Returns how many bytes
 * of both have gone. */
static size_t send_at_once(struct pki_tcp_lane *lane, const unsigned char *head, size_t bytes, const struct pki_msg *msg, const void *payload)
{
    static const unsigned char zeros[PKI_TCP_LINE];
    struct iovec parts[4] = { { (void *)(uintptr_t)head, bytes }, { (void *)(uintptr_t)payload, msg->payload } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    ssize_t n;

    if (!may_go_at_once(lane, msg))
        return 0;
    if ((bytes + msg->payload) % PKI_TCP_LINE > 0)
        parts[message.msg_iovlen++] = (struct iovec){ (void *)(uintptr_t)zeros, PKI_TCP_LINE - (bytes + msg->payload) % PKI_TCP_LINE };
    if (lane->acks_due)
        gather_acks(lane);
    if (lane->acks_bytes > 0)
        parts[message.msg_iovlen++] = (struct iovec){ lane->acks, lane->acks_bytes };
    n = sendmsg(lane->link->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? (size_t)n : 0; /* a failure is seen again by flush */
}

/* What the peer has to know of the lane, it hears by the message that goes out now. */
static void told_along(struct pki_tcp_lane *lane)
{
    lane->link->told = lane->link->received;
    lane->rx_untold = 0;
}

/* So many chunks have come on link 1, or never will. */
static bool have_come(const struct pki_tcp_ep *ep, uint64_t chunks)
{
    return ep->links[1].state == PKI_TCP_OVER || ep->links[1].received >= chunks;
}

static pk_result_t send_message(struct pki_tcp_ep *ep, struct pki_tcp_lane *lane, const struct pki_msg *msg, const void *payload)
{
    unsigned char head[PKI_TCP_MSG_HEAD_MAX];
    struct pki_msg out = *msg;
    size_t bytes, gone;

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
    bytes = pki_tcp_put_msg(head, &out, lane->link->received);
    if (pki_tcp_msg_tells(out.kind, out.payload))
        told_along(lane);
    lane->acks_due = lane->acks_due || lane->rx_untold >= TELL_BYTES;
    gone = send_at_once(lane, head, bytes, msg, payload);
    pki_tcp_lane_write(lane, head, bytes);
    if (msg->payload > 0)
        pki_tcp_lane_write(lane, payload, msg->payload);
    ring_fill(lane);
    advance_out(lane, gone);
    lane->link->end++;
    pki_tcp_lane_flush(lane);
    return PK_OK;
}

/* A short one that goes alone, and whole: made where it is kept. */
static inline bool goes_alone(const struct pki_tcp_ep *ep, const struct pki_tcp_lane *lane, const struct pki_msg *msg, size_t bytes)
{
    return msg->kind == PKI_MSG_EAGER && msg->payload < PKI_TCP_LONG_MIN && !ep->base.dead && !ep->left && lane->link->state == PKI_TCP_UP &&
           lane->link->writable && lane->tx_sent == lane->tx_end && lane->acks_bytes == 0 && !lane->acks_due && lane->rx_untold < TELL_BYTES &&
           tx_room(lane) >= bytes && (lane->tx_end & TX_MASK) + bytes <= PKI_TCP_TX_BYTES;
}

static inline void send_alone(struct pki_tcp_lane *lane, const struct pki_msg *msg, const void *payload, size_t bytes)
{
    unsigned char *at = lane->tx + (lane->tx_end & TX_MASK);
    ssize_t n;

    memset(at + bytes - PKI_TCP_LINE, 0, PKI_TCP_LINE);
    pki_copy_short(at + pki_tcp_put_msg(at, msg, 0), payload, msg->payload);
    lane->tx_end += bytes;
    lane->link->end++;
    n = send(lane->link->watch.fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    lane->tx_sent += n > 0 ? (size_t)n : 0;
    if (lane->tx_sent != lane->tx_end) /* a failure is seen again there */
        pki_tcp_lane_flush(lane);
    __builtin_prefetch(at + bytes, 1); /* where the next one goes */
}

PKI_HOT pk_result_t pki_tcp_msg(struct pki_ep *base, const struct pki_msg *msg, const void *payload)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_lane *lane = &ep->lane;
    size_t bytes = pki_tcp_filled(PKI_TCP_MSG_SHORT_BYTES + msg->payload);

    if (!goes_alone(ep, lane, msg, bytes))
        return send_message(ep, lane, msg, payload);
    send_alone(lane, msg, payload, bytes);
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

/* It may say what of the lane has come. */
static bool take_msg(struct pki_tcp_lane *lane, const struct pki_tcp_frame *frame)
{
    uint64_t frames;

    lane->link->received++;
    lane->rx_untold += pki_tcp_filled(frame->bytes);
    lane->acks_due = lane->acks_due || lane->rx_untold >= TELL_AT_LAST;
    return !pki_tcp_get_told(lane->rx + lane->rx_scan + PKI_TCP_HEADER_BYTES, frame->bytes, &frames) || take_acked(lane, frames);
}

static bool take_frame(struct pki_tcp_lane *lane, const struct pki_tcp_frame *frame)
{
    switch (frame->type) {
    case PKI_TCP_MSG:
        return take_msg(lane, frame);
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
    return frame->type == PKI_TCP_CLOSE && !have_come(lane->link->ep, pki_tcp_get_close(lane->rx + lane->rx_scan + PKI_TCP_HEADER_BYTES));
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

/* While a chunk is awaited, or word of one, which come on a connection that is looked at as well; not where messages come meanwhile. */
static bool rests(struct pki_tcp_lane *lane)
{
    struct pki_tcp_ep *ep = lane->link->ep;

    return pki_tcp_awaits_short(ep) && pki_tcp_awaits(ep) <= ep->params.chunk_bytes && ++lane->rests > LANE_LOOKS && lane->rests % LANE_RESTS != 0;
}

static bool finds(struct pki_tcp_lane *lane, bool awaited)
{
    const struct pki_tcp_iface *iface = lane->link->ep->iface;
    unsigned looks = awaited && iface->size == 2 && iface->spins ? SOLE_LOOKS : 1;

    while (looks-- > 0 && lane->link->state == PKI_TCP_UP)
        if (pki_tcp_lane_read(lane))
            return true;
    return false;
}

/* A look that nobody was told to make has found something. */
static inline void note_find(struct pki_tcp_lane *lane)
{
    lane->link->ep->iface->quiet = 0;
    lane->rests = 0;
    if (pki_list_empty(&lane->link->aside))
        pki_tcp_found(lane->link);
}

static PKI_HOT bool look_directly(struct pki_tcp_lane *lane, bool awaited)
{
    struct pki_tcp_iface *iface = lane->link->ep->iface;

    if (!pki_tcp_lanes_are_polled(iface) || lane->link->state != PKI_TCP_UP || rests(lane))
        return false;
    if (!finds(lane, awaited))
        return false;
    note_find(lane);
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
    bool awaited = base->expected > 0;

    base->expected = 0;
    ep->peeked_news = pki_tcp_news_peek(ep, msg);
    ep->peeked_want = !ep->peeked_news && pki_tcp_early_peek(ep, msg);
    *payload = NULL;
    if (ep->peeked_news || ep->peeked_want)
        return true;
    return (lane->rx_head != lane->rx_scan || look_directly(lane, awaited)) && peek_lane(lane, msg, payload);
}

/* Nothing but such a message can be there. */
static inline bool may_take(const struct pki_tcp_ep *ep, const struct pki_tcp_lane *lane)
{
    const struct pki_tcp_iface *iface = ep->iface;

    return lane->rx_tail == 0 && lane->link->state == PKI_TCP_UP && pki_list_empty(&ep->news) && !ep->wants && ep->untold == 0 && iface->busy == 0 &&
           pki_tcp_lanes_are_polled(iface);
}

PKI_HOT enum pki_take pki_tcp_take(struct pki_ep *base, const struct pki_wanted *wanted, void *out, uint64_t *credit)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_lane *lane = &ep->lane;
    struct pki_tcp_link *link = lane->link;
    const unsigned char *payload;
    ssize_t n;

    if (!may_take(ep, lane))
        return PKI_TAKE_OTHER;
    n = recv(link->watch.fd, lane->rx, PKI_TCP_RX_BYTES, MSG_DONTWAIT);
    payload = n < PKI_TCP_LINE ? NULL : pki_tcp_get_wanted(lane->rx, (size_t)n, wanted, credit);
    if (payload == NULL) {
        (void)take_read(lane, n, PKI_TCP_RX_BYTES);
        if (n > 0)
            note_find(lane);
        return n <= 0 && lane->rx_tail == 0 && link->state == PKI_TCP_UP ? PKI_TAKE_NOTHING : PKI_TAKE_OTHER;
    }
    pki_copy_short(out, payload, wanted->bytes);
    link->heard = true;
    link->received++;
    lane->rx_untold += (size_t)n;
    if (lane->rx_untold >= TELL_AT_LAST) {
        lane->acks_due = true;
        pki_tcp_lane_flush(lane);
    }
    note_find(lane);
    if (link->readable)
        pki_tcp_link_ready(link);
    return PKI_TAKE_IT;
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

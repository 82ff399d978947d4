/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on link 0: kept in a ring until the peer has them, read into a buffer and looked at in place. */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"
#include "util/clock.h"
#include "util/copy.h"

#define TX_MASK (PKI_TCP_TX_BYTES - 1)
#define TELL_BYTES (PKI_TCP_TX_BYTES / 4) /* acknowledged after so many bytes with the next message, */
#define TELL_AT_LAST (PKI_TCP_TX_BYTES / 2) /* or else by itself: the writer never stands still for it */
#define AT_ONCE_BYTES 8192 /* payload that it pays to keep only after it has been sent; not of a collective, most of whose ranks send at the same time: nobody waits for it */
#define LANE_LOOKS 16 /* without a message, after which, */
#define LANE_RESTS 8 /* while chunks are awaited, one look of so many is at the lane */
#define GOODBYE_NS (200 * PKI_NS_PER_MS) /* after a failure, or where only notes went */

/* ---- Out ---- */

static size_t tx_room(const struct pki_tcp_ep *ep)
{
    return PKI_TCP_TX_BYTES - (size_t)(ep->tx_end - ep->tx_head);
}

static void ring_write(struct pki_tcp_ep *ep, const void *data, size_t bytes)
{
    size_t at = ep->tx_end & TX_MASK;
    size_t first = bytes < PKI_TCP_TX_BYTES - at ? bytes : PKI_TCP_TX_BYTES - at;

    pki_copy_short(ep->tx + at, data, first); /* behind a short head a few bytes past the source within a page */
    pki_copy_short(ep->tx, (const unsigned char *)data + first, bytes - first);
    ep->tx_end += bytes;
}

/* The length of the frame that begins there. */
static size_t frame_bytes(const struct pki_tcp_ep *ep, uint64_t from)
{
    unsigned char head[PKI_TCP_HEADER_BYTES];
    size_t at = from & TX_MASK;

    if (at + sizeof head <= PKI_TCP_TX_BYTES)
        return PKI_TCP_HEADER_BYTES + pki_tcp_get_length(ep->tx + at);
    for (size_t i = 0; i < sizeof head; i++)
        head[i] = ep->tx[(at + i) & TX_MASK];
    return PKI_TCP_HEADER_BYTES + pki_tcp_get_length(head);
}

static void gather_acks(struct pki_tcp_ep *ep)
{
    ep->acks_bytes = ep->acks_sent = 0;
    ep->acks_due = false;
    for (uint32_t i = 0; i < ep->nlinks; i++) {
        struct pki_tcp_ack ack = { .link = i, .frames = ep->links[i].received };

        if (ep->links[i].told == ack.frames)
            continue;
        pki_tcp_put_ack(ep->acks + ep->acks_bytes, &ack);
        ep->acks_bytes += PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES;
        ep->links[i].told = ack.frames;
    }
    ep->rx_untold = 0;
}

/* A half-written row of acknowledgements first, then the frames, then acknowledgements that are due. */
static int gather(struct pki_tcp_ep *ep, struct iovec parts[3])
{
    size_t at = ep->tx_sent & TX_MASK, bytes = (size_t)(ep->tx_end - ep->tx_sent);
    size_t first = bytes < PKI_TCP_TX_BYTES - at ? bytes : PKI_TCP_TX_BYTES - at;
    int n = 0;

    if (ep->acks_sent == 0 && bytes > 0) {
        parts[n++] = (struct iovec){ ep->tx + at, first };
        if (bytes > first)
            parts[n++] = (struct iovec){ ep->tx, bytes - first };
    }
    if (ep->acks_sent < ep->acks_bytes)
        parts[n++] = (struct iovec){ ep->acks + ep->acks_sent, ep->acks_bytes - ep->acks_sent };
    return n;
}

static void advance_out(struct pki_tcp_ep *ep, size_t bytes)
{
    if (ep->acks_sent == 0) {
        size_t frames = (size_t)(ep->tx_end - ep->tx_sent);

        frames = bytes < frames ? bytes : frames;
        ep->tx_sent += frames;
        bytes -= frames;
    }
    ep->acks_sent += bytes;
    if (ep->acks_sent == ep->acks_bytes)
        ep->acks_sent = ep->acks_bytes = 0;
}

/* Nothing can be written any more, but what the peer wrote before it left, or broke off, is still there. */
static void end_by_reading(struct pki_tcp_link *link)
{
    link->writable = false;
    link->readable = link->hangup = true;
    pki_tcp_link_ready(link);
}

void pki_tcp_lane_flush(struct pki_tcp_ep *ep)
{
    struct pki_tcp_link *link = &ep->links[0];

    while (link->state == PKI_TCP_UP && link->writable) {
        struct iovec parts[3];
        struct msghdr message = { .msg_iov = parts };
        ssize_t n;

        if (ep->acks_due && ep->acks_bytes == 0)
            gather_acks(ep);
        message.msg_iovlen = (size_t)gather(ep, parts);
        if (message.msg_iovlen == 0)
            return;
        n = message.msg_iovlen == 1 ? send(link->watch.fd, parts->iov_base, parts->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                                    : sendmsg(link->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            advance_out(ep, (size_t)n);
            if (ep->tx_sent == ep->tx_end && ep->acks_bytes == 0 && !ep->acks_due)
                return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            pki_tcp_stand_still(link);
        } else if (errno != EINTR) {
            end_by_reading(link);
        }
    }
}

/* Nothing waits in front of it. */
static bool may_go_at_once(const struct pki_tcp_ep *ep, const struct pki_msg *msg)
{
    const struct pki_tcp_link *link = &ep->links[0];

    return (msg->flags & PKI_MSG_FLAG_COLL) == 0 && msg->payload >= AT_ONCE_BYTES && link->state == PKI_TCP_UP && link->writable && ep->tx_sent == ep->tx_end &&
           ep->acks_bytes == 0;
}

/* Before it is kept in the ring: the peer reads it while it is copied there. Acknowledgements that are due go behind it. Returns how many bytes
 * of both have gone. */
static size_t send_at_once(struct pki_tcp_ep *ep, const unsigned char *head, size_t bytes, const struct pki_msg *msg, const void *payload)
{
    struct iovec parts[3] = { { (void *)(uintptr_t)head, bytes }, { (void *)(uintptr_t)payload, msg->payload } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    ssize_t n;

    if (!may_go_at_once(ep, msg))
        return 0;
    if (ep->acks_due)
        gather_acks(ep);
    if (ep->acks_bytes > 0)
        parts[message.msg_iovlen++] = (struct iovec){ ep->acks, ep->acks_bytes };
    n = sendmsg(ep->links[0].watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? (size_t)n : 0; /* a failure is seen again by flush */
}

/* What the peer has to know of the lane, it hears by the message that goes out now. */
static void told_along(struct pki_tcp_ep *ep)
{
    ep->links[0].told = ep->links[0].received;
    ep->rx_untold = 0;
}

pk_result_t pki_tcp_msg(struct pki_ep *base, const struct pki_msg *msg, const void *payload)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    unsigned char head[PKI_TCP_MSG_HEAD_MAX];
    struct pki_msg out = *msg;
    size_t bytes, gone;

    if (base->dead)
        return PK_ERR_PEER;
    if (msg->kind == PKI_MSG_GRANT && msg->extra == PKI_GRANT_SILENT)
        return pki_tcp_grant(ep, msg, &out);
    if (msg->kind == PKI_MSG_GRANT && msg->extra == PKI_GRANT_BACK) {
        pki_tcp_grant_back(ep, msg);
        return PK_OK;
    }
    if (!ep->left && tx_room(ep) < sizeof head + msg->payload)
        return PK_IN_PROGRESS;
    if (msg->kind == PKI_MSG_GRANT || msg->kind == PKI_MSG_SLOT) {
        pk_result_t result = pki_tcp_grant(ep, msg, &out);

        if (result != PK_OK)
            return result;
    }
    if (ep->left) /* nobody reads it any more; what came ahead of a grant has come */
        return PK_OK;
    bytes = pki_tcp_put_msg(head, &out, ep->links[0].received);
    if (pki_tcp_msg_tells(out.kind, out.payload))
        told_along(ep);
    ep->acks_due = ep->acks_due || ep->rx_untold >= TELL_BYTES;
    gone = send_at_once(ep, head, bytes, msg, payload);
    ring_write(ep, head, bytes);
    if (msg->payload > 0)
        ring_write(ep, payload, msg->payload);
    advance_out(ep, gone);
    ep->links[0].end++;
    pki_tcp_lane_flush(ep);
    return PK_OK;
}

void pki_tcp_lane_acked(struct pki_tcp_ep *ep, uint64_t frames)
{
    struct pki_tcp_link *link = &ep->links[0];

    for (; link->acked < frames; link->acked++)
        ep->tx_head += frame_bytes(ep, ep->tx_head);
}

/* While it stands. False: not all of them have been sent. */
static bool take_acked(struct pki_tcp_ep *ep, uint64_t frames)
{
    if (frames > ep->links[0].end)
        return false;
    pki_tcp_lane_acked(ep, frames);
    return ep->tx_head <= ep->tx_sent;
}

void pki_tcp_lane_rewind(struct pki_tcp_ep *ep)
{
    ep->tx_sent = ep->tx_head;
    ep->acks_sent = ep->acks_bytes = 0;
    ep->rx_tail = ep->rx_scan;
    for (uint32_t i = 0; i < ep->nlinks; i++)
        ep->links[i].told = UINT64_MAX; /* what was told may not have come */
    ep->acks_due = true;
}

/* All is written, and the peer's kernel has it. */
static bool is_out(struct pki_tcp_ep *ep)
{
    struct pki_tcp_link *link = &ep->links[0];
    int waiting = 0;

    link->writable = true;
    ep->acks_due = true;
    pki_tcp_lane_flush(ep);
    return link->state == PKI_TCP_UP && ep->tx_sent == ep->tx_end && ep->acks_bytes == 0 &&
           (ioctl(link->watch.fd, SIOCOUTQ, &waiting) != 0 || waiting == 0);
}

static bool has_room(struct pki_tcp_ep *ep)
{
    return tx_room(ep) >= PKI_TCP_HEADER_BYTES;
}

/* A connection that is broken is made again first: the peer may still wait for the last messages or acknowledgements. */
static void await(struct pki_tcp_ep *ep, bool (*is_so)(struct pki_tcp_ep *ep))
{
    struct pki_tcp_link *link = &ep->links[0];

    while (link->state != PKI_TCP_OVER && !is_so(ep) && pki_now_ns() < ep->iface->goodbye_ns) {
        struct pollfd p = { .fd = link->watch.fd, .events = POLLOUT };

        (void)poll(&p, link->state == PKI_TCP_UP && ep->tx_sent < ep->tx_end ? 1 : 0, 1);
        (void)ep->iface->base.transport->progress(&ep->iface->base);
    }
}

/* What was sent has gone when this returns, or PK_RETRY_MS has passed for all peers together: its sender has been told that it was sent. */
void pki_tcp_lane_close(struct pki_tcp_ep *ep)
{
    unsigned char head[PKI_TCP_HEADER_BYTES];

    if (ep->base.connecting)
        return;
    pki_tcp_put_back(&ep->links[0]);
    for (uint32_t i = 1; i < ep->nlinks; i++)
        ep->links[i].told = UINT64_MAX; /* the peer closes that connection when it hears of this, and may not have read it to its end */
    if (ep->iface->goodbye_ns == 0)
        ep->iface->goodbye_ns = pki_now_ns() + (ep->iface->revoked || !ep->iface->base.carries ? GOODBYE_NS : ep->iface->params.retry_ns);
    await(ep, has_room);
    if (!has_room(ep))
        return;
    pki_tcp_put_close(head);
    ring_write(ep, head, sizeof head);
    await(ep, is_out);
}

/* ---- In ---- */

static bool take_ack(struct pki_tcp_ep *ep, const unsigned char *bytes)
{
    struct pki_tcp_ack ack;

    if (!pki_tcp_get_ack(bytes, &ack) || ack.link >= ep->nlinks || ack.frames > ep->links[ack.link].end)
        return false;
    if (ack.link == 0)
        return take_acked(ep, ack.frames);
    if (!pki_tcp_data_was_sent(&ep->links[ack.link], ack.frames))
        return false;
    pki_tcp_data_acked(&ep->links[ack.link], ack.frames);
    return true;
}

/* It may say what of the lane has come. */
static bool take_msg(struct pki_tcp_ep *ep, const struct pki_tcp_frame *frame)
{
    uint64_t frames;

    ep->links[0].received++;
    ep->rx_untold += PKI_TCP_HEADER_BYTES + frame->bytes;
    ep->acks_due = ep->acks_due || ep->rx_untold >= TELL_AT_LAST;
    return !pki_tcp_get_told(ep->rx + ep->rx_scan + PKI_TCP_HEADER_BYTES, frame->bytes, &frames) || take_acked(ep, frames);
}

static bool take_frame(struct pki_tcp_ep *ep, const struct pki_tcp_frame *frame)
{
    switch (frame->type) {
    case PKI_TCP_MSG:
        return take_msg(ep, frame);
    case PKI_TCP_ACK:
        return take_ack(ep, ep->rx + ep->rx_scan + PKI_TCP_HEADER_BYTES);
    case PKI_TCP_CLOSE:
        pki_tcp_leaves(ep);
        return true;
    case PKI_TCP_DATA:
    case PKI_TCP_CAME:
        break;
    }
    return false;
}

/* Look at the frames that are whole now. False: the endpoint is lost. */
static bool scan(struct pki_tcp_ep *ep)
{
    while (ep->rx_tail - ep->rx_scan >= PKI_TCP_HEADER_BYTES) {
        struct pki_tcp_frame frame;
        bool right = pki_tcp_get_header(ep->rx + ep->rx_scan, &frame) && frame.type != PKI_TCP_DATA && frame.type != PKI_TCP_CAME;

        if (right && ep->rx_tail - ep->rx_scan - PKI_TCP_HEADER_BYTES < frame.bytes)
            return true;
        if (!right || !take_frame(ep, &frame)) {
            pki_tcp_lost(ep, "sent bytes on the lane that make no sense");
            return false;
        }
        ep->rx_scan += PKI_TCP_HEADER_BYTES + frame.bytes;
    }
    return true;
}

static void make_room(struct pki_tcp_ep *ep)
{
    if (ep->rx_head > 0 && PKI_TCP_RX_BYTES - ep->rx_head < PKI_TCP_MSG_FRAME_MAX) {
        memmove(ep->rx, ep->rx + ep->rx_head, ep->rx_tail - ep->rx_head);
        ep->rx_tail -= ep->rx_head;
        ep->rx_scan -= ep->rx_head;
        ep->rx_head = 0;
    }
}

bool pki_tcp_lane_read(struct pki_tcp_ep *ep)
{
    struct pki_tcp_link *link = &ep->links[0];
    bool moved = false;

    while (link->state == PKI_TCP_UP) {
        size_t room;
        ssize_t n;

        make_room(ep);
        room = PKI_TCP_RX_BYTES - ep->rx_tail;
        if (room == 0) { /* the engine has not taken them yet: pop comes back here */
            link->readable = true;
            return moved;
        }
        n = recv(link->watch.fd, ep->rx + ep->rx_tail, room, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            link->readable = false;
            return moved;
        }
        if (n <= 0) {
            pki_tcp_link_broken(link, n < 0 ? errno : 0);
            return moved;
        }
        moved = true;
        ep->rx_tail += (size_t)n;
        if (!scan(ep) || ((size_t)n < room && !link->hangup))
            break;
    }
    if (ep->acks_due)
        pki_tcp_lane_flush(ep);
    return moved;
}

/* While a chunk is awaited, or word of one, which come on a connection that is looked at as well; not where messages come meanwhile. */
static bool rests(struct pki_tcp_ep *ep)
{
    return pki_tcp_awaits_short(ep) && pki_tcp_awaits(ep) <= ep->params.chunk_bytes && ++ep->rests > LANE_LOOKS && ep->rests % LANE_RESTS != 0;
}

static bool look_directly(struct pki_tcp_ep *ep)
{
    struct pki_tcp_iface *iface = ep->iface;

    if (!pki_tcp_lanes_are_polled(iface) || ep->links[0].state != PKI_TCP_UP || rests(ep))
        return false;
    if (!pki_tcp_lane_read(ep))
        return false;
    iface->quiet = 0;
    ep->rests = 0;
    pki_tcp_found(&ep->links[0]);
    return true;
}

bool pki_tcp_peek(struct pki_ep *base, struct pki_msg *msg, const void **payload)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);

    ep->peeked_news = pki_tcp_news_peek(ep, msg);
    ep->peeked_want = !ep->peeked_news && pki_tcp_early_peek(ep, msg);
    *payload = NULL;
    if (ep->peeked_news || ep->peeked_want)
        return true;
    if (ep->rx_head == ep->rx_scan && !look_directly(ep))
        return false;
    while (ep->rx_head < ep->rx_scan) {
        const unsigned char *at = ep->rx + ep->rx_head, *bytes;
        struct pki_tcp_frame frame;

        if (!pki_tcp_get_header(at, &frame))
            return false;
        if (frame.type != PKI_TCP_MSG) {
            ep->rx_head += PKI_TCP_HEADER_BYTES + frame.bytes;
            continue;
        }
        if (pki_tcp_get_msg(at + PKI_TCP_HEADER_BYTES, frame.bytes, msg, &bytes)) {
            *payload = bytes;
            return true;
        }
        pki_tcp_lost(ep, "sent a message that makes no sense");
        return false;
    }
    return false;
}

void pki_tcp_pop(struct pki_ep *base)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_frame frame;

    if (ep->peeked_news) {
        pki_tcp_news_pop(ep);
        return;
    }
    if (ep->peeked_want) {
        ep->wants = false;
        return;
    }
    if (pki_tcp_get_header(ep->rx + ep->rx_head, &frame))
        ep->rx_head += PKI_TCP_HEADER_BYTES + frame.bytes;
    if (ep->rx_head == ep->rx_tail)
        ep->rx_head = ep->rx_scan = ep->rx_tail = 0;
    if (ep->links[0].readable)
        pki_tcp_link_ready(&ep->links[0]);
}

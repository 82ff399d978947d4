/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on the control channels: kept in a ring until the peer has them, read into a buffer and looked at in place. */
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
#define CTRL_POLL_BUDGET 16 /* without a message, after which, */
#define CTRL_IDLE_BUDGET 8 /* while chunks are awaited, one look of so many is at the control channel */
#define SOLE_POLL_BUDGET 3 /* at a time at the control channel of the only peer, where a message is waited for and nothing else */
#define OTHER_IDLE_BUDGET 32 /* of two control channels, looks at the one that brings what is waited for, to one at the other */

/* ---- Out ---- */

static size_t tx_room(const struct pki_tcp_ctrl *ctrl)
{
    return PKI_TCP_TX_BYTES - (size_t)(ctrl->tx_end - ctrl->tx_head);
}

void pki_tcp_ctrl_write(struct pki_tcp_ctrl *ctrl, const void *data, size_t bytes)
{
    size_t at = ctrl->tx_end & TX_MASK;
    size_t first = bytes < PKI_TCP_TX_BYTES - at ? bytes : PKI_TCP_TX_BYTES - at;

    pki_copy(ctrl->tx + at, data, first);
    pki_copy(ctrl->tx, (const unsigned char *)data + first, bytes - first);
    ctrl->tx_end += bytes;
}

/* Up to whole lines: no frame's header goes round the end. */
static void ring_fill(struct pki_tcp_ctrl *ctrl)
{
    size_t bytes = -ctrl->tx_end % PKI_TCP_LINE;

    memset(ctrl->tx + (ctrl->tx_end & TX_MASK), 0, bytes);
    ctrl->tx_end += bytes;
}

/* The length of the frame that begins there. */
static size_t frame_bytes(const struct pki_tcp_ctrl *ctrl, uint64_t from)
{
    return pki_tcp_filled(pki_tcp_get_length(ctrl->tx + (from & TX_MASK)));
}

/* A control channel acknowledges itself, and the first one the connections for chunks as well. */
static uint32_t first_reported(const struct pki_tcp_ctrl *ctrl)
{
    return ctrl->link->index;
}

static uint32_t last_reported(const struct pki_tcp_ctrl *ctrl)
{
    return ctrl->link->index == 0 ? ctrl->link->ep->params.sockets : ctrl->link->index;
}

static void gather_acks(struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_ep *ep = ctrl->link->ep;

    ctrl->acks_bytes = ctrl->acks_sent = 0;
    ctrl->acks_due = false;
    for (uint32_t i = first_reported(ctrl); i <= last_reported(ctrl); i++) {
        struct pki_tcp_ack ack = { .link = i, .frames = ep->links[i].received };

        if (ep->links[i].reported == ack.frames)
            continue;
        pki_tcp_put_ack(ctrl->acks + ctrl->acks_bytes, &ack);
        ctrl->acks_bytes += PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES;
        ep->links[i].reported = ack.frames;
    }
    ctrl->rx_unreported = 0;
}

/* A half-written row of acknowledgements first, then the frames, then acknowledgements that are due. */
static int gather(struct pki_tcp_ctrl *ctrl, struct iovec parts[3])
{
    size_t at = ctrl->tx_sent & TX_MASK, bytes = (size_t)(ctrl->tx_end - ctrl->tx_sent);
    size_t first = bytes < PKI_TCP_TX_BYTES - at ? bytes : PKI_TCP_TX_BYTES - at;
    int n = 0;

    if (ctrl->acks_sent == 0 && bytes > 0) {
        parts[n++] = (struct iovec){ ctrl->tx + at, first };
        if (bytes > first)
            parts[n++] = (struct iovec){ ctrl->tx, bytes - first };
    }
    if (ctrl->acks_sent < ctrl->acks_bytes)
        parts[n++] = (struct iovec){ ctrl->acks + ctrl->acks_sent, ctrl->acks_bytes - ctrl->acks_sent };
    return n;
}

static void advance_out(struct pki_tcp_ctrl *ctrl, size_t bytes)
{
    if (ctrl->acks_sent == 0) {
        size_t frames = (size_t)(ctrl->tx_end - ctrl->tx_sent);

        frames = bytes < frames ? bytes : frames;
        ctrl->tx_sent += frames;
        bytes -= frames;
    }
    ctrl->acks_sent += bytes;
    if (ctrl->acks_sent == ctrl->acks_bytes)
        ctrl->acks_sent = ctrl->acks_bytes = 0;
}

/* Nothing can be written any more, but what the peer wrote before it left, or broke off, is still there. */
static void end_by_reading(struct pki_tcp_link *link)
{
    link->writable = false;
    link->readable = link->hangup = true;
    pki_tcp_link_ready(link);
}

PKI_HOT void pki_tcp_ctrl_flush(struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_link *link = ctrl->link;

    while (link->state == PKI_TCP_UP && link->writable) {
        struct iovec parts[3];
        struct msghdr message = { .msg_iov = parts };
        ssize_t n;

        if (ctrl->acks_due && ctrl->acks_bytes == 0)
            gather_acks(ctrl);
        message.msg_iovlen = (size_t)gather(ctrl, parts);
        if (message.msg_iovlen == 0)
            return;
        n = message.msg_iovlen == 1 ? send(link->source.fd, parts->iov_base, parts->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                                    : sendmsg(link->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            advance_out(ctrl, (size_t)n);
            if (ctrl->tx_sent == ctrl->tx_end && ctrl->acks_bytes == 0 && !ctrl->acks_due)
                return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            pki_tcp_busy_poll_start(link);
        } else if (errno != EINTR) {
            end_by_reading(link);
        }
    }
}

/* Nothing waits in front of it. */
static bool may_go_at_once(const struct pki_tcp_ctrl *ctrl, const struct pki_msg *msg)
{
    const struct pki_tcp_link *link = ctrl->link;

    return (msg->flags & PKI_MSG_FLAG_COLL) == 0 && msg->payload >= AT_ONCE_BYTES && link->state == PKI_TCP_UP && link->writable && ctrl->tx_sent == ctrl->tx_end &&
           ctrl->acks_bytes == 0;
}

/* Before it is kept in the ring: the peer reads it while it is copied there. Acknowledgements that are due go behind it. Returns how many bytes
 * of both have gone. */
static size_t send_at_once(struct pki_tcp_ctrl *ctrl, const unsigned char *head, size_t bytes, const struct pki_msg *msg, const void *payload)
{
    static const unsigned char zeros[PKI_TCP_LINE];
    struct iovec parts[4] = { { (void *)(uintptr_t)head, bytes }, { (void *)(uintptr_t)payload, msg->payload } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    ssize_t n;

    if (!may_go_at_once(ctrl, msg))
        return 0;
    if ((bytes + msg->payload) % PKI_TCP_LINE > 0)
        parts[message.msg_iovlen++] = (struct iovec){ (void *)(uintptr_t)zeros, PKI_TCP_LINE - (bytes + msg->payload) % PKI_TCP_LINE };
    if (ctrl->acks_due)
        gather_acks(ctrl);
    if (ctrl->acks_bytes > 0)
        parts[message.msg_iovlen++] = (struct iovec){ ctrl->acks, ctrl->acks_bytes };
    n = sendmsg(ctrl->link->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? (size_t)n : 0; /* a failure is seen again by flush */
}

/* What the peer has to know of the control channel, it hears by the message that goes out now. */
static void reported_along(struct pki_tcp_ctrl *ctrl)
{
    ctrl->link->reported = ctrl->link->received;
    ctrl->rx_unreported = 0;
}

/* Which messages of short collectives are in no order with others: two ranks that send each other one at the same time use a connection each, and the
 * other one the next time (bench/limits/exchange.c). */
static struct pki_tcp_ctrl *ctrl_of(struct pki_tcp_ep *ep, const struct pki_msg *msg)
{
    bool either = ep->nctrls > 1 && msg->kind == PKI_MSG_EAGER && (msg->flags & (PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED)) == PKI_MSG_FLAG_COLL;

    return &ep->ctrl[either ? (msg->op + ep->connects) & 1 : 0];
}

/* So many of the other end's have come, or never will. */
static bool has_come(const struct pki_tcp_link *link, uint64_t frames)
{
    return link->state == PKI_TCP_OVER || link->received >= frames;
}

static bool has_come_before(const struct pki_tcp_ep *ep, const struct pki_tcp_before *before)
{
    return (ep->nctrls == 1 || has_come(ep->ctrl[1].link, before->messages)) && has_come(&ep->links[1], before->chunks);
}

static void count_before(const struct pki_tcp_ep *ep, struct pki_msg *events)
{
    struct pki_tcp_before before = pki_tcp_sent_before(ep, events->extra == PKI_SIDE_SHUTDOWN);

    events->bytes = before.messages;
    events->offset = before.chunks;
}

static pk_result_t send_message(struct pki_tcp_ep *ep, struct pki_tcp_ctrl *ctrl, const struct pki_msg *msg, const void *payload)
{
    unsigned char head[PKI_TCP_MSG_HEAD_MAX];
    struct pki_msg out = *msg;
    size_t bytes, gone;

    if (ep->base.dead)
        return PK_ERR_PEER;
    if (msg->kind == PKI_MSG_CTS && (msg->extra & PKI_CTS_LOCAL) != 0)
        return pki_tcp_grant(ep, msg, &out);
    if (msg->kind == PKI_MSG_CTS && msg->extra == PKI_CTS_CANCEL) {
        pki_tcp_grant_back(ep, msg);
        return PK_OK;
    }
    if (!ep->left && tx_room(ctrl) < sizeof head + msg->payload + PKI_TCP_LINE)
        return PK_IN_PROGRESS;
    if (msg->kind == PKI_MSG_CTS || msg->kind == PKI_MSG_BOUNCE_CREDIT) {
        pk_result_t result = pki_tcp_grant(ep, msg, &out);

        if (result != PK_OK)
            return result;
    }
    if (ep->left) /* nobody reads it any more; what came before a CTS has come */
        return PK_OK;
    if (out.kind == PKI_MSG_SIDE)
        count_before(ep, &out);
    bytes = pki_tcp_put_msg(head, &out, ctrl->link->received);
    if (pki_tcp_msg_tells(out.kind, out.payload))
        reported_along(ctrl);
    ctrl->acks_due = ctrl->acks_due || ctrl->rx_unreported >= TELL_BYTES;
    gone = send_at_once(ctrl, head, bytes, msg, payload);
    pki_tcp_ctrl_write(ctrl, head, bytes);
    if (msg->payload > 0)
        pki_tcp_ctrl_write(ctrl, payload, msg->payload);
    ring_fill(ctrl);
    advance_out(ctrl, gone);
    ctrl->link->end++;
    pki_tcp_ctrl_flush(ctrl);
    return PK_OK;
}

/* A short one that goes alone, and whole: made where it is kept. */
static inline bool goes_alone(const struct pki_tcp_ep *ep, const struct pki_tcp_ctrl *ctrl, const struct pki_msg *msg, size_t bytes)
{
    return msg->kind == PKI_MSG_EAGER && msg->payload < PKI_TCP_LONG_MIN && !ep->base.dead && !ep->left && ctrl->link->state == PKI_TCP_UP &&
           ctrl->link->writable && ctrl->tx_sent == ctrl->tx_end && ctrl->acks_bytes == 0 && !ctrl->acks_due && ctrl->rx_unreported < TELL_BYTES &&
           tx_room(ctrl) >= bytes && (ctrl->tx_end & TX_MASK) + bytes <= PKI_TCP_TX_BYTES;
}

static inline void send_alone(struct pki_tcp_ctrl *ctrl, const struct pki_msg *msg, const void *payload, size_t bytes)
{
    unsigned char *at = ctrl->tx + (ctrl->tx_end & TX_MASK);
    ssize_t n;

    memset(at + bytes - PKI_TCP_LINE, 0, PKI_TCP_LINE);
    pki_copy_short(at + pki_tcp_put_msg(at, msg, 0), payload, msg->payload);
    ctrl->tx_end += bytes;
    ctrl->link->end++;
    n = send(ctrl->link->source.fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    ctrl->tx_sent += n > 0 ? (size_t)n : 0;
    if (ctrl->tx_sent != ctrl->tx_end) /* a failure is seen again there */
        pki_tcp_ctrl_flush(ctrl);
    __builtin_prefetch(at + bytes, 1); /* where the next one goes */
}

PKI_HOT pk_result_t pki_tcp_msg(struct pki_ep *base, const struct pki_msg *msg, const void *payload)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_ctrl *ctrl = ctrl_of(ep, msg);
    size_t bytes = pki_tcp_filled(PKI_TCP_MSG_SHORT_BYTES + msg->payload);

    if (!goes_alone(ep, ctrl, msg, bytes))
        return send_message(ep, ctrl, msg, payload);
    send_alone(ctrl, msg, payload, bytes);
    return PK_OK;
}

PKI_HOT void pki_tcp_ctrl_acked(struct pki_tcp_ctrl *ctrl, uint64_t frames)
{
    struct pki_tcp_link *link = ctrl->link;

    for (; link->acked < frames; link->acked++)
        ctrl->tx_head += frame_bytes(ctrl, ctrl->tx_head);
}

/* While it stands. False: not all of them have been sent. */
static bool take_acked(struct pki_tcp_ctrl *ctrl, uint64_t frames)
{
    if (frames > ctrl->link->end)
        return false;
    pki_tcp_ctrl_acked(ctrl, frames);
    return ctrl->tx_head <= ctrl->tx_sent;
}

void pki_tcp_ctrl_rewind(struct pki_tcp_ctrl *ctrl)
{
    ctrl->tx_sent = ctrl->tx_head;
    ctrl->acks_sent = ctrl->acks_bytes = 0;
    ctrl->rx_tail = ctrl->rx_scan;
    ctrl->link->ep->gone = ctrl->link->ep->gone && ctrl->link->index > 0;
    for (uint32_t i = first_reported(ctrl); i <= last_reported(ctrl); i++)
        ctrl->link->ep->links[i].reported = UINT64_MAX; /* what was told may not have come */
    ctrl->acks_due = true;
}

/* ---- In ---- */

static bool take_ack(struct pki_tcp_ctrl *ctrl, const unsigned char *bytes)
{
    struct pki_tcp_ep *ep = ctrl->link->ep;
    struct pki_tcp_ack ack;

    if (!pki_tcp_get_ack(bytes, &ack) || ack.link < first_reported(ctrl) || ack.link > last_reported(ctrl) || ack.frames > ep->links[ack.link].end)
        return false;
    if (ack.link == ctrl->link->index)
        return take_acked(ctrl, ack.frames);
    if (!pki_tcp_data_was_sent(&ep->links[ack.link], ack.frames))
        return false;
    pki_tcp_data_acked(&ep->links[ack.link], ack.frames);
    return true;
}

/* It may say what of the control channel has come. */
static bool take_msg(struct pki_tcp_ctrl *ctrl, const struct pki_tcp_frame *frame)
{
    uint64_t frames;

    ctrl->link->received++;
    ctrl->rx_unreported += pki_tcp_filled(frame->bytes);
    ctrl->acks_due = ctrl->acks_due || ctrl->rx_unreported >= TELL_AT_LAST;
    return !pki_tcp_get_reported(ctrl->rx + ctrl->rx_scan + PKI_TCP_HEADER_BYTES, frame->bytes, &frames) || take_acked(ctrl, frames);
}

static bool take_frame(struct pki_tcp_ctrl *ctrl, const struct pki_tcp_frame *frame)
{
    switch (frame->type) {
    case PKI_TCP_MSG:
        return take_msg(ctrl, frame);
    case PKI_TCP_ACK:
        return take_ack(ctrl, ctrl->rx + ctrl->rx_scan + PKI_TCP_HEADER_BYTES);
    case PKI_TCP_CLOSE:
        if (ctrl->link->index != 0)
            return false;
        pki_tcp_is_shutting_down(ctrl->link->ep);
        return true;
    case PKI_TCP_DATA:
    case PKI_TCP_DATA_ACK:
        break;
    }
    return false;
}

/* A shutdown message that came before what was sent ahead of it by another connection, whose frames will have this control channel looked at again. */
static PKI_HOT bool is_held(const struct pki_tcp_ctrl *ctrl, const struct pki_tcp_frame *frame)
{
    struct pki_tcp_before before;

    if (frame->type != PKI_TCP_CLOSE || ctrl->link->index != 0)
        return false;
    before = pki_tcp_get_close(ctrl->rx + ctrl->rx_scan + PKI_TCP_HEADER_BYTES);
    return !has_come_before(ctrl->link->ep, &before);
}

static bool holds_shutdown(const struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_frame frame;

    return ctrl->rx_tail - ctrl->rx_scan >= PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES && pki_tcp_get_header(ctrl->rx + ctrl->rx_scan, &frame) &&
           is_held(ctrl, &frame);
}

/* Behind a frame that has been taken. Where no message is kept in front of it, only a message stays, for peek. */
static inline void pass(struct pki_tcp_ctrl *ctrl, const struct pki_tcp_frame *frame)
{
    bool stays = frame->type == PKI_TCP_MSG || ctrl->rx_head != ctrl->rx_scan;

    ctrl->rx_scan += pki_tcp_filled(frame->bytes);
    if (stays)
        return;
    ctrl->rx_head = ctrl->rx_scan;
    if (ctrl->rx_scan == ctrl->rx_tail)
        ctrl->rx_head = ctrl->rx_scan = ctrl->rx_tail = 0;
}

/* Look at the frames that are whole now. False: the endpoint is lost. */
static PKI_HOT bool scan(struct pki_tcp_ctrl *ctrl)
{
    while (ctrl->rx_tail - ctrl->rx_scan >= PKI_TCP_HEADER_BYTES) {
        struct pki_tcp_frame frame;
        bool right = pki_tcp_get_header(ctrl->rx + ctrl->rx_scan, &frame) && frame.type != PKI_TCP_DATA && frame.type != PKI_TCP_DATA_ACK;

        if (right && ctrl->rx_tail - ctrl->rx_scan < pki_tcp_filled(frame.bytes))
            return true;
        if (right && is_held(ctrl, &frame))
            return true;
        if (!right || !take_frame(ctrl, &frame)) {
            pki_tcp_lost(ctrl->link->ep, 0, "sent bytes on the control channel that make no sense");
            return false;
        }
        pass(ctrl, &frame);
    }
    return true;
}

static void make_room(struct pki_tcp_ctrl *ctrl)
{
    if (ctrl->rx_head > 0 && PKI_TCP_RX_BYTES - ctrl->rx_head < PKI_TCP_MSG_FRAME_MAX) {
        memmove(ctrl->rx, ctrl->rx + ctrl->rx_head, ctrl->rx_tail - ctrl->rx_head);
        ctrl->rx_tail -= ctrl->rx_head;
        ctrl->rx_scan -= ctrl->rx_head;
        ctrl->rx_head = 0;
    }
}

/* What its shutdown message waits for lies in this rank's kernel. */
static void await_idle(struct pki_tcp_ep *ep)
{
    if (ep->gone)
        return;
    ep->gone = true;
    pki_tcp_look_again(&ep->links[1]);
    if (ep->nctrls > 1)
        pki_tcp_look_again(ep->ctrl[1].link);
}

/* Behind recv, which returned n for `room` bytes. False: nothing more can be had there now. */
static PKI_HOT bool take_read(struct pki_tcp_ctrl *ctrl, ssize_t n, size_t room)
{
    struct pki_tcp_link *link = ctrl->link;

    if (n > 0) {
        bool right;

        link->heard = true;
        ctrl->rx_tail += (size_t)n;
        right = scan(ctrl);
        if (ctrl->acks_due)
            pki_tcp_ctrl_flush(ctrl);
        return right && ((size_t)n == room || link->hangup);
    }
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        link->readable = false;
    } else if (holds_shutdown(ctrl)) { /* it may end behind that */
        link->readable = false;
        link->hangup = true;
        await_idle(link->ep);
    } else {
        pki_tcp_link_broken(link, n < 0 ? errno : 0);
    }
    return false;
}

static PKI_HOT bool read_ctrl(struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_link *link = ctrl->link;
    bool moved = false, more = true;

    if (link->state == PKI_TCP_UP && link->index == 0 && ctrl->rx_tail > ctrl->rx_scan && !scan(ctrl)) /* a shutdown message that was held */
        return false;
    while (more && link->state == PKI_TCP_UP) {
        size_t room;
        ssize_t n;

        make_room(ctrl);
        room = PKI_TCP_RX_BYTES - ctrl->rx_tail;
        if (room == 0) { /* the engine has not taken them yet: pop comes back here */
            link->readable = true;
            return moved;
        }
        n = recv(link->source.fd, ctrl->rx + ctrl->rx_tail, room, MSG_DONTWAIT);
        moved = moved || n > 0;
        more = take_read(ctrl, n, room);
    }
    return moved;
}

void pki_tcp_ctrl_look(struct pki_tcp_ep *ep)
{
    struct pki_tcp_ctrl *first = &ep->ctrl[0];

    if (first->link->state == PKI_TCP_UP && first->rx_tail > first->rx_scan)
        pki_tcp_look_again(first->link);
}

bool pki_tcp_ctrl_read(struct pki_tcp_ctrl *ctrl)
{
    bool moved = read_ctrl(ctrl);

    if (moved && ctrl->link->index > 0)
        pki_tcp_ctrl_look(ctrl->link->ep);
    return moved;
}

/* While a chunk is awaited, or word of one, which come on a connection that is looked at as well; not where messages come meanwhile. */
static bool idle_polls(struct pki_tcp_ctrl *ctrl, bool in_chunks)
{
    struct pki_tcp_ep *ep = ctrl->link->ep;

    return pki_tcp_awaits_short(ep) && pki_tcp_awaits(ep) <= ep->params.chunk_bytes && ++ctrl->idle_polls > (in_chunks ? 0 : CTRL_POLL_BUDGET) && ctrl->idle_polls % CTRL_IDLE_BUDGET != 0;
}

static bool finds(struct pki_tcp_ctrl *ctrl, bool awaited)
{
    const struct pki_tcp_iface *iface = ctrl->link->ep->iface;
    unsigned polls = awaited && iface->size == 2 && iface->spins ? SOLE_POLL_BUDGET : 1;

    while (polls-- > 0 && ctrl->link->state == PKI_TCP_UP)
        if (pki_tcp_ctrl_read(ctrl))
            return true;
    return false;
}

/* A look that nobody was told to make has found something. */
static inline void note_find(struct pki_tcp_ctrl *ctrl)
{
    ctrl->link->ep->iface->quiet = 0;
    ctrl->idle_polls = 0;
    if (pki_list_empty(&ctrl->link->busy_polled))
        pki_tcp_found(ctrl->link);
}

static PKI_HOT bool look_directly(struct pki_tcp_ctrl *ctrl, bool awaited, bool in_chunks)
{
    struct pki_tcp_iface *iface = ctrl->link->ep->iface;

    if (!pki_tcp_ctrls_are_polled(iface) || ctrl->link->state != PKI_TCP_UP || idle_polls(ctrl, in_chunks))
        return false;
    if (!finds(ctrl, awaited))
        return false;
    note_find(ctrl);
    return true;
}

/* News of the engine comes after what its sender has said by the other control channel before, and the chunks that it did not
 * wait for. */
static bool is_early(struct pki_tcp_ep *ep, const struct pki_msg *msg)
{
    const struct pki_tcp_ctrl *other = &ep->ctrl[1];

    if (msg->kind != PKI_MSG_SIDE)
        return false;
    if (!has_come(&ep->links[1], msg->offset))
        return true;
    if (ep->nctrls == 1 || other->popped >= msg->bytes)
        return false;
    return other->rx_head != other->rx_scan || other->link->state != PKI_TCP_OVER;
}

static PKI_HOT bool peek_ctrl(struct pki_tcp_ctrl *ctrl, struct pki_msg *msg, const void **payload)
{
    struct pki_tcp_ep *ep = ctrl->link->ep;

    while (ctrl->rx_head < ctrl->rx_scan) {
        const unsigned char *at = ctrl->rx + ctrl->rx_head, *bytes;
        struct pki_tcp_frame frame;

        if (!pki_tcp_get_header(at, &frame))
            return false;
        if (frame.type != PKI_TCP_MSG) {
            ctrl->rx_head += pki_tcp_filled(frame.bytes);
            continue;
        }
        if (pki_tcp_get_msg(at + PKI_TCP_HEADER_BYTES, frame.bytes, msg, &bytes)) {
            *payload = bytes;
            ep->peeked = ctrl;
            return !is_early(ep, msg);
        }
        pki_tcp_lost(ep, 0, "sent a message that makes no sense");
        return false;
    }
    return false;
}

bool pki_tcp_ctrl_has_news(const struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_frame frame;
    struct pki_msg msg;
    const unsigned char *bytes;

    for (size_t at = ctrl->rx_head; at < ctrl->rx_scan; at += pki_tcp_filled(frame.bytes)) {
        if (!pki_tcp_get_header(ctrl->rx + at, &frame))
            return false;
        if (frame.type == PKI_TCP_MSG && pki_tcp_get_msg(ctrl->rx + at + PKI_TCP_HEADER_BYTES, frame.bytes, &msg, &bytes) &&
            msg.kind == PKI_MSG_SIDE)
            return true;
    }
    return false;
}

PKI_HOT bool pki_tcp_peek(struct pki_ep *base, struct pki_msg *msg, const void **payload)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    uint64_t expected = base->expected_op;
    bool awaited = base->expected > 0, in_chunks = base->in_chunks;
    struct pki_tcp_ctrl *likely;

    base->expected_op = 0;
    base->expected = 0;
    base->in_chunks = false;
    ep->peeked_event = pki_tcp_news_peek(ep, msg);
    ep->peeked_rts = !ep->peeked_event && pki_tcp_unexpected_peek(ep, msg);
    *payload = NULL;
    if (ep->peeked_event || ep->peeked_rts)
        return true;
    likely = &ep->ctrl[ep->nctrls > 1 && expected != 0 ? (expected + !ep->connects) & 1 : 0];
    if ((likely->rx_head != likely->rx_scan || look_directly(likely, awaited, in_chunks)) && peek_ctrl(likely, msg, payload))
        return true;
    if (ep->nctrls > 1) {
        struct pki_tcp_ctrl *other = likely == ep->ctrl ? &ep->ctrl[1] : ep->ctrl;

        return (other->rx_head != other->rx_scan || (++ep->polls % OTHER_IDLE_BUDGET == 0 && look_directly(other, false, in_chunks))) && peek_ctrl(other, msg, payload);
    }
    return false;
}

/* Nothing but such a message can be there. */
static inline bool may_take(const struct pki_tcp_ep *ep, const struct pki_tcp_ctrl *ctrl)
{
    const struct pki_tcp_iface *iface = ep->iface;

    return ctrl->rx_tail == 0 && ctrl->link->state == PKI_TCP_UP && pki_list_empty(&ep->events) && !ep->wants && ep->unreported == 0 && iface->busy == 0 &&
           pki_tcp_ctrls_are_polled(iface);
}

/* Something is there now that peek will find. */
static bool comes_by_other(struct pki_tcp_ep *ep)
{
    struct pki_tcp_ctrl *other = &ep->ctrl[1];

    return ep->nctrls > 1 && (other->rx_head != other->rx_scan || look_directly(other, false, false));
}

PKI_HOT enum pki_take pki_tcp_take(struct pki_ep *base, const struct pki_wanted *wanted, void *out, uint64_t *credit)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_ctrl *ctrl = ep->ctrl;
    struct pki_tcp_link *link = ctrl->link;
    const unsigned char *payload;
    ssize_t n;

    if (!may_take(ep, ctrl) || (++ep->polls % OTHER_IDLE_BUDGET == 0 && comes_by_other(ep)))
        return PKI_TAKE_OTHER;
    n = recv(link->source.fd, ctrl->rx, PKI_TCP_RX_BYTES, MSG_DONTWAIT);
    payload = n < PKI_TCP_LINE ? NULL : pki_tcp_get_wanted(ctrl->rx, (size_t)n, wanted, credit);
    if (payload == NULL) {
        (void)take_read(ctrl, n, PKI_TCP_RX_BYTES);
        if (n > 0)
            note_find(ctrl);
        return n <= 0 && ctrl->rx_tail == 0 && link->state == PKI_TCP_UP ? PKI_TAKE_NOTHING : PKI_TAKE_OTHER;
    }
    pki_copy_short(out, payload, wanted->bytes);
    link->heard = true;
    link->received++;
    ctrl->popped++;
    ctrl->rx_unreported += (size_t)n;
    if (ctrl->rx_unreported >= TELL_AT_LAST) {
        ctrl->acks_due = true;
        pki_tcp_ctrl_flush(ctrl);
    }
    note_find(ctrl);
    if (link->readable)
        pki_tcp_link_ready(link);
    return PKI_TAKE_IT;
}

PKI_HOT void pki_tcp_pop(struct pki_ep *base)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_ctrl *ctrl = ep->peeked;
    struct pki_tcp_frame frame;

    if (ep->peeked_event) {
        pki_tcp_news_pop(ep);
        return;
    }
    if (ep->peeked_rts) {
        ep->wants = false;
        return;
    }
    if (pki_tcp_get_header(ctrl->rx + ctrl->rx_head, &frame))
        ctrl->rx_head += pki_tcp_filled(frame.bytes);
    ctrl->popped++;
    if (ctrl->rx_head == ctrl->rx_tail)
        ctrl->rx_head = ctrl->rx_scan = ctrl->rx_tail = 0;
    if (ctrl->link->readable)
        pki_tcp_link_ready(ctrl->link);
}

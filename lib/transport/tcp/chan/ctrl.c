/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on the control channel: kept in a ring until the peer has them, read into a buffer and looked at in place. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"
#include "util/copy.h"

#define TX_MASK (PKI_TCP_TX_BYTES - 1)

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

/* A half-written row of acknowledgements first, then the frames, then acknowledgements that are due. */
static int gather(struct pki_tcp_ctrl *ctrl, struct iovec parts[3])
{
    size_t at = ctrl->tx_sent & TX_MASK, bytes = (size_t)(ctrl->tx_end - ctrl->tx_sent);
    size_t first = bytes < PKI_TCP_TX_BYTES - at ? bytes : PKI_TCP_TX_BYTES - at;
    int n = 0;

    if (ctrl->acks.sent == 0 && bytes > 0) {
        parts[n++] = (struct iovec){ ctrl->tx + at, first };
        if (bytes > first)
            parts[n++] = (struct iovec){ ctrl->tx, bytes - first };
    }
    if (ctrl->acks.sent < ctrl->acks.bytes)
        parts[n++] = (struct iovec){ ctrl->acks.row + ctrl->acks.sent, ctrl->acks.bytes - ctrl->acks.sent };
    return n;
}

static void advance_out(struct pki_tcp_ctrl *ctrl, size_t bytes)
{
    if (ctrl->acks.sent == 0) {
        size_t frames = (size_t)(ctrl->tx_end - ctrl->tx_sent);

        frames = bytes < frames ? bytes : frames;
        ctrl->tx_sent += frames;
        bytes -= frames;
    }
    ctrl->acks.sent += bytes;
    if (ctrl->acks.sent == ctrl->acks.bytes)
        ctrl->acks.sent = ctrl->acks.bytes = 0;
}

/* Nothing can be written any more, but what the peer wrote before it left, or broke off, is still there. */
static void end_by_reading(struct pki_tcp_link *link)
{
    link->writable = false;
    link->readable = link->hangup = true;
    pki_tcp_link_ready(link);
}

void pki_tcp_ctrl_flush(struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_link *link = ctrl->link;

    while (link->state == PKI_TCP_UP && link->writable) {
        struct iovec parts[3];
        struct msghdr message = { .msg_iov = parts };
        ssize_t n;

        if (ctrl->acks.due && ctrl->acks.bytes == 0)
            pki_tcp_acks_gather(ctrl->link->ep);
        message.msg_iovlen = (size_t)gather(ctrl, parts);
        if (message.msg_iovlen == 0)
            return;
        n = message.msg_iovlen == 1 ? send(link->source.fd, parts->iov_base, parts->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                                    : sendmsg(link->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            advance_out(ctrl, (size_t)n);
            if (ctrl->tx_sent == ctrl->tx_end && ctrl->acks.bytes == 0 && !ctrl->acks.due)
                return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            link->writable = false;
        } else if (errno != EINTR) {
            end_by_reading(link);
        }
    }
}

/* `chunks` have come on link 1, or never will. */
static bool have_come(const struct pki_tcp_ep *ep, uint64_t chunks)
{
    return ep->links[1].state == PKI_TCP_OVER || ep->links[1].received >= chunks;
}

bool pki_tcp_has_room(const struct pki_tcp_ep *ep, const struct pki_msg *msg)
{
    return ep->left || tx_room(&ep->ctrl) >= PKI_TCP_MSG_HEAD_MAX + msg->payload + PKI_TCP_LINE;
}

pk_result_t pki_tcp_send(struct pki_ep *base, const struct pki_msg *msg, const void *payload)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_ctrl *ctrl = &ep->ctrl;
    unsigned char head[PKI_TCP_MSG_HEAD_MAX];
    struct pki_msg out = *msg;
    size_t bytes;

    if (ep->base.state == PKI_EP_DEAD)
        return PK_ERR_PEER;
    if (!pki_tcp_has_room(ep, msg))
        return PK_IN_PROGRESS;
    if (ep->left) /* nobody reads it any more */
        return PK_OK;
    if (out.kind == PKI_MSG_SIDE)
        out.offset = pki_tcp_sent_before(ep, out.extra == PKI_SIDE_SHUTDOWN);
    bytes = pki_tcp_put_msg(head, &out);
    ctrl->acks.due = ctrl->acks.due || ctrl->acks.unreported >= PKI_TCP_TELL_BYTES;
    pki_tcp_ctrl_write(ctrl, head, bytes);
    if (msg->payload > 0)
        pki_tcp_ctrl_write(ctrl, payload, msg->payload);
    ring_fill(ctrl);
    ctrl->link->end++;
    pki_tcp_ctrl_flush(ctrl);
    return PK_OK;
}

static void forget_acked(struct pki_tcp_ctrl *ctrl, uint64_t frames)
{
    struct pki_tcp_link *link = ctrl->link;

    for (; link->acked < frames; link->acked++)
        ctrl->tx_head += frame_bytes(ctrl, ctrl->tx_head);
}

/* ---- In ---- */

static void take_msg(struct pki_tcp_ctrl *ctrl, const struct pki_tcp_frame *frame)
{
    ctrl->link->received++;
    ctrl->acks.unreported += pki_tcp_filled(frame->bytes);
    ctrl->acks.due = ctrl->acks.due || ctrl->acks.unreported >= PKI_TCP_TELL_AT_LAST;
}

static bool take_frame(struct pki_tcp_ctrl *ctrl, const struct pki_tcp_frame *frame)
{
    switch (frame->type) {
    case PKI_TCP_MSG:
        take_msg(ctrl, frame);
        return true;
    case PKI_TCP_ACK:
        return pki_tcp_ack_take(ctrl->link->ep, ctrl->rx + ctrl->rx_scan + PKI_TCP_HEADER_BYTES);
    case PKI_TCP_CLOSE:
        pki_tcp_is_shutting_down(ctrl->link->ep);
        return true;
    case PKI_TCP_DATA:
        break;
    }
    return false;
}

/* A shutdown message that came before what was sent ahead of it by another connection. That one's frames will have this control
 * channel looked at again. */
static bool is_held(const struct pki_tcp_ctrl *ctrl, const struct pki_tcp_frame *frame)
{
    const unsigned char *bytes = ctrl->rx + ctrl->rx_scan + PKI_TCP_HEADER_BYTES;

    return frame->type == PKI_TCP_CLOSE && !have_come(ctrl->link->ep, pki_tcp_get_close(bytes));
}

static bool holds_shutdown(const struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_frame frame;

    return ctrl->rx_tail - ctrl->rx_scan >= PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES &&
           pki_tcp_get_header(ctrl->rx + ctrl->rx_scan, &frame) && is_held(ctrl, &frame);
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
static bool scan(struct pki_tcp_ctrl *ctrl)
{
    while (ctrl->rx_tail - ctrl->rx_scan >= PKI_TCP_HEADER_BYTES) {
        struct pki_tcp_frame frame;
        bool right = pki_tcp_get_header(ctrl->rx + ctrl->rx_scan, &frame) && frame.type != PKI_TCP_DATA;

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
}

/* Behind recv, which returned n for `room` bytes. False: there is nothing more to read now. */
static bool take_read(struct pki_tcp_ctrl *ctrl, ssize_t n, size_t room)
{
    struct pki_tcp_link *link = ctrl->link;

    if (n > 0) {
        bool right;

        ctrl->heard = true;
        ctrl->rx_tail += (size_t)n;
        right = scan(ctrl);
        if (ctrl->acks.due)
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

bool pki_tcp_ctrl_read(struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_link *link = ctrl->link;
    bool moved = false, more = true;

    if (link->state == PKI_TCP_UP && ctrl->rx_tail > ctrl->rx_scan && !scan(ctrl)) /* a shutdown message that was held */
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
    struct pki_tcp_ctrl *ctrl = &ep->ctrl;

    if (ctrl->link->state == PKI_TCP_UP && ctrl->rx_tail > ctrl->rx_scan)
        pki_tcp_look_again(ctrl->link);
}

static bool look_directly(struct pki_tcp_ctrl *ctrl)
{
    struct pki_tcp_iface *iface = ctrl->link->ep->iface;

    if (!pki_tcp_ctrls_are_polled(iface) || ctrl->link->state != PKI_TCP_UP || !pki_tcp_ctrl_read(ctrl))
        return false;
    iface->quiet = 0;
    return true;
}

/* News of the engine comes after the chunks that its sender did not wait for. */
static bool is_early(const struct pki_tcp_ep *ep, const struct pki_msg *msg)
{
    return msg->kind == PKI_MSG_SIDE && !have_come(ep, msg->offset);
}

static bool peek_ctrl(struct pki_tcp_ctrl *ctrl, struct pki_msg *msg, const void **payload)
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
            return !is_early(ep, msg);
        }
        pki_tcp_lost(ep, 0, "sent a message that makes no sense");
        return false;
    }
    return false;
}

bool pki_tcp_peek(struct pki_ep *base, struct pki_msg *msg, const void **payload)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_ctrl *ctrl = &ep->ctrl;

    *payload = NULL;
    return (ctrl->rx_head != ctrl->rx_scan || look_directly(ctrl)) && peek_ctrl(ctrl, msg, payload);
}

void pki_tcp_pop(struct pki_ep *base)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_ctrl *ctrl = &ep->ctrl;
    struct pki_tcp_frame frame;

    if (pki_tcp_get_header(ctrl->rx + ctrl->rx_head, &frame))
        ctrl->rx_head += pki_tcp_filled(frame.bytes);
    if (ctrl->rx_head == ctrl->rx_tail)
        ctrl->rx_head = ctrl->rx_scan = ctrl->rx_tail = 0;
    if (ctrl->link->readable)
        pki_tcp_link_ready(ctrl->link);
}

/* ---- As the user of its connection ---- */

static void readable(struct pki_tcp_link *link)
{
    if (pki_tcp_ctrl_read(link->ctrl))
        link->ep->iface->quiet = 0;
}

static void writable(struct pki_tcp_link *link)
{
    pki_tcp_ctrl_flush(link->ctrl);
}

/* False: not all of them have been sent. */
static bool acked(struct pki_tcp_link *link, uint64_t frames)
{
    forget_acked(link->ctrl, frames);
    return link->ctrl->tx_head <= link->ctrl->tx_sent;
}

/* What has come, and is whole, stays: the engine takes it yet. */
static void broken(struct pki_tcp_link *link)
{
    link->ep->gone = false;
}

/* What the peer lacks is written again, and read again what is not whole. */
static void reset(struct pki_tcp_link *link, uint64_t received)
{
    struct pki_tcp_ctrl *ctrl = link->ctrl;

    broken(link);
    ctrl->heard = !link->ep->connects;
    forget_acked(ctrl, received);
    ctrl->tx_sent = ctrl->tx_head;
    ctrl->rx_tail = ctrl->rx_scan;
    pki_tcp_acks_repeat(link->ep);
}

/* Messages end when they are written here. */
static void lost(struct pki_tcp_link *link)
{
    (void)link;
}

static bool has_news(const struct pki_tcp_link *link)
{
    const struct pki_tcp_ctrl *ctrl = link->ctrl;
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

static const struct pki_tcp_user user = {
    .readable = readable,
    .writable = writable,
    .acked = acked,
    .broken = broken,
    .reset = reset,
    .lost = lost,
    .has_news = has_news,
};

void pki_tcp_ctrl_use(struct pki_tcp_link *link)
{
    link->user = &user;
    link->ctrl = &link->ep->ctrl;
    link->ctrl->link = link;
}

bool pki_tcp_ctrl_open(struct pki_tcp_ctrl *ctrl)
{
    ctrl->tx = aligned_alloc(4096, PKI_TCP_TX_BYTES);
    ctrl->rx = aligned_alloc(4096, PKI_TCP_RX_BYTES);
    return ctrl->tx != NULL && ctrl->rx != NULL;
}

void pki_tcp_ctrl_free(struct pki_tcp_ctrl *ctrl)
{
    free(ctrl->rx);
    free(ctrl->tx);
    *ctrl = (struct pki_tcp_ctrl){ 0 };
}

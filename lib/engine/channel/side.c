/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames on the unix socket beside a control channel: descriptions of memory with their descriptors, bad news, shutdown
 * message. The socket also tells of a peer's death: the kernel closes it. Between hosts there is no such socket: bad news and
 * shutdown message travel as messages on the control channel, and the control channel itself tells of a death.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/channel/channel.h"
#include "util/bytes.h"
#include "util/clock.h"
#include "util/socket.h"

enum frame_kind { FRAME_EXPORT = 1, FRAME_PIECES, FRAME_FAILED, FRAME_SHUTDOWN, FRAME_FORGET, FRAME_AGREE };

#define FRAME_VERSION 2

struct frame {
    uint32_t version, kind;
    union {
        struct {
            uint32_t id, export_kind, pieces, reserved;
            uint64_t base, bytes, buffer_id, owner, piece_bytes_first, piece_bytes;
            uint8_t device_uuid[16];
            uint8_t handle[PKI_EXPORT_HANDLE_BYTES];
        } export; /* FRAME_EXPORT; FRAME_PIECES (more descriptors) and FRAME_FORGET with the id alone */
        struct {
            int32_t code, peer;
            char text[256];
        } failed; /* FRAME_FAILED. FRAME_SHUTDOWN: `code` is why (PKI_BYE_*), `peer` the number of the last
                     collective begun there */
        struct {
            uint32_t bytes;
            unsigned char data[PKI_AGREE_WIRE_MAX];
        } agree; /* FRAME_AGREE */
    } u;
};

/* ---- out ---- */

static void fill_export(struct frame *frame, uint32_t id, const struct pki_export *x)
{
    frame->version = FRAME_VERSION;
    frame->kind = FRAME_EXPORT;
    frame->u.export.id = id;
    frame->u.export.export_kind = (uint32_t)x->kind;
    frame->u.export.pieces = x->pieces;
    frame->u.export.base = x->base;
    frame->u.export.bytes = x->bytes;
    frame->u.export.buffer_id = x->buffer_id;
    frame->u.export.owner = x->owner;
    frame->u.export.piece_bytes_first = x->piece_bytes_first;
    frame->u.export.piece_bytes = x->piece_bytes;
    memcpy(frame->u.export.device_uuid, x->device_uuid, sizeof x->device_uuid);
    memcpy(frame->u.export.handle, x->handle, sizeof x->handle);
}

/* Descriptors go 250 at a time; a description in the middle is finished before another one begins. */
pk_result_t pki_side_send_export(struct pki_engine *e, struct pki_peer *peer, uint32_t id, const struct pki_export *x)
{
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    struct frame frame = { 0 };

    if (peer->regions.exporting != 0 && peer->regions.exporting != id)
        return PK_IN_PROGRESS;
    fill_export(&frame, id, x);
    do {
        uint32_t left = x->pieces - peer->regions.exported_pieces;
        int n = left < PKI_FRAME_FDS ? (int)left : PKI_FRAME_FDS;
        pk_result_t result;

        frame.kind = peer->regions.exporting == 0 ? FRAME_EXPORT : FRAME_PIECES;
        result =
            pki_fd_send(peer->side_fd, &frame, sizeof frame, n > 0 ? x->fds + peer->regions.exported_pieces : NULL, n, &where);
        if (result != PK_OK)
            return result;
        peer->regions.exporting = id;
        peer->regions.exported_pieces += (uint32_t)n;
    } while (peer->regions.exported_pieces < x->pieces);
    peer->regions.exporting = peer->regions.exported_pieces = 0;
    return PK_OK;
}

void pki_side_send_forget(struct pki_engine *e, struct pki_peer *peer, uint32_t id)
{
    struct frame frame = { .version = FRAME_VERSION, .kind = FRAME_FORGET };

    (void)e;
    frame.u.export.id = id;
    (void)pki_fd_send(peer->side_fd, &frame, sizeof frame, NULL, 0, NULL); /* else the entry's next description says it */
}

/* kind u32, then code i32, peer i32, text; little endian. */
#define NEWS_BYTES 12

static pk_result_t tell_by_message(struct pki_peer *peer, const struct frame *frame)
{
    unsigned char bytes[NEWS_BYTES + sizeof frame->u.failed.text];
    size_t text = frame->kind == FRAME_FAILED ? strlen(frame->u.failed.text) : 0;
    struct pki_msg msg = { .kind = PKI_MSG_SIDE,
                           .extra = frame->kind == FRAME_SHUTDOWN ? PKI_SIDE_SHUTDOWN : 0,
                           .payload = (uint32_t)(NEWS_BYTES + text) };

    pki_put_u32(bytes, frame->kind);
    pki_put_u32(bytes + 4, (uint32_t)frame->u.failed.code);
    pki_put_u32(bytes + 8, (uint32_t)frame->u.failed.peer);
    memcpy(bytes + NEWS_BYTES, frame->u.failed.text, text);
    return peer->ctrl->iface->transport->send(peer->ctrl, &msg, bytes);
}

/* PK_IN_PROGRESS: there is no room now. */
static pk_result_t send_frame(struct pki_peer *peer, const struct frame *frame)
{
    if (peer->side_fd >= 0)
        return pki_fd_send(peer->side_fd, frame, sizeof *frame, NULL, 0, NULL);
    return peer->ctrl != NULL ? tell_by_message(peer, frame) : PK_OK;
}

/* Who has finalized counts as gone, but is still there: it would take the closed socket for a death. Transports between hosts
 * see to that. */
static bool hears(const struct pki_peer *peer)
{
    return !peer->gone || (peer->shutdown == PKI_SHUTDOWN_FINALIZED && peer->side_fd >= 0);
}

/* Whom nothing reaches any more sees the connection close. */
static pk_result_t tell(struct pki_peer *peer, const struct frame *frame)
{
    return hears(peer) ? send_frame(peer, frame) : PK_OK;
}

/* Between hosts the kind goes before it. */
static pk_result_t send_agree_message(struct pki_peer *peer, const unsigned char *data, size_t n)
{
    unsigned char bytes[4 + PKI_AGREE_WIRE_MAX];
    struct pki_msg msg = { .kind = PKI_MSG_SIDE, .payload = (uint32_t)(4 + n) };

    pki_put_u32(bytes, FRAME_AGREE);
    memcpy(bytes + 4, data, n);
    return peer->ctrl->iface->transport->send(peer->ctrl, &msg, bytes);
}

pk_result_t pki_side_send_agree(struct pki_peer *peer, const unsigned char *data, size_t n)
{
    struct frame frame = { .version = FRAME_VERSION, .kind = FRAME_AGREE };

    if (peer->gone)
        return PK_OK;
    if (peer->side_fd < 0)
        return peer->ctrl != NULL ? send_agree_message(peer, data, n) : PK_OK;
    frame.u.agree.bytes = (uint32_t)n;
    memcpy(frame.u.agree.data, data, n);
    return pki_fd_send(peer->side_fd, &frame, sizeof frame, NULL, 0, NULL);
}

static struct frame bad_news(const struct pki_engine *e)
{
    struct frame frame = { .version = FRAME_VERSION, .kind = FRAME_FAILED };

    frame.u.failed.code = (int32_t)e->failure.error.code;
    frame.u.failed.peer = e->failure.error.peer;
    snprintf(frame.u.failed.text, sizeof frame.u.failed.text, "%.*s", (int)sizeof frame.u.failed.text - 1, e->failure.error.text);
    return frame;
}

void pki_side_tell_all(struct pki_engine *e)
{
    const struct frame frame = bad_news(e);
    const int cancel = pki_cancel_hold();
    int unreported = 0;

    for (int i = 0; i < e->config.size; i++) {
        struct pki_peer *peer = &e->peers[i];

        peer->unreported = tell(peer, &frame) == PK_IN_PROGRESS && !peer->gone; /* who has finalized may read no more */
        unreported += peer->unreported;
    }
    atomic_store(&e->failure.unreported, unreported);
    pki_cancel_release(cancel);
}

void pki_side_send_shutdown(struct pki_engine *e, enum pki_shutdown why)
{
    struct frame frame = { .version = FRAME_VERSION, .kind = FRAME_SHUTDOWN };
    const int cancel = pki_cancel_hold();

    frame.u.failed.code = (int32_t)why;
    frame.u.failed.peer = (int32_t)(uint32_t)e->colls.number;
    for (int i = 0; i < e->config.size && !e->shutdown_sent; i++)
        (void)tell(&e->peers[i], &frame);
    e->shutdown_sent = true;
    pki_cancel_release(cancel);
}

void pki_side_tell_again(struct pki_engine *e)
{
    const struct frame frame = bad_news(e);
    int unreported = 0;

    for (int i = 0; i < e->ifaces.n; i++) /* what is on its way in a control channel makes room */
        (void)e->ifaces.at[i]->transport->progress(e->ifaces.at[i]);
    for (int i = 0; i < e->config.size; i++) {
        struct pki_peer *peer = &e->peers[i];

        peer->unreported = peer->unreported && tell(peer, &frame) == PK_IN_PROGRESS;
        unreported += peer->unreported;
    }
    atomic_store(&e->failure.unreported, unreported);
}

/* ---- in ---- */

static void fail_peer(struct pki_engine *e, struct pki_peer *peer, pk_result_t code)
{
    peer->gone = true;
    pki_engine_poison(e, code, true);
}

static pk_result_t code_of(const struct frame *frame)
{
    return frame->u.failed.code > PK_IN_PROGRESS && frame->u.failed.code <= PK_ERR_REVOKED ? (pk_result_t)frame->u.failed.code
                                                                                           : PK_ERR_PEER;
}

static void take_failed(struct pki_engine *e, struct pki_peer *peer, struct frame *frame)
{
    int culprit = frame->u.failed.peer >= 0 && frame->u.failed.peer < e->config.size ? frame->u.failed.peer : peer->rank;
    pk_result_t code = code_of(frame);
    struct pki_where where;

    if (culprit == e->config.rank && code == PK_ERR_TIMEOUT)
        e->failure.accuser = 1 + peer->rank;
    if (atomic_load(&e->failed) != PK_OK) /* everybody tells everybody; the first counts */
        return;
    if (culprit == e->config.rank && code == PK_ERR_TIMEOUT) /* somebody waited for us, because we wait too */
        culprit = e->handlers->missing(e);
    if (culprit == e->config.rank || culprit < 0) /* or disagreed with us: the other side is who told */
        culprit = peer->rank;
    where = pki_engine_where(e, culprit, pki_engine_first_task(e));
    frame->u.failed.text[sizeof frame->u.failed.text - 1] = '\0';
    (void)pki_fail(code, &where, "rank %d reports: %s", peer->rank, frame->u.failed.text);
    pki_engine_poison(e, code, false);
}

static void take_shutdown(struct pki_peer *peer, const struct frame *frame)
{
    int why = frame->u.failed.code;

    peer->gone = true;
    peer->shutdown = why >= PKI_SHUTDOWN_DESTROYED && why < PKI_SHUTDOWN_NONE ? (enum pki_shutdown)why : PKI_SHUTDOWN_DESTROYED;
    peer->last_coll = (uint32_t)frame->u.failed.peer;
    for (int i = 0; i < peer->neps; i++)
        peer->eps[i]->farewell.theirs = true;
}

static pk_result_t take_export(struct pki_engine *e, struct pki_peer *peer, const struct frame *frame, const int *fds, int n)
{
    struct pki_export x = { 0 };

    if (frame->kind == FRAME_EXPORT) {
        x = (struct pki_export){ .base = frame->u.export.base,
                                 .bytes = frame->u.export.bytes,
                                 .buffer_id = frame->u.export.buffer_id,
                                 .owner = frame->u.export.owner,
                                 .pieces = frame->u.export.pieces,
                                 .piece_bytes_first = frame->u.export.piece_bytes_first,
                                 .piece_bytes = frame->u.export.piece_bytes };
        if (frame->u.export.export_kind > PKI_EXPORT_MEMFD || x.pieces > PKI_EXPORT_PIECES_MAX)
            return PK_ERR_INTERNAL;
        x.kind = frame->u.export.export_kind;
        memcpy(x.device_uuid, frame->u.export.device_uuid, sizeof x.device_uuid);
        memcpy(x.handle, frame->u.export.handle, sizeof x.handle);
    }
    return e->handlers->described(e, peer, frame->u.export.id, frame->kind == FRAME_EXPORT ? &x : NULL, fds, n);
}

/* An error is the peer's: it has sent no message of an agreement. Without memory for one it is this rank that fails. */
static pk_result_t take_agreement(struct pki_engine *e, struct pki_peer *peer, const unsigned char *bytes, size_t n)
{
    const pk_result_t result = e->handlers->agreement(e, peer, bytes, n);

    if (result == PK_ERR_MEMORY)
        pki_engine_poison(e, result, true);
    return result == PK_ERR_INTERNAL ? result : PK_OK;
}

static pk_result_t take(struct pki_engine *e, struct pki_peer *peer, struct frame *frame, const struct pki_frame_in *in)
{
    bool describes = frame->kind == FRAME_EXPORT || frame->kind == FRAME_PIECES;

    if (in->bytes != sizeof *frame || frame->version != FRAME_VERSION || (in->fd_count > 0 && !describes))
        return PK_ERR_INTERNAL;
    switch (frame->kind) {
    case FRAME_EXPORT:
    case FRAME_PIECES:
        return take_export(e, peer, frame, in->fds, in->fd_count);
    case FRAME_FORGET:
        e->handlers->forgotten(e, peer, frame->u.export.id);
        return PK_OK;
    case FRAME_FAILED:
        take_failed(e, peer, frame);
        return PK_OK;
    case FRAME_SHUTDOWN:
        take_shutdown(peer, frame);
        return PK_OK;
    case FRAME_AGREE:
        return take_agreement(e, peer, frame->u.agree.data, frame->u.agree.bytes);
    default:
        return PK_ERR_INTERNAL;
    }
}

void pki_side_message(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg, const void *payload)
{
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    const unsigned char *bytes = payload;
    struct frame frame = { .version = FRAME_VERSION };
    size_t text = msg->payload - (size_t)NEWS_BYTES;

    if (msg->payload >= 4 && pki_get_u32(bytes) == FRAME_AGREE && take_agreement(e, peer, bytes + 4, msg->payload - 4) == PK_OK)
        return;
    if (msg->payload < NEWS_BYTES || text >= sizeof frame.u.failed.text || peer->side_fd >= 0 ||
        (pki_get_u32(bytes) != FRAME_FAILED && pki_get_u32(bytes) != FRAME_SHUTDOWN)) {
        (void)pki_fail(PK_ERR_INTERNAL, &where, "sent an invalid failure message (%u bytes)", (unsigned)msg->payload);
        fail_peer(e, peer, PK_ERR_INTERNAL);
        return;
    }
    frame.u.failed.code = (int32_t)pki_get_u32(bytes + 4);
    frame.u.failed.peer = (int32_t)pki_get_u32(bytes + 8);
    if (pki_get_u32(bytes) == FRAME_SHUTDOWN) {
        take_shutdown(peer, &frame);
        return;
    }
    memcpy(frame.u.failed.text, bytes + NEWS_BYTES, text);
    take_failed(e, peer, &frame);
}

/* After a failure that a peer is gone is no news. */
static bool is_closed(const struct pki_peer *peer)
{
    char byte;
    ssize_t n = recv(peer->side_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static void take_all(struct pki_engine *e, struct pki_peer *peer, bool failed_too)
{
    struct pki_where where = pki_engine_where(e, peer->rank, pki_engine_first_task(e));

    while (!peer->gone && (failed_too || atomic_load(&e->failed) == PK_OK)) {
        struct frame frame;
        int fds[PKI_FRAME_FDS];
        struct pki_frame_in in = { .data = &frame, .capacity = sizeof frame, .fds = fds, .fd_capacity = PKI_FRAME_FDS };
        pk_result_t result;

        if (atomic_load(&e->failed) != PK_OK && is_closed(peer)) {
            peer->gone = true;
            return;
        }
        result = pki_fd_recv(peer->side_fd, &in, &where);

        if (result == PK_IN_PROGRESS)
            return;
        if (result != PK_OK) {
            fail_peer(e, peer, PK_ERR_PEER);
            return;
        }
        result = take(e, peer, &frame, &in);
        if (result == PK_OK)
            continue;
        for (int i = 0; i < in.fd_count; i++)
            close(fds[i]);
        (void)pki_fail(PK_ERR_INTERNAL, &where, "sent an invalid frame (kind %u, %zu bytes)", frame.kind, in.bytes);
        fail_peer(e, peer, PK_ERR_INTERNAL);
    }
}

void pki_side_poll(struct pki_engine *e, struct pki_peer *peer)
{
    const int cancel = pki_cancel_hold();

    take_all(e, peer, false);
    pki_cancel_release(cancel);
}

void pki_side_drain(struct pki_engine *e, struct pki_peer *peer)
{
    const int cancel = pki_cancel_hold();

    take_all(e, peer, true);
    pki_cancel_release(cancel);
}

/* Of the frames that wait; one with descriptors is the last that can be seen. */
#define PEEKED 16

pk_result_t pki_side_peek(const struct pki_engine *e, const struct pki_peer *peer)
{
    const size_t each = PKI_FD_HEADER_BYTES + sizeof(struct frame);
    struct pki_where where = pki_engine_where(e, peer->rank, NULL);
    struct pollfd closed = { .fd = peer->side_fd };
    unsigned char bytes[PEEKED * (PKI_FD_HEADER_BYTES + sizeof(struct frame))];
    ssize_t n;

    if (peer->side_fd < 0)
        return PK_OK;
    n = recv(peer->side_fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    for (size_t at = 0; n > 0 && at + each <= (size_t)n; at += each) {
        struct frame frame;

        memcpy(&frame, bytes + at + PKI_FD_HEADER_BYTES, sizeof frame);
        frame.u.failed.text[sizeof frame.u.failed.text - 1] = '\0';
        if (frame.kind == FRAME_FAILED)
            return pki_fail(code_of(&frame), &where, "rank %d reports: %s", peer->rank, frame.u.failed.text);
    }
    if (n == 0 || (poll(&closed, 1, 0) == 1 && (closed.revents & POLLHUP) != 0))
        return pki_fail(PK_ERR_PEER, &where, "closed its connection");
    return PK_OK;
}

void pki_side_take_messages(struct pki_engine *e, struct pki_peer *peer)
{
    const struct pki_transport *transport;
    struct pki_msg msg;
    const void *payload;

    if (peer->ctrl == NULL || peer->side_fd >= 0)
        return;
    transport = peer->ctrl->iface->transport;
    while (transport->peek(peer->ctrl, &msg, &payload)) {
        if (msg.kind == PKI_MSG_SIDE)
            pki_side_message(e, peer, &msg, payload);
        transport->pop(peer->ctrl);
    }
}

const struct pki_ep *pki_side_dead_ep(const struct pki_peer *peer)
{
    for (int i = 0; i < peer->neps; i++)
        if (peer->eps[i]->state == PKI_EP_DEAD)
            return peer->eps[i];
    return NULL;
}

bool pki_side_is_lost(const struct pki_peer *peer)
{
    const struct pki_ep *dead = pki_side_dead_ep(peer);
    struct pki_msg msg;
    const void *payload;

    if (peer->side_fd >= 0 || peer->ctrl == NULL)
        return peer->gone;
    return (peer->gone || peer->ctrl->state >= PKI_EP_LEFT || (dead != NULL && dead->cause.peer_ended)) &&
           !peer->ctrl->iface->transport->peek(peer->ctrl, &msg, &payload);
}

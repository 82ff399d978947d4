/* SPDX-License-Identifier: Apache-2.0 */
/* The sender of transfers through bounce buffers (bounce.c): pieces of what is ready, by buffers of this rank or the receiver. */
#include <string.h>

#include "engine/proto/bounce.h"
#include "engine/proto/proto.h"

static size_t piece_max(const struct pki_xfer *xfer)
{
    size_t share = (xfer->bytes / PKI_BOUNCE_PARTS + 4095) & ~(size_t)4095;

    if (share < pki_tuning.gpu.bounce_piece_min_bytes)
        return pki_tuning.gpu.bounce_piece_min_bytes;
    return share < PKI_BOUNCE_BYTES ? share : PKI_BOUNCE_BYTES;
}

/* The next piece of what is ready; false: there is none, or no slot or word for it. */
static bool piece_begin(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    struct pki_bounce *bounce_state = xfer->bounce.state;
    struct pki_piece *piece = pki_bounce_piece(bounce_state, bounce_state->head);
    size_t left = xfer->ready - xfer->issued, max = piece_max(xfer);
    const char *src = xfer->addr + xfer->issued;

    if (left == 0 || bounce_state->head - bounce_state->tail == PKI_BOUNCE_PIECES)
        return false;
    *piece = (struct pki_piece){ .offset = xfer->issued,
                                 .len = left < max ? left : max,
                                 .slot = -1,
                                 .src = src,
                                 .placed = !pki_xfer_slots_there(xfer),
                                 .remote = xfer->there.remote + xfer->issued };
    piece->far = pki_xfer_slots_there(xfer) && xfer->kind == PKI_MEM_DEVICE && pki_bounce_fills_slots_of(e, xfer->peer);
    if (pki_xfer_slots_here(xfer) && !xfer->bounce.direct && !piece->far) {
        piece->slot = pki_bounce_buffer_take(e, &e->proto.out);
        if (piece->slot < 0)
            return false;
        piece->src = pki_bounce_buffer_at(&e->proto.out, piece->slot);
    }
    if (piece->slot >= 0 && xfer->kind == PKI_MEM_DEVICE) {
        struct pki_queue *queue = pki_queue_for(xfer->user.task, PKI_LANE_OUT);

        if (!pki_bounce_copy_start(e, queue, piece, pki_bounce_buffer_at(&e->proto.out, piece->slot), src)) {
            pki_bounce_buffer_give(&e->proto.out, piece->slot);
            return false;
        }
    } else if (!piece->far) {
        if (piece->slot >= 0)
            memcpy(pki_bounce_buffer_at(&e->proto.out, piece->slot), src, piece->len);
        piece->state = PKI_BOUNCE_FILLED;
    }
    xfer->issued += piece->len;
    bounce_state->head++;
    return true;
}

static void piece_ask(struct pki_xfer *xfer, struct pki_piece *piece)
{
    struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_BOUNCE_REQ);

    msg.offset = piece->offset;
    msg.signal_value = (uint32_t)piece->len;
    piece->asked = pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine) == PK_OK;
}

void pki_bounce_placed(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->user.task);
    struct pki_bounce *bounce_state = xfer->bounce.state;

    for (unsigned i = bounce_state != NULL ? bounce_state->tail : 0; bounce_state != NULL && i != bounce_state->head; i++) {
        struct pki_piece *piece = pki_bounce_piece(bounce_state, i);

        if (piece->placed || !piece->asked)
            continue;
        piece->placed = true;
        piece->remote = msg->offset;
        return;
    }
    pki_engine_poison(xfer->engine, pki_fail(PK_ERR_INTERNAL, &where, "gave a bounce buffer that was not requested"), true);
}

/* Where nothing can be put the piece goes as DATA messages; they come in order and tell of themselves. */
static void piece_tell(struct pki_xfer *xfer, struct pki_piece *piece)
{
    size_t max = xfer->path->iface->caps.msg_payload_max;

    /* pieces before it were put, until the transport was refused, and the receiver is to be told so first */
    if (xfer->reported < piece->offset)
        return;
    while (piece->moved < piece->len) {
        size_t len = piece->len - piece->moved < max ? piece->len - piece->moved : max;
        struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_DATA);

        msg.offset = piece->offset + piece->moved;
        msg.payload = (uint32_t)len;
        if (pki_ctrl_send(xfer->peer, &msg, piece->src + piece->moved, xfer->engine) != PK_OK)
            return;
        piece->moved += len;
    }
    xfer->reported = piece->offset + piece->len;
    piece->state = PKI_BOUNCE_ENDED;
}

static void piece_put(struct pki_xfer *xfer, struct pki_piece *piece)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->user.task);
    const struct pki_transport *transport = xfer->path->iface->transport;
    pk_result_t result;

    piece->put = (struct pki_put){
        .ep = xfer->path, .src = piece->src, .remote = piece->remote, .bytes = piece->len, .whole = xfer->bytes, .owner = xfer
    };
    piece->put.about = pki_xfer_message(xfer, PKI_MSG_FIN);
    if (pki_xfer_slots_there(xfer))
        piece->put.about.flags |= PKI_MSG_FLAG_BOUNCE;
    pki_list_init(&piece->put.event.node);
    result = transport->put(&piece->put);
    if (result == PK_IN_PROGRESS || pki_put_refused(xfer, result))
        return;
    if (result != PK_OK) {
        pki_engine_attribute_failure(xfer->engine, result, &where, xfer->path, xfer->done, xfer->bytes);
        return;
    }
    piece->state = PKI_BOUNCE_MOVING;
    xfer->engine->proto.puts_out++;
}

void pki_bounce_put_done(struct pki_xfer *xfer, struct pki_put *put)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->user.task);

    if (put->result != PK_OK)
        pki_engine_attribute_failure(xfer->engine, put->result, &where, put->ep, xfer->done, xfer->bytes);
    else
        pki_container_of(put, struct pki_piece, put)->state = PKI_BOUNCE_ENDED;
}

/* A piece that this rank's GPU copies to where it is to be. */
static void piece_fill(struct pki_xfer *xfer, struct pki_piece *piece)
{
    struct pki_engine *e = xfer->engine;
    struct pki_where where = pki_engine_where(e, xfer->peer->rank, xfer->user.task);
    char *slot = piece->placed ? pki_bounce_slot_of(e, xfer->peer, piece->remote) : NULL;

    if (piece->state == PKI_BOUNCE_FILLED)
        piece->state = PKI_BOUNCE_ENDED;
    else if (piece->state == PKI_BOUNCE_EMPTY && slot != NULL)
        (void)pki_bounce_copy_start(e, pki_queue_for(xfer->user.task, PKI_LANE_OUT), piece, slot, piece->src);
    else if (piece->state == PKI_BOUNCE_EMPTY && piece->placed)
        pki_engine_poison(e, pki_fail(PK_ERR_INTERNAL, &where, "gave a bounce buffer that is none of its own"), true);
}

/* False: not yet, and no later piece may overtake it. */
static bool piece_send(struct pki_xfer *xfer, struct pki_piece *piece)
{
    pki_bounce_look_at_copy(xfer->engine, piece);
    if (pki_xfer_slots_there(xfer) && !piece->asked)
        piece_ask(xfer, piece);
    if (pki_xfer_slots_there(xfer) && !piece->asked)
        return false;
    if (piece->far) {
        piece_fill(xfer, piece);
        return true;
    }
    if (piece->state != PKI_BOUNCE_FILLED || !piece->placed)
        return xfer->path->can_put || piece->state == PKI_BOUNCE_ENDED;
    if (xfer->path->can_put)
        piece_put(xfer, piece);
    else
        piece_tell(xfer, piece);
    return piece->state != PKI_BOUNCE_FILLED;
}

void pki_bounce_send(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    struct pki_bounce *bounce;
    size_t before = xfer->done;
    bool go_on = true;

    if (xfer->bounce.state == NULL)
        xfer->bounce.direct = xfer->kind == PKI_MEM_DEVICE && pki_bounce_reaches(xfer, xfer->path);
    if (!pki_bounce_open(xfer))
        return;
    while (piece_begin(xfer))
        ;
    bounce = xfer->bounce.state;
    for (unsigned i = bounce->tail; i != bounce->head && go_on && atomic_load(&e->failed) == PK_OK; i++)
        go_on = piece_send(xfer, pki_bounce_piece(bounce, i));
    while (bounce->tail != bounce->head && pki_bounce_piece(bounce, bounce->tail)->state == PKI_BOUNCE_ENDED) {
        struct pki_piece *piece = pki_bounce_piece(bounce, bounce->tail++);

        pki_bounce_buffer_give(&e->proto.out, piece->slot);
        xfer->done += piece->len;
    }
    if (xfer->signals.finish.word != NULL && xfer->done == xfer->bytes)
        pki_signal_open(&xfer->signals.finish);
    if (xfer->done > before && xfer->done < xfer->bytes)
        pki_xfer_progressed(xfer);
    pki_xfer_activate(xfer);
}

/* The bytes of a low-latency send that the GPU cannot read where they are; false: no slot is free. */
bool pki_bounce_low_latency(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;

    if (xfer->bounce.slot < 0)
        xfer->bounce.slot = pki_bounce_buffer_take(e, &e->proto.out);
    if (xfer->bounce.slot < 0)
        return false;
    memcpy(pki_bounce_buffer_at(&e->proto.out, xfer->bounce.slot), xfer->addr, xfer->bytes);
    return true;
}

char *pki_bounce_low_latency_source(const struct pki_xfer *xfer)
{
    return pki_bounce_buffer_at(&xfer->engine->proto.out, xfer->bounce.slot);
}

void pki_bounce_give(struct pki_xfer *xfer)
{
    pki_bounce_buffer_give(xfer->is_send ? &xfer->engine->proto.out : &xfer->engine->proto.in, xfer->bounce.slot);
    xfer->bounce.slot = -1;
}

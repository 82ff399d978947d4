/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers through bounce buffers (bounce.c), the receiver's side: slots for pieces that the sender asks for, and what comes in
 * the control channel for GPU memory. */
#include <stdlib.h>
#include <string.h>

#include "engine/proto/bounce.h"
#include "engine/proto/proto.h"

static void broken(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->user.task);

    pki_engine_poison(xfer->engine,
                      pki_fail(PK_ERR_INTERNAL, &where, "message of kind %u does not fit its bounce buffer (offset %llu of %zu)",
                               (unsigned)msg->kind, (unsigned long long)msg->offset, xfer->bytes),
                      true);
}

/* The sender's devices write to this rank's GPU memory, if the GPU then sees it. */
static bool may_be_direct(const struct pki_xfer *xfer)
{
    struct pki_device *gpu = xfer->engine->gpu;

    return pki_bounce_reaches(xfer, xfer->peer->path[PKI_MEM_HOST][PKI_MEM_HOST]) && gpu->ops->settle(gpu) == PK_OK;
}

void pki_bounce_requested(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    struct pki_bounce *bounce_state;

    if (xfer->bounce.state == NULL)
        xfer->bounce.direct = may_be_direct(xfer);
    if (!pki_bounce_open(xfer))
        return;
    bounce_state = xfer->bounce.state;
    if (bounce_state->head - bounce_state->tail == 2 * PKI_BOUNCE_PIECES || msg->offset != xfer->issued ||
        msg->signal_value == 0 || msg->signal_value > PKI_BOUNCE_BYTES || msg->signal_value > xfer->bytes - xfer->issued) {
        broken(xfer, msg);
        return;
    }
    *pki_bounce_piece(bounce_state, bounce_state->head++) =
        (struct pki_piece){ .offset = xfer->issued, .len = msg->signal_value, .slot = -1 };
    xfer->issued += msg->signal_value;
    pki_bounce_recv(xfer);
}

/* Bytes have come into slots: with FIN all up to its offset, with DATA the payload. */
void pki_bounce_landed(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload)
{
    struct pki_bounce *bounce_state = xfer->bounce.state;
    uint64_t end = msg->kind == PKI_MSG_DATA ? msg->offset + msg->payload : msg->offset;

    for (unsigned i = bounce_state->tail; i != bounce_state->head; i++) {
        struct pki_piece *piece = pki_bounce_piece(bounce_state, i);

        if (!piece->placed || piece->state != PKI_BOUNCE_EMPTY)
            continue;
        if (msg->kind == PKI_MSG_DATA) {
            if (piece->slot < 0 || msg->offset != piece->offset + piece->moved || msg->payload > piece->len - piece->moved)
                break;
            memcpy(pki_bounce_buffer_at(&xfer->engine->proto.in, piece->slot) + piece->moved, payload, msg->payload);
            piece->moved += msg->payload;
        }
        if (end >= piece->offset + piece->len)
            piece->state = PKI_BOUNCE_FILLED;
        if (end <= piece->offset + piece->len) {
            pki_bounce_recv(xfer);
            return;
        }
    }
    broken(xfer, msg);
}

static void piece_place(struct pki_xfer *xfer, struct pki_piece *piece)
{
    struct pki_engine *e = xfer->engine;
    struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_BOUNCE_CREDIT);

    msg.signal_value = (uint32_t)piece->len;
    if (piece->slot < 0 && !xfer->bounce.direct)
        piece->slot = pki_bounce_buffer_take(e, &e->proto.in);
    if (xfer->bounce.direct ? !pki_signal_is_open(&xfer->signals.start) : piece->slot < 0)
        return;
    piece->recv = (struct pki_recv){
        .ep = xfer->peer->ctrl, .bytes = piece->len, .flags = xfer->id.flags, .index = xfer->id.index, .op = xfer->id.op
    };
    piece->recv.addr = xfer->bounce.direct ? xfer->addr + piece->offset : pki_bounce_buffer_at(&e->proto.in, piece->slot);
    msg.offset = (uint64_t)(uintptr_t)piece->recv.addr;
    piece->placed = (xfer->peer->ctrl->iface->transport->posts ? pki_ctrl_post(xfer->peer, &piece->recv, &msg, e)
                                                               : pki_ctrl_send(xfer->peer, &msg, NULL, e)) == PK_OK;
}

/* Of a transfer that was granted at first a stream of this rank may wait for the word that the sender would have written. */
static void end_grant(struct pki_xfer *xfer)
{
    pki_signal_open(&xfer->signals.finish);
    pki_slots_give(&xfer->peer->signals, xfer->signals.slot);
}

static void advance_to(struct pki_xfer *xfer, size_t done)
{
    if (done == xfer->done)
        return;
    xfer->done = done;
    if (done == xfer->bytes)
        pki_xfer_enter(xfer, PKI_XFER_DONE);
    if (done == xfer->bytes && xfer->bounce.state != NULL && xfer->signals.slot >= 0)
        end_grant(xfer);
    pki_xfer_progressed(xfer);
}

static bool settle(struct pki_xfer *xfer)
{
    struct pki_device *gpu = xfer->engine->gpu;
    pk_result_t result = gpu->ops->settle(gpu);

    if (result != PK_OK)
        pki_engine_poison(xfer->engine, result, true);
    return result == PK_OK;
}

/* What has come into slots, into GPU memory. */
static void may_get(struct pki_xfer *xfer, struct pki_piece *const *pieces, int n)
{
    struct pki_engine *e = xfer->engine;
    struct pki_queue *queue = pki_queue_for(xfer->user.task, PKI_LANE_IN);

    if (n > 0 && pki_bounce_unpacks(e)) {
        (void)pki_bounce_unpack(e, queue, pieces, n, xfer->addr);
        return;
    }
    for (int i = 0; i < n; i++)
        (void)pki_bounce_copy_start(e, queue, pieces[i], xfer->addr + pieces[i]->offset,
                                    pki_bounce_buffer_at(&e->proto.in, pieces[i]->slot));
}

void pki_bounce_recv(struct pki_xfer *xfer)
{
    struct pki_piece *come[PKI_BOUNCE_PIECES];
    struct pki_engine *e = xfer->engine;
    struct pki_bounce *bounce_state = xfer->bounce.state;
    size_t done = xfer->done;
    bool in_order = true;
    int n = 0;

    for (unsigned i = bounce_state->tail; i != bounce_state->head && in_order && atomic_load(&e->failed) == PK_OK; i++) {
        struct pki_piece *piece = pki_bounce_piece(bounce_state, i);

        if (!piece->placed && i - bounce_state->tail < PKI_BOUNCE_PIECES)
            piece_place(xfer, piece);
        in_order = piece->placed; /* the sender takes slots in the order in which it asked */
        if (piece->state == PKI_BOUNCE_FILLED && xfer->bounce.direct && settle(xfer))
            piece->state = PKI_BOUNCE_ENDED;
        else if (piece->state == PKI_BOUNCE_FILLED && !xfer->bounce.direct && pki_signal_is_open(&xfer->signals.start))
            come[n++] = piece;
        pki_bounce_look_at_copy(e, piece);
    }
    may_get(xfer, come, n);
    while (bounce_state->tail != bounce_state->head &&
           pki_bounce_piece(bounce_state, bounce_state->tail)->state == PKI_BOUNCE_ENDED) {
        struct pki_piece *piece = pki_bounce_piece(bounce_state, bounce_state->tail++);

        pki_bounce_buffer_give(&e->proto.in, piece->slot);
        done += piece->len;
    }
    if (done < xfer->bytes)
        pki_xfer_activate(xfer);
    if (atomic_load(&e->failed) == PK_OK)
        advance_to(xfer, done);
}

/* ---- a message that came in the control channel, for GPU memory ---- */

static bool buffer_is_free(const struct pki_xfer *xfer)
{
    return xfer->signals.ll || (xfer->signals.start.word != NULL ? pki_signal_is_open(&xfer->signals.start) : xfer->opened);
}

/* Into the slot that the kernel in the receiving stream already polls. */
static pk_result_t fill_low_latency(struct pki_xfer *xfer, const void *data)
{
    struct pki_engine *e = xfer->engine;
    struct pki_ll_op op = { .send = true, .bytes = (uint32_t)xfer->bytes, .flag = xfer->signals.value };

    if (!e->gpu->ops->clear(&e->proto.in.queue, true))
        return PK_IN_PROGRESS;
    xfer->bounce.slot = pki_bounce_buffer_take(e, &e->proto.in);
    if (xfer->bounce.slot < 0)
        return PK_IN_PROGRESS;
    memcpy(pki_bounce_buffer_at(&e->proto.in, xfer->bounce.slot), data, xfer->bytes);
    op.user = pki_bounce_buffer_at(&e->proto.in, xfer->bounce.slot);
    op.slot = pki_ll_slot(e, xfer->peer->rank, xfer->signals.slot);
    e->stats.kernels++;
    return e->gpu->ops->ll(&e->proto.in.queue, &op, 1, 0, e->signals.abort_word);
}

/* The driver takes so few bytes within the call, wherever they lie. A kernel reads them later, from a slot. NULL: none is
 * free. */
static const void *source_of(struct pki_xfer *xfer, const void *data)
{
    struct pki_bounce_pool *pool = &xfer->engine->proto.in;

    if (xfer->user.task->cuda.how != PKI_WAIT_SERVE)
        return data;
    xfer->bounce.slot = pki_bounce_buffer_take(xfer->engine, pool);
    return xfer->bounce.slot >= 0 ? memcpy(pki_bounce_buffer_at(pool, xfer->bounce.slot), data, xfer->bytes) : NULL;
}

static pk_result_t copy_up(struct pki_xfer *xfer, const void *data)
{
    struct pki_engine *e = xfer->engine;
    struct pki_queue *queue = pki_queue_for(xfer->user.task, PKI_LANE_IN);
    struct pki_signal_op ended = { .kind = PKI_SIGNAL_WRITE };
    pk_result_t result = e->proto.in.memory != NULL ? PK_OK : pki_bounce_pool_open(e, &e->proto.in);

    if (result == PK_OK && xfer->signals.ll)
        return fill_low_latency(xfer, data);
    if (result == PK_OK && !pki_may_copy(queue, xfer->bytes))
        return PK_IN_PROGRESS;
    if (result == PK_OK && xfer->signals.finish.word == NULL) {
        xfer->signals.own = pki_signals_take(e, &xfer->signals.finish);
        if (xfer->signals.own < 0)
            return PK_IN_PROGRESS;
    }
    ended.signal = xfer->signals.finish;
    data = result == PK_OK ? source_of(xfer, data) : NULL;
    if (result == PK_OK && data == NULL)
        return PK_IN_PROGRESS;
    if (result == PK_OK)
        result = queue->device->ops->copy(queue, xfer->addr, data, xfer->bytes);
    if (result == PK_OK)
        result = queue->device->ops->signals(queue, &ended, 1, PKI_WAIT_VALUE);
    e->stats.copies++;
    return result;
}

static void keep(struct pki_xfer *xfer, const void *payload)
{
    xfer->bounce.kept = malloc(xfer->bytes);
    if (xfer->bounce.kept != NULL)
        memcpy(xfer->bounce.kept, payload, xfer->bytes);
    else
        pki_engine_poison(xfer->engine, pki_fail(PK_ERR_MEMORY, NULL, "no memory to keep %zu bytes", xfer->bytes), true);
}

void pki_bounce_eager(struct pki_xfer *xfer, const void *payload)
{
    pk_result_t result = buffer_is_free(xfer) ? copy_up(xfer, payload) : PK_IN_PROGRESS;

    pki_task_set_cpu_driven(xfer->user.task);
    xfer->peer->ll.by_kernel = false;
    if (result == PK_IN_PROGRESS)
        keep(xfer, payload);
    else if (result != PK_OK)
        pki_engine_poison(xfer->engine, result, true);
    pki_xfer_enter(xfer, PKI_XFER_WAIT);
    pki_xfer_activate(xfer);
}

void pki_bounce_unexpected(struct pki_xfer *xfer)
{
    pk_result_t result = buffer_is_free(xfer) ? copy_up(xfer, xfer->bounce.kept) : PK_IN_PROGRESS;

    pki_xfer_activate(xfer);
    if (result == PK_IN_PROGRESS)
        return;
    if (result != PK_OK)
        pki_engine_poison(xfer->engine, result, true);
    free(xfer->bounce.kept);
    xfer->bounce.kept = NULL;
}

/* The word is this rank's own: the sender knows of none. */
void pki_bounce_poll(struct pki_xfer *xfer)
{
    if (!pki_signal_is_open(&xfer->signals.finish)) {
        pki_xfer_activate(xfer);
        return;
    }
    pki_signals_give(xfer->engine, xfer->signals.own);
    xfer->signals.own = -1;
    pki_bounce_give(xfer);
    advance_to(xfer, xfer->bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that sends to itself: the pair is matched here and copied by the device. */
#include <string.h>

#include "engine/proto/proto.h"

static struct pki_xfer *partner_of(struct pki_xfer *xfer)
{
    struct pki_list *list = xfer->is_send ? &xfer->peer->recvs : &xfer->peer->sends;

    for (struct pki_list *n = list->next; n != list; n = n->next) {
        struct pki_xfer *other = pki_container_of(n, struct pki_xfer, match);

        if (other->id.op == xfer->id.op)
            return other;
    }
    return NULL;
}

static void finish(struct pki_xfer *xfer)
{
    xfer->done = xfer->bytes;
    pki_xfer_enter(xfer, PKI_XFER_DONE);
    pki_xfer_progressed(xfer);
}

/* A kernel that serves does not reach all memory of the host; the driver does. */
static struct pki_queue *queue_of(struct pki_engine *e, const struct pki_xfer *send, const struct pki_xfer *recv)
{
    const bool served = send->user.task->cuda.how == PKI_WAIT_SERVE;

    if (send->kind != PKI_MEM_DEVICE || recv->kind != PKI_MEM_DEVICE)
        return &e->proto.work;
    return pki_queue_for(served ? send->user.task : recv->user.task, PKI_LANE_WORK);
}

/* Both directions of mixed memory go through the GPU's queue too. */
static pk_result_t copy(struct pki_engine *e, struct pki_xfer *send, struct pki_xfer *recv)
{
    struct pki_signal_op opened = { .kind = PKI_SIGNAL_WRITE };
    struct pki_queue *queue;
    pk_result_t result;

    if (send->kind == PKI_MEM_HOST && recv->kind == PKI_MEM_HOST) {
        size_t some = pki_engine_ration(e, send->bytes - send->issued);

        memcpy(recv->addr + send->issued, send->addr + send->issued, some);
        send->issued += some;
        return send->issued == send->bytes ? PK_OK : PK_IN_PROGRESS;
    }
    queue = queue_of(e, send, recv);
    if (!queue->device->ops->clear(queue, true))
        return PK_IN_PROGRESS;
    send->signals.slot = pki_signals_take(e, &send->signals.finish);
    if (send->signals.slot < 0)
        return PK_IN_PROGRESS;
    opened.signal = send->signals.finish;
    result = queue->device->ops->copy(queue, recv->addr, send->addr, send->bytes);
    if (result == PK_OK)
        result = queue->device->ops->signals(queue, &opened, 1, PKI_WAIT_VALUE);
    e->stats.kernels++;
    return result;
}

static void move(struct pki_engine *e, struct pki_xfer *send, struct pki_xfer *recv)
{
    pk_result_t result = PK_OK;

    if (send->bytes != recv->bytes) {
        pki_xfer_mismatch(recv, &(struct pki_msg){ .sig = recv->id.sig }, send->bytes);
        return;
    }
    if (send->issued < send->bytes) {
        result = copy(e, send, recv);
        if (result == PK_OK)
            send->issued = send->bytes;
    }
    if (result != PK_OK && result != PK_IN_PROGRESS) {
        pki_engine_poison(e, result, true);
        return;
    }
    if (result == PK_IN_PROGRESS || !pki_signal_is_open(&send->signals.finish)) {
        pki_xfer_activate(send);
        return;
    }
    pki_signals_give(e, send->signals.slot);
    finish(send);
    finish(recv);
}

void pki_self_advance(struct pki_xfer *xfer)
{
    struct pki_xfer *other = partner_of(xfer);

    if (other == NULL)
        return;
    if (xfer->is_send)
        move(xfer->engine, xfer, other);
    else
        move(xfer->engine, other, xfer);
}

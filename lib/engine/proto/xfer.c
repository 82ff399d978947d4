/* SPDX-License-Identifier: Apache-2.0 */
/* What sending and receiving transfers share. */
#include <stdlib.h>
#include <string.h>

#include "engine/proto/proto.h"

struct slab {
    struct pki_list node;
    struct pki_xfer xfers[PKI_XFERS_A_SLAB];
};

static bool grow(struct pki_engine *e)
{
    struct slab *slab = calloc(1, sizeof *slab);

    if (slab == NULL)
        return false;
    pki_list_push(&e->proto.slabs, &slab->node);
    for (int i = 0; i < PKI_XFERS_A_SLAB; i++)
        pki_list_push(&e->proto.free_xfers, &slab->xfers[i].match);
    return true;
}

void pki_xfers_release(struct pki_engine *e)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&e->proto.slabs)) != NULL) {
        struct slab *slab = pki_container_of(node, struct slab, node);

        for (int i = 0; i < PKI_XFERS_A_SLAB; i++)
            free(slab->xfers[i].moves.puts.more);
        free(slab);
    }
}

/* NULL: out of memory, recorded. */
struct pki_xfer *pki_xfer_new(struct pki_engine *e, int peer, bool is_send)
{
    struct pki_list *node = pki_list_pop(&e->proto.free_xfers);
    struct pki_xfer *xfer;
    struct pki_put *more;

    if (node == NULL && grow(e))
        node = pki_list_pop(&e->proto.free_xfers);
    if (node == NULL) {
        (void)pki_fail(PK_ERR_MEMORY, NULL, "no memory for a transfer");
        return NULL;
    }
    xfer = pki_container_of(node, struct pki_xfer, match);
    more = xfer->moves.puts.more;
    memset(xfer, 0, sizeof *xfer);
    xfer->moves.puts.more = more;
    pki_list_init(&xfer->match);
    pki_list_init(&xfer->active);
    xfer->engine = e;
    xfer->peer = &e->peers[peer];
    xfer->is_send = is_send;
    xfer->signals.slot = xfer->bounce.slot = xfer->signals.own = -1;
    xfer->chunk = SIZE_MAX;
    for (int i = 0; i < PKI_XFER_PUTS_FEW; i++)
        pki_list_init(&xfer->moves.puts.few[i].event.node);
    return xfer;
}

pk_result_t pki_xfer_put(struct pki_xfer *xfer, struct pki_queue *queue)
{
    struct pki_ep *path = xfer->is_send ? xfer->path : xfer->peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
    uintptr_t here = (uintptr_t)xfer->addr, there = (uintptr_t)xfer->there.remote;
    struct pki_put *put = &xfer->moves.puts.few[0];
    pk_result_t result;

    *put = (struct pki_put){ .ep = path,
                             .src = (const void *)(xfer->is_send ? here : there), /* NOLINT: mapped */
                             .remote = xfer->is_send ? there : here,
                             .bytes = xfer->bytes,
                             .queue = queue,
                             .owner = xfer };
    pki_list_init(&put->event.node);
    result = path->iface->transport->put(put);
    if (result != PK_OK)
        return result;
    xfer->engine->stats.copies++;
    xfer->engine->stats.pushes += xfer->is_send;
    xfer->engine->stats.pulls += !xfer->is_send;
    return PK_OK;
}

void pki_xfer_activate(struct pki_xfer *xfer)
{
    if (pki_list_empty(&xfer->active))
        pki_list_push(&xfer->engine->proto.active, &xfer->active);
}

/* Take it out of every list; its memory is reused after this round of progress. */
void pki_xfer_free(struct pki_xfer *xfer)
{
    pki_bounce_leave(xfer);
    pki_region_drop(xfer->engine, xfer->there.region);
    xfer->there.region = 0;
    pki_list_remove(&xfer->active);
    pki_list_remove(&xfer->match);
    pki_list_push(&xfer->engine->proto.spent_xfers, &xfer->match);
}

/* `done` has grown: whoever waits for these bytes goes on. */
void pki_xfer_progressed(struct pki_xfer *xfer)
{
    const struct pki_xfer_user *user = xfer->user.calls;
    struct pki_task *task = xfer->user.task;
    struct pki_engine *e = xfer->engine;
    uint32_t step = xfer->user.step;
    size_t done = xfer->done;
    bool ended = xfer->state == PKI_XFER_DONE;

    if (ended) {
        if (xfer->is_send)
            e->stats.bytes_sent += xfer->bytes;
        else
            e->stats.bytes_received += xfer->bytes;
        pki_xfer_free(xfer);
    }
    user->progressed(task, step, done, ended);
}

void pki_xfer_mismatch(struct pki_xfer *xfer, const struct pki_msg *msg, size_t bytes)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->user.task);

    if (msg->sig != xfer->id.sig) {
        pki_task_mismatch(xfer->user.task, xfer->peer->rank, msg->sig);
        return;
    }
    (void)pki_fail(PK_ERR_MISMATCH, &where, "rank %d %s %zu bytes, rank %d %s %zu", xfer->engine->config.rank,
                   xfer->is_send ? "sends" : "receives", xfer->bytes, xfer->peer->rank, xfer->is_send ? "receives" : "sends",
                   bytes);
    pki_engine_poison(xfer->engine, PK_ERR_MISMATCH, true);
}

void pki_put_failed(struct pki_xfer *xfer, pk_result_t result)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->user.task);

    pki_engine_attribute_failure(xfer->engine, result, &where, xfer->path, xfer->done, xfer->bytes);
}

bool pki_put_refused(const struct pki_xfer *xfer, pk_result_t result)
{
    return result == PK_ERR_UNSUPPORTED && !xfer->path->can_put;
}

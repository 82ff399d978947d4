/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transfer from this rank. Small ones from host memory travel in the control channel (EAGER). Others need the receiver's
 * grant: then chunks go by put, as they become ready, or as DATA messages where the transport cannot put to this peer.
 */
#include <stdlib.h>

#include "engine/channel/eager.h"
#include "engine/proto/offer.h"
#include "engine/proto/proto.h"

static void finish(struct pki_xfer *xfer)
{
    if (xfer->signals.cell != NULL)
        pki_offer_ended(xfer);
    pki_xfer_enter(xfer, PKI_XFER_DONE);
    pki_xfer_progressed(xfer);
}

void pki_send_eager(struct pki_xfer *xfer)
{
    struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_EAGER);
    pk_result_t result;

    if (!pki_eager_has_credit(xfer->peer, xfer->bytes)) {
        pki_send_rendezvous(xfer);
        return;
    }
    if (xfer->bytes == 0 && xfer->engine->config.gpus != PKI_GPUS_NONE && (xfer->id.flags & PKI_MSG_FLAG_COLL) != 0 &&
        xfer->user.task->mode != PKI_TASK_BARRIER)
        pki_barrier_arrive(xfer->peer, xfer->id.op, xfer->id.index);
    result = pki_eager_send(xfer->engine, xfer->peer, &msg, xfer->addr, xfer->bytes);
    if (result != PK_OK) {
        pki_ctrl_failed(xfer->engine, xfer->peer, &msg, result);
        pki_xfer_activate(xfer);
        return;
    }
    xfer->done = xfer->bytes;
    finish(xfer);
}

/* The receiver grants it by itself, as soon as it has come to it: an RTS would tell it nothing, unless it receives something
 * else. */
static bool is_expected(const struct pki_xfer *xfer)
{
    const struct pki_protocol_query query = pki_xfer_query(xfer);

    return xfer->peer->ctrl->iface->transport->between_hosts && query.bytes > query.eager_max && !query.captured &&
           (xfer->rts_seen || !pki_may_eager_put(&query));
}

/* The receiver's transport keeps it, if need be, and gives credit when it is asked for. */
void pki_send_eager_put(struct pki_xfer *xfer)
{
    if (xfer->rts_seen || xfer->peer->eager_put.out + xfer->bytes > xfer->peer->eager_put.credit) {
        pki_send_rendezvous(xfer);
        return;
    }
    xfer->peer->eager_put.out += xfer->bytes;
    xfer->path = xfer->peer->ctrl;
    pki_xfer_enter(xfer, PKI_XFER_EAGER_PUT);
    pki_xfer_activate(xfer);
    pki_send_advance(xfer);
}

bool pki_send_rts(struct pki_xfer *xfer)
{
    struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_RTS);

    xfer->rts_seen = pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine) == PK_OK;
    return xfer->rts_seen;
}

void pki_send_overdue_rts(struct pki_peer *peer, uint64_t now)
{
    for (struct pki_list *n = peer->sends.next; n != &peer->sends; n = n->next) {
        struct pki_xfer *xfer = pki_container_of(n, struct pki_xfer, match);

        if (xfer->state == PKI_XFER_WAIT && !xfer->rts_seen && now - xfer->user.task->begun_ns > pki_tuning.p2p.rts_ns &&
            !pki_send_rts(xfer))
            return;
    }
}

static bool take_cts(struct pki_xfer *xfer, struct pki_msg *grant)
{
    struct pki_unexpected *early;

    while ((early = pki_ctrl_take(xfer)) != NULL) {
        *grant = early->msg;
        free(early);
        if (grant->extra != PKI_CTS_DATA) /* of an earlier replay, which has ended meanwhile */
            return true;
    }
    return false;
}

static void start_protocol(struct pki_xfer *xfer)
{
    struct pki_msg grant;

    if (take_cts(xfer, &grant)) {
        pki_send_cts_arrived(xfer, &grant);
        return;
    }
    xfer->protocol->send(xfer);
}

void pki_send_rendezvous(struct pki_xfer *xfer)
{
    if (xfer->state == PKI_XFER_LOOK && xfer->bytes > 0)
        return;
    /* An empty transfer is never granted: it waits for credit. */
    if (xfer->bytes == 0 || (!is_expected(xfer) && !pki_send_rts(xfer))) {
        pki_xfer_activate(xfer);
        return;
    }
    pki_xfer_enter(xfer, PKI_XFER_WAIT);
}

/* The done signal counts chunks up to signal_value. */
static struct pki_signal chunk_signal(const struct pki_xfer *xfer, size_t end)
{
    size_t left = pki_xfer_chunks(xfer, xfer->bytes - end);

    if (xfer->signals.finish.word == NULL)
        return (struct pki_signal){ 0 };
    return (struct pki_signal){ xfer->signals.finish.word, xfer->signals.value - (uint32_t)left };
}

static void fill_put(struct pki_xfer *xfer, struct pki_put *put, size_t len)
{
    *put = (struct pki_put){ .ep = xfer->path,
                             .src = xfer->addr + xfer->issued,
                             .remote = xfer->there.remote + xfer->issued,
                             .bytes = len,
                             .whole = xfer->bytes,
                             .mapped = xfer->there.mapped,
                             .done_remote = chunk_signal(xfer, xfer->issued + len),
                             .owner = xfer };
    put->eager_put = xfer->state == PKI_XFER_EAGER_PUT;
    if (xfer->user.task->cuda.how == PKI_WAIT_SERVE)
        put->lane = pki_queue_for(xfer->user.task, PKI_LANE_WORK);
    if (xfer->path->iface->transport->posts)
        put->about = pki_xfer_message(xfer, PKI_MSG_FIN);
    pki_list_init(&put->event.node);
}

static bool goes_in_large_puts(const struct pki_xfer *xfer)
{
    return xfer->kind == PKI_MEM_HOST && xfer->path->can_put && xfer->bytes >= pki_tuning.p2p.even_put_bytes &&
           pki_coop_is_even(xfer) && !pki_coop_is_near(xfer);
}

static bool takes_more(const struct pki_xfer *xfer)
{
    return xfer->kind == PKI_MEM_HOST && xfer->moves.puts.head == 0 && xfer->bytes / PKI_XFER_PUTS_FEW > xfer->chunk &&
           xfer->path->iface->caps.deep;
}

static struct pki_put *next_put(struct pki_xfer *xfer)
{
    if (takes_more(xfer)) {
        if (xfer->moves.puts.more == NULL)
            xfer->moves.puts.more = malloc(PKI_XFER_PUTS_OF_MESSAGE * sizeof *xfer->moves.puts.more);
        if (xfer->moves.puts.more != NULL)
            xfer->moves.puts.n = xfer->user.task->plan == NULL ? PKI_XFER_PUTS_OF_MESSAGE : PKI_XFER_PUTS;
    }
    return xfer->moves.puts.n > 0 ? &xfer->moves.puts.more[xfer->moves.puts.head % xfer->moves.puts.n]
                                  : &xfer->moves.puts.few[xfer->moves.puts.head % PKI_XFER_PUTS_FEW];
}

static bool has_put(const struct pki_xfer *xfer)
{
    return xfer->moves.puts.head - xfer->moves.puts.tail < (xfer->moves.puts.n > 0 ? xfer->moves.puts.n : PKI_XFER_PUTS_FEW);
}

static void issue_puts(struct pki_xfer *xfer)
{
    if (xfer->ready < xfer->bytes && xfer->ready - xfer->issued < pki_tuning.p2p.even_put_bytes &&
        xfer->path == xfer->peer->ctrl && goes_in_large_puts(xfer))
        return; /* advanced again with more */
    while (xfer->issued < xfer->ready && has_put(xfer)) {
        struct pki_put *put = next_put(xfer);
        size_t len = xfer->ready - xfer->issued < xfer->chunk ? xfer->ready - xfer->issued : xfer->chunk;
        pk_result_t result;

        fill_put(xfer, put, len);
        result = xfer->path->iface->transport->put(put);
        if (result == PK_IN_PROGRESS || pki_put_refused(xfer, result)) {
            pki_xfer_activate(xfer);
            return;
        }
        if (result != PK_OK) {
            pki_put_failed(xfer, result);
            return;
        }
        if (xfer->kind == PKI_MEM_DEVICE)
            xfer->engine->stats.copies++;
        /* Long copies by the CPU: rounds are long too, and a peer may have given up meanwhile. */
        if (len >= xfer->engine->config.agreed->pair.host_chunk_bytes)
            pki_engine_check_soon(xfer->engine);
        xfer->moves.puts.head++;
        xfer->engine->proto.puts_out++;
        xfer->issued += len;
    }
}

/* Through the control channel although the kernel could copy it: short, or to a core near by. As it began it goes on: what
 * pays may change meanwhile. */
static bool goes_as_data(const struct pki_xfer *xfer)
{
    if (!xfer->path->can_get || xfer->path != xfer->peer->ctrl || xfer->kind != PKI_MEM_HOST)
        return false;
    return xfer->issued > 0 ? xfer->moves.puts.head == 0 : !pki_coop_pays(xfer);
}

/* Short transfers in shorter messages, so that both ends copy at the same time, if each has a core. */
static size_t data_max(const struct pki_xfer *xfer)
{
    size_t max = xfer->path->iface->caps.msg_payload_max;

    if (xfer->bytes >= pki_tuning.p2p.coop_bytes || max <= pki_tuning.p2p.data_short_bytes)
        return max;
    return !xfer->engine->config.shares_cpu || xfer->user.task->plan == NULL ? pki_tuning.p2p.data_short_bytes : max;
}

static void issue_data(struct pki_xfer *xfer)
{
    while (xfer->issued < xfer->ready) {
        struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_DATA);
        size_t max = data_max(xfer);
        size_t len = xfer->ready - xfer->issued < max ? xfer->ready - xfer->issued : max;

        msg.offset = xfer->issued;
        msg.payload = (uint32_t)len;
        if (pki_ctrl_send(xfer->peer, &msg, xfer->addr + xfer->issued, xfer->engine) != PK_OK) {
            pki_xfer_activate(xfer);
            break;
        }
        xfer->issued += len;
    }
    if (xfer->done == xfer->issued)
        return;
    xfer->done = xfer->reported = xfer->issued;
    if (xfer->done == xfer->bytes)
        finish(xfer);
    else
        pki_xfer_progressed(xfer);
}

/* Without a signal the receiver learns from FIN messages how far it is, unless its transport sees that for itself. */
static void tell(struct pki_xfer *xfer)
{
    struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_FIN);

    if (xfer->signals.finish.word != NULL || (xfer->path->iface->transport->posts && !pki_xfer_slots_there(xfer)))
        xfer->reported = xfer->done;
    if (xfer->reported < xfer->done) {
        msg.offset = xfer->done;
        if (pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine) != PK_OK) {
            pki_xfer_activate(xfer);
            return;
        }
        xfer->reported = xfer->done;
    }
    if (xfer->done == xfer->bytes && xfer->reported == xfer->bytes)
        finish(xfer);
}

/* DATA follows puts, which the transport did until it was refused: it tells of itself alone, and comes in order. */
static bool follows_puts(struct pki_xfer *xfer)
{
    if (xfer->moves.puts.head == 0)
        return true;
    if (xfer->moves.puts.head == xfer->moves.puts.tail)
        tell(xfer);
    return xfer->moves.puts.head == xfer->moves.puts.tail && xfer->reported == xfer->issued && xfer->state != PKI_XFER_DONE;
}

void pki_send_put_done(struct pki_put *put)
{
    struct pki_xfer *xfer = put->owner;

    xfer->engine->proto.puts_out--;
    if (atomic_load(&xfer->engine->failed) != PK_OK)
        return;
    if (xfer->bounce.state != NULL) {
        pki_bounce_put_done(xfer, put);
        return;
    }
    if (put->result != PK_OK) {
        pki_put_failed(xfer, put->result);
        return;
    }
    if (xfer->state == PKI_XFER_COOP || xfer->coop.piece == PKI_PIECE_OUT) {
        pki_coop_piece_done(xfer);
        return;
    }
    xfer->moves.puts.tail++;
    xfer->done += put->bytes; /* puts of one transfer end in order */
    if (xfer->done < xfer->bytes)
        pki_xfer_progressed(xfer);
    pki_xfer_activate(xfer);
}

/* The library's own launch of a low-latency send: nothing in it waits, so it may go into the shared queue. */
static void issue_ll(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    struct pki_ll_op op = pki_ll_send_op(xfer);
    pk_result_t result;

    if (xfer->issued == xfer->bytes || xfer->ready < xfer->bytes || !e->gpu->ops->clear(&e->proto.deferred, true))
        return;
    if (xfer->kind == PKI_MEM_HOST) {
        if (!pki_bounce_low_latency(xfer))
            return;
        op.user = pki_bounce_low_latency_source(xfer);
    }
    result = e->gpu->ops->ll(&e->proto.deferred, &op, 1, 0, e->signals.abort_word);
    if (result != PK_OK) {
        pki_put_failed(xfer, result);
        return;
    }
    e->stats.kernels++;
    xfer->issued = xfer->bytes;
    pki_xfer_enter(xfer, PKI_XFER_STREAM);
}

struct pki_ll_op pki_ll_send_op(struct pki_xfer *xfer)
{
    struct pki_ll_op op = { .send = true, .user = xfer->addr, .bytes = (uint32_t)xfer->bytes, .flag = xfer->signals.value };

    op.slot = (uint64_t *)(void *)(xfer->peer->ll.remote + (size_t)xfer->signals.slot * PKI_LL_UNIT);
    op.done = pki_signals_ll(xfer->engine, xfer->peer->rank, true, op.flag);
    op.ctas = pki_ll_ctas(xfer->engine, xfer->bytes);
    op.arrived = pki_ll_arrived(xfer->engine, xfer->peer->rank, true, op.flag);
    xfer->signals.finish = (struct pki_signal){ op.done, op.flag };
    return op;
}

/* What the caller's stream moves, or the peer, is only watched. */
static void watch(struct pki_xfer *xfer)
{
    if (!pki_signal_is_open(&xfer->signals.finish)) {
        pki_xfer_activate(xfer);
        return;
    }
    xfer->done = xfer->reported = xfer->bytes;
    pki_bounce_give(xfer);
    finish(xfer);
}

/* The sends that a plan begins with leave a GPU in the plan's order, which keeps two ranks from aiming at one peer at a time. */
static bool is_my_turn(const struct pki_xfer *xfer)
{
    struct pki_task *task = xfer->user.task;

    if (task->plan == NULL || xfer->kind == PKI_MEM_HOST || task->plan->steps[xfer->user.step].deps > 0)
        return true;
    while (task->run.next_send < xfer->user.step) {
        const struct pki_step *step = &task->plan->steps[task->run.next_send];
        const struct pki_step_state *state = &task->run.steps[task->run.next_send];

        if (step->kind == PKI_STEP_SEND && step->deps == 0 && state->progress != PKI_STEP_COMPLETE &&
            (state->xfer == NULL || state->xfer->issued < state->bytes))
            return false;
        task->run.next_send++;
    }
    return true;
}

void pki_send_ats_arrived(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    if ((xfer->state == PKI_XFER_COOP || xfer->state == PKI_XFER_GET) && msg->offset == xfer->bytes)
        pki_coop_ended(xfer);
}

/* A plan makes these bytes piece by piece: they are in the cache, and puts of small pieces cost a call of the kernel each. */
static bool better_by_ctrl(const struct pki_xfer *xfer)
{
    return xfer->user.task->plan != NULL && xfer->kind == PKI_MEM_HOST && !pki_xfer_slots_here(xfer) && !xfer->signals.ll &&
           xfer->issued == 0 && xfer->ready < xfer->bytes && xfer->path == xfer->peer->ctrl && xfer->path->can_get &&
           !xfer->there.mapped && xfer->bytes <= PKI_CTRL_DATA_MAX && (xfer->coop.combines || !goes_in_large_puts(xfer));
}

static void move(struct pki_xfer *xfer)
{
    if (better_by_ctrl(xfer))
        pki_xfer_enter(xfer, PKI_XFER_DATA);
    if (pki_coop_offer(xfer) == PK_IN_PROGRESS) {
        pki_xfer_activate(xfer);
        return;
    }
    if (xfer->state == PKI_XFER_COOP)
        pki_coop_advance(xfer);
    if (xfer->state == PKI_XFER_COOP || xfer->state == PKI_XFER_GET)
        return;
    if (!pki_signal_is_open(&xfer->signals.start) || (xfer->signals.cell != NULL && !pki_offer_is_ready(xfer)) ||
        !is_my_turn(xfer)) {
        pki_xfer_activate(xfer);
        return;
    }
    if (atomic_load(&xfer->engine->failed) != PK_OK) /* and the signal may have been opened for that alone */
        return;
    if (xfer->signals.ll) {
        issue_ll(xfer);
        pki_xfer_activate(xfer);
    } else if (xfer->bounce.slots != PKI_SLOTS_NONE) {
        pki_bounce_send(xfer);
        tell(xfer);
    } else if ((!xfer->path->can_put && !xfer->there.mapped) || xfer->state == PKI_XFER_DATA || goes_as_data(xfer)) {
        if (follows_puts(xfer))
            issue_data(xfer);
    } else {
        issue_puts(xfer);
        tell(xfer);
    }
}

static void begin(struct pki_xfer *xfer)
{
    if (xfer->ready == 0 && xfer->bytes > 0)
        return;
    pki_xfer_enter(xfer, PKI_XFER_SAY);
    start_protocol(xfer);
}

/* Of an offer the peer moves the bytes. */
static void await_grant(struct pki_xfer *xfer)
{
    if (xfer->signals.cell == NULL || atomic_load(&xfer->engine->failed) != PK_OK)
        return;
    (void)pki_offer_is_ready(xfer);
    watch(xfer);
}

void pki_send_advance(struct pki_xfer *xfer)
{
    static void (*const advance[])(struct pki_xfer * xfer) = {
        [PKI_XFER_UNPOSTED] = begin,     [PKI_XFER_LOOK] = start_protocol,
        [PKI_XFER_SAY] = start_protocol, [PKI_XFER_WAIT] = await_grant,
        [PKI_XFER_MOVE] = move,          [PKI_XFER_EAGER_PUT] = move,
        [PKI_XFER_DATA] = move,          [PKI_XFER_COOP] = pki_coop_advance,
        [PKI_XFER_GET] = NULL, /* the receiver says when it has all */
        [PKI_XFER_STREAM] = watch,       [PKI_XFER_DONE] = NULL,
    };

    if (advance[xfer->state] != NULL)
        advance[xfer->state](xfer);
}

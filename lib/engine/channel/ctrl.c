/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the control channels: out, in, and kept until somebody asks for them. */
#include <stdlib.h>
#include <string.h>

#include "engine/channel/channel.h"
#include "engine/channel/eager.h"

#define KEY_FLAGS (PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED)

void pki_ctrl_failed(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg, pk_result_t result)
{
    if (result == PK_ERR_PEER) {
        struct pki_where where = pki_engine_where(e, peer->rank, pki_engine_first_task(e));

        pki_engine_attribute_failure(e, PK_ERR_PEER, &where, peer->ctrl, 0, msg->payload);
    } else if (result != PK_IN_PROGRESS) {
        pki_engine_poison(e, result, true); /* this rank's own trouble (no room to register memory), recorded where it was seen */
    }
}

pk_result_t pki_ctrl_send(struct pki_peer *peer, const struct pki_msg *msg, const void *payload, struct pki_engine *e)
{
    pk_result_t result = peer->ctrl->iface->transport->send(peer->ctrl, msg, payload);

    if (result == PK_OK)
        e->stats.messages++;
    else
        pki_ctrl_failed(e, peer, msg, result);
    return result;
}

pk_result_t pki_ctrl_post(struct pki_peer *peer, struct pki_recv *recv, const struct pki_msg *tell, struct pki_engine *e)
{
    static const struct pki_msg nothing;
    pk_result_t result = peer->ctrl->iface->transport->recv_post(recv, tell);

    if (result == PK_OK)
        e->stats.messages += tell != NULL;
    else
        pki_ctrl_failed(e, peer, tell != NULL ? tell : &nothing, result);
    return result;
}

static bool speaks_of(const struct pki_msg *msg, const struct pki_xfer *xfer)
{
    return msg->op == xfer->id.op && msg->index == xfer->id.index && ((msg->flags ^ xfer->id.flags) & KEY_FLAGS) == 0;
}

static bool is_for_sender(const struct pki_msg *msg)
{
    return msg->kind == PKI_MSG_CTS || msg->kind == PKI_MSG_BOUNCE_CREDIT || msg->kind == PKI_MSG_ATS;
}

static struct pki_xfer *find_xfer(struct pki_peer *peer, const struct pki_msg *msg)
{
    struct pki_list *list = is_for_sender(msg) ? &peer->sends : &peer->recvs;

    for (struct pki_list *n = list->next; n != list; n = n->next) {
        struct pki_xfer *xfer = pki_container_of(n, struct pki_xfer, match);

        if (speaks_of(msg, xfer))
            return !xfer->is_send && xfer->state == PKI_XFER_UNPOSTED ? NULL : xfer;
    }
    return NULL;
}

struct pki_unexpected *pki_ctrl_take(struct pki_xfer *xfer)
{
    struct pki_list *list = &xfer->peer->unexpected_queue;

    for (struct pki_list *n = list->next; n != list; n = n->next) {
        struct pki_unexpected *unexpected = pki_container_of(n, struct pki_unexpected, node);

        if (is_for_sender(&unexpected->msg) == xfer->is_send && speaks_of(&unexpected->msg, xfer)) {
            pki_list_remove(n);
            return unexpected;
        }
    }
    return NULL;
}

static const struct pki_handler *handler_of(const struct pki_engine *e, const struct pki_msg *msg)
{
    return &e->handlers->messages[msg->kind < PKI_MSG_KINDS ? msg->kind : 0];
}

/* A collective with this number began here and is another one than the peer's. */
static bool contradicts(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg)
{
    return pki_msg_of_collective(msg) && pki_task_contradicts(e, peer->rank, msg->op, msg->sig);
}

static bool sends_step(const struct pki_task *task, const struct pki_peer *peer, unsigned index)
{
    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        const struct pki_step *step = &task->plan->steps[i];

        if (step->kind == PKI_STEP_SEND && step->peer == peer->rank && step->pair_index == index)
            return task->run.steps[i].progress != PKI_STEP_COMPLETE;
    }
    return true;
}

/* A grant of GPU memory that crossed an eager message, or of host memory, for which the sender did not wait: the send it speaks
 * of has ended, and nobody would ever ask for it. */
static bool came_too_late(const struct pki_engine *e, const struct pki_peer *peer, const struct pki_msg *msg)
{
    bool coll = (msg->flags & PKI_MSG_FLAG_COLL) != 0;

    if (msg->kind != PKI_MSG_CTS || (msg->flags & PKI_MSG_FLAG_CAPTURED) != 0)
        return false;
    for (const struct pki_list *n = e->tasks.all.next; n != &e->tasks.all; n = n->next) {
        const struct pki_task *task = pki_container_of(n, struct pki_task, node);

        if (coll && task->run.executor != NULL && task->run.executor->awaits != NULL && task->run.executor->awaits(task, msg->op))
            return false;
        if (coll && task->plan != NULL && task->number == msg->op)
            return !sends_step(task, peer, msg->index);
        if (!coll && task->xfer != NULL && task->xfer->is_send && task->xfer->peer == peer && task->number == msg->op)
            return false;
    }
    return msg->op <= (coll ? e->colls.number : peer->sends_begun[0]);
}

/* A collective that is a kernel here is done by messages there. */
static void hear_of_fused(struct pki_engine *e, const struct pki_msg *msg)
{
    if (!pki_msg_of_collective(msg) || !e->fused.on)
        return;
    for (struct pki_list *n = e->tasks.all.next; n != &e->tasks.all; n = n->next) {
        struct pki_task *task = pki_container_of(n, struct pki_task, node);

        if (task->number == msg->op && task->run.executor != NULL && task->run.executor->fall != NULL)
            task->run.executor->fall(task);
    }
}

static void keep(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg, const void *payload)
{
    const struct pki_handler *handler = handler_of(e, msg);
    struct pki_unexpected *unexpected;

    if (contradicts(e, peer, msg))
        return;
    if (came_too_late(e, peer, msg) || (handler->is_void != NULL && handler->is_void(peer, msg)))
        return;
    hear_of_fused(e, msg);
    if (msg->kind == PKI_MSG_PLAN && msg->op <= e->colls.number)
        return; /* begun here already, or over */
    unexpected = malloc(sizeof *unexpected + msg->payload);
    if (unexpected == NULL) {
        struct pki_where where = pki_engine_where(e, peer->rank, NULL);

        (void)pki_fail(PK_ERR_MEMORY, &where, "no memory to keep a message of %u bytes", (unsigned)msg->payload);
        pki_engine_poison(e, PK_ERR_MEMORY, true);
        return;
    }
    unexpected->msg = *msg;
    if (msg->payload > 0)
        memcpy(unexpected->payload, payload, msg->payload);
    pki_list_push(&peer->unexpected_queue, &unexpected->node);
}

/* What could not go out now goes with the next message consumed, or the next look at the control channel. */
static void give_credit(struct pki_engine *e, struct pki_peer *peer)
{
    struct pki_msg credit = { .kind = PKI_MSG_CREDIT, .bytes = peer->eager.in, .offset = peer->eager_put.in };

    if (pki_ctrl_send(peer, &credit, NULL, e) == PK_OK)
        peer->eager.in = peer->eager_put.in = 0;
}

static bool has_credit_to_return(const struct pki_peer *peer)
{
    return peer->eager.in >= PKI_EAGER_CREDIT / PKI_CREDIT_SHARE ||
           (peer->eager_put.in > 0 && peer->eager_put.in >= peer->eager_put.credit / PKI_CREDIT_SHARE);
}

void pki_ctrl_consumed(struct pki_engine *e, struct pki_peer *peer, size_t payload)
{
    peer->eager.in += payload + sizeof(struct pki_msg);
    if (has_credit_to_return(peer))
        give_credit(e, peer);
}

void pki_ctrl_eager_put_consumed(struct pki_engine *e, struct pki_peer *peer, size_t bytes)
{
    peer->eager_put.in += bytes;
    if (has_credit_to_return(peer))
        give_credit(e, peer);
}

static void dispatch(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg, const void *payload)
{
    const struct pki_handler *handler = handler_of(e, msg);
    struct pki_xfer *xfer;

    if (msg->kind == PKI_MSG_EAGER)
        pki_credit_arrived(peer, msg);
    if (msg->kind == PKI_MSG_CREDIT) {
        peer->eager.out -= msg->bytes < peer->eager.out ? msg->bytes : peer->eager.out;
        peer->eager_put.out -= msg->offset < peer->eager_put.out ? msg->offset : peer->eager_put.out;
        return;
    }
    if (handler->take != NULL) {
        if (msg->kind == PKI_MSG_SIDE)
            e->handlers->take_events(e);
        handler->take(e, peer, msg, payload);
        return;
    }
    if (pki_msg_of_collective(msg) && msg->op > peer->heard.coll)
        peer->heard.coll = msg->op;
    xfer = handler->go_on != NULL ? find_xfer(peer, msg) : NULL;
    if (xfer == NULL)
        keep(e, peer, msg, payload);
    else
        handler->go_on(xfer, msg, payload);
}

void pki_ctrl_unexpected_put(struct pki_engine *e, const struct pki_unexpected_put *put)
{
    struct pki_msg msg = put->about;

    msg.kind = PKI_MSG_RTS;
    msg.extra = PKI_RTS_EAGER_PUT;
    dispatch(e, &e->peers[put->ep->peer], &msg, NULL);
}

bool pki_ctrl_poll(struct pki_engine *e, struct pki_peer *peer)
{
    const struct pki_transport *transport = peer->ctrl->iface->transport;
    struct pki_msg msg;
    const void *payload;
    int n = 0;

    while (n < pki_tuning.wait.messages_a_poll && transport->peek(peer->ctrl, &msg, &payload)) {
        /* for calls that do not, as they make no system call unless something else comes up */
        const int cancel = pki_cancel_hold();

        dispatch(e, peer, &msg, payload);
        pki_cancel_release(cancel);
        transport->pop(peer->ctrl);
        n++;
    }
    if (has_credit_to_return(peer))
        give_credit(e, peer);
    if (peer->ctrl->state == PKI_EP_DEAD && n == 0) {
        struct pki_where where = pki_engine_where(e, peer->rank, pki_engine_first_task(e));

        pki_engine_attribute_failure(e, PK_ERR_PEER, &where, peer->ctrl, 0, 0);
    }
    return n > 0;
}

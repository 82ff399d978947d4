/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of short collectives without a task that are too long for one message: they are put before their CTS, and the receiving transport knows
 * where they belong before they come, most often. Who has no credit, or hears of such a peer, goes the ordinary way.
 *
 * A step of 33 to 64 KiB over TCP within a machine may lend its pages, and end when the peer says that it has read them, or be copied as one message,
 * which asks for no answer. Both are tried now and then, by the collective's number (util/autotuner.h); then the sender goes the way that took less. The last
 * message of those tries says which it is, so that the receiver knows what to wait for; a wrong guess costs it time and nothing else.
 */
#include <stdlib.h>

#include "engine/program.h"

#define LOOKS 16 /* for chunks where none are expected */

static uint64_t bit_of(const struct pki_inline_run *run, const struct pki_program_step *step)
{
    return 1ull << (step - run->program->steps);
}

static struct pki_peer *peer_of(const struct pki_inline_run *run, const struct pki_program_step *step)
{
    return &run->e->peers[step->peer];
}

static bool begin_send(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_xfer *xfer = pki_xfer_new(run->e, step->peer, true);
    bool went;

    if (xfer == NULL) {
        run->result = PK_ERR_MEMORY;
        return false;
    }
    xfer->kind = PKI_MEM_HOST;
    xfer->flags = PKI_MSG_FLAG_COLL;
    xfer->index = step->index;
    xfer->sig = run->program->sig;
    xfer->op = run->begun.number;
    xfer->addr = pki_inline_reply_at(run, step);
    xfer->answered = step->answered;
    xfer->bytes = xfer->ready = step->bytes;
    went = pki_send_at_once(xfer);
    pki_inline_reply_ends(run, step);
    if (!went) {
        pki_xfer_free(xfer);
        run->leaves = true;
        return false;
    }
    run->begun.sends[step - run->program->steps] = xfer;
    run->begun.sent |= bit_of(run, step);
    return true;
}

/* Its buffer is the caller's again once the peer has said that all has come. */
bool pki_inline_send_eager_put(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_xfer *xfer;

    if ((run->begun.sent & bit_of(run, step)) == 0 && !begin_send(run, step))
        return false;
    xfer = run->begun.sends[step - run->program->steps];
    if (xfer->done < xfer->bytes)
        return false;
    run->begun.sent &= ~bit_of(run, step);
    run->e->stats.bytes_sent += xfer->bytes;
    pki_xfer_free(xfer);
    return true;
}

enum found { NOTHING, A_PART, ALL_OF_IT, A_WORD, WHOLE };

static bool speaks_of(const struct pki_inline_run *run, const struct pki_program_step *step, const struct pki_msg *msg)
{
    return msg->op == run->begun.number && msg->index == step->index && msg->sig == run->program->sig &&
           (msg->flags & (PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED)) == PKI_MSG_FLAG_COLL;
}

/* FIN says how much is there, RTS that some came before its grant. Anything else is the ordinary way's affair. */
static enum found understand(struct pki_inline_run *run, const struct pki_program_step *step, const struct pki_msg *msg)
{
    if (msg->kind == PKI_MSG_FIN && msg->offset < step->bytes)
        run->came = msg->offset;
    if (msg->kind == PKI_MSG_FIN)
        return msg->offset == step->bytes ? ALL_OF_IT : A_PART;
    if (msg->kind == PKI_MSG_EAGER)
        return msg->payload == step->bytes ? WHOLE : NOTHING;
    return msg->kind == PKI_MSG_RTS && msg->extra == PKI_RTS_EAGER_PUT && msg->bytes == step->bytes ? A_WORD : NOTHING;
}

/* What came while somebody else looked at the control channel. */
static enum found look_at_unexpected(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_list *list = &peer_of(run, step)->unexpected_queue, *n = list->next;
    enum found found = NOTHING;

    while (n != list && found != ALL_OF_IT && found != WHOLE) {
        struct pki_unexpected *unexpected = pki_container_of(n, struct pki_unexpected, node);

        n = n->next;
        if (!speaks_of(run, step, &unexpected->msg) || unexpected->msg.kind == PKI_MSG_CTS)
            continue;
        found = understand(run, step, &unexpected->msg);
        if (found == NOTHING) {
            run->leaves = true;
            return NOTHING;
        }
        if (found == WHOLE)
            continue;
        pki_list_remove(&unexpected->node);
        free(unexpected);
    }
    return found;
}

static enum found look_at_ctrl(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_peer *peer = peer_of(run, step);
    const struct pki_transport *transport = peer->ctrl->iface->transport;
    enum found found = NOTHING;
    struct pki_msg msg;
    const void *payload;

    peer->ctrl->expected = 0;
    peer->ctrl->in_chunks = !step->either;
    peer->ctrl->expected_op = run->begun.number;
    if (!transport->peek(peer->ctrl, &msg, &payload))
        return NOTHING;
    if (speaks_of(run, step, &msg))
        found = understand(run, step, &msg);
    if (found != NOTHING) {
        if (found != WHOLE)
            transport->pop(peer->ctrl);
        return found;
    }
    (void)pki_ctrl_poll(run->e, peer); /* keeps what nobody waits for */
    return look_at_unexpected(run, step);
}

/* To the transport, that it knows where the step belongs; or back. */
static bool grant(struct pki_inline_run *run, const struct pki_program_step *step, unsigned what)
{
    const struct pki_msg msg = { .kind = PKI_MSG_CTS, .flags = PKI_MSG_FLAG_COLL, .index = step->index, .sig = run->program->sig,
                                 .op = run->begun.number, .bytes = step->bytes, .extra = (uint16_t)what,
                                 .offset = (uint64_t)(uintptr_t)pki_inline_at(run, step->kind == PKI_STEP_RECV ? step->dst : step->landing) };

    if (pki_ctrl_send(peer_of(run, step), &msg, NULL, run->e) != PK_OK)
        return false;
    run->begun.granted ^= bit_of(run, step);
    return true;
}

enum pki_inline_found pki_inline_recv_eager_put(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_peer *peer = peer_of(run, step);
    bool whole = step->either && (run->in_chunks & bit_of(run, step)) == 0 && pki_autotuner_goes_second(run->begun.number, peer->comes_whole);
    enum found found = NOTHING;

    if (!pki_list_empty(&peer->unexpected_queue))
        found = look_at_unexpected(run, step);
    if (run->leaves)
        return PKI_INLINE_NOTHING;
    if (found == NOTHING && !whole && (run->begun.granted & bit_of(run, step)) == 0 && !grant(run, step, PKI_CTS_LOCAL | (step->answers ? PKI_CTS_REPLIES : 0)))
        return PKI_INLINE_NOTHING;
    if (found == NOTHING)
        found = look_at_ctrl(run, step);
    if (found == A_WORD || found == A_PART) { /* it is granted with the next look */
        peer->comes_whole = false;
        run->in_chunks |= bit_of(run, step);
    }
    if (found == WHOLE && (run->begun.granted & bit_of(run, step)) != 0 && !grant(run, step, PKI_CTS_CANCEL))
        return PKI_INLINE_NOTHING;
    if (found == WHOLE)
        return PKI_INLINE_MESSAGE;
    if (found != ALL_OF_IT)
        return found == A_PART ? PKI_INLINE_PART : PKI_INLINE_NOTHING;
    run->begun.granted &= ~bit_of(run, step);
    pki_ctrl_eager_put_consumed(run->e, peer, step->bytes);
    return PKI_INLINE_IN_PLACE;
}

bool pki_inline_has_to_poll(struct pki_inline_run *run)
{
    return (run->begun.sent | run->begun.granted) != 0 || ++run->polls % LOOKS == 0;
}

void pki_inline_give_up(struct pki_inline_run *run)
{
    if ((run->begun.sent | run->begun.granted) == 0)
        return;
    (void)pki_engine_progress(run->e); /* the transports let go of what the caller is about to have back */
    for (uint64_t left = run->begun.sent; left != 0; left &= left - 1)
        pki_xfer_free(run->begun.sends[__builtin_ctzll(left)]);
    run->begun.sent = run->begun.granted = 0;
}

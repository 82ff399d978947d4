/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of short collectives without a task that are too long for one message: they are put ahead of their grant, and the receiving transport knows
 * where they belong before they come, most often. Who has no credit, or hears of such a peer, goes the ordinary way.
 */
#include <stdlib.h>

#include "engine/program.h"

#define LOOKS 16 /* for chunks where none are expected */

static uint64_t bit_of(const struct pki_quick_run *run, const struct pki_program_step *step)
{
    return 1ull << (step - run->program->steps);
}

static struct pki_peer *peer_of(const struct pki_quick_run *run, const struct pki_program_step *step)
{
    return &run->e->peers[step->peer];
}

static bool begin_send(struct pki_quick_run *run, const struct pki_program_step *step)
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
    xfer->addr = pki_quick_answer_at(run, step);
    xfer->answered = step->answered;
    xfer->bytes = xfer->ready = step->bytes;
    went = pki_send_at_once(xfer);
    pki_quick_answer_ends(run, step);
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
bool pki_quick_send_ahead(struct pki_quick_run *run, const struct pki_program_step *step)
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

enum found { NOTHING, A_PART, ALL_OF_IT, A_WORD };

static bool speaks_of(const struct pki_quick_run *run, const struct pki_program_step *step, const struct pki_msg *msg)
{
    return msg->op == run->begun.number && msg->index == step->index && msg->sig == run->program->sig &&
           (msg->flags & (PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED)) == PKI_MSG_FLAG_COLL;
}

/* FIN says how much is there, WANT that some came before its grant. Anything else is the ordinary way's affair. */
static enum found understand(struct pki_quick_run *run, const struct pki_program_step *step, const struct pki_msg *msg)
{
    if (msg->kind == PKI_MSG_FIN && msg->offset < step->bytes)
        run->came = msg->offset;
    if (msg->kind == PKI_MSG_FIN)
        return msg->offset == step->bytes ? ALL_OF_IT : A_PART;
    return msg->kind == PKI_MSG_WANT && msg->extra == PKI_WANT_AHEAD && msg->bytes == step->bytes ? A_WORD : NOTHING;
}

/* What came while somebody else looked at the lane. */
static enum found look_at_arrivals(struct pki_quick_run *run, const struct pki_program_step *step)
{
    struct pki_list *list = &peer_of(run, step)->arrivals, *n = list->next;
    enum found found = NOTHING;

    while (n != list && found != ALL_OF_IT) {
        struct pki_arrival *arrival = pki_container_of(n, struct pki_arrival, node);

        n = n->next;
        if (!speaks_of(run, step, &arrival->msg) || arrival->msg.kind == PKI_MSG_GRANT)
            continue;
        found = understand(run, step, &arrival->msg);
        if (found == NOTHING) {
            run->leaves = true;
            return NOTHING;
        }
        pki_list_remove(&arrival->node);
        free(arrival);
    }
    return found;
}

static enum found look_at_lane(struct pki_quick_run *run, const struct pki_program_step *step)
{
    struct pki_peer *peer = peer_of(run, step);
    const struct pki_transport *transport = peer->lane->iface->transport;
    enum found found = NOTHING;
    struct pki_msg msg;
    const void *payload;

    peer->lane->expected = 0;
    peer->lane->in_chunks = true;
    if (!transport->peek(peer->lane, &msg, &payload))
        return NOTHING;
    if (speaks_of(run, step, &msg))
        found = understand(run, step, &msg);
    if (found != NOTHING) {
        transport->pop(peer->lane);
        return found;
    }
    (void)pki_lane_poll(run->e, peer); /* keeps what nobody waits for */
    return look_at_arrivals(run, step);
}

/* To the transport, that it knows where the step belongs. */
static bool grant(struct pki_quick_run *run, const struct pki_program_step *step)
{
    const struct pki_msg msg = { .kind = PKI_MSG_GRANT, .flags = PKI_MSG_FLAG_COLL, .index = step->index, .sig = run->program->sig,
                                 .op = run->begun.number, .bytes = step->bytes, .extra = PKI_GRANT_SILENT | (step->answers ? PKI_GRANT_ANSWERS : 0),
                                 .offset = (uint64_t)(uintptr_t)pki_quick_at(run, step->kind == PKI_STEP_RECV ? step->dst : step->landing) };

    if (pki_lane_send(peer_of(run, step), &msg, NULL, run->e) != PK_OK)
        return false;
    run->begun.granted |= bit_of(run, step);
    return true;
}

enum pki_quick_found pki_quick_recv_ahead(struct pki_quick_run *run, const struct pki_program_step *step)
{
    struct pki_peer *peer = peer_of(run, step);
    enum found found = NOTHING;

    if (!pki_list_empty(&peer->arrivals))
        found = look_at_arrivals(run, step);
    if (run->leaves)
        return PKI_QUICK_NOTHING;
    if (found == NOTHING && (run->begun.granted & bit_of(run, step)) == 0 && !grant(run, step))
        return PKI_QUICK_NOTHING;
    if (found == NOTHING)
        found = look_at_lane(run, step);
    if (found != ALL_OF_IT)
        return found == A_PART ? PKI_QUICK_PART : PKI_QUICK_NOTHING;
    run->begun.granted &= ~bit_of(run, step);
    pki_lane_caught_up(run->e, peer, step->bytes);
    return PKI_QUICK_IN_PLACE;
}

bool pki_quick_has_to_look(struct pki_quick_run *run)
{
    return (run->begun.sent | run->begun.granted) != 0 || ++run->looks % LOOKS == 0;
}

void pki_quick_give_up(struct pki_quick_run *run)
{
    if ((run->begun.sent | run->begun.granted) == 0)
        return;
    (void)pki_engine_progress(run->e); /* the transports let go of what the caller is about to have back */
    for (uint64_t left = run->begun.sent; left != 0; left &= left - 1)
        pki_xfer_free(run->begun.sends[__builtin_ctzll(left)]);
    run->begun.sent = run->begun.granted = 0;
}

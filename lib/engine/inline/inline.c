/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short blocking sends and receives of host memory without a task: no allocation, no clock, no list. What does not go at once
 * this way, or turns out to be anything else than one message in its turn, goes the ordinary way, from the beginning.
 */
#include <sched.h>

#include "engine/channel/eager.h"
#include "engine/inline/inline.h"
#include "util/copy.h"
#include "util/noinline.h"

static bool may_be_inline(const struct pki_engine *e, const struct pki_peer *peer, size_t bytes)
{
    return e->gpu == NULL && peer->ctrl != NULL && bytes <= peer->eager.max;
}

static void count(struct pki_engine *e, bool is_send, size_t bytes)
{
    e->stats.operations++;
    e->stats.steps++;
    if (is_send)
        e->stats.bytes_sent += bytes;
    else
        e->stats.bytes_received += bytes;
}

static bool send_locked(struct pki_engine *e, struct pki_peer *peer, const void *in, size_t bytes)
{
    struct pki_msg msg;

    if (!pki_list_empty(&peer->sends) || !pki_list_empty(&peer->unexpected_queue) || !pki_eager_has_credit(peer, bytes) ||
        atomic_load_explicit(&e->failed, memory_order_relaxed) != PK_OK)
        return false;
    msg.flags = 0;
    msg.index = 0;
    msg.sig = 0;
    msg.op = peer->sends_begun[0] + 1;
    if (pki_eager_send(e, peer, &msg, in, bytes) != PK_OK)
        return false;
    peer->sends_begun[0]++;
    count(e, true, bytes);
    return true;
}

enum found { FOUND_NOTHING, FOUND_IT, FOUND_OTHER };

static void took(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg)
{
    pki_credit_arrived(peer, msg);
    peer->recvs_begun[0]++;
    pki_ctrl_consumed(e, peer, msg->payload);
    count(e, false, msg->payload);
}

static enum found look(struct pki_engine *e, struct pki_peer *peer, void *out, size_t bytes)
{
    const struct pki_transport *transport = peer->ctrl->iface->transport;
    struct pki_msg msg;
    const void *payload;

    peer->ctrl->expected = (uint32_t)bytes;
    if (!transport->peek(peer->ctrl, &msg, &payload))
        return peer->ctrl->state == PKI_EP_DEAD ? FOUND_OTHER : FOUND_NOTHING;
    if (msg.kind == PKI_MSG_CREDIT) {
        (void)pki_ctrl_poll(e, peer);
        return pki_list_empty(&peer->unexpected_queue) ? FOUND_NOTHING : FOUND_OTHER;
    }
    if (msg.kind != PKI_MSG_EAGER || msg.flags != 0 || msg.op != peer->recvs_begun[0] + 1 || msg.payload != bytes)
        return FOUND_OTHER;
    pki_copy_short(out, payload, bytes);
    transport->pop(peer->ctrl);
    took(e, peer, &msg);
    return FOUND_IT;
}

/* Nothing else is under way, so that nothing is kept waiting while one control channel is looked at. */
static enum found recv_turn(struct pki_engine *e, struct pki_peer *peer, void *out, size_t bytes)
{
    enum found found;
    int polls = 0;

    if (!pki_list_empty(&e->tasks.all) || !pki_list_empty(&peer->unexpected_queue) ||
        atomic_load_explicit(&e->failed, memory_order_relaxed) != PK_OK)
        return FOUND_OTHER;
    do
        found = look(e, peer, out, bytes);
    while (found == FOUND_NOTHING &&
           ++polls < (!e->config.shares_cpu ? pki_tuning.wait.inline_polls : pki_tuning.wait.inline_polls_crowded));
    return found;
}

static PKI_NOINLINE bool send_now(struct pki_engine *e, struct pki_peer *peer, const void *in, size_t bytes)
{
    bool done;

    pki_engine_lock(e);
    done = send_locked(e, peer, in, bytes);
    pki_engine_unlock(e);
    return done;
}

static PKI_NOINLINE bool recv_now(struct pki_engine *e, struct pki_peer *peer, void *out, size_t bytes)
{
    enum found found;
    int turns = 0;

    do {
        if (turns > 0 && !pki_engine_spins(e))
            sched_yield();
        pki_engine_lock(e);
        found = recv_turn(e, peer, out, bytes);
        pki_engine_unlock(e);
    } while (found == FOUND_NOTHING && ++turns < pki_tuning.wait.inline_turns);
    return found == FOUND_IT;
}

static PKI_NOINLINE bool send_held(struct pki_engine *e, struct pki_peer *peer, const void *in, size_t bytes)
{
    const int cancel = pki_cancel_hold();
    const bool done = send_now(e, peer, in, bytes);

    pki_cancel_release(cancel);
    return done;
}

static PKI_NOINLINE bool recv_held(struct pki_engine *e, struct pki_peer *peer, void *out, size_t bytes)
{
    const int cancel = pki_cancel_hold();
    const bool done = recv_now(e, peer, out, bytes);

    pki_cancel_release(cancel);
    return done;
}

bool pki_engine_send_inline(struct pki_engine *e, int to, const void *in, size_t bytes)
{
    struct pki_peer *peer = &e->peers[to];

    if (!may_be_inline(e, peer, bytes))
        return false;
    return e->ifaces.call_kernel ? send_held(e, peer, in, bytes) : send_now(e, peer, in, bytes);
}

bool pki_engine_recv_inline(struct pki_engine *e, int from, void *out, size_t bytes)
{
    struct pki_peer *peer = &e->peers[from];

    if (!may_be_inline(e, peer, bytes))
        return false;
    return e->ifaces.call_kernel ? recv_held(e, peer, out, bytes) : recv_now(e, peer, out, bytes);
}

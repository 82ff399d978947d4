/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short blocking sends and receives of host memory without a task: no allocation, no clock, no list. What does not go at once this
 * way, or turns out to be anything else than one message in its turn, goes the ordinary way, from the beginning.
 */
#include <sched.h>

#include "engine/internal.h"
#include "util/copy.h"
#include "util/dtype.h"

#define LOOKS_A_TURN 64 /* at the lane with the lock held: others want it too, an abort for instance */
#define LOOKS_CROWDED 8 /* where the core is then given to another rank: a peer that runs on another core answers sooner than the kernel */
#define TURNS 64        /* after which the ordinary way is no slower, and looks after everything else as well */

static bool may_be_quick(const struct pki_engine *e, const struct pki_request *r, size_t bytes)
{
    return r->stream.kind == PK_STREAM_KIND_BLOCKING && e->gpu == NULL && r->peer != e->config.rank &&
           e->peers[r->peer].lane != NULL && bytes <= e->peers[r->peer].eager_max;
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

static bool send_quick(struct pki_engine *e, const struct pki_request *r, size_t bytes)
{
    struct pki_peer *peer = &e->peers[r->peer];
    struct pki_msg msg;

    if (!pki_list_empty(&peer->sends) || !pki_list_empty(&peer->arrivals) ||
        peer->eager_out + bytes + sizeof msg > PKI_EAGER_CREDIT || atomic_load_explicit(&e->failed, memory_order_relaxed) != PK_OK)
        return false;
    msg.kind = PKI_MSG_EAGER;
    msg.flags = 0;
    msg.index = 0;
    msg.sig = 0;
    msg.op = peer->sends_begun[0] + 1;
    msg.payload = (uint16_t)bytes; /* EAGER carries no more of it */
    if (peer->lane->iface->transport->msg(peer->lane, &msg, r->in) != PK_OK)
        return false;
    peer->sends_begun[0]++;
    peer->eager_out += bytes + sizeof msg;
    e->stats.messages++;
    count(e, true, bytes);
    return true;
}

enum found { FOUND_NOTHING, FOUND_IT, FOUND_OTHER };

static enum found look(struct pki_engine *e, struct pki_peer *peer, const struct pki_request *r, size_t bytes)
{
    const struct pki_transport *transport = peer->lane->iface->transport;
    struct pki_msg msg;
    const void *payload;

    if (!transport->peek(peer->lane, &msg, &payload))
        return peer->lane->dead ? FOUND_OTHER : FOUND_NOTHING;
    if (msg.kind == PKI_MSG_CREDIT) {
        (void)pki_lane_poll(e, peer);
        return pki_list_empty(&peer->arrivals) ? FOUND_NOTHING : FOUND_OTHER;
    }
    if (msg.kind != PKI_MSG_EAGER || msg.flags != 0 || msg.op != peer->recvs_begun[0] + 1 || msg.payload != bytes)
        return FOUND_OTHER;
    pki_copy_short(r->out, payload, bytes);
    transport->pop(peer->lane);
    peer->recvs_begun[0]++;
    pki_lane_consumed(e, peer, bytes);
    count(e, false, bytes);
    return FOUND_IT;
}

/* Nothing else is under way, so that nothing is kept waiting while one lane is looked at. */
static enum found recv_turn(struct pki_engine *e, const struct pki_request *r, size_t bytes)
{
    struct pki_peer *peer = &e->peers[r->peer];
    enum found found = FOUND_NOTHING;

    if (!pki_list_empty(&e->tasks) || !pki_list_empty(&peer->arrivals) ||
        atomic_load_explicit(&e->failed, memory_order_relaxed) != PK_OK)
        return FOUND_OTHER;
    peer->lane->expected = (uint32_t)bytes;
    for (int i = 0; i < (e->spin ? LOOKS_A_TURN : LOOKS_CROWDED) && found == FOUND_NOTHING; i++)
        found = look(e, peer, r, bytes);
    return found;
}

static bool recv_quick(struct pki_engine *e, const struct pki_request *r, size_t bytes)
{
    enum found found = FOUND_NOTHING;

    for (int turn = 0; turn < TURNS && found == FOUND_NOTHING; turn++) {
        if (turn > 0 && !pki_engine_spins(e))
            sched_yield();
        pki_engine_lock(e);
        found = recv_turn(e, r, bytes);
        pki_engine_unlock(e);
    }
    return found == FOUND_IT;
}

enum pki_quick pki_quick_run(struct pki_engine *e, const struct pki_request *r, struct pki_list *blocking)
{
    size_t bytes = r->count * pki_dtype_bytes(r->dtype);
    bool done;

    if (r->what == PKI_DO_COLL)
        return pki_quick_coll(e, r, blocking);
    if (!may_be_quick(e, r, bytes))
        return PKI_QUICK_NOT;
    if (r->what == PKI_DO_RECV)
        return recv_quick(e, r, bytes) ? PKI_QUICK_DONE : PKI_QUICK_NOT;
    pki_engine_lock(e);
    done = send_quick(e, r, bytes);
    pki_engine_unlock(e);
    return done ? PKI_QUICK_DONE : PKI_QUICK_NOT;
}

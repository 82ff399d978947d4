/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue pair that has failed: all of the pair are made again, at both ends, on the rails whose ports are active then. Notes,
 * which another endpoint carries, say which queue pairs are the new ones and what has come over the old ones:
 *
 *   both ends bring their queue pairs into error, and wait for the completions of what had come before     DRAINING
 *   destroy them, and wait for a port that is active                                                       WAITING
 *   make new ones, say their numbers, the messages that have come, the grants that are not filled (HELLO)   GREETING
 *   connect, and say so (READY)                                                                            CONNECTED
 *   send again what has not come                                                                           UP
 *
 * The old queue pairs are gone at both ends before anything is sent again, so that no write which is late can hit a buffer that
 * has been given back, and none is counted twice. A message that came is not sent again; a grant's writes are, unless all of them
 * had come. Who closes its end goes on with this until its shutdown message has arrived; who has heard a shutdown message does
 * not, and says so when it is greeted.
 */
#include <stddef.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "tuning/tuning.h"
#include "util/clock.h"

#define DRAIN_NS (3 * PKI_NS_PER_S)
#define SAY_NS (100 * PKI_NS_PER_MS)  /* that a note of the end may wait for room */
#define TIMEOUT_NS (5 * PKI_NS_PER_S) /* without an active port, or with queue pairs that fail again and again, */
#define FAILURES 3 /* this number of times: on a machine that is starved of processors one may take all that time */
#define AWAY_NS (50 * PKI_NS_PER_MS) /* without a look: the rank was not in the library, and that does not count */

_Static_assert(sizeof(struct pki_rdma_note) <= PKI_NOTE_MAX, "a note fits");

enum note_kind { NOTE_HELLO = 1, NOTE_READY, NOTE_GIVING_UP, NOTE_SHUTDOWN_CAME };

static void destroy_qps(struct pki_rdma_ep *ep)
{
    for (uint32_t i = 0; i <= ep->nqps; i++)
        pki_rdma_qp_close(&ep->qps[i]);
}

/* ---- What had come, and what had not ---- */

/* Chunks without a number are known to have come when they are acknowledged; those that are not go again. */
static void collect_chunks(struct pki_rdma_ep *ep)
{
    for (uint32_t i = 1; i <= ep->nqps; i++) {
        struct pki_rdma_qp *qp = &ep->qps[i];

        for (; qp->completed != qp->posted; qp->completed++) {
            const struct pki_rdma_chunk *chunk = &qp->chunks[qp->completed % PKI_RDMA_DEPTH];

            if (chunk->move->number == 0)
                ep->redo[ep->nredo++] = *chunk;
        }
    }
}

static bool is_listed(const struct pki_rdma_note *note, uint32_t number)
{
    for (uint32_t i = 0; i < note->ngrants; i++)
        if (note->grants[i] == number)
            return true;
    return false;
}

/* A put whose writes tell of themselves has come as a whole, or starts over. One that had not begun belongs to a grant that
 * may be younger than the peer's list: a peer that is up again sends them while this end is not yet. */
static void judge_moves(struct pki_rdma_ep *ep)
{
    for (uint32_t i = ep->moves.head; i != ep->moves.end; i++) {
        struct pki_rdma_move *move = &ep->moves.at[i % PKI_RDMA_MOVES];

        if (move->number == 0 || move->issued == 0)
            continue;
        move->issued = is_listed(&ep->recover.theirs, move->number) ? 0 : move->put->bytes;
        move->flying = 0;
    }
    ep->moves.next = ep->moves.head;
}

static void fill_note(struct pki_rdma_ep *ep, struct pki_rdma_note *note)
{
    memset(note, 0, sizeof *note);
    note->kind = NOTE_HELLO;
    note->epoch = ep->recover.epoch;
    pki_rdma_hello_fill(ep, &note->hello);
    note->arrived = ep->ctrl.arrived;
    note->reposted = ep->ctrl.reposted;
    note->ngrants = pki_rdma_grants_unfilled(ep, note->grants);
}

const char *pki_rdma_note_parse(const void *bytes, size_t n, struct pki_rdma_note *note)
{
    if (n != sizeof *note)
        return "it has another length";
    memcpy(note, bytes, sizeof *note);
    if (note->kind < NOTE_HELLO || note->kind > NOTE_SHUTDOWN_CAME)
        return "its kind is unknown";
    if (note->ngrants > PKI_RDMA_NUMBERS)
        return "it lists more grants than there can be";
    return note->kind == NOTE_HELLO ? pki_rdma_hello_check(&note->hello) : NULL;
}

/* ---- From state to state ---- */

static void make_again(struct pki_rdma_ep *ep)
{
    if (pki_rdma_qps_open(ep) != PK_OK || pki_rdma_ctrl_again(ep) != PK_OK) {
        pki_rdma_give_up(ep, "queue pairs could not be made again");
        return;
    }
    pki_rdma_recover_enter(ep, PKI_RDMA_GREETING);
}

static void look_for_ports(struct pki_rdma_ep *ep, uint64_t now)
{
    bool any = false;

    if (now - ep->recover.looked_ns < pki_tuning.rdma.recover_look_ns)
        return;
    ep->recover.looked_ns = now;
    for (int i = 0; i < ep->iface->nrails; i++)
        any |= pki_rdma_rail_look(&ep->iface->rails[i]);
    if (any)
        make_again(ep);
    else if (now - ep->recover.since_ns > TIMEOUT_NS)
        pki_rdma_give_up(ep, "no port has been active for long");
}

static void drained(struct pki_rdma_ep *ep, uint64_t now)
{
    collect_chunks(ep);
    destroy_qps(ep);
    if (now - ep->recover.since_ns > TIMEOUT_NS && ep->recover.failures >= FAILURES)
        pki_rdma_give_up(ep, "queue pairs fail again and again");
    else
        pki_rdma_recover_enter(ep, PKI_RDMA_WAITING);
}

static void connect_qps(struct pki_rdma_ep *ep)
{
    if (pki_rdma_qps_connect(ep, &ep->recover.theirs.hello) == PK_OK)
        pki_rdma_recover_enter(ep, PKI_RDMA_CONNECTED);
    else
        pki_rdma_give_up(ep, "the new queue pairs could not be connected");
}

static void resume(struct pki_rdma_ep *ep)
{
    struct pki_where where = pki_rdma_where(ep);

    judge_moves(ep);
    pki_rdma_recover_enter(ep, PKI_RDMA_UP);
    pki_log(PKI_LOG_WARN, &where, "rdma: new queue pairs are connected after %llu ms",
            (unsigned long long)((pki_now_ns() - ep->recover.since_ns) / PKI_NS_PER_MS));
    if (ep->recover.again)
        pki_rdma_broken(ep, "the new queue pairs have failed too");
    else if (pki_rdma_ctrl_resend(ep, ep->recover.theirs.arrived, ep->recover.theirs.reposted))
        pki_rdma_stripe(ep);
    /* what was popped since they were made: the peer may have no credit left, and send nothing to be popped */
    pki_rdma_ctrl_repost(ep);
}

static void put_off(struct pki_rdma_recover *recover, uint64_t now)
{
    uint64_t away = now - recover->advanced_ns;

    recover->advanced_ns = now;
    if (away < AWAY_NS)
        return;
    recover->entered_ns += away;
    recover->since_ns += away;
}

/* Nobody would answer. Who had all that it waited for has had writes that told of themselves. */
static void end_moves(struct pki_rdma_ep *ep)
{
    for (uint32_t i = ep->moves.head; i != ep->moves.end; i++) {
        struct pki_rdma_move *move = &ep->moves.at[i % PKI_RDMA_MOVES];

        if (ep->peer == PKI_RDMA_PEER_SERVED && move->number != 0 && move->issued == move->put->bytes)
            move->flying = 0;
    }
    pki_rdma_stripe(ep);
    if (ep->moves.head != ep->moves.end)
        pki_rdma_ep_failed(ep, "the peer shut down while a transfer was in flight");
}

void pki_rdma_recover_advance(struct pki_rdma_ep *ep)
{
    struct pki_rdma_recover *recover = &ep->recover;
    uint64_t now = pki_now_ns();

    if (recover->state == PKI_RDMA_UP)
        return;
    put_off(recover, now);
    if (pki_rdma_has_left(ep) && recover->state > PKI_RDMA_DRAINING) {
        end_moves(ep);
        return;
    }
    switch (recover->state) {
    case PKI_RDMA_UP:
    case PKI_RDMA_GIVING_UP:
        break;
    case PKI_RDMA_DRAINING:
        if (recover->drained > ep->nqps)
            drained(ep, now);
        else if (now - recover->entered_ns > DRAIN_NS) /* what it wrote, or not, is not known */
            pki_rdma_give_up(ep, "a queue pair in error did not end");
        return;
    case PKI_RDMA_WAITING:
        look_for_ports(ep, now);
        return;
    case PKI_RDMA_GREETING:
        if (recover->said && recover->heard != PKI_RDMA_HEARD_NOTHING)
            connect_qps(ep);
        return;
    case PKI_RDMA_CONNECTED:
        if (recover->said && recover->heard == PKI_RDMA_HEARD_READY)
            resume(ep);
        return;
    }
}

/* ---- Notes ---- */

/* False: the one before it has not gone. */
static bool say(struct pki_rdma_ep *ep, const struct pki_rdma_note *note)
{
    struct pki_note *out = &ep->notes.out;

    if (out->bytes > 0)
        return false;
    memcpy(out->data, note, sizeof *note);
    out->bytes = sizeof *note;
    return true;
}

/* The peer is to know of it first, if that can be. */
static void end_given_up(struct pki_rdma_ep *ep)
{
    bool told = ep->recover.said && ep->notes.out.bytes == 0;

    if (told || pki_now_ns() - ep->recover.entered_ns > SAY_NS)
        pki_rdma_ep_failed(ep, ep->recover.why);
}

/* What the state asks for. */
static void say_state(struct pki_rdma_ep *ep)
{
    struct pki_rdma_note note = { .epoch = ep->recover.epoch };

    switch (ep->recover.state) {
    case PKI_RDMA_UP:
    case PKI_RDMA_DRAINING:
    case PKI_RDMA_WAITING:
        return;
    case PKI_RDMA_GREETING:
        fill_note(ep, &note);
        break;
    case PKI_RDMA_CONNECTED:
        note.kind = NOTE_READY;
        break;
    case PKI_RDMA_GIVING_UP:
        note.kind = NOTE_GIVING_UP;
        break;
    }
    ep->recover.said = say(ep, &note);
}

static void make_note(struct pki_rdma_ep *ep)
{
    struct pki_rdma_note note = { .kind = NOTE_SHUTDOWN_CAME, .epoch = ep->recover.epoch };

    if (ep->base.state == PKI_EP_DEAD || !ep->notes.carried)
        return;
    if (ep->notes.carrier_left) /* an end closes what stands by last: nothing more comes */
        pki_rdma_peer_left(ep, PKI_RDMA_PEER_LEFT);
    if (pki_rdma_has_left(ep)) {
        ep->recover.shutdown_due = ep->recover.shutdown_due && !say(ep, &note);
        return;
    }
    if (ep->recover.state == PKI_RDMA_UP)
        pki_rdma_watchdog(ep);
    else if (!ep->recover.said)
        say_state(ep);
    if (ep->recover.state == PKI_RDMA_GIVING_UP)
        end_given_up(ep);
}

/* Notes come in order: hello, ready, and the next hello only after both ends have said ready. */
static const char *take_note(struct pki_rdma_ep *ep, const struct pki_rdma_note *note)
{
    struct pki_rdma_recover *recover = &ep->recover;

    if (note->kind == NOTE_GIVING_UP)
        return "the peer gave up: no path is left";
    if (note->kind == NOTE_SHUTDOWN_CAME) {
        if (!ep->shutdown_sent)
            return "the peer answered a shutdown message that was not sent";
        pki_rdma_peer_left(ep, PKI_RDMA_PEER_LEFT); /* it reads nothing more, and has had all */
        return NULL;
    }
    if (note->kind == NOTE_READY) {
        if (note->epoch != recover->epoch || recover->heard == PKI_RDMA_HEARD_NOTHING)
            return "the peer said that its queue pairs are ready, which was not expected";
        recover->heard = PKI_RDMA_HEARD_READY;
        return NULL;
    }
    if (note->epoch == recover->epoch + 1 && recover->state == PKI_RDMA_UP)
        pki_rdma_broken(ep, "the peer's queue pairs have failed");
    if (note->epoch != recover->epoch || recover->heard != PKI_RDMA_HEARD_NOTHING || recover->state == PKI_RDMA_UP)
        return "the peer sent an unexpected hello";
    if (ep->ctrl.sent - note->arrived > PKI_RDMA_RING || note->hello.nrails != ep->nrails_there ||
        note->hello.piece_shift != ep->shift_there || note->hello.nqps != ep->nqps)
        return "the peer's hello is for another pair";
    recover->theirs = *note;
    recover->heard = PKI_RDMA_HEARD_HELLO;
    return NULL;
}

static void take(struct pki_rdma_ep *ep, const void *bytes, size_t n)
{
    struct pki_rdma_note note;
    const char *wrong = pki_rdma_note_parse(bytes, n, &note);

    if (pki_rdma_has_left(ep)) {
        ep->recover.shutdown_due |= wrong == NULL && note.kind == NOTE_HELLO;
        return;
    }
    pki_rdma_recover_advance(ep);
    if (wrong == NULL)
        wrong = take_note(ep, &note);
    if (wrong != NULL)
        pki_rdma_ep_failed(ep, wrong);
}

void pki_rdma_exchange_notes(struct pki_rdma_ep *ep)
{
    struct pki_note *in = &ep->notes.in;

    ep->notes.due = false;
    if (in->bytes > 0 && ep->base.state != PKI_EP_DEAD && ep->qps != NULL)
        take(ep, in->data, in->bytes);
    in->bytes = 0;
    make_note(ep);
}

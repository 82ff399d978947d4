/* SPDX-License-Identifier: Apache-2.0 */
#include "switchml/worker.h"

#include <stdlib.h>

#include "tuning/tuning.h"

#define NONE PKI_SWITCHML_NONE

pk_result_t pki_switchml_worker_init(struct pki_switchml_worker *w, uint32_t base, uint32_t window,
                                     const struct pki_switchml_timing *timing)
{
    *w = (struct pki_switchml_worker){
        .timing = *timing, .window = window, .base = base, .job = UINT8_MAX, .trip.timed = NONE, .oldest = NONE, .newest = NONE
    };
    w->flights = malloc(window * sizeof *w->flights);
    if (w->flights == NULL)
        return PK_ERR_MEMORY;
    for (uint32_t i = 0; i < window; i++)
        w->flights[i].id = w->flights[i].waits = NONE;
    return PK_OK;
}

void pki_switchml_worker_close(struct pki_switchml_worker *w)
{
    free(w->flights);
    w->flights = NULL;
}

static uint32_t place_of(const struct pki_switchml_worker *w, uint32_t id)
{
    return (uint32_t)(((uint64_t)id + w->shift) % (2 * (uint64_t)w->window));
}

uint16_t pki_switchml_worker_index(const struct pki_switchml_worker *w, uint32_t id)
{
    uint32_t place = place_of(w, id);

    return (uint16_t)((w->base + place % w->window) | (place >= w->window ? PKI_SWITCHML_SET : 0));
}

/* ---- flights, in the order in which they were sent ---- */

static void unlink_flight(struct pki_switchml_worker *w, uint32_t slot)
{
    struct pki_switchml_flight *f = &w->flights[slot];

    if (f->before == NONE)
        w->oldest = f->behind;
    else
        w->flights[f->before].behind = f->behind;
    if (f->behind == NONE)
        w->newest = f->before;
    else
        w->flights[f->behind].before = f->before;
}

static void link_last(struct pki_switchml_worker *w, uint32_t slot, uint64_t now)
{
    struct pki_switchml_flight *f = &w->flights[slot];

    f->sent_ns = now;
    f->turn = w->sends++;
    f->before = w->newest;
    f->behind = NONE;
    if (w->newest == NONE)
        w->oldest = slot;
    else
        w->flights[w->newest].behind = slot;
    w->newest = slot;
}

static void send_first(struct pki_switchml_worker *w, uint32_t id, uint64_t now)
{
    uint32_t slot = place_of(w, id) % w->window;

    w->flights[slot].id = id;
    w->flights[slot].again = false;
    link_last(w, slot, now);
}

static void send_again(struct pki_switchml_worker *w, uint32_t slot, uint64_t now)
{
    w->flights[slot].again = true;
    unlink_flight(w, slot);
    link_last(w, slot, now);
    if (w->trip.timed == slot)
        w->trip.timed = NONE;
}

/* ---- round trips ---- */

static void measure(struct pki_switchml_trip *t, uint64_t took)
{
    const uint64_t off = took > t->smoothed_ns ? took - t->smoothed_ns : t->smoothed_ns - took;

    t->timed = NONE;
    t->deviation_ns = t->smoothed_ns == 0 ? took / 2 : (3 * t->deviation_ns + off) / 4;
    t->smoothed_ns = t->smoothed_ns == 0 ? took : (7 * t->smoothed_ns + took) / 8;
}

/* Before the first reply of a job other ranks may not have called. */
static uint64_t timeout(const struct pki_switchml_worker *w)
{
    const uint64_t trip = w->trip.smoothed_ns + 4 * w->trip.deviation_ns;
    uint64_t ns = w->timing.timeout_ns;

    if (trip != 0 && w->replies > 0 && trip < ns)
        ns = trip > w->timing.least_ns ? trip : w->timing.least_ns;
    if (ns > w->timing.timeout_ns)
        ns = w->timing.timeout_ns;
    ns <<= w->doublings; /* 30 at most */
    return ns < PKI_SWITCHML_TIMEOUT_MAX_NS ? ns : PKI_SWITCHML_TIMEOUT_MAX_NS;
}

/* ---- the job ---- */

static void be_patient_again(struct pki_switchml_worker *w)
{
    w->doublings = 0;
    w->threshold = w->timing.threshold;
    w->doubled_at = w->resends + w->threshold;
    w->in_a_row = 0;
}

void pki_switchml_worker_begin(struct pki_switchml_worker *w, uint32_t packets, uint32_t ahead, uint64_t now)
{
    w->shift = place_of(w, w->packets);
    w->job++;
    w->packets = packets;
    w->ahead = ahead;
    w->replies = 0;
    w->resends = 0;
    be_patient_again(w);
    for (uint32_t id = 0; id < ahead; id++)
        send_first(w, id, now);
}

/* Packet `id` has its turn, and goes if its slot is free. */
static uint32_t go_or_wait(struct pki_switchml_worker *w, uint32_t id, uint64_t now)
{
    struct pki_switchml_flight *f = &w->flights[place_of(w, id) % w->window];

    if (f->id != NONE) {
        f->waits = id;
        return NONE;
    }
    send_first(w, id, now);
    if (w->trip.timed == NONE)
        w->trip.timed = place_of(w, id) % w->window;
    return id;
}

bool pki_switchml_worker_awaits(const struct pki_switchml_worker *w, const struct pki_switchml_packet *reply)
{
    /* A flight with another number: it has come before, or its packet has not been sent. */
    return reply->job == w->job && reply->id < w->packets && reply->index == pki_switchml_worker_index(w, reply->id) &&
           w->flights[place_of(w, reply->id) % w->window].id == reply->id;
}

bool pki_switchml_worker_reply(struct pki_switchml_worker *w, const struct pki_switchml_packet *reply, uint64_t now,
                               uint32_t next[2])
{
    struct pki_switchml_flight *f;
    uint32_t slot, waits;

    if (!pki_switchml_worker_awaits(w, reply))
        return false;
    slot = place_of(w, reply->id) % w->window;
    f = &w->flights[slot];
    unlink_flight(w, slot);
    if (w->trip.timed == slot)
        measure(&w->trip, now - f->sent_ns);
    if (!f->again && (int32_t)(f->turn - w->answered) > 0)
        w->answered = f->turn;
    waits = f->waits;
    f->id = f->waits = NONE;
    w->replies++;
    if (++w->in_a_row >= w->window && w->doublings > 0)
        be_patient_again(w);
    next[0] = waits != NONE ? go_or_wait(w, waits, now) : NONE;
    next[1] = w->packets - reply->id > w->ahead ? go_or_wait(w, reply->id + w->ahead, now) : NONE;
    return true;
}

/* The number of resends shows that the aggregator, or another worker, is busy rather than a packet lost. */
static void count_resend(struct pki_switchml_worker *w)
{
    w->in_a_row = 0;
    if (++w->resends < w->doubled_at)
        return;
    if (w->threshold <= UINT32_MAX / 2)
        w->threshold += w->timing.increment;
    w->doubled_at = w->resends + w->threshold;
    if (timeout(w) < PKI_SWITCHML_TIMEOUT_MAX_NS)
        w->doublings++;
}

/* Packets of one worker go one way, and come in order but where one is lost. */
static int32_t tolerance(const struct pki_switchml_worker *w)
{
    const uint32_t some = w->ahead / 8, least = pki_tuning.switchml.overtaken_least, most = pki_tuning.switchml.overtaken_most;

    return (int32_t)(some < least ? least : some > most ? most : some);
}

uint32_t pki_switchml_worker_overtaken(struct pki_switchml_worker *w, uint64_t now)
{
    uint32_t slot = w->oldest;

    if (slot == NONE || (int32_t)(w->answered - w->flights[slot].turn) < tolerance(w))
        return NONE;
    send_again(w, slot, now);
    return w->flights[slot].id;
}

uint32_t pki_switchml_worker_late(struct pki_switchml_worker *w, uint64_t now)
{
    uint32_t slot = w->oldest, overtaken = pki_switchml_worker_overtaken(w, now);

    if (overtaken != NONE || slot == NONE || now - w->flights[slot].sent_ns < timeout(w))
        return overtaken;
    send_again(w, slot, now);
    count_resend(w);
    return w->flights[slot].id;
}

uint64_t pki_switchml_worker_due(const struct pki_switchml_worker *w)
{
    return w->oldest == NONE ? UINT64_MAX : w->flights[w->oldest].sent_ns + timeout(w);
}

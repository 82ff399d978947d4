/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <string.h>

#define CHANNELS_MAX 8
#define PLACES_MAX (CALLS_MAX * (LEVELS_MAX + 1) * STEPS_MAX)
#define OWN_COPY 63 /* in a channel: a copy of the program's */

/* A transfer's cell. Both sides come to the same answer to who moves the bytes: whoever comes second, but the sender where the first has not
 * left its call yet. */
enum cell { CELL_EMPTY, CELL_FIRST_IN_CALL, CELL_FIRST_LEFT, CELL_MET, CELL_BOTH };

struct entry {
    struct step step;
    int waits, records; /* events, or -1 */
    int level_of;       /* >= 0: the end of this place of the rank's stream */
    uint64_t moved;     /* KERNEL, SIDE */
};

struct channel {
    uint8_t copies[TRANSFERS_MAX + CALLS_MAX];
    int head, count;
};

struct rank {
    int next, part;       /* call; BREAK_ONE_BY_ONE: the part of it */
    bool published, waits_for_channels;
    struct channels left;
    struct channel push[CHANNELS_MAX], pull;
    struct entry stream[STREAMS_MAX][PLACES_MAX / 4];
    int queued[STREAMS_MAX], head[STREAMS_MAX];
};

struct world {
    const struct program *p;
    const struct machine *machine;
    uint64_t *random;
    enum cell cell[TRANSFERS_MAX];
    uint8_t first[TRANSFERS_MAX]; /* 1: the sender came first */
    uint64_t ready, done;         /* words */
    uint64_t come[2];             /* as in the ideal: receives, sends whose streams have come to them */
    bool early;
    bool happened[EVENTS_MAX];
    int events;
    struct rank rank[RANKS_MAX];
};

static uint64_t bit(int n)
{
    return (uint64_t)1 << n;
}

static struct entry *add_entry(struct rank *r, int stream)
{
    struct entry *e = &r->stream[stream][r->queued[stream]++];

    *e = (struct entry){ .waits = -1, .records = -1, .level_of = -1 };
    return e;
}

/* ---- Channels ---- */

static int waiting_in(const struct channel *c)
{
    return c->count - c->head;
}

/* The driver takes one that nothing waits in, where there is one; else chance decides. */
static void enter_channel(struct world *w, struct rank *r, bool push, uint8_t op)
{
    const int channels = w->machine->channels;
    int at = (int)model_below(w->random, (uint32_t)channels);
    struct channel *c = &r->pull;

    for (int i = 0; push && i < channels && waiting_in(&r->push[at]) > 0; i++)
        at = (at + 1) % channels;
    if (push)
        c = &r->push[at];
    c->copies[c->count++] = op;
}

static struct channel *heads(struct world *w, struct rank *r, bool push, uint8_t op)
{
    if (!push)
        return waiting_in(&r->pull) > 0 && r->pull.copies[r->pull.head] == op ? &r->pull : NULL;
    for (int i = 0; i < w->machine->channels; i++)
        if (waiting_in(&r->push[i]) > 0 && r->push[i].copies[r->push[i].head] == op)
            return &r->push[i];
    return NULL;
}

/* False: another copy is in front of this one. */
static bool copy(struct world *w, struct rank *r, bool push, uint8_t op)
{
    struct channel *c = heads(w, r, push, op);

    if (c == NULL)
        return false;
    c->head++;
    if (op == OWN_COPY)
        return true;
    w->early = w->early || (w->come[0] & w->come[1] & bit(op)) == 0;
    *(push ? &r->left.pushes : &r->left.pulls) += 1;
    return true;
}

/* ---- Calls ---- */

static bool moves(const struct world *w, uint8_t op, bool sends)
{
    if (w->cell[op] == CELL_MET)
        return sends;
    return w->cell[op] == CELL_BOTH && (w->first[op] == 1) != sends;
}

static void publish(struct world *w, const struct program_part *part)
{
    enum cell *cell = &w->cell[part->transfer];

    if (*cell == CELL_EMPTY) {
        *cell = CELL_FIRST_IN_CALL;
        w->first[part->transfer] = part->sends;
    } else {
        *cell = *cell == CELL_FIRST_IN_CALL ? CELL_MET : CELL_BOTH;
    }
}

static int parts_of(struct world *w, int rank, const struct call *call, int level, int stream, int only, struct part out[PARTS_MAX])
{
    int n = 0;

    for (int i = 0; i < call->count; i++) {
        const struct program_part *p = &call->parts[i];
        const struct transfer *t = &w->p->transfer[p->transfer];

        if (p->level != level || p->stream != stream || (only >= 0 && i != only))
            continue;
        if (w->cell[p->transfer] == CELL_FIRST_IN_CALL)
            w->cell[p->transfer] = CELL_FIRST_LEFT;
        out[n++] = (struct part){ .op = p->transfer, .peer = t->rank[t->rank[0] == rank], .comm = t->comm, .sends = p->sends,
                                  .moves = moves(w, p->transfer, p->sends), .seen = (w->ready & bit(p->transfer)) != 0,
                                  .together = call->joins_all };
    }
    return n;
}

static void queue_steps(struct world *w, struct rank *r, int rank, int stream, const struct part *parts, int n)
{
    struct step steps[STEPS_MAX];
    int count = rule_steps(parts, n, w->machine->kernels, w->machine->breaks, &r->left, steps);

    for (int i = 0; i < n; i++) { /* a place in the stream, for the check that nothing moves early */
        struct entry *e = i == 0 ? add_entry(r, stream) : &r->stream[stream][r->queued[stream] - 1];

        e->level_of = rank;
        e->moved |= bit(parts[i].op);
    }
    for (int i = 0; i < count; i++) {
        add_entry(r, stream)->step = steps[i];
        if (steps[i].kind == STEP_COPY)
            enter_channel(w, r, steps[i].push, steps[i].op);
        for (int k = 0; steps[i].kind == STEP_SIDE && k < steps[i].count; k++)
            enter_channel(w, r, w->p->transfer[steps[i].ops[k]].rank[1] == rank, steps[i].ops[k]);
    }
}

/* Without kernels a call waits until all that it moves finds a channel. */
static bool find_channels(struct world *w, int rank, const struct call *call)
{
    struct rank *r = &w->rank[rank];
    struct part parts[PARTS_MAX];
    struct channels wanted = { 0, 0 }, more;

    if (w->machine->kernels)
        return true;
    for (int level = 0; level < call->levels; level++)
        for (int stream = 0; stream < STREAMS_MAX; stream++) {
            rule_wants(parts, parts_of(w, rank, call, level, stream, -1, parts), &more);
            wanted.pushes += more.pushes;
            wanted.pulls += more.pulls;
        }
    return wanted.pushes <= r->left.pushes && wanted.pulls <= r->left.pulls;
}

static void ready_of_all_levels(struct rank *r, const struct world *w, const struct call *call)
{
    for (int i = 0; i < call->count; i++)
        if (!moves(w, call->parts[i].transfer, call->parts[i].sends))
            add_entry(r, call->parts[i].stream)->step = (struct step){ .kind = STEP_WRITE_READY, .op = call->parts[i].transfer };
}

static bool step_group(struct world *w, int rank, const struct call *call)
{
    struct rank *r = &w->rank[rank];
    const bool one_by_one = (w->machine->breaks & BREAK_ONE_BY_ONE) != 0;
    const int only = one_by_one ? r->part : -1;
    struct part parts[PARTS_MAX];

    for (int i = 0; !r->published && i < call->count; i++)
        if (only < 0 || i == only)
            publish(w, &call->parts[i]);
    if (!r->published) { /* others may come before the rest */
        r->published = true;
        return true;
    }
    r->waits_for_channels = !find_channels(w, rank, call);
    if (r->waits_for_channels)
        return false;
    for (int level = 0; level < call->levels; level++)
        for (int stream = 0; stream < STREAMS_MAX; stream++) {
            int n = parts_of(w, rank, call, level, stream, only, parts);

            if (n > 0 && level == 0 && (w->machine->breaks & BREAK_LEVELS))
                ready_of_all_levels(r, w, call);
            if (n > 0)
                queue_steps(w, r, rank, stream, parts, n);
        }
    r->published = false;
    if (one_by_one && ++r->part < call->count)
        return true;
    r->part = 0;
    r->next++;
    return true;
}

static bool step_cpu(struct world *w, int rank)
{
    struct rank *r = &w->rank[rank];
    const struct call *call = &w->p->call[rank][r->next];

    if (r->next == w->p->calls[rank])
        return false;
    if (call->kind == CALL_GROUP)
        return step_group(w, rank, call);
    if (call->kind == CALL_SYNC && r->head[call->stream] != r->queued[call->stream])
        return false;
    if (call->kind == CALL_EVENT) {
        add_entry(r, call->from)->records = w->events;
        add_entry(r, call->stream)->waits = w->events++;
    } else if (call->kind == CALL_COPY) {
        add_entry(r, call->stream)->step = (struct step){ .kind = STEP_COPY, .push = true, .op = OWN_COPY };
        enter_channel(w, r, true, OWN_COPY);
    }
    r->next++;
    return true;
}

/* ---- Streams ---- */

/* Move what is ready of several; true: all has been. */
static bool serve(struct world *w, struct rank *r, int rank, struct entry *e)
{
    uint64_t all = 0;

    for (int i = 0; i < e->step.count; i++) {
        uint8_t op = e->step.ops[i];

        all |= bit(op);
        if ((e->moved & bit(op)) || !(w->ready & bit(op)))
            continue;
        if (e->step.kind == STEP_SIDE && !copy(w, r, w->p->transfer[op].rank[1] == rank, op))
            continue;
        w->early = w->early || (w->come[0] & w->come[1] & bit(op)) == 0;
        e->moved |= bit(op);
        w->done |= bit(op);
    }
    return e->moved == all;
}

static void come_to(struct world *w, int rank, uint64_t ops)
{
    for (int t = 0; t < w->p->transfers; t++)
        if (ops >> t & 1)
            w->come[w->p->transfer[t].rank[1] == rank] |= bit(t);
}

static bool do_step(struct world *w, struct rank *r, int rank, struct entry *e)
{
    switch (e->step.kind) {
    case STEP_WRITE_READY:
        w->ready |= bit(e->step.op);
        return true;
    case STEP_WAIT_READY:
        return (w->ready & bit(e->step.op)) != 0;
    case STEP_COPY:
        return copy(w, r, e->step.push, e->step.op);
    case STEP_WRITE_DONE:
        w->done |= bit(e->step.op);
        return true;
    case STEP_WAIT_DONE:
        return (w->done & bit(e->step.op)) != 0;
    case STEP_KERNEL:
    case STEP_SIDE:
        return serve(w, r, rank, e);
    }
    return false;
}

static bool step_stream(struct world *w, int rank, int stream)
{
    struct rank *r = &w->rank[rank];
    struct entry *e = &r->stream[stream][r->head[stream]];
    uint64_t moved = e->moved;

    if (r->head[stream] == r->queued[stream])
        return false;
    if (e->level_of >= 0)
        come_to(w, rank, e->moved);
    else if (e->records >= 0)
        w->happened[e->records] = true;
    else if (e->waits >= 0 ? !w->happened[e->waits] : !do_step(w, r, rank, e))
        return e->moved != moved;
    r->head[stream]++;
    return true;
}

static void reset(struct world *w, const struct program *p, const struct machine *machine, uint64_t *random)
{
    w->p = p;
    w->machine = machine;
    w->random = random;
    w->ready = w->done = w->come[0] = w->come[1] = 0;
    w->early = false;
    w->events = 0;
    memset(w->cell, 0, sizeof w->cell);
    memset(w->happened, 0, sizeof w->happened);
    for (int i = 0; i < p->ranks; i++) {
        struct rank *r = &w->rank[i];

        r->next = r->part = 0;
        r->published = r->waits_for_channels = false;
        memset(r->queued, 0, sizeof r->queued);
        memset(r->head, 0, sizeof r->head);
        r->pull.head = r->pull.count = 0;
        for (int c = 0; c < machine->channels; c++)
            r->push[c].head = r->push[c].count = 0;
        r->left.pushes = machine->channels - ((machine->breaks & BREAK_PUSHES) ? 0 : 1);
        r->left.pulls = (machine->breaks & BREAK_PULLS) ? 2 : 1;
    }
}

/* What the manual promises without kernels: nobody is refused who has no more sends and receives under way than there are channels. */
static bool keeps_limits(const struct world *w, int rank)
{
    int under_way[2] = { 0, 0 };

    for (int i = 0; i <= w->rank[rank].next; i++) {
        const struct call *call = &w->p->call[rank][i];

        for (int k = 0; call->kind == CALL_GROUP && k < call->count; k++)
            under_way[call->parts[k].sends] += (w->done & bit(call->parts[k].transfer)) == 0;
    }
    return under_way[0] <= 1 && under_way[1] <= w->machine->channels - 1;
}

static enum outcome verdict(const struct world *w)
{
    bool all = true, refused = false;

    for (int i = 0; i < w->p->ranks; i++) {
        const struct rank *r = &w->rank[i];

        all = all && r->next == w->p->calls[i];
        refused = refused || (r->waits_for_channels && !keeps_limits(w, i));
        for (int s = 0; s < STREAMS_MAX; s++)
            all = all && r->head[s] == r->queued[s];
    }
    return w->early ? WORLD_EARLY : all ? WORLD_ENDED : refused ? WORLD_REFUSED : WORLD_STUCK;
}

enum outcome world_run(const struct program *p, const struct machine *machine, uint64_t *random)
{
    static struct world w;
    const uint32_t actors = (uint32_t)p->ranks * (STREAMS_MAX + 1);
    uint32_t idle = 0, at = model_below(random, actors);

    reset(&w, p, machine, random);
    while (idle < actors) { /* everybody in turn, from a random one on after each step */
        int rank = (int)(at / (STREAMS_MAX + 1)), who = (int)(at % (STREAMS_MAX + 1));
        bool moved = who == STREAMS_MAX ? step_cpu(&w, rank) : step_stream(&w, rank, who);

        idle = moved ? 0 : idle + 1;
        at = moved ? model_below(random, actors) : (at + 1) % actors;
    }
    return verdict(&w);
}

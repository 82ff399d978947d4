/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <string.h>

#define CHANNELS_MAX 8
#define PLACES_MAX (CALLS_MAX * (LEVELS_MAX + 1) * STEPS_MAX)
#define OWN_COPY 63 /* a copy of the program's */

/* A transfer's cell. Both sides come to the same answer to who moves the bytes: whoever comes second, but the sender where the first has not
 * left its call yet. */
enum cell { CELL_EMPTY, CELL_FIRST_IN_CALL, CELL_FIRST_LEFT, CELL_MET, CELL_BOTH };

/* A place in a channel: its turn comes when all before it have been served. */
struct turn {
    int channel, number; /* -1: in none */
};

struct entry {
    struct step step;
    struct turn turn;            /* COPY, and a value wait behind a copy */
    struct turn side[PARTS_MAX]; /* SIDE */
    int waits, records;          /* events, or -1 */
    bool is_place;               /* the stream has come to the transfers `moved` */
    uint64_t moved;              /* KERNEL, SIDE */
};

struct channel {
    int given, served;
};

struct rank {
    int next, part; /* call; BREAK_ONE_BY_ONE: the part of it */
    bool published, waits_for_channels;
    int left; /* channels that the library may take */
    struct channel channel[CHANNELS_MAX];
    struct turn last[STREAMS_MAX], copy[STREAMS_MAX]; /* of each stream: the last turn, and the last copy's */
    bool held[STREAMS_MAX];                           /* the library has counted a channel for it */
    struct entry stream[STREAMS_MAX][PLACES_MAX / 4];
    int queued[STREAMS_MAX], head[STREAMS_MAX];
    int end[CALLS_MAX][STREAMS_MAX]; /* where each call's part of a stream ends */
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
    struct rank rank[MODEL_RANKS];
};

static uint64_t bit(int n)
{
    return (uint64_t)1 << n;
}

static struct entry *add_entry(struct rank *r, int stream)
{
    struct entry *e = &r->stream[stream][r->queued[stream]++];

    *e = (struct entry){ .waits = -1, .records = -1, .turn.channel = -1 };
    return e;
}

/* ---- Channels ---- */

/* The driver takes an idle channel where there is one; else chance decides, and there the work stays. */
static struct turn enter_channel(struct world *w, struct rank *r)
{
    const int channels = w->machine->channels;
    int at = (int)model_below(w->random, (uint32_t)channels);

    for (int i = 0; i < channels && r->channel[at].given != r->channel[at].served; i++)
        at = (at + 1) % channels;
    return (struct turn){ at, r->channel[at].given++ };
}

/* Behind the stream's last work in a channel, if that has not ended. */
static struct turn follow(struct world *w, struct rank *r, int stream)
{
    struct turn last = r->last[stream];

    if (last.channel >= 0 && r->channel[last.channel].served <= last.number)
        return r->last[stream] = (struct turn){ last.channel, r->channel[last.channel].given++ };
    return r->last[stream] = enter_channel(w, r);
}

static bool has_turn(const struct rank *r, struct turn turn)
{
    return turn.channel < 0 || r->channel[turn.channel].served == turn.number;
}

static void serve_turn(struct rank *r, struct turn turn)
{
    if (turn.channel >= 0)
        r->channel[turn.channel].served++;
}

/* The library gives the stream's channel back: without kernels when nothing of its is left in the stream, which may be a value wait behind a copy. */
static void let_go(struct world *w, struct rank *r, int stream)
{
    const struct turn last = r->copy[stream];
    const bool copies_only = w->machine->kernels || (w->machine->breaks & BREAK_VALUE_WAITS);
    bool over =
        copies_only ? last.channel < 0 || r->channel[last.channel].served > last.number : r->head[stream] == r->queued[stream];

    if (!r->held[stream] || !over)
        return;
    r->held[stream] = false;
    r->left++;
}

static void moved_now(struct world *w, uint8_t op)
{
    w->early = w->early || (w->come[0] & w->come[1] & bit(op)) == 0;
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

static int parts_of(struct world *w, int rank, const struct call *call, int level, int stream, int only,
                    struct part out[PARTS_MAX])
{
    int n = 0;

    for (int i = 0; i < call->count; i++) {
        const struct program_part *p = &call->parts[i];
        const struct transfer *t = &w->p->transfer[p->transfer];

        if (p->level != level || p->stream != stream || (only >= 0 && i != only))
            continue;
        if (w->cell[p->transfer] == CELL_FIRST_IN_CALL)
            w->cell[p->transfer] = CELL_FIRST_LEFT;
        out[n++] = (struct part){ .op = p->transfer,
                                  .peer = t->rank[t->rank[0] == rank],
                                  .comm = t->comm,
                                  .sends = p->sends,
                                  .moves = moves(w, p->transfer, p->sends),
                                  .seen = (w->ready & bit(p->transfer)) != 0,
                                  .together = call->joins_all };
    }
    return n;
}

static void queue_step(struct world *w, struct rank *r, int stream, const struct step *step)
{
    struct entry *e = add_entry(r, stream);
    bool waits = step->kind == STEP_WAIT_READY || step->kind == STEP_WAIT_DONE;

    e->step = *step;
    if (step->kind == STEP_COPY || (waits && !w->machine->kernels && r->last[stream].channel >= 0))
        e->turn = follow(w, r, stream);
    if (step->kind == STEP_COPY)
        r->copy[stream] = e->turn;
    for (int k = 0; step->kind == STEP_SIDE && k < step->count; k++)
        e->side[k] = enter_channel(w, r);
}

static void queue_steps(struct world *w, struct rank *r, int stream, const struct part *parts, int n)
{
    struct step steps[STEPS_MAX];
    struct channels channels = { r->left, r->held[stream] };
    struct entry *place = add_entry(r, stream); /* for the check that nothing moves early */
    bool moving = false;
    int count;

    place->is_place = true;
    for (int i = 0; i < n; i++) {
        place->moved |= bit(parts[i].op);
        moving = moving || parts[i].moves;
    }
    if (!w->machine->kernels && !channels.held && (moving || !(w->machine->breaks & BREAK_VALUE_WAITS))) {
        channels.left--;
        channels.held = true;
    }
    count = rule_steps(parts, n, w->machine->kernels, w->machine->breaks, &channels, steps);
    r->left = channels.left;
    r->held[stream] = channels.held;
    for (int i = 0; i < count; i++)
        queue_step(w, r, stream, &steps[i]);
}

/* Without kernels a call waits until all that it moves finds a channel. */
static bool find_channels(struct world *w, int rank, const struct call *call)
{
    struct rank *r = &w->rank[rank];
    struct part parts[PARTS_MAX];
    int wanted = 0;

    if (w->machine->kernels)
        return true;
    for (int stream = 0; stream < STREAMS_MAX; stream++) {
        bool used = false;

        for (int level = 0; level < call->levels; level++) {
            int n = parts_of(w, rank, call, level, stream, -1, parts);

            used = used || n > 0;
            wanted += rule_wants(parts, n);
        }
        wanted += used && !r->held[stream];
    }
    return wanted <= r->left;
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
                queue_steps(w, r, stream, parts, n);
        }
    memcpy(r->end[r->next], r->queued, sizeof r->queued);
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
        queue_step(w, r, call->stream, &(const struct step){ .kind = STEP_COPY, .op = OWN_COPY });
    }
    r->next++;
    return true;
}

/* ---- Streams ---- */

/* Move what is ready of several; true: all has been. */
static bool serve(struct world *w, struct rank *r, struct entry *e)
{
    uint64_t all = 0;

    for (int i = 0; i < e->step.count; i++) {
        uint8_t op = e->step.ops[i];

        all |= bit(op);
        if ((e->moved & bit(op)) || !(w->ready & bit(op)))
            continue;
        if (e->step.kind == STEP_SIDE) {
            if (!has_turn(r, e->side[i]))
                continue;
            serve_turn(r, e->side[i]);
            r->left++;
        }
        moved_now(w, op);
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

static bool do_step(struct world *w, struct rank *r, struct entry *e)
{
    if (!has_turn(r, e->turn))
        return false;
    switch (e->step.kind) {
    case STEP_WRITE_READY:
        w->ready |= bit(e->step.op);
        return true;
    case STEP_WAIT_READY:
        return (w->ready & bit(e->step.op)) != 0;
    case STEP_COPY:
        if (e->step.op != OWN_COPY)
            moved_now(w, e->step.op);
        return true;
    case STEP_WRITE_DONE:
        w->done |= bit(e->step.op);
        return true;
    case STEP_WAIT_DONE:
        return (w->done & bit(e->step.op)) != 0;
    case STEP_KERNEL:
    case STEP_SIDE:
        return serve(w, r, e);
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
    if (e->is_place)
        come_to(w, rank, e->moved);
    else if (e->records >= 0)
        w->happened[e->records] = true;
    else if (e->waits >= 0 ? !w->happened[e->waits] : !do_step(w, r, e))
        return e->moved != moved;
    serve_turn(r, e->turn);
    r->head[stream]++;
    let_go(w, r, stream);
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
        memset(r->channel, 0, sizeof r->channel);
        memset(r->held, 0, sizeof r->held);
        for (int s = 0; s < STREAMS_MAX; s++)
            r->last[s].channel = r->copy[s].channel = -1;
        r->left = machine->channels - ((machine->breaks & BREAK_LAST_CHANNEL) ? 0 : 1);
    }
}

/* What the manual promises without kernels: nobody is refused while the streams with operations under way, and the parts of groups of several
 * under way, are no more than there are channels but one. */
static bool keeps_limits(const struct world *w, int rank)
{
    const struct rank *r = &w->rank[rank];
    bool used[STREAMS_MAX] = { false };
    int under_way = 0;

    for (int i = 0; i <= r->next; i++) {
        const struct call *call = &w->p->call[rank][i];

        for (int k = 0; call->kind == CALL_GROUP && k < call->count; k++) {
            int stream = call->parts[k].stream;
            bool open = i == r->next || r->head[stream] < r->end[i][stream];

            under_way += open && call->count > 1 && !call->joins_all;
            under_way += open && !used[stream];
            used[stream] = used[stream] || open;
        }
    }
    return under_way <= w->machine->channels - 1;
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <stdio.h>
#include <string.h>

#define ITEMS_MAX 14

/* What the program does, before it is dealt to the ranks. */
enum item_kind { ITEM_TRANSFER, ITEM_COLLECTIVE, ITEM_LOCAL };

struct item {
    enum item_kind kind;
    uint8_t comm, src, dst; /* LOCAL: src is the rank */
    enum call_kind local;
};

struct maker {
    struct program *p;
    uint64_t *random;
    int seen[2][COMMS_MAX][MODEL_RANKS][MODEL_RANKS]; /* receives and sends so far of a communicator, from a rank to a rank */
    uint8_t number[COMMS_MAX][MODEL_RANKS][MODEL_RANKS][TRANSFERS_MAX]; /* the transfer that the n-th of them is */
    int numbered[COMMS_MAX][MODEL_RANKS][MODEL_RANKS];
};

uint32_t model_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64, by Steele, Lea and Flood */

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

uint32_t model_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((uint64_t)model_random(state) * n >> 32);
}

/* The n-th send of a pair and communicator is for the n-th receive. */
static uint8_t transfer_of(struct maker *m, int comm, int src, int dst, bool sends)
{
    int n = m->seen[sends][comm][src][dst]++;

    if (n == m->numbered[comm][src][dst]) {
        int made = m->p->transfers++;

        m->p->transfer[made] = (struct transfer){ (uint8_t)comm, { (uint8_t)dst, (uint8_t)src } };
        m->number[comm][src][dst][m->numbered[comm][src][dst]++] = (uint8_t)made;
    }
    return m->number[comm][src][dst][n];
}

static void add_part(struct maker *m, int rank, struct call *call, const struct item *item, int level, uint8_t stream)
{
    bool sends = item->src == rank;

    call->parts[call->count++] =
        (struct program_part){ transfer_of(m, item->comm, item->src, item->dst, sends), stream, (uint8_t)level, sends };
}

/* Each level hands something to the next rank but `level`, so that every rank sends and receives in each. */
static void add_collective(struct maker *m, int rank, struct call *call, const struct item *item)
{
    const int ranks = m->p->ranks;
    uint8_t stream = (uint8_t)model_below(m->random, (uint32_t)m->p->streams);

    call->levels = (uint8_t)(ranks == 2 ? 2 : item->src % 2 + 1);
    call->collective = true;
    call->joins_all = ranks < 4 || call->levels == 2;
    for (int level = 0; level < call->levels; level++) {
        int hop = ranks == 2 ? 1 : level + 1;
        struct item to = { .comm = item->comm, .src = (uint8_t)rank, .dst = (uint8_t)((rank + hop) % ranks) };
        struct item from = { .comm = item->comm, .src = (uint8_t)((rank + ranks - hop) % ranks), .dst = (uint8_t)rank };

        add_part(m, rank, call, &to, level, stream);
        add_part(m, rank, call, &from, level, stream);
    }
}

static void add_local(struct maker *m, struct call *call, enum call_kind kind)
{
    const uint32_t streams = (uint32_t)m->p->streams;

    call->kind = kind;
    call->stream = kind == CALL_COPY ? STREAMS_MAX - 1 : (uint8_t)model_below(m->random, streams);
    call->from = (uint8_t)model_below(m->random, streams);
    if (kind != CALL_COPY && model_below(m->random, 3) == 0) /* for the program's own copies */
        *(kind == CALL_SYNC ? &call->stream : &call->from) = STREAMS_MAX - 1;
}

/* Neighbours change places, so that ranks differ in the order of their calls. */
static void shuffle(uint64_t *random, struct item *items, int n, uint32_t swaps)
{
    for (uint32_t k = 0; n > 1 && k < swaps; k++) {
        uint32_t i = model_below(random, (uint32_t)n - 1);
        struct item kept = items[i];

        items[i] = items[i + 1];
        items[i + 1] = kept;
    }
}

static void deal(struct maker *m, int rank, const struct item *items, int n, uint32_t swaps)
{
    struct program *p = m->p;
    struct item mine[ITEMS_MAX];
    int count = 0, room = 0;
    uint8_t stream = 0;

    for (int i = 0; i < n; i++)
        if (items[i].kind == ITEM_COLLECTIVE || items[i].src == rank || (items[i].kind == ITEM_TRANSFER && items[i].dst == rank))
            mine[count++] = items[i];
    shuffle(m->random, mine, count, swaps);
    for (int i = 0; i < count; i++) {
        bool joins = mine[i].kind == ITEM_TRANSFER && room > 0;
        struct call *call = joins ? &p->call[rank][p->calls[rank] - 1] : &p->call[rank][p->calls[rank]++];

        if (!joins) {
            *call = (struct call){ .kind = CALL_GROUP, .levels = 1 };
            room = mine[i].kind == ITEM_TRANSFER ? 1 + (int)model_below(m->random, 4) : 0;
            stream = (uint8_t)model_below(m->random, (uint32_t)p->streams);
        }
        room -= room > 0;
        if (model_below(m->random, 4) == 0) /* most groups lie in one stream */
            stream = (uint8_t)model_below(m->random, (uint32_t)p->streams);
        if (mine[i].kind == ITEM_TRANSFER)
            add_part(m, rank, call, &mine[i], 0, stream);
        else if (mine[i].kind == ITEM_COLLECTIVE)
            add_collective(m, rank, call, &mine[i]);
        else
            add_local(m, call, mine[i].local);
    }
}

static struct item random_item(struct maker *m)
{
    static const enum call_kind locals[] = { CALL_SYNC, CALL_EVENT, CALL_EVENT, CALL_COPY };
    const uint32_t ranks = (uint32_t)m->p->ranks;
    uint32_t draw = model_below(m->random, 12);
    struct item item = { .kind = draw < 8 ? ITEM_TRANSFER : draw < 9 ? ITEM_COLLECTIVE : ITEM_LOCAL };

    item.comm = (uint8_t)model_below(m->random, COMMS_PAIRS);
    item.src = (uint8_t)model_below(m->random, ranks);
    item.dst = (uint8_t)((item.src + 1 + model_below(m->random, ranks - 1)) % ranks);
    item.local = locals[model_below(m->random, 4)];
    return item;
}

void program_make(struct program *p, uint64_t *random)
{
    struct maker m = { .p = p, .random = random };
    struct item items[ITEMS_MAX];
    int n = 2 + (int)model_below(random, ITEMS_MAX - 1), collectives = 0;
    uint32_t swaps = model_below(random, 2) * model_below(random, 6);

    p->ranks = 2 + (int)model_below(random, MODEL_RANKS - 1);
    p->streams = 1 + (int)model_below(random, STREAMS_MAX - 1);
    p->transfers = 0;
    memset(p->calls, 0, sizeof p->calls);
    for (int i = 0; i < n; i++) {
        items[i] = random_item(&m);
        if (items[i].kind == ITEM_COLLECTIVE && collectives == COMMS_MAX - COMMS_PAIRS)
            items[i].kind = ITEM_TRANSFER;
        else if (items[i].kind == ITEM_COLLECTIVE)
            items[i].comm = (uint8_t)(COMMS_PAIRS + collectives++);
    }
    for (int rank = 0; rank < p->ranks; rank++)
        deal(&m, rank, items, n, swaps);
}

static void print_call(const struct program *p, int rank, const struct call *call)
{
    static const char *const names[] = { "group", "sync", "event", "copy" };

    printf("    %s", call->collective ? "collective" : names[call->kind]);
    if (call->kind == CALL_EVENT)
        printf(" stream %d waits for %d", call->stream, call->from);
    else if (call->kind != CALL_GROUP)
        printf(" stream %d", call->stream);
    for (int i = 0; i < call->count; i++) {
        const struct program_part *part = &call->parts[i];
        const struct transfer *t = &p->transfer[part->transfer];

        printf("%s %s %d #%d comm %d stream %d", i > 0 ? "," : "", part->sends ? "send to" : "receive from",
               t->rank[!part->sends], part->transfer, t->comm, part->stream);
        if (call->levels > 1)
            printf(" level %d", part->level);
    }
    printf("\n");
    (void)rank;
}

void program_print(const struct program *p)
{
    for (int rank = 0; rank < p->ranks; rank++) {
        printf("  rank %d:\n", rank);
        for (int i = 0; i < p->calls[rank]; i++)
            print_call(p, rank, &p->call[rank][i]);
    }
}

/* ---- The ideal ---- */

/* A place in a stream: a call's parts of one level, or an event. */
struct place {
    uint64_t transfers;
    int event;   /* >= 0: wait for this one */
    int records; /* >= 0: sets this one */
};

struct ideal {
    const struct program *p;
    int next[MODEL_RANKS], events;
    struct place place[MODEL_RANKS][STREAMS_MAX][CALLS_MAX * (LEVELS_MAX + 1)];
    int queued[MODEL_RANKS][STREAMS_MAX], head[MODEL_RANKS][STREAMS_MAX];
    uint64_t come[2]; /* receives and sends that their streams have come to */
    uint64_t over;
    bool happened[EVENTS_MAX];
};

static struct place *add_place(struct ideal *w, int rank, int stream)
{
    struct place *place = &w->place[rank][stream][w->queued[rank][stream]++];

    *place = (struct place){ .event = -1, .records = -1 };
    return place;
}

static void call_ideal(struct ideal *w, int rank, const struct call *call)
{
    for (int level = 0; call->kind == CALL_GROUP && level < call->levels; level++)
        for (int stream = 0; stream < STREAMS_MAX; stream++) {
            uint64_t transfers = 0;

            for (int i = 0; i < call->count; i++)
                if (call->parts[i].stream == stream && call->parts[i].level == level)
                    transfers |= (uint64_t)1 << call->parts[i].transfer;
            if (transfers != 0)
                add_place(w, rank, stream)->transfers = transfers;
        }
    if (call->kind == CALL_EVENT) {
        add_place(w, rank, call->from)->records = w->events;
        add_place(w, rank, call->stream)->event = w->events++;
    }
}

static bool step_ideal_cpu(struct ideal *w, int rank)
{
    const struct call *call = &w->p->call[rank][w->next[rank]];

    if (w->next[rank] == w->p->calls[rank])
        return false;
    if (call->kind == CALL_SYNC && w->head[rank][call->stream] != w->queued[rank][call->stream])
        return false;
    call_ideal(w, rank, call);
    w->next[rank]++;
    return true;
}

static bool step_ideal_stream(struct ideal *w, int rank, int stream)
{
    struct place *place = &w->place[rank][stream][w->head[rank][stream]];

    if (w->head[rank][stream] == w->queued[rank][stream])
        return false;
    for (int t = 0; place->transfers != 0 && t < w->p->transfers; t++)
        if (place->transfers >> t & 1)
            w->come[w->p->transfer[t].rank[1] == rank] |= (uint64_t)1 << t;
    w->over |= w->come[0] & w->come[1];
    if ((place->transfers & ~w->over) != 0 || (place->event >= 0 && !w->happened[place->event]))
        return false;
    if (place->records >= 0)
        w->happened[place->records] = true;
    w->head[rank][stream]++;
    return true;
}

bool program_ends(const struct program *p)
{
    static struct ideal w;
    bool moved = true;

    w.p = p;
    w.events = 0;
    memset(w.next, 0, sizeof w.next);
    memset(w.queued, 0, sizeof w.queued);
    memset(w.head, 0, sizeof w.head);
    memset(w.happened, 0, sizeof w.happened);
    w.come[0] = w.come[1] = w.over = 0;
    while (moved) {
        moved = false;
        for (int rank = 0; rank < p->ranks; rank++) {
            while (step_ideal_cpu(&w, rank))
                moved = true;
            for (int stream = 0; stream < STREAMS_MAX; stream++)
                while (step_ideal_stream(&w, rank, stream))
                    moved = true;
        }
    }
    for (int rank = 0; rank < p->ranks; rank++) {
        if (w.next[rank] != p->calls[rank])
            return false;
        for (int stream = 0; stream < STREAMS_MAX; stream++)
            if (w.head[rank][stream] != w.queued[rank][stream])
                return false;
    }
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random schedules of agreements of 2 to 9 ranks: messages are late, and those of different senders in any order; ranks die at
 * any moment, in the middle of what they send too, and then lose the last of it or not; deaths are seen late; and ranks that
 * live count as dead. All that return have one value, of the right ranks, and nobody waits for ever. Then each rule of the
 * machine is taken away in turn, and that has to be noticed.
 *
 * usage: model.agree [SCHEDULES [SEED]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll/agree.h"

#define RANKS 9
#define ROUNDS 2  /* agreements, one behind the other */
#define QUEUE 128 /* messages of a pair that have not come */
#define STEPS_MAX 20000
#define MUTANT_SCHEDULES 200000 /* a mutant is found long before */
#define LARGE 1024

enum rule {
    NONE,
    THE_DEAD_ARE_TOLD,   /* VIEW, to a rank that counts as dead and may live */
    VALUES_GO_TO_ALL,    /* FLOOD, before a rank returns that has seen a death */
    ALL_HOLD_IT_FIRST,   /* a value is not returned before RETURN */
    THE_DEAD_ARE_SILENT, /* messages of ranks that count as dead are not taken */
    VIEWS_DO_NOT_MIX,    /* UP of another view does not count */
    LAST_WORDS_COUNT,    /* what a rank sent is taken before it counts as dead */
    RULES
};

static const char *const names[RULES] = { "none",
                                          "who counts as dead is told",
                                          "a value goes to all before a rank returns",
                                          "all hold a value before one returns",
                                          "messages of the dead are not taken",
                                          "views do not mix",
                                          "what the dead have sent is taken first" };

struct message {
    enum pki_agree_kind kind;
    uint64_t number, set;
    struct pki_agree_value value;
};

struct queue {
    struct message at[QUEUE];
    int head, tail;
};

struct rank {
    struct pki_agree agree;
    uint64_t dead, view;
    int begun;       /* agreements */
    bool died, left; /* left: it returned without a value */
    bool suspected;  /* it lives, and counts as dead */
    uint64_t returned_view[ROUNDS];
    struct pki_agree_value returned[ROUNDS];
    bool has_returned[ROUNDS];
};

struct world {
    enum rule without;
    uint64_t random;
    int size;
    bool losing;           /* the last messages of the dead may be lost */
    int kills, suspicions; /* left */
    int sends_left;        /* of the rank that is about to die; -1: none is */
    bool wrong;
    struct rank ranks[RANKS];
    struct queue queues[RANKS][RANKS]; /* [from][to] */
};

static uint32_t pick(struct world *w, uint32_t n)
{
    w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(((w->random >> 33) * n) >> 31);
}

struct sender {
    struct world *world;
    int rank;
};

static struct sender senders[RANKS];

static bool is_told(const struct world *w, int to, const struct pki_agree_msg *msg)
{
    return (w->without != THE_DEAD_ARE_TOLD || (*msg->set >> to & 1) == 0) &&
           (w->without != VALUES_GO_TO_ALL || msg->kind != PKI_AGREE_FLOOD);
}

static void post(void *arg, int to, const struct pki_agree_msg *msg)
{
    struct sender *s = arg;
    struct world *w = s->world;
    struct queue *q = &w->queues[s->rank][to];

    if (w->sends_left == 0) {
        w->ranks[s->rank].died = true;
        return;
    }
    if (w->sends_left > 0)
        w->sends_left--;
    if (!is_told(w, to, msg) || w->ranks[to].died)
        return;
    if (q->tail - q->head == QUEUE) {
        w->wrong = true;
        return;
    }
    q->at[q->tail++ % QUEUE] =
        (struct message){ .kind = msg->kind, .number = msg->number, .set = *msg->set, .value = msg->value };
}

static uint64_t bits_of(int rank, int round)
{
    return ~(1ull << (rank + 16 * round));
}

/* It has returned, by the machine's word, or by the broken rule's. */
static void note_end(struct world *w, int r)
{
    struct rank *rank = &w->ranks[r];
    const bool early = w->without == ALL_HOLD_IT_FIRST && rank->agree.state == PKI_AGREE_HOLDS;
    const int round = rank->begun - 1;

    if (rank->died || rank->left || rank->has_returned[round])
        return;
    rank->left = rank->agree.state == PKI_AGREE_LEFT_OUT;
    if (rank->agree.state != PKI_AGREE_RETURNED && !early)
        return;
    rank->has_returned[round] = true;
    rank->returned[round] = rank->agree.value;
    rank->returned_view[round] = rank->view;
}

static void begin(struct world *w, int r)
{
    struct rank *rank = &w->ranks[r];

    rank->agree.rank = r;
    rank->agree.size = w->size;
    rank->agree.number = (uint64_t)rank->begun + 1;
    rank->agree.dead = &rank->dead;
    rank->agree.view = &rank->view;
    rank->agree.send = post;
    rank->agree.arg = &senders[r];
    rank->agree.mine =
        (struct pki_agree_value){ .all = bits_of(r, rank->begun), .last = (uint64_t)(r * 7 % RANKS), .calls = 1u << r };
    rank->agree.mine.id[0] = (unsigned char)r;
    rank->begun++;
    pki_agree_begin(&rank->agree);
    note_end(w, r);
}

static bool may_begin(const struct world *w, int r)
{
    const struct rank *rank = &w->ranks[r];

    return !rank->died && !rank->left && rank->begun < ROUNDS && (rank->begun == 0 || rank->has_returned[rank->begun - 1]);
}

/* The message that rank `to` would take next from `from`: one of a later agreement waits until that has begun. */
static const struct message *next_message(struct world *w, int from, int to)
{
    struct queue *q = &w->queues[from][to];
    const struct rank *rank = &w->ranks[to];

    if (rank->died || rank->left || q->head == q->tail)
        return NULL;
    return q->at[q->head % QUEUE].number > (uint64_t)rank->begun ? NULL : &q->at[q->head % QUEUE];
}

static void deliver(struct world *w, int from, int to)
{
    struct rank *rank = &w->ranks[to];
    struct queue *q = &w->queues[from][to];
    struct message m = q->at[q->head++ % QUEUE];
    struct pki_agree_msg msg = { .kind = m.kind, .number = m.number, .value = m.value, .set = &m.set };
    const uint64_t dead = rank->dead;

    rank->left = (m.set >> to & 1) != 0 && (dead >> from & 1) == 0;
    if (rank->left || m.number != (uint64_t)rank->begun || rank->has_returned[rank->begun - 1])
        return;
    if (w->without == VIEWS_DO_NOT_MIX && m.kind == PKI_AGREE_UP)
        m.set = rank->view;
    if (w->without == THE_DEAD_ARE_SILENT)
        rank->dead &= ~(1ull << from);
    pki_agree_take(&rank->agree, from, &msg);
    rank->dead |= dead;
    note_end(w, to);
}

static bool may_notice(struct world *w, int r, int dead)
{
    const struct rank *rank = &w->ranks[r];

    if (r == dead || rank->died || rank->left || rank->begun == 0 || rank->has_returned[rank->begun - 1] ||
        (rank->dead >> dead & 1) != 0)
        return false;
    if (!w->ranks[dead].died && !w->ranks[dead].left)
        return false;
    return w->without == LAST_WORDS_COUNT || next_message(w, dead, r) == NULL;
}

static void lose_last(struct world *w, int dead)
{
    for (int to = 0; to < w->size; to++) {
        struct queue *q = &w->queues[dead][to];

        if (w->losing && q->tail > q->head)
            q->tail -= (int)pick(w, (uint32_t)(q->tail - q->head) + 1);
    }
}

/* At once, or in the middle of what it sends next. */
static void kill_one(struct world *w, int r)
{
    w->kills--;
    w->ranks[r].died = true;
    lose_last(w, r);
}

enum event_kind { BEGIN, DELIVER, NOTICE, SUSPECT };

struct event {
    enum event_kind kind;
    int a, b;
};

static int list_events(struct world *w, struct event *events)
{
    int n = 0;

    for (int r = 0; r < w->size; r++) {
        if (may_begin(w, r))
            events[n++] = (struct event){ BEGIN, r, r };
        for (int other = 0; other < w->size; other++) {
            if (next_message(w, other, r) != NULL)
                events[n++] = (struct event){ DELIVER, other, r };
            if (may_notice(w, r, other))
                events[n++] = (struct event){ NOTICE, r, other };
        }
    }
    return n;
}

static bool may_suspect(const struct world *w, int r, int other)
{
    const struct rank *rank = &w->ranks[r];

    return w->suspicions > 0 && r != other && !rank->died && !rank->left && rank->begun > 0 &&
           !rank->has_returned[rank->begun - 1] && !w->ranks[other].died && !rank->suspected;
}

static void run_event(struct world *w, struct event e)
{
    const int actor = e.kind == DELIVER ? e.b : e.a;

    w->sends_left = w->kills > 0 && pick(w, 40) == 0 ? (int)pick(w, 4) : -1; /* it dies meanwhile */
    if (e.kind == BEGIN)
        begin(w, e.a);
    else if (e.kind == DELIVER)
        deliver(w, e.a, e.b);
    else
        pki_agree_lost(&w->ranks[e.a].agree, e.b);
    if (e.kind == SUSPECT) {
        w->suspicions--;
        w->ranks[e.b].suspected = true;
    }
    if (w->ranks[actor].died)
        kill_one(w, actor);
    w->sends_left = -1;
    note_end(w, actor);
}

/* Where a rank is killed only its own loss is random: it sends nothing more. */
static void step(struct world *w, const struct event *events, int n)
{
    const int r = (int)pick(w, (uint32_t)w->size), other = (int)pick(w, (uint32_t)w->size);

    if (w->kills > 0 && !w->ranks[r].died && pick(w, 60) == 0)
        kill_one(w, r);
    else if (may_suspect(w, r, other) && pick(w, 60) == 0)
        run_event(w, (struct event){ SUSPECT, r, other });
    else
        run_event(w, events[pick(w, (uint32_t)n)]);
}

static bool counts(const struct world *w, int r, int round)
{
    const struct rank *rank = &w->ranks[r];

    return rank->has_returned[round] && !rank->suspected && (!rank->died || !w->losing);
}

/* The value is that of all ranks outside the view, and of no other. */
static bool is_value_of(const struct world *w, uint64_t view, const struct pki_agree_value *value, int round)
{
    uint64_t all = UINT64_MAX, last = UINT64_MAX;
    uint32_t calls = 0;
    int root = -1;

    for (int r = w->size - 1; r >= 0; r--)
        if ((view >> r & 1) == 0) {
            all &= bits_of(r, round);
            last = (uint64_t)(r * 7 % RANKS) < last ? (uint64_t)(r * 7 % RANKS) : last;
            calls |= 1u << r;
            root = r;
        }
    return value->all == all && value->last == last && value->calls == calls && value->id[0] == root;
}

static const char *judge(const struct world *w)
{
    for (int round = 0; round < ROUNDS; round++) {
        int first = -1;

        for (int r = 0; r < w->size; r++) {
            const struct rank *rank = &w->ranks[r];

            if (!rank->died && !rank->suspected && !rank->has_returned[round])
                return rank->left ? "a rank that lives is left out" : "a rank waits for ever";
            if (!rank->died && rank->suspected && !rank->left && !rank->has_returned[round])
                return "a rank that counts as dead waits for ever";
            if (!counts(w, r, round))
                continue;
            for (int d = 0; d < w->size; d++)
                if ((rank->returned_view[round] >> d & 1) != 0 && !w->ranks[d].died && !w->ranks[d].suspected)
                    return "a rank that lives counts as dead";
            if (!is_value_of(w, rank->returned_view[round], &rank->returned[round], round))
                return "a value of other ranks";
            if (first < 0)
                first = r;
            if (rank->returned_view[round] != w->ranks[first].returned_view[round] ||
                memcmp(&rank->returned[round], &w->ranks[first].returned[round], sizeof rank->returned[round]) != 0)
                return "two values";
        }
    }
    return NULL;
}

static void open_world(struct world *w, enum rule without, uint64_t seed)
{
    const uint64_t random = seed * 0x9e3779b97f4a7c15ull + 1;

    for (int from = 0; from < RANKS; from++)
        for (int to = 0; to < RANKS; to++)
            w->queues[from][to].head = w->queues[from][to].tail = 0;
    memset(w->ranks, 0, sizeof w->ranks);
    w->without = without;
    w->random = random;
    (void)pick(w, 2);
    w->size = 2 + (int)pick(w, RANKS - 1);
    w->losing = pick(w, 2) == 0;
    w->kills = (int)pick(w, (uint32_t)w->size);
    w->suspicions = pick(w, 4) == 0;
    w->sends_left = -1;
    w->wrong = false;
    for (int r = 0; r < RANKS; r++)
        senders[r] = (struct sender){ w, r };
}

static const char *run_schedule(struct world *w, enum rule without, uint64_t seed)
{
    static struct event events[RANKS * (2 * RANKS + 1)];

    open_world(w, without, seed);
    for (int steps = 0; steps < STEPS_MAX && !w->wrong; steps++) {
        const int n = list_events(w, events);

        if (n == 0)
            return judge(w);
        step(w, events, n);
    }
    return "it does not end";
}

static int check_rules(long schedules, uint64_t seed)
{
    static struct world w;

    for (long i = 0; i < schedules; i++) {
        const char *what = run_schedule(&w, NONE, seed + (uint64_t)i);

        if (what == NULL)
            continue;
        printf("FAILED: schedule %llu, %d ranks: %s\n", (unsigned long long)(seed + (uint64_t)i), w.size, what);
        return 1;
    }
    printf("%ld schedules of 2 to %d ranks: one value each, and all ended\n", schedules, RANKS);
    return 0;
}

static int check_without(enum rule rule, uint64_t seed)
{
    static struct world w;

    for (long i = 0; i < MUTANT_SCHEDULES; i++) {
        const char *what = run_schedule(&w, rule, seed + (uint64_t)i);

        if (what == NULL)
            continue;
        printf("without \"%s\": schedule %ld: %s\n", names[rule], i, what);
        return 0;
    }
    printf("FAILED: that the rule \"%s\" is missing was not noticed in %d schedules\n", names[rule], MUTANT_SCHEDULES);
    return 1;
}

/* ---- How many messages a rank sends when nobody dies ---- */

static struct {
    struct pki_agree ranks[LARGE];
    uint64_t sets[LARGE][2][LARGE / 64];
    struct {
        int from, to;
        struct pki_agree_msg msg;
    } queue[8 * LARGE];
    int head, tail, sent[LARGE];
} large;

static void post_large(void *arg, int to, const struct pki_agree_msg *msg)
{
    const int from = (int)((struct pki_agree *)arg - large.ranks);

    large.sent[from]++;
    large.queue[large.tail].from = from;
    large.queue[large.tail].to = to;
    large.queue[large.tail++].msg = *msg;
}

static int check_count(void)
{
    int most = 0, returned = 0;

    for (int r = 0; r < LARGE; r++) {
        large.ranks[r] = (struct pki_agree){ .rank = r,
                                             .size = LARGE,
                                             .number = 1,
                                             .dead = large.sets[r][0],
                                             .view = large.sets[r][1],
                                             .send = post_large,
                                             .arg = &large.ranks[r],
                                             .mine = { .all = UINT64_MAX } };
        pki_agree_begin(&large.ranks[r]);
    }
    for (; large.head < large.tail; large.head++)
        pki_agree_take(&large.ranks[large.queue[large.head].to], large.queue[large.head].from, &large.queue[large.head].msg);
    for (int r = 0; r < LARGE; r++) {
        most = large.sent[r] > most ? large.sent[r] : most;
        returned += large.ranks[r].state == PKI_AGREE_RETURNED;
    }
    printf("%s%d of %d ranks returned; at most %d messages a rank, %d in all\n",
           returned == LARGE && most <= 6 ? "" : "FAILED: ", returned, LARGE, most, large.tail);
    return returned != LARGE || most > 6;
}

int main(int argc, char **argv)
{
    const long schedules = argc > 1 ? atol(argv[1]) : 100000;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    int failed = check_rules(schedules, seed) + check_count();

    for (int rule = NONE + 1; rule < RULES; rule++)
        failed += check_without((enum rule)rule, seed);
    return failed != 0;
}

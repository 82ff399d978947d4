/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs in both workers, words released in random order, against the ideal: what waits for nobody ends. */
#define _GNU_SOURCE
#include "parent.h"

#include <string.h>

enum { OPS = 28, STEPS = 80, RWORDS = 12 };

struct rop {
    int w, s, kind, word, type; /* word -1: it does not wait */
    long size;
};

struct step {
    int op, word; /* one of them is -1 */
};

struct program {
    int n, steps;
    struct rop op[OPS];
    struct step step[STEPS];
};

struct state {
    unsigned queued, open, done; /* bits: operations, words, operations that are done in the ideal */
};

struct counts {
    int push, push_s, pull, pull_s, vwait, kwait, kern_s, other; /* _s: streams */
};

struct way {
    int round, style, rule; /* round -1: it is not written down */
};

struct result {
    int step, w;
    unsigned stuck, mask;
    struct counts c;
};

static int is_push(int k)
{
    return k == PUSH || k == PUSHW;
}

static int is_pull(int k)
{
    return k == PULL || k == PULLW;
}

static void ideal(const struct program *p, struct state *st)
{
    unsigned blocked[2] = { 0, 0 };

    st->done = 0;
    for (int i = 0; i < p->n; i++) { /* ops of a stream are queued in the order of their numbers */
        const struct rop *o = &p->op[i];
        if (!(st->queued >> i & 1))
            continue;
        if (o->word >= 0 && !(st->open >> o->word & 1))
            blocked[o->w] |= 1u << o->s;
        if (!(blocked[o->w] >> o->s & 1))
            st->done |= 1u << i;
    }
}

static void advance(const struct program *p, int k, struct state *st)
{
    if (p->step[k].op >= 0)
        st->queued |= 1u << p->step[k].op;
    else
        st->open |= 1u << p->step[k].word;
    ideal(p, st);
}

/* What waits in worker w. */
static void count(const struct program *p, const struct state *st, int w, struct counts *c)
{
    unsigned pushes = 0, pulls = 0, kernels = 0, seen = 0;

    memset(c, 0, sizeof *c);
    for (int i = 0; i < p->n; i++) {
        const struct rop *o = &p->op[i];
        const unsigned stream = 1u << o->s;

        if (o->w != w || !(st->queued >> i & 1) || st->done >> i & 1)
            continue;
        if (!(seen & stream) && o->word >= 0)
            *(o->type == BY_VALUE ? &c->vwait : &c->kwait) += 1;
        seen |= stream;
        c->push += is_push(o->kind);
        c->pull += is_pull(o->kind);
        pushes |= is_push(o->kind) ? stream : 0;
        pulls |= is_pull(o->kind) ? stream : 0;
        kernels |= o->kind == KERN ? stream : 0;
        c->other += !is_push(o->kind) && !is_pull(o->kind) && o->kind != KERN;
    }
    c->push_s = __builtin_popcount(pushes);
    c->pull_s = __builtin_popcount(pulls);
    c->kern_s = __builtin_popcount(kernels);
}

/* Does the program keep the rule at every step? 1: fewer than C pushes wait, and pulls of one stream, beside which no other
 * pull is queued. 2: fewer than C pushes and pulls wait. Either: fewer value waits than there are compute channels. */
static int obeys(const struct program *p)
{
    const int compute = parent.o.connections ? parent.o.connections : 8,
              copies = parent.o.copy_connections ? parent.o.copy_connections : 4;
    struct state st = { 0, 0, 0 };

    for (int k = 0; k < p->steps; k++) {
        struct counts n[2];
        int op = p->step[k].op;

        advance(p, k, &st);
        for (int w = 0; w < 2; w++) {
            count(p, &st, w, &n[w]);
            if (parent.o.rule == 2 ? n[w].push + n[w].pull >= copies : n[w].push >= copies || n[w].pull_s > 1)
                return 0;
            if (n[w].vwait >= compute || n[w].other)
                return 0;
        }
        if (parent.o.rule == 1 && op >= 0 && is_pull(p->op[op].kind) && st.done >> op & 1 && n[p->op[op].w].pull)
            return 0;
    }
    return 1;
}

static int random_kind(int plain)
{
    unsigned x = rnd(100);

    if (x < 35)
        return PUSH;
    if (x < 50)
        return PULL;
    if (x < 70)
        return KERN;
    if (x < 85)
        return plain ? PUSH : PUSHW;
    if (x < 92)
        return plain ? PULL : PULLW;
    return plain ? KERN : H2D + (int)rnd(3);
}

static void random_op(struct rop *o, int style, int streams, int words)
{
    *o = (struct rop){ (int)rnd(2), (int)rnd((unsigned)streams), random_kind(style & 1), -1, BY_KERNEL, parent.o.size };
    if (rnd(10) < 6)
        o->word = (int)rnd((unsigned)words);
    if (style & 2 && rnd(2))
        o->type = BY_VALUE;
}

static void drop_last(struct program *p)
{
    p->n--;
    p->steps--;
}

/* Steps in random order; where the rule is to be kept, an operation that would break it is dropped. */
static void make(struct program *p, int style, int rule)
{
    int words = 1 + (int)rnd(RWORDS), streams = 1 + (int)rnd(8), goal = 3 + (int)rnd(OPS - 3), open = 0;
    unsigned opened = 0;

    memset(p, 0, sizeof *p);
    for (int tries = 0; (p->n < goal && tries < 200) || open < words; tries++) {
        if (p->n < goal && tries < 200 && (open >= words || rnd(10) < 8)) {
            random_op(&p->op[p->n], style, streams, words);
            p->step[p->steps++] = (struct step){ p->n++, -1 };
            if (rule && !obeys(p))
                drop_last(p);
        } else {
            int w;

            do {
                w = (int)rnd((unsigned)words);
            } while (opened >> w & 1);
            opened |= 1u << w;
            open++;
            p->step[p->steps++] = (struct step){ -1, w };
        }
    }
}

static void row(const struct way *way, int k, int w, const struct counts *c, unsigned want, unsigned idle)
{
    fprintf(parent.csv, "%s,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%x,%x\n", parent.o.mode, parent.o.connections,
            parent.o.copy_connections, way->round, k, w, way->style, way->rule, c->push, c->push_s, c->pull, c->pull_s, c->vwait,
            c->kwait, c->kern_s, c->other, want, idle);
}

/* Streams of worker w whose queued ops are all ideally done. */
static unsigned should_be_idle(const struct program *p, const struct state *st, int w)
{
    unsigned bad = 0, used = 0;

    for (int i = 0; i < p->n; i++) {
        if (p->op[i].w != w || !(st->queued >> i & 1))
            continue;
        used |= 1u << p->op[i].s;
        if (!(st->done >> i & 1))
            bad |= 1u << p->op[i].s;
    }
    return used & ~bad;
}

static int do_step(const struct program *p, const struct step *s)
{
    if (s->op < 0) {
        atomic_store(&parent.sh->word[W_RANDOM + s->word].v, parent.epoch);
        return 0;
    }
    const struct rop *o = &p->op[s->op];
    struct reply *r = ASK(o->w, C_QUEUE, o->s, o->kind, o->word, o->type, o->size, s->op, (long)parent.epoch);
    if (r && parent.blocked)
        printf("queueing stood in a random program\n");
    return r ? 0 : -1;
}

/* What worker w should have done by now, and whether it has. */
static int look(const struct program *p, const struct state *st, int k, int w, const struct way *way, struct result *out)
{
    unsigned want = should_be_idle(p, st, w), idle;
    struct counts c;
    struct reply *r = ASK(w, C_IDLE, (long)want, 25l);

    if (!r)
        return -1;
    idle = (unsigned)r->r[0] & 0xff;
    count(p, st, w, &c);
    if (way->round >= 0 && (c.push || c.pull || c.vwait || c.kwait))
        row(way, k, w, &c, want, idle);
    if ((idle & want) != want)
        *out = (struct result){ k, w, want & ~idle, want, c };
    return 0;
}

static int run_program(const struct program *p, const struct way *way, struct result *out)
{
    struct state st = { 0, 0, 0 };

    out->step = -1;
    parent.seed++;
    parent.epoch++;
    if (both(C_SETUP, (long)parent.seed, parent.o.size))
        return -1;
    for (int k = 0; k < p->steps; k++) {
        if (do_step(p, &p->step[k]))
            return -1;
        advance(p, k, &st);
        for (int w = 0; w < 2 && out->step < 0; w++)
            if (look(p, &st, k, w, way, out))
                return -1;
    }
    open_words();
    return finish("random program");
}

static void print_program(const struct program *p, const struct result *r)
{
    printf("  stuck at step %d in worker %d, streams %x of %x, waiting pushes %d (streams %d) pulls %d (%d) value waits %d "
           "kernel waits %d\n",
           r->step, r->w, r->stuck, r->mask, r->c.push, r->c.push_s, r->c.pull, r->c.pull_s, r->c.vwait, r->c.kwait);
    for (int k = 0; k <= r->step; k++) {
        const struct step *s = &p->step[k];

        if (s->op < 0) {
            printf("    release word %d\n", s->word);
            continue;
        }
        const struct rop *o = &p->op[s->op];
        printf("    %c stream %d: ", 'A' + o->w, o->s);
        if (o->word >= 0)
            printf("wait word %d by %s, ", o->word, type_name[o->type]);
        printf("%s\n", kind_name[o->kind]);
    }
    fflush(stdout);
}

static struct program without(const struct program *p, int op)
{
    struct program q = { .n = p->n };

    memcpy(q.op, p->op, sizeof q.op);
    for (int k = 0; k < p->steps; k++)
        if (p->step[k].op != op || op < 0)
            q.step[q.steps++] = p->step[k];
    return q;
}

/* Leaves out what the standstill does not need. */
static void make_small(struct program *p, struct result *r)
{
    static const struct way unwritten = { .round = -1, .rule = 1 };

    for (int tries = 0, i = p->n - 1; i >= 0 && tries < 60 && !late(); i--, tries++) {
        struct program q = without(p, i);
        struct result s;

        if (q.steps == p->steps || !obeys(&q))
            continue;
        if (run_program(&q, &unwritten, &s)) {
            if (start_pair())
                return;
            continue;
        }
        if (s.step >= 0) {
            *p = q;
            *r = s;
        }
    }
}

static int one_program(int round, int *shown, int ran[2], int stuck[2])
{
    struct way way = { .round = round, .style = round & 3 };
    struct program p;
    struct result r;

    make(&p, way.style, round % 5 != 4);
    way.rule = obeys(&p);
    if (run_program(&p, &way, &r))
        return start_pair();
    ran[way.rule]++;
    stuck[way.rule] += r.step >= 0;
    if (r.step < 0 || !way.rule || (*shown)++ >= 6)
        return 0;
    make_small(&p, &r);
    printf("  counterexample (round %d, made small):\n", round);
    print_program(&p, &r);
    return 0;
}

void experiment_programs(void)
{
    int stuck[2] = { 0, 0 }, ran[2] = { 0, 0 }, shown = 0;

    random_start((uint64_t)parent.seed * 7919);
    for (int round = 0; round < parent.o.rounds && !late(); round++)
        if (one_program(round, &shown, ran, stuck))
            return;
    printf("programs, %s, %d and %d channels: rule %d kept: %d programs, %d stuck; broken: %d, %d stuck\n", parent.o.mode,
           parent.o.connections, parent.o.copy_connections, parent.o.rule, ran[1], stuck[1], ran[0], stuck[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Random sequences of peer copies in 16 streams of one process: W is one that waits, S a small one that the parent waits for, B a
 * big one; R releases one that waits. What happened is written down; tables.py says for each copy that stood still how many other
 * streams had unfinished copies when it was queued. */
#define _GNU_SOURCE
#include "parent.h"

#include <unistd.h>

enum { SEQ = 16 };

struct sequence {
    int id, style, copies, most; /* style: the stream is drawn, or the next */
    int waits[SEQ], n, words;    /* word << 8 | stream */
    int last;
    unsigned waiting, used; /* streams */
};

static void row(const struct sequence *q, int k, char op, int s, const char *kind, long idle)
{
    fprintf(parent.csv, "%s,%d,%d,%d,%d,%d,%c,%d,%s,%lx\n", parent.o.mode, parent.o.connections, parent.o.copy_connections,
            q->style, q->id, k, op, s, kind, idle);
}

static char pick_op(const struct sequence *q)
{
    unsigned x = rnd(10);
    char op = x < 3 ? 'W' : x < 6 ? 'S' : x < 9 ? 'B' : 'R';

    if (op == 'R' && q->n == 0)
        return 'S';
    return op == 'W' && q->n >= q->most ? 'B' : op;
}

static int pick_stream(struct sequence *q)
{
    int s;

    do {
        q->last = (q->last + 1) % SEQ;
        s = q->style ? (int)rnd(SEQ) : q->last;
    } while (q->waiting >> s & 1);
    return s;
}

/* Rule 3: a copy is queued while fewer than C other streams have unfinished ones. 1: it may not be queued now. */
static int is_full(int s, int copies)
{
    struct reply *r = ASK(0, C_IDLE, 0l, 0l);

    return r ? __builtin_popcount(~(unsigned)r->r[0] & 0xffff & ~(1u << s)) >= copies : -1;
}

static int queue_copy(struct sequence *q, char op, int s, int kind)
{
    long size = op == 'B' ? parent.o.block * 4 : 4096;

    if (!ASK(0, C_QUEUE, s, kind, op == 'W' ? q->words : -1, BY_KERNEL, size, (long)rnd(4), (long)parent.epoch))
        return -1;
    if (op == 'W') {
        q->waits[q->n++] = q->words++ << 8 | s;
        q->waiting |= 1u << s;
    }
    return 0;
}

/* Release one that waits. Returns its stream. */
static int release_one(struct sequence *q)
{
    int i = (int)rnd((unsigned)q->n), w = q->waits[i];

    q->waits[i] = q->waits[--q->n];
    atomic_store(&parent.sh->word[W_RANDOM + (w >> 8)].v, parent.epoch);
    q->waiting &= ~(1u << (w & 15));
    return w & 15;
}

/* 1: the sequence is over, since a copy stands still that nothing keeps. */
static int one_step(struct sequence *q, int k)
{
    const char op = pick_op(q);
    const int kind = rnd(4) ? PUSH : PULL, s = op == 'R' ? release_one(q) : pick_stream(q),
              full = op != 'R' && parent.o.rule == 3 ? is_full(s, q->copies) : 0;
    const unsigned want = op == 'S' || op == 'R' ? 1u << s : 0;
    struct reply *r;

    if (full > 0)
        usleep(50);
    if (full != 0)
        return full < 0 ? -1 : 0;
    if (op != 'R' && queue_copy(q, op, s, kind))
        return -1;
    if (op != 'W')
        q->used |= 1u << s;
    if (!(r = ASK(0, C_IDLE, (long)want, want ? 20l : 0l)))
        return -1;
    row(q, k, op, s, kind_name[kind], r->r[0]);
    return (r->r[0] & want) != want;
}

static int sequence(int id, int style)
{
    const int copies = parent.o.copy_connections ? parent.o.copy_connections : 4, len = 4 + (int)rnd(SEQ - 4);
    struct sequence q = {
        .id = id, .style = style, .copies = copies, .most = parent.o.rule == 3 ? copies : 3, .last = (int)rnd(SEQ)
    };
    struct reply *r;
    int over = 0;

    parent.seed++;
    parent.epoch++;
    if (both(C_SETUP, (long)parent.seed, parent.o.block))
        return -1;
    for (int k = 0; k < len && !over; k++)
        over = one_step(&q, k);
    if (over < 0 || !(r = ASK(0, C_IDLE, (long)(q.used & ~q.waiting), 20l)))
        return -1;
    row(&q, 99, 'E', (int)q.waiting, "-", r->r[0]);
    open_words();
    return finish("channel sequence");
}

void experiment_sequences(void)
{
    random_start((uint64_t)parent.seed * 104729);
    for (int i = 0; i < parent.o.rounds && !late(); i++)
        if (sequence(i, i & 1)) {
            printf("sequence %d: pair lost\n", i);
            if (start_pair())
                return;
        }
}

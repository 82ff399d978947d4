/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that wait, of one kind, and probes of every kind beside them. */
#define _GNU_SOURCE
#include "parent.h"

#include <unistd.h>

struct wcase {
    int type, form, kind, n;
};

static void release_waits(void)
{
    for (int i = 0; i < 64; i++)
        atomic_store(&parent.sh->word[W_WAIT + i].v, parent.epoch);
}

static void row(const struct wcase *c, int w, int probe, const struct reply *r, long busy)
{
    fprintf(parent.csv, "%s,%d,%d,%ld,%d,%s,%s,%s,%d,%s,%s,%ld,%ld,%ld,%ld,%.3f,%.3f,%ld,%d\n", parent.o.mode,
            parent.o.connections, parent.o.copy_connections, parent.o.size, parent.o.fresh + 8 * parent.o.serial,
            type_name[c->type], form_name[c->form], kind_name[c->kind], c->n, w ? "other" : "own", kind_name[probe], r->r[0],
            r->r[1], r->r[2], r->r[3], r->d[0], r->d[1], busy, parent.blocked);
}

/* The waiting copies are in their streams. *todo = 0: the driver kept the call, and nothing is probed. */
static int queue_waits(const struct wcase *c, unsigned *todo, const char *what, long *busy)
{
    struct reply *r;
    long want = c->form == MANY_STREAMS ? c->n : 1;

    parent.seed++;
    parent.epoch++;
    if (both(C_SETUP, (long)parent.seed, parent.o.size))
        return -1;
    if (!ASK(0, C_WAITQ, c->kind, c->n, c->form, c->type, parent.o.size, (long)parent.epoch, parent.o.fresh))
        return -1;
    if (parent.blocked) {
        printf("queueing stood: %s\n", what);
        *todo = 0;
        return 0;
    }
    usleep(200);
    if (!(r = ASK(0, C_BUSY, 0l)))
        return -1;
    *busy = r->r[0];
    if (*busy != want)
        printf("only %ld of %ld streams wait: %s\n", *busy, want, what);
    return 0;
}

/* One set-up of waiting copies; probes in the order of the bits of *todo until one is stuck. */
static int one_setup(const struct wcase *c, unsigned *todo, const char *what)
{
    long busy = 0;
    int stuck = 0;

    if (queue_waits(c, todo, what, &busy))
        return -1;
    for (int p = 0; p < 2 * PROBES && !stuck; p++) {
        int kind = PUSH + p % PROBES, w = p / PROBES;
        struct reply *r;

        if (!(*todo >> p & 1))
            continue;
        *todo &= ~(1u << p);
        r = ASK(w, C_PROBE, kind, parent.o.size, 25l, parent.stuck_count % 8 == 0 ? 300l : 0l, (long)parent.epoch,
                parent.o.serial);
        if (!r)
            return -1;
        row(c, w, kind, r, busy);
        stuck = r->r[0] < PROBES || parent.blocked;
        parent.stuck_count += stuck;
    }
    release_waits();
    return finish(what);
}

static void run_case(const struct wcase *c)
{
    unsigned todo = 0xff;
    char what[128];

    if (c->n == 1 || c->n == 4 || c->n == 16)
        todo = 0xffff;
    snprintf(what, sizeof what, "%s %s %s n %d", type_name[c->type], form_name[c->form], kind_name[c->kind], c->n);
    while (todo && !late())
        if (one_setup(c, &todo, what)) {
            printf("pair lost in: %s\n", what);
            if (start_pair())
                return;
        }
}

static struct wcase case_of(char type, char form, int kind, int n)
{
    return (struct wcase){ type == 'v' ? BY_VALUE : BY_KERNEL, form == 's' ? ONE_STREAM : MANY_STREAMS, kind, n };
}

static void run_kind(int kind, char type, char form)
{
    for (int i = 0; i < parent.o.n_count && !late(); i++) {
        struct wcase c = case_of(type, form, kind, parent.o.ns[i]);

        if (c.form == ONE_STREAM && (c.n == 1 || c.kind == NONE))
            continue;
        run_case(&c);
    }
}

void experiment_waiting(void)
{
    static const int kinds[] = { NONE, PUSH, PULL, H2D, D2H, D2D, KERN, PUSHW, PULLW };

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (const char *t = parent.o.types; *t; t++)
            for (const char *f = parent.o.forms; *f; f++)
                run_kind(kinds[k], *t, *f);
    if (late())
        printf("limit reached, the rest is left out\n");
}

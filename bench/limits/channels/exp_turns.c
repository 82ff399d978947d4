/* SPDX-License-Identifier: Apache-2.0 */
/* One stream always has pushes queued: when does another get its turn? And in which order do the copies of two streams end? */
#define _GNU_SOURCE
#include "parent.h"

#include <unistd.h>

enum { OTHER = 10 }; /* + kind: what is no peer copy by a mover */

struct load {
    long depth, piece, timeout_ms; /* pushes outstanding, bytes of each, and how long the other is waited for */
};

static void starve(int wait, int how, const struct load *load, long size, int fresh)
{
    static const char *const wait_name[] = { "value-host", "value-device", "kernel", "no-wait" }, *const mover_name[] = {
        "ce-push", "ce-pull"
    };
    const char *item = how < OTHER ? mover_name[how] : kind_name[how - OTHER];

    parent.seed++;
    if (both(C_SETUP, (long)parent.seed, parent.o.block))
        return;
    for (int i = 0; i < 2 && !late(); i++) {
        struct reply *r;

        parent.epoch++;
        ASK(0, C_LOAD, 1, load->depth, load->piece);
        usleep(3000);
        r = ASK(0, C_STARVE, wait, how, (long)parent.epoch, size, fresh, load->timeout_ms);
        if (!r) {
            printf("turns: pair lost\n");
            start_pair();
            return;
        }
        fprintf(parent.csv, "%s,starve%s,%s,%s,%ld,%ld,%ld,%ld,%ld,%d,0,%.3f,%.1f,%.3f\n", parent.o.mode, fresh ? "-fresh" : "",
                wait_name[wait], item, load->depth, load->piece, size, r->r[0], r->r[1], parent.blocked, r->d[0], r->d[1],
                r->d[2]);
        ASK(0, C_LOAD, 0, 0, 0);
    }
}

/* Copies of two streams, the second's queued right after the first's: us to the first and the last end of each. */
static void order(int first, int second)
{
    struct reply *r;

    parent.seed++;
    if (both(C_SETUP, (long)parent.seed, parent.o.block))
        return;
    r = ASK(0, C_ORDER, first, second, parent.o.block, 32);
    if (!r) {
        start_pair();
        return;
    }
    fprintf(parent.csv, "%s,order,%s,%s,32,0,%ld,%.0f,%.0f,%.0f,%.0f,0,0,0\n", parent.o.mode, kind_name[first], kind_name[second],
            parent.o.block, r->d[0] * 1e3, r->d[1] * 1e3, r->d[2] * 1e3, r->d[3] * 1e3);
    finish("order");
}

static void orders(void)
{
    static const int pairs[][2] = { { PUSH, PUSH }, { PUSH, PULL }, { PULL, PUSH }, { PUSH, H2D }, { PUSH, D2H },
                                    { PUSH, D2D },  { H2D, PUSH },  { D2H, PUSH },  { H2D, D2H },  { PULL, H2D },
                                    { PULL, D2H },  { H2D, H2D },   { D2H, D2H } };

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && !late(); i++)
        for (int t = 0; t < 2; t++)
            order(pairs[i][0], pairs[i][1]);
}

static void others(const struct load *load)
{
    static const int kinds[] = { H2D, D2H, D2D, KERN };
    const struct load patient = { load->depth, load->piece, 2500 };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int big = 0; big < 2; big++) {
            starve(3, OTHER + kinds[i], load, big ? parent.o.block : 4096, 1);
            starve(0, OTHER + kinds[i], load, big ? parent.o.block : 4096, 1);
        }
    starve(0, CE_PUSH, &patient, 4096, 1);
    starve(3, CE_PUSH, &patient, 4096, 1);
}

void experiment_turns(void)
{
    static const long depth[] = { 1, 2, 8 };
    const struct load small = { 8, 1 << 20, 300 }, big = { 8, parent.o.block * 2, 300 };

    for (int fresh = 0; fresh < 2; fresh++)
        for (int wait = 0; wait < 4; wait++)
            for (int d = 0; d < 3; d++) {
                const struct load load = { depth[d], parent.o.block * 2, 300 };

                starve(wait, CE_PUSH, &load, 4096, fresh);
                starve(wait, CE_PULL, &load, 4096, fresh);
            }
    for (int wait = 0; wait < 4; wait++) {
        starve(wait, CE_PUSH, &small, 4096, 0);
        starve(wait, CE_PUSH, &big, parent.o.block, 0);
    }
    orders();
    others(&big);
}

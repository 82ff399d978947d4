/* SPDX-License-Identifier: Apache-2.0 */
/* Copy engines and moving kernels: in one process, from a word of the host to one; and the chain of two processes. */
#define _GNU_SOURCE
#include "parent.h"

#include <unistd.h>

static const char *const mover_name[] = { "ce-push", "ce-pull", "k-push", "k-pull", "none" };

/* So often that all CTAs together move up to 4 GiB. */
static long repeats(int ctas, long size)
{
    const long most = 4l << 30, wanted = ctas ? (256l << 20) * ctas : most, n = (wanted < most ? wanted : most) / size;

    return n < 2 ? 2 : n > 200 ? 200 : n;
}

static void bench(int how, int ctas, long size, int beside)
{
    static const char *const beside_name[] = { "alone", "own", "peer", "both" };
    const long tries = size <= 65536 ? 200 : size <= 1 << 20 ? 100 : size <= 16 << 20 ? 20 : 5, reps = repeats(ctas, size);
    struct reply *r;

    parent.seed++;
    if (both(C_SETUP, (long)parent.seed, parent.o.block))
        return;
    for (int w = 0; w < 2; w++)
        if (beside >> w & 1)
            ASK(w, C_LOAD, 1, 0, 0);
    usleep(2000);
    parent.epoch += 1000;
    r = ASK(0, C_BENCH, how, ctas, size, tries, reps, (long)parent.epoch);
    if (!r) {
        start_pair();
        return;
    }
    fprintf(parent.csv, "%s,%d,%d,%s,%d,%ld,%s,%.2f,%.2f,%.3f,%.1f,%.1f,%.1f,%.2f,%ld,%d\n", parent.o.mode, parent.o.connections,
            parent.o.copy_connections, mover_name[how], ctas, size, beside_name[beside], r->d[0], r->d[1], r->d[2],
            (double)size / r->d[2] * 1e-3, r->d[3], r->d[4], r->d[5], r->r[0], r->rc);
    if (r->r[0] || r->rc)
        printf("%s ctas %d size %ld %s: wrong words %ld rc %d\n", mover_name[how], ctas, size, beside_name[beside], r->r[0],
               r->rc);
    parent.unverified += r->r[0] != 0;
    ASK(0, C_LOAD, 0, 0, 0);
    ASK(1, C_LOAD, 0, 0, 0);
    both(C_SYNC, 2000, 0);
}

void experiment_movers(void)
{
    static const long sizes[] = { 4096, 65536, 1 << 20, 16 << 20, 256 << 20 };

    for (int beside = 0; beside < 4; beside++)
        for (int i = 0; i < 5 && !late(); i++) {
            long size = sizes[i] > parent.o.block * SRC_BLOCKS ? parent.o.block * SRC_BLOCKS : sizes[i];

            bench(CE_PUSH, 0, size, beside);
            bench(CE_PULL, 0, size, beside);
            for (int c = 1; c <= 64; c *= 2) {
                bench(K_PULL, c, size, beside);
                bench(K_PUSH, c, size, beside);
            }
        }
}

static void chain(int dev_words, int how, int ctas, long size)
{
    struct reply *f, *s;

    parent.seed++;
    parent.epoch += 5000;
    if (both(C_SETUP, (long)parent.seed, parent.o.block))
        return;
    atomic_store(&parent.sh->posted, parent.epoch);
    POST(1, C_SECOND, dev_words, 1000, (long)parent.epoch, how, ctas, size, parent.o.fresh);
    POST(0, C_FIRST, dev_words, 1000, (long)parent.epoch, parent.o.fresh);
    f = answer(0);
    s = answer(1);
    if (!f || !s) {
        printf("chain: pair lost\n");
        start_pair();
        return;
    }
    fprintf(parent.csv, "%s,%d,%s,%s,%d,%ld,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%ld,%d\n", parent.o.mode, parent.o.fresh,
            dev_words ? "device" : "host", mover_name[how], ctas, size, f->d[3], f->d[4], f->d[5], f->d[0], f->d[6], f->d[1],
            f->d[2], s->r[0], parent.blocked);
    parent.unverified += s->r[0] != 0;
}

void experiment_chain(void)
{
    static const long sizes[] = { 4096, 65536, 1 << 20 };
    static const int ctas[] = { 1, 4, 16 };

    for (int d = 0; d < 2; d++) {
        chain(d, NO_COPY, 0, 0);
        for (int i = 0; i < 3 && !late(); i++) {
            chain(d, CE_PUSH, 0, sizes[i]);
            chain(d, CE_PULL, 0, sizes[i]);
            for (int c = 0; c < 3; c++) {
                chain(d, K_PUSH, ctas[c], sizes[i]);
                chain(d, K_PULL, ctas[c], sizes[i]);
            }
        }
    }
}

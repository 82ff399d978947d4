/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "worker.h"

#include <unistd.h>

void do_waitq(const long *a, struct reply *r)
{
    int kind = (int)a[0], n = (int)a[1], form = (int)a[2], type = (int)a[3], base = W_WAIT + 32 * worker.me;
    size_t size = (size_t)a[4];
    uint32_t v = (uint32_t)a[5];

    if (a[6] & 5) {
        drop_streams();
        make_streams(a[6] & 4 ? -5 : 0);
    }
    if (a[6] & 2) { /* every waiting stream's last work is a kernel */
        for (int i = 0; i < WAITERS; i++)
            CK(mark(worker.w[i], W_MARK + 128 * worker.me, v));
        CK(cuCtxSynchronize());
    }
    for (int i = 0; i < n; i++) {
        CUstream s = worker.w[form == MANY_STREAMS ? i : 0];

        if (form == MANY_STREAMS || i == 0)
            CK(wait_for(s, type, base + i, v));
        CK(one(kind, s, i, size, W_MARK + 128 * worker.me + i, v));
    }
    r->rc = 0;
}

/* What the probes changed, seen without the driver: marks, or the first word of a D2H copy; -1 where that cannot be seen. */
static long effects(int kind, size_t size, int mark0, uint32_t v, int block)
{
    long seen = 0;

    if (kind != KERN && kind != WRITE && kind != CHAIN && kind != D2H)
        return -1;
    for (int j = 0; j < PROBES; j++)
        if (kind == D2H)
            seen += *(volatile uint32_t *)(worker.b.hd + (size_t)(block + j) * size) != 0xdeadbeefu;
        else
            seen += word_get(mark0 + j) == v;
    return seen;
}

void do_probe(const long *a, struct reply *r)
{
    int kind = (int)a[0], mark0 = W_MARK + 128 * worker.me + 32 + 8 * kind;
    size_t size = (size_t)a[1];
    uint32_t v = (uint32_t)a[4];
    int block = kind == PULL || kind == D2H || kind == PUSH ? 16 : kind == H2D || kind == CHAIN ? 24 : 32;
    double t0 = now();
    long mask;

    for (int j = 0, stuck = 0; j < PROBES; j++) { /* a[5]: one probe after the other is done, until one is stuck */
        CK(one(kind, worker.p[kind][j], block + j, size, mark0 + j, v));
        if (!a[5] || stuck)
            continue;
        double t1 = now();
        while (!(stuck = now() - t1 > (double)a[2]) && cuStreamQuery(worker.p[kind][j]) == CUDA_ERROR_NOT_READY)
            relax();
        if (stuck)
            t0 = now();
    }
    r->d[1] = now() - t0;
    do {
        r->r[0] = count_done(worker.p[kind], PROBES, &r->r[1]);
    } while (r->r[0] < PROBES && (relax(), now() - t0 < (double)a[2]));
    r->d[0] = now() - t0;
    r->r[3] = effects(kind, size, mark0, v, block);
    r->r[2] = -1;
    if (r->r[0] == PROBES || a[3] == 0)
        return;
    do {
        r->r[2] = count_done(worker.p[kind], PROBES, &mask);
    } while (r->r[2] < PROBES && (usleep(500), now() - t0 < (double)a[3]));
    r->r[3] = effects(kind, size, mark0, v, block);
}

void do_busy(const long *a, struct reply *r)
{
    (void)a;
    r->r[0] = WAITERS - count_done(worker.w, WAITERS, &r->r[1]);
}

/* one random operation: stream, kind, word (-1: none), wait type, size, block, value */
void do_queue(const long *a, struct reply *r)
{
    CUstream s = worker.w[a[0]];
    double t0 = now();

    if (a[2] >= 0)
        CK(wait_for(s, (int)a[3], W_RANDOM + (int)a[2], (uint32_t)a[6]));
    CK(one((int)a[1], s, (int)a[5], (size_t)a[4], W_MARK + 128 * worker.me + (int)a[5], (uint32_t)a[6]));
    r->d[0] = now() - t0;
}

/* wait until the streams of the mask are idle: r[0] those that are */
void do_idle(const long *a, struct reply *r)
{
    double t0 = now();
    long mask;

    do {
        count_done(worker.w, WAITERS, &mask);
    } while ((mask & a[0]) != a[0] && (relax(), now() - t0 < (double)a[1]));
    r->r[0] = mask;
}

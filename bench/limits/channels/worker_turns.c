/* SPDX-License-Identifier: Apache-2.0 */
/* Who gets a turn beside pushes without end, and in which order the copies of two streams end. */
#define _GNU_SOURCE
#include "worker.h"

#include <unistd.h>

static struct {
    pthread_t thread;
    atomic_int on;
    unsigned depth; /* pushes outstanding */
    size_t piece;
} load;

static void *load_thread(void *arg)
{
    size_t piece = load.piece;
    unsigned head = 0, tail = 0;

    (void)arg;
    CK(cuCtxSetCurrent(worker.ctx));
    while (atomic_load(&load.on) || tail != head) {
        if (atomic_load(&load.on) && head - tail < load.depth) {
            CK(cuMemcpyDtoDAsync(worker.b.peer_push + 16 * (CUdeviceptr)worker.block, worker.b.src, piece, worker.load));
            CK(cuEventRecord(worker.ld[head++ % EVENTS], worker.load));
        } else if (cuEventQuery(worker.ld[tail % EVENTS]) == CUDA_SUCCESS) {
            tail++;
            atomic_fetch_add(&worker.sh->load_bytes[worker.me], piece);
        } else {
            usleep(10);
        }
    }
    return NULL;
}

/* a: on or off, pushes outstanding, bytes of each (0: as it is used) */
void do_load(const long *a, struct reply *r)
{
    (void)r;
    if (a[0] == atomic_load(&load.on))
        return;
    load.depth = a[1] ? (unsigned)a[1] : EVENTS / 2;
    load.piece = a[2] ? (size_t)a[2] : (size_t)worker.block * 2;
    atomic_store(&load.on, (int)a[0]);
    if (a[0])
        pthread_create(&load.thread, NULL, load_thread, NULL);
    else
        pthread_join(load.thread, NULL);
}

/* Queue the wait and what waits. Returns the word that it waits for. */
static CUdeviceptr queue_beside(const long *a, CUstream s, uint32_t e)
{
    CUdeviceptr w = a[0] == 1 ? worker.b.words + 128 : word_at(L_BESIDE);

    if (a[0] < 2)
        CK(cuStreamWaitValue32(s, w, e, CU_STREAM_WAIT_VALUE_GEQ));
    if (a[0] == 2)
        CK(wait_kernel(s, w, e));
    if (a[1] < 10) {
        CK(chain((int)a[1], 0, (size_t)a[3], s, 0, word_at(L_BESIDE_DONE), e));
    } else {
        CK(one((int)a[1] - 10, s, 0, (size_t)a[3], L_ANY, e));
        CK(cuStreamWriteValue32(s, word_at(L_BESIDE_DONE), e, 0));
    }
    return w;
}

static int done_within(uint32_t e, double ms)
{
    double t0 = now();

    while (word_get(L_BESIDE_DONE) != e && now() - t0 < ms)
        relax();
    return word_get(L_BESIDE_DONE) == e;
}

/* a: wait (0 by value on a host word, 1 on a device word, 2 by kernel, 3 none), mover (10 + kind: another copy or a kernel),
 * epoch, size, new stream?, ms to wait. r: done within that?, done at all?. d: ms from the release to the done word, GB/s of
 * the load in that time, ms after the load's end (0: it was done before) */
void do_starve(const long *a, struct reply *r)
{
    CUstream s = worker.w[0];
    uint32_t e = (uint32_t)a[2];
    uint64_t before;
    CUdeviceptr w;
    double t0;

    if (a[4]) {
        CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
        CK(mark(s, L_ANY, e));
        CK(cuStreamSynchronize(s));
    }
    before = atomic_load(&worker.sh->load_bytes[worker.me]);
    t0 = now();
    w = queue_beside(a, s, e);
    if (a[0] < 3) {
        spin_us(2000);
        t0 = now();
        before = atomic_load(&worker.sh->load_bytes[worker.me]);
    }
    if (a[0] == 1)
        CK(cuStreamWriteValue32(worker.gate, w, e, 0));
    else
        word_set(L_BESIDE, e);
    r->r[0] = done_within(e, (double)a[5]);
    r->d[0] = now() - t0;
    r->d[1] = (double)(atomic_load(&worker.sh->load_bytes[worker.me]) - before) / r->d[0] / 1e6;
    t0 = now();
    do_load((long[]){ 0, 0, 0 }, r);
    r->r[1] = done_within(e, 1000);
    r->d[2] = r->r[0] ? 0 : now() - t0;
    CK(cuStreamSynchronize(s));
    if (a[4])
        CK(cuStreamDestroy(s));
}

/* a: kind of the first stream's copies, of the second's, size, number. d: ms from the start to the end of the first and of the
 * last copy, in each stream */
void do_order(const long *a, struct reply *r)
{
    enum { MAX = 64 };
    static CUevent start, ev[2][MAX];
    float ms;
    int n = (int)a[3] > MAX ? MAX : (int)a[3];

    if (!start) {
        CK(cuEventCreate(&start, 0));
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < MAX; j++)
                CK(cuEventCreate(&ev[i][j], 0));
    }
    CK(cuEventRecord(start, worker.w[0]));
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < n; j++) {
            CK(one((int)a[i], worker.w[i], i * 8 + j % 8, (size_t)a[2], L_ANY, 1));
            if (j == 0 || j == n - 1)
                CK(cuEventRecord(ev[i][j], worker.w[i]));
        }
    CK(cuStreamSynchronize(worker.w[0]));
    CK(cuStreamSynchronize(worker.w[1]));
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            CK(cuEventElapsedTime(&ms, start, ev[i][k ? n - 1 : 0]));
            r->d[2 * i + k] = (double)ms;
        }
}

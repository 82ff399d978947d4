/* SPDX-License-Identifier: Apache-2.0 */
/* Chains word -> copy -> word, by a copy engine or a moving kernel. */
#define _GNU_SOURCE
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROW = 50 };

struct first {
    CUstream s;
    CUdeviceptr ready, done;
};

CUresult chain(int how, int ctas, size_t size, CUstream s, CUdeviceptr w, CUdeviceptr done, uint32_t e)
{
    CUdeviceptr dst = how == CE_PUSH || how == K_PUSH ? worker.b.peer_push : worker.b.local,
                src = how == CE_PUSH || how == K_PUSH ? worker.b.src : worker.b.peer_src;
    uint64_t n = size / 16;

    if (how == K_PUSH || how == K_PULL)
        return launch(worker.move, (unsigned)ctas, 512, s, (void *[]){ &dst, &src, &n, &w, &e, &worker.b.count, &done, &e });
    if (w)
        CK(cuStreamWaitValue32(s, w, e, CU_STREAM_WAIT_VALUE_GEQ));
    if (how != NO_COPY)
        CK(cuMemcpyDtoDAsync(dst, src, size, s));
    if (done)
        CK(cuStreamWriteValue32(s, done, e, 0));
    return CUDA_SUCCESS;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Poison, then copy, then compare: the mover's target. */
static long bench_errors(int how, size_t size)
{
    CUdeviceptr p = how == CE_PUSH || how == K_PUSH ? worker.b.peer_push : worker.b.local;
    uint64_t n = size / 4, errs;
    uint32_t seed = worker.seed * 2 + (uint32_t)(how == CE_PUSH || how == K_PUSH ? worker.me : 1 - worker.me), pos = 0;

    CK(cuMemsetD32Async(worker.b.errs, 0, 2, worker.main));
    CK(launch(worker.check, 256, 256, worker.main, (void *[]){ &p, &n, &seed, &pos, &worker.b.errs }));
    CK(cuMemcpyDtoHAsync(&errs, worker.b.errs, 8, worker.main));
    CK(cuStreamSynchronize(worker.main));
    return (long)errs;
}

static int bench_latency(int how, int ctas, size_t size, int tries, uint32_t e, double *med, double *p90)
{
    static double t[4096];
    int ready = W_BENCH + 4 * worker.me, done = ready + 1;

    for (int i = 0; i < tries; i++) {
        e++;
        CK(chain(how, ctas, size, worker.w[0], word_at(ready), word_at(done), e));
        spin_us(40);
        double t0 = now();
        word_set(ready, e);
        while (word_get(done) != e)
            if (now() - t0 > 2000)
                return -1;
        t[i] = (now() - t0) * 1e3;
    }
    CK(cuStreamSynchronize(worker.w[0]));
    qsort(t, (size_t)tries, sizeof *t, by_size);
    *med = t[tries / 2];
    *p90 = t[tries * 9 / 10];
    return 0;
}

/* a: how, ctas, size, tries, repeats of the rate, epoch. d: median us, p90, us an operation back to back, GB/s of both loads */
void do_bench(const long *a, struct reply *r)
{
    int how = (int)a[0], ctas = (int)a[1];
    size_t size = (size_t)a[2];
    float ms;

    r->rc = bench_latency(how, ctas, size, (int)a[3], (uint32_t)a[5], &r->d[0], &r->d[1]);
    if (r->rc) {
        snprintf(r->msg, sizeof r->msg, "no done word within 2 s");
        return;
    }
    CK(chain(how, ctas, size, worker.w[0], 0, 0, 0));
    uint64_t b0 = atomic_load(&worker.sh->load_bytes[0]), b1 = atomic_load(&worker.sh->load_bytes[1]);
    double t0 = now();
    CK(cuEventRecord(worker.e0, worker.w[0]));
    for (long i = 0; i < a[4]; i++)
        CK(chain(how, ctas, size, worker.w[0], 0, 0, 0));
    CK(cuEventRecord(worker.e1, worker.w[0]));
    CK(cuEventSynchronize(worker.e1));
    double wall = now() - t0;
    CK(cuEventElapsedTime(&ms, worker.e0, worker.e1));
    r->d[2] = (double)ms * 1e3 / (double)a[4];
    r->d[3] = (double)(atomic_load(&worker.sh->load_bytes[0]) - b0) / wall / 1e6;
    r->d[4] = (double)(atomic_load(&worker.sh->load_bytes[1]) - b1) / wall / 1e6;
    r->d[5] = wall;
    r->r[0] = bench_errors(how, size);
}

/* streams of the chain: those with a history of copies, or new ones */
static CUstream chain_stream(int i, long fresh)
{
    CUstream s = worker.w[i];

    if (fresh)
        CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static void first_cycle(const struct first *f, uint32_t e)
{
    CK(cuStreamWriteValue32(f->s, f->ready, e, 0));
    CK(cuStreamWaitValue32(f->s, f->done, e, CU_STREAM_WAIT_VALUE_GEQ));
}

/* One cycle after the other, each queued when the one before has ended: the spread. */
static uint32_t first_single(const struct first *f, uint32_t e, long tries, struct reply *r)
{
    static double t[4096];
    float ms;

    for (long i = 0; i < tries; i++) {
        while ((int32_t)(atomic_load(&worker.sh->posted) - (e + 1)) < 0)
            relax();
        e++;
        CK(cuEventRecord(worker.e0, f->s));
        first_cycle(f, e);
        CK(cuEventRecord(worker.e1, f->s));
        while (cuEventQuery(worker.e1) == CUDA_ERROR_NOT_READY)
            relax();
        CK(cuEventElapsedTime(&ms, worker.e0, worker.e1));
        t[i] = (double)ms * 1e3;
    }
    qsort(t, (size_t)tries, sizeof *t, by_size);
    r->d[0] = t[tries / 2];
    r->d[1] = t[tries * 9 / 10];
    r->d[3] = t[0];
    r->d[4] = t[tries / 10];
    r->d[5] = t[tries / 4];
    r->d[6] = t[tries * 3 / 4];
    return e;
}

/* Cycles in a row: us of one. */
static double first_row(const struct first *f, uint32_t e)
{
    double t[10];
    float ms;

    for (int k = 0; k < 10; k++) {
        while ((int32_t)(atomic_load(&worker.sh->posted) - (e + ROW)) < 0)
            relax();
        CK(cuEventRecord(worker.e0, f->s));
        for (int i = 0; i < ROW; i++)
            first_cycle(f, ++e);
        CK(cuEventRecord(worker.e1, f->s));
        CK(cuEventSynchronize(worker.e1));
        CK(cuEventElapsedTime(&ms, worker.e0, worker.e1));
        t[k] = (double)ms * 1e3 / ROW;
    }
    qsort(t, 10, sizeof *t, by_size);
    return t[5];
}

/* a: words in device memory?, tries, epoch, new stream?. The first: write the other's ready word, wait for the own done word. */
void do_first(const long *a, struct reply *r)
{
    const struct first f = { chain_stream(0, a[3]), a[0] ? worker.b.peer_words : word_at(W_CHAIN),
                             a[0] ? worker.b.words + 64 : word_at(W_CHAIN + 1) };
    uint32_t e = first_single(&f, (uint32_t)a[2], a[1], r);

    r->d[2] = first_row(&f, e);
    if (a[3])
        CK(cuStreamDestroy(f.s));
}

/* a: words in device memory?, tries, epoch, how, ctas, size, new stream?. The second: wait for ready, copy, write done. */
void do_second(const long *a, struct reply *r)
{
    CUdeviceptr ready = a[0] ? worker.b.words : word_at(W_CHAIN), done = a[0] ? worker.b.peer_words + 64 : word_at(W_CHAIN + 1);
    CUstream s = chain_stream(1, a[6]);
    uint32_t e = (uint32_t)a[2];

    for (long left = a[1] + 10 * ROW; left; left -= ROW) {
        for (int i = 0; i < ROW; i++) {
            e++;
            CK(chain((int)a[3], (int)a[4], (size_t)a[5], s, ready, done, e));
        }
        atomic_store(&worker.sh->posted, e);
        while (cuStreamQuery(s) == CUDA_ERROR_NOT_READY)
            relax();
    }
    CK(cuStreamSynchronize(s));
    if (a[6])
        CK(cuStreamDestroy(s));
    r->r[0] = (int)a[3] == NO_COPY ? 0 : bench_errors((int)a[3], (size_t)a[5]);
}

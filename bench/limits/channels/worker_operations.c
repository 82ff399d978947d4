/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "worker.h"

CUdeviceptr word_at(int i)
{
    return worker.b.shd + (CUdeviceptr)i * sizeof(struct word);
}

uint32_t word_get(int i)
{
    return atomic_load(&worker.sh->word[i].v);
}

void word_set(int i, uint32_t v)
{
    atomic_store(&worker.sh->word[i].v, v);
}

CUresult launch(CUfunction f, unsigned ctas, unsigned threads, CUstream s, void **args)
{
    return cuLaunchKernel(f, ctas, 1, 1, threads, 1, 1, 0, s, args, NULL);
}

static CUresult fill(CUdeviceptr p, uint64_t bytes, uint32_t seed, uint32_t poison)
{
    uint64_t n = bytes / 4;
    unsigned ctas = n / 1024 < 1 ? 1 : n / 1024 > 512 ? 512 : (unsigned)(n / 1024);

    return launch(worker.fill, ctas, 256, worker.main, (void *[]){ &p, &n, &seed, &poison });
}

CUresult mark(CUstream s, int word, uint32_t v)
{
    CUdeviceptr p = word_at(word);

    return launch(worker.mark, 1, 32, s, (void *[]){ &p, &v });
}

CUresult wait_kernel(CUstream s, CUdeviceptr p, uint32_t v)
{
    return launch(worker.wait, 1, 32, s, (void *[]){ &p, &v });
}

static uint32_t host_hash(uint32_t pos, uint32_t seed)
{
    uint32_t h = pos * 2654435761u ^ seed;

    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    h ^= h >> 16;
    return h;
}

CUresult one(int kind, CUstream s, int block, size_t size, int word, uint32_t v)
{
    CUdeviceptr from = (CUdeviceptr)(block % SRC_BLOCKS) * size, to = (CUdeviceptr)block * size;
    CUresult r = CUDA_SUCCESS;

    if (kind == CHAIN)
        r = cuStreamWaitValue32(s, word_at(W_TRUE), 1, CU_STREAM_WAIT_VALUE_GEQ);
    if (r)
        return r;
    if (kind == PUSH || kind == CHAIN || kind == PUSHW)
        r = cuMemcpyDtoDAsync(worker.b.peer_push + to, worker.b.src + from, size, s);
    else if (kind == PULL || kind == PULLW)
        r = cuMemcpyDtoDAsync(worker.b.local + to, worker.b.peer_src + from, size, s);
    else if (kind == H2D)
        r = cuMemcpyHtoDAsync(worker.b.local + to, worker.b.hs + (size_t)(block % 4) * size, size, s);
    else if (kind == D2H)
        r = cuMemcpyDtoHAsync(worker.b.hd + to, worker.b.src + from, size, s);
    else if (kind == D2D)
        r = cuMemcpyDtoDAsync(worker.b.local + to, worker.b.src + from, size, s);
    else if (kind == KERN)
        r = mark(s, word, v);
    if (!r && (kind == WRITE || kind == CHAIN || kind == PUSHW || kind == PULLW))
        r = cuStreamWriteValue32(s, word_at(word), v, 0);
    if (kind != NONE && kind != KERN && kind != WRITE && worker.logged < LOG_MAX)
        worker.log[worker.logged++] = (struct move){ kind, block, size };
    return r;
}

CUresult wait_for(CUstream s, int type, int word, uint32_t v)
{
    if (type == BY_VALUE)
        return cuStreamWaitValue32(s, word_at(word), v, CU_STREAM_WAIT_VALUE_GEQ);
    return wait_kernel(s, word_at(word), v);
}

void do_setup(const long *a, struct reply *r)
{
    size_t size = (size_t)a[1], step = size > 65536 ? 1021 : 1;

    worker.seed = (uint32_t)a[0];
    worker.logged = 0;
    CK(fill(worker.b.src, size * SRC_BLOCKS, worker.seed * 2 + (uint32_t)worker.me, 0));
    CK(fill(worker.b.push, size * PUSH_BLOCKS, 0, 0xdeadbeefu));
    CK(fill(worker.b.local, size * LOCAL_BLOCKS, 0, 0xdeadbeefu));
    CK(cuMemcpyDtoHAsync(worker.b.hs, worker.b.src, size * 4, worker.main));
    for (size_t i = 0; i < size / 4 * HOST_BLOCKS; i += step)
        ((volatile uint32_t *)worker.b.hd)[i] = 0xdeadbeefu;
    CK(cuStreamSynchronize(worker.main));
    r->rc = 0;
}

int count_done(CUstream *s, int n, long *mask)
{
    int done = 0;

    *mask = 0;
    for (int i = 0; i < n; i++) {
        CUresult q = cuStreamQuery(s[i]);

        if (q != CUDA_SUCCESS && q != CUDA_ERROR_NOT_READY)
            CK(q);
        if (q == CUDA_SUCCESS) {
            done++;
            *mask |= 1l << i;
        }
    }
    return done;
}

static int all_idle(void)
{
    long mask;
    int n = count_done(worker.w, WAITERS, &mask) + count_done(&worker.gate, 1, &mask) + count_done(&worker.main, 1, &mask);

    for (int k = PUSH; k <= CHAIN; k++)
        n += count_done(worker.p[k], PROBES, &mask);
    return n == WAITERS + 2 + (CHAIN - PUSH + 1) * PROBES;
}

void do_sync(const long *a, struct reply *r)
{
    double t0 = now();

    while (!(r->r[0] = all_idle()) && now() - t0 < (double)a[0])
        relax();
    r->d[0] = now() - t0;
}

static long check_host(const struct move *m)
{
    size_t step = m->size > 65536 ? 1021 : 1;
    uint32_t pos = (uint32_t)((size_t)(m->block % SRC_BLOCKS) * m->size / 4);
    const uint32_t *p = (const uint32_t *)(worker.b.hd + (size_t)m->block * m->size);
    long bad = 0;

    /* the poison of a big block was set at every 1021st word of the whole host buffer, so any difference is seen there */
    size_t at = (size_t)m->block * m->size / 4, first = (step - at % step) % step;
    for (size_t i = first; i < m->size / 4; i += step)
        bad += p[i] != host_hash((uint32_t)i + pos, worker.seed * 2 + (uint32_t)worker.me);
    return bad;
}

CUresult check_move(const struct move *m)
{
    int pushed = m->kind == PUSH || m->kind == CHAIN || m->kind == PUSHW, pulled = m->kind == PULL || m->kind == PULLW;
    CUdeviceptr p = (pushed ? worker.b.peer_push : worker.b.local) + (CUdeviceptr)m->block * m->size;
    uint32_t seed = worker.seed * 2 + (uint32_t)(pulled ? 1 - worker.me : worker.me);
    uint32_t pos = (uint32_t)((size_t)(m->block % (m->kind == H2D ? 4 : SRC_BLOCKS)) * m->size / 4);
    uint64_t n = m->size / 4;
    unsigned ctas = n / 1024 < 1 ? 1 : n / 1024 > 256 ? 256 : (unsigned)(n / 1024);

    return launch(worker.check, ctas, 256, worker.main, (void *[]){ &p, &n, &seed, &pos, &worker.b.errs });
}

void do_verify(const long *a, struct reply *r)
{
    uint64_t errs = 0;

    (void)a;
    CK(cuMemsetD32Async(worker.b.errs, 0, 2, worker.main));
    for (int i = 0; i < worker.logged; i++)
        if (worker.log[i].kind != D2H)
            CK(check_move(&worker.log[i]));
    CK(cuMemcpyDtoHAsync(&errs, worker.b.errs, 8, worker.main));
    CK(cuStreamSynchronize(worker.main));
    for (int i = 0; i < worker.logged; i++)
        if (worker.log[i].kind == D2H)
            errs += (uint64_t)check_host(&worker.log[i]);
    r->r[0] = (long)errs;
    r->r[1] = worker.logged;
}

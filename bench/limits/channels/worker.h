/* SPDX-License-Identifier: Apache-2.0 */
/* A worker: a process with one GPU that does what the parent writes into its box. */
#ifndef CHANNELS_WORKER_H
#define CHANNELS_WORKER_H

#include "shared.h"

#include <cuda.h>
#include <pthread.h>

#define CK(call) driver_check((call), #call, __FILE__, __LINE__) /* ends the worker where it failed */

enum { LOG_MAX = 512, EVENTS = 16 };

struct move {
    int kind, block;
    size_t size;
};

struct buffers {
    CUdeviceptr words, src, push;                /* this GPU's exported memory */
    CUdeviceptr local;                           /* behind it, only for this GPU */
    CUdeviceptr peer_words, peer_src, peer_push; /* the peer's, mapped */
    CUdeviceptr shd, count, errs, extra;
    char *hs, *hd; /* pinned */
};

struct worker {
    int me, vmm;
    CUdevice dev;
    CUcontext ctx;
    CUmodule mod;
    void *cubin;
    CUfunction fill, check, wait, mark, move;
    struct shared *sh;
    struct buffers b;
    long block; /* bytes of the largest block */
    CUstream main, gate, w[WAITERS], p[KINDS][PROBES], load;
    CUevent e0, e1, ld[EVENTS];
    uint32_t seed;
    struct move log[LOG_MAX];
    int logged;
};

extern struct worker worker;

/* worker_memory.c */
CUresult driver_check(CUresult r, const char *what, const char *file, int line);
void make_buffers(int sock);
void make_streams(int priority);
void drop_streams(void);
void load_module(const char *path);
void meet(uint32_t n);
CUmemAllocationProp prop_of(void);
CUdeviceptr map_vmm(CUmemGenericAllocationHandle h, size_t bytes);

/* worker_operations.c: what goes into a stream, and whether it came out right */
CUdeviceptr word_at(int i);
uint32_t word_get(int i);
void word_set(int i, uint32_t v);
CUresult launch(CUfunction f, unsigned ctas, unsigned threads, CUstream s, void **args);
CUresult mark(CUstream s, int word, uint32_t v);
CUresult wait_kernel(CUstream s, CUdeviceptr p, uint32_t v);
CUresult wait_for(CUstream s, int type, int word, uint32_t v);
CUresult one(int kind, CUstream s, int block, size_t size, int word, uint32_t v);
CUresult check_move(const struct move *m);
int count_done(CUstream *s, int n, long *mask);
void do_setup(const long *a, struct reply *r);
void do_sync(const long *a, struct reply *r);
void do_verify(const long *a, struct reply *r);

/* worker_probes.c */
void do_waitq(const long *a, struct reply *r);
void do_probe(const long *a, struct reply *r);
void do_busy(const long *a, struct reply *r);
void do_queue(const long *a, struct reply *r);
void do_idle(const long *a, struct reply *r);

/* worker_moves.c */
CUresult chain(int how, int ctas, size_t size, CUstream s, CUdeviceptr w, CUdeviceptr done, uint32_t e);
void do_bench(const long *a, struct reply *r);
void do_first(const long *a, struct reply *r);
void do_second(const long *a, struct reply *r);

/* worker_turns.c */
void do_load(const long *a, struct reply *r);
void do_starve(const long *a, struct reply *r);
void do_order(const long *a, struct reply *r);

/* worker_driver.c: beside a thread that is inside the driver */
void do_lock(const long *a, struct reply *r);
void do_queued(const long *a, struct reply *r);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

struct worker worker;

static void warm_up(void)
{
    word_set(W_TRUE, 1);
    do_setup((long[]){ 1, 4096 }, &worker.sh->box[worker.me].r);
    meet(2);
    for (int i = 0; i < WAITERS; i++)
        for (int k = PUSH; k < KINDS; k++)
            CK(one(k, worker.w[i], 0, 4096, W_MARK + 128 * worker.me, 1));
    for (int k = PUSH; k <= CHAIN; k++)
        for (int j = 0; j < PROBES; j++)
            CK(one(k, worker.p[k][j], 0, 4096, W_MARK + 128 * worker.me, 1));
    CK(wait_kernel(worker.w[0], word_at(W_TRUE), 1));
    CK(chain(K_PUSH, 4, 65536, worker.w[0], 0, 0, 1));
    CK(check_move(&(struct move){ PUSH, 0, 4096 }));
    CK(cuCtxSynchronize());
    meet(3);
}

static void start(int memfd, int sock, int dev, const char *cubin)
{
    worker.sh = mmap(NULL, sizeof *worker.sh, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    if (worker.sh == MAP_FAILED) {
        perror("mmap");
        exit(3);
    }
    CK(cuInit(0));
    CK(cuDeviceGet(&worker.dev, dev));
    CK(cuDevicePrimaryCtxRetain(&worker.ctx, worker.dev));
    CK(cuCtxSetCurrent(worker.ctx));
    CK(cuMemHostRegister(worker.sh, (sizeof *worker.sh + 4095) & ~4095ul,
                         CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
    CK(cuMemHostGetDevicePointer(&worker.b.shd, worker.sh, 0));
    load_module(cubin);
    CK(cuStreamCreate(&worker.main, CU_STREAM_NON_BLOCKING));
    CK(cuStreamCreate(&worker.gate, CU_STREAM_NON_BLOCKING));
    CK(cuStreamCreate(&worker.load, CU_STREAM_NON_BLOCKING));
    CK(cuEventCreate(&worker.e0, 0));
    CK(cuEventCreate(&worker.e1, 0));
    for (int i = 0; i < EVENTS; i++)
        CK(cuEventCreate(&worker.ld[i], CU_EVENT_DISABLE_TIMING));
    make_streams(0);
    make_buffers(sock);
    warm_up();
}

static void serve(const struct cmd *c, struct reply *r)
{
    static void (*const handler[COMMANDS])(const long *, struct reply *) = {
        [C_SETUP] = do_setup, [C_WAITQ] = do_waitq,   [C_PROBE] = do_probe,   [C_BUSY] = do_busy,
        [C_SYNC] = do_sync,   [C_VERIFY] = do_verify, [C_QUEUE] = do_queue,   [C_IDLE] = do_idle,
        [C_BENCH] = do_bench, [C_LOAD] = do_load,     [C_FIRST] = do_first,   [C_SECOND] = do_second,
        [C_LOCK] = do_lock,   [C_QUEUED] = do_queued, [C_STARVE] = do_starve, [C_ORDER] = do_order
    };

    memset(r, 0, sizeof *r);
    handler[c->op](c->a, r);
}

int worker_main(int me, int memfd, int sock, const char *mode, long block, int dev, const char *cubin)
{
    struct box *b;
    char name[64];
    int version;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    worker.me = me;
    worker.vmm = mode[0] == 'v';
    worker.block = block;
    start(memfd, sock, dev, cubin);
    b = &worker.sh->box[me];
    CK(cuDeviceGetName(name, sizeof name, worker.dev));
    CK(cuDriverGetVersion(&version));
    snprintf(b->r.msg, sizeof b->r.msg, "%s, CUDA %d", name, version);
    atomic_store(&b->ack, 1);
    for (uint32_t seen = 1;;) {
        while (atomic_load(&b->req) == seen)
            relax();
        seen = atomic_load(&b->req);
        serve(&b->c, &b->r);
        atomic_store(&b->ack, seen);
    }
}

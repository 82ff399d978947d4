/* SPDX-License-Identifier: Apache-2.0 */
/* What stands while a thread of the process is inside the driver, which waits there for a stream. */
#define _GNU_SOURCE
#include "worker.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAPPED ((size_t)2 << 20)
#define TAKEN ((size_t)8 << 20)

/* Those up to STREAM_SYNC put something into a stream or ask about it. */
#define CALL_LIST(X) \
    X(WRITE_VALUE, "cuStreamWriteValue32") \
    X(WAIT_VALUE, "cuStreamWaitValue32(true)") \
    X(BATCH, "cuStreamBatchMemOp") \
    X(COPY_PUSH, "push") \
    X(COPY_PULL, "pull") \
    X(COPY_D2D, "D2D") \
    X(COPY_H2D, "H2D") \
    X(COPY_D2H, "D2H") \
    X(MEMSET, "memset") \
    X(LAUNCH, "cuLaunchKernel") \
    X(GRAPH, "cuGraphLaunch") \
    X(EVENT_RECORD, "cuEventRecord") \
    X(EVENT_QUERY, "cuEventQuery") \
    X(WAIT_EVENT, "cuStreamWaitEvent") \
    X(STREAM_QUERY, "cuStreamQuery") \
    X(IS_CAPTURING, "cuStreamIsCapturing") \
    X(HOST_FUNC, "cuLaunchHostFunc") \
    X(STREAM_SYNC, "cuStreamSynchronize") \
    X(POINTER_GET, "cuPointerGetAttributes") \
    X(ADDRESS_RANGE, "cuMemGetAddressRange") \
    X(IPC_GET, "cuIpcGetMemHandle") \
    X(IPC_OPEN, "cuIpcOpenMemHandle") \
    X(CREATE, "cuMemCreate") \
    X(MAP, "cuMemMap") \
    X(SET_ACCESS, "cuMemSetAccess") \
    X(EXPORT, "cuMemExportToShareableHandle") \
    X(ALLOC, "cuMemAlloc") \
    X(ALLOC_ASYNC, "cuMemAllocAsync") \
    X(HOST_ALLOC, "cuMemHostAlloc") \
    X(EVENT_CREATE, "cuEventCreate") \
    X(STREAM_CREATE, "cuStreamCreate") \
    X(SET_CURRENT, "cuCtxSetCurrent") \
    X(BEGIN_CAPTURE, "cuStreamBeginCapture") \
    X(POINTER_SET, "cuPointerSetAttribute") \
    X(HOST_POINTER, "cuMemHostGetDevicePointer") \
    X(RETAIN, "cuMemRetainAllocationHandle")

#define CALL_ENUM(call, name) CALL_##call,
#define CALL_NAME(call, name) name,

enum call { CALL_LIST(CALL_ENUM) CALLS };

static const char *const call_name[CALLS] = { CALL_LIST(CALL_NAME) };

static struct {
    atomic_int in, out, returned, effect, rc;
    int how, call;
    uint32_t v;
    CUstream s, made_s;
    CUdeviceptr block, va, va2, opened, got;
    CUmemGenericAllocationHandle h, h2;
    CUgraphExec graph;
    CUevent ev, made_ev;
    CUmodule mod;
    void *host;
    double t0, call_ms, out_ms;
} held;

enum queued { Q_PUSH, Q_PULL, Q_PUSH_K, Q_PULL_K, Q_MOVE_PUSH, Q_MOVE_PULL, Q_KERNEL, Q_KERNEL_K, Q_WRITE, Q_HOST_D2H, Q_LAST };
static const char *const queued_name[Q_LAST] = { "value-push-write", "value-pull-write", "kernel-push-write", "kernel-pull-write",
                                                 "move-push",        "move-pull",        "value-kernel",      "kernel-kernel",
                                                 "value-write",      "value-D2H-write" };

static void *holder(void *arg)
{
    CUfunction f;
    CUdeviceptr p = word_at(L_LAZY);

    (void)arg;
    cuCtxSetCurrent(worker.ctx);
    atomic_store(&held.in, 1);
    if (held.how == H_LOAD_V || held.how == H_LOAD_K)
        CK(cuModuleLoadData(&held.mod, worker.cubin));
    if (held.how == H_FREE_V || held.how == H_FREE_K)
        CK(cuMemFree(held.block));
    if (held.how == H_SYNC_V)
        CK(cuCtxSynchronize());
    if (held.how == H_LAZY_V || held.how == H_LAZY_K) {
        CK(cuModuleGetFunction(&f, held.mod, "k_mark"));
        CK(launch(f, 1, 32, worker.w[3], (void *[]){ &p, &held.v }));
    }
    held.out_ms = now() - held.t0;
    atomic_store(&held.out, 1);
    return NULL;
}

static void nothing(void *p)
{
    (void)p;
}

static CUresult batch(CUstream s)
{
    CUstreamBatchMemOpParams o[2];

    memset(o, 0, sizeof o);
    o[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    o[0].waitValue.address = word_at(W_TRUE);
    o[0].waitValue.value = 1;
    o[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    o[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    o[1].writeValue.address = word_at(L_CALL);
    o[1].writeValue.value = held.v;
    return cuStreamBatchMemOp(s, 2, o, 0);
}

static CUresult attributes(void)
{
    CUpointer_attribute at[2] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_BUFFER_ID };
    unsigned type;
    unsigned long long id;

    return cuPointerGetAttributes(2, at, (void *[]){ &type, &id }, worker.b.src);
}

static CUresult call_copy(int c, CUstream s)
{
    size_t n = 4096;

    if (c == CALL_COPY_PUSH)
        return cuMemcpyDtoDAsync(worker.b.peer_push, worker.b.src, n, s);
    if (c == CALL_COPY_PULL)
        return cuMemcpyDtoDAsync(worker.b.local, worker.b.peer_src, n, s);
    if (c == CALL_COPY_D2D)
        return cuMemcpyDtoDAsync(worker.b.local, worker.b.src, n, s);
    if (c == CALL_COPY_H2D)
        return cuMemcpyHtoDAsync(worker.b.local, worker.b.hs, n, s);
    if (c == CALL_COPY_D2H)
        return cuMemcpyDtoHAsync(worker.b.hd, worker.b.src, n, s);
    return cuMemsetD32Async(worker.b.local, 7, 1024, s);
}

static CUresult call_stream(int c, CUstream s)
{
    CUstreamCaptureStatus st;

    switch (c) {
    case CALL_WRITE_VALUE:
        return cuStreamWriteValue32(s, word_at(L_CALL), held.v, 0);
    case CALL_WAIT_VALUE:
        return cuStreamWaitValue32(s, word_at(W_TRUE), 1, CU_STREAM_WAIT_VALUE_GEQ);
    case CALL_BATCH:
        return batch(s);
    case CALL_LAUNCH:
        return mark(s, L_CALL, held.v);
    case CALL_GRAPH:
        return cuGraphLaunch(held.graph, s);
    case CALL_EVENT_RECORD:
        return cuEventRecord(held.ev, s);
    case CALL_EVENT_QUERY:
        return cuEventQuery(held.ev);
    case CALL_WAIT_EVENT:
        return cuStreamWaitEvent(s, held.ev, 0);
    case CALL_STREAM_QUERY:
        return cuStreamQuery(s);
    case CALL_IS_CAPTURING:
        return cuStreamIsCapturing(s, &st);
    case CALL_HOST_FUNC:
        return cuLaunchHostFunc(s, nothing, NULL);
    case CALL_STREAM_SYNC:
        return cuStreamSynchronize(s);
    default:
        return call_copy(c, s);
    }
}

/* What asks about memory, and what only sets. */
static CUresult call_questions(int c)
{
    CUmemGenericAllocationHandle x;
    CUipcMemHandle h;
    CUdeviceptr base;
    size_t size;
    int on = 1;
    CUresult r;

    switch (c) {
    case CALL_POINTER_GET:
        return attributes();
    case CALL_POINTER_SET:
        return cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, worker.b.extra);
    case CALL_ADDRESS_RANGE:
        return cuMemGetAddressRange(&base, &size, worker.b.src);
    case CALL_HOST_POINTER:
        return cuMemHostGetDevicePointer(&base, worker.b.hs, 0);
    case CALL_IPC_GET:
        return cuIpcGetMemHandle(&h, worker.b.extra);
    case CALL_RETAIN:
        r = cuMemRetainAllocationHandle(&x, (void *)held.va);
        if (!r)
            cuMemRelease(x);
        return r;
    case CALL_SET_CURRENT:
        return cuCtxSetCurrent(worker.ctx);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult call_maps(int c)
{
    const CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = worker.dev },
                                     .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    const CUmemAllocationProp prop = prop_of();
    CUipcMemHandle h;
    CUresult r;
    int fd;

    switch (c) {
    case CALL_IPC_OPEN:
        memcpy(&h, worker.sh->extra[1 - worker.me], sizeof h);
        return cuIpcOpenMemHandle(&held.opened, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    case CALL_CREATE:
        return cuMemCreate(&held.h2, MAPPED, &prop, 0);
    case CALL_MAP:
        return cuMemMap(held.va2, MAPPED, 0, held.h, 0);
    case CALL_SET_ACCESS:
        return cuMemSetAccess(held.va, MAPPED, &access, 1);
    case CALL_EXPORT:
        r = cuMemExportToShareableHandle(&fd, held.h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (!r)
            close(fd);
        return r;
    default:
        return call_questions(c);
    }
}

static CUresult call_makes(int c)
{
    switch (c) {
    case CALL_ALLOC:
        return cuMemAlloc(&held.got, TAKEN);
    case CALL_ALLOC_ASYNC:
        return cuMemAllocAsync(&held.got, TAKEN, held.s);
    case CALL_HOST_ALLOC:
        return cuMemHostAlloc(&held.host, 1u << 20, 0);
    case CALL_EVENT_CREATE:
        return cuEventCreate(&held.made_ev, 0);
    case CALL_STREAM_CREATE:
        return cuStreamCreate(&held.made_s, CU_STREAM_NON_BLOCKING);
    case CALL_BEGIN_CAPTURE:
        return cuStreamBeginCapture(held.s, CU_STREAM_CAPTURE_MODE_RELAXED);
    default:
        return call_maps(c);
    }
}

static int in_stream(int c)
{
    return c <= CALL_STREAM_SYNC;
}

static void *caller(void *arg)
{
    double t0;

    (void)arg;
    cuCtxSetCurrent(worker.ctx);
    t0 = now();
    atomic_store(&held.rc, (int)(in_stream(held.call) ? call_stream(held.call, held.s) : call_makes(held.call)));
    held.call_ms = now() - t0;
    atomic_store(&held.returned, 1);
    if (!in_stream(held.call))
        return NULL;
    while (cuStreamQuery(held.s) == CUDA_ERROR_NOT_READY && now() - t0 < 1500)
        usleep(200);
    atomic_store(&held.effect, cuStreamQuery(held.s) == CUDA_SUCCESS);
    return NULL;
}

/* What all tries use: made once, so that no call is the first of its kind. */
static void lock_once(void)
{
    static CUdeviceptr marked;
    const CUmemAllocationProp prop = prop_of();
    CUDA_KERNEL_NODE_PARAMS k = { .func = worker.mark,
                                  .gridDimX = 1,
                                  .gridDimY = 1,
                                  .gridDimZ = 1,
                                  .blockDimX = 32,
                                  .blockDimY = 1,
                                  .blockDimZ = 1,
                                  .kernelParams = (void *[]){ &marked, &held.v } };
    CUgraph graph;
    CUgraphNode node;

    marked = word_at(L_CALL);
    CK(cuGraphCreate(&graph, 0));
    CK(cuGraphAddKernelNode(&node, graph, NULL, 0, &k));
    CK(cuGraphInstantiate(&held.graph, graph, 0));
    CK(cuGraphLaunch(held.graph, worker.w[2]));
    CK(cuMemCreate(&held.h, MAPPED, &prop, 0));
    held.va = map_vmm(held.h, MAPPED);
    CK(cuEventCreate(&held.ev, CU_EVENT_DISABLE_TIMING));
    CK(cuMemAllocAsync(&held.got, TAKEN, worker.w[2]));
    CK(cuMemFreeAsync(held.got, worker.w[2]));
    CK(cuLaunchHostFunc(worker.w[2], nothing, NULL));
}

static void lock_prepare(void)
{
    if (!held.graph)
        lock_once();
    CK(cuMemAddressReserve(&held.va2, MAPPED, 0, 0, 0));
    CK(cuEventRecord(held.ev, worker.w[2]));
    CK(cuStreamSynchronize(worker.w[2]));
    if (held.how == H_FREE_V || held.how == H_FREE_K)
        CK(cuMemAlloc(&held.block, 32u << 20));
    if (held.how == H_LAZY_V || held.how == H_LAZY_K)
        CK(cuModuleLoadData(&held.mod, worker.cubin));
    CK(cuStreamCreate(&held.s, CU_STREAM_NON_BLOCKING));
    CK(call_copy(CALL_COPY_PUSH, held.s));
    CK(cuStreamSynchronize(held.s));
    CK(cuCtxSynchronize());
}

static void lock_clean(void)
{
    int c = held.call, ok = atomic_load(&held.rc) == 0;
    CUgraph gr;

    if (c == CALL_BEGIN_CAPTURE && ok) {
        CK(cuStreamEndCapture(held.s, &gr));
        CK(cuGraphDestroy(gr));
    }
    if (c == CALL_ALLOC_ASYNC && ok)
        CK(cuMemFreeAsync(held.got, held.s));
    CK(cuCtxSynchronize());
    if (c == CALL_IPC_OPEN && ok)
        CK(cuIpcCloseMemHandle(held.opened));
    if (c == CALL_CREATE && ok)
        CK(cuMemRelease(held.h2));
    if (c == CALL_MAP && ok)
        CK(cuMemUnmap(held.va2, MAPPED));
    if (c == CALL_ALLOC && ok)
        CK(cuMemFree(held.got));
    if (c == CALL_HOST_ALLOC && ok)
        CK(cuMemFreeHost(held.host));
    if (c == CALL_EVENT_CREATE && ok)
        CK(cuEventDestroy(held.made_ev));
    if (c == CALL_STREAM_CREATE && ok)
        CK(cuStreamDestroy(held.made_s));
    CK(cuMemAddressFree(held.va2, MAPPED));
    CK(cuStreamDestroy(held.s));
    if (held.mod)
        CK(cuModuleUnload(held.mod));
    held.mod = NULL;
}

/* The stream that the holder will wait for. */
static void wait_held(void)
{
    const int by_kernel = held.how == H_LOAD_K || held.how == H_FREE_K || held.how == H_LAZY_K;

    CK(wait_for(worker.w[0], by_kernel ? BY_KERNEL : BY_VALUE, L_HELD, held.v));
}

static void start_try(int how, int call, uint32_t v)
{
    atomic_store(&held.in, 0);
    atomic_store(&held.out, 0);
    atomic_store(&held.returned, 0);
    atomic_store(&held.effect, 0);
    atomic_store(&held.rc, 0);
    held.how = how;
    held.call = call;
    held.v = v;
    lock_prepare();
    wait_held();
}

/* A thread goes into the driver. Does it stand there? */
static int hold(pthread_t *thread)
{
    usleep(1000);
    held.t0 = now();
    pthread_create(thread, NULL, holder, NULL);
    while (!atomic_load(&held.in))
        relax();
    usleep(15000);
    return !atomic_load(&held.out);
}

/* a: how, call, value. r: holder stood?, call returned within 300 ms?, effect within 300 ms?, CUresult, holder still inside then?
 * d: ms of the call, of the holder */
void do_lock(const long *a, struct reply *r)
{
    pthread_t h, c;
    double t;

    if (a[1] >= CALLS) {
        r->rc = -1;
        return;
    }
    start_try((int)a[0], (int)a[1], (uint32_t)a[2]);
    r->r[0] = hold(&h);
    t = now();
    pthread_create(&c, NULL, caller, NULL);
    while (now() - t < 300 && !(atomic_load(&held.returned) && (atomic_load(&held.effect) || !in_stream(held.call))))
        usleep(100);
    r->r[1] = atomic_load(&held.returned);
    r->r[2] = atomic_load(&held.effect);
    r->r[4] = !atomic_load(&held.out);
    word_set(L_HELD, held.v);
    pthread_join(h, NULL);
    pthread_join(c, NULL);
    r->r[3] = atomic_load(&held.rc);
    r->d[0] = held.call_ms;
    r->d[1] = held.out_ms;
    snprintf(r->msg, sizeof r->msg, "%s", call_name[held.call]);
    lock_clean();
}

/* A chain behind a word of its own, queued before the holder comes. */
static void queue_chain(int q, CUstream s, uint32_t v)
{
    CUdeviceptr w = word_at(L_READY), done = word_at(L_DONE);

    if (q == Q_MOVE_PUSH || q == Q_MOVE_PULL) {
        CK(chain(q == Q_MOVE_PUSH ? K_PUSH : K_PULL, 4, 65536, s, w, done, v));
        return;
    }
    if (q == Q_PUSH_K || q == Q_PULL_K || q == Q_KERNEL_K)
        CK(wait_kernel(s, w, v));
    else
        CK(cuStreamWaitValue32(s, w, v, CU_STREAM_WAIT_VALUE_GEQ));
    if (q == Q_PUSH || q == Q_PUSH_K)
        CK(call_copy(CALL_COPY_PUSH, s));
    if (q == Q_PULL || q == Q_PULL_K)
        CK(call_copy(CALL_COPY_PULL, s));
    if (q == Q_HOST_D2H)
        CK(call_copy(CALL_COPY_D2H, s));
    if (q == Q_KERNEL || q == Q_KERNEL_K)
        CK(mark(s, L_DONE, v));
    else
        CK(cuStreamWriteValue32(s, done, v, 0));
}

/* a: how, what is queued, value. r: holder stood?, chain done within 300 ms?, holder still inside?, holder's own kernel done? */
void do_queued(const long *a, struct reply *r)
{
    pthread_t h;
    double t;

    if (a[1] >= Q_LAST) {
        r->rc = -1;
        return;
    }
    start_try((int)a[0], CALL_COPY_PUSH, (uint32_t)a[2]);
    queue_chain((int)a[1], held.s, held.v);
    r->r[0] = hold(&h);
    t = now();
    word_set(L_READY, held.v);
    while (word_get(L_DONE) != held.v && now() - t < 300)
        relax();
    r->d[0] = now() - t;
    r->r[1] = word_get(L_DONE) == held.v;
    r->r[2] = !atomic_load(&held.out);
    r->r[3] = word_get(L_LAZY) == held.v;
    word_set(L_HELD, held.v);
    pthread_join(h, NULL);
    snprintf(r->msg, sizeof r->msg, "%s", queued_name[a[1]]);
    lock_clean();
}

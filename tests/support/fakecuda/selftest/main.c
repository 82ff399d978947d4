/* SPDX-License-Identifier: Apache-2.0 */
/* Does the fake driver keep its word? Exits 0 when all of it holds. */
#include "selftest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

unsigned long fakecuda_stat(const char *name);

void st_expect(CUresult got, CUresult wanted, const char *what, const char *file, int line)
{
    if (got == wanted)
        return;
    fprintf(stderr, "%s:%d: %s gave %d, not %d\n", file, line, what, (int)got, (int)wanted);
    _exit(1);
}

void st_check(bool ok, const char *what, const char *file, int line)
{
    if (ok)
        return;
    fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
    _exit(1);
}

CUcontext st_context(int device)
{
    CUcontext context;

    OK(cuDevicePrimaryCtxRetain(&context, device));
    return context;
}

CUstream st_stream(void)
{
    CUstream stream;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

CUdeviceptr st_alloc(size_t bytes)
{
    CUdeviceptr pointer;

    OK(cuMemAlloc(&pointer, bytes));
    return pointer;
}

CUfunction st_kernel(const char *name)
{
    static const char image[] = "anything";
    static CUmodule module; /* of device 0's context */
    CUfunction function;

    if (module == NULL)
        OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

void st_add(CUstream stream, CUdeviceptr words, uint64_t count, uint32_t by)
{
    void *params[] = { &words, &count, &by };

    OK(cuLaunchKernel(st_kernel("fakecuda_add"), 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

uint32_t st_read(CUdeviceptr word)
{
    uint32_t value;

    OK(cuMemcpyDtoH(&value, word, sizeof value));
    return value;
}

void st_write(CUdeviceptr word, uint32_t value)
{
    OK(cuMemcpyHtoD(word, &value, sizeof value));
}

void st_sleep_ms(int ms)
{
    struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

    nanosleep(&pause, NULL);
}

bool st_done(CUstream stream, int within_ms)
{
    for (int ms = 0; ms <= within_ms; ms += 2) {
        CUresult result = cuStreamQuery(stream);

        if (result == CUDA_SUCCESS)
            return true;
        EXPECT(result, CUDA_ERROR_NOT_READY);
        st_sleep_ms(2);
    }
    return false;
}

unsigned long st_stat(const char *name)
{
    return fakecuda_stat(name);
}

struct st_words st_words_new(void)
{
    struct st_words words;

    words.at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(words.at != MAP_FAILED);
    OK(cuMemHostRegister(words.at, 4096, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    return words;
}

void st_words_free(struct st_words *words)
{
    OK(cuMemHostUnregister(words->at));
    munmap(words->at, 4096);
}

CUdeviceptr st_word(const struct st_words *words, int index)
{
    return (CUdeviceptr)(uintptr_t)&words->at[index];
}

static void test_order(void)
{
    CUstream a = st_stream(), b = st_stream();
    CUdeviceptr memory = st_alloc(4096);
    CUevent event, start;
    float ms;

    OK(cuMemsetD32Async(memory, 5, 1024, a));
    for (int i = 0; i < 200; i++)
        st_add(a, memory, 1024, 1);
    OK(cuEventCreate(&event, 0));
    OK(cuEventCreate(&start, 0));
    OK(cuEventQuery(event));
    OK(cuEventRecord(start, b));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    for (int i = 0; i < 200; i++)
        st_add(b, memory, 1024, 2);
    OK(cuEventRecord(event, b)); /* does not disturb the earlier wait */
    OK(cuEventSynchronize(event));
    OK(cuEventElapsedTime(&ms, start, event));
    CHECK(ms >= 0);
    CHECK(st_read(memory) == 605 && st_read(memory + 4092) == 605);
    OK(cuStreamDestroy(a));
    EXPECT(cuStreamQuery(a), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventDestroy(event));
    EXPECT(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventDestroy(start));
    OK(cuStreamDestroy(b));
    OK(cuMemFree(memory));
}

static void test_legacy_stream(void)
{
    struct st_words words = st_words_new();
    CUstream blocking, other = st_stream();
    CUdeviceptr memory = st_alloc(8);

    st_write(memory, 0);
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamWaitValue32(blocking, st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_GEQ));
    st_add(NULL, memory, 1, 1); /* behind the blocking stream */
    st_add(blocking, memory, 1, 10);
    OK(cuMemsetD32Async(memory + 4, 77, 1, other)); /* beside both */
    CHECK(st_done(other, 2000));
    CHECK(!st_done(NULL, 30));
    atomic_store(&words.at[0], 1);
    OK(cuCtxSynchronize());
    CHECK(st_read(memory) == 11 && st_read(memory + 4) == 77);
    OK(cuStreamDestroy(blocking));
    OK(cuStreamDestroy(other));
    OK(cuMemFree(memory));
    st_words_free(&words);
}

static bool wait_opens(CUstream s, const struct st_words *words, uint32_t word, uint32_t value, unsigned flags)
{
    bool opened;

    atomic_store(&words->at[0], word);
    OK(cuStreamWaitValue32(s, st_word(words, 0), value, flags));
    opened = st_done(s, 20);
    atomic_store(&words->at[0], flags == CU_STREAM_WAIT_VALUE_NOR ? 0 : value);
    CHECK(st_done(s, 5000));
    return opened;
}

static void test_words(void)
{
    struct st_words words = st_words_new();
    CUstreamBatchMemOpParams batch[256];
    CUstream s = st_stream();
    CUdeviceptr memory = st_alloc(4);
    uint32_t local = 0;

    CHECK(wait_opens(s, &words, 5, 5, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(!wait_opens(s, &words, 4, 5, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(wait_opens(s, &words, 3, 0xfffffff0u, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(!wait_opens(s, &words, 0xfffffff0u, 3, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(!wait_opens(s, &words, 6, 5, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(wait_opens(s, &words, 6, 3, CU_STREAM_WAIT_VALUE_AND));
    CHECK(!wait_opens(s, &words, 4, 3, CU_STREAM_WAIT_VALUE_AND));
    CHECK(wait_opens(s, &words, 6, 3, CU_STREAM_WAIT_VALUE_NOR));
    CHECK(!wait_opens(s, &words, 0xfffffffc, 3, CU_STREAM_WAIT_VALUE_NOR));
    EXPECT(cuStreamWaitValue32(s, (CUdeviceptr)(uintptr_t)&local, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuStreamWriteValue32(s, st_word(&words, 0) + 2, 0, 0), CUDA_ERROR_INVALID_VALUE);
    memset(batch, 0, sizeof batch);
    for (int i = 0; i < 256; i++) {
        batch[i].writeValue.operation = i % 2 ? CU_STREAM_MEM_OP_WAIT_VALUE_32 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
        batch[i].writeValue.address = i % 4 < 2 ? memory : st_word(&words, 1);
        batch[i].writeValue.value = (uint32_t)i / 4 + 1;
    }
    EXPECT(cuStreamBatchMemOp(s, 256, batch, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamBatchMemOp(s, 255, batch, 0));
    OK(cuStreamSynchronize(s));
    CHECK(st_read(memory) == 64 && atomic_load(&words.at[1]) == 64);
    OK(cuStreamDestroy(s));
    OK(cuMemFree(memory));
    st_words_free(&words);
}

static void host_function(void *data)
{
    size_t bytes, total;

    EXPECT(cuMemGetInfo(&bytes, &total), CUDA_ERROR_NOT_PERMITTED);
    atomic_fetch_add((_Atomic uint32_t *)data, 1);
}

/* Work of a destroyed stream runs to its end; memory is freed only behind the work that was there. */
static void test_lifetimes(void)
{
    struct st_words words = st_words_new();
    CUdeviceptr memory = st_alloc(64), other = st_alloc(64);
    CUstream s = st_stream();

    st_write(memory, 0);
    OK(cuStreamWaitValue32(s, st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_EQ));
    st_add(s, memory, 1, 3);
    OK(cuLaunchHostFunc(s, host_function, (void *)(uintptr_t)st_word(&words, 1)));
    OK(cuStreamDestroy(s));
    st_sleep_ms(10);
    CHECK(atomic_load(&words.at[1]) == 0);
    atomic_store(&words.at[0], 1);
    OK(cuMemFree(other));
    CHECK(atomic_load(&words.at[1]) == 1 && st_read(memory) == 3);
    OK(cuMemFree(memory));
    st_words_free(&words);
}

static void test_memory(void)
{
    CUdeviceptr memory = st_alloc(100), base;
    unsigned long long id1, id2;
    unsigned type = 9;
    size_t bytes;
    char host[200];
    void *data[] = { &type, &id1 };
    CUpointer_attribute which[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_BUFFER_ID };
    int pipes[2] = { -1, -1 };

    EXPECT(cuMemcpyHtoD(memory + 50, host, 51), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemsetD8Async(memory, 0, 101, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetAddressRange(&base, &bytes, memory + 99));
    CHECK(base == memory && bytes == 100);
    OK(cuPointerGetAttributes(2, which, data, memory + 1));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttributes(1, which, data, (CUdeviceptr)(uintptr_t)host));
    CHECK(type == 0);
    EXPECT(cuPointerGetAttribute(&type, which[0], (CUdeviceptr)(uintptr_t)host), CUDA_ERROR_INVALID_VALUE);
    if (getenv("FAKECUDA_PROTECT") == NULL) /* the CPU cannot see device memory */
        CHECK(pipe(pipes) == 0 && write(pipes[1], (void *)memory, 1) == -1 && errno == EFAULT); // NOLINT
    close(pipes[0]);
    close(pipes[1]);
    EXPECT(cuMemFree(memory + 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(memory));
    EXPECT(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
    memory = st_alloc(100);
    OK(cuPointerGetAttribute(&id2, which[1], memory));
    CHECK(id2 > id1);
    OK(cuMemFree(memory));
    EXPECT(cuMemHostUnregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    OK(cuMemHostRegister(host, sizeof host, 0));
    EXPECT(cuMemHostRegister(host + 8, 8, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostUnregister(host));
}

/* Memory of the pool: allocated and freed in the order of a stream, at the same address again, for this device alone. */
static void test_pool(CUcontext context0, CUcontext context1)
{
    struct st_words words = st_words_new();
    CUdeviceptr memory, other;
    CUstream s = st_stream(), there;
    CUipcMemHandle ipc;
    CUmemGenericAllocationHandle handle;
    unsigned char capable = 1;
    unsigned type = 9;

    EXPECT(cuMemAllocAsync(&memory, 0, s), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocAsync(&memory, 3 << 20, s));
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 5));
    CHECK(capable == 0 && type == CU_MEMORYTYPE_DEVICE);
    EXPECT(cuIpcGetMemHandle(&ipc, memory), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)memory), CUDA_ERROR_INVALID_VALUE); // NOLINT
    OK(cuCtxSetCurrent(context1));
    there = st_stream();
    OK(cuCtxEnablePeerAccess(context0, 0));
    EXPECT(cuMemsetD32Async(memory, 0, 1, there), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamDestroy(there));
    OK(cuCtxDisablePeerAccess(context0));
    OK(cuCtxSetCurrent(context0));
    OK(cuStreamWaitValue32(s, st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemsetD32Async(memory, 41, 1, s));
    st_add(s, memory, 1, 1);
    OK(cuMemcpyAsync(st_word(&words, 1), memory, 4, s));
    OK(cuMemFreeAsync(memory, s)); /* behind all that uses it */
    EXPECT(cuMemFreeAsync(memory, s), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocAsync(&other, 3 << 20, s));
    CHECK(other != memory); /* it is not free yet */
    atomic_store(&words.at[0], 1);
    OK(cuStreamSynchronize(s));
    CHECK(atomic_load(&words.at[1]) == 42);
    OK(cuMemFree(other));
    OK(cuMemAllocAsync(&other, 1 << 20, s));
    CHECK(other == memory);
    OK(cuMemFreeAsync(other, s));
    OK(cuStreamDestroy(s));
    st_words_free(&words);
}

/* A small pageable source has been read when the call returns; a pageable target is complete. */
static void test_pageable(void)
{
    struct st_words words = st_words_new();
    CUdeviceptr memory = st_alloc(64);
    CUstream s = st_stream();
    char host[64];

    memset(host, 1, sizeof host);
    OK(cuStreamWaitValue32(s, st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemcpyHtoDAsync(memory, host, sizeof host, s));
    memset(host, 2, sizeof host);
    atomic_store(&words.at[0], 1);
    OK(cuMemcpyDtoHAsync(host, memory, sizeof host, s));
    CHECK(host[0] == 1 && host[63] == 1);
    OK(cuStreamDestroy(s));
    OK(cuMemFree(memory));
    st_words_free(&words);
}

static void test_peers(CUcontext context0, CUcontext context1)
{
    CUdeviceptr here = st_alloc(64), there;
    CUstream s = st_stream();
    unsigned long peer_copies = st_stat("peer_copies"), local_copies = st_stat("local_copies");

    OK(cuCtxSetCurrent(context1));
    there = st_alloc(64);
    EXPECT(cuEventRecord(NULL, s), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuMemsetD8Async(there, 0, 64, s), CUDA_ERROR_INVALID_HANDLE); /* a stream of the other context */
    OK(cuCtxSetCurrent(context0));
    OK(cuMemsetD32Async(here, 42, 16, s));
    OK(cuMemcpyAsync(there, here, 64, s));
    OK(cuMemcpyAsync(here, here + 32, 32, s));
    OK(cuStreamSynchronize(s));
    CHECK(st_stat("peer_copies") == peer_copies + 1 && st_stat("local_copies") == local_copies + 1);
    CHECK(st_read(there) == 42);
    EXPECT(cuStreamWriteValue32(s, there, 7, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxEnablePeerAccess(context1, 0));
    EXPECT(cuCtxEnablePeerAccess(context1, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuStreamWriteValue32(s, there, 7, 0));
    OK(cuStreamSynchronize(s));
    CHECK(st_read(there) == 7);
    OK(cuMemFree(there));
    OK(cuMemFree(here));
    OK(cuStreamDestroy(s));
}

/* Eight pending waits hold the eight hardware queues. */
static void test_connections(CUcontext context0, CUcontext context1)
{
    struct st_words words = st_words_new();
    CUstream waiting[8], kernel = st_stream(), local = st_stream(), peer = st_stream(), ninth = st_stream();
    CUdeviceptr here = st_alloc(64), there;

    OK(cuCtxSetCurrent(context1));
    there = st_alloc(64);
    OK(cuCtxSetCurrent(context0));
    st_write(here, 0);
    for (int i = 0; i < 8; i++) {
        waiting[i] = st_stream();
        OK(cuStreamWaitValue32(waiting[i], st_word(&words, i), 1, CU_STREAM_WAIT_VALUE_GEQ));
    }
    while (st_stat("pending_waits") < 8)
        st_sleep_ms(1);
    st_add(kernel, here, 1, 1);
    OK(cuMemcpyAsync(here + 32, here, 32, local));
    OK(cuMemcpyAsync(there, here, 32, peer));
    OK(cuStreamWriteValue32(peer, st_word(&words, 20), 9, 0));
    OK(cuStreamWaitValue32(ninth, st_word(&words, 20), 9, 0)); /* true at once, but never looked at */
    CHECK(st_done(peer, 5000));
    CHECK(!st_done(kernel, 50) && !st_done(local, 10) && !st_done(ninth, 10));
    atomic_store(&words.at[3], 1);
    CHECK(st_done(kernel, 5000) && st_done(local, 5000) && st_done(ninth, 5000));
    for (int i = 0; i < 8; i++) {
        atomic_store(&words.at[i], 1);
        OK(cuStreamSynchronize(waiting[i]));
        OK(cuStreamDestroy(waiting[i]));
    }
    CHECK(st_stat("pending_waits") == 0 && st_stat("pending_waits_max") >= 8);
    OK(cuMemFree(here));
    OK(cuMemFree(there));
    OK(cuStreamDestroy(kernel));
    OK(cuStreamDestroy(local));
    OK(cuStreamDestroy(peer));
    OK(cuStreamDestroy(ninth));
    st_words_free(&words);
}

static void run_all(void)
{
    CUcontext context0, context1;
    CUdeviceptr memory;
    int count;

    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 2);
    EXPECT(cuMemAlloc(&memory, 4), CUDA_ERROR_INVALID_CONTEXT);
    context0 = st_context(0);
    context1 = st_context(1);
    OK(cuCtxSetCurrent(context0));
    test_order();
    test_legacy_stream();
    test_words();
    test_lifetimes();
    test_memory();
    test_pageable();
    test_pool(context0, context1);
    test_peers(context0, context1);
    test_connections(context0, context1);
    st_kernel_tests();
    st_capture_tests();
    OK(cuCtxSynchronize());
    CHECK(st_stat("ranges") == 0 && st_stat("events") == 0);
}

static int child(int sockets[2])
{
    close(sockets[0]);
    OK(cuInit(0));
    OK(cuCtxSetCurrent(st_context(1)));
    st_ipc_importer(sockets[1]);
    return 0;
}

int main(int argc, char **argv)
{
    CUdevice device;
    int sockets[2], status;
    pid_t pid;

    if (argc == 3 && strcmp(argv[1], "variant") == 0)
        return st_variant_run(argv[2]);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("FAKECUDA_DEVICES");
    unsetenv("FAKECUDA_QUEUES");
    unsetenv("FAKECUDA_FREE_SYNC");
    EXPECT(cuDeviceGet(&device, 0), CUDA_ERROR_NOT_INITIALIZED);
    st_variants_start();
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        return child(sockets);
    close(sockets[1]);
    run_all();
    st_ipc_exporter(sockets[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("fakecuda: all passed\n");
    return 0;
}

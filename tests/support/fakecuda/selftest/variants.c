/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment changes: this program starts itself once for each variant. */
#include "selftest.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static CUresult sticky; /* what the process is left with at the end */

static void visible(void)
{
    CUdevice device;
    CUuuid uuid;
    int count;

    OK(cuDeviceGetCount(&count));
    CHECK(count == 2);
    OK(cuDeviceGet(&device, 1));
    OK(cuDeviceGetUuid(&uuid, device));
    CHECK(uuid.bytes[15] == 0);
    OK(cuDeviceGetUuid(&uuid, 0));
    CHECK(uuid.bytes[15] == 3);
}

static void injected(void)
{
    CUdeviceptr a = st_alloc(4), b;

    EXPECT(cuMemAlloc(&b, 4), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&b, 4));
    OK(cuMemFree(a));
    OK(cuMemFree(b));
}

static void out_of_memory(void)
{
    CUdeviceptr a, b;

    EXPECT(cuMemAlloc(&a, (size_t)5 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&a, (size_t)3 << 20));
    EXPECT(cuMemAlloc(&b, (size_t)2 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree(a));
}

/* n streams wait; does a kernel of another stream run? */
static bool kernel_runs_beside(int n, CUcontext kernels)
{
    struct st_words words = st_words_new();
    CUdeviceptr memory;
    CUcontext waits;
    CUstream s;
    bool runs;

    OK(cuCtxGetCurrent(&waits));
    for (int i = 0; i < n; i++)
        OK(cuStreamWaitValue32(st_stream(), st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_GEQ));
    while (st_stat("pending_waits") < (unsigned long)n)
        st_sleep_ms(1);
    OK(cuCtxSetCurrent(kernels));
    s = st_stream();
    memory = st_alloc(4);
    OK(cuMemsetD32Async(memory, 0, 1, s));
    runs = st_done(s, 50);
    atomic_store(&words.at[0], 1);
    CHECK(st_done(s, 5000));
    OK(cuCtxSetCurrent(waits));
    return runs;
}

static void one_connection(void)
{
    CUcontext here;

    OK(cuCtxGetCurrent(&here));
    CHECK(!kernel_runs_beside(1, here));
}

static void no_queues(void)
{
    CUcontext here;

    OK(cuCtxGetCurrent(&here));
    CHECK(kernel_runs_beside(9, here));
}

static void queues_of_context(void)
{
    CUcontext here;

    OK(cuCtxGetCurrent(&here));
    CHECK(!kernel_runs_beside(8, here));
    CHECK(kernel_runs_beside(8, st_context(1)));
}

/* A copy to the other device that waits in its stream keeps those of other streams; copies inside a device and words it does not. */
static void copy_queue(void)
{
    struct st_words words = st_words_new();
    CUdeviceptr here = st_alloc(64), there;
    CUstream first = st_stream(), second = st_stream(), third = st_stream();
    CUcontext own;

    OK(cuCtxGetCurrent(&own));
    OK(cuCtxSetCurrent(st_context(1)));
    there = st_alloc(64);
    OK(cuCtxSetCurrent(own));
    OK(cuMemsetD8Async(here, 0, 64, third));
    CHECK(st_done(third, 5000));
    OK(cuStreamWaitValue32(first, st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemcpyAsync(there, here, 32, first));
    OK(cuMemcpyAsync(there, here, 32, second));
    OK(cuMemcpyAsync(here, here + 32, 32, third));
    OK(cuStreamWriteValue32(third, st_word(&words, 1), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    CHECK(st_done(third, 5000));
    CHECK(!st_done(second, 50));
    atomic_store(&words.at[0], 1);
    CHECK(st_done(second, 5000) && st_done(first, 5000));
}

/* Memory goes while a stream still needs it: the process is poisoned, what waits is let go. */
static void fault(void)
{
    struct st_words words = st_words_new();
    CUdeviceptr memory = st_alloc(64);
    CUstream s = st_stream(), other = st_stream();

    OK(cuStreamWaitValue32(s, st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemcpyAsync(memory, memory + 32, 32, s));
    OK(cuStreamWaitValue32(other, st_word(&words, 1), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemFree(memory));
    atomic_store(&words.at[0], 1);
    EXPECT(cuStreamSynchronize(other), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuStreamQuery(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void forked(void)
{
    int status, count;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0)
        _exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED && cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The context's end frees its memory and its streams' handles; the next retain makes a new one. */
static void context_end(void)
{
    CUdeviceptr memory = st_alloc(64), again;
    CUstream s = st_stream();
    unsigned flags;
    int active;

    OK(cuMemsetD8Async(memory, 0, 64, s));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 0 && st_stat("ranges") == 0);
    EXPECT(cuMemAlloc(&again, 64), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    st_context(0);
    EXPECT(cuStreamQuery(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuMemAlloc(&again, 64));
}

static const struct variant {
    const char *name, *setting; /* NAME=value for the environment */
    void (*run)(void);
} variants[] = {
    { "visible", "CUDA_VISIBLE_DEVICES=3,0,99,1", visible },
    { "injected", "FAKECUDA_FAIL=cuStreamQuery:1:1,cuMemAlloc_v2:2:2", injected },
    { "out_of_memory", "FAKECUDA_MEMORY_MB=4", out_of_memory },
    { "one_connection", "CUDA_DEVICE_MAX_CONNECTIONS=1", one_connection },
    { "no_queues", "FAKECUDA_QUEUES=0", no_queues },
    { "queues_of_context", "FAKECUDA_QUEUES=context", queues_of_context },
    { "copy_queue", "FAKECUDA_COPY_QUEUES=1", copy_queue },
    { "fault", "FAKECUDA_FREE_SYNC=0", fault },
    { "forked", "FAKECUDA_JITTER_US=1", forked },
    { "context_end", "FAKECUDA_JITTER_US=2000", context_end },
};

static void start(const struct variant *v)
{
    char setting[64];
    char *arguments[] = { "selftest", "variant", (char *)(uintptr_t)v->name, NULL };
    int status;
    pid_t pid;

    snprintf(setting, sizeof setting, "%s", v->setting);
    putenv(setting);
    CHECK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fprintf(stderr, "variant %s with %s failed\n", v->name, v->setting);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    *strchr(setting, '=') = '\0';
    unsetenv(setting);
}

void st_variants_start(void)
{
    setenv("FAKECUDA_DEVICES", "4", 1);
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        start(&variants[i]);
    unsetenv("FAKECUDA_DEVICES");
}

int st_variant_run(const char *name)
{
    OK(cuInit(0));
    OK(cuCtxSetCurrent(st_context(0)));
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        if (strcmp(variants[i].name, name) == 0)
            variants[i].run();
    EXPECT(cuCtxSynchronize(), sticky);
    return 0;
}

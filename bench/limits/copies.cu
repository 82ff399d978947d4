/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies from one GPU to another and the hardware queues of their process (CUDA_DEVICE_MAX_CONNECTIONS), with no library: one process, two GPUs.
 * Of 32 streams some wait by a kernel with a copy to the other GPU behind it. Then each of the others gets a copy to the other GPU and a word: `.` the
 * word came within 3 ms, `X` it did not, `w` a stream that waits; `v` where a word goes ahead, and that did not come. Once as they are, once after all
 * of them have copied before, in turn.
 * nvcc -O3 -std=c++17 -arch=sm_90 copies.cu -lcuda -o copies && ./copies
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda.h>
#include <vector>

constexpr int streams_all = 32;
constexpr size_t page = 4096, word_stride = 16;

static const char ptx[] =
    ".version 7.8\n.target sm_80\n.address_size 64\n"
    ".visible .entry waits(.param .u64 word)\n{\n.reg .pred open;\n.reg .u32 value;\n.reg .u64 address;\n"
    "ld.param.u64 address, [word];\nAGAIN: ld.volatile.global.u32 value, [address];\nsetp.ge.u32 open, value, 1;\n"
    "@open bra END;\nnanosleep.u32 100;\nbra AGAIN;\nEND: ret;\n}\n";

static CUfunction waits;
static char *words; /* pinned */
static CUdeviceptr here, there;

static void check(CUresult code, const char *what)
{
    const char *name = "?";

    if (code == CUDA_SUCCESS)
        return;
    cuGetErrorName(code, &name);
    fprintf(stderr, "%s: %s\n", what, name);
    exit(1);
}

static volatile uint32_t *word(int i)
{
    return (volatile uint32_t *)(words + (size_t)i * word_stride);
}

static CUdeviceptr address_of(int i)
{
    return (CUdeviceptr)(uintptr_t)word(i);
}

static double now_ms(void)
{
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void copy(CUstream stream, int i)
{
    check(cuMemcpyDtoDAsync(there + (size_t)i * page, here + (size_t)i * page, page, stream), "cuMemcpyDtoDAsync");
}

static void write_word(CUstream stream, int i)
{
    *word(i) = 0;
    check(cuStreamWriteValue32(stream, address_of(i), 1, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
}

static bool came(int i)
{
    double until = now_ms() + 3;

    while (*word(i) == 0)
        if (now_ms() > until)
            return false;
    return true;
}

struct scene {
    const char *name;
    std::vector<int> waiters;
    bool word_first;
};

static void wait_and_copy(CUstream stream, int i)
{
    CUdeviceptr address = address_of(streams_all + i);
    void *parameters[] = { &address };

    *word(streams_all + i) = 0;
    check(cuLaunchKernel(waits, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel");
    copy(stream, i);
}

static char try_one(CUstream stream, int i, bool word_first)
{
    if (word_first) {
        write_word(stream, i);
        if (!came(i))
            return 'v';
    }
    copy(stream, i);
    write_word(stream, i);
    return came(i) ? '.' : 'X';
}

static void play(const std::vector<CUstream> &streams, const scene &s, bool copied_before)
{
    char map[streams_all + 1] = { 0 };
    int stuck = 0;

    for (int i = 0; copied_before && i < streams_all; i++) {
        copy(streams[i], i);
        check(cuStreamSynchronize(streams[i]), "cuStreamSynchronize");
    }
    for (int w : s.waiters) {
        map[w] = 'w';
        wait_and_copy(streams[w], w);
    }
    for (int i = 0; i < streams_all; i++) {
        if (map[i] == 'w')
            continue;
        map[i] = try_one(streams[i], i, s.word_first);
        stuck += map[i] == 'X';
    }
    for (int w : s.waiters)
        *word(streams_all + w) = 1;
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    printf("%-26s %s  %2d of %d\n", s.name, map, stuck, streams_all - (int)s.waiters.size());
}

int main(void)
{
    static const std::vector<scene> scenes = { { "one waits", { 0 }, false },
                                               { "one waits", { 1 }, false },
                                               { "one waits", { 5 }, false },
                                               { "one waits", { 31 }, false },
                                               { "one waits, word ahead", { 3 }, true },
                                               { "two wait", { 0, 1 }, false },
                                               { "two wait", { 2, 9 }, false },
                                               { "two wait, word ahead", { 2, 9 }, true },
                                               { "four wait", { 0, 1, 2, 3 }, false },
                                               { "eight wait", { 0, 1, 2, 3, 4, 5, 6, 7 }, false },
                                               { "eight wait, word ahead", { 0, 1, 2, 3, 4, 5, 6, 7 }, true } };
    CUdevice devices[2];
    CUcontext contexts[2];
    CUmodule module;
    std::vector<CUstream> streams(streams_all);

    check(cuInit(0), "cuInit");
    for (int d = 0; d < 2; d++) {
        check(cuDeviceGet(&devices[d], d), "cuDeviceGet");
        check(cuDevicePrimaryCtxRetain(&contexts[d], devices[d]), "cuDevicePrimaryCtxRetain");
    }
    check(cuCtxSetCurrent(contexts[1]), "cuCtxSetCurrent");
    check(cuMemAlloc(&there, streams_all * page), "cuMemAlloc");
    check(cuCtxSetCurrent(contexts[0]), "cuCtxSetCurrent");
    check(cuMemAlloc(&here, streams_all * page), "cuMemAlloc");
    check(cuCtxEnablePeerAccess(contexts[1], 0), "cuCtxEnablePeerAccess");
    check(cuMemHostAlloc((void **)&words, 2 * streams_all * word_stride, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
          "cuMemHostAlloc");
    check(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    check(cuModuleGetFunction(&waits, module, "waits"), "cuModuleGetFunction");
    for (auto &stream : streams)
        check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    printf("%s hardware queues\n", getenv("CUDA_DEVICE_MAX_CONNECTIONS") ? getenv("CUDA_DEVICE_MAX_CONNECTIONS") : "8");
    for (int again = 0; again < 2; again++) {
        puts(again == 0 ? "as they are:" : "after all have copied:");
        for (const auto &s : scenes)
            play(streams, s, again > 0);
    }
    return 0;
}

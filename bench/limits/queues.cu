/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that wait and the hardware queues of their process (CUDA_DEVICE_MAX_CONNECTIONS), with no library: one process, one GPU.
 *   new      which calls of the driver that make something wait for a stream that waits, of 150 each
 *   beside   n streams wait by a kernel, with a kernel behind: how much of what is put into 16 other streams stands still, as it is and
 *            right after a word has come through the same stream; "copied": and the last that had been in it was a copy by a copy engine
 *   out      which calls of other threads stand still while one is in cuMemFree or cuModuleLoadData beside a stream that waits
 * nvcc -O3 -std=c++17 -arch=sm_90 queues.cu -lcuda -o queues && ./queues new && ./queues beside && ./queues out
 */
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cuda.h>
#include <functional>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

constexpr int made_of_each = 150, streams_all = 40, victims = 16, rounds = 20;
constexpr double stands_ms = 60, word_us = 200;
constexpr size_t mib = (size_t)1 << 20, page = 4096;

static const char ptx[] =
    ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n"
    ".visible .entry waits(.param .u64 word)\n{\n.reg .pred open;\n.reg .u32 value;\n.reg .u64 address;\n"
    "ld.param.u64 address, [word];\nAGAIN: ld.volatile.global.u32 value, [address];\nsetp.ge.u32 open, value, 1;\n"
    "@open bra END;\nnanosleep.u32 100;\nbra AGAIN;\nEND: ret;\n}\n";

static CUcontext context;
static CUfunction nothing, waits;
static volatile uint32_t *words; /* pinned */
static CUdeviceptr from, to;
static char *pinned, pageable[65536];

static void check(CUresult code, const char *what)
{
    const char *name = "?";

    if (code == CUDA_SUCCESS)
        return;
    cuGetErrorName(code, &name);
    fprintf(stderr, "%s: %s\n", what, name);
    exit(1);
}

static double now_ms(void)
{
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static CUstream stream_new(void)
{
    CUstream stream;

    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
}

static void launch(CUfunction kernel, CUstream stream, void **parameters)
{
    check(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel");
}

static void wait_in(CUstream stream, int word)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)(words + word);
    void *parameters[] = { &address };

    words[word] = 0;
    launch(waits, stream, parameters);
}

/* ---- new ---- */

static void make_many(const char *what, CUstream waiting, const std::function<CUresult(int)> &make)
{
    std::atomic<int> made{ 0 };
    int last = 0;
    double since = now_ms();
    std::thread maker([&] {
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        for (int i = 0; i < made_of_each; i++, made++)
            check(make(i), what);
    });

    wait_in(waiting, 0);
    printf("%-24s stood at", what);
    while (made < made_of_each) {
        if (made != last) {
            last = made;
            since = now_ms();
        }
        if (now_ms() - since > stands_ms) {
            printf(" %d", last + 1);
            words[0] = 1; /* let it go, and wait again */
            while (made == last)
                usleep(100);
            check(cuStreamSynchronize(waiting), "cuStreamSynchronize");
            wait_in(waiting, 0);
        }
        usleep(50);
    }
    maker.join();
    words[0] = 1;
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    puts("");
}

static void leave_places(void)
{
    std::vector<CUstream> streams;
    double begin = now_ms();

    for (int i = 0; i < 43; i++)
        streams.push_back(stream_new());
    for (CUstream stream : streams)
        check(cuStreamDestroy(stream), "cuStreamDestroy");
    printf("43 streams made and destroyed in %.2f ms\n", now_ms() - begin);
}

static void make_all(void)
{
    CUstream waiting = stream_new();
    CUdeviceptr memory;
    CUevent event;
    void *host;

    make_many("cuMemAlloc of 4 KiB", waiting, [&](int) { return cuMemAlloc(&memory, page); });
    make_many("cuMemAlloc of 1-40 MiB", waiting, [&](int i) { return cuMemAlloc(&memory, (size_t)(i % 40 + 1) * mib); });
    make_many("cuMemHostRegister", waiting, [&](int) {
        return cuMemHostRegister(mmap(nullptr, mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), mib,
                                 CU_MEMHOSTREGISTER_PORTABLE);
    });
    make_many("cuMemHostAlloc", waiting, [&](int) { return cuMemHostAlloc(&host, 65536, CU_MEMHOSTALLOC_DEVICEMAP); });
    make_many("cuEventCreate", waiting, [&](int) { return cuEventCreate(&event, 0); });
    make_many("cuStreamCreate", waiting, [&](int) {
        CUstream stream;

        return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    });
    leave_places();
    make_many("43 were destroyed before", waiting, [&](int) {
        CUstream stream;

        return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    });
    make_many("and cuStreamDestroy", waiting, [&](int) {
        CUstream stream;
        CUresult code = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);

        return code == CUDA_SUCCESS ? cuStreamDestroy(stream) : code;
    });
}

/* ---- beside ---- */

struct work {
    const char *name;
    std::function<CUresult(CUstream)> put;
};

static const std::vector<work> &works(void)
{
    static const std::vector<work> all = {
        { "kernel", [](CUstream s) { return cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, s, nullptr, nullptr); } },
        { "memset", [](CUstream s) { return cuMemsetD8Async(to, 0, mib, s); } },
        { "inside 64K", [](CUstream s) { return cuMemcpyAsync(to, from, 65536, s); } },
        { "inside 4M", [](CUstream s) { return cuMemcpyAsync(to, from, 4 * mib, s); } },
        { "pinned 4K", [](CUstream s) { return cuMemcpyAsync(to, (CUdeviceptr)(uintptr_t)pinned, page, s); } },
        { "pageable 4K", [](CUstream s) { return cuMemcpyAsync(to, (CUdeviceptr)(uintptr_t)pageable, page, s); } },
        { "pageable 64K", [](CUstream s) { return cuMemcpyAsync(to, (CUdeviceptr)(uintptr_t)pageable, 65536, s); } },
        { "pinned 1M", [](CUstream s) { return cuMemcpyAsync(to, (CUdeviceptr)(uintptr_t)pinned, mib, s); } },
        { "to pinned 1M", [](CUstream s) { return cuMemcpyAsync((CUdeviceptr)(uintptr_t)pinned, from, mib, s); } },
    };

    return all;
}

static void write_word(CUstream stream, int word, uint32_t value)
{
    check(cuStreamWriteValue32(stream, (CUdeviceptr)(uintptr_t)(words + word), value, 0), "cuStreamWriteValue32");
}

static bool comes(int word, uint32_t value)
{
    double until = now_ms() + word_us / 1e3;

    while (words[word] != value)
        if (now_ms() > until)
            return false;
    return true;
}

struct count {
    int put, stood, refused;
};

enum asked { NO, YES, COPIED };

static void one_round(const work &w, std::vector<CUstream> &streams, int n, asked ask, uint32_t value, count *c)
{
    std::vector<int> order(streams_all), put;

    for (int i = 0; i < streams_all; i++)
        order[(size_t)i] = i;
    for (CUstream stream : streams)
        if (ask == COPIED)
            check(cuMemcpyAsync((CUdeviceptr)(uintptr_t)pinned, from, mib, stream), "cuMemcpyAsync");
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    for (int i = 0; i < n; i++)
        std::swap(order[(size_t)i], order[(size_t)(i + rand() % (streams_all - i))]);
    for (int i = 0; i < n; i++) {
        wait_in(streams[(size_t)order[(size_t)i]], i);
        launch(nothing, streams[(size_t)order[(size_t)i]], nullptr);
    }
    usleep(300);
    for (int i = n; i < n + victims; i++) {
        CUstream stream = streams[(size_t)order[(size_t)i]];

        if (ask != NO)
            write_word(stream, 1024 + 4 * i, value);
        if (ask != NO && !comes(1024 + 4 * i, value)) {
            c->refused++;
            continue;
        }
        check(w.put(stream), w.name);
        write_word(stream, 2048 + 4 * i, value);
        put.push_back(i);
    }
    usleep(3000);
    for (int i : put) {
        c->put++;
        c->stood += words[2048 + 4 * i] != value;
    }
    for (int i = 0; i < n; i++)
        words[i] = 1;
    check(cuCtxSynchronize(), "cuCtxSynchronize");
}

static void beside(void)
{
    std::vector<CUstream> streams;
    uint32_t value = 1;

    for (int i = 0; i < streams_all; i++)
        streams.push_back(stream_new());
    printf("%-6s%-8s", "wait", "asked");
    for (const work &w : works())
        printf("%14s", w.name);
    puts("  (stood still, of what was put in; then asked in vain)");
    for (int n : { 1, 2, 3, 4, 5, 6, 8, 16, 24 }) {
        for (asked ask : { NO, YES, COPIED }) {
            printf("%-6d%-8s", n, ask == NO ? "no" : ask == YES ? "yes" : "copied");
            for (const work &w : works()) {
                count c = {};
                char text[32];

                for (int r = 0; r < rounds; r++)
                    one_round(w, streams, n, ask, value++, &c);
                snprintf(text, sizeof text, "%d/%d %d", c.stood, c.put, c.refused);
                printf("%14s", text);
                fflush(stdout);
            }
            puts("");
        }
    }
}

/* ---- out ---- */

static void call(const std::function<void()> &make, std::vector<std::thread> &threads, std::vector<double> &took, size_t at)
{
    threads.emplace_back([&took, at, make] {
        double begin = now_ms();

        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        make();
        took[at] = now_ms() - begin;
    });
    usleep(2000);
}

static void keep_out(bool frees)
{
    CUstream waiting = stream_new(), others[4] = { stream_new(), stream_new(), stream_new(), stream_new() };
    CUdeviceptr memory = 0;
    const std::vector<std::pair<const char *, std::function<void()>>> calls = {
        { "copy", [&] { cuMemcpyAsync(to, from, mib, others[0]); } },
        { "kernel", [&] { cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, others[1], nullptr, nullptr); } },
        { "word", [&] { cuStreamWriteValue32(others[2], (CUdeviceptr)(uintptr_t)(words + 100), 1, 0); } },
        { "cuStreamQuery", [&] { cuStreamQuery(others[3]); } },
        { "cuMemAlloc",
          [&] {
              CUdeviceptr p;
              cuMemAlloc(&p, mib);
          } },
        { "cuStreamCreate",
          [&] {
              CUstream s;
              cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
          } },
        { "cuPointerGetAttribute",
          [&] {
              unsigned type;
              cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, from);
          } },
    };
    std::vector<double> took(calls.size());
    std::vector<std::thread> threads;

    check(cuMemAlloc(&memory, page), "cuMemAlloc");
    wait_in(waiting, 0);
    std::thread holder([&] {
        CUmodule module;

        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(frees ? cuMemFree(memory) : cuModuleLoadData(&module, ptx), "the call that waits");
    });
    usleep(30000);
    for (size_t i = 0; i < calls.size(); i++)
        call(calls[i].second, threads, took, i);
    usleep(300000);
    words[0] = 1;
    for (std::thread &t : threads)
        t.join();
    holder.join();
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    printf("%s beside a stream that waits keeps out:", frees ? "cuMemFree" : "cuModuleLoadData");
    for (size_t i = 0; i < calls.size(); i++)
        if (took[i] > 200)
            printf(" %s", calls[i].first);
    puts("");
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    CUdevice device;
    CUmodule module;
    void *memory;

    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "context");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    check(cuModuleGetFunction(&nothing, module, "nothing"), "nothing");
    check(cuModuleGetFunction(&waits, module, "waits"), "waits");
    check(cuMemHostAlloc(&memory, 65536, CU_MEMHOSTALLOC_DEVICEMAP), "words");
    words = (volatile uint32_t *)memory;
    check(cuMemHostAlloc(&memory, mib, CU_MEMHOSTALLOC_DEVICEMAP), "pinned memory");
    pinned = (char *)memory;
    check(cuMemAlloc(&from, 8 * mib), "cuMemAlloc");
    check(cuMemAlloc(&to, 8 * mib), "cuMemAlloc");
    launch(nothing, nullptr, nullptr); /* so that its code is there */
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    if (strcmp(what, "new") == 0)
        make_all();
    else if (strcmp(what, "beside") == 0)
        beside();
    else if (strcmp(what, "out") == 0)
        keep_out(true), keep_out(false);
    else
        return fprintf(stderr, "usage: queues new | beside | out\n"), 2;
    return 0;
}

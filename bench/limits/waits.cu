/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels that wait take from others on the same GPU, with no library: one process, one GPU.
 * First, beside waits of CTAs, a kernel as products of matrices are: a CTA for every multiprocessor, which wants nearly all of its
 * shared memory and registers, in clusters or not. "late": CTAs that began when others had ended. Then, how many waiting kernels leave room for others.
 * nvcc -O3 -std=c++17 -arch=sm_90 waits.cu -o waits && ./waits
 */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda_runtime.h>
#include <unistd.h>

constexpr int streams_most = 208, heavy_threads = 384, most_ctas = 16;
constexpr uint64_t heavy_ns = 100000;

struct seen { /* in host memory */
    uint64_t began[256];
    uint32_t on[256], waits_on[most_ctas];
};

static seen *notes;
static uint32_t *words; /* one a cache line */
static cudaStream_t streams[streams_most];
static int sms;

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static double now_ms(void)
{
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

__device__ __forceinline__ uint64_t timer(void)
{
    uint64_t t;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ uint32_t multiprocessor(void)
{
    uint32_t sm;

    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    return sm;
}

template <int Registers> __global__ void __maxnreg__(Registers) heavy(seen *s)
{
    uint64_t begin = timer();

    if (threadIdx.x == 0) {
        s->began[blockIdx.x] = begin;
        s->on[blockIdx.x] = multiprocessor();
    }
    while (timer() - begin < heavy_ns)
        ;
}

/* Carve: the same kernel, for which all of the multiprocessor's memory is preferred to be shared memory. */
template <bool Carve> __global__ void __launch_bounds__(512) waiter(const volatile uint32_t *word, seen *s)
{
    if (threadIdx.x == 0) {
        s->waits_on[blockIdx.x % most_ctas] = multiprocessor();
        while (*word == 0)
            __nanosleep(200);
    }
    __syncthreads();
}

__global__ void small(void)
{
}

struct waits {
    int ctas, threads;
    bool carve;
};

template <int Registers> static void launch_heavy(size_t shared_bytes, int cluster, cudaStream_t stream)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned)cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = sms;
    config.blockDim = heavy_threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1;
    check(cudaFuncSetAttribute(heavy<Registers>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes),
          "shared memory");
    check(cudaLaunchKernelEx(&config, heavy<Registers>, notes), "heavy");
}

static void report(const waits &w)
{
    uint64_t first = notes->began[0], last = first;
    int late = 0, together = 0;

    for (int i = 0; i < sms; i++) {
        first = std::min(first, notes->began[i]);
        last = std::max(last, notes->began[i]);
    }
    for (int i = 0; i < sms; i++) {
        late += notes->began[i] - first > heavy_ns / 2;
        together += std::find(notes->waits_on, notes->waits_on + w.ctas, notes->on[i]) != notes->waits_on + w.ctas &&
                    notes->began[i] - first < heavy_ns / 2;
    }
    printf("%2d x %3d threads%s: %3d of %d late, the last at %5.1f us, %d beside a wait\n", w.ctas, w.threads,
           w.carve ? ", carve-out" : "", late, sms, (last - first) / 1e3, together);
}

template <int Registers> static void beside(size_t shared_bytes, int cluster)
{
    static const waits table[] = { { 0, 0, false },  { 1, 32, false },   { 1, 32, true },  { 4, 512, false },
                                   { 16, 32, true }, { 16, 512, false }, { 16, 512, true } };

    for (const waits &w : table) {
        words[0] = 0;
        if (w.ctas > 0 && w.carve)
            waiter<true><<<w.ctas, w.threads, 0, streams[0]>>>(words, notes);
        else if (w.ctas > 0)
            waiter<false><<<w.ctas, w.threads, 0, streams[0]>>>(words, notes);
        check(cudaGetLastError(), "wait");
        usleep(1000);
        for (int i = 0; i < 3; i++)
            launch_heavy<Registers>(shared_bytes, cluster, streams[1]);
        check(cudaStreamSynchronize(streams[1]), "heavy");
        printf("%3d registers, %6zu B, clusters of %d; waits ", Registers, shared_bytes, cluster);
        report(w);
        *(volatile uint32_t *)words = 1;
        check(cudaDeviceSynchronize(), "synchronize");
    }
}

static int idle_within(int first, int n, double ms)
{
    double begin = now_ms();
    int idle = 0;

    while (idle < n && now_ms() - begin < ms)
        for (int i = idle = 0; i < n; i++)
            idle += cudaStreamQuery(streams[first + i]) == cudaSuccess;
    return idle;
}

static void crowd(int n)
{
    const int others = 8;
    int ran, last;

    for (int i = 0; i < n; i++) {
        words[16 * i] = 0;
        waiter<false><<<1, 32, 0, streams[i]>>>(words + 16 * i, notes);
    }
    for (int i = 0; i < others; i++)
        small<<<1, 1, 0, streams[streams_most - others + i]>>>();
    check(cudaGetLastError(), "launch");
    ran = idle_within(streams_most - others, others, 200);
    for (int i = n - others; i < n; i++)
        *(volatile uint32_t *)(words + 16 * i) = 1;
    last = idle_within(n - others, others, 200);
    printf("%3d kernels wait: %d of %d other kernels ran, %d of the last %d went on when their words were written\n", n, ran,
           others, last, others);
    fflush(stdout);
    for (int i = 0; i < n; i++)
        *(volatile uint32_t *)(words + 16 * i) = 1;
    check(cudaDeviceSynchronize(), "synchronize");
}

int main(void)
{
    static const int crowds[] = { 64, 96, 112, 126, 127, 128, 129, 160, 200 };
    cudaDeviceProp properties;

    check(cudaGetDeviceProperties(&properties, 0), "properties");
    sms = std::min(properties.multiProcessorCount, 256);
    check(cudaHostAlloc(&notes, sizeof *notes, 0), "host memory");
    check(cudaHostAlloc(&words, 64 * streams_most, 0), "host memory");
    for (cudaStream_t &stream : streams)
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaFuncSetAttribute(waiter<true>, cudaFuncAttributePreferredSharedMemoryCarveout, 100), "carve-out");
    words[0] = 1; /* all code is loaded before anything waits */
    waiter<false><<<1, 32, 0, streams[0]>>>(words, notes);
    waiter<true><<<1, 32, 0, streams[0]>>>(words, notes);
    small<<<1, 1, 0, streams[0]>>>();
    launch_heavy<168>(212000, 2, streams[0]);
    launch_heavy<128>(212000, 1, streams[0]);
    check(cudaDeviceSynchronize(), "synchronize");
    beside<168>(212000, 2);
    beside<168>(212000, 1);
    beside<128>(212000, 1);
    beside<128>(100000, 1);
    for (int n : crowds)
        crowd(n);
    return 0;
}

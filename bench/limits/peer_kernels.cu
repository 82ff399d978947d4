/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels of a few CTAs can do with another GPU's memory: no library, one process, two GPUs, each doing the same to the other at the same time.
 * GB/s are bytes of the array over the time of one pass, on the slower GPU. fold: what pki_twoshot does of its half, bus bandwidth of an allreduce.
 * nvcc -O3 -std=c++17 -arch=sm_90 peer_kernels.cu -o peer-kernels && ./peer-kernels
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

enum what { PULL, PUSH, ADD, FOLD, LOCAL };

static const char *const names[] = { "pull: far -> near", "push: near -> far", "add: near + far -> near",
                                     "fold: near + far -> both", "near -> near" };

struct job {
    const float4 *near_in, *far_in;
    float4 *near_out, *far_out;
    size_t vectors;
    int passes;
};

__device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <what What, int Threads, int Count> __global__ void __launch_bounds__(Threads, 1) work(const job j)
{
    const size_t threads = (size_t)gridDim.x * Threads, me = (size_t)blockIdx.x * Threads + threadIdx.x;

    for (int pass = 0; pass < j.passes; pass++) {
        for (size_t v = me; v + (Count - 1) * threads < j.vectors; v += Count * threads) {
            float4 far[Count], near[Count];

#pragma unroll
            for (int i = 0; i < Count; i++) {
                if (What == PULL || What == ADD || What == FOLD)
                    far[i] = __ldcg(j.far_in + v + i * threads);
                if (What != PULL)
                    near[i] = __ldcg(j.near_in + v + i * threads);
            }
#pragma unroll
            for (int i = 0; i < Count; i++) {
                float4 value = What == PULL ? far[i] : What == PUSH || What == LOCAL ? near[i] : plus(near[i], far[i]);

                if (What != PUSH)
                    j.near_out[v + i * threads] = value;
                if (What == PUSH || What == FOLD)
                    j.far_out[v + i * threads] = value;
            }
        }
        __threadfence_system();
    }
}

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static float4 *in[2], *out[2];
static cudaStream_t streams[2];
static cudaEvent_t begin[2], end[2];

template <what What, int Threads, int Count> static double measure(int ctas, size_t bytes)
{
    double worst = 0;
    int passes = (int)((size_t)(512 << 20) / bytes) + 1;

    for (int turn = 0; turn < 2; turn++) {
        worst = 0;
        for (int d = 0; d < 2; d++) {
            job j = { in[d], in[1 - d], out[d], out[1 - d] + bytes / 16, bytes / 16, passes };

            check(cudaSetDevice(d), "device");
            check(cudaEventRecord(begin[d], streams[d]), "record");
            work<What, Threads, Count><<<ctas, Threads, 0, streams[d]>>>(j);
            check(cudaEventRecord(end[d], streams[d]), "record");
        }
        for (int d = 0; d < 2; d++) {
            float ms;

            check(cudaSetDevice(d), "device");
            check(cudaEventSynchronize(end[d]), names[What]);
            check(cudaEventElapsedTime(&ms, begin[d], end[d]), "elapsed");
            worst = ms > worst ? ms : worst;
        }
    }
    return (What == FOLD ? 2.0 : 1.0) * bytes * passes / worst / 1e6;
}

template <what What, int Threads, int Count> static void row(size_t bytes)
{
    static const int grids[] = { 4, 8, 16, 24, 32, 64 };

    printf("%-26s %4d threads, %d vectors, %4zu MiB:", names[What], Threads, Count, bytes >> 20);
    for (int ctas : grids)
        printf(" %6.1f", measure<What, Threads, Count>(ctas, bytes));
    printf("\n");
    fflush(stdout);
}

template <what What> static void rows(size_t bytes)
{
    row<What, 512, 4>(bytes);
    row<What, 512, 8>(bytes);
    row<What, 1024, 4>(bytes);
}

int main(void)
{
    int n = 0;
    size_t most = (size_t)256 << 20;

    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 2) {
        fprintf(stderr, "needs two GPUs\n");
        return 77;
    }
    for (int d = 0; d < 2; d++) {
        check(cudaSetDevice(d), "device");
        check(cudaDeviceEnablePeerAccess(1 - d, 0), "peer access");
        check(cudaMalloc(&in[d], most), "malloc");
        check(cudaMalloc(&out[d], 2 * most), "malloc");
        check(cudaMemset(in[d], 0x3c + d, most), "memset");
        check(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking), "stream");
        check(cudaEventCreate(&begin[d]), "event");
        check(cudaEventCreate(&end[d]), "event");
        check(cudaDeviceSynchronize(), "synchronize");
    }
    printf("GB/s with 4, 8, 16, 24, 32, 64 CTAs on each GPU, both at work; fold: bus bandwidth\n");
    rows<PULL>((size_t)64 << 20);
    rows<PUSH>((size_t)64 << 20);
    rows<ADD>((size_t)64 << 20);
    rows<FOLD>((size_t)64 << 20);
    row<LOCAL, 512, 8>((size_t)64 << 20);
    row<FOLD, 512, 8>((size_t)8 << 20);
    row<ADD, 512, 8>((size_t)8 << 20);
    row<FOLD, 512, 8>((size_t)256 << 20);
    row<ADD, 512, 8>((size_t)256 << 20);
    return 0;
}

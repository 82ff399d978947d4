/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of channels.c. */
#include <stdint.h>

__device__ static uint32_t hash(uint32_t pos, uint32_t seed)
{
    uint32_t h = pos * 2654435761u ^ seed;
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    h ^= h >> 16;
    return h;
}

__device__ static uint32_t acquire(const uint32_t *w)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(w) : "memory");
    return v;
}

__device__ static void release(uint32_t *w, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(w), "r"(v) : "memory");
}

extern "C" __global__ void k_fill(uint32_t *p, uint64_t n, uint32_t seed, uint32_t poison)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = poison ? poison : hash((uint32_t)i, seed);
}

extern "C" __global__ void k_check(const uint32_t *p, uint64_t n, uint32_t seed, uint32_t pos, unsigned long long *errs)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        if (p[i] != hash((uint32_t)i + pos, seed))
            atomicAdd(errs, 1ull);
}

extern "C" __global__ void k_wait(const uint32_t *w, uint32_t v)
{
    while ((int32_t)(acquire(w) - v) < 0)
        __nanosleep(100);
}

extern "C" __global__ void k_mark(uint32_t *w, uint32_t v)
{
    if (threadIdx.x == 0)
        release(w, v);
}

__device__ static uint4 load16(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

/* The moving kernel: every CTA waits for the word (if there is one) and copies its pieces of 64 KiB; the last one writes the
 * done word. */
extern "C" __global__ void __launch_bounds__(512)
    k_move(uint4 *dst, const uint4 *src, uint64_t n, const uint32_t *w, uint32_t wv, uint32_t *count, uint32_t *done, uint32_t dv)
{
    if (w) {
        if (threadIdx.x == 0)
            while ((int32_t)(acquire(w) - wv) < 0) {
            }
        __syncthreads();
    }
    for (uint64_t base = (uint64_t)blockIdx.x * 4096; base < n; base += (uint64_t)gridDim.x * 4096) {
        uint4 v[8];
        uint64_t i = base + threadIdx.x;
        if (base + 4096 <= n) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] = load16(src + i + k * 512);
#pragma unroll
            for (int k = 0; k < 8; k++)
                dst[i + k * 512] = v[k];
        } else {
            for (int k = 0; k < 8; k++)
                if (i + k * 512 < n)
                    dst[i + k * 512] = load16(src + i + k * 512);
        }
    }
    if (!done)
        return;
    __syncthreads();
    if (threadIdx.x)
        return;
    __threadfence_system();
    if (atomicInc(count, gridDim.x - 1) == gridDim.x - 1) {
        __threadfence_system();
        release(done, dv);
    }
}

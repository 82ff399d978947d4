/* SPDX-License-Identifier: Apache-2.0 */
/* A stream that waits without holding a hardware queue: one warp polls instead. */
#include "device/kernels/kernels.h"

namespace
{

__device__ __forceinline__ uint32_t load_acquire(uint64_t address)
{
    uint32_t value;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ bool is_open(const pki_wait_word &word)
{
    uint32_t value = load_acquire(word.address);

    return word.equal ? value == word.value : (int32_t)(value - word.value) >= 0;
}

} // namespace

extern "C" __global__ void __launch_bounds__(32) pki_wait(const __grid_constant__ pki_wait_args args)
{
    for (uint32_t i = threadIdx.x; i < args.n; i += 32) {
        while (!is_open(args.words[i]))
            __nanosleep(100);
    }
    /* What any lane has acquired, the work behind this kernel sees: the end of a kernel orders it. */
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Words that CPU and GPU of several processes see. */
#ifndef PKI_WORDS_CUH
#define PKI_WORDS_CUH

#include "kernels/kernels.h"

namespace
{

__device__ __forceinline__ uint32_t load_acquire(uint64_t address)
{
    uint32_t value;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_release(uint64_t address, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ bool is_aborted(uint64_t abort_flag)
{
    return abort_flag != 0 && *(const volatile uint32_t *)abort_flag != 0;
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Cells: data and flag in one store, so that nothing has to be ordered behind anything. Layout: kernels.h, pki_ll. */
#ifndef PKI_CELLS_CUH
#define PKI_CELLS_CUH

#include "kernels/kernels.h"

namespace
{

constexpr uint32_t pair_data_bytes = 8;

__device__ __forceinline__ void store_pair(uint64_t slot, uint32_t pair, uint64_t data, uint32_t flag)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(slot + 16ull * pair), "r"((uint32_t)data), "r"(flag),
                 "r"((uint32_t)(data >> 32)), "r"(flag)
                 : "memory");
}

__device__ __forceinline__ bool load_pair(uint64_t slot, uint32_t pair, uint32_t flag, uint64_t *data)
{
    uint32_t low, flag_low, high, flag_high;

    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(low), "=r"(flag_low), "=r"(high), "=r"(flag_high)
                 : "l"(slot + 16ull * pair)
                 : "memory");
    *data = (uint64_t)high << 32 | low;
    return flag_low == flag && flag_high == flag;
}

/* A kernel of this library that follows in the stream may be launched already; it waits here for the end of what is before it.
 * Only then may the next one be launched: no more than two of a stream hold multiprocessors at a time. */
__device__ __forceinline__ void early_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Up to 8 bytes of user memory at any address, zero-padded, and back. What is not whole and aligned is rare and out of line. */
__device__ __noinline__ uint64_t read_odd(const unsigned char *from, uint32_t bytes)
{
    uint64_t data = 0;

    if (bytes >= 8 && ((uintptr_t)from & 3) == 0)
        return (uint64_t)((const uint32_t *)from)[1] << 32 | ((const uint32_t *)from)[0];
#pragma unroll 1
    for (uint32_t i = 0; i < 8 && i < bytes; i++)
        data |= (uint64_t)from[i] << 8 * i;
    return data;
}

__device__ __noinline__ void write_odd(unsigned char *to, uint32_t bytes, uint64_t data)
{
    if (bytes >= 8 && ((uintptr_t)to & 3) == 0) {
        ((uint32_t *)to)[0] = (uint32_t)data;
        ((uint32_t *)to)[1] = (uint32_t)(data >> 32);
        return;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < 8 && i < bytes; i++)
        to[i] = (unsigned char)(data >> 8 * i);
}

__device__ __forceinline__ uint64_t read_user(const unsigned char *from, uint32_t bytes)
{
    return bytes >= 8 && ((uintptr_t)from & 7) == 0 ? *(const uint64_t *)from : read_odd(from, bytes);
}

__device__ __forceinline__ void write_user(unsigned char *to, uint32_t bytes, uint64_t data)
{
    if (bytes >= 8 && ((uintptr_t)to & 7) == 0)
        *(uint64_t *)to = data;
    else
        write_odd(to, bytes, data);
}

} // namespace

#endif

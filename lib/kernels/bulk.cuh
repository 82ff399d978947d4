/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk copies between shared and global memory (sm_90): a copy engine of the multiprocessor moves them, so few CTAs fill a link.
 * Addresses and lengths are multiples of 16. A load ends by its bytes at a barrier, which one thread has told to expect them;
 * stores of a thread are grouped, and it waits for all but the latest groups.
 */
#ifndef PKI_BULK_CUH
#define PKI_BULK_CUH

#include <stdint.h>

namespace
{

/* Dynamic shared memory that the launch has given. */
__device__ __forceinline__ uint32_t shared_bytes()
{
    uint32_t bytes;

    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

/* And nvcc of CUDA 12, which knows them. */
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 12
#define PKI_HAS_BULK_COPIES
#endif

#ifdef PKI_HAS_BULK_COPIES

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void barrier_begin(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t phase)
{
    uint32_t over;

    do
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(phase)
                     : "memory");
    while (over == 0);
}

__device__ __forceinline__ void bulk_load(void *to, uint64_t from, uint32_t bytes, uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

__device__ __forceinline__ void bulk_store(uint64_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_group()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until shared memory of all groups but the latest `Latest` has been read. */
template <int Latest> __device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Latest) : "memory");
}

/* Until all is written. */
__device__ __forceinline__ void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* What this thread has written or seen by ordinary accesses comes before its bulk copies, and the other way: of all memory, and
 * of shared memory alone. */
__device__ __forceinline__ void bulk_fence()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void bulk_fence_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif

} // namespace

#endif

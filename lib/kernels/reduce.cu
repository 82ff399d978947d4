/* SPDX-License-Identifier: Apache-2.0 */
/* n blocks into one in a single pass: a kernel a type. */
#include "kernels/reduce.cuh"

/* The name of a kernel is the contract with kernels.h; the body is the template's. */
#define PKI_REDUCE_KERNEL(element) \
    extern "C" __global__ void PKI_ALONE(PKI_REDUCE_THREADS) pki_reduce_##element(const __grid_constant__ pki_reduce_args args) \
    { \
        const uint64_t threads = (uint64_t)gridDim.x * PKI_REDUCE_THREADS; \
        const uint64_t me = (uint64_t)blockIdx.x * PKI_REDUCE_THREADS + threadIdx.x; \
\
        if (element::is_common && args.op == PKI_KERNEL_SUM) \
            reduce<element, common_op<element>, element::vectors>(args, me, threads); \
        else \
            reduce<element, any_op, 1>(args, me, threads); \
    }

PKI_REDUCE_KERNEL(int8)
PKI_REDUCE_KERNEL(uint8)
PKI_REDUCE_KERNEL(int32)
PKI_REDUCE_KERNEL(uint32)
PKI_REDUCE_KERNEL(int64)
PKI_REDUCE_KERNEL(uint64)
PKI_REDUCE_KERNEL(f16)
PKI_REDUCE_KERNEL(bf16)
PKI_REDUCE_KERNEL(f32)
PKI_REDUCE_KERNEL(f64)
PKI_REDUCE_KERNEL(f8e4m3)
PKI_REDUCE_KERNEL(f8e5m2)

/* SPDX-License-Identifier: Apache-2.0 */
/* A block multiplied by one element, before it is summed up. Layout: kernels.h. */
#include "kernels/scale.cuh"

extern "C" __global__ void __launch_bounds__(PKI_SCALE_THREADS) pki_scale(const __grid_constant__ pki_scale_args args)
{
    const uint64_t threads = (uint64_t)gridDim.x * PKI_SCALE_THREADS;
    const uint64_t me = (uint64_t)blockIdx.x * PKI_SCALE_THREADS + threadIdx.x;

    with_type(args.type, [&](auto element) { scale<decltype(element)>(args, me, threads); });
}

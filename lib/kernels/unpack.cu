/* SPDX-License-Identifier: Apache-2.0 */
/* Fragments of host memory to where they belong in the GPU's. Layout: kernels.h. */
#include "kernels/copy.cuh"

namespace
{

/* One of args.blocks. */
__device__ __forceinline__ void unpack(const pki_unpack_args &args, uint32_t block)
{
    const pki_unpack_fragment &fragment = args.fragments[block / args.ctas];
    share s = { (uint64_t)(block % args.ctas) * PKI_UNPACK_THREADS + threadIdx.x, (uint64_t)args.ctas * PKI_UNPACK_THREADS };

    copy_bytes(args.dst + fragment.dst_offset, args.src + fragment.src_offset, fragment.bytes, s);
}

} // namespace

extern "C" __global__ void __launch_bounds__(PKI_UNPACK_THREADS) pki_unpack(const __grid_constant__ pki_unpack_args args)
{
    for (uint32_t block = blockIdx.x; block < args.blocks; block += gridDim.x)
        unpack(args, block);
}

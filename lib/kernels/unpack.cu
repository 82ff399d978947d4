/* SPDX-License-Identifier: Apache-2.0 */
/* Fragments of host memory to where they belong in the GPU's. Layout: kernels.h. */
#include "kernels/kernels.h"

namespace
{

/* This CTA's share: from `first` on, one in `step`. */
struct share {
    uint64_t first, step;
};

template <typename Word> __device__ __forceinline__ void copy_words(uint64_t to, uint64_t from, uint64_t count, const share &s)
{
    Word *dst = (Word *)to;
    const Word *src = (const Word *)from;

    for (uint64_t first = s.first; first < count; first += PKI_UNPACK_WORDS * s.step) {
        Word word[PKI_UNPACK_WORDS];

#pragma unroll
        for (int i = 0; i < PKI_UNPACK_WORDS; i++) {
            if (first + i * s.step < count)
                word[i] = src[first + i * s.step];
        }
#pragma unroll
        for (int i = 0; i < PKI_UNPACK_WORDS; i++) {
            if (first + i * s.step < count)
                dst[first + i * s.step] = word[i];
        }
    }
}

/* The bytes in front of the first whole word of the target, the words, and the rest. */
template <typename Word> __device__ __forceinline__ void copy(uint64_t to, uint64_t from, uint64_t bytes, const share &s)
{
    uint64_t head = (0 - to) % sizeof(Word), words;

    head = head < bytes ? head : bytes;
    words = (bytes - head) / sizeof(Word);
    copy_words<uint8_t>(to, from, head, s);
    copy_words<Word>(to + head, from + head, words, s);
    head += words * sizeof(Word);
    copy_words<uint8_t>(to + head, from + head, bytes - head, s);
}

/* One of args.blocks. */
__device__ __forceinline__ void unpack(const pki_unpack_args &args, uint32_t block)
{
    const pki_unpack_fragment &fragment = args.fragments[block / args.ctas];
    uint64_t to = args.dst + fragment.dst_offset, from = args.src + fragment.src_offset, apart = to ^ from;
    share s = { (uint64_t)(block % args.ctas) * PKI_UNPACK_THREADS + threadIdx.x, (uint64_t)args.ctas * PKI_UNPACK_THREADS };

    if (apart % sizeof(uint4) == 0)
        copy<uint4>(to, from, fragment.bytes, s);
    else if (apart % sizeof(uint32_t) == 0)
        copy<uint32_t>(to, from, fragment.bytes, s);
    else
        copy<uint8_t>(to, from, fragment.bytes, s);
}

} // namespace

extern "C" __global__ void __launch_bounds__(PKI_UNPACK_THREADS) pki_unpack(const __grid_constant__ pki_unpack_args args)
{
    for (uint32_t block = blockIdx.x; block < args.blocks; block += gridDim.x)
        unpack(args, block);
}

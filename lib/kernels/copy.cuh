/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes from one place to another, by threads that share them. Loads are weak ones: who calls has seen by an acquire that the
 * source is written. */
#ifndef PKI_COPY_CUH
#define PKI_COPY_CUH

#include "kernels/kernels.h"

namespace
{

/* A thread's share: from `first` on, one in `step`. */
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
template <typename Word> __device__ __forceinline__ void copy_as(uint64_t to, uint64_t from, uint64_t bytes, const share &s)
{
    uint64_t head = (0 - to) % sizeof(Word), words;

    head = head < bytes ? head : bytes;
    words = (bytes - head) / sizeof(Word);
    copy_words<uint8_t>(to, from, head, s);
    copy_words<Word>(to + head, from + head, words, s);
    head += words * sizeof(Word);
    copy_words<uint8_t>(to + head, from + head, bytes - head, s);
}

/* In the longest words that are aligned in source and target alike. */
__device__ __forceinline__ void copy_bytes(uint64_t to, uint64_t from, uint64_t bytes, const share &s)
{
    uint64_t apart = to ^ from;

    if (apart % sizeof(uint4) == 0)
        copy_as<uint4>(to, from, bytes, s);
    else if (apart % sizeof(uint32_t) == 0)
        copy_as<uint32_t>(to, from, bytes, s);
    else
        copy_as<uint8_t>(to, from, bytes, s);
}

} // namespace

#endif

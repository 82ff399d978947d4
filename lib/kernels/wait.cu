/* SPDX-License-Identifier: Apache-2.0 */
/* A stream that waits without holding a hardware queue: one warp polls instead. */
#include "kernels/words.cuh"

namespace
{

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
            __nanosleep(PKI_WAIT_SLEEP_NS);
    }
    /* What any lane has acquired, the work behind this kernel sees: the end of a kernel orders it. */
}

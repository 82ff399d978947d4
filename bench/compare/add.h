/* SPDX-License-Identifier: Apache-2.0 */
/* The sum that an allreduce cannot do without. */
#ifndef COMPARE_ADD_H
#define COMPARE_ADD_H

#include <stddef.h>

#if defined(__x86_64__) && defined(__clang__) /* vectorizes unasked */
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#elif defined(__x86_64__)
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define VECTORS
#endif

static VECTORS void add(float *restrict to, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = a[i] + b[i];
}

static inline VECTORS void add_into_two(float *restrict to, float *restrict also, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = also[i] = a[i] + b[i];
}

#endif

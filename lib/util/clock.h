/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time, and a pause for spinning loops. */
#ifndef PKI_CLOCK_H
#define PKI_CLOCK_H

#include <stdint.h>
#include <time.h>

#define PKI_NS_PER_MS 1000000ull
#define PKI_NS_PER_S 1000000000ull
#define PKI_NO_DEADLINE UINT64_MAX

static inline uint64_t pki_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * PKI_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* The moment timeout_ms from now; 0 means never. */
static inline uint64_t pki_deadline_ns(uint64_t timeout_ms)
{
    return timeout_ms == 0 ? PKI_NO_DEADLINE : pki_now_ns() + timeout_ms * PKI_NS_PER_MS;
}

static inline void pki_cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif

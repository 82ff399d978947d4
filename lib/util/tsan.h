/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ends in one process map what they share at two addresses, so thread sanitizer cannot see that they synchronise: tell it, at an
 * address that both know. Nothing without it.
 */
#ifndef PKI_TSAN_H
#define PKI_TSAN_H

#include <stdint.h>

#if defined(__SANITIZE_THREAD__)
#define PKI_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PKI_UNDER_TSAN 1
#endif
#endif

#ifdef PKI_UNDER_TSAN
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#endif

static inline void pki_tsan_acquire(uintptr_t addr)
{
#ifdef PKI_UNDER_TSAN
    __tsan_acquire((void *)addr);
#else
    (void)addr;
#endif
}

static inline void pki_tsan_release(uintptr_t addr)
{
#ifdef PKI_UNDER_TSAN
    __tsan_release((void *)addr);
#else
    (void)addr;
#endif
}

#endif

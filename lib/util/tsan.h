/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ends in one process map what they share at two addresses, so thread sanitizer cannot see that they synchronise: tell it, by
 * a number that both know (the address in the owner's mapping). Only a number: the owner may unmap while the other end still
 * sends, and the sanitizer crashes when it is told of an address that is being unmapped. So the number picks a mark that always
 * lives; two numbers on one mark order a little more than the program does. Nothing without the sanitizer.
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
void *pki_tsan_mark(uintptr_t number);
#endif

static inline void pki_tsan_acquire(uintptr_t number)
{
#ifdef PKI_UNDER_TSAN
    __tsan_acquire(pki_tsan_mark(number));
#else
    (void)number;
#endif
}

static inline void pki_tsan_release(uintptr_t number)
{
#ifdef PKI_UNDER_TSAN
    __tsan_release(pki_tsan_mark(number));
#else
    (void)number;
#endif
}

#endif

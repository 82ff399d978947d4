/* SPDX-License-Identifier: Apache-2.0 */
#include "util/tsan.h"

#ifdef PKI_UNDER_TSAN
#define MARK_BITS 16

void *pki_tsan_mark(uintptr_t number)
{
    static uint64_t marks[1 << MARK_BITS];

    /* Fibonacci hashing (Knuth, TAOCP 3, 6.4): cells of one inbox fall on marks of their own. */
    return &marks[((uint64_t)number * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - MARK_BITS)];
}
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long copies and fills, in pieces. Thread sanitizer begins to count again when its clocks are used up (clang 14: some 4 million releases, a few times a
 * minute here). A thread learns of it when it synchronises; what it writes until then carries a time of before, and whoever touches that looks like a
 * racer of somebody forgotten: not reported, but every one of the kernels' cells then took a millisecond, and a collective minutes. So a thread
 * synchronises, with nobody, after each piece.
 */
#include "fakecuda.h"
#include "util/tsan.h"

#include <string.h>

#define PIECE_BYTES ((size_t)16 << 10)

static size_t piece_of(size_t left)
{
#ifdef PKI_UNDER_TSAN
    static _Thread_local char nobody;

    __tsan_release(&nobody);
    return left < PIECE_BYTES ? left : PIECE_BYTES;
#else
    return left;
#endif
}

void fc_bytes_copy(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;

    if ((uintptr_t)to - (uintptr_t)from < bytes) { /* it begins inside of what it copies */
        memmove(to, from, bytes);
        return;
    }
    for (size_t at = 0, piece; at < bytes; at += piece) {
        piece = piece_of(bytes - at);
        memmove(to + at, from + at, piece);
    }
}

void fc_bytes_set(void *dst, unsigned char value, size_t bytes)
{
    char *to = dst;

    for (size_t at = 0, piece; at < bytes; at += piece) {
        piece = piece_of(bytes - at);
        memset(to + at, value, piece);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* memcpy for bytes that other cores have written or will read, and where libc's does badly. */
#ifndef PKI_COPY_H
#define PKI_COPY_H

#include <stddef.h>
#include <string.h>

/* As memcpy. */
void pki_copy(void *restrict dst, const void *restrict src, size_t bytes);
/* Into memory that a core far away will read next and has read before, by streaming stores; dst is aligned to 64. */
void pki_copy_out(void *restrict dst, const void *restrict src, size_t bytes);

/* So much that it would only push everything else out of the caches: around them. */
void pki_copy_around(void *restrict dst, const void *restrict src, size_t bytes);

/* Mostly a few bytes: without a call up to 64, by two pieces that may overlap. */
static inline void pki_copy_short(void *dst, const void *src, size_t bytes)
{
    unsigned char *d = dst;
    const unsigned char *s = src;

    if (bytes > 64) {
        pki_copy(dst, src, bytes);
    } else if (bytes > 16) {
        if (bytes > 32) {
            memcpy(d + 16, s + 16, 16);
            memcpy(d + bytes - 32, s + bytes - 32, 16);
        }
        memcpy(d, s, 16);
        memcpy(d + bytes - 16, s + bytes - 16, 16);
    } else if (bytes >= 8) {
        memcpy(d, s, 8);
        memcpy(d + bytes - 8, s + bytes - 8, 8);
    } else if (bytes >= 4) {
        memcpy(d, s, 4);
        memcpy(d + bytes - 4, s + bytes - 4, 4);
    } else {
        for (size_t i = 0; i < bytes; i++)
            d[i] = s[i];
    }
}

#endif

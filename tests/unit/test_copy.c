/* SPDX-License-Identifier: Apache-2.0 */
/* Copies: every byte and no other, at all alignments and around the lengths where the way changes. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "util/copy.h"

#define GUARD 64u
#define MOST ((size_t)600 << 10)
#define LINE 64u
#define PAGE 4096u

typedef void copier(void *restrict dst, const void *restrict src, size_t bytes);

static unsigned char *sources, *targets;

static void set_up(void)
{
    uint32_t random = 1;

    sources = aligned_alloc(PAGE, MOST + PAGE);
    targets = aligned_alloc(PAGE, MOST + 3 * PAGE);
    cr_assert(sources != NULL && targets != NULL);
    for (size_t i = 0; i < MOST + PAGE; i++)
        sources[i] = (unsigned char)((random = random * 1664525u + 1013904223u) >> 24);
}

static void tear_down(void)
{
    free(sources);
    free(targets);
}

static void try(copier *copy, const char *name, size_t dst_at, size_t src_at, size_t bytes)
{
    unsigned char *dst = targets + PAGE + dst_at;
    size_t untouched = 0;

    memset(dst - GUARD, 0xa5, bytes + 2 * GUARD);
    copy(dst, sources + src_at, bytes);
    for (size_t i = 0; i < GUARD; i++)
        untouched += (dst[i - GUARD] == 0xa5) + (dst[bytes + i] == 0xa5);
    cr_assert(memcmp(dst, sources + src_at, bytes) == 0 && untouched == 2 * (size_t)GUARD, "%s of %zu bytes, %zu to %zu", name,
              bytes, src_at, dst_at);
}

static void try_all(copier *copy, const char *name, size_t dst_step)
{
    static const size_t around[] = { 0, 64, 2048, 4096, 8192, (size_t)512 << 10 };

    for (size_t k = 0; k < sizeof around / sizeof around[0]; k++)
        for (size_t bytes = around[k] > 3 ? around[k] - 3 : 0; bytes <= around[k] + 66; bytes += bytes % 7 + 1)
            for (size_t at = 0; at < LINE; at += dst_step)
                try(copy, name, at, (at * 5 + 1) % LINE, bytes);
}

Test(copy, whole, .init = set_up, .fini = tear_down)
{
    try_all(pki_copy, "pki_copy", 13);
}

/* Where it is not libc's: 1 to 63 bytes past the source within a page. */
Test(copy, close_behind, .init = set_up, .fini = tear_down)
{
    for (size_t past = 0; past <= LINE; past++)
        for (size_t src_at = 0; src_at < 70; src_at += 23)
            for (size_t bytes = 2040; bytes < 2130; bytes += 11)
                try(pki_copy, "pki_copy", src_at + past, src_at, bytes);
}

Test(copy, out, .init = set_up, .fini = tear_down)
{
    try_all(pki_copy_out, "pki_copy_out", LINE);
}

Test(copy, around_the_caches, .init = set_up, .fini = tear_down)
{
    try_all(pki_copy_around, "pki_copy_around", 13);
}

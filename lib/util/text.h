/* SPDX-License-Identifier: Apache-2.0 */
/* Text that grows in a caller's buffer, is cut where that ends, and knows how long it would have been. */
#ifndef PKI_TEXT_H
#define PKI_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "util/log.h"

struct pki_text {
    char *start;
    size_t capacity; /* with the final null; 0: nothing is written */
    size_t length;   /* of the whole text, without the null */
};

static inline void pki_text_add(struct pki_text *text, const char *fmt, ...) PKI_PRINTF(2, 3);

static inline void pki_text_add(struct pki_text *text, const char *fmt, ...)
{
    size_t left = text->length < text->capacity ? text->capacity - text->length : 0;
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(left > 0 ? text->start + text->length : NULL, left, fmt, args);
    va_end(args);
    text->length += n > 0 ? (size_t)n : 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of element types, for floors that may not call the public API. */
#ifndef PKI_DTYPE_H
#define PKI_DTYPE_H

#include <stddef.h>

#include "pickle/base.h"

/* Bytes of one element; 0 when `dtype` is not a type. */
static inline size_t pki_dtype_bytes(pk_dtype_t dtype)
{
    static const unsigned char bytes[PK_DTYPE_COUNT] = { 1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1 };

    return (unsigned)dtype < PK_DTYPE_COUNT ? bytes[dtype] : 0;
}

#endif

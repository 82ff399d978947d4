/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers on the wire: little endian, at any alignment. */
#ifndef PKI_BYTES_H
#define PKI_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline void pki_put_u16(unsigned char *out, uint16_t v)
{
    out[0] = (unsigned char)v;
    out[1] = (unsigned char)(v >> 8);
}

static inline void pki_put_u32(unsigned char *out, uint32_t v)
{
    pki_put_u16(out, (uint16_t)v);
    pki_put_u16(out + 2, (uint16_t)(v >> 16));
}

static inline void pki_put_u64(unsigned char *out, uint64_t v)
{
    pki_put_u32(out, (uint32_t)v);
    pki_put_u32(out + 4, (uint32_t)(v >> 32));
}

static inline uint16_t pki_get_u16(const unsigned char *in)
{
    return (uint16_t)(in[0] | in[1] << 8);
}

static inline uint32_t pki_get_u32(const unsigned char *in)
{
    return pki_get_u16(in) | (uint32_t)pki_get_u16(in + 2) << 16;
}

static inline uint64_t pki_get_u64(const unsigned char *in)
{
    return pki_get_u32(in) | (uint64_t)pki_get_u32(in + 4) << 32;
}

/* What is kept free on the wire is zero, so that it can mean something one day. */
static inline bool pki_all_zero(const unsigned char *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (in[i] != 0)
            return false;
    return true;
}

#endif

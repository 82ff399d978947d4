/* SPDX-License-Identifier: Apache-2.0 */
/* Counting round the ring of ranks, or of their blocks. */
#ifndef PKI_RING_H
#define PKI_RING_H

/* What lies `hops` after and before `from`; 0 <= hops <= size. */
static inline int pki_after(int from, int hops, int size)
{
    return (from + hops) % size;
}

static inline int pki_before(int from, int hops, int size)
{
    return (from + size - hops) % size;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element by element sum, product, minimum and maximum of two arrays of one C type, for one instruction set. A template:
 * reduce_isa.h includes it once a type, having defined
 *
 *   TYPE      its name, for the names of functions
 *   ELEMENT   the C type
 *   WRAPPING  the unsigned type of the same width where it is an integer, so that overflow is defined; else ELEMENT
 */
#define NAME(f) EXPAND(f, TYPE, ISA)

typedef ELEMENT NAME(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef WRAPPING NAME(wrapping) __attribute__((vector_size(VECTOR_BYTES)));

/* `op` is a constant wherever this is used, so that no switch is left in the loops. Vectors are written out because a loop over
 * elements becomes vector code only where the compiler sees that dst is neither a nor b. */
PKI_INLINE void NAME(combine)(pk_op_t op, NAME(vector) * a, const NAME(vector) * b)
{
    const NAME(vector) same = *a; /* NaN, which differs from itself, wins over numbers */
    const __typeof__(*a < *b) first = (op == PK_MIN ? *a < *b : *a > *b) | (*a != same);
    const NAME(wrapping) x = (NAME(wrapping))(*a), y = (NAME(wrapping))(*b);

    if (op == PK_SUM)
        *a = (NAME(vector))(x + y);
    else if (op == PK_PROD)
        *a = (NAME(vector))(x * y);
    else
        *a = (NAME(vector))(((__typeof__(first))x & first) | ((__typeof__(first))y & ~first));
}

PKI_INLINE void NAME(loop)(pk_op_t op, void *dst, const void *a, const void *b, size_t count)
{
    size_t bytes = count * sizeof(ELEMENT), at = 0;

    for (; at + VECTOR_BYTES <= bytes; at += VECTOR_BYTES) {
        NAME(vector) x, y;

        memcpy(&x, (const char *)a + at, sizeof x);
        memcpy(&y, (const char *)b + at, sizeof y);
        NAME(combine)(op, &x, &y);
        memcpy((char *)dst + at, &x, sizeof x);
    }
    if (at < bytes) {
        NAME(vector) x = { 0 }, y = { 0 };

        memcpy(&x, (const char *)a + at, bytes - at);
        memcpy(&y, (const char *)b + at, bytes - at);
        NAME(combine)(op, &x, &y);
        memcpy((char *)dst + at, &x, bytes - at);
    }
}

static void NAME(sum)(void *dst, const void *a, const void *b, size_t count)
{
    NAME(loop)(PK_SUM, dst, a, b, count);
}

static void NAME(prod)(void *dst, const void *a, const void *b, size_t count)
{
    NAME(loop)(PK_PROD, dst, a, b, count);
}

static void NAME(min)(void *dst, const void *a, const void *b, size_t count)
{
    NAME(loop)(PK_MIN, dst, a, b, count);
}

static void NAME(max)(void *dst, const void *a, const void *b, size_t count)
{
    NAME(loop)(PK_MAX, dst, a, b, count);
}

#undef NAME
#undef TYPE
#undef ELEMENT
#undef WRAPPING

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions on the GPU against the host's, bit for bit: 12 types, 5 operations, whatever the number of blocks, length and alignment.
 * Where the host has NaN any NaN will do. Exit code 1 when a check failed, 77 without a GPU.
 */
#include "device_bed.h"

#include "util/dtype.h"

#define TYPES PK_DTYPE_COUNT

static bool is_software; /* the driver */

static bool is_nan(const uint8_t *at, pk_dtype_t dtype)
{
    uint64_t bits = 0;

    memcpy(&bits, at, pki_dtype_bytes(dtype));
    switch (dtype) {
    case PK_F64:
        return (bits & INT64_MAX) > 0x7ff0000000000000u;
    case PK_F32:
        return (bits & 0x7fffffff) > 0x7f800000;
    case PK_F16:
        return (bits & 0x7fff) > 0x7c00;
    case PK_BF16:
        return (bits & 0x7fff) > 0x7f80;
    case PK_F8E4M3:
        return (bits & 0x7f) == 0x7f;
    case PK_F8E5M2:
        return (bits & 0x7f) > 0x7c;
    default:
        return false;
    }
}

/* Any bits at all in one element of eight, infinities and NaN among them; else values of like size, whose sums round. */
static void make_input(uint8_t *out, size_t count, pk_dtype_t dtype, uint32_t seed)
{
    size_t size = pki_dtype_bytes(dtype);

    for (size_t i = 0; i < count; i++) {
        uint64_t bits = (uint64_t)random_next(&seed) << 40 ^ (uint64_t)random_next(&seed) << 20 ^ random_next(&seed);
        float value = ((float)(random_next(&seed) % 20001) - 10000.0f) / 1024.0f;
        double wide = (double)value / 3;

        if (random_next(&seed) % 8 != 0 && (dtype == PK_F32 || dtype == PK_BF16))
            memcpy(&bits, dtype == PK_F32 ? (char *)&value : (char *)&value + 2, size);
        else if (random_next(&seed) % 8 != 0 && dtype == PK_F64)
            memcpy(&bits, &wide, size);
        else if (random_next(&seed) % 8 != 0 && dtype == PK_F16)
            bits = (bits & 0x83ff) | ((bits >> 20 & 15) + 7) << 10; /* exponents 7 to 22 of 31 */
        memcpy(out + size * i, &bits, size);
    }
}

static bool same(const uint8_t *want, const uint8_t *got, size_t count, pk_dtype_t dtype)
{
    size_t size = pki_dtype_bytes(dtype);

    for (size_t i = 0; i < count; i++)
        if (memcmp(want + i * size, got + i * size, size) != 0 &&
            !(is_nan(want + i * size, dtype) && is_nan(got + i * size, dtype)))
            return false;
    return true;
}

struct blocks {
    int n;
    uint8_t *host[PKI_REDUCE_SOURCES], *dev[PKI_REDUCE_SOURCES];
    const void *host_srcs[PKI_REDUCE_SOURCES], *dev_srcs[PKI_REDUCE_SOURCES];
};

static void blocks_open(struct blocks *b, int n, size_t count, pk_dtype_t dtype, size_t offset)
{
    size_t size = pki_dtype_bytes(dtype), room = count * size + 64;

    b->n = n;
    for (int i = 0; i < n; i++) {
        b->host[i] = malloc(room);
        b->dev[i] = device_alloc(room);
        make_input(b->host[i], count, dtype, (uint32_t)(i * 7919) + (uint32_t)count);
        b->host_srcs[i] = b->host[i];
        b->dev_srcs[i] = b->dev[i] + offset * size;
        CHECK(upload(b->dev[i] + offset * size, b->host[i], count * size));
    }
}

static void blocks_close(struct blocks *b)
{
    for (int i = 0; i < b->n; i++) {
        free(b->host[i]);
        ops->free(device, b->dev[i]);
    }
}

static bool reduce_case(pk_dtype_t dtype, pk_op_t op, int n, size_t count, size_t offset, bool in_place)
{
    size_t size = pki_dtype_bytes(dtype), room = count * size + 64;
    uint8_t *want = calloc(1, room), *got = calloc(1, room), *own = device_alloc(room), *dst;
    struct blocks b;
    bool ok;

    blocks_open(&b, n, count, dtype, offset);
    dst = (in_place ? b.dev[n - 1] : own) + offset * size;
    ok = pki_reduce_host(want, b.host_srcs, n, count, dtype, op) == PK_OK;
    ok = ok && ops->reduce(&queue, dst, b.dev_srcs, n, count, dtype, op) == PK_OK && drained(&queue);
    ok = ok && download(got, dst, count * size) && same(want, got, count, dtype);
    blocks_close(&b);
    ops->free(device, own);
    free(want);
    free(got);
    return ok;
}

/* A processor adds up what a GPU would: of the longest sums of more than two blocks a part. */
static bool is_left_out(pk_dtype_t dtype, unsigned op, int n, size_t count)
{
    return is_software && n > 2 && count > 1023 && ((unsigned)dtype + op + (unsigned)n) % 4 != 0;
}

static void check_type(pk_dtype_t dtype)
{
    static const size_t counts[] = { 1, 3, 1023, 65536 + 5 };
    static const int blocks[] = { 2, 3, 16 };

    for (int c = 0; c < 4; c++)
        for (int b = 0; b < 3; b++)
            for (unsigned o = 0; o < PK_OP_COUNT; o++) {
                pk_op_t op = o == PK_AVG ? PKI_SUM_DIVIDED((unsigned)blocks[b]) : o;
                bool ok =
                    is_left_out(dtype, o, blocks[b], counts[c]) || (reduce_case(dtype, op, blocks[b], counts[c], 0, false) &&
                                                                    reduce_case(dtype, op, blocks[b], counts[c], 1, true));

                if (!CHECK(ok))
                    printf("     (%s, reduction %u, %d blocks of %zu)\n", pk_dtype_name(dtype), o, blocks[b], counts[c]);
            }
}

static void check_types(void)
{
    for (int t = 0; t < TYPES; t++) {
        CHECK(ops->reduces(device, (pk_dtype_t)t, PK_AVG));
        check_type((pk_dtype_t)t);
    }
}

static void reduce_speed(pk_dtype_t dtype)
{
    size_t bytes = 64 * MIB;
    uint8_t *a = device_alloc(bytes), *b = device_alloc(bytes);
    const void *srcs[2] = { a, b };
    uint64_t begin;

    ops->reduce(&queue, a, srcs, 2, bytes / pki_dtype_bytes(dtype), dtype, PK_SUM);
    drained(&queue);
    begin = pki_now_ns();
    for (int i = 0; i < 8; i++)
        ops->reduce(&queue, a, srcs, 2, bytes / pki_dtype_bytes(dtype), dtype, PK_SUM);
    drained(&queue);
    printf("INFO reduce of 2 x 64 MiB %s, %d CTAs: %.0f GB/s read and written\n", pk_dtype_name(dtype), device->max_ctas,
           8.0 * 3 * (double)bytes / (double)(pki_now_ns() - begin));
    ops->free(device, a);
    ops->free(device, b);
}

/* Figures of a real GPU only; CTAs as a limit would set them. */
static void check_speed(void)
{
    static const int ctas[] = { 0, 16, 8 };

    for (int c = 0; c < 3 && !is_software; c++) {
        device->max_ctas = ctas[c];
        for (int t = 0; t < TYPES; t++)
            reduce_speed((pk_dtype_t)t);
    }
    device->max_ctas = 0;
}

/* The factor by value, and in the GPU's memory. */
static bool scale_case(pk_dtype_t dtype, size_t count, size_t offset, bool by_address)
{
    size_t size = pki_dtype_bytes(dtype), room = count * size + 64;
    uint8_t *want = calloc(1, room), *got = calloc(1, room), *own = device_alloc(room), *factor_at = device_alloc(64);
    struct pki_factor factor = { .at = NULL };
    struct blocks b;
    bool ok;

    blocks_open(&b, 1, count, dtype, offset);
    make_input((uint8_t *)&factor.value, 1, dtype, (uint32_t)count + 4);
    ok = pki_scale_host(want, b.host_srcs[0], count, dtype, &factor) == PK_OK;
    ok = ok && upload(factor_at, &factor.value, size);
    if (by_address)
        factor = (struct pki_factor){ .at = factor_at, .value = UINT64_MAX };
    ok = ok && ops->scale(&queue, own + offset * size, b.dev_srcs[0], count, dtype, &factor) == PK_OK && drained(&queue);
    ok = ok && download(got, own + offset * size, count * size) && same(want, got, count, dtype);
    blocks_close(&b);
    ops->free(device, own);
    ops->free(device, factor_at);
    free(want);
    free(got);
    return ok;
}

static void check_scale(void)
{
    static const size_t counts[] = { 1, 3, 1023, 65536 + 5, 1 << 20 };

    for (int t = 0; t < TYPES; t++)
        for (int c = 0; c < 5; c++)
            if (!CHECK(scale_case((pk_dtype_t)t, counts[c], 0, c % 2 == 0) &&
                       scale_case((pk_dtype_t)t, counts[c], 1, c % 2 != 0)))
                printf("     (%s, %zu elements)\n", pk_dtype_name((pk_dtype_t)t), counts[c]);
}

static void check_refusals(void)
{
    const void *srcs[2] = { (void *)(uintptr_t)0x1001, (void *)(uintptr_t)0x1001 };

    CHECK(ops->reduce(&queue, (void *)(uintptr_t)0x1001, srcs, 2, 1, PK_F32, PK_SUM) == PK_ERR_ARG);
    CHECK(ops->reduce(&queue, (void *)(uintptr_t)0x1001, srcs, PKI_REDUCE_SOURCES + 1, 1, PK_INT8, PK_SUM) == PK_ERR_ARG);
    CHECK(ops->reduce(&queue, (void *)(uintptr_t)0x1001, srcs, 2, 1, PK_INT8, PK_AVG) != PK_OK); /* by how much? */
}

static const struct bed_check checks[] = {
    { "types", check_types }, { "scale", check_scale }, { "refusals", check_refusals }, { "speed", check_speed }
};

int main(int argc, char **argv)
{
    struct pki_device_info info;
    int result = bed_open();

    if (result != 0)
        return result;
    ops->info(device, &info);
    is_software = strncmp(info.name, "Fake", 4) == 0;
    result = bed_run(checks, sizeof checks / sizeof checks[0], argc, argv);
    bed_close();
    return result;
}

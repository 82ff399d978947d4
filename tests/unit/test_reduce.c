/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's reductions against references that share no code with them, on plain instructions and on the fastest. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "kernels/float_bits.h"
#include "device/reduce_host.h"
#include "float_modes.h"
#include "util/dtype.h"

/* ---- Conversions: every value of the small floats, and every border between two of them ---- */

struct small_float {
    const char *name;
    unsigned e, m;
    bool infinity;
    float (*load)(uint32_t bits);
    uint32_t (*store)(float value);
};

static float load_f16(uint32_t bits)
{
    return pki_f16_to_float((uint16_t)bits);
}

static float load_bf16(uint32_t bits)
{
    return pki_bf16_to_float((uint16_t)bits);
}

static float load_e4m3(uint32_t bits)
{
    return pki_f8e4m3_to_float((uint8_t)bits);
}

static float load_e5m2(uint32_t bits)
{
    return pki_f8e5m2_to_float((uint8_t)bits);
}

static uint32_t store_f16(float value)
{
    return pki_float_to_f16(value);
}

static uint32_t store_bf16(float value)
{
    return pki_float_to_bf16(value);
}

static uint32_t store_e4m3(float value)
{
    return pki_float_to_f8e4m3(value);
}

static uint32_t store_e5m2(float value)
{
    return pki_float_to_f8e5m2(value);
}

static const struct small_float formats[] = {
    { "f16", 5, 10, true, load_f16, store_f16 },
    { "bf16", 8, 7, true, load_bf16, store_bf16 },
    { "f8e4m3", 4, 3, false, load_e4m3, store_e4m3 },
    { "f8e5m2", 5, 2, true, load_e5m2, store_e5m2 },
};

#define FORMATS (sizeof formats / sizeof *formats)

/* The value of `bits` by the definition of such a format. */
static double value_of(const struct small_float *f, uint32_t bits)
{
    int bias = (1 << (f->e - 1)) - 1, top = (1 << f->e) - 1;
    int exponent = (int)(bits >> f->m) & top;
    double mantissa = bits & ((1u << f->m) - 1), sign = bits >> (f->e + f->m) & 1 ? -1 : 1;

    if (f->infinity && exponent == top)
        return mantissa == 0 ? sign * INFINITY : NAN;
    if (!f->infinity && (bits & ((1u << (f->e + f->m)) - 1)) == (1u << (f->e + f->m)) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - (int)f->m);
    return sign * ldexp(1 + ldexp(mantissa, -(int)f->m), exponent - bias);
}

Test(convert, every_value_there_and_back)
{
    for (size_t k = 0; k < FORMATS; k++) {
        const struct small_float *f = &formats[k];

        for (uint32_t bits = 0; bits < 1u << (1 + f->e + f->m); bits++) {
            double expected = value_of(f, bits);
            float got = f->load(bits);

            if (isnan(expected)) {
                cr_assert(isnan(got), "%s %x", f->name, bits);
                cr_assert(isnan(value_of(f, f->store(got))), "%s %x", f->name, bits);
                cr_assert_eq(f->store(got) >> (f->e + f->m), bits >> (f->e + f->m), "%s %x: sign of NaN", f->name, bits);
            } else {
                cr_assert(got == (float)expected && !signbit(got) == !signbit(expected), "%s %x: %g", f->name, bits, (double)got);
                cr_assert_eq(f->store(got), bits, "%s %x came back as %x", f->name, bits, f->store(got));
            }
        }
    }
}

/* Above each finite value: the middle to the next one goes to the even of the two, a little less and more to the nearer. */
Test(convert, every_border_rounds_to_nearest_even)
{
    for (size_t k = 0; k < FORMATS; k++) {
        const struct small_float *f = &formats[k];
        uint32_t sign = 1u << (f->e + f->m);
        /* The value behind the largest finite one: infinity, or where there is none NaN. */
        uint32_t end = f->infinity ? ((1u << f->e) - 1) << f->m : sign - 1;

        for (uint32_t bits = 0; bits < end; bits++) {
            double low = value_of(f, bits);
            double step = bits + 1 < end ? value_of(f, bits + 1) - low : low - value_of(f, bits - 1);
            float middle = (float)(low + step / 2);
            uint32_t even = bits & 1 ? bits + 1 : bits;

            cr_assert_eq((double)middle, low + step / 2, "%s: the middle above %x fits f32", f->name, bits);
            cr_assert_eq(f->store(middle), even, "%s: middle above %x became %x", f->name, bits, f->store(middle));
            cr_assert_eq(f->store(-middle), even | sign, "%s: middle below -%x", f->name, bits);
            cr_assert_eq(f->store(nextafterf(middle, 0)), bits, "%s: under the middle above %x", f->name, bits);
            cr_assert_eq(f->store(nextafterf(middle, INFINITY)), bits + 1, "%s: over the middle above %x", f->name, bits);
        }
        cr_expect_eq(f->store(INFINITY), end, "%s", f->name);
        cr_expect_eq(f->store(-INFINITY), end | sign, "%s", f->name);
        cr_expect_eq(f->store(3.4e38f), end, "%s: 3.4e38", f->name);
        cr_expect_eq(f->store(1e-45f), 0, "%s: the least f32", f->name);
    }
}

/* ---- Reductions ---- */

#define COUNT_MAX 1300

static uint64_t random_state = 7;

static uint64_t next_random(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 16;
}

static bool is_float(pk_dtype_t dtype)
{
    return dtype >= PK_F16;
}

static const struct small_float *format_of(pk_dtype_t dtype)
{
    static const int of[PK_DTYPE_COUNT] = { [PK_F16] = 1, [PK_BF16] = 2, [PK_F8E4M3] = 3, [PK_F8E5M2] = 4 };

    return of[dtype] == 0 ? NULL : &formats[of[dtype] - 1];
}

static uint64_t read_bits(pk_dtype_t dtype, const void *array, size_t i)
{
    uint64_t bits = 0;
    size_t bytes = pki_dtype_bytes(dtype);

    memcpy(&bits, (const char *)array + i * bytes, bytes); /* little endian, as all machines this runs on */
    return bits;
}

static double read_float(pk_dtype_t dtype, const void *array, size_t i)
{
    uint64_t bits = read_bits(dtype, array, i);
    float f;
    double d;

    if (format_of(dtype) != NULL)
        return value_of(format_of(dtype), (uint32_t)bits);
    memcpy(&f, &bits, sizeof f);
    memcpy(&d, &bits, sizeof d);
    return dtype == PK_F32 ? f : d;
}

static double combine_floats(pk_dtype_t dtype, pk_op_t op, double a, double b)
{
    double r;

    if (op == PK_MIN || op == PK_MAX) {
        if (isnan(a) || isnan(b))
            return NAN;
        return (op == PK_MIN ? a < b : a > b) ? a : b;
    }
    r = op == PK_SUM ? a + b : a * b; /* in double sums and products of two f32 are exact enough to round but once */
    return dtype == PK_F64 ? r : (float)r;
}

static bool is_signed(pk_dtype_t dtype)
{
    return dtype == PK_INT8 || dtype == PK_INT32 || dtype == PK_INT64;
}

static uint64_t combine_integers(pk_dtype_t dtype, pk_op_t op, uint64_t a, uint64_t b)
{
    unsigned unused = 64 - 8 * (unsigned)pki_dtype_bytes(dtype);
    int64_t x = (int64_t)(a << unused) >> unused, y = (int64_t)(b << unused) >> unused;
    bool less = is_signed(dtype) ? x < y : a < b;

    if (op == PK_SUM)
        return (a + b) << unused >> unused;
    if (op == PK_PROD)
        return (a * b) << unused >> unused;
    return less == (op == PK_MIN) ? a : b;
}

static void check_element(pk_dtype_t dtype, pk_op_t op, const void *const *srcs, int n, const void *dst, size_t i)
{
    if (!is_float(dtype)) {
        uint64_t expected = read_bits(dtype, srcs[0], i);

        for (int k = 1; k < n; k++)
            expected = combine_integers(dtype, op, expected, read_bits(dtype, srcs[k], i));
        cr_assert_eq(read_bits(dtype, dst, i), expected, "%d op %d n %d element %zu", (int)dtype, (int)op, n, i);
        return;
    }
    double expected = read_float(dtype, srcs[0], i), got = read_float(dtype, dst, i);

    for (int k = 1; k < n; k++)
        expected = combine_floats(dtype, op, expected, read_float(dtype, srcs[k], i));
    if (format_of(dtype) != NULL) /* rounding is proved above, border by border */
        expected = value_of(format_of(dtype), format_of(dtype)->store((float)expected));
    cr_assert(isnan(expected) ? isnan(got) : got == expected, "%d op %d n %d element %zu: %g, expected %g", (int)dtype, (int)op,
              n, i, got, expected);
}

/* Any bits, so NaN, infinities and subnormals come too; every other float is an ordinary number. */
static void fill(pk_dtype_t dtype, void *array, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = next_random() ^ next_random() << 32;
        double number = (double)(int64_t)(next_random() % 4001) / 16 - 125;
        float f = (float)number;

        if (is_float(dtype) && i % 2 == 1) {
            if (format_of(dtype) != NULL)
                bits = format_of(dtype)->store(f);
            else if (dtype == PK_F32)
                memcpy(&bits, &f, sizeof f);
            else
                memcpy(&bits, &number, sizeof number);
        }
        memcpy((char *)array + i * pki_dtype_bytes(dtype), &bits, pki_dtype_bytes(dtype));
    }
}

/* Sources at odd places; `target` is the source that dst is, or -1. */
static void check_reduce(pk_dtype_t dtype, pk_op_t op, int n, size_t count, int target, bool plain)
{
    static unsigned char memory[PKI_REDUCE_SOURCES + 1][(COUNT_MAX + 8) * 8], kept[PKI_REDUCE_SOURCES][(COUNT_MAX + 8) * 8];
    const void *srcs[PKI_REDUCE_SOURCES], *originals[PKI_REDUCE_SOURCES];
    size_t bytes = count * pki_dtype_bytes(dtype);
    unsigned char *dst;

    for (int k = 0; k < n; k++) {
        unsigned char *src = memory[k] + (size_t)(k % 5) * pki_dtype_bytes(dtype);

        fill(dtype, src, count);
        memcpy(kept[k], src, bytes);
        srcs[k] = src;
        originals[k] = kept[k];
    }
    dst = target < 0 ? memory[n] + 3 * pki_dtype_bytes(dtype) : memory[target] + (size_t)(target % 5) * pki_dtype_bytes(dtype);
    dst[bytes] = 0xa5;
    cr_assert_eq(pki_reduce_host_isa(dst, srcs, n, count, dtype, op, plain), PK_OK);
    cr_assert_eq(dst[bytes], 0xa5, "wrote behind the end");
    for (size_t i = 0; i < count; i++)
        check_element(dtype, op, originals, n, dst, i);
    for (int k = 0; k < n; k++)
        cr_assert(k == target || memcmp(srcs[k], kept[k], bytes) == 0, "source %d was changed", k);
}

Test(reduce, all_types_and_operations)
{
    static const size_t counts[] = { 0, 1, 2, 15, 16, 17, 33, 64, 511, 512, 513, COUNT_MAX };

    for (int dtype = 0; dtype < PK_DTYPE_COUNT; dtype++) {
        for (pk_op_t op = PK_SUM; op <= PK_MAX; op++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                int n = 2 + (int)(next_random() % (PKI_REDUCE_SOURCES - 1));

                for (int plain = 0; plain < 2; plain++) {
                    check_reduce((pk_dtype_t)dtype, op, 2, counts[c], (int)(c % 3) - 1, plain);
                    check_reduce((pk_dtype_t)dtype, op, 3, counts[c], (int)(c % 4) - 1, plain);
                    check_reduce((pk_dtype_t)dtype, op, n, counts[c], (int)(c % (size_t)n) - 1, plain);
                }
            }
        }
    }
}

/* One rounding: 2048 + 1 + 1 is 2050 in f16 although 2048 + 1 is not representable; in bf16 the same at 256. */
Test(reduce, small_floats_round_once)
{
    uint16_t f16[3] = { pki_float_to_f16(2048), pki_float_to_f16(1), pki_float_to_f16(1) };
    uint16_t bf16[3] = { pki_float_to_bf16(256), pki_float_to_bf16(1), pki_float_to_bf16(1) };
    const void *f16s[3] = { &f16[0], &f16[1], &f16[2] }, *bf16s[3] = { &bf16[0], &bf16[1], &bf16[2] };
    uint16_t result;

    cr_assert_eq(pki_reduce_host(&result, f16s, 3, 1, PK_F16, PK_SUM), PK_OK);
    cr_expect_eq(pki_f16_to_float(result), 2050);
    cr_assert_eq(pki_reduce_host(&result, bf16s, 3, 1, PK_BF16, PK_SUM), PK_OK);
    cr_expect_eq(pki_bf16_to_float(result), 258);
}

/* Every pair of bytes as f8, and every f16 and bf16 with a partner: the vector code gives the bits of the plain code. */
Test(reduce, same_bits_with_all_instructions)
{
    static uint16_t a[65536], b[65536], plain[65536], fast[65536];

    for (int round = 0; round < 8; round++) {
        for (uint32_t i = 0; i < 65536; i++) {
            a[i] = (uint16_t)i;
            b[i] = (uint16_t)(round == 0 ? 0 : next_random());
        }
        for (int dtype = 0; dtype < PK_DTYPE_COUNT; dtype++) {
            for (pk_op_t op = PK_SUM; op <= PK_MAX; op++) {
                const void *srcs[2] = { a, b };
                size_t count = sizeof a / pki_dtype_bytes((pk_dtype_t)dtype), differ = 0;

                cr_assert_eq(pki_reduce_host_isa(plain, srcs, 2, count, (pk_dtype_t)dtype, op, true), PK_OK);
                cr_assert_eq(pki_reduce_host_isa(fast, srcs, 2, count, (pk_dtype_t)dtype, op, false), PK_OK);
                for (size_t i = 0; i < count; i++) /* which NaN comes out of two is the processor's choice */
                    differ += read_bits((pk_dtype_t)dtype, plain, i) != read_bits((pk_dtype_t)dtype, fast, i) &&
                              !(is_float((pk_dtype_t)dtype) && isnan(read_float((pk_dtype_t)dtype, plain, i)) &&
                                isnan(read_float((pk_dtype_t)dtype, fast, i)));
                cr_expect_eq(differ, 0, "type %d op %d: %zu elements differ", dtype, (int)op, differ);
            }
        }
    }
}

/* Whatever the program has set in the calling thread: the bits are those of the default environment, and what it has set stays. */
static void check_modes(pk_dtype_t dtype, pk_op_t op, int n, bool plain)
{
    static unsigned char memory[4][COUNT_MAX * 8], wanted[COUNT_MAX * 8], got[COUNT_MAX * 8];
    const void *srcs[4] = { memory[0], memory[1], memory[2], memory[3] };
    const size_t bytes = COUNT_MAX * pki_dtype_bytes(dtype);

    for (int k = 0; k < n; k++)
        fill(dtype, memory[k], COUNT_MAX);
    cr_assert_eq(pki_reduce_host_isa(wanted, srcs, n, COUNT_MAX, dtype, op, plain), PK_OK);
    for (size_t mode = 1; mode < float_modes_count; mode++) {
        bool kept;

        if (!float_mode_set(mode))
            continue;
        cr_assert_eq(pki_reduce_host_isa(got, srcs, n, COUNT_MAX, dtype, op, plain), PK_OK);
        kept = float_mode_is(mode);
        cr_assert(float_mode_set(0));
        cr_expect(kept, "%s: the mode has changed", float_modes[mode]);
        cr_expect(memcmp(got, wanted, bytes) == 0, "%s: type %d op %d n %d plain %d: other bits", float_modes[mode], (int)dtype,
                  (int)op, n, plain);
    }
}

Test(reduce, same_bits_in_every_floating_point_environment)
{
    const pk_op_t ops[] = { PK_SUM, PK_PROD, PK_MIN, PK_MAX, PKI_SUM_DIVIDED(3) };

    for (int dtype = 0; dtype < PK_DTYPE_COUNT; dtype++)
        for (size_t op = 0; op < sizeof ops / sizeof *ops; op++)
            for (int n = 2; n <= 4; n++)
                for (int plain = 0; plain < 2; plain++)
                    check_modes((pk_dtype_t)dtype, ops[op], n, plain);
}

Test(reduce, refuses)
{
    float a = 1, b = 2, dst = 3;
    const void *srcs[PKI_REDUCE_SOURCES + 1] = { &a, &b };

    cr_expect_eq(pki_reduce_host(&dst, srcs, 2, 1, PK_F32, PK_AVG), PK_ERR_UNSUPPORTED);
    cr_expect_eq(pki_reduce_host(&dst, srcs, 2, 1, PK_F32, (pk_op_t)1 << 40), PK_ERR_UNSUPPORTED);
    cr_expect_eq(pki_reduce_host(&dst, srcs, 2, 1, (pk_dtype_t)PK_DTYPE_COUNT, PK_SUM), PK_ERR_ARG);
    cr_expect_eq(pki_reduce_host(&dst, srcs, 1, 1, PK_F32, PK_SUM), PK_ERR_INTERNAL);
    cr_expect_eq(pki_reduce_host(&dst, srcs, PKI_REDUCE_SOURCES + 1, 1, PK_F32, PK_SUM), PK_ERR_INTERNAL);
    cr_expect_eq(dst, 3);
}

/* ---- The host's device table ---- */

Test(host, words_write_in_order_and_never_wait)
{
    _Atomic uint32_t one = 0, two = 0;
    struct pki_device *device;
    struct pki_queue queue;
    struct pki_signal_op ops[3] = { { PKI_SIGNAL_WRITE, { &one, 5 } },
                                    { PKI_SIGNAL_WRITE, { NULL, 1 } },
                                    { PKI_SIGNAL_WAIT, { &two, 1 } } };

    cr_assert_eq(pki_device_host.open(0, &device), PK_OK);
    cr_assert_eq(device->ops->queue_open(device, &queue), PK_OK);
    cr_expect_eq(device->ops->signals(&queue, ops, 3, PKI_WAIT_VALUE), PK_ERR_UNSUPPORTED);
    cr_expect_eq(one, 0);
    cr_expect_eq(device->ops->signals(&queue, ops, 2, PKI_WAIT_VALUE), PK_OK);
    cr_expect_eq(one, 5);
    cr_expect(device->ops->idle(&queue));
    device->ops->queue_close(&queue);
    device->ops->close(device);
}

Test(host, memory)
{
    static const size_t sizes[] = { 0, 1, 100, 4096, 5000, 1 << 20 };
    struct pki_device *device;
    void *base;

    cr_assert_eq(pki_device_host.open(0, &device), PK_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct pki_queue queue = { .device = device };
        struct pki_mem mem;
        struct pki_export exported;
        unsigned char *p, byte = 9;
        void *ptr;

        cr_assert_eq(device->ops->alloc(device, sizes[i], &ptr), PK_OK);
        p = ptr;
        cr_expect_eq((uintptr_t)p % (sizes[i] < 4096 ? 64 : 4096), 0);
        for (size_t k = 0; k < sizes[i]; k++)
            cr_assert_eq(p[k], 0);
        cr_assert_eq(device->ops->classify(device, p, sizes[i], &mem), PK_OK);
        cr_expect_eq(mem.kind, PKI_MEM_HOST);
        cr_assert_eq(device->ops->export(device, &mem, &exported), PK_OK);
        cr_assert_eq(device->ops->import(device, &exported, true, &base), PK_OK);
        cr_expect_eq(base, p);
        cr_expect_eq(device->ops->import(device, &exported, false, &base), PK_ERR_UNSUPPORTED);
        if (sizes[i] > 0) {
            cr_assert_eq(device->ops->copy(&queue, p + sizes[i] - 1, &byte, 1), PK_OK);
            cr_expect_eq(p[sizes[i] - 1], 9);
        }
        device->ops->free(device, p);
    }
    cr_expect_eq(device->ops->alloc(device, SIZE_MAX - 5, &base), PK_ERR_MEMORY);
}

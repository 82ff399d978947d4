/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-ins for the library's kernels. */
#include "selftest.h"

#include <string.h>

#include "../../../../lib/kernels/kernels.h"

static void launch(CUstream stream, const char *name, unsigned blocks, unsigned threads, void *args)
{
    void *params[] = { args };

    OK(cuLaunchKernel(st_kernel(name), blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL));
}

static void reduce(const char *name, const void *const *sources, uint32_t n, uint64_t count, size_t element, void *result)
{
    struct pki_reduce_args args = { .n = n, .count = count };
    CUdeviceptr memory = st_alloc((n + 1) * 4096);
    CUstream s = st_stream();

    args.dst = memory + (uint64_t)n * 4096;
    for (uint32_t i = 0; i < n; i++) {
        args.srcs[i] = memory + (uint64_t)i * 4096;
        OK(cuMemcpyHtoD(args.srcs[i], sources[i], count * element));
    }
    OK(cuCtxSynchronize());
    launch(s, name, 2, PKI_REDUCE_THREADS, &args);
    memset(&args, 0xff, sizeof args); /* the launch has its own copy */
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH(result, memory + (uint64_t)n * 4096, count * element));
    OK(cuStreamDestroy(s));
    OK(cuMemFree(memory));
}

static void test_reduce(void)
{
    /* 1, -2, 65504, 2^-24, 2049 + 1 (a tie that rounds to 2048 + 2), infinity */
    const uint16_t h0[] = { 0x3c00, 0x3c00, 0x7bff, 0x0001, 0x6800, 0x7c00 },
                   h1[] = { 0xc000, 0x4000, 0x7bff, 0x0001, 0x3c00, 0x3c00 };
    const uint16_t want_h[] = { 0xbc00, 0x4200, 0x7c00, 0x0002, 0x6800, 0x7c00 };
    const uint16_t b0[] = { 0x3f80, 0x4380, 0x7f80 }, b1[] = { 0x3f80, 0x3f80, 0x3f80 }; /* 1, 256, infinity; plus 1 */
    const uint16_t want_b[] = { 0x4000, 0x4380, 0x7f80 };
    const float f0[] = { 1e8f, 3 }, f1[] = { -1e8f, 4 }, f2[] = { 0.5f, 5 };
    const uint32_t i0[] = { 0xffffffffu, 5 }, i1[] = { 2, 6 };
    uint16_t h[6], b[3];
    uint32_t i[2];
    float f[2];

    reduce(PKI_KERNEL_REDUCE "f16", (const void *const[]){ h0, h1 }, 2, 6, 2, h);
    CHECK(memcmp(h, want_h, sizeof h) == 0);
    reduce(PKI_KERNEL_REDUCE "bf16", (const void *const[]){ b0, b1 }, 2, 3, 2, b);
    CHECK(memcmp(b, want_b, sizeof b) == 0);
    reduce(PKI_KERNEL_REDUCE "f32", (const void *const[]){ f0, f1, f2 }, 3, 2, 4, f);
    CHECK(f[0] == 0.5f && f[1] == 12);
    reduce(PKI_KERNEL_REDUCE "int32", (const void *const[]){ i0, i1 }, 2, 2, 4, i);
    CHECK(i[0] == 1 && i[1] == 11);
}

static void test_wait_kernel(void)
{
    struct st_words words = st_words_new();
    struct pki_wait_args args;
    CUstream s = st_stream();

    memset(&args, 0, sizeof args);
    args.n = 2;
    args.words[0] = (struct pki_wait_word){ .address = st_word(&words, 0), .value = 5 };
    args.words[1] = (struct pki_wait_word){ .address = st_word(&words, 1), .value = 1, .equal = 1 };
    launch(s, PKI_KERNEL_WAIT, 1, 32, &args);
    atomic_store(&words.at[0], 6);
    atomic_store(&words.at[1], 2);
    CHECK(!st_done(s, 20) && st_stat("pending_waits") == 0);
    atomic_store(&words.at[1], 1);
    CHECK(st_done(s, 5000));
    OK(cuStreamDestroy(s));
    st_words_free(&words);
}

/* In one launch a receive stands before the send it needs. */
static void test_ll(uint32_t bytes)
{
    struct st_words words = st_words_new();
    CUdeviceptr slot = st_alloc(65536), from = st_alloc(32768), to = st_alloc(32768);
    struct pki_ll_row_args args;
    CUstream s = st_stream();
    unsigned char sent[32768], got[32768] = { 0 };

    for (uint32_t i = 0; i < sizeof sent; i++)
        sent[i] = (unsigned char)(i * 7 + (i >> 8));
    OK(cuMemcpyHtoD(from, sent, sizeof sent));
    OK(cuMemsetD8(slot, 0, 65536));
    OK(cuCtxSynchronize());
    memset(&args, 0, sizeof args);
    args.head.n = 2;
    args.head.abort_flag = st_word(&words, 0);
    args.ops[0] =
        (struct pki_ll_args_op){ .user = to, .slot = slot, .bytes = bytes, .flag = 3, .ctas = 1, .done = st_word(&words, 1) };
    args.ops[1] = (struct pki_ll_args_op){
        .user = from, .slot = slot, .bytes = bytes, .flag = 3, .ctas = 1, .first = 1, .send = 1, .done = st_word(&words, 2)
    };
    launch(s, PKI_KERNEL_LL_ROW, 2, PKI_LL_THREADS, &args);
    OK(cuStreamSynchronize(s));
    CHECK(atomic_load(&words.at[1]) == 3 && atomic_load(&words.at[2]) == 3);
    OK(cuMemcpyDtoH(got, to, sizeof got));
    CHECK(memcmp(got, sent, bytes) == 0 && (bytes == sizeof got || got[bytes] == 0xcb));
    /* Nobody sends: abort ends it, and the word stays. */
    args.head.n = 1;
    args.ops[0].flag = 4;
    launch(s, PKI_KERNEL_LL, 1, PKI_LL_THREADS, &args);
    CHECK(!st_done(s, 10));
    atomic_store(&words.at[0], 1);
    CHECK(st_done(s, 5000) && atomic_load(&words.at[1]) == 3);
    OK(cuStreamDestroy(s));
    OK(cuMemFree(slot));
    OK(cuMemFree(from));
    OK(cuMemFree(to));
    st_words_free(&words);
}

/* Two ops, the first of which opens last, at values around 2^32; then one that never opens. */
static void test_move(void)
{
    struct st_words words = st_words_new();
    CUdeviceptr memory = st_alloc(4096), arrived = st_alloc(8);
    struct pki_move_args args = { .abort_flag = st_word(&words, 0), .n = 2 };
    CUstream s = st_stream();

    for (uint32_t i = 0; i < 2; i++) {
        args.ops[i] = (struct pki_move_args_op){ .src = memory + 1024 * i,
                                                 .dst = memory + 2048 + 1024 * i,
                                                 .bytes = 4,
                                                 .start = st_word(&words, 1 + (int)i),
                                                 .done = st_word(&words, 3 + (int)i),
                                                 .arrived = arrived + 4 * i,
                                                 .start_value = 1,
                                                 .done_value = 7 + i };
        st_write(memory + 1024 * i, 100 + i);
        st_write(arrived + 4 * i, 0);
        atomic_store(&words.at[1 + i], UINT32_MAX);
    }
    launch(s, PKI_KERNEL_MOVE, 2, PKI_MOVE_THREADS, &args);
    atomic_store(&words.at[2], 1);
    for (int ms = 0; ms < 5000 && atomic_load(&words.at[4]) != 8; ms++)
        st_sleep_ms(1);
    CHECK(atomic_load(&words.at[4]) == 8 && st_read(memory + 3072) == 101);
    CHECK(!st_done(s, 10) && atomic_load(&words.at[3]) == 0);
    atomic_store(&words.at[1], 2);
    CHECK(st_done(s, 5000) && atomic_load(&words.at[3]) == 7 && st_read(memory + 2048) == 100);
    CHECK(st_read(arrived) == 0 && st_read(arrived + 4) == 0);
    args.ops[0].start_value = 3;
    args.ops[0].done_value = 9;
    args.n = 1;
    launch(s, PKI_KERNEL_MOVE, 2, PKI_MOVE_THREADS, &args);
    CHECK(!st_done(s, 10));
    atomic_store(&words.at[0], 1);
    CHECK(st_done(s, 5000) && atomic_load(&words.at[3]) == 7);
    OK(cuStreamDestroy(s));
    OK(cuMemFree(memory));
    OK(cuMemFree(arrived));
    st_words_free(&words);
}

void st_kernel_tests(void)
{
    CUfunction function;
    CUmodule module;

    OK(cuModuleLoadData(&module, "x"));
    EXPECT(cuModuleGetFunction(&function, module, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleUnload(module));
    test_reduce();
    test_wait_kernel();
    test_ll(0);
    test_ll(13);
    test_ll(32768);
    test_move();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A product of matrices in bf16 by cuBLAS, opened at run time; the numbers are those of its headers since CUDA 11. */
#include "overlap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../examples/attention_overlap/open_library.h"

#define EDGE 8192
#define LOOKED_AT 8 /* elements of the result */

enum { OP_N = 0, OP_T = 1, CUDA_BF16 = 14, COMPUTE_32F = 68, GEMM_DEFAULT = -1 };

static struct calls {
    int (*cublasCreate_v2)(void **handle);
    int (*cublasDestroy_v2)(void *handle);
    int (*cublasSetStream_v2)(void *handle, void *stream);
    int (*cublasGetVersion_v2)(void *handle, int *version);
    int (*cublasGemmEx)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int a_type,
                        int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc, int compute,
                        int algorithm);
} cublas;

#define CALL(function) \
    { \
        .name = #function, .offset = offsetof(struct calls, function) \
    }
static const struct library_call calls[] = {
    CALL(cublasCreate_v2), CALL(cublasDestroy_v2), CALL(cublasSetStream_v2), CALL(cublasGetVersion_v2), CALL(cublasGemmEx),
};

struct matmul {
    void *handle;
    void *a, *b, *c;
    char how[96];
};

/* C = A' B, so that the numbers of a sum lie side by side in both. */
static void launch(struct overlap_work *work)
{
    struct matmul *m = work->state;
    const float one = 1, zero = 0;
    int code = cublas.cublasGemmEx(m->handle, OP_T, OP_N, EDGE, EDGE, EDGE, &one, m->a, CUDA_BF16, EDGE, m->b, CUDA_BF16, EDGE,
                                   &zero, m->c, CUDA_BF16, EDGE, COMPUTE_32F, GEMM_DEFAULT);

    if (code != 0)
        overlap_fail("cublasGemmEx: code %d", code);
}

static double element(size_t row, size_t column)
{
    double sum = 0;

    for (size_t l = 0; l < EDGE; l++)
        sum += (double)overlap_bf16(1, row * EDGE + l) * (double)overlap_bf16(2, column * EDGE + l);
    return sum;
}

static uint64_t check(struct overlap_work *work)
{
    struct matmul *m = work->state;
    uint64_t wrong = 0;

    for (size_t i = 0; i < LOOKED_AT; i++) {
        size_t row = i * (EDGE - 1) / (LOOKED_AT - 1), column = EDGE - 1 - row / 2;
        double expected = element(row, column);
        float got;

        overlap_get_bf16((char *)m->c + (column * EDGE + row) * 2, 1, &got);
        wrong += !(fabs((double)got - expected) <= 0.01 * fabs(expected) + 0.05);
    }
    return wrong;
}

static void close_matmul(struct overlap_work *work)
{
    struct matmul *m = work->state;

    cublas.cublasDestroy_v2(m->handle);
    gpu_free(m->a);
    gpu_free(m->b);
    gpu_free(m->c);
    free(m);
}

static void *open_cublas(const char **why)
{
    static const char *const names[] = { "libcublas.so.13", "libcublas.so.12", "libcublas.so" };
    static char error[256], text[320];
    void *library = NULL;
    const char *missing;

    for (size_t i = 0; i < sizeof names / sizeof names[0] && library == NULL; i++)
        library = open_library(NULL, names[i], error, sizeof error);
    missing = library != NULL ? library_load(library, calls, sizeof calls / sizeof calls[0], &cublas) : NULL;
    if (library != NULL && missing == NULL)
        return library;
    snprintf(text, sizeof text, "cuBLAS: %s", missing != NULL ? missing : error);
    *why = text;
    return NULL;
}

bool overlap_matmul_open(struct overlap_work *work, const char **why)
{
    struct matmul *m;
    int version = 0;

    if (open_cublas(why) == NULL)
        return false;
    m = calloc(1, sizeof *m);
    if (m == NULL)
        abort();
    if (cublas.cublasCreate_v2(&m->handle) != 0 || cublas.cublasSetStream_v2(m->handle, work->stream) != 0) {
        *why = "cublasCreate failed";
        free(m);
        return false;
    }
    cublas.cublasGetVersion_v2(m->handle, &version);
    snprintf(m->how, sizeof m->how, "cuBLAS %d.%d.%d, bf16, %d x %d x %d", version / 10000, version / 100 % 100, version % 100,
             EDGE, EDGE, EDGE);
    m->a = overlap_random_bf16((size_t)EDGE * EDGE, 1);
    m->b = overlap_random_bf16((size_t)EDGE * EDGE, 2);
    m->c = gpu_alloc((size_t)EDGE * EDGE * 2);
    gpu_fill(m->c, 0xff, (size_t)EDGE * EDGE * 2);
    work->state = m;
    work->how = m->how;
    work->flops = 2.0 * EDGE * EDGE * EDGE;
    work->launch = launch;
    work->check = check;
    work->close = close_matmul;
    return true;
}

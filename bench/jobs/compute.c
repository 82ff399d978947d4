/* SPDX-License-Identifier: Apache-2.0 */
/* The computing beside which the library communicates: it takes the processor, and no memory to speak of. */
#include "jobs.h"

#include <math.h>

#define EDGE 32

/* c += a b, in the first level of the cache. */
static void multiply(float c[EDGE][EDGE], float a[EDGE][EDGE], float b[EDGE][EDGE])
{
    for (int i = 0; i < EDGE; i++)
        for (int k = 0; k < EDGE; k++) {
            float x = a[i][k];

            for (int j = 0; j < EDGE; j++)
                c[i][j] += x * b[k][j];
        }
}

static void compute_on_cpu(double flops)
{
    static _Thread_local float a[EDGE][EDGE], b[EDGE][EDGE], c[EDGE][EDGE];
    static volatile float sink;
    double products = ceil(flops / (2.0 * EDGE * EDGE * EDGE));

    for (int i = 0; i < EDGE; i++)
        for (int j = 0; j < EDGE; j++) {
            a[i][j] = (float)(i - j) / EDGE;
            b[i][j] = (float)(i + j) / EDGE;
            c[i][j] = 0;
        }
    for (double done = 0; done < products; done += 1)
        multiply(c, a, b);
    sink = c[1][2];
    (void)sink;
}

/* Multiply-adds of all threads that the GPU holds; argument: how many each does. */
static const char burn_ptx[] =
    ".version 6.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fakecuda_burn(.param .u64 rounds)\n{\n"
    " .reg .pred %p; .reg .b64 %n, %i, %z; .reg .f32 %a, %b; .reg .b32 %t;\n"
    " ld.param.u64 %n, [rounds]; mov.u64 %i, 0; mov.u32 %t, %tid.x; cvt.rn.f32.u32 %a, %t; mov.f32 %b, 0f3F000000;\n"
    "again: fma.rn.f32 %a, %a, %b, %b; fma.rn.f32 %a, %a, %b, %b; fma.rn.f32 %a, %a, %b, %b; fma.rn.f32 %a, %a, %b, %b;\n"
    " add.u64 %i, %i, 4; setp.lt.u64 %p, %i, %n; @%p bra again;\n"
    " setp.eq.f32 %p, %a, 0fC2280000; mov.u64 %z, 0; @%p st.global.f32 [%z], %a;\n" /* never: keeps the loop */
    " ret;\n}\n";

static void compute_on_gpu(struct jobs_run *run, double flops)
{
    static gpu_kernel_t kernel;
    const int threads = 256;
    int blocks = gpu_multiprocessors(run->gpu) * 8;
    uint64_t rounds = (uint64_t)(flops / 2 / blocks / threads) + 1;
    void *params[] = { &rounds };

    if (kernel == NULL)
        kernel = gpu_kernel_load(burn_ptx, "fakecuda_burn");
    gpu_kernel_launch(kernel, blocks, threads, params, run->compute_stream);
}

void jobs_compute(struct jobs_run *run, double flops)
{
    if ((run->parts & JOBS_COMPUTE) == 0)
        return;
    if (run->options.cuda)
        compute_on_gpu(run, flops);
    else
        compute_on_cpu(flops);
}

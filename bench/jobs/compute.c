/* SPDX-License-Identifier: Apache-2.0 */
/* The computing beside which the library communicates: it takes the processor, and no memory to speak of. */
#include "jobs.h"

#include <math.h>

#include "ptx.h"

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

void jobs_compute_open(struct jobs_run *run)
{
    if (run->options.cuda)
        run->burn = gpu_kernel_load(ptx_burn, PTX_BURN);
}

/* Multiply-adds of all threads that the GPU holds. */
static void compute_on_gpu(struct jobs_run *run, double flops)
{
    const int threads = 256;
    int blocks = gpu_multiprocessors(run->gpu) * 8;
    uint64_t rounds = (uint64_t)(flops / 2 / blocks / threads) + 1;
    void *params[] = { &rounds };

    gpu_kernel_launch(run->burn, blocks, threads, params, run->compute_stream);
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

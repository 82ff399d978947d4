/* SPDX-License-Identifier: Apache-2.0 */
/* Are multiprocessors needed? A kernel holds all of them, as many threads as they take, while one operation is run. */
#include "overlap.h"

#include <math.h>
#include <unistd.h>

#include "ptx.h"

#define THREADS 1024
#define LIMIT_MS 400.0 /* for each peer: beside this kernel 1 GiB takes 0.2 s */

static double ended_within(gpu_stream_t stream, double limit_ms)
{
    double begin = now_us();
    int code;

    while ((code = gpu_stream_query(stream)) == GPU_NOT_READY && now_us() - begin < limit_ms * 1e3)
        usleep(20);
    return code == 0 ? (now_us() - begin) * 1e-3 : NAN;
}

static double one(struct overlap_run *run, struct overlap_side *side, const struct overlap_case *c)
{
    overlap_share(run, "", NULL, 0);
    side->post(run, c);
    return ended_within(run->message_stream, LIMIT_MS * (run->size - 1));
}

double overlap_held(struct overlap_run *run, struct overlap_side *side, const struct overlap_case *c, double *free_ms)
{
    gpu_kernel_t kernel = gpu_kernel_load(ptx_hold, PTX_HOLD);
    volatile uint32_t *flag = gpu_host_alloc(sizeof *flag);
    void *word = (void *)(uintptr_t)flag, *params[] = { &word };
    int blocks = gpu_multiprocessors(run->gpu) * gpu_kernel_blocks_per_multiprocessor(kernel, THREADS);
    double held_ms;
    bool holds;

    *flag = 1;
    gpu_kernel_launch(kernel, blocks, THREADS, params, run->compute_stream); /* loads it */
    gpu_stream_sync(run->compute_stream);
    one(run, side, c);
    *free_ms = one(run, side, c);
    *flag = 0;
    __sync_synchronize();
    gpu_kernel_launch(kernel, blocks, THREADS, params, run->compute_stream);
    usleep(30000); /* it runs by now */
    held_ms = one(run, side, c);
    holds = gpu_stream_query(run->compute_stream) == GPU_NOT_READY;
    overlap_share(run, "", NULL, 0);
    *flag = 1;
    gpu_stream_sync(run->compute_stream);
    overlap_message_wait(run, side->name);
    gpu_host_free((void *)(uintptr_t)flag);
    return overlap_all(run, holds && !isnan(held_ms)) ? overlap_worst(run, held_ms) : NAN;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks are killed and replaced (support/grow.h), four on two GPUs, with sums in CUDA streams.
 * usage: gpu.grow [ROUNDS [SEED]]
 */
#include "gpu_rank.h"
#include "grow.h"

static struct {
    float *in, *out;
    gpu_stream_t stream;
} gpu;

static int device(void)
{
    return PK_DEVICE_CUDA(ranks_rank() % gpu_count());
}

static void open_gpu(size_t bytes)
{
    gpu_use(ranks_rank() % gpu_count());
    gpu.in = gpu_alloc(bytes);
    gpu.out = gpu_alloc(bytes);
    gpu.stream = gpu_stream_new();
}

static pk_result_t sum(pk_comm_t *comm, const float *in, float *out, size_t count)
{
    pk_result_t result;

    if (gpu.in == NULL)
        open_gpu(count * sizeof *in);
    gpu_copy(gpu.in, in, count * sizeof *in);
    result = pk_allreduce(gpu.in, gpu.out, count, PK_F32, PK_SUM, comm, PK_CUDA_STREAM(gpu.stream));
    (void)gpu_stream_sync(gpu.stream);
    if (result == PK_OK)
        result = pk_comm_async_error(comm);
    gpu_copy(out, gpu.out, count * sizeof *out);
    return result;
}

int main(int argc, char **argv)
{
    /* the streams that all communicators of a process share are made, and used for the first time, one by one */
    const struct grow_memory memory = { device, sum, { { 4, 0 }, { 40, 16 }, { 40, 4 }, { 4, 0 }, { 40, 48 << 20 } } };

    if (ranks_role() == NULL && !gpu_enough(2))
        return GPU_SKIPPED;
    return grow_main(argc, argv, &memory);
}

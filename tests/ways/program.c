/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One of two ranks on a host that send, and sum, a MiB of host memory, or sum a MiB of GPU memory in a stream. ways.py runs rank 0
 * under a debugger, which reads the four variables at way_begin, and looks from then on at each system call, or launch of a kernel,
 * that takes an address in a buffer.
 * usage: PK_RANK=0|1 PK_SIZE=2 PK_ROOT=host:port ways.program [gpu]      (exit code 77: there are no two GPUs)
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_dl.h"
#include "pickle/pickle.h"

#define BYTES ((size_t)1 << 20)
#define ROUNDS 20

/* Of both ranks, by rank: the buffers, which are one range where one begins behind the other. */
uint64_t way_from[2], way_to[2];
size_t way_bytes = BYTES;
const char *way_call;

struct rank {
    pk_comm_t *comm;
    int number;
    void *from, *to;
    pk_stream_t stream;
};

__attribute__((noinline)) void way_begin(const char *call);

__attribute__((noinline)) void way_begin(const char *call)
{
    way_call = call;
    __asm__ volatile("" : : : "memory");
}

static pk_result_t tell_addresses(const struct rank *self)
{
    const uint64_t mine[2] = { (uint64_t)(uintptr_t)self->from, (uint64_t)(uintptr_t)self->to };
    uint64_t all[4] = { 0 };
    pk_result_t result = pk_allgather(mine, all, 2, PK_UINT64, self->comm, PK_BLOCKING);

    for (int rank = 0; rank < 2; rank++) {
        way_from[rank] = all[2 * rank];
        way_to[rank] = all[2 * rank + 1];
    }
    return result;
}

static pk_result_t run_on_host(const struct rank *self)
{
    pk_result_t result = PK_OK;

    way_begin("pk_send");
    for (int i = 0; i < ROUNDS && result == PK_OK; i++)
        result = self->number == 0 ? pk_send(self->from, BYTES, PK_UINT8, 1, self->comm, self->stream)
                                   : pk_recv(self->to, BYTES, PK_UINT8, 0, self->comm, self->stream);
    way_begin("pk_allreduce");
    for (int i = 0; i < ROUNDS && result == PK_OK; i++)
        result = pk_allreduce(self->from, self->to, BYTES / sizeof(int32_t), PK_INT32, PK_SUM, self->comm, self->stream);
    return result;
}

static pk_result_t run_on_gpu(const struct rank *self)
{
    pk_result_t result = PK_OK;

    way_begin("pk_allreduce");
    for (int i = 0; i < ROUNDS && result == PK_OK; i++) {
        result = pk_allreduce(self->from, self->to, BYTES / sizeof(float), PK_F32, PK_SUM, self->comm, self->stream);
        (void)gpu_stream_sync(self->stream.handle);
    }
    return result;
}

static pk_result_t run(struct rank *self, bool on_gpu)
{
    pk_comm_config_t config = { .struct_size = sizeof config };
    pk_result_t result;

    config.device = on_gpu ? PK_DEVICE_CUDA(atoi(getenv("PK_RANK"))) : PK_DEVICE_HOST;
    result = pk_comm_init(&self->comm, &config);
    if (result == PK_OK)
        result = pk_comm_rank(self->comm, &self->number);
    if (result == PK_OK)
        result = tell_addresses(self);
    if (result == PK_OK)
        result = on_gpu ? run_on_gpu(self) : run_on_host(self);
    way_begin("");
    return result;
}

int main(int argc, char **argv)
{
    static unsigned char from[BYTES], to[BYTES];
    struct rank self = { .from = from, .to = to, .stream = PK_BLOCKING };
    pk_error_info_t error = { .struct_size = sizeof error };
    bool on_gpu = argc > 1 && strcmp(argv[1], "gpu") == 0;

    if (on_gpu && (gpu_absent() != NULL || gpu_count() < 2))
        return 77;
    if (on_gpu) {
        gpu_use(atoi(getenv("PK_RANK")));
        self.from = gpu_alloc(BYTES);
        self.to = gpu_alloc(BYTES);
        self.stream = PK_CUDA_STREAM(gpu_stream_new());
    }
    memset(from, 1, sizeof from);
    if (run(&self, on_gpu) != PK_OK) {
        pk_last_error(&error);
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    return pk_comm_destroy(self.comm) == PK_OK ? 0 : 1;
}

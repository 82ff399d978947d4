/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a GPU, in bf16, by cuDNN or by a kernel: one stream computes, the other is where communication ends. */
#include "attention.h"

#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "sdpa.h"

struct gpu {
    cudaStream_t compute, communication;
    cudaEvent_t computed, communicated;
    struct sdpa_shape shape;
    struct sdpa *sdpa; /* NULL: the kernel */
    void *workspace;
    size_t value_offset; /* bytes from a key to its value */
    char how[320];
};

static void need(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "attention_overlap: %s: %s\n", what, cudaGetErrorString(code));
    exit(1);
}

static int local_rank(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK", "SLURM_LOCALID", "LOCAL_RANK",
                                         "PK_RANK" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]) != NULL)
            return atoi(getenv(names[i]));
    return 0;
}

/* The device stays current: the communicator takes it. */
static bool device_usable(const char **why)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);

    if (code == cudaSuccess && count > 0)
        code = cudaSetDevice(local_rank() % count);
    if (code == cudaSuccess && count > 0)
        code = cudaFree(NULL); /* makes its context */
    if (code != cudaSuccess || count == 0)
        *why = code != cudaSuccess ? cudaGetErrorString(code) : "there is no GPU";
    return code == cudaSuccess && count > 0;
}

static bool gpu_usable(const char **why)
{
    return sdpa_present(why) && device_usable(why);
}

static bool kernel_usable(const char **why)
{
#ifdef HAVE_ATTEND
    return device_usable(why);
#else
    *why = "this build of the example had no compiler for CUDA";
    return false;
#endif
}

static void gpu_close(void *state)
{
    struct gpu *gpu = state;

    if (gpu->sdpa != NULL)
        sdpa_close(gpu->sdpa);
    cudaFree(gpu->workspace);
    cudaEventDestroy(gpu->computed);
    cudaEventDestroy(gpu->communicated);
    cudaStreamDestroy(gpu->compute);
    cudaStreamDestroy(gpu->communication);
    free(gpu);
}

static struct gpu *open_either(const struct shape *s)
{
    const int64_t width = s->width, heads = s->heads, keys = (int64_t)s->ranks * s->keys;
    struct gpu *gpu = calloc(1, sizeof *gpu);
    int lowest, highest;

    if (gpu == NULL)
        abort();
    need(cudaStreamCreateWithFlags(&gpu->compute, cudaStreamNonBlocking), "cudaStreamCreate");
    /* Kernels of the communication, where a library has any, before those of the attention. */
    need(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    need(cudaStreamCreateWithPriority(&gpu->communication, cudaStreamNonBlocking, highest), "cudaStreamCreate");
    need(cudaEventCreateWithFlags(&gpu->computed, cudaEventDisableTiming), "cudaEventCreate");
    need(cudaEventCreateWithFlags(&gpu->communicated, cudaEventDisableTiming), "cudaEventCreate");
    gpu->value_offset = (size_t)(heads * width) * 2;
    /* Queries were scaled when they were made. */
    gpu->shape = (struct sdpa_shape){ .batch = 1,
                                      .heads = heads,
                                      .queries = s->queries,
                                      .keys = keys,
                                      .width = width,
                                      .query_strides = { heads * s->queries * width, s->queries * width, width },
                                      .key_strides = { keys * 2 * heads * width, width, 2 * heads * width },
                                      .scale = 1 };
    return gpu;
}

static void describe(struct gpu *gpu, const char *by)
{
    struct cudaDeviceProp properties;
    int device;

    need(cudaGetDevice(&device), "cudaGetDevice");
    need(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    snprintf(gpu->how, sizeof gpu->how, "%.100s, %.200s, bf16", properties.name, by);
}

static void *gpu_open(const struct shape *s, const char **why)
{
    struct gpu *gpu = open_either(s);

    gpu->sdpa = sdpa_open(&gpu->shape, gpu->compute, why);
    if (gpu->sdpa == NULL) {
        gpu_close(gpu);
        return NULL;
    }
    if (sdpa_workspace_bytes(gpu->sdpa) > 0)
        need(cudaMalloc(&gpu->workspace, (size_t)sdpa_workspace_bytes(gpu->sdpa)), "cudaMalloc");
    describe(gpu, sdpa_name());
    return gpu;
}

static void *kernel_open(const struct shape *s, const char **why)
{
    struct gpu *gpu;

    *why = "the kernel is for heads that are 64 or 128 wide: --compute gpu takes others, by cuDNN";
    if (s->width != 64 && s->width != 128)
        return NULL;
    gpu = open_either(s);
    describe(gpu, "a kernel of this program");
    return gpu;
}

/* 0, or a code. */
static int launch(struct gpu *gpu, const void *queries, const void *keys, const void *values, void *output)
{
    if (gpu->sdpa != NULL)
        return sdpa_launch(gpu->sdpa, queries, keys, values, output, gpu->workspace);
#ifdef HAVE_ATTEND
    return attend_launch(&gpu->shape, queries, keys, values, output, gpu->compute);
#else
    return -1;
#endif
}

static pk_stream_t gpu_stream(void *state)
{
    return PK_CUDA_STREAM(((struct gpu *)state)->communication);
}

static pk_result_t gpu_stream_wait(void *state)
{
    need(cudaStreamSynchronize(((struct gpu *)state)->communication), "communication");
    return PK_OK;
}

/* Whole pages of 2 MiB: copies of what lies in smaller ones are slower. */
static void *gpu_alloc(void *state, size_t elements)
{
    const size_t page = (size_t)2 << 20;
    void *memory;

    (void)state;
    return cudaMalloc(&memory, (elements * 2 + page - 1) / page * page) == cudaSuccess ? memory : NULL;
}

static void gpu_free(void *state, void *memory)
{
    (void)state;
    need(cudaFree(memory), "cudaFree");
}

static void gpu_begin(void *state, const void *queries, const void *parts, void *output)
{
    struct gpu *gpu = state;
    int code = launch(gpu, queries, parts, (const char *)parts + gpu->value_offset, output);

    if (code == 0)
        return;
    fprintf(stderr, "attention_overlap: %s: code %d\n", gpu->how, code);
    exit(1);
}

static void gpu_end(void *state, void (*poke)(void *), void *arg)
{
    struct gpu *gpu = state;

    while (poke != NULL && cudaStreamQuery(gpu->compute) == cudaErrorNotReady)
        poke(arg);
    need(cudaStreamSynchronize(gpu->compute), "attention");
}

static void gpu_join(void *state)
{
    struct gpu *gpu = state;

    need(cudaEventRecord(gpu->computed, gpu->compute), "cudaEventRecord");
    need(cudaEventRecord(gpu->communicated, gpu->communication), "cudaEventRecord");
    need(cudaStreamWaitEvent(gpu->compute, gpu->communicated, 0), "cudaStreamWaitEvent");
    need(cudaStreamWaitEvent(gpu->communication, gpu->computed, 0), "cudaStreamWaitEvent");
}

/* To the nearest number of 8 digits, to the even one of two. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t *scratch(size_t elements)
{
    uint16_t *memory = malloc(elements * sizeof *memory);

    if (memory == NULL) {
        fprintf(stderr, "attention_overlap: no memory\n");
        exit(1);
    }
    return memory;
}

static void gpu_put(void *state, void *to, const float *from, size_t elements)
{
    uint16_t *plain = scratch(elements);

    (void)state;
    for (size_t i = 0; i < elements; i++)
        plain[i] = to_bf16(from[i]);
    need(cudaMemcpy(to, plain, elements * sizeof *plain, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(plain);
}

static void gpu_get(void *state, float *to, const void *from, size_t elements)
{
    uint16_t *plain = scratch(elements);

    (void)state;
    need(cudaMemcpy(plain, from, elements * sizeof *plain, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (size_t i = 0; i < elements; i++) {
        uint32_t bits = (uint32_t)plain[i] << 16;

        memcpy(&to[i], &bits, sizeof bits);
    }
    free(plain);
}

static const char *gpu_how(void *state)
{
    return ((struct gpu *)state)->how;
}

/* All but where attention comes from. */
#define ON_A_GPU \
    .type = PK_BF16, .element_bytes = 2, .tolerance = 1e-2, .memory = PK_MEM_DEVICE, \
    .defaults = { .layers = 8, .heads = 32, .width = 128, .queries = 2048, .keys = 4096 }, .close = gpu_close, \
    .stream = gpu_stream, .stream_wait = gpu_stream_wait, .alloc = gpu_alloc, .free = gpu_free, .begin = gpu_begin, \
    .end = gpu_end, .join = gpu_join, .put = gpu_put, .get = gpu_get, .how = gpu_how

const struct compute compute_gpu = { .name = "gpu", .usable = gpu_usable, .open = gpu_open, ON_A_GPU };
const struct compute compute_kernel = { .name = "kernel", .usable = kernel_usable, .open = kernel_open, ON_A_GPU };
#else
static bool gpu_usable(const char **why)
{
    *why = "this build of the example found no CUDA toolkit";
    return false;
}

const struct compute compute_gpu = { .name = "gpu", .usable = gpu_usable };
const struct compute compute_kernel = { .name = "kernel", .usable = gpu_usable };
#endif

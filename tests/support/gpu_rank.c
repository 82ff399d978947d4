/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ptx.h"

bool gpu_enough(int gpus)
{
    if (gpu_absent() != NULL) {
        printf("SKIPPED: %s\n", gpu_absent());
        return false;
    }
    /* PICKLE_TEST_SHARE_GPU: ranks share the one there is. Results are what they are; times are those of turns on the GPU. */
    if (gpu_count() < gpus && (gpu_count() == 0 || getenv("PICKLE_TEST_SHARE_GPU") == NULL)) {
        printf("SKIPPED: %d GPUs are needed, %d are here\n", gpus, gpu_count());
        return false;
    }
    return true;
}

int gpu_two_ranks(int (*rank_main)(void), const char *role, int timeout_ms, const char *what)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = role, .size = 2, .timeout_ms = timeout_ms }, "%s", what);
    return report_end();
}

bool gpu_is_software(void)
{
    char name[64] = "";

    gpu_name(0, name, sizeof name);
    return strncmp(name, "Fake", 4) == 0;
}

int gpu_ranks(int most)
{
    return gpu_count() < most ? gpu_count() : most;
}

void must_be_ok(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    report(false, "rank %d: %s: %s %.300s", ranks_rank(), what, pk_strerror(result), info.text);
    exit(1);
}

void gpu_show_pending(const pk_comm_t *comm)
{
    static char text[65536];
    size_t needed;

    if (pk_pending_dump(comm, text, sizeof text, &needed) == PK_OK && strlen(text) > 0)
        puts(text);
}

void gpu_rank_open(struct gpu_rank *self, int sm_policy, uint64_t timeout_ms)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    int gpu = ranks_rank() % gpu_count();

    gpu_use(gpu);
    config.device = PK_DEVICE_CUDA(gpu);
    config.sm_policy = sm_policy;
    config.timeout_ms = timeout_ms;
    must_be_ok(pk_comm_init(&self->comm, &config), "pk_comm_init");
    must_be_ok(pk_comm_rank(self->comm, &self->rank), "pk_comm_rank");
    must_be_ok(pk_comm_size(self->comm, &self->size), "pk_comm_size");
    self->stream = gpu_stream_new();
    self->in_stream = PK_CUDA_STREAM(self->stream);
}

void gpu_rank_close(struct gpu_rank *self)
{
    ranks_meet();
    must_be_ok(pk_comm_destroy(self->comm), "pk_comm_destroy");
    gpu_stream_free(self->stream);
}

pk_comm_t *gpu_rank_another(struct gpu_rank *self, uint64_t timeout_ms)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_unique_id_t own = { { 0 } };
    pk_unique_id_t all[RANKS_MAX];
    pk_comm_t *comm;

    if (self->rank == 0)
        must_be_ok(pk_get_unique_id(&own), "pk_get_unique_id");
    must_be_ok(pk_allgather(&own, all, sizeof own, PK_UINT8, self->comm, PK_BLOCKING), "exchange of ids");
    config.device = PK_DEVICE_CUDA(self->rank % gpu_count());
    config.timeout_ms = timeout_ms;
    must_be_ok(pk_comm_init_rank(&comm, self->size, self->rank, &all[0], &config), "pk_comm_init_rank");
    return comm;
}

static uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

static uint64_t pattern_word(uint64_t start, size_t at)
{
    return mix(start + at);
}

void pattern_fill(void *host, size_t bytes, uint64_t key)
{
    const uint64_t start = mix(key);
    char *to = host;
    size_t at = 0;
    uint64_t word;

    for (; at + sizeof word <= bytes; at += sizeof word) {
        word = pattern_word(start, at);
        memcpy(to + at, &word, sizeof word);
    }
    word = pattern_word(start, at);
    memcpy(to + at, &word, bytes - at);
}

size_t pattern_wrong(const void *host, size_t bytes, uint64_t key)
{
    const uint64_t start = mix(key);
    const char *from = host;
    size_t at = 0;
    uint64_t word, found;

    for (; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&found, from + at, sizeof found);
        if (found != pattern_word(start, at))
            return at;
    }
    word = pattern_word(start, at);
    return memcmp(from + at, &word, bytes - at) == 0 ? bytes : at;
}

static void *host_memory(size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);

    if (memory == NULL) {
        perror("memory for a pattern");
        exit(2);
    }
    return memory;
}

void pattern_to_gpu(void *device, size_t bytes, uint64_t key)
{
    void *host = host_memory(bytes);

    pattern_fill(host, bytes, key);
    gpu_copy(device, host, bytes);
    free(host);
}

size_t pattern_wrong_on_gpu(const void *device, size_t bytes, uint64_t key)
{
    char *host = host_memory(bytes);
    size_t wrong;

    memset(host, 0, bytes);
    gpu_copy(host, device, bytes);
    wrong = pattern_wrong(host, bytes, key);
    free(host);
    return wrong;
}

gpu_kernel_t spin_kernel(void)
{
    return gpu_kernel_load(ptx_spin, PTX_SPIN);
}

void spin_launch(gpu_kernel_t kernel, int blocks, int threads, uint32_t *flag, gpu_stream_t stream)
{
    void *params[] = { &flag };

    gpu_kernel_launch(kernel, blocks, threads, params, stream);
}

bool stream_idle_within(gpu_stream_t stream, double limit_ms, double *took_ms)
{
    double begin = monotonic_ms();
    int code = gpu_stream_query(stream);

    while (code == GPU_NOT_READY && monotonic_ms() - begin < limit_ms) {
        usleep(50);
        code = gpu_stream_query(stream);
    }
    if (took_ms != NULL)
        *took_ms = monotonic_ms() - begin;
    if (code != 0 && code != GPU_NOT_READY)
        report(false, "rank %d: the stream failed: %s", ranks_rank(), gpu_error(code));
    return code == 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What is computed, by name; random numbers to compute with; and arithmetic that needs no library. */
#include "overlap.h"

#include <stdlib.h>
#include <string.h>

#include "ptx.h"

#define PERIOD ((size_t)8 << 20) /* numbers */
#define BURN_ROUNDS (1u << 16)
#define BURN_THREADS 256

/* Random numbers draw the power that real ones do; zeros draw less. */
static uint16_t random_bits(unsigned seed, size_t i)
{
    uint32_t x = (uint32_t)(i % PERIOD) * 2654435761u + seed * 40503u + 1;

    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    return (uint16_t)((x >> 16 & 0x807f) | (0x7b + (x & 3)) << 7); /* sign and fraction, exponents of 1/16 to 1 */
}

static float of_bf16(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &word, sizeof value);
    return value;
}

float overlap_bf16(unsigned seed, size_t i)
{
    return of_bf16(random_bits(seed, i));
}

void *overlap_random_bf16(size_t count, unsigned seed)
{
    size_t once = count < PERIOD ? count : PERIOD;
    uint16_t *block = malloc(once * sizeof *block);
    char *memory = gpu_alloc(count * sizeof *block);

    if (block == NULL)
        abort();
    for (size_t i = 0; i < once; i++)
        block[i] = random_bits(seed, i);
    for (size_t i = 0; i < count; i += once)
        gpu_copy(memory + i * sizeof *block, block, (count - i < once ? count - i : once) * sizeof *block);
    free(block);
    return memory;
}

void overlap_get_bf16(const void *from, size_t count, float *to)
{
    uint16_t *bits = malloc(count * sizeof *bits);

    if (bits == NULL)
        abort();
    gpu_copy(bits, from, count * sizeof *bits);
    for (size_t i = 0; i < count; i++)
        to[i] = of_bf16(bits[i]);
    free(bits);
}

struct burn {
    gpu_kernel_t kernel;
    int blocks;
};

static void burn_launch(struct overlap_work *work)
{
    struct burn *burn = work->state;
    uint64_t rounds = BURN_ROUNDS;
    void *params[] = { &rounds };

    gpu_kernel_launch(burn->kernel, burn->blocks, BURN_THREADS, params, work->stream);
}

static uint64_t burn_check(struct overlap_work *work)
{
    (void)work;
    return 0; /* it has no result */
}

static void burn_close(struct overlap_work *work)
{
    free(work->state);
}

static void burn_open(struct overlap_work *work, int gpu)
{
    struct burn *burn = calloc(1, sizeof *burn);

    if (burn == NULL)
        abort();
    burn->kernel = gpu_kernel_load(ptx_burn, PTX_BURN);
    burn->blocks = gpu_multiprocessors(gpu) * 8;
    work->state = burn;
    work->how = "multiply-adds in registers, f32";
    work->flops = 2.0 * BURN_ROUNDS * BURN_THREADS * burn->blocks;
    work->launch = burn_launch;
    work->check = burn_check;
    work->close = burn_close;
}

bool overlap_work_open(struct overlap_work *work, const char *name, struct overlap_run *run, const char **why)
{
    *work = (struct overlap_work){ .name = name, .stream = run->compute_stream };
    if (strcmp(name, "matmul") == 0)
        return overlap_matmul_open(work, why);
    if (strcmp(name, "attention") == 0)
        return overlap_attention_open(work, why);
    burn_open(work, run->gpu);
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in bf16 by cuDNN: 8 sequences, 64 heads, 4096 tokens, 128 wide. */
#include "overlap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../examples/attention_overlap/sdpa.h"

enum { BATCH = 8, HEADS = 64, TOKENS = 4096, WIDTH = 128, LOOKED_AT = 3 /* queries */ };

#define HEAD ((size_t)TOKENS * WIDTH)
#define ALL (HEAD * HEADS * BATCH)

struct attention {
    struct sdpa *sdpa;
    void *queries, *keys, *values, *output, *workspace;
    float scale;
    char how[96];
};

static void launch(struct overlap_work *work)
{
    struct attention *a = work->state;
    int code = sdpa_launch(a->sdpa, a->queries, a->keys, a->values, a->output, a->workspace);

    if (code != 0)
        overlap_fail("%s: code %d", sdpa_name(), code);
}

/* What one query of one head should give, plainly. */
static void plain(const struct attention *a, size_t head, size_t query, double output[WIDTH])
{
    static double scores[TOKENS];
    double highest = -INFINITY, total = 0;

    for (size_t k = 0; k < TOKENS; k++) {
        scores[k] = 0;
        for (size_t c = 0; c < WIDTH; c++)
            scores[k] +=
                (double)overlap_bf16(3, head * HEAD + query * WIDTH + c) * (double)overlap_bf16(4, head * HEAD + k * WIDTH + c);
        scores[k] *= (double)a->scale;
        highest = fmax(highest, scores[k]);
    }
    for (size_t c = 0; c < WIDTH; c++)
        output[c] = 0;
    for (size_t k = 0; k < TOKENS; k++) {
        double weight = exp(scores[k] - highest);

        total += weight;
        for (size_t c = 0; c < WIDTH; c++)
            output[c] += weight * (double)overlap_bf16(5, head * HEAD + k * WIDTH + c);
    }
    for (size_t c = 0; c < WIDTH; c++)
        output[c] /= total;
}

static uint64_t check(struct overlap_work *work)
{
    struct attention *a = work->state;
    uint64_t wrong = 0;

    for (size_t i = 0; i < LOOKED_AT; i++) {
        size_t head = i * (HEADS * BATCH - 1) / (LOOKED_AT - 1), query = TOKENS - 1 - i * (TOKENS - 1) / (LOOKED_AT - 1);
        double expected[WIDTH];
        float got[WIDTH];

        plain(a, head, query, expected);
        overlap_get_bf16((char *)a->output + (head * HEAD + query * WIDTH) * 2, WIDTH, got);
        for (size_t c = 0; c < WIDTH; c++)
            wrong += !(fabs((double)got[c] - expected[c]) <= 2e-4 + 0.02 * fabs(expected[c]));
    }
    return wrong;
}

static void close_attention(struct overlap_work *work)
{
    struct attention *a = work->state;

    sdpa_close(a->sdpa);
    gpu_free(a->queries);
    gpu_free(a->keys);
    gpu_free(a->values);
    gpu_free(a->output);
    gpu_free(a->workspace);
    free(a);
}

bool overlap_attention_open(struct overlap_work *work, const char **why)
{
    const int64_t strides[3] = { (int64_t)HEAD * HEADS, HEAD, WIDTH };
    struct sdpa_shape shape = { .batch = BATCH,
                                .heads = HEADS,
                                .queries = TOKENS,
                                .keys = TOKENS,
                                .width = WIDTH,
                                .query_strides = { strides[0], strides[1], strides[2] },
                                .key_strides = { strides[0], strides[1], strides[2] },
                                .scale = 1 / sqrtf(WIDTH) };
    struct sdpa *sdpa = sdpa_open(&shape, work->stream, why);
    struct attention *a;

    if (sdpa == NULL)
        return false;
    a = calloc(1, sizeof *a);
    if (a == NULL)
        abort();
    a->sdpa = sdpa;
    a->scale = shape.scale;
    a->queries = overlap_random_bf16(ALL, 3);
    a->keys = overlap_random_bf16(ALL, 4);
    a->values = overlap_random_bf16(ALL, 5);
    a->output = gpu_alloc(ALL * 2);
    a->workspace = sdpa_workspace_bytes(sdpa) > 0 ? gpu_alloc((size_t)sdpa_workspace_bytes(sdpa)) : NULL;
    gpu_fill(a->output, 0xff, ALL * 2);
    snprintf(a->how, sizeof a->how, "%s, bf16, batch %d, %d heads, %d tokens, %d wide", sdpa_name(), BATCH, HEADS, TOKENS, WIDTH);
    work->state = a;
    work->how = a->how;
    work->flops = 4.0 * BATCH * HEADS * (double)TOKENS * TOKENS * WIDTH;
    work->launch = launch;
    work->check = check;
    work->close = close_attention;
    return true;
}

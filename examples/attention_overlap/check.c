/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention once more, plainly: from numbers that every rank can make for all ranks, in double precision, with the softmax written as in
 * the book. Whatever went wrong on the way, in the library or in the attention, ends as a difference here.
 */
#include "attention.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUERIES_LOOKED_AT 2          /* of each head */
#define ALL_UP_TO ((size_t)32 << 20) /* elements of all layers' parts: of more, the first and the last layer are looked at */

float number(int kind, int layer, int rank, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)(kind + 2 * layer) * 40503u + (uint32_t)rank * 977u + 1u;

    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    return (float)(x >> 24) / 128.0f - 1; /* bf16 holds it exactly */
}

/* Output of one query of one head: [width]. `parts` is [ranks] parts; `scores` has room for one a key. */
static void plain_attention(const struct shape *s, const float *query, const float *parts, int head, double *scores,
                            double *output)
{
    size_t width = (size_t)s->width, all = (size_t)s->ranks * (size_t)s->keys, stride = 2 * (size_t)s->heads * width;
    const float *keys = parts + (size_t)head * width, *values = keys + stride / 2;
    double highest = -INFINITY, total = 0;

    for (size_t k = 0; k < all; k++) {
        scores[k] = 0;
        for (size_t c = 0; c < width; c++)
            scores[k] += (double)query[c] * (double)keys[k * stride + c];
        highest = fmax(highest, scores[k]);
    }
    memset(output, 0, width * sizeof *output);
    for (size_t k = 0; k < all; k++) {
        double weight = exp(scores[k] - highest);

        total += weight;
        for (size_t c = 0; c < width; c++)
            output[c] += weight * (double)values[k * stride + c];
    }
    for (size_t c = 0; c < width; c++)
        output[c] /= total;
}

static size_t differences(const struct job *job, const float *queries, const float *parts, const float *got, double *scores,
                          double *row)
{
    const struct shape *s = &job->shape;
    size_t width = (size_t)s->width, wrong = 0;

    for (int head = 0; head < s->heads; head++)
        for (int i = 0; i < QUERIES_LOOKED_AT; i++) {
            size_t at = ((size_t)head * (size_t)s->queries + (size_t)(i * (s->queries - 1))) * width;

            plain_attention(s, queries + at, parts, head, scores, row);
            for (size_t c = 0; c < width; c++)
                wrong += !(fabs((double)got[at + c] - row[c]) <= job->compute->tolerance); /* not a number is wrong too */
        }
    return wrong;
}

static size_t check_layer(struct job *job, int layer, float *parts, float *scratch, double *scores)
{
    const struct shape *s = &job->shape;
    size_t part = shape_part(s), wrong = 0;
    float *queries = scratch, *got = scratch + shape_queries(s), *came = scratch + 2 * shape_queries(s);

    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < part; i++)
            parts[(size_t)r * part + i] = number(1, layer, r, i);
    job->compute->get(job->compute_state, came, job->gathered[layer], (size_t)s->ranks * part);
    for (size_t i = 0; i < (size_t)s->ranks * part; i++)
        wrong += came[i] != parts[i]; /* the very same */
    for (size_t i = 0; i < shape_queries(s); i++)
        queries[i] = number(0, layer, s->rank, i) / sqrtf((float)s->width);
    job->compute->get(job->compute_state, got, job->outputs[layer], shape_queries(s));
    if (job->spoil && layer == 0)
        got[0] += 1;
    return wrong + differences(job, queries, parts, got, scores, scores + (size_t)s->ranks * (size_t)s->keys);
}

/* Nothing of an earlier run may pass for this one's: what others send is overwritten. `nothing` is as large as the larger of both. */
static void wipe(struct job *job, const float *nothing)
{
    const struct shape *s = &job->shape;

    for (int layer = 0; layer < s->layers; layer++) {
        job->compute->put(job->compute_state, job->outputs[layer], nothing, shape_queries(s));
        for (int r = 0; r < s->ranks; r++)
            if (r != s->rank)
                job->compute->put(job->compute_state, place(job, layer, r), nothing, shape_part(s));
    }
}

size_t check(struct job *job, struct gather *library)
{
    const struct shape *s = &job->shape;
    size_t all = (size_t)s->ranks * shape_part(s), room = all > shape_queries(s) ? all : shape_queries(s);
    float *parts = malloc(room * sizeof *parts), *scratch = malloc((2 * shape_queries(s) + all) * sizeof *scratch);
    double *scores = malloc(((size_t)s->ranks * (size_t)s->keys + (size_t)s->width) * sizeof *scores);
    uint64_t wrong = 0, anywhere;

    if (parts == NULL || scratch == NULL || scores == NULL) {
        fprintf(stderr, "attention_overlap: no memory for the check\n");
        exit(1);
    }
    for (size_t i = 0; i < room; i++)
        parts[i] = NAN;
    wipe(job, parts);
    run_overlapped(job, library);
    for (int layer = 0; layer < s->layers; layer += all * (size_t)s->layers <= ALL_UP_TO || s->layers == 1 ? 1 : s->layers - 1)
        wrong += check_layer(job, layer, parts, scratch, scores);
    must(pk_allreduce(&wrong, &anywhere, 1, PK_UINT64, PK_SUM, job->comm, PK_BLOCKING), "pk_allreduce");
    free(parts);
    free(scratch);
    free(scores);
    return (size_t)anywhere;
}

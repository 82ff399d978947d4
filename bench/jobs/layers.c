/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns whose ranks all have every layer, or a part of every layer. */
#include "jobs.h"

#include <stdio.h>

#define PARAMETERS(o) (12 * (size_t)(o)->hidden * (o)->hidden) /* of a layer of a transformer */

/* Of a layer, for the tokens of this rank; backward takes twice as much. */
static double forward_flops(const struct jobs_run *run)
{
    return 2.0 * run->options.tokens * (double)PARAMETERS(&run->options);
}

static float *floats(struct jobs_run *run, size_t count)
{
    return jobs_alloc(run, count * sizeof(float));
}

/* ---- Data parallel ---- */

static unsigned layers_in_bucket(const struct jobs_options *o)
{
    size_t layers = o->bucket_bytes / (PARAMETERS(o) * sizeof(float));

    if (layers == 0)
        return 1;
    return layers < o->layers ? (unsigned)layers : o->layers;
}

/* Bucket b: of layers b * layers_in_bucket and on; the last may have fewer. */
static void add_sums(struct jobs_run *run, const struct jobs_group *group, size_t parameters)
{
    const struct jobs_options *o = &run->options;
    unsigned step = layers_in_bucket(o);

    for (unsigned first = 0; first < o->layers; first += step) {
        unsigned layers = o->layers - first < step ? o->layers - first : step;
        struct jobs_transfer *t = jobs_transfer(run, JOBS_ALLREDUCE, group, layers * parameters);

        t->source = floats(run, t->count);
        t->result = floats(run, t->count);
    }
}

static void data_prepare(struct jobs_run *run)
{
    add_sums(run, &run->world, PARAMETERS(&run->options));
}

/* A bucket is complete when its first layer's gradients are, which are computed last. */
static void data_step(struct jobs_run *run)
{
    unsigned in_bucket = layers_in_bucket(&run->options);

    for (unsigned l = 0; l < run->options.layers; l++)
        jobs_compute(run, forward_flops(run));
    for (unsigned l = run->options.layers; l-- > 0;) {
        jobs_compute(run, 2 * forward_flops(run));
        if (l % in_bucket == 0)
            jobs_begin(run, (int)(l / in_bucket), 0);
    }
    jobs_wait(run, 0);
}

static void data_note(const struct jobs_run *run, char text[JOBS_TEXT_BYTES])
{
    unsigned in_bucket = layers_in_bucket(&run->options);

    snprintf(text, JOBS_TEXT_BYTES, "%u buckets of %.1f MB", (run->options.layers + in_bucket - 1) / in_bucket,
             (double)run->transfers[0].count * sizeof(float) * 1e-6);
}

const struct jobs_pattern jobs_data = { NULL, data_prepare, data_step, data_note };

/* ---- Sharded data parallel: transfer l gathers layer l's parameters, layers + l scatters its gradients ---- */

static size_t shard(const struct jobs_run *run)
{
    return (PARAMETERS(&run->options) + (size_t)run->world.size - 1) / (size_t)run->world.size;
}

static void sharded_prepare(struct jobs_run *run)
{
    size_t all = shard(run) * (size_t)run->world.size;

    for (unsigned l = 0; l < run->options.layers; l++) {
        struct jobs_transfer *t = jobs_transfer(run, JOBS_ALLGATHER, &run->world, shard(run));

        t->source = floats(run, shard(run));
        t->result = floats(run, all);
    }
    for (unsigned l = 0; l < run->options.layers; l++) {
        struct jobs_transfer *t = jobs_transfer(run, JOBS_REDUCE_SCATTER, &run->world, shard(run));

        t->source = floats(run, all);
        t->result = floats(run, shard(run));
    }
}

/* The next layer's parameters come while a layer is computed, and its gradients go behind it. */
static void sharded_step(struct jobs_run *run)
{
    int layers = (int)run->options.layers;

    jobs_begin(run, 0, 0);
    for (int l = 0; l < layers; l++) {
        jobs_wait(run, 0);
        if (l + 1 < layers)
            jobs_begin(run, l + 1, 0);
        jobs_compute(run, forward_flops(run));
    }
    jobs_begin(run, layers - 1, 0);
    for (int l = layers - 1; l >= 0; l--) {
        jobs_wait(run, 0);
        if (l > 0)
            jobs_begin(run, l - 1, 0);
        jobs_compute(run, 2 * forward_flops(run));
        jobs_begin(run, layers + l, 1);
    }
    jobs_wait(run, 1);
}

const struct jobs_pattern jobs_sharded = { NULL, sharded_prepare, sharded_step, NULL };

/* ---- Tensor parallel: a layer's work is divided, and its activations summed up twice on the way there and twice back ---- */

static void add_activations(struct jobs_run *run, const struct jobs_group *group)
{
    for (int half = 0; half < 2; half++) {
        struct jobs_transfer *t = jobs_transfer(run, JOBS_ALLREDUCE, group, (size_t)run->options.tokens * run->options.hidden);

        t->source = floats(run, t->count);
        t->result = floats(run, t->count);
    }
}

static void tensor_prepare(struct jobs_run *run)
{
    add_activations(run, &run->world);
}

/* One layer there (factor 1) or back (2), divided among `ranks`; `first` of its two transfers. */
static void divided_layer(struct jobs_run *run, double factor, int ranks, int first)
{
    for (int half = 0; half < 2; half++) {
        jobs_compute(run, factor * forward_flops(run) / 2 / ranks);
        jobs_begin(run, first + half, 0);
        jobs_wait(run, 0);
    }
}

static void tensor_step(struct jobs_run *run)
{
    for (unsigned l = 0; l < run->options.layers; l++)
        divided_layer(run, 1, run->world.size, 0);
    for (unsigned l = 0; l < run->options.layers; l++)
        divided_layer(run, 2, run->world.size, 0);
}

static void tensor_note(const struct jobs_run *run, char text[JOBS_TEXT_BYTES])
{
    snprintf(text, JOBS_TEXT_BYTES, "sums of %.1f KB, each waited for", (double)run->transfers[0].count * sizeof(float) * 1e-3);
}

const struct jobs_pattern jobs_tensor = { NULL, tensor_prepare, tensor_step, tensor_note };

/* ---- Their product: rows are tensor parallel, columns data parallel. Transfers: the activations', then the buckets ---- */

#define ACTIVATIONS 2

static const char *product_unfit(const struct jobs_run *run)
{
    return run->world.size < 4 || run->world.size % 2 != 0 ? "needs 4 ranks or more, an even number" : NULL;
}

static void product_prepare(struct jobs_run *run)
{
    add_activations(run, &run->rows);
    add_sums(run, &run->columns, PARAMETERS(&run->options) / 2);
}

static void product_step(struct jobs_run *run)
{
    unsigned in_bucket = layers_in_bucket(&run->options);

    for (unsigned l = 0; l < run->options.layers; l++)
        divided_layer(run, 1, run->rows.size, 0);
    for (unsigned l = run->options.layers; l-- > 0;) {
        divided_layer(run, 2, run->rows.size, 0);
        if (l % in_bucket == 0)
            jobs_begin(run, ACTIVATIONS + (int)(l / in_bucket), 1);
    }
    jobs_wait(run, 1);
}

static void product_note(const struct jobs_run *run, char text[JOBS_TEXT_BYTES])
{
    snprintf(text, JOBS_TEXT_BYTES, "tensor %d x data %d", run->rows.size, run->columns.size);
}

const struct jobs_pattern jobs_product = { product_unfit, product_prepare, product_step, product_note };

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sits where: ranks of a tensor group are neighbours in a node, ranks that hold the same part of a model are a node apart. A
 * layer of a transformer has 12 hidden^2 parameters, needs 2 FLOP for each and token forward and 4 backward; numbers are bf16.
 */
#include "patterns.h"

#include <stdio.h>
#include <stdlib.h>

#include "sim.h"

enum { BF16 = 2 };

/* What has been simulated, for the other rows that ask the same. */
struct known {
    enum pki_coll coll;
    int ranks, stride;
    double bytes, us;
};
enum { KNOWN = 256 };

struct sim_memo {
    struct known known[KNOWN];
    int count;
};

/* A faster algorithm than *us (0: any) on these ranks? */
static bool try_algorithm(const struct sim_machine *m, const struct pki_algorithm *algorithm, int ranks, const int *members,
                          double bytes, double *us)
{
    struct sim_world world;
    struct sim_result result;
    bool good;

    if (!sim_world_make(&world, m, members, algorithm, ranks, 0, false))
        return false;
    good = sim_run(m, &world, members, bytes, *us, &result);
    sim_world_free(&world);
    if (good && (*us == 0 || result.us < *us))
        *us = result.us;
    return good;
}

/* Algorithms with few steps first: where they are fast, the others need not be followed to their end. */
static bool try_all(const struct sim_machine *m, const struct known *k, double *us)
{
    const char *const order[] = { "leader", "hier", "halving", "doubling", "tree", "ring", "direct", "flat" };
    int *members = malloc((size_t)k->ranks * sizeof *members);
    bool good = members != NULL;

    *us = 0;
    for (int i = 0; good && i < k->ranks; i++)
        members[i] = i * k->stride;
    for (size_t i = 0; good && k->ranks > 1 && i < sizeof order / sizeof *order; i++) {
        const struct pki_algorithm *algorithm = pki_algorithm_find(k->coll, order[i]);

        if (algorithm != NULL)
            good = try_algorithm(m, algorithm, k->ranks, members, k->bytes, us);
    }
    free(members);
    return good;
}

/* The fastest of the library's algorithms, in simulated time, for `bytes` (as sim_run takes them) on `ranks` ranks, `stride` apart. */
static bool fastest(const struct sim_machine *m, struct sim_memo *memo, enum pki_coll coll, int ranks, int stride, double bytes,
                    double *us)
{
    struct known k = { coll, ranks, stride, bytes, 0 };

    for (int i = 0; i < memo->count; i++) {
        const struct known *o = &memo->known[i];

        if (o->coll == coll && o->ranks == ranks && o->stride == stride && o->bytes == bytes) {
            *us = o->us;
            return true;
        }
    }
    if (!try_all(m, &k, us))
        return false;
    k.us = *us;
    if (memo->count < KNOWN)
        memo->known[memo->count++] = k;
    return true;
}

static double layer_parameters(const struct sim_model *model)
{
    return 12.0 * model->hidden * model->hidden;
}

/* Microseconds of the forward pass of one layer for `tokens` tokens; backward takes twice that. */
static double forward_us(const struct sim_machine *m, const struct sim_model *model, double tokens)
{
    return 2 * layer_parameters(model) * tokens / (m->tflops * model->efficiency * 1e6);
}

static void finish(struct sim_step_time *out)
{
    out->step_us = out->compute_us + out->exposed_us;
}

/* Work that is ready at ready_us[i] is done one after the other; how long after `end` the last ends. */
static double tail(const double *ready_us, int n, double each_us, double end)
{
    double at = 0;

    for (int i = 0; i < n; i++)
        at = (at > ready_us[i] ? at : ready_us[i]) + each_us;
    return at > end ? at - end : 0;
}

static bool data_parallel(const struct sim_machine *m, struct sim_memo *memo, const struct sim_model *model, int ranks,
                          struct sim_step_time *out)
{
    double forward = forward_us(m, model, model->tokens), each, *ready = calloc((size_t)model->layers, sizeof *ready);
    bool good = ready != NULL && fastest(m, memo, PKI_COLL_ALLREDUCE, ranks, 1, layer_parameters(model) * BF16, &each);

    if (good) { /* a bucket a layer, started when the layer's backward has ended */
        out->compute_us = 3 * forward * model->layers;
        for (int i = 0; i < model->layers; i++)
            ready[i] = forward * model->layers + 2 * forward * (i + 1);
        out->total_us = each * model->layers;
        out->exposed_us = tail(ready, model->layers, each, out->compute_us);
        finish(out);
    }
    free(ready);
    return good;
}

static double beyond(double a, double b)
{
    return a > b ? a - b : 0;
}

static bool sharded(const struct sim_machine *m, struct sim_memo *memo, const struct sim_model *model, int ranks,
                    struct sim_step_time *out)
{
    double forward = forward_us(m, model, model->tokens), gather, scatter, part = layer_parameters(model) * BF16 / ranks;

    if (!fastest(m, memo, PKI_COLL_ALLGATHER, ranks, 1, part, &gather) ||
        !fastest(m, memo, PKI_COLL_REDUCE_SCATTER, ranks, 1, part, &scatter))
        return false;
    /* Each layer's parameters come while the layer before computes, in both passes; its gradients leave during the next one's backward. */
    out->compute_us = 3 * forward * model->layers;
    out->total_us = (2 * gather + scatter) * model->layers;
    out->exposed_us =
        2 * gather + scatter + (model->layers - 1) * (beyond(gather, forward) + beyond(gather + scatter, 2 * forward));
    finish(out);
    return true;
}

static bool pipeline(const struct sim_machine *m, struct sim_memo *memo, const struct sim_model *model, int ranks,
                     struct sim_step_time *out)
{
    int stages = ranks < model->layers ? ranks : model->layers, batches = 4 * stages;
    double tokens = model->tokens * stages / batches, each;
    double stage = 3 * forward_us(m, model, tokens) * model->layers / stages;

    if (!fastest(m, memo, PKI_COLL_BROADCAST, 2, m->nodes > 1 && stages > m->ranks_per_node ? m->ranks_per_node : 1,
                 tokens * model->hidden * BF16, &each))
        return false;
    /* 1F1B: sends overlap the next batch's compute, but for those that fill and drain the pipeline. */
    out->compute_us = batches * stage;
    out->total_us = 2.0 * batches * each;
    out->exposed_us = (stages - 1) * (stage + 2 * each) + batches * beyond(2 * each, stage);
    finish(out);
    return true;
}

static bool tensor_parallel(const struct sim_machine *m, struct sim_memo *memo, const struct sim_model *model, int ranks,
                            struct sim_step_time *out)
{
    int group = ranks < m->ranks_per_node ? ranks : m->ranks_per_node, copies = ranks / group;
    double forward = forward_us(m, model, model->tokens), each, gradients;

    if (!fastest(m, memo, PKI_COLL_ALLREDUCE, group, 1, model->tokens * group * model->hidden * BF16, &each) ||
        !fastest(m, memo, PKI_COLL_ALLREDUCE, copies, group, layer_parameters(model) / group * BF16, &gradients))
        return false;
    /* Two allreduces a layer and pass that nothing hides; gradients of copies in other nodes hide behind the backward pass. */
    out->compute_us = 3 * forward * model->layers;
    out->total_us = model->layers * (4 * each + gradients);
    out->exposed_us = model->layers * (4 * each + beyond(gradients, 2 * forward)) + gradients;
    finish(out);
    return true;
}

static bool sequence_parallel(const struct sim_machine *m, struct sim_memo *memo, const struct sim_model *model, int ranks,
                              struct sim_step_time *out)
{
    double each, turn;
    /* attention of this rank's tokens with those of one other: 4 hidden FLOP for each pair */
    double attention = 4 * model->tokens * model->tokens * model->hidden / (m->tflops * model->efficiency * 1e6);

    if (!fastest(m, memo, PKI_COLL_BROADCAST, ranks > 1 ? 2 : 1, ranks > m->ranks_per_node ? m->ranks_per_node : 1,
                 2 * model->tokens * model->hidden * BF16, &each))
        return false;
    turn = beyond(each, attention);
    out->compute_us = model->layers * 3 * (forward_us(m, model, model->tokens) + ranks * attention);
    out->total_us = model->layers * 3.0 * (ranks - 1) * each;
    out->exposed_us = model->layers * 3.0 * (ranks - 1) * turn;
    finish(out);
    return true;
}

static bool expert_parallel(const struct sim_machine *m, struct sim_memo *memo, const struct sim_model *model, int ranks,
                            struct sim_step_time *out)
{
    double forward = forward_us(m, model, model->tokens), each;
    int group = ranks < model->experts ? ranks : model->experts;

    if (!fastest(m, memo, PKI_COLL_ALLTOALL, group, 1, model->tokens * model->hidden * BF16 / group, &each))
        return false;
    out->compute_us = 3 * forward * model->layers;
    out->total_us = out->exposed_us = 4 * each * model->layers; /* there and back, in both passes */
    finish(out);
    return true;
}

struct sim_memo *sim_memo_make(void)
{
    return calloc(1, sizeof(struct sim_memo));
}

const struct sim_pattern sim_patterns[] = {
    { "data", "data parallel: an allreduce a layer behind the backward pass", data_parallel },
    { "sharded", "sharded data parallel: allgather and reduce_scatter a layer", sharded },
    { "pipeline", "pipeline 1F1B, four batches a stage", pipeline },
    { "tensor", "tensor parallel inside a node, copies across nodes", tensor_parallel },
    { "sequence", "ring exchange of keys and values", sequence_parallel },
    { "expert", "two alltoalls a layer and pass", expert_parallel },
    { NULL, NULL, NULL },
};

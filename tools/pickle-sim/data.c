/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Element `index` of a rank's IN: far from what other places have. */
static uint32_t input(uint32_t rank, size_t index)
{
    uint64_t x = ((uint64_t)rank << 32 | (uint32_t)index) + 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

static uint32_t **make_buffers(int size, size_t elements, bool fill)
{
    uint32_t **buffers = size > 0 ? calloc((size_t)size, sizeof *buffers) : NULL;

    for (int rank = 0; buffers != NULL && rank < size; rank++) {
        buffers[rank] = malloc((elements + 1) * sizeof **buffers);
        if (buffers[rank] == NULL)
            break;
        for (size_t i = 0; i < elements; i++)
            buffers[rank][i] = fill ? input((uint32_t)rank, i) : 0xdeadbeefu;
    }
    return buffers;
}

static void free_buffers(uint32_t **buffers, int size)
{
    for (int rank = 0; buffers != NULL && rank < size; rank++)
        free(buffers[rank]);
    free(buffers);
}

static bool complete(uint32_t **buffers, int size)
{
    return buffers != NULL && buffers[size - 1] != NULL;
}

bool sim_data_make(struct sim_data *data, const struct sim_world *world, const struct pki_layout *layout, size_t chunk)
{
    size_t scratch = 0;

    *data = (struct sim_data){ .world = world, .layout = layout, .chunk = chunk };
    for (int rank = 0; rank < world->size; rank++) {
        size_t block = pki_layout_scratch(layout, world->plans[rank]);
        size_t need = block * world->plans[rank]->scratch_blocks;

        data->scratch_block = block > data->scratch_block ? block : data->scratch_block;
        scratch = need > scratch ? need : scratch;
        if (data->scratch_block * world->plans[rank]->scratch_blocks > scratch)
            scratch = data->scratch_block * world->plans[rank]->scratch_blocks;
    }
    data->in = make_buffers(world->size, layout->in_total, true);
    data->out = make_buffers(world->size, layout->out_total, false);
    data->scratch = make_buffers(world->size, scratch, false);
    data->stage = calloc(world->nsteps + 1u, sizeof *data->stage);
    if (data->stage != NULL && complete(data->in, world->size) && complete(data->out, world->size) &&
        complete(data->scratch, world->size))
        return true;
    fprintf(stderr, "no memory for the data of %d ranks\n", world->size);
    sim_data_free(data);
    return false;
}

void sim_data_free(struct sim_data *data)
{
    free_buffers(data->in, data->world->size);
    free_buffers(data->out, data->world->size);
    free_buffers(data->scratch, data->world->size);
    for (uint32_t s = 0; data->stage != NULL && s < data->world->nsteps; s++)
        free(data->stage[s]);
    free(data->stage);
    data->in = data->out = data->scratch = data->stage = NULL;
}

/* Where chunk `chunk` of what `ref` names lies, and how long it is. */
static uint32_t *place(const struct sim_data *data, uint32_t rank, struct pki_ref ref, uint32_t chunk, size_t *count)
{
    uint32_t *const buffer = ref.buffer == PKI_BUF_IN    ? data->in[rank]
                             : ref.buffer == PKI_BUF_OUT ? data->out[rank]
                                                         : data->scratch[rank] + ref.index * data->scratch_block;
    size_t first, all, skip = (size_t)chunk * data->chunk;

    pki_layout_block(data->layout, data->world->plans[rank], ref, &first, &all);
    if (skip > all)
        skip = all;
    *count = all - skip < data->chunk ? all - skip : data->chunk;
    return buffer + first + skip;
}

static bool read_source(struct sim_data *data, const struct sim_step *step, uint32_t chunk)
{
    size_t first, all, count;
    const uint32_t *from = place(data, step->rank, step->plan->src, chunk, &count);
    uint32_t **stage = &data->stage[step->partner];

    pki_layout_block(data->layout, data->world->plans[step->rank], step->plan->src, &first, &all);
    if (*stage == NULL)
        *stage = malloc((all + 1) * sizeof **stage);
    if (*stage != NULL)
        memcpy(*stage + (size_t)chunk * data->chunk, from, count * sizeof *from);
    return *stage != NULL;
}

static void receive(struct sim_data *data, const struct sim_step *step, uint32_t chunk)
{
    const uint32_t *from = data->stage[step - data->world->steps] + (size_t)chunk * data->chunk, *add = NULL;
    size_t count;
    uint32_t *dst = place(data, step->rank, step->plan->dst, chunk, &count);

    if (step->plan->kind == PKI_STEP_RECV_REDUCE)
        add = place(data, step->rank, step->plan->src, chunk, &count);
    for (size_t i = 0; i < count; i++)
        dst[i] = from[i] + (add != NULL ? add[i] : 0);
}

static void reduce(struct sim_data *data, const struct sim_step *step, uint32_t chunk)
{
    const struct pki_step *p = step->plan;
    const struct pki_ref *operands = data->world->plans[step->rank]->operands + p->first_operand;
    size_t count;
    uint32_t *dst = place(data, step->rank, p->dst, chunk, &count);

    for (size_t i = 0; i < count; i++) {
        uint32_t sum = 0;

        for (uint32_t k = 0; k < p->operands; k++)
            sum += place(data, step->rank, operands[k], chunk, &count)[i];
        dst[i] = sum;
    }
}

bool sim_data_do(struct sim_data *data, const struct sim_step *step, uint32_t chunk)
{
    size_t count;
    uint32_t *dst;

    switch (step->plan->kind) {
    case PKI_STEP_SEND:
        return read_source(data, step, chunk);
    case PKI_STEP_RECV:
    case PKI_STEP_RECV_REDUCE:
        receive(data, step, chunk);
        return true;
    case PKI_STEP_COPY:
        dst = place(data, step->rank, step->plan->dst, chunk, &count);
        memmove(dst, place(data, step->rank, step->plan->src, chunk, &count), count * sizeof *dst);
        return true;
    default:
        reduce(data, step, chunk);
        return true;
    }
}

/* What element `index` of OUT has to be on `rank`. `part`: elements of one rank's block. `sums`: element by element, of all ranks. */
static uint32_t expected(const struct sim_data *data, uint32_t rank, size_t index, size_t part, const uint32_t *sums)
{
    switch (data->world->algorithm->coll) {
    case PKI_COLL_ALLREDUCE:
    case PKI_COLL_REDUCE:
        return sums[index];
    case PKI_COLL_REDUCE_SCATTER:
        return sums[rank * part + index];
    case PKI_COLL_BROADCAST:
        return input((uint32_t)data->world->root, index);
    case PKI_COLL_SCATTER:
        return input((uint32_t)data->world->root, rank * part + index);
    case PKI_COLL_ALLTOALL:
        return input((uint32_t)(index / part), rank * part + index % part);
    default: /* gathers */
        return input((uint32_t)(index / part), index % part);
    }
}

bool sim_data_right(const struct sim_data *data)
{
    const struct sim_world *world = data->world;
    const struct pki_shape *shape = pki_coll_shape(world->algorithm->coll);
    size_t in = data->layout->in_total, out = data->layout->out_total, ranks = (size_t)world->size;
    size_t part = shape->in_many ? in / ranks : shape->out_many ? out / ranks : out;
    uint32_t *sums = calloc(in + 1, sizeof *sums);
    bool good = sums != NULL;

    for (uint32_t rank = 0; good && shape->reduces && rank < ranks; rank++)
        for (size_t i = 0; i < in; i++)
            sums[i] += input(rank, i);
    for (uint32_t rank = 0; good && rank < ranks; rank++)
        for (size_t i = 0; good && i < out && pki_shape_has_out(shape, (int)rank, world->root); i++) {
            good = data->out[rank][i] == expected(data, rank, i, part, sums);
            if (!good)
                fprintf(stderr, "%s %s, %d ranks: element %zu of rank %u is wrong\n", shape->name, world->algorithm->name,
                        world->size, i, rank);
        }
    free(sums);
    return good;
}

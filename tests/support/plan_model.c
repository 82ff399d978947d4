/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_model.h"

#include <stdlib.h>
#include <string.h>

bool plan_world_make(struct plan_world *world, const struct pki_algorithm *algorithm, int size, bool in_place, size_t count,
                     size_t chunk)
{
    *world = (struct plan_world){ algorithm, size, in_place, count, chunk, calloc((size_t)size, sizeof *world->plans) };
    if (world->plans == NULL)
        return false;
    for (int rank = 0; rank < size; rank++) {
        if (pki_plan_make(algorithm, rank, size, in_place, &world->plans[rank]) != PK_OK) {
            plan_world_free(world);
            return false;
        }
    }
    return true;
}

void plan_world_free(struct plan_world *world)
{
    for (int rank = 0; world->plans != NULL && rank < world->size; rank++)
        pki_plan_free(world->plans[rank]);
    free(world->plans);
    world->plans = NULL;
}

static size_t in_total(const struct plan_world *world)
{
    return world->count;
}

static size_t out_total(const struct plan_world *world)
{
    return world->algorithm->coll == PKI_COLL_ALLGATHER ? world->count * (size_t)world->size : world->count;
}

static size_t out_first(const struct plan_world *world)
{
    return world->in_place ? 0 : in_total(world);
}

static size_t longest_block(const struct plan_world *world, const struct pki_plan *plan)
{
    size_t first, in, out;

    pki_block_range(in_total(world), plan->in_blocks, 0, &first, &in);
    pki_block_range(out_total(world), plan->out_blocks, 0, &first, &out);
    return in > out ? in : out;
}

size_t plan_memory_size(const struct plan_world *world, int rank)
{
    const struct pki_plan *plan = world->plans[rank];

    return out_first(world) + out_total(world) + plan->scratch_blocks * longest_block(world, plan);
}

static struct plan_span block_of(const struct plan_world *world, int rank, uint8_t buffer, uint32_t index)
{
    const struct pki_plan *plan = world->plans[rank];
    struct plan_span span;

    if (buffer == PKI_BUF_OUT) {
        pki_block_range(out_total(world), plan->out_blocks, index, &span.first, &span.count);
        span.first += out_first(world);
        return span;
    }
    pki_block_range(in_total(world), plan->in_blocks, index, &span.first, &span.count);
    if (world->in_place && world->algorithm->coll == PKI_COLL_ALLGATHER)
        span.first += (size_t)rank * world->count;
    return span;
}

struct plan_span plan_block(const struct plan_world *world, int rank, struct pki_ref ref)
{
    struct plan_span span;

    if (ref.buffer != PKI_BUF_SCRATCH)
        return block_of(world, rank, ref.buffer, ref.index);
    span = block_of(world, rank, ref.like_buffer, ref.like);
    span.first = out_first(world) + out_total(world) + ref.index * longest_block(world, world->plans[rank]);
    return span;
}

struct plan_span plan_chunk(const struct plan_world *world, int rank, struct pki_ref ref, uint32_t chunk)
{
    struct plan_span span = plan_block(world, rank, ref);
    size_t offset = chunk * world->chunk;

    if (offset >= span.count)
        return (struct plan_span){ span.first + span.count, 0 };
    span.first += offset;
    span.count -= offset;
    if (span.count > world->chunk)
        span.count = world->chunk;
    return span;
}

uint32_t plan_step_chunks(const struct plan_world *world, int rank, uint32_t step)
{
    const struct pki_step *s = &world->plans[rank]->steps[step];
    size_t count = plan_block(world, rank, s->kind == PKI_STEP_SEND ? s->src : s->dst).count;

    return count == 0 ? 1 : (uint32_t)((count + world->chunk - 1) / world->chunk);
}

bool plan_step_sends(const struct pki_step *step)
{
    return step->kind == PKI_STEP_SEND;
}

bool plan_step_receives(const struct pki_step *step)
{
    return step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE;
}

int plan_partner(const struct plan_world *world, int rank, const struct pki_step *step)
{
    const struct pki_plan *theirs = world->plans[step->peer];

    for (uint32_t i = 0; i < theirs->nsteps; i++) {
        const struct pki_step *other = &theirs->steps[i];
        bool opposite = plan_step_sends(step) ? plan_step_receives(other) : plan_step_sends(other);

        if (opposite && other->peer == rank && other->pair_index == step->pair_index)
            return (int)i;
    }
    return -1;
}

uint32_t plan_needed(uint32_t chunk, uint32_t chunks, uint32_t dep_chunks)
{
    return chunk + 1 >= chunks || chunk + 1 >= dep_chunks ? dep_chunks : chunk + 1;
}

void plan_remove_dep(struct pki_plan *plan, uint32_t step, uint32_t dep)
{
    struct pki_step *s = &plan->steps[step];

    s->deps--;
    memmove(&plan->deps[s->first_dep + dep], &plan->deps[s->first_dep + dep + 1], (s->deps - dep) * sizeof *plan->deps);
}

uint64_t plan_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

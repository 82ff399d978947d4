/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_model.h"

#include <stdlib.h>
#include <string.h>

/* ---- what collectives are ---- */

bool plan_is_rooted(const struct pki_algorithm *algorithm)
{
    return algorithm->build_rooted != NULL;
}

bool plan_has_in(const struct pki_algorithm *algorithm, int rank, int root)
{
    enum pki_coll coll = algorithm->coll;

    return rank == root || (coll != PKI_COLL_BROADCAST && coll != PKI_COLL_SCATTER && coll != PKI_COLL_SCATTERV);
}

bool plan_has_out(const struct pki_algorithm *algorithm, int rank, int root)
{
    enum pki_coll coll = algorithm->coll;

    return rank == root || (coll != PKI_COLL_REDUCE && coll != PKI_COLL_GATHER && coll != PKI_COLL_GATHERV);
}

/* One block for each rank, seen by the operation. */
static bool in_is_many(enum pki_coll coll)
{
    return coll == PKI_COLL_REDUCE_SCATTER || coll == PKI_COLL_ALLTOALL || coll == PKI_COLL_ALLTOALLV ||
           coll == PKI_COLL_SCATTER || coll == PKI_COLL_SCATTERV;
}

static bool out_is_many(enum pki_coll coll)
{
    return coll == PKI_COLL_ALLGATHER || coll == PKI_COLL_ALLGATHERV || coll == PKI_COLL_ALLTOALL || coll == PKI_COLL_ALLTOALLV ||
           coll == PKI_COLL_GATHER || coll == PKI_COLL_GATHERV;
}

static bool is_v(enum pki_coll coll)
{
    return coll >= PKI_COLL_ALLGATHERV && coll <= PKI_COLL_SCATTERV;
}

bool plan_in_place(const struct plan_world *world, int rank)
{
    if (plan_is_rooted(world->algorithm) && rank != world->c.root)
        return false;
    return world->c.in_place >> (rank % 32) & 1;
}

/* ---- lengths ---- */

/* Elements that go from one rank to another. In v-forms every third block is empty. */
static size_t length(const struct plan_world *world, int from, int to)
{
    enum pki_coll coll = world->algorithm->coll;
    uint64_t key = world->c.lengths, a = (uint64_t)from, b = (uint64_t)to;

    if (!is_v(coll))
        return coll == PKI_COLL_BARRIER ? 0 : world->c.count;
    if (coll == PKI_COLL_ALLGATHERV || coll == PKI_COLL_GATHERV)
        b = 0;
    if (coll == PKI_COLL_SCATTERV)
        a = 0;
    if (world->c.in_place != 0 && a > b) /* alltoallv: what goes has room for what comes */
        a = b, b = (uint64_t)from;
    key += a * 1000 + b;
    key = plan_random(&key);
    return key % 3 == 0 ? 0 : key / 3 % (world->c.count + 1);
}

/* Counts and offsets of `size` blocks, with gaps; backwards for some seeds. */
static void fill_table(const struct plan_world *world, int rank, bool in, size_t *counts, size_t *offsets)
{
    int size = world->c.size;
    size_t at = 0;

    for (int i = 0; i < size; i++) {
        int p = world->c.lengths & 1 ? size - 1 - i : i;

        counts[p] = in ? length(world, rank, p) : length(world, p, rank);
        offsets[p] = at;
        at += counts[p] + (world->c.lengths >> 1 & 1);
    }
}

static void make_layout(struct plan_world *world, int rank)
{
    enum pki_coll coll = world->algorithm->coll;
    struct pki_layout *layout = &world->layouts[rank];
    size_t size = (size_t)world->c.size, *table = world->tables + (size_t)rank * 4 * size;

    layout->in_total = length(world, rank, rank) * (in_is_many(coll) ? size : 1);
    layout->out_total = length(world, rank, rank) * (out_is_many(coll) ? size : 1);
    if (is_v(coll) && in_is_many(coll) && plan_has_in(world->algorithm, rank, world->c.root)) {
        fill_table(world, rank, true, table, table + size);
        layout->in_counts = table;
        layout->in_offsets = table + size;
    }
    if (is_v(coll) && out_is_many(coll) && plan_has_out(world->algorithm, rank, world->c.root)) {
        fill_table(world, rank, false, table + 2 * size, table + 3 * size);
        layout->out_counts = table + 2 * size;
        layout->out_offsets = table + 3 * size;
    }
}

static size_t extent(size_t total, const size_t *counts, const size_t *offsets, int size)
{
    size_t end = 0;

    for (int i = 0; counts != NULL && i < size; i++)
        if (offsets[i] + counts[i] > end)
            end = offsets[i] + counts[i];
    return counts != NULL ? end : total;
}

struct plan_span plan_user_block(const struct plan_world *world, int rank, enum pki_buffer buffer, int other)
{
    enum pki_coll coll = world->algorithm->coll;
    const struct pki_layout *layout = &world->layouts[rank];
    bool in = buffer == PKI_BUF_IN, many = in ? in_is_many(coll) : out_is_many(coll);
    const size_t *offsets = in ? layout->in_offsets : layout->out_offsets;
    struct plan_span span = { (in ? world->in : world->out)[rank].first,
                              in ? length(world, rank, other) : length(world, other, rank) };

    if (many)
        span.first += offsets != NULL ? offsets[other] : (size_t)other * span.count;
    return span;
}

/* IN before OUT; or the one within the other, where the collective says. */
static void place_buffers(struct plan_world *world, int rank)
{
    enum pki_coll coll = world->algorithm->coll;
    const struct pki_layout *l = &world->layouts[rank];
    struct plan_span *in = &world->in[rank], *out = &world->out[rank];

    in->count = extent(l->in_total, l->in_counts, l->in_offsets, world->c.size);
    out->count = extent(l->out_total, l->out_counts, l->out_offsets, world->c.size);
    if (!plan_in_place(world, rank))
        out->first = in->count;
    else if (out_is_many(coll) && !in_is_many(coll))
        in->first = plan_user_block(world, rank, PKI_BUF_OUT, rank).first;
    else if (in_is_many(coll) && !out_is_many(coll))
        out->first = plan_user_block(world, rank, PKI_BUF_IN, rank).first;
}

/* ---- making ---- */

static int partner(const struct plan_world *world, int rank, const struct pki_step *step)
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

static bool find_partners(struct plan_world *world, int rank)
{
    const struct pki_plan *plan = world->plans[rank];

    world->partners[rank] = malloc((plan->nsteps + 1u) * sizeof **world->partners);
    for (uint32_t i = 0; world->partners[rank] != NULL && i < plan->nsteps; i++) {
        const struct pki_step *s = &plan->steps[i];

        world->partners[rank][i] = plan_step_sends(s) || plan_step_receives(s) ? partner(world, rank, s) : -1;
    }
    return world->partners[rank] != NULL;
}

static bool fill_world(struct plan_world *world)
{
    for (int rank = 0; rank < world->c.size; rank++) {
        if (pki_plan_make(world->algorithm, world->c.hosts, rank, world->c.size, world->c.root, plan_in_place(world, rank),
                          &world->plans[rank]) != PK_OK)
            return false;
        make_layout(world, rank);
        world->scratch[rank] = pki_layout_scratch(&world->layouts[rank], world->plans[rank]);
        place_buffers(world, rank);
    }
    for (int rank = 0; rank < world->c.size; rank++)
        if (!find_partners(world, rank))
            return false;
    return true;
}

bool plan_world_make(struct plan_world *world, const struct pki_algorithm *algorithm, const struct plan_case *c)
{
    size_t size = (size_t)c->size;

    *world = (struct plan_world){ .algorithm = algorithm, .c = *c };
    world->plans = calloc(size, sizeof *world->plans);
    world->layouts = calloc(size, sizeof *world->layouts);
    world->tables = calloc(size * size * 4, sizeof *world->tables);
    world->partners = calloc(size, sizeof *world->partners);
    world->in = calloc(size, sizeof *world->in);
    world->out = calloc(size, sizeof *world->out);
    world->scratch = calloc(size, sizeof *world->scratch);
    if (world->plans != NULL && world->layouts != NULL && world->tables != NULL && world->partners != NULL && world->in != NULL &&
        world->out != NULL && world->scratch != NULL && fill_world(world))
        return true;
    plan_world_free(world);
    return false;
}

void plan_world_free(struct plan_world *world)
{
    for (int rank = 0; world->plans != NULL && rank < world->c.size; rank++)
        pki_plan_free(world->plans[rank]);
    for (int rank = 0; world->partners != NULL && rank < world->c.size; rank++)
        free(world->partners[rank]);
    free(world->plans);
    free(world->layouts);
    free(world->tables);
    free(world->partners);
    free(world->in);
    free(world->out);
    free(world->scratch);
    *world = (struct plan_world){ 0 };
}

/* ---- memory ---- */

size_t plan_user_size(const struct plan_world *world, int rank)
{
    size_t in = world->in[rank].first + world->in[rank].count, out = world->out[rank].first + world->out[rank].count;

    return in > out ? in : out;
}

size_t plan_memory_size(const struct plan_world *world, int rank)
{
    const struct pki_plan *plan = world->plans[rank];

    return plan_user_size(world, rank) + plan->scratch_blocks * world->scratch[rank];
}

struct plan_span plan_block(const struct plan_world *world, int rank, struct pki_ref ref)
{
    const struct pki_plan *plan = world->plans[rank];
    const struct pki_layout *layout = &world->layouts[rank];
    struct plan_span span;

    pki_layout_block(layout, plan, ref, &span.first, &span.count);
    if (ref.buffer == PKI_BUF_IN)
        span.first += world->in[rank].first;
    else if (ref.buffer == PKI_BUF_OUT)
        span.first += world->out[rank].first;
    else
        span.first += plan_user_size(world, rank) + ref.index * world->scratch[rank];
    return span;
}

struct plan_span plan_chunk(const struct plan_world *world, int rank, struct pki_ref ref, uint32_t chunk)
{
    struct plan_span span = plan_block(world, rank, ref);
    size_t offset = chunk * world->c.chunk;

    if (offset >= span.count)
        return (struct plan_span){ span.first + span.count, 0 };
    span.first += offset;
    span.count -= offset;
    if (span.count > world->c.chunk)
        span.count = world->c.chunk;
    return span;
}

uint32_t plan_step_chunks(const struct plan_world *world, int rank, uint32_t step)
{
    const struct pki_step *s = &world->plans[rank]->steps[step];
    size_t count = plan_block(world, rank, s->kind == PKI_STEP_SEND ? s->src : s->dst).count;

    return count == 0 ? 1 : (uint32_t)((count + world->c.chunk - 1) / world->c.chunk);
}

/* ---- steps ---- */

bool plan_step_sends(const struct pki_step *step)
{
    return step->kind == PKI_STEP_SEND;
}

bool plan_step_receives(const struct pki_step *step)
{
    return step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE;
}

uint32_t plan_needed(const struct pki_step *step, uint32_t chunk, uint32_t chunks, uint32_t dep_chunks)
{
    return step->whole || chunk + 1 >= chunks || chunk + 1 >= dep_chunks ? dep_chunks : chunk + 1;
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

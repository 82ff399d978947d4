/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happens-before of all chunks of all ranks as a graph: a node for the start and one for the end of each (rank, step, chunk), and
 * for each node the set of nodes before it. Two accesses are in order when the end of one is before the start of the other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan_model.h"

#define ACCESSES_MAX 24
#define WORD_BITS 64

struct access {
    struct plan_span span;
    bool writes;
};

struct work { /* one chunk of one step; its nodes are 2 * index (start) and 2 * index + 1 (end) */
    int rank;
    uint32_t step, chunk, chunks;
    struct access accesses[ACCESSES_MAX];
    int naccesses;
};

struct graph {
    const struct plan_world *world;
    struct work *works;
    uint32_t nworks;
    uint32_t **first; /* [rank][step]: index of the work of chunk 0 */
    uint64_t *before; /* [node][words] */
    size_t words;
    uint8_t *state; /* of a node: 0 new, 1 being visited, 2 known */
    bool cycle;
};

static void touch(struct work *w, const struct plan_world *world, struct pki_ref ref, bool writes)
{
    if (w->naccesses < ACCESSES_MAX)
        w->accesses[w->naccesses++] = (struct access){ plan_chunk(world, w->rank, ref, w->chunk), writes };
}

static void list_accesses(struct work *w, const struct plan_world *world)
{
    const struct pki_plan *plan = world->plans[w->rank];
    const struct pki_step *s = &plan->steps[w->step];

    if (s->kind == PKI_STEP_SEND || s->kind == PKI_STEP_RECV_REDUCE || s->kind == PKI_STEP_COPY)
        touch(w, world, s->src, false);
    for (uint32_t i = 0; i < s->operands; i++)
        touch(w, world, plan->operands[s->first_operand + i], false);
    if (s->kind != PKI_STEP_SEND)
        touch(w, world, s->dst, true);
    if (s->kind == PKI_STEP_RECV_REDUCE)
        touch(w, world, s->landing, true);
}

static bool graph_open(struct graph *g, const struct plan_world *world)
{
    uint32_t total = 0;

    *g = (struct graph){ .world = world, .first = calloc((size_t)world->c.size, sizeof *g->first) };
    for (int rank = 0; rank < world->c.size; rank++) {
        g->first[rank] = calloc(world->plans[rank]->nsteps + 1u, sizeof **g->first);
        for (uint32_t step = 0; step < world->plans[rank]->nsteps; step++) {
            g->first[rank][step] = total;
            total += plan_step_chunks(world, rank, step);
        }
    }
    g->works = calloc(total + 1u, sizeof *g->works);
    for (int rank = 0; rank < world->c.size; rank++) {
        for (uint32_t step = 0; step < world->plans[rank]->nsteps; step++) {
            uint32_t chunks = plan_step_chunks(world, rank, step);

            for (uint32_t chunk = 0; chunk < chunks; chunk++) {
                struct work *w = &g->works[g->nworks++];

                *w = (struct work){ .rank = rank, .step = step, .chunk = chunk, .chunks = chunks };
                list_accesses(w, world);
            }
        }
    }
    g->words = (2 * (size_t)total + WORD_BITS - 1) / WORD_BITS;
    g->before = calloc(2 * (size_t)total * g->words + 1, sizeof *g->before);
    g->state = calloc(2 * (size_t)total + 1, 1);
    return g->works != NULL && g->before != NULL && g->state != NULL;
}

static void graph_close(struct graph *g)
{
    for (int rank = 0; rank < g->world->c.size; rank++)
        free(g->first[rank]);
    free(g->first);
    free(g->works);
    free(g->before);
    free(g->state);
}

static void visit(struct graph *g, uint32_t node);

/* Everything before `earlier`, and itself, is before `node`. */
static void edge(struct graph *g, uint32_t earlier, uint32_t node)
{
    uint64_t *set = g->before + node * g->words;

    visit(g, earlier);
    for (size_t i = 0; i < g->words; i++)
        set[i] |= g->before[earlier * g->words + i];
    set[earlier / WORD_BITS] |= (uint64_t)1 << (earlier % WORD_BITS);
}

static void edges_to_start(struct graph *g, uint32_t index)
{
    const struct work *w = &g->works[index];
    const struct pki_plan *plan = g->world->plans[w->rank];
    const struct pki_step *s = &plan->steps[w->step];

    if (w->chunk > 0)
        edge(g, 2 * (index - 1) + 1, 2 * index);
    for (uint32_t i = 0; i < s->deps; i++) {
        uint32_t first = g->first[w->rank][plan->deps[s->first_dep + i]];

        edge(g, 2 * (first + plan_needed(s, w->chunk, w->chunks, g->works[first].chunks) - 1) + 1, 2 * index);
    }
}

static void edges_to_end(struct graph *g, uint32_t index)
{
    const struct work *w = &g->works[index];
    const struct pki_step *s = &g->world->plans[w->rank]->steps[w->step];
    int partner = plan_step_receives(s) ? g->world->partners[w->rank][w->step] : -1;

    edge(g, 2 * index, 2 * index + 1);
    if (partner >= 0)
        edge(g, 2 * (g->first[s->peer][partner] + w->chunk), 2 * index + 1);
}

static void visit(struct graph *g, uint32_t node)
{
    if (g->state[node] == 1)
        g->cycle = true;
    if (g->state[node] != 0)
        return;
    g->state[node] = 1;
    if (node % 2 == 0)
        edges_to_start(g, node / 2);
    else
        edges_to_end(g, node / 2);
    g->state[node] = 2;
}

static bool ends_before(const struct graph *g, uint32_t a, uint32_t b)
{
    uint32_t end = 2 * a + 1;

    return g->before[2 * b * g->words + end / WORD_BITS] >> (end % WORD_BITS) & 1;
}

static bool conflict(const struct work *a, const struct work *b)
{
    for (int i = 0; i < a->naccesses; i++) {
        for (int j = 0; j < b->naccesses; j++) {
            const struct access *x = &a->accesses[i], *y = &b->accesses[j];

            if ((x->writes || y->writes) && x->span.count > 0 && y->span.count > 0 &&
                x->span.first < y->span.first + y->span.count && y->span.first < x->span.first + x->span.count)
                return true;
        }
    }
    return false;
}

static bool unordered_pair(const struct graph *g, char *text, size_t text_bytes)
{
    for (uint32_t a = 0; a < g->nworks; a++) {
        for (uint32_t b = a + 1; b < g->nworks && g->works[b].rank == g->works[a].rank; b++) {
            const struct work *x = &g->works[a], *y = &g->works[b];

            if (conflict(x, y) && !ends_before(g, a, b) && !ends_before(g, b, a)) {
                snprintf(text, text_bytes, "rank %d: step %u chunk %u and step %u chunk %u touch the same elements in no order",
                         x->rank, x->step, x->chunk, y->step, y->chunk);
                return true;
            }
        }
    }
    return false;
}

/* Whether anything of rank `other` comes before the end of some step of `rank`. */
static bool has_heard_of(const struct graph *g, int rank, int other)
{
    for (uint32_t a = 0; a < g->nworks; a++)
        for (uint32_t b = 0; g->works[a].rank == rank && b < g->nworks; b++)
            if (g->works[b].rank == other &&
                g->before[(2 * (size_t)a + 1) * g->words + 2 * b / WORD_BITS] >> (2 * b % WORD_BITS) & 1)
                return true;
    return false;
}

static bool leaky_barrier(const struct graph *g, char *text, size_t text_bytes)
{
    for (int rank = 0; rank < g->world->c.size; rank++) {
        for (int other = 0; other < g->world->c.size; other++) {
            if (other == rank || has_heard_of(g, rank, other))
                continue;
            snprintf(text, text_bytes, "rank %d can leave the barrier before rank %d has come", rank, other);
            return true;
        }
    }
    return false;
}

bool plan_find_hazard(const struct plan_world *world, char *text, size_t text_bytes)
{
    struct graph g;
    bool found;

    if (!graph_open(&g, world)) {
        graph_close(&g);
        snprintf(text, text_bytes, "out of memory");
        return true;
    }
    for (uint32_t node = 0; node < 2 * g.nworks; node++)
        visit(&g, node);
    found = g.cycle || unordered_pair(&g, text, text_bytes);
    if (!found && world->algorithm->coll == PKI_COLL_BARRIER)
        found = leaky_barrier(&g, text, text_bytes);
    if (g.cycle)
        snprintf(text, text_bytes, "steps wait for one another in a circle");
    graph_close(&g);
    return found;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graphs that captured operations are in, and what these have: signal slots, holds of this rank's regions, scratch memory.
 * The driver says when a graph, and all that was made of it, is gone, in a thread of its own where nothing may be called: it
 * sets a flag, and whoever has the engine next gives back.
 *
 * Collectives share slots and scratch memory, whatever graph they are in, for they have a turn one after another: within a
 * graph by its edges, and across launches by the device's turn.
 */
#include <stdlib.h>

#include "engine/mem/graphs.h"
#include "engine/mem/mem.h"

static atomic_uint gone_graphs; /* of the process; counted behind their `gone` */

/* ---- graphs ---- */

static void let_go(struct pki_graph *g)
{
    if (atomic_fetch_sub(&g->holders, 1) == 1)
        free(g);
}

static void graph_gone(void *arg)
{
    struct pki_graph *g = arg;

    atomic_store(&g->gone, true);
    atomic_fetch_add(&gone_graphs, 1);
    let_go(g);
}

static struct pki_graph *find(const struct pki_engine *e, uint64_t capture)
{
    for (struct pki_list *n = e->mem.graphs.prev; n != &e->mem.graphs; n = n->prev) {
        struct pki_graph *g = pki_container_of(n, struct pki_graph, node);

        if (g->capture == capture && !atomic_load(&g->gone))
            return g;
    }
    return NULL;
}

pk_result_t pki_graph_enter(struct pki_engine *e, const struct pki_queue *queue, struct pki_graph **out)
{
    struct pki_graph *g;
    uint64_t capture = 0;
    bool yes = false;
    pk_result_t result = e->gpu->ops->capturing(queue, &yes, &capture);

    if (result == PK_OK && !yes)
        result = pki_fail(PK_ERR_ARG, NULL, "the stream's capture has ended meanwhile");
    if (result != PK_OK)
        return result;
    g = find(e, capture);
    if (g == NULL) {
        g = calloc(1, sizeof *g);
        if (g == NULL)
            return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a graph's operations");
        g->capture = capture;
        atomic_init(&g->holders, 2);
        pki_list_init(&g->captured);
        if (pki_list_empty(&e->mem.graphs))
            atomic_fetch_add(&e->service.watched, 1); /* somebody has to notice for a waiting graph that a peer is gone */
        pki_list_push(&e->mem.graphs, &g->node);
        result = e->gpu->ops->graph_keep(queue, graph_gone, g);
    }
    if (result != PK_OK)
        return result;
    g->calls++;
    *out = g;
    return PK_OK;
}

static void free_captured(struct pki_engine *e, struct captured *c)
{
    if (c->own_slot >= 0) {
        atomic_store(&c->slot->claim, 0);
        pki_slots_give_new(&c->peer->signals, c->own_slot);
    }
    pki_region_drop(e, c->region);
    if (c->held != NULL)
        pki_list_push(&e->mem.graph_holds, &c->node);
    else
        free(c);
}

static void give_holds(struct pki_engine *e)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&e->mem.graph_holds)) != NULL) {
        struct captured *c = pki_container_of(node, struct captured, node);

        pki_retained_give(c->held);
        free(c);
    }
}

static void end_graph(struct pki_engine *e, struct pki_graph *g)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&g->captured)) != NULL)
        free_captured(e, pki_container_of(node, struct captured, node));
    for (int i = 0; i < PKI_GRAPH_SCRATCHES; i++)
        if ((g->scratch >> i & 1) != 0)
            pki_graph_scratch_give(e, i);
    pki_list_remove(&g->node);
    if (pki_list_empty(&e->mem.graphs))
        atomic_fetch_sub(&e->service.watched, 1);
    let_go(g);
}

/* All senders have come to what was granted to them: until then they need the regions. */
static bool is_met(const struct pki_graph *g)
{
    for (const struct pki_list *n = g->captured.next; n != &g->captured; n = n->next) {
        const struct captured *c = pki_container_of(n, struct captured, node);

        if (!c->is_send && c->slot != NULL && atomic_load(&c->slot->claim) < c->met)
            return false;
    }
    return true;
}

void pki_graphs_reap(struct pki_engine *e)
{
    unsigned gone = atomic_load(&gone_graphs);
    struct pki_list *next;

    if (gone == e->mem.graphs_gone)
        return;
    e->mem.graphs_gone = gone;
    for (struct pki_list *n = e->mem.graphs.next; n != &e->mem.graphs; n = next) {
        struct pki_graph *g = pki_container_of(n, struct pki_graph, node);

        next = n->next;
        if (!atomic_load(&g->gone))
            continue;
        if (g->calls == 0 && is_met(g))
            end_graph(e, g);
        else
            e->mem.graphs_gone = gone - 1; /* look again */
    }
}

/* ---- slots ---- */

static pk_result_t take_slot(struct pki_peer *peer, uint16_t *taken)
{
    int slot = pki_slots_take_new(&peer->signals); /* the words of an eager one may not have been seen by all who wait for them */
    struct pki_signal_slot *words;

    if (slot < 0)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "more than %d receives from one rank are in graphs that exist, or pending",
                        PKI_SIGNAL_SLOTS);
    words = &peer->ctrl->signals_mine[slot];
    pki_watchdog_note(peer, false, slot, 1);
    atomic_store(&words->start, 0);
    atomic_store(&words->done, 0);
    atomic_store(&words->claim, 0);
    *taken = (uint16_t)slot;
    return PK_OK;
}

static pk_result_t share_slot(struct pki_peer *peer, uint32_t receive)
{
    struct pki_graph_slot *grown = realloc(peer->graph_slots.at, (receive + 1) * sizeof *grown);
    pk_result_t result = PK_OK;

    if (grown == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %u signal slots", receive + 1);
    peer->graph_slots.at = grown;
    while (peer->graph_slots.n <= receive && result == PK_OK) {
        struct pki_graph_slot *shared = &grown[peer->graph_slots.n];

        shared->granted = 0;
        result = take_slot(peer, &shared->slot);
        peer->graph_slots.n += result == PK_OK;
    }
    return result;
}

pk_result_t pki_graph_slot(struct captured *c)
{
    struct pki_peer *peer = c->peer;
    pk_result_t result = PK_OK;
    uint16_t slot = 0;

    if ((c->flags & PKI_MSG_FLAG_COLL) == 0) {
        result = take_slot(peer, &slot);
        c->own_slot = result == PK_OK ? slot : -1;
        c->met = 1;
    } else {
        if (c->index >= peer->graph_slots.n)
            result = share_slot(peer, c->index);
        if (result == PK_OK) {
            slot = peer->graph_slots.at[c->index].slot;
            c->met = ++peer->graph_slots.at[c->index].granted;
        }
    }
    if (result == PK_OK)
        c->slot = &peer->ctrl->signals_mine[slot];
    return result;
}

/* ---- scratch memory that collectives share ---- */

static pk_result_t make_scratch(struct pki_engine *e, size_t bytes, struct pki_graph_scratch *s)
{
    void *ptr;
    pk_result_t result;

    bytes = (bytes + PKI_SCRATCH_STEP - 1) / PKI_SCRATCH_STEP * PKI_SCRATCH_STEP;
    result = pki_retained_alloc_mappable(e->limits.ordinal, bytes, &ptr); /* to give it back waits for nothing */
    if (result == PK_OK)
        *s = (struct pki_graph_scratch){ .ptr = ptr, .bytes = bytes };
    return result;
}

/* The shortest that is long enough, or else one twice as long as the longest. */
pk_result_t pki_graph_scratch_take(struct pki_engine *e, size_t bytes, int *index)
{
    size_t longest = 0;
    int best = -1, unused = -1;
    pk_result_t result;

    for (int i = 0; i < PKI_GRAPH_SCRATCHES; i++) {
        const struct pki_graph_scratch *s = &e->mem.graph_scratch[i];

        if (s->ptr == NULL)
            unused = i;
        else if (s->bytes >= bytes && (best < 0 || s->bytes < e->mem.graph_scratch[best].bytes))
            best = i;
        longest = s->ptr != NULL && s->bytes > longest ? s->bytes : longest;
    }
    if (best < 0 && unused < 0)
        return pki_fail(PK_ERR_MEMORY, NULL, "scratch memory of graphs in more than %d lengths", PKI_GRAPH_SCRATCHES);
    if (best < 0) {
        best = unused;
        result = make_scratch(e, bytes > 2 * longest ? bytes : 2 * longest, &e->mem.graph_scratch[best]);
        if (result != PK_OK)
            return result;
        e->mem.idle_scratch++;
    }
    e->mem.idle_scratch -= e->mem.graph_scratch[best].users++ == 0;
    *index = best;
    return PK_OK;
}

void pki_graph_scratch_give(struct pki_engine *e, int index)
{
    e->mem.idle_scratch += --e->mem.graph_scratch[index].users == 0;
}

/* No graph of this rank uses it: all that its peers wrote has come. After a failure nobody knows. */
static void free_scratch(struct pki_engine *e, struct pki_graph_scratch *s)
{
    struct pki_mem mem;

    if (e->gpu->ops->classify(e->gpu, s->ptr, s->bytes, &mem) == PK_OK)
        pki_region_withdraw(e, &mem);
    pki_retained_give(s->ptr);
    s->ptr = NULL;
    e->mem.idle_scratch--;
}

void pki_graphs_tidy(struct pki_engine *e)
{
    pki_graphs_reap(e);
    give_holds(e);
    for (int i = 0; e->mem.idle_scratch > 0 && i < PKI_GRAPH_SCRATCHES && atomic_load(&e->failed) == PK_OK; i++)
        if (e->mem.graph_scratch[i].ptr != NULL && e->mem.graph_scratch[i].users == 0)
            free_scratch(e, &e->mem.graph_scratch[i]);
}

/* ---- the end ---- */

void pki_graphs_wait(struct pki_engine *e)
{
    bool waits;

    pki_engine_lock(e);
    pki_graphs_reap(e);
    waits = atomic_load(&e->failed) != PK_OK && !pki_list_empty(&e->mem.graphs);
    pki_engine_unlock(e);
    if (waits)
        e->gpu->ops->graphs_wait(e->gpu);
}

/* Graphs may still be there, to be destroyed and not to be launched: what they hold of the device is left to them. */
void pki_graphs_close(struct pki_engine *e)
{
    pki_graphs_reap(e);
    if (e->mem.graph_turn != NULL && pki_list_empty(&e->mem.graphs))
        e->gpu->ops->replay_lock_close(e->gpu, e->mem.graph_turn);
    while (!pki_list_empty(&e->mem.graphs))
        end_graph(e, pki_container_of(e->mem.graphs.next, struct pki_graph, node));
}

void pki_graphs_free(struct pki_engine *e)
{
    give_holds(e);
    for (int i = 0; i < PKI_GRAPH_SCRATCHES; i++)
        if (e->mem.graph_scratch[i].ptr != NULL)
            pki_retained_give(e->mem.graph_scratch[i].ptr);
    if (e->fused.replay_inbox != NULL)
        pki_retained_give(e->fused.replay_inbox);
}

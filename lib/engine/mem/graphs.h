/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs that have operations of an engine, and what these hold. Locked. */
#ifndef PKI_ENGINE_GRAPHS_H
#define PKI_ENGINE_GRAPHS_H

#include "engine/mem/mem.h"

/* A graph that has operations of this engine. */
struct pki_graph {
    struct pki_list node;            /* engine->mem.graphs */
    uint64_t capture;                /* the driver's number of it */
    struct pki_list captured;        /* its transfers */
    uint32_t scratch;                /* bit i: it uses engine->mem.graph_scratch[i] */
    void *replay_lock_stream, *turn; /* where its last collective was, and what ended that one's turn; NULL: there was none */
    int calls;                       /* that capture into it now */
    atomic_bool gone;                /* it has been destroyed, and all that was made of it */
    atomic_int holders;              /* the engine and the driver: whoever lets go last frees it */
};

/* One transfer of a captured operation. Lives as long as the graph. */
struct captured {
    struct pki_list node; /* graph->captured */
    struct pki_peer *peer;
    struct pki_signal_slot *slot;
    int own_slot;    /* receive, of a message: index in peer->signals; else -1 */
    uint32_t region; /* receive: that the peer writes into; 0: none */
    uint64_t met;    /* receive: what the slot's claim is at least when the sender has met this grant, and mapped the region */
    bool is_send;
    uint8_t flags;
    uint16_t index;
    uint32_t sig;
    uint64_t op;
    char *addr;
    size_t bytes;
    uint64_t remote;
    void *held; /* send: memory that a rank of this process has for its graphs; given back in a call; NULL: none */
    const char *name;
};

/* The graph that this queue is captured into. It stays while `calls` counts the caller. */
pk_result_t pki_graph_enter(struct pki_engine *e, const struct pki_queue *queue, struct pki_graph **graph);
/* A signal slot for a receive, its words 0: the transfer's own, or the one that all captured collectives have for their k-th from
 * this peer. */
pk_result_t pki_graph_slot(struct captured *c);
/* Memory that stays until it has been given back as often as taken. */
pk_result_t pki_graph_scratch_take(struct pki_engine *e, size_t bytes, int *index);
void pki_graph_scratch_give(struct pki_engine *e, int index);

/* What is of graphs that are gone is given back; calls nothing of the driver. */
void pki_graphs_reap(struct pki_engine *engine);
void pki_graphs_tidy(struct pki_engine *engine); /* and, in a call, scratch memory that no graph needs is freed */
/* Unlocked, at the end: after a failure until replays that were launched have ended, which the service thread lets go. */
void pki_graphs_wait(struct pki_engine *engine);
void pki_graphs_close(struct pki_engine *engine);
/* Their memory, behind that of the words, whose giving back waits for replays that are still under way. */
void pki_graphs_free(struct pki_engine *engine);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs. An executable graph cuts its nodes into chains (each node follows one that it depends on), and each chain is a stream
 * of its own: branches run side by side, and a node waits for nothing that it does not depend on.
 */
#include "fakecuda.h"

#include <stdlib.h>
#include <string.h>

struct exec_node {
    struct fc_op *op;
    size_t *deps; /* earlier nodes */
    size_t ndeps;
    size_t chain;
    bool watched; /* a node of another chain, or nobody, comes behind it */
};

struct fc_exec {
    struct fc_exec *next;
    unsigned refs; /* the handle, and each launch that has not ended */
    bool destroyed;
    struct exec_node *nodes;
    size_t n;
    struct fc_stream **chains;
    size_t nchains;
    bool has_events;
    struct fc_point *last;
    struct fc_user_ref *users;
};

static struct fc_graph *graphs;
static struct fc_exec *execs;

static void *must(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

/* --- graphs --- */

struct fc_graph *fc_graph_new(void)
{
    struct fc_graph *graph = must(calloc(1, sizeof *graph));

    graph->next = graphs;
    graphs = graph;
    return graph;
}

struct fc_graph *fc_graph_get(CUgraph handle)
{
    struct fc_graph *graph = graphs;

    while (graph != NULL && (CUgraph)(void *)graph != handle)
        graph = graph->next;
    return graph;
}

struct fc_node *fc_graph_add(struct fc_graph *graph, struct fc_op *op, struct fc_node *const *deps, size_t ndeps)
{
    struct fc_node *node = must(calloc(1, sizeof *node));

    if (graph->n == graph->capacity) {
        graph->capacity = graph->capacity == 0 ? 16 : graph->capacity * 2;
        graph->nodes = must(realloc(graph->nodes, graph->capacity * sizeof(struct fc_node *)));
    }
    node->op = op;
    node->index = graph->n;
    node->deps = must(malloc((ndeps + 1) * sizeof(struct fc_node *)));
    node->ndeps = ndeps;
    for (size_t i = 0; i < ndeps; i++) {
        node->deps[i] = deps[i];
        deps[i]->has_successor = true;
    }
    graph->nodes[graph->n++] = node;
    return node;
}

void fc_graph_free(struct fc_graph *graph)
{
    struct fc_graph **link = &graphs;

    while (*link != graph)
        link = &(*link)->next;
    *link = graph->next;
    for (size_t i = 0; i < graph->n; i++) {
        fc_op_put(graph->nodes[i]->op);
        free(graph->nodes[i]->deps);
        free(graph->nodes[i]);
    }
    fc_users_free(graph->users);
    free(graph->nodes);
    free(graph);
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        if (fc_graph_get(hGraph) != NULL)
            fc_graph_free(fc_graph_get(hGraph));
        else
            result = CUDA_ERROR_INVALID_VALUE;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUresult list_nodes(const struct fc_graph *graph, CUgraphNode *nodes, size_t *n)
{
    if (graph == NULL || n == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; nodes != NULL && i < *n; i++)
        nodes[i] = i < graph->n ? (CUgraphNode)(void *)graph->nodes[i] : NULL;
    if (nodes == NULL || graph->n < *n)
        *n = graph->n;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = list_nodes(fc_graph_get(hGraph), nodes, numNodes);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    static const CUgraphNodeType types[] = {
        [FC_OP_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [FC_OP_SET] = CU_GRAPH_NODE_TYPE_MEMSET,
        [FC_OP_WAIT] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [FC_OP_WRITE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [FC_OP_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [FC_OP_HOST] = CU_GRAPH_NODE_TYPE_HOST,
        [FC_OP_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [FC_OP_JOIN] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        [FC_OP_GRAPH] = CU_GRAPH_NODE_TYPE_GRAPH,
        [FC_OP_EMPTY] = CU_GRAPH_NODE_TYPE_EMPTY,
        [FC_OP_EVENT_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [FC_OP_EVENT_WAIT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    };
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        *type = types[((struct fc_node *)(void *)hNode)->op->kind];
    return fc_leave(__func__, result);
}

/* --- executable graphs --- */

/* A node continues the chain whose last node it depends on; failing that it begins one. */
static void assign_chains(struct fc_exec *exec)
{
    size_t *tails = must(malloc((exec->n + 1) * sizeof *tails));

    for (size_t i = 0; i < exec->n; i++) {
        struct exec_node *node = &exec->nodes[i];

        node->chain = exec->nchains;
        for (size_t d = 0; d < node->ndeps && node->chain == exec->nchains; d++)
            if (tails[exec->nodes[node->deps[d]].chain] == node->deps[d])
                node->chain = exec->nodes[node->deps[d]].chain;
        if (node->chain == exec->nchains)
            exec->nchains++;
        tails[node->chain] = i;
        for (size_t d = 0; d < node->ndeps; d++)
            if (exec->nodes[node->deps[d]].chain != node->chain)
                exec->nodes[node->deps[d]].watched = true;
    }
    for (size_t c = 0; c < exec->nchains; c++)
        exec->nodes[tails[c]].watched = true;
    free(tails);
}

static bool is_event(const struct fc_op *op)
{
    return op->kind == FC_OP_EVENT_RECORD || op->kind == FC_OP_EVENT_WAIT;
}

static struct fc_exec *exec_new(const struct fc_graph *graph)
{
    struct fc_exec *exec = must(calloc(1, sizeof *exec));

    exec->refs = 1;
    exec->n = graph->n;
    exec->nodes = must(calloc(graph->n + 1, sizeof *exec->nodes));
    for (size_t i = 0; i < graph->n; i++) {
        const struct fc_node *from = graph->nodes[i];
        struct exec_node *to = &exec->nodes[i];

        to->op = from->op;
        to->op->refs++;
        exec->has_events |= is_event(to->op);
        to->ndeps = from->ndeps;
        to->deps = must(malloc((from->ndeps + 1) * sizeof *to->deps));
        for (size_t d = 0; d < from->ndeps; d++)
            to->deps[d] = from->deps[d]->index;
    }
    assign_chains(exec);
    exec->chains = must(calloc(exec->nchains + 1, sizeof(struct fc_stream *)));
    for (size_t i = 0; i < exec->n; i++) {
        struct fc_stream **chain = &exec->chains[exec->nodes[i].chain];

        if (*chain == NULL)
            *chain = must(fc_stream_new(exec->nodes[i].op->ctx, CU_STREAM_NON_BLOCKING, 0, true));
    }
    exec->users = fc_users_copy(graph->users);
    return exec;
}

void fc_exec_put(struct fc_exec *exec)
{
    if (--exec->refs > 0)
        return;
    for (size_t i = 0; i < exec->n; i++) {
        fc_op_put(exec->nodes[i].op);
        free(exec->nodes[i].deps);
    }
    for (size_t c = 0; c < exec->nchains; c++)
        fc_stream_close(exec->chains[c]);
    fc_point_put(exec->last);
    fc_users_free(exec->users);
    free(exec->chains);
    free(exec->nodes);
    free(exec);
}

static void push_point(struct fc_stream *s, enum fc_op_kind kind, struct fc_point *point)
{
    struct fc_op *op = fc_op_new(kind, s->ctx);

    op->point = point;
    point->refs++;
    fc_push(s, op);
}

void fc_external_free(const struct fc_exec *exec, struct fc_point **external)
{
    for (size_t i = 0; external != NULL && i < exec->n; i++)
        fc_point_put(external[i]);
    free(external);
}

/* What the nodes wait for is what has recorded the event last when the graph is launched, this launch's own nodes before them
 * among that. */
static struct fc_point **external_new(const struct fc_exec *exec)
{
    struct fc_point **external = exec->has_events ? must(calloc(exec->n + 1, sizeof(struct fc_point *))) : NULL;

    for (size_t i = 0; exec->has_events && i < exec->n; i++) {
        const struct fc_op *op = exec->nodes[i].op;

        if (!is_event(op))
            continue;
        if (op->kind == FC_OP_EVENT_RECORD) {
            fc_point_put(op->event->point);
            op->event->point = fc_point_new();
        }
        external[i] = op->event->point;
        if (external[i] != NULL)
            external[i]->refs++;
    }
    return external;
}

void fc_exec_run(struct fc_exec *exec, struct fc_point *const *external)
{
    struct fc_point **points = must(calloc(exec->n + 1, sizeof(struct fc_point *)));

    for (size_t i = 0; i < exec->n; i++) {
        struct exec_node *node = &exec->nodes[i];
        struct fc_stream *s = exec->chains[node->chain];

        for (size_t d = 0; d < node->ndeps; d++)
            if (exec->nodes[node->deps[d]].chain != node->chain)
                push_point(s, FC_OP_JOIN, points[node->deps[d]]);
        if (!is_event(node->op)) {
            node->op->refs++;
            fc_push(s, node->op);
        } else if (external[i] != NULL) {
            push_point(s, node->op->kind == FC_OP_EVENT_WAIT ? FC_OP_JOIN : FC_OP_RECORD, external[i]);
        }
        if (node->watched) {
            points[i] = fc_point_new();
            push_point(s, FC_OP_RECORD, points[i]);
        }
    }
    for (size_t i = 0; i < exec->n; i++)
        if (points[i] != NULL) {
            fc_point_wait(points[i]);
            fc_point_put(points[i]);
        }
    free(points);
    fc_count(FC_GRAPH_LAUNCHES, 1);
}

static struct fc_exec *exec_get(CUgraphExec handle)
{
    struct fc_exec *exec = execs;

    while (exec != NULL && (CUgraphExec)(void *)exec != handle)
        exec = exec->next;
    return exec;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS && (phGraphExec == NULL || flags > 15))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct fc_graph *graph;

        fc_lock();
        graph = fc_graph_get(hGraph);
        if (graph == NULL) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            struct fc_exec *exec = exec_new(graph);

            exec->next = execs;
            execs = exec;
            *phGraphExec = (CUgraphExec)(void *)exec;
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUresult launch(struct fc_exec *exec, CUstream handle)
{
    struct fc_stream *s = NULL;
    struct fc_op *op;
    CUresult result = exec != NULL ? fc_stream_get(handle, &s) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    if (s->capture != NULL)
        return fc_capture_check(s); /* a child graph: the real driver can */
    op = fc_op_new(FC_OP_GRAPH, s->ctx);
    exec->refs++;
    op->graph.exec = exec;
    op->graph.before = exec->last; /* with the executable graph's reference */
    op->graph.done = fc_point_new();
    op->graph.done->refs++;
    op->graph.external = external_new(exec);
    exec->last = op->graph.done;
    result = fc_submit(s, op);
    if (result != CUDA_SUCCESS)
        exec->last->done = true; /* or the next launch would wait for it */
    return result;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = launch(exec_get(hGraphExec), hStream);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    (void)hStream;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = exec_get(hGraphExec) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        struct fc_exec *exec;

        fc_lock();
        exec = exec_get(hGraphExec);
        if (exec == NULL) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            struct fc_exec **link = &execs;

            while (*link != exec)
                link = &(*link)->next;
            *link = exec->next;
            fc_exec_put(exec);
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

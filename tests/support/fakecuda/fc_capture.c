/* SPDX-License-Identifier: Apache-2.0 */
/* Capturing streams into a graph, and what is forbidden meanwhile. Lock held everywhere but in the entry points. */
#include "fakecuda.h"

#include <stdlib.h>
#include <string.h>

static struct fc_capture *captures; /* those that have not ended */
static uint64_t last_id;

void fc_capture_put(struct fc_capture *capture)
{
    if (capture != NULL && --capture->refs == 0)
        free(capture);
}

static void invalidate(struct fc_capture *c)
{
    if (c->state == FC_CAPTURE_ACTIVE) {
        fc_trace("capture %lu is invalid from here", (unsigned long)c->id);
        c->state = FC_CAPTURE_INVALID;
    }
}

static bool concerns_me(const struct fc_capture *c)
{
    bool mine = pthread_equal(c->thread, pthread_self()) && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;

    if (fc_self.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return mine || (fc_self.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult fc_capture_unsafe(void)
{
    CUresult result = CUDA_SUCCESS;

    for (struct fc_capture *c = captures; c != NULL; c = c->next)
        if (concerns_me(c)) {
            invalidate(c);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

bool fc_capture_in_ctx(const struct fc_ctx *ctx, bool spoil)
{
    bool any = false;

    for (struct fc_stream *s = fc_stream_first(); s != NULL; s = s->next)
        if (s->ctx == ctx && s->capture != NULL) {
            any = true;
            if (spoil)
                invalidate(s->capture);
        }
    return any;
}

/* A capture of a stream that the legacy default stream would have to wait for. */
static struct fc_capture *blocking_capture(const struct fc_ctx *ctx)
{
    for (struct fc_stream *s = fc_stream_first(); s != NULL; s = s->next)
        if (s->ctx == ctx && s->capture != NULL && !(s->flags & CU_STREAM_NON_BLOCKING))
            return s->capture;
    return NULL;
}

CUresult fc_capture_implicit(const struct fc_ctx *ctx)
{
    struct fc_capture *c = blocking_capture(ctx);

    if (c == NULL)
        return CUDA_SUCCESS;
    invalidate(c);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult fc_capture_check(struct fc_stream *stream)
{
    if (stream->capture != NULL) {
        invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stream == stream->ctx->legacy ? fc_capture_implicit(stream->ctx) : CUDA_SUCCESS;
}

static bool ongoing(const struct fc_capture *c)
{
    return c != NULL && c->state != FC_CAPTURE_ENDED;
}

CUresult fc_capture_event(struct fc_event *event)
{
    if (event->capture == NULL)
        return CUDA_SUCCESS;
    if (ongoing(event->capture))
        invalidate(event->capture);
    return CUDA_ERROR_CAPTURED_EVENT;
}

void fc_capture_forget_event(struct fc_event *event)
{
    fc_capture_put(event->capture);
    event->capture = NULL;
    free(event->deps);
    event->deps = NULL;
    event->ndeps = 0;
}

static struct fc_node **copy_deps(struct fc_node *const *deps, size_t n)
{
    struct fc_node **copy = malloc((n + 1) * sizeof *copy);

    if (copy == NULL)
        abort();
    if (n > 0)
        memcpy(copy, deps, n * sizeof *copy);
    return copy;
}

static void set_deps(struct fc_stream *s, struct fc_node *const *deps, size_t n)
{
    struct fc_node **copy = copy_deps(deps, n);

    free(s->deps);
    s->deps = copy;
    s->ndeps = n;
}

static void add_deps(struct fc_stream *s, struct fc_node *const *deps, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool there = false;

        for (size_t j = 0; j < s->ndeps; j++)
            there = there || s->deps[j] == deps[i];
        if (there)
            continue;
        s->deps = realloc(s->deps, (s->ndeps + 1) * sizeof *s->deps);
        if (s->deps == NULL)
            abort();
        s->deps[s->ndeps++] = deps[i];
    }
}

CUresult fc_capture_add(struct fc_stream *stream, struct fc_op *op)
{
    struct fc_node *node;

    if (stream->capture->state != FC_CAPTURE_ACTIVE) {
        fc_op_put(op);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    node = fc_graph_add(stream->capture->graph, op, stream->deps, stream->ndeps);
    set_deps(stream, &node, 1);
    return CUDA_SUCCESS;
}

CUresult fc_capture_record(struct fc_stream *stream, struct fc_event *event)
{
    if (stream->capture->state != FC_CAPTURE_ACTIVE)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    fc_capture_forget_event(event);
    fc_point_put(event->point);
    event->point = NULL;
    event->capture = stream->capture;
    event->capture->refs++;
    event->deps = copy_deps(stream->deps, stream->ndeps);
    event->ndeps = stream->ndeps;
    return CUDA_SUCCESS;
}

/* A stream outside waits for an event inside: it joins the capture. */
static CUresult join(struct fc_stream *stream, struct fc_event *event)
{
    if (stream == stream->ctx->legacy) {
        invalidate(event->capture);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream->capture = event->capture;
    stream->capture->refs++;
    set_deps(stream, event->deps, event->ndeps);
    return CUDA_SUCCESS;
}

CUresult fc_capture_wait(struct fc_stream *stream, struct fc_event *event)
{
    struct fc_capture *of_event = ongoing(event->capture) ? event->capture : NULL;
    struct fc_capture *mine = stream->capture;

    if ((mine != NULL && mine->state == FC_CAPTURE_INVALID) || (of_event != NULL && of_event->state == FC_CAPTURE_INVALID))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (mine == NULL)
        return of_event != NULL ? join(stream, event) : CUDA_ERROR_CAPTURED_EVENT;
    if (of_event == NULL) {
        if (event->point == NULL && event->capture == NULL)
            return CUDA_SUCCESS; /* never recorded: nothing to wait for */
        invalidate(mine);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (of_event != mine) {
        invalidate(mine);
        invalidate(of_event);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    add_deps(stream, event->deps, event->ndeps);
    return CUDA_SUCCESS;
}

static CUresult begin(CUstream handle, CUstreamCaptureMode mode)
{
    struct fc_stream *s = NULL;
    CUresult result = fc_stream_get(handle, &s);
    struct fc_capture *c;

    if (result != CUDA_SUCCESS)
        return result;
    if (s == s->ctx->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    c = calloc(1, sizeof *c);
    if (c == NULL)
        abort();
    *c = (struct fc_capture){
        .next = captures, .refs = 1, .id = ++last_id, .mode = mode, .thread = pthread_self(), .origin = s, .graph = fc_graph_new()
    };
    captures = c;
    s->capture = c;
    set_deps(s, NULL, 0);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = begin(hStream, mode);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

/* Each end of the graph must be something that the origin has waited for. */
static bool all_joined(const struct fc_capture *c)
{
    for (size_t i = 0; i < c->graph->n; i++) {
        bool joined = c->graph->nodes[i]->has_successor;

        for (size_t j = 0; j < c->origin->ndeps; j++)
            joined = joined || c->origin->deps[j] == c->graph->nodes[i];
        if (!joined)
            return false;
    }
    return true;
}

static CUresult finish(struct fc_capture *c, struct fc_graph **graph)
{
    struct fc_capture **link = &captures;
    CUresult result = CUDA_SUCCESS;

    if (c->state == FC_CAPTURE_INVALID)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!all_joined(c))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    c->state = FC_CAPTURE_ENDED;
    *graph = c->graph;
    if (result != CUDA_SUCCESS) {
        fc_graph_free(c->graph);
        *graph = NULL;
    }
    c->graph = NULL;
    c->refs++; /* ours: the streams' never are the last */
    for (struct fc_stream *s = fc_stream_first(); s != NULL; s = s->next)
        if (s->capture == c) {
            s->capture = NULL;
            s->ndeps = 0;
            c->refs--;
        }
    fc_capture_put(c);
    return result;
}

static CUresult end(CUstream handle, CUgraph *out)
{
    struct fc_stream *s = NULL;
    struct fc_graph *graph = NULL;
    CUresult result = fc_stream_get(handle, &s);

    if (result != CUDA_SUCCESS)
        return result;
    if (s->capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (s->capture->origin != s) {
        invalidate(s->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (s->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(s->capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    result = finish(s->capture, &graph);
    *out = (CUgraph)(void *)graph;
    return result;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS && phGraph == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = end(hStream, phGraph);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUstreamCaptureStatus status_of(const struct fc_stream *s)
{
    if (s->capture == NULL)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return s->capture->state == FC_CAPTURE_ACTIVE ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                             const CUgraphNode **deps, size_t *ndeps)
{
    struct fc_stream *s = NULL;
    CUresult result = fc_stream_get(handle, &s);

    if (result != CUDA_SUCCESS)
        return result;
    if (s == s->ctx->legacy && blocking_capture(s->ctx) != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = status_of(s);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id != NULL)
        *id = s->capture->id;
    if (graph != NULL)
        *graph = (CUgraph)(void *)s->capture->graph;
    if (deps != NULL)
        *deps = (const CUgraphNode *)(const void *)s->deps;
    if (ndeps != NULL)
        *ndeps = s->ndeps;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = capture_info(hStream, captureStatus, NULL, NULL, NULL, NULL);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                   CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = capture_info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                   CUgraph *graph_out, const CUgraphNode **dependencies_out, const CUgraphEdgeData **edgeData_out,
                                   size_t *numDependencies_out)
{
    if (edgeData_out != NULL)
        *edgeData_out = NULL;
    return cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out);
}

static CUresult update_deps(CUstream handle, struct fc_node *const *deps, size_t n, unsigned flags)
{
    struct fc_stream *s = NULL;
    CUresult result = fc_stream_get(handle, &s);

    if (result != CUDA_SUCCESS)
        return result;
    if (s->capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (s->capture->state != FC_CAPTURE_ACTIVE)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        set_deps(s, deps, n);
    else
        add_deps(s, deps, n);
    return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                                              size_t numDependencies, unsigned int flags)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    (void)dependencyData;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = update_deps(hStream, (struct fc_node **)(void *)dependencies, numDependencies, flags);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUresult result = fc_enter(__func__, FC_ANY);

    if (result == CUDA_SUCCESS && (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        CUstreamCaptureMode old = fc_self.mode;

        fc_self.mode = *mode;
        *mode = old;
    }
    return fc_leave(__func__, result);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: queues of operations, each with a thread that takes them in order. */
#include "fakecuda.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct fc_stream *streams; /* the closing ones too, until they are empty */
static struct fc_stream *reaper;
static uint64_t last_id;

int64_t fc_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --- points --- */

struct fc_point *fc_point_new(void)
{
    struct fc_point *point = calloc(1, sizeof *point);

    if (point == NULL)
        abort();
    point->refs = 1;
    return point;
}

void fc_point_put(struct fc_point *point)
{
    if (point != NULL && --point->refs == 0)
        free(point);
}

void fc_point_wait(struct fc_point *point)
{
    point->refs++;
    while (!point->done)
        pthread_cond_wait(&fc.changed, &fc.lock);
    fc_point_put(point);
}

/* --- operations --- */

struct fc_op *fc_op_new(enum fc_op_kind kind, struct fc_ctx *ctx)
{
    struct fc_op *op = calloc(1, sizeof *op);

    if (op == NULL)
        abort();
    op->kind = kind;
    op->refs = 1;
    op->ctx = ctx;
    return op;
}

void fc_op_put(struct fc_op *op)
{
    if (--op->refs > 0)
        return;
    switch (op->kind) {
    case FC_OP_COPY:
        free(op->copy.snapshot);
        break;
    case FC_OP_KERNEL:
        free(op->launch.params);
        break;
    case FC_OP_RECORD:
    case FC_OP_JOIN:
        fc_point_put(op->point);
        break;
    case FC_OP_EVENT_RECORD:
    case FC_OP_EVENT_WAIT:
        fc_event_put(op->event);
        break;
    case FC_OP_GRAPH:
        fc_external_free(op->graph.exec, op->graph.external);
        fc_point_put(op->graph.before);
        fc_point_put(op->graph.done);
        fc_exec_put(op->graph.exec);
        break;
    default:
        break;
    }
    free(op);
}

static struct fc_op *point_op(enum fc_op_kind kind, struct fc_ctx *ctx, struct fc_point *point)
{
    struct fc_op *op = fc_op_new(kind, ctx);

    op->point = point;
    point->refs++;
    return op;
}

/* --- life of a stream --- */

struct fc_stream *fc_stream_first(void)
{
    return streams;
}

struct fc_stream *fc_stream_new(struct fc_ctx *ctx, unsigned flags, int priority, bool internal)
{
    struct fc_stream *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    *s = (struct fc_stream){ .next = streams,
                             .ctx = ctx,
                             .flags = flags,
                             .priority = priority,
                             .internal = internal,
                             .epoch = ctx->epoch,
                             .id = ++last_id };
    pthread_cond_init(&s->work, NULL);
    streams = s;
    fc_count(FC_STREAMS, 1);
    return s;
}

static void stream_free(struct fc_stream *s)
{
    struct fc_stream **link = &streams;

    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    pthread_cond_destroy(&s->work);
    free(s->deps);
    free(s);
    fc_count(FC_STREAMS, -1);
}

void fc_stream_close(struct fc_stream *stream)
{
    stream->closing = true;
    if (stream->started)
        pthread_cond_signal(&stream->work);
    else if (stream->pins == 0)
        stream_free(stream);
}

static struct fc_stream *default_stream(struct fc_ctx *ctx, struct fc_stream **slot)
{
    if (*slot == NULL)
        *slot = fc_stream_new(ctx, CU_STREAM_DEFAULT, 0, false);
    if (*slot != NULL)
        (*slot)->epoch = ctx->epoch;
    return *slot;
}

CUresult fc_stream_get(CUstream handle, struct fc_stream **stream)
{
    struct fc_ctx *ctx = fc_current();
    struct fc_stream *s = streams;

    if (handle == NULL || handle == CU_STREAM_LEGACY)
        s = default_stream(ctx, &ctx->legacy);
    else if (handle == CU_STREAM_PER_THREAD)
        s = default_stream(ctx, &ctx->per_thread); /* one for all threads here */
    else
        while (s != NULL && (s->closing || s->internal || (CUstream)(void *)s != handle))
            s = s->next;
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->epoch != s->ctx->epoch || s->ctx->refs == 0)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *stream = s;
    return CUDA_SUCCESS;
}

/* --- the queue --- */

static struct fc_op *take_head(struct fc_stream *s)
{
    while (s->head == NULL && !(s->closing && s->pins == 0))
        pthread_cond_wait(&s->work, &fc.lock);
    return s->head != NULL ? s->head->op : NULL;
}

static void pop_head(struct fc_stream *s)
{
    struct fc_item *item = s->head;

    s->head = item->next;
    if (s->head == NULL)
        s->tail = NULL;
    s->completed++;
    fc_op_put(item->op);
    free(item);
    pthread_cond_broadcast(&fc.changed);
}

static void *stream_main(void *argument)
{
    struct fc_stream *s = argument;
    uint64_t random = s->id * 0x9e3779b97f4a7c15u + (uint64_t)fc_now_ns();

    fc_lock();
    for (;;) {
        struct fc_op *op = take_head(s);

        if (op == NULL)
            break;
        fc_unlock();
        fc_execute(op, &random);
        fc_lock();
        pop_head(s);
    }
    stream_free(s);
    fc_unlock();
    return NULL;
}

/* Signals are for the program's own threads. */
static void start_thread(struct fc_stream *s)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, stream_main, s) != 0)
        abort();
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    s->started = true;
}

void fc_push(struct fc_stream *stream, struct fc_op *op)
{
    struct fc_item *item = calloc(1, sizeof *item);

    if (item == NULL)
        abort();
    item->op = op;
    if (stream->tail != NULL)
        stream->tail->next = item;
    else
        stream->head = item;
    stream->tail = item;
    stream->submitted++;
    if (!stream->started)
        start_thread(stream);
    pthread_cond_signal(&stream->work);
}

static bool has_work(const struct fc_stream *s)
{
    return s->completed < s->submitted;
}

/* Everything that `before` holds now comes before what `after` gets next. */
static void order(struct fc_stream *before, struct fc_stream *after)
{
    struct fc_point *point = fc_point_new();

    fc_push(before, point_op(FC_OP_RECORD, before->ctx, point));
    fc_push(after, point_op(FC_OP_JOIN, after->ctx, point));
    fc_point_put(point);
}

/* The legacy default stream and the context's blocking streams wait for one another. */
static void order_with_legacy(struct fc_stream *s)
{
    struct fc_stream *legacy = s->ctx->legacy;

    if (s == legacy) {
        for (struct fc_stream *t = streams; t != NULL; t = t->next)
            if (t != s && t->ctx == s->ctx && !t->internal && !(t->flags & CU_STREAM_NON_BLOCKING) && has_work(t))
                order(t, s);
    } else if (legacy != NULL && !(s->flags & CU_STREAM_NON_BLOCKING) && has_work(legacy)) {
        order(legacy, s);
    }
}

#define FC_ENGINE_COPY ((size_t)1 << 20) /* shorter ones from and to the host go where kernels do */

static bool is_work(const struct fc_op *op)
{
    return op->kind == FC_OP_KERNEL || op->kind == FC_OP_SET || op->kind == FC_OP_WRITE || op->kind == FC_OP_WAIT ||
           (op->kind == FC_OP_COPY && !op->copy.crosses && (op->copy.local || op->copy.bytes < FC_ENGINE_COPY));
}

/* What stands in a queue does so from the call on, whatever it has to wait for in its stream. Words behind a copy of a copy engine go with that. */
static void stand_in_queue(struct fc_stream *stream, struct fc_op *op)
{
    if (op->kind != FC_OP_WRITE)
        stream->by_copy_engine = op->kind == FC_OP_COPY && !is_work(op);
    else if (stream->by_copy_engine)
        return;
    if (fc.ncopy_queues > 0 && op->kind == FC_OP_COPY && op->copy.crosses)
        op->queue = &fc.copy_queues[stream->id % fc.ncopy_queues];
    else if (fc.nwork_queues > 0 && is_work(op))
        op->queue = &fc.work_queues[stream->id % fc.nwork_queues];
    if (op->queue != NULL)
        op->place = op->queue->submitted++;
}

CUresult fc_submit(struct fc_stream *stream, struct fc_op *op)
{
    CUresult result = CUDA_SUCCESS;

    if (stream->capture != NULL)
        return fc_capture_add(stream, op);
    if (stream == stream->ctx->legacy)
        result = fc_capture_implicit(stream->ctx);
    if (result != CUDA_SUCCESS) {
        fc_op_put(op);
        return result;
    }
    /* A full queue blocks the caller, as the hardware's does. */
    stream->pins++;
    while (stream->submitted - stream->completed >= fc.depth)
        pthread_cond_wait(&fc.changed, &fc.lock);
    stream->pins--;
    order_with_legacy(stream);
    stand_in_queue(stream, op);
    fc_push(stream, op);
    return CUDA_SUCCESS;
}

/* A call that waits for what this very thread was to open would wait for ever, and say nothing. */
static void say_stuck(const struct fc_stream *s)
{
    const struct fc_op *op = s->head != NULL ? s->head->op : NULL;

    fprintf(stderr, "fakecuda %d: %s has waited %u s for stream %llu, which has %llu operations to do and is at ", (int)getpid(),
            fc_call(), fc.stuck_s, (unsigned long long)s->id, (unsigned long long)(s->submitted - s->completed));
    if (op != NULL && op->kind == FC_OP_WAIT)
        fprintf(stderr, "a wait for %#llx at %#lx\n", (unsigned long long)op->word.value, (unsigned long)op->word.address);
    else if (op != NULL && op->kind == FC_OP_KERNEL)
        fprintf(stderr, "kernel %s\n", op->launch.kernel->name);
    else
        fprintf(stderr, "an operation of kind %d\n", op != NULL ? (int)op->kind : -1);
}

static void wait_change_watched(const struct fc_stream *s, int64_t since_ns, bool *said)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    (void)pthread_cond_timedwait(&fc.changed, &fc.lock, &until);
    if (*said || fc_now_ns() - since_ns < (int64_t)fc.stuck_s * 1000000000)
        return;
    say_stuck(s);
    *said = true;
}

void fc_wait_done(struct fc_stream *stream)
{
    uint64_t target = stream->submitted;
    int64_t since_ns = fc_now_ns();
    bool said = fc.stuck_s == 0;

    stream->pins++;
    while (stream->completed < target)
        wait_change_watched(stream, since_ns, &said);
    stream->pins--;
    if (stream->closing && stream->pins == 0) {
        if (stream->started)
            pthread_cond_signal(&stream->work);
        else
            stream_free(stream);
    }
}

void fc_wait_ctx(struct fc_ctx *ctx)
{
    uint64_t done = 0;

    /* In the order of ids, since the list may change while one of them is waited for. */
    for (;;) {
        struct fc_stream *next = NULL;

        for (struct fc_stream *s = streams; s != NULL; s = s->next)
            if (s->ctx == ctx && !s->internal && s->id > done && (next == NULL || s->id < next->id))
                next = s;
        if (next == NULL)
            return;
        done = next->id;
        fc_wait_done(next);
    }
}

void fc_reap(CUhostFn fn, void *data)
{
    struct fc_op *op = fc_op_new(FC_OP_HOST, &fc.contexts[0]);

    op->host.fn = fn;
    op->host.data = data;
    if (reaper == NULL)
        reaper = fc_stream_new(&fc.contexts[0], CU_STREAM_NON_BLOCKING, 0, true);
    if (reaper == NULL)
        abort();
    fc_push(reaper, op);
}

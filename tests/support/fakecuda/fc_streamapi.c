/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points about streams and events as such. */
#include "fakecuda.h"

#include <stdlib.h>

static struct fc_event *events;

/* --- streams --- */

static CUresult create(CUstream *stream, unsigned flags, int priority)
{
    struct fc_stream *s;

    if (stream == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (priority > 0)
        priority = 0;
    if (priority < -5)
        priority = -5;
    fc_lock();
    s = fc_stream_new(fc_current(), flags, priority, false);
    fc_unlock();
    if (s == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *stream = (CUstream)(void *)s;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS)
        result = create(phStream, Flags, 0);
    return fc_leave(__func__, result);
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS)
        result = create(phStream, flags, priority);
    return fc_leave(__func__, result);
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        struct fc_stream *s = NULL;

        fc_lock();
        result = fc_stream_get(hStream, &s);
        if (result == CUDA_SUCCESS && (s == s->ctx->legacy || s == s->ctx->per_thread))
            result = CUDA_ERROR_INVALID_HANDLE;
        if (result == CUDA_SUCCESS)
            result = fc_capture_check(s);
        if (result == CUDA_SUCCESS)
            fc_stream_close(s);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuStreamQuery(CUstream hStream)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        struct fc_stream *s = NULL;

        fc_lock();
        result = fc_stream_get(hStream, &s);
        if (result == CUDA_SUCCESS)
            result = fc_capture_check(s);
        if (result == CUDA_SUCCESS && s->completed < s->submitted)
            result = CUDA_ERROR_NOT_READY;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuStreamSynchronize(CUstream hStream)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        struct fc_stream *s = NULL;

        fc_lock();
        result = fc_stream_get(hStream, &s);
        if (result == CUDA_SUCCESS)
            result = fc_capture_check(s);
        if (result == CUDA_SUCCESS) {
            fc_wait_done(s);
            result = fc.sticky;
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUresult look(const char *name, CUstream handle, struct fc_stream **stream)
{
    CUresult result = fc_enter(name, FC_CTX);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = fc_stream_get(handle, stream);
        fc_unlock();
    }
    return result;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    struct fc_stream *s = NULL;
    CUresult result = look(__func__, hStream, &s);

    if (result == CUDA_SUCCESS)
        *pctx = (CUcontext)(void *)s->ctx;
    return fc_leave(__func__, result);
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    struct fc_stream *s = NULL;
    CUresult result = look(__func__, hStream, &s);

    if (result == CUDA_SUCCESS)
        *device = s->ctx->device;
    return fc_leave(__func__, result);
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    struct fc_stream *s = NULL;
    CUresult result = look(__func__, hStream, &s);

    if (result == CUDA_SUCCESS)
        *flags = s->flags;
    return fc_leave(__func__, result);
}

CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
    struct fc_stream *s = NULL;
    CUresult result = look(__func__, hStream, &s);

    if (result == CUDA_SUCCESS)
        *priority = s->priority;
    return fc_leave(__func__, result);
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    struct fc_stream *s = NULL;
    CUresult result = look(__func__, hStream, &s);

    if (result == CUDA_SUCCESS)
        *streamId = s->id;
    return fc_leave(__func__, result);
}

/* --- events --- */

static struct fc_event *find_event(CUevent handle)
{
    struct fc_event *e = events;

    while (e != NULL && (CUevent)(void *)e != handle)
        e = e->next;
    return e;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    CUresult result = fc_enter(__func__, FC_CTX);
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;

    if (result == CUDA_SUCCESS && (phEvent == NULL || (Flags & ~known) != 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct fc_event *e = calloc(1, sizeof *e);

        if (e == NULL)
            abort();
        e->refs = 1;
        e->ctx = fc_current();
        e->flags = Flags;
        fc_lock();
        e->next = events;
        events = e;
        fc_count(FC_EVENTS, 1);
        fc_unlock();
        *phEvent = (CUevent)(void *)e;
    }
    return fc_leave(__func__, result);
}

void fc_event_put(struct fc_event *e)
{
    if (--e->refs > 0)
        return;
    fc_capture_forget_event(e);
    fc_point_put(e->point);
    free(e);
}

/* What waits for the event keeps waiting: it holds the point. */
CUresult cuEventDestroy_v2(CUevent hEvent)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        struct fc_event *e;

        fc_lock();
        e = find_event(hEvent);
        if (e == NULL) {
            result = CUDA_ERROR_INVALID_HANDLE;
        } else {
            struct fc_event **link = &events;

            while (*link != e)
                link = &(*link)->next;
            *link = e->next;
            fc_event_put(e);
            fc_count(FC_EVENTS, -1);
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUresult record(struct fc_event *event, CUstream handle)
{
    struct fc_stream *s = NULL;
    struct fc_op *op;
    CUresult result = event != NULL ? fc_stream_get(handle, &s) : CUDA_ERROR_INVALID_HANDLE;

    if (result != CUDA_SUCCESS)
        return result;
    if (event->ctx != s->ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture != NULL)
        return fc_capture_record(s, event);
    fc_capture_forget_event(event);
    fc_point_put(event->point);
    event->point = fc_point_new();
    op = fc_op_new(FC_OP_RECORD, s->ctx);
    op->point = event->point;
    op->point->refs++;
    result = fc_submit(s, op);
    if (result != CUDA_SUCCESS)
        event->point->done = true; /* nothing will record it */
    return result;
}

/* A node of the graph that is being captured: each launch records the event, or waits for what has recorded it by then. */
static CUresult external(struct fc_event *event, CUstream handle, enum fc_op_kind kind)
{
    struct fc_stream *s = NULL;
    struct fc_op *op;
    CUresult result = event != NULL ? fc_stream_get(handle, &s) : CUDA_ERROR_INVALID_HANDLE;

    if (result != CUDA_SUCCESS)
        return result;
    if (s->capture == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (event->ctx != s->ctx && kind == FC_OP_EVENT_RECORD)
        return CUDA_ERROR_INVALID_HANDLE;
    op = fc_op_new(kind, s->ctx);
    op->event = event;
    event->refs++;
    return fc_submit(s, op);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS && flags > CU_EVENT_RECORD_EXTERNAL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = flags == 0 ? record(find_event(hEvent), hStream) : external(find_event(hEvent), hStream, FC_OP_EVENT_RECORD);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = record(find_event(hEvent), hStream);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUresult stream_wait(CUstream handle, struct fc_event *event)
{
    struct fc_stream *s = NULL;
    struct fc_op *op;
    CUresult result = event != NULL ? fc_stream_get(handle, &s) : CUDA_ERROR_INVALID_HANDLE;

    if (result != CUDA_SUCCESS)
        return result;
    if (s->capture != NULL || event->capture != NULL)
        return fc_capture_wait(s, event);
    if (event->point == NULL)
        return CUDA_SUCCESS;
    op = fc_op_new(FC_OP_JOIN, s->ctx);
    op->point = event->point;
    op->point->refs++;
    return fc_submit(s, op);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS && Flags > CU_EVENT_WAIT_EXTERNAL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = Flags == 0 ? stream_wait(hStream, find_event(hEvent)) : external(find_event(hEvent), hStream, FC_OP_EVENT_WAIT);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuEventQuery(CUevent hEvent)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        struct fc_event *e;

        fc_lock();
        e = find_event(hEvent);
        result = e != NULL ? fc_capture_event(e) : CUDA_ERROR_INVALID_HANDLE;
        if (result == CUDA_SUCCESS && e->point != NULL && !e->point->done)
            result = CUDA_ERROR_NOT_READY;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        struct fc_event *e;

        fc_lock();
        e = find_event(hEvent);
        result = e != NULL ? fc_capture_event(e) : CUDA_ERROR_INVALID_HANDLE;
        if (result == CUDA_SUCCESS && e->point != NULL) {
            fc_point_wait(e->point);
            result = fc.sticky;
        }
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static CUresult elapsed(float *ms, const struct fc_event *start, const struct fc_event *end)
{
    if (ms == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (start == NULL || end == NULL || start->point == NULL || end->point == NULL || start->ctx != end->ctx ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!start->point->done || !end->point->done)
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(end->point->ns - start->point->ns) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = elapsed(pMilliseconds, find_event(hStart), find_event(hEnd));
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A thread inside a context, and the lock of what devices share: what every other file of the CUDA device stands on. */
#include <pthread.h>

#include "device/cuda_device.h"

#define SCOPES_MAX 8

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;

/* What enter changed, for leave to undo; one entry for each change of context of this thread. */
struct scope {
    struct pki_cuda_context *context;
    unsigned depth;
    bool pushed;
    CUstreamCaptureMode mode; /* the thread's before */
};

static _Thread_local struct scope scopes[SCOPES_MAX];
static _Thread_local unsigned scope_count;

void pki_cuda_lock(void)
{
    pthread_mutex_lock(&process_lock);
}

void pki_cuda_unlock(void)
{
    pthread_mutex_unlock(&process_lock);
}

void pki_cuda_enter(struct pki_cuda_context *context)
{
    struct scope *scope = scope_count > 0 ? &scopes[scope_count - 1] : NULL;
    CUcontext current = NULL;

    if (scope != NULL && (scope->context == context || scope_count == SCOPES_MAX)) {
        scope->depth++;
        return;
    }
    scope = &scopes[scope_count++];
    scope->context = context;
    scope->depth = 1;
    scope->pushed = false;
    /* A failure here shows in the call that follows: it then runs without the context and says so. */
    if (context->cu->ctx_get_current(&current) != CUDA_SUCCESS || current != context->handle)
        scope->pushed = context->cu->ctx_push(context->handle) == CUDA_SUCCESS;
    scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    context->cu->exchange_capture_mode(&scope->mode);
}

void pki_cuda_leave(struct pki_cuda_context *context)
{
    struct scope *scope = &scopes[scope_count - 1];
    CUcontext popped;

    if (--scope->depth > 0)
        return;
    scope_count--;
    context->cu->exchange_capture_mode(&scope->mode);
    if (scope->pushed)
        context->cu->ctx_pop(&popped);
}

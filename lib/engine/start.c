/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a call or a group: started together, waited for. */
#include "engine/life.h"
#include "engine/mem/graphs.h"
#include "engine/stream/move.h"
#include "engine/stream/serve.h"
#include "util/noinline.h"

static bool is_mixed(const struct pki_request *requests, int n)
{
    bool messages = false, collectives = false;

    for (int i = 0; i < n; i++) {
        messages |= requests[i].what != PKI_DO_COLL;
        collectives |= requests[i].what == PKI_DO_COLL;
    }
    return messages && collectives;
}

/* It may wait in its stream, if it is in one. */
static pk_result_t make(struct pki_engine *e, const struct pki_request *request, struct pki_task **out)
{
    struct pki_task *task;
    pk_result_t result = pki_task_make(e, request, &task);

    if (result != PK_OK)
        return result;
    if (pki_task_in_cuda_stream(task))
        result = pki_stream_admit(task);
    if (result != PK_OK) {
        pki_task_free(task);
        return result;
    }
    if (pki_task_is_switched(task))
        task->run.executor = &pki_switched_executor;
    if (pki_task_is_fused(task))
        pki_fused_made(task);
    *out = task;
    return PK_OK;
}

static pk_result_t make_all(struct pki_engine *e, const struct pki_request *requests, int n, uint64_t group,
                            struct pki_list *made)
{
    const bool mixed = is_mixed(requests, n);

    for (int i = 0; i < n; i++) {
        struct pki_task *task;
        pk_result_t result = make(e, &requests[i], &task);

        if (result != PK_OK)
            return result;
        task->host.group = group;
        task->cuda.beside_messages = mixed;
        pki_list_push(made, &task->waiting);
    }
    return PK_OK;
}

static void unmake_all(struct pki_list *made)
{
    struct pki_list *node;

    while ((node = pki_list_pop(made)) != NULL) {
        struct pki_task *task = pki_container_of(node, struct pki_task, waiting);

        pki_fused_left(task);
        pki_stream_left(task);
        pki_task_free(task);
    }
}

/* Receives before sends, so that a group that meets itself in one thread, and peers, find the grants. */
static void start_those(struct pki_list *made, bool sends)
{
    for (struct pki_list *n = made->next; n != made; n = n->next) {
        struct pki_task *task = pki_container_of(n, struct pki_task, waiting);

        if ((task->request.what == PKI_DO_SEND) != sends)
            continue;
        if (pki_task_in_cuda_stream(task))
            pki_stream_begin(task);
        else if (task->mode != PKI_TASK_AFTER_STREAM && atomic_load(&task->host.may_start))
            (void)pki_task_start(task);
    }
}

/* From the last to the first: stream/join.c says why. */
static void open_streams(struct pki_list *made)
{
    for (struct pki_list *n = made->prev; n != made; n = n->prev) {
        struct pki_task *task = pki_container_of(n, struct pki_task, waiting);

        if (pki_task_in_cuda_stream(task) && task->request.what != PKI_DO_SEND)
            pki_stream_open(task);
    }
}

/* The later phases of operations in CUDA streams, each for all tasks before the next. */
static void join_streams(struct pki_engine *e, struct pki_list *made)
{
    pki_stream_move_all(e, made);
    for (struct pki_list *n = made->next; n != made; n = n->next) {
        struct pki_task *task = pki_container_of(n, struct pki_task, waiting);

        if (pki_task_in_cuda_stream(task))
            pki_stream_end(task, made);
    }
}

/* Nothing else would end these. */
static void end_unenrolled(struct pki_list *from, struct pki_list *made, pk_result_t result)
{
    for (struct pki_list *n = from; n != made; n = n->next) {
        struct pki_task *task = pki_container_of(n, struct pki_task, waiting);

        pki_fused_left(task);
        pki_stream_left(task);
        task->number = 0;
        task->result = result;
        atomic_store(&task->ended, true);
    }
}

static pk_result_t enroll(struct pki_task *task)
{
    pk_result_t result = pki_task_enroll(task);

    if (result != PK_OK)
        return result;
    if (task->request.what == PKI_DO_COLL)
        pki_fused_enroll(task);
    if (pki_task_is_direct(task) && pki_task_is_fused(task) && !task->fused.reach.asked) /* else the answers are waited for */
        pki_task_set_device_driven(task);
    if (!pki_task_in_cuda_stream(task))
        pki_stream_copies(task);
    if (task->request.stream.kind == PK_STREAM_KIND_HOST) {
        task->host.stream = task->request.stream.handle;
        pki_host_stream_append(task->host.stream, task);
    }
    return PK_OK;
}

static pk_result_t enroll_all(struct pki_engine *e, struct pki_list *made)
{
    for (struct pki_list *n = made->next; n != made; n = n->next) {
        pk_result_t result = enroll(pki_container_of(n, struct pki_task, waiting));

        if (result != PK_OK) { /* out of memory half way: the peers cannot be told which ones are missing */
            pki_engine_poison(e, result, true);
            end_unenrolled(n, made, result);
            return result;
        }
    }
    return PK_OK;
}

static void keep_blocking(struct pki_list *made, struct pki_list *blocking)
{
    struct pki_list *node;

    while ((node = pki_list_pop(made)) != NULL) {
        struct pki_task *task = pki_container_of(node, struct pki_task, waiting);

        if (task->request.stream.kind == PK_STREAM_KIND_BLOCKING)
            pki_list_push(blocking, node);
        else if (task->number == 0) /* it never got a place: memory ran out */
            pki_task_free(task);
    }
}

static pk_result_t start_locked(struct pki_engine *e, const struct pki_request *requests, int n, uint64_t group,
                                struct pki_list *blocking)
{
    struct pki_list made;
    pk_result_t result;

    pki_list_init(&made);
    result = make_all(e, requests, n, group, &made);
    if (result != PK_OK) {
        unmake_all(&made);
        return result;
    }
    result = pki_engine_status(e); /* it may have failed since the caller looked: nothing would ever end these */
    if (result != PK_OK) {
        unmake_all(&made);
        return result;
    }
    result = enroll_all(e, &made);
    if (result == PK_OK) {
        start_those(&made, false);
        open_streams(&made);
        start_those(&made, true);
        pki_serve_beside(e, &made);
        join_streams(e, &made);
        pki_stream_restart(e);
    }
    keep_blocking(&made, blocking);
    return result;
}

uint64_t pki_engine_new_group(void)
{
    static _Atomic uint64_t groups;

    return atomic_fetch_add(&groups, 1) + 1;
}

static void leave_and_unlock(struct pki_engine *e)
{
    if (e->gpu != NULL)
        e->gpu->ops->leave(e->gpu);
    pki_engine_unlock(e);
}

/* Kernels see to all that is unfinished. */
static bool is_device_driven(struct pki_engine *e)
{
    return atomic_load(&e->failed) == PK_OK && !pki_list_empty(&e->tasks.all) &&
           atomic_load(&e->service.device_driven_tasks) == atomic_load(&e->service.async_tasks) &&
           ++e->service.device_driven_calls % PKI_DEVICE_DRIVEN_CALLS != 0;
}

/* What nobody waits for is the service thread's to go on with: without one the call is refused, before anything has begun. */
static pk_result_t need_service(const struct pki_request *requests, int n)
{
    for (int i = 0; i < n; i++)
        if (requests[i].stream.kind != PK_STREAM_KIND_BLOCKING)
            return pki_service_start();
    return PK_OK;
}

pk_result_t pki_engine_start_all(struct pki_engine *e, const struct pki_request *requests, int n, uint64_t group,
                                 struct pki_list *blocking, struct pki_capture **capture)
{
    pk_result_t result = pki_engine_status(e);

    if (result == PK_OK)
        result = need_service(requests, n);
    if (result != PK_OK)
        return result;
    pki_engine_lock(e);
    pki_graphs_tidy(e);
    pki_region_tidy(e);
    if (e->gpu != NULL)
        e->gpu->ops->enter(e->gpu); /* once for all calls of the driver */
    if (pki_capture_wanted(e, requests, n, &result)) {
        if (result == PK_OK)
            result = pki_capture_check(e, requests, n, capture);
        leave_and_unlock(e);
        return result;
    }
    if (result == PK_OK)
        result = start_locked(e, requests, n, group, blocking);
    if (!is_device_driven(e))
        (void)pki_engine_progress(e);
    if (result == PK_OK && atomic_load(&e->failed) != PK_OK && pki_list_empty(blocking))
        result = pki_engine_status(e);
    leave_and_unlock(e);
    if (atomic_load(&e->service.async_tasks) > 0)
        (void)pki_service_wake();
    if (atomic_load(&e->service.drivers) > 0)
        pki_engine_wake(e); /* who waits for a stream, and may sleep, goes on with this too */
    return result;
}

pk_result_t pki_engine_capture_post(struct pki_engine *e, struct pki_capture *capture)
{
    pk_result_t result;

    pki_engine_lock(e);
    result = pki_capture_post(e, capture);
    pki_engine_unlock(e);
    return result == PK_OK ? pki_service_wake() : result; /* asleep it would not notice that a peer is gone */
}

pk_result_t pki_engine_capture_record(struct pki_engine *e, struct pki_capture *capture)
{
    pk_result_t result;

    pki_engine_lock(e);
    result = pki_capture_record(e, capture);
    pki_capture_drop(e, capture);
    pki_engine_unlock(e);
    return result;
}

void pki_engine_capture_drop(struct pki_engine *e, struct pki_capture *capture)
{
    pki_engine_lock(e);
    pki_capture_drop(e, capture);
    pki_engine_unlock(e);
}

pk_result_t pki_engine_finish(struct pki_engine *e, struct pki_list *blocking)
{
    pk_result_t first = PK_OK;
    struct pki_list *node;

    while ((node = pki_list_pop(blocking)) != NULL) {
        struct pki_task *task = pki_container_of(node, struct pki_task, waiting);

        pki_engine_wait(e, &task->ended);
        if (first == PK_OK)
            first = task->result;
        pki_engine_lock(e); /* whoever ended it has left it */
        pki_task_free(task);
        pki_engine_unlock(e);
    }
    if (first != PK_OK)
        (void)pki_engine_status(e);
    return first;
}

static pk_result_t capture_alone(struct pki_engine *e, struct pki_capture *capture)
{
    pk_result_t result = pki_engine_capture_post(e, capture);

    if (result == PK_OK)
        return pki_engine_capture_record(e, capture);
    pki_engine_capture_drop(e, capture);
    return result;
}

/* What `inlined` has not done. */
static pk_result_t run_task(struct pki_engine *e, const struct pki_request *request, enum pki_inline inlined,
                            struct pki_list *blocking)
{
    struct pki_capture *capture = NULL;
    uint64_t group = request->stream.kind == PK_STREAM_KIND_HOST ? pki_engine_new_group() : 0;
    pk_result_t started, finished;

    if (inlined == PKI_INLINE_BEGUN)
        started = pki_list_empty(blocking) ? pki_engine_status(e) : PK_OK; /* empty: it has failed */
    else
        started = pki_engine_start_all(e, request, 1, group, blocking, &capture);
    if (capture != NULL)
        return capture_alone(e, capture);
    finished = pki_engine_finish(e, blocking);
    return started != PK_OK ? started : finished;
}

static PKI_NOINLINE pk_result_t run_held(struct pki_engine *e, const struct pki_request *request, enum pki_inline inlined,
                                         struct pki_list *blocking)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = PK_OK;

    if (e->ifaces.call_kernel && request->what == PKI_DO_COLL)
        inlined = pki_inline_coll(e, request, blocking);
    if (inlined != PKI_INLINE_DONE)
        result = run_task(e, request, inlined, blocking);
    pki_cancel_release(cancel);
    return result;
}

pk_result_t pki_engine_run(struct pki_engine *e, const struct pki_request *request)
{
    struct pki_list blocking;
    enum pki_inline inlined = PKI_INLINE_NOT;

    pki_list_init(&blocking);
    if (request->what == PKI_DO_COLL && !e->ifaces.call_kernel)
        inlined = pki_inline_coll(e, request, &blocking);
    return inlined == PKI_INLINE_DONE ? PK_OK : run_held(e, request, inlined, &blocking);
}

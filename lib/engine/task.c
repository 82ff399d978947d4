/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: checked, numbered, started, waited for, ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"
#include "util/dtype.h"

static const char *request_name(const struct pki_request *r)
{
    if (r->what == PKI_DO_SEND)
        return "send";
    if (r->what == PKI_DO_RECV)
        return "recv";
    return pki_coll_shape(r->algorithm->coll)->name;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 0x9e3779b97f4a7c15ull;
}

/* What must be equal everywhere and has no bits of its own: the count, all of them where every rank names all, and the algorithm,
 * which may depend on the kind of memory. */
static uint64_t digest(const struct pki_request *r, int size)
{
    uint64_t hash = mix(0, r->count);

    if (r->algorithm->coll == PKI_COLL_ALLGATHERV)
        for (int i = 0; i < size; i++)
            hash = mix(hash >> 7, r->layout.out_counts[i]);
    hash = mix(hash >> 3, (uint64_t)r->root >> 8);
    for (const char *c = r->instead != NULL ? r->instead->name : r->algorithm->name; *c != '\0'; c++)
        hash = mix(hash >> 5, (unsigned char)*c);
    return hash;
}

/* Operation in 4 bits, type in 4, reduction in 4, root in 8, a digest of the rest in 12. */
uint32_t pki_task_fingerprint(const struct pki_request *r, int size)
{
    if (r->what != PKI_DO_COLL)
        return 0;
    return (uint32_t)r->algorithm->coll | (uint32_t)r->dtype << 4 | (uint32_t)(r->op & 15) << 8 | (uint32_t)(r->root & 255) << 12 |
           (uint32_t)(digest(r, size) >> 52) << 20;
}

/* One side of a disagreement, from its fingerprint. */
static void describe(uint32_t sig, char *text, size_t len)
{
    static const char *const ops[PK_OP_COUNT] = { "sum", "prod", "min", "max", "avg" };
    const struct pki_shape *shape = pki_coll_shape(sig & 15);
    unsigned op = sig >> 8 & 15;
    int used = snprintf(text, len, "calls %s", shape != NULL ? shape->name : "another operation");

    if (shape == NULL || (sig & 15) == PKI_COLL_BARRIER)
        return;
    used += snprintf(text + used, len - (size_t)used, " of %s", pk_dtype_name((pk_dtype_t)(sig >> 4 & 15)));
    if (shape->reduces)
        used += snprintf(text + used, len - (size_t)used, ", reduction %s", op < PK_OP_COUNT ? ops[op] : "unknown");
    if (shape->rooted)
        snprintf(text + used, len - (size_t)used, ", root %u", (unsigned)(sig >> 12 & 255));
}

static void mismatch(struct pki_engine *e, const struct pki_coll_seen *own, int peer, uint32_t theirs)
{
    const struct pki_shape *shape = pki_coll_shape(own->sig & 15);
    struct pki_where where = { .rank = e->config.rank, .peer = peer, .op = shape != NULL ? shape->name : NULL,
                               .op_number = own->number };
    bool rest_only = ((theirs ^ own->sig) & 0xfffff) == 0;
    char mine[96], other[96];

    describe(own->sig, mine, sizeof mine);
    describe(theirs, other, sizeof other);
    (void)pki_fail(PK_ERR_MISMATCH, &where, "rank %d %s, count %zu; rank %d %s%s", e->config.rank, mine, own->count, peer, other,
                   rest_only ? ", another count or kind of memory" : "");
    pki_engine_poison(e, PK_ERR_MISMATCH, true);
}

void pki_task_mismatch(struct pki_task *task, int peer, uint32_t theirs)
{
    struct pki_coll_seen own = { task->number, task->sig, task->request.count };

    mismatch(task->engine, &own, peer, theirs);
}

bool pki_task_contradicts(struct pki_engine *e, int peer, uint64_t number, uint32_t theirs)
{
    const struct pki_coll_seen *own = &e->seen[number % PKI_SEEN_MAX];

    if (own->number != number || number == 0 || own->sig == theirs)
        return false;
    mismatch(e, own, peer, theirs);
    return true;
}

/* Peers may have spoken of it already. */
static void check_arrivals(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    for (int i = 0; i < e->config.size; i++)
        for (struct pki_list *n = e->peers[i].arrivals.next; n != &e->peers[i].arrivals; n = n->next) {
            const struct pki_msg *msg = &pki_container_of(n, struct pki_arrival, node)->msg;

            if ((msg->flags & PKI_MSG_FLAG_COLL) != 0 && msg->op == task->number &&
                pki_task_contradicts(e, i, msg->op, msg->sig))
                return;
        }
}

static void number_collective(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    task->number = ++e->coll_number;
    e->seen[task->number % PKI_SEEN_MAX] = (struct pki_coll_seen){ task->number, task->sig, task->request.count };
    check_arrivals(task);
}

struct buffers {
    size_t bytes[2];
    enum pki_mem_kind kinds[2]; /* of an empty one: the other's */
};

/* What kind of memory the buffers are; refuses other devices' memory. */
static pk_result_t classify(struct pki_engine *e, const struct pki_request *r, struct buffers *found)
{
    const void *ptrs[2] = { r->in, r->out };
    size_t *bytes = found->bytes;

    bytes[0] = r->in_count * pki_dtype_bytes(r->dtype);
    bytes[1] = r->out_count * pki_dtype_bytes(r->dtype);
    found->kinds[0] = found->kinds[1] = PKI_MEM_HOST;
    if (r->classified) {
        memcpy(found->kinds, r->kinds, sizeof found->kinds);
        return PK_OK;
    }
    for (int i = 0; i < 2; i++) {
        struct pki_mem mem = { .kind = PKI_MEM_HOST };
        pk_result_t result;

        if (bytes[i] == 0)
            continue;
        if (e->gpu != NULL) {
            result = e->gpu->ops->classify(e->gpu, ptrs[i], bytes[i], &mem);
            if (result != PK_OK)
                return result;
        }
        found->kinds[i] = mem.kind;
    }
    for (int i = 0; i < 2; i++)
        if (bytes[i] == 0)
            found->kinds[i] = found->kinds[1 - i];
    return PK_OK;
}

pk_result_t pki_engine_classify(struct pki_engine *e, struct pki_request *r, enum pki_mem_kind *kind)
{
    struct buffers found = { { 0 }, { PKI_MEM_HOST, PKI_MEM_HOST } };
    pk_result_t result;

    *kind = PKI_MEM_HOST;
    if (e->gpu == NULL)
        return PK_OK;
    pki_engine_lock(e);
    result = classify(e, r, &found);
    pki_engine_unlock(e);
    r->classified = result == PK_OK;
    memcpy(r->kinds, found.kinds, sizeof r->kinds);
    if (result == PK_OK && (found.kinds[0] == PKI_MEM_DEVICE || found.kinds[1] == PKI_MEM_DEVICE))
        *kind = PKI_MEM_DEVICE;
    return result;
}

bool pki_task_needs_kernel(const struct pki_task *task)
{
    if (task->plan == NULL)
        return task->request.peer == task->engine->config.rank;
    if (pki_stage_copies(task->engine, task->request.algorithm->coll, task->plan))
        return false;
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (task->plan->steps[i].kind != PKI_STEP_SEND && task->plan->steps[i].kind != PKI_STEP_RECV)
            return true;
    return false;
}

static pk_result_t check_policy(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    const struct pki_request *r = &task->request;

    if (r->what == PKI_DO_COLL && pki_coll_shape(r->algorithm->coll)->reduces) {
        struct pki_device *device = task->kind == PKI_MEM_DEVICE ? e->gpu : e->host;

        if (!device->ops->reduces(device, r->dtype, r->op))
            return pki_fail(PK_ERR_UNSUPPORTED, NULL, "%s of %s with reduction %u: not on a GPU in this version", task->name,
                            pk_dtype_name(r->dtype), (unsigned)r->op);
    }
    if (task->kind != PKI_MEM_DEVICE || e->config.sm_policy != PK_SM_NONE)
        return PK_OK;
    if (!pki_task_needs_kernel(task))
        return PK_OK;
    if (r->what != PKI_DO_COLL)
        return pki_fail(PK_ERR_NEEDS_SM, NULL, "%s to the own rank copies inside the gpu, which runs as a kernel", task->name);
    return pki_fail(PK_ERR_NEEDS_SM, NULL, "%s %s by algorithm %s copies or reduces inside the gpu, which runs as a kernel",
                    task->name, r->in_place ? "in place" : "out of place", r->algorithm->name);
}

static pk_result_t task_init(struct pki_task *task, struct pki_engine *e, const struct pki_request *r)
{
    task->engine = e;
    task->request = *r;
    task->name = request_name(r);
    task->sig = pki_task_fingerprint(r, e->config.size);
    task->ready_slot = task->release_slot = -1;
    atomic_init(&task->ended, false);
    atomic_init(&task->may_start, true);
    pki_list_init(&task->node);
    pki_list_init(&task->waiting);
    pki_list_init(&task->in_stream);
    pki_list_init(&task->turn);
    task->begun_ns = pki_now_ns();
    task->deadline_ns = e->config.timeout_ms == 0 ? PKI_NO_DEADLINE : task->begun_ns + e->config.timeout_ms * PKI_NS_PER_MS;
    return pki_layout_own(&task->request.layout, (size_t)e->config.size, &task->lengths);
}

pk_result_t pki_task_make(struct pki_engine *e, const struct pki_request *r, struct pki_task **out)
{
    struct pki_task *task = calloc(1, sizeof *task);
    struct buffers found;
    pk_result_t result;

    if (task == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for an operation");
    result = task_init(task, e, r);
    if (result == PK_OK)
        result = classify(e, r, &found);
    if (result != PK_OK)
        goto err_free;
    task->kind = found.kinds[0];
    if (r->instead != NULL && found.kinds[0] != found.kinds[1]) /* the other ranks' kernels will stand by */
        task->request.algorithm = r->instead;
    if (r->what == PKI_DO_COLL) {
        result = pki_plan_prepare(task);
        if (result != PK_OK)
            goto err_free;
    }
    if (found.kinds[0] != found.kinds[1])
        pki_mixed_choose(task, found.kinds, found.bytes);
    result = check_policy(task);
    if (result != PK_OK)
        goto err_release;
    *out = task;
    return PK_OK;

err_release:
    pki_plan_release(task);
err_free:
    free(task->lengths);
    free(task);
    return result;
}

pk_result_t pki_task_new(struct pki_engine *e, const struct pki_request *r, struct pki_task **out)
{
    struct pki_task *task;
    pk_result_t result = pki_task_make(e, r, &task);

    if (result != PK_OK)
        return result;
    if (r->stream.kind == PK_STREAM_KIND_CUDA)
        result = pki_stream_admit(task);
    if (result != PK_OK) {
        pki_task_free(task);
        return result;
    }
    if (pki_task_is_fused(task))
        pki_fused_made(task);
    *out = task;
    return PK_OK;
}

void pki_task_free(struct pki_task *task)
{
    pki_fused_forget(task);
    pki_plan_release(task);
    free(task->lengths);
    free(task);
}

/* The single transfer of a send or receive. */
static pk_result_t make_xfer(struct pki_task *task)
{
    const struct pki_request *r = &task->request;
    bool is_send = r->what == PKI_DO_SEND;
    struct pki_peer *peer = &task->engine->peers[r->peer];
    struct pki_xfer *xfer = pki_xfer_new(task->engine, r->peer, is_send);

    if (xfer == NULL)
        return PK_ERR_MEMORY;
    task->number = is_send ? ++peer->sends_begun[0] : ++peer->recvs_begun[0];
    xfer->op = task->number;
    xfer->task = task;
    xfer->kind = task->kind;
    xfer->addr = (char *)(is_send ? (uintptr_t)r->in : (uintptr_t)r->out);
    xfer->bytes = (is_send ? r->in_count : r->out_count) * pki_dtype_bytes(r->dtype);
    xfer->ready = xfer->bytes;
    if (task->kind == PKI_MEM_HOST)
        xfer->chunk = PKI_HOST_PUT;
    xfer->state = PKI_XFER_SAY;
    task->xfer = xfer;
    return PK_OK;
}

/* Give the task its number and place; from here on it ends through pki_task_end. */
static pk_result_t enroll(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    pk_result_t result = PK_OK;

    if (task->request.what == PKI_DO_COLL)
        number_collective(task);
    else
        result = make_xfer(task);
    if (result != PK_OK)
        return result;
    if (task->request.what == PKI_DO_COLL)
        pki_fused_enroll(task);
    pki_list_push(&e->tasks, &task->node);
    task->calm = task->direct && pki_task_is_fused(task);
    if (task->calm)
        atomic_fetch_add(&e->calm_tasks, 1);
    if (task->request.stream.kind != PK_STREAM_KIND_BLOCKING)
        atomic_fetch_add(&e->async_tasks, 1);
    if (task->request.stream.kind == PK_STREAM_KIND_HOST) {
        task->stream = task->request.stream.handle;
        pki_host_stream_append(task->stream, task);
    }
    return PK_OK;
}

bool pki_task_start(struct pki_task *task)
{
    task->started = true;
    if (task->plan != NULL) {
        task->started = pki_plan_run(task);
        return task->started;
    }
    task->xfer->ready = task->xfer->bytes;
    if (!pki_list_empty(&task->xfer->match)) { /* posted when the stream's operation was called */
        if (task->xfer->is_send)
            pki_send_advance(task->xfer);
        else
            pki_recv_open(task->xfer);
    } else {
        task->xfer->opened = true;
        pki_xfer_post(task->xfer);
    }
    return true;
}

void pki_task_stir(struct pki_task *task)
{
    if (task->calm)
        atomic_fetch_sub(&task->engine->calm_tasks, 1);
    task->calm = false;
}

void pki_task_end(struct pki_task *task, pk_result_t result)
{
    struct pki_engine *e = task->engine;
    uintptr_t kind = task->request.stream.kind;

    if (task->xfer != NULL)
        pki_xfer_free(task->xfer);
    task->xfer = NULL;
    if (task->plan != NULL)
        pki_plan_abandon(task);
    pki_fused_left(task);
    task->result = result;
    pki_list_remove(&task->node);
    if (kind == PK_STREAM_KIND_CUDA)
        pki_stream_left(task);
    if (kind == PK_STREAM_KIND_HOST)
        pki_host_stream_ended(task->stream, task);
    e->stats.operations++;
    if (kind == PK_STREAM_KIND_BLOCKING) {
        atomic_store_explicit(&task->ended, true, memory_order_release); /* its caller frees it */
        return;
    }
    atomic_fetch_sub(&e->async_tasks, 1);
    pki_task_stir(task);
    pki_list_push(&e->ended, &task->node);
}

pk_result_t pki_task_resume(struct pki_engine *e, const struct pki_request *r, uint64_t number, uint64_t done,
                            struct pki_list *blocking)
{
    struct pki_task *task;
    pk_result_t result = pki_task_new(e, r, &task);

    if (result != PK_OK)
        return result;
    task->number = number;
    task->started = true;
    pki_list_push(&e->tasks, &task->node);
    pki_list_push(blocking, &task->waiting);
    pki_plan_resume(task, done);
    return PK_OK;
}

static pk_result_t make_all(struct pki_engine *e, const struct pki_request *requests, int n, uint64_t group, struct pki_list *made)
{
    for (int i = 0; i < n; i++) {
        struct pki_task *task;
        pk_result_t result = pki_task_new(e, &requests[i], &task);

        if (result != PK_OK)
            return result;
        task->group = group;
        pki_list_push(made, &task->waiting);
    }
    return PK_OK;
}

static void unmake_all(struct pki_list *made)
{
    struct pki_list *node;

    while ((node = pki_list_pop(made)) != NULL) {
        struct pki_task *task = pki_container_of(node, struct pki_task, waiting);

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
        else if (!task->after_stream && atomic_load(&task->may_start))
            (void)pki_task_start(task);
    }
}

/* The later phases of operations in CUDA streams, each for all tasks before the next. */
static void join_streams(struct pki_list *made)
{
    for (int phase = 0; phase < 2; phase++)
        for (struct pki_list *n = made->next; n != made; n = n->next) {
            struct pki_task *task = pki_container_of(n, struct pki_task, waiting);

            if (!pki_task_in_cuda_stream(task))
                continue;
            if (phase == 0)
                pki_stream_move(task);
            else
                pki_stream_end(task, made);
        }
}

/* Nothing else would end these. */
static void end_unenrolled(struct pki_list *from, struct pki_list *made, pk_result_t result)
{
    for (struct pki_list *n = from; n != made; n = n->next) {
        struct pki_task *task = pki_container_of(n, struct pki_task, waiting);

        pki_stream_left(task);
        task->number = 0;
        task->result = result;
        atomic_store(&task->ended, true);
    }
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
        start_those(&made, true);
        join_streams(&made);
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

#define CALM_CALLS 8 /* after which the others' messages are looked at all the same */

/* Kernels see to all that is unfinished. */
static bool is_calm(struct pki_engine *e)
{
    return atomic_load(&e->failed) == PK_OK && !pki_list_empty(&e->tasks) &&
           atomic_load(&e->calm_tasks) == atomic_load(&e->async_tasks) && ++e->calm_calls % CALM_CALLS != 0;
}

/* What nobody waits for is the service thread's to go on with. */
static pk_result_t wake_or_abort(struct pki_engine *e)
{
    if (pki_service_wake() == PK_OK)
        return PK_OK;
    pki_engine_abort(e);
    return PK_ERR_SYSTEM;
}

pk_result_t pki_engine_start_all(struct pki_engine *e, const struct pki_request *requests, int n, uint64_t group,
                                 struct pki_list *blocking, struct pki_capture **capture)
{
    pk_result_t result = pki_engine_status(e);

    if (result != PK_OK)
        return result;
    pki_engine_lock(e);
    if (pki_region_retired_many(e) && pki_list_empty(&e->tasks) && pki_list_empty(&e->captured) && !pki_streams_wait())
        pki_region_close_retired(e);
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
    if (!is_calm(e))
        (void)pki_engine_progress(e);
    if (result == PK_OK && atomic_load(&e->failed) != PK_OK && pki_list_empty(blocking))
        result = pki_engine_status(e);
    leave_and_unlock(e);
    if (atomic_load(&e->async_tasks) > 0 && wake_or_abort(e) != PK_OK) /* nobody would go on with them */
        result = PK_ERR_SYSTEM;
    return result;
}

pk_result_t pki_engine_capture_post(struct pki_engine *e, struct pki_capture *capture)
{
    pk_result_t result;

    pki_engine_lock(e);
    result = pki_capture_post(e, capture);
    pki_engine_unlock(e);
    return result == PK_OK ? wake_or_abort(e) : result; /* asleep it would not notice that a peer is gone */
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

bool pki_engine_poll(struct pki_engine *e, const struct pki_list *blocking)
{
    pki_engine_lock(e);
    (void)pki_engine_progress(e);
    pki_engine_unlock(e);
    for (struct pki_list *n = blocking->next; n != blocking; n = n->next)
        if (!atomic_load_explicit(&pki_container_of(n, struct pki_task, waiting)->ended, memory_order_acquire))
            return false;
    return true;
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

pk_result_t pki_engine_run(struct pki_engine *e, const struct pki_request *request)
{
    struct pki_list blocking;
    struct pki_capture *capture = NULL;
    uint64_t group = request->stream.kind == PK_STREAM_KIND_HOST ? pki_engine_new_group() : 0;
    pk_result_t started, finished;
    enum pki_quick quick;

    pki_list_init(&blocking);
    quick = pki_quick_run(e, request, &blocking);
    if (quick == PKI_QUICK_DONE)
        return PK_OK;
    if (quick == PKI_QUICK_BEGUN) {
        started = pki_list_empty(&blocking) ? pki_engine_status(e) : PK_OK; /* empty: it has failed */
        finished = pki_engine_finish(e, &blocking);
        return started != PK_OK ? started : finished;
    }
    started = pki_engine_start_all(e, request, 1, group, &blocking, &capture);
    if (capture != NULL)
        return capture_alone(e, capture);
    finished = pki_engine_finish(e, &blocking);
    return started != PK_OK ? started : finished;
}

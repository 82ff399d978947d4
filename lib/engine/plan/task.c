/* SPDX-License-Identifier: Apache-2.0 */
/* One operation: checked, numbered, ended. */
#include <stdlib.h>
#include <string.h>

#include "engine/plan/plan.h"
#include "tuning/tuning.h"
#include "util/dtype.h"

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

static pk_result_t task_init(struct pki_task *task, struct pki_engine *e, const struct pki_request *r)
{
    const uint64_t timeout_ms = r->timeout_ms != 0 ? r->timeout_ms : e->config.timeout_ms;

    task->engine = e;
    task->request = *r;
    task->sig = pki_task_fingerprint(r, e->config.size);
    task->cuda.ready_slot = task->cuda.release_slot = -1;
    atomic_init(&task->ended, false);
    atomic_init(&task->host.may_start, true);
    pki_list_init(&task->node);
    pki_list_init(&task->waiting);
    pki_list_init(&task->host.node);
    pki_list_init(&task->fused.turn);
    task->begun_ns = pki_now_ns();
    task->deadline_ns = timeout_ms == 0 ? PKI_NO_DEADLINE : task->begun_ns + timeout_ms * PKI_NS_PER_MS;
    return pki_layout_own(&task->request.layout, (size_t)e->config.size, &task->lengths);
}

/* Cleared. An allocation of this size costs as much as everything else here. */
static struct pki_task *task_take(struct pki_engine *e)
{
    struct pki_list *node = pki_list_pop(&e->tasks.spare);

    if (node == NULL)
        return calloc(1, sizeof(struct pki_task));
    e->tasks.nspare--;
    return memset(pki_container_of(node, struct pki_task, node), 0, sizeof(struct pki_task));
}

static void task_give(struct pki_engine *e, struct pki_task *task)
{
    if (e->tasks.nspare >= pki_tuning.p2p.spare_tasks) {
        free(task);
        return;
    }
    pki_list_init(&task->node);
    pki_list_push(e->tasks.spare.next, &task->node); /* in front: it is in the cache */
    e->tasks.nspare++;
}

void pki_tasks_close(struct pki_engine *e)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&e->tasks.spare)) != NULL)
        free(pki_container_of(node, struct pki_task, node));
}

pk_result_t pki_task_make(struct pki_engine *e, const struct pki_request *r, struct pki_task **out)
{
    struct pki_task *task = task_take(e);
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
    if (r->instead != NULL && found.kinds[0] != found.kinds[1] &&
        !pki_task_is_switched(task)) /* the other ranks' kernels will stand by */
        task->request.algorithm = r->instead;
    if (r->what == PKI_DO_COLL) {
        result = pki_plan_prepare(task);
        if (result != PK_OK)
            goto err_free;
    }
    if (found.kinds[0] != found.kinds[1] || (task->kind == PKI_MEM_DEVICE && pki_task_is_switched(task)))
        pki_mixed_choose(task, found.kinds, found.bytes);
    pki_scaled_choose(task);
    result = pki_task_check_policy(task);
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

void pki_task_free(struct pki_task *task)
{
    if (task->run.executor != NULL && task->run.executor->drop != NULL)
        task->run.executor->drop(task);
    pki_plan_release(task);
    free(task->lengths);
    task_give(task->engine, task);
}

/* The single transfer of a send or receive has moved. */
static void progressed(struct pki_task *task, uint32_t step, size_t done, bool ended)
{
    (void)step;
    (void)done;
    if (!ended)
        return;
    task->xfer = NULL;
    task->engine->stats.steps++;
    pki_task_end(task, PK_OK);
}

static const struct pki_xfer_user message_user = { .progressed = progressed };

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
    xfer->id.op = task->number;
    xfer->user.task = task;
    xfer->user.calls = &message_user;
    xfer->kind = task->kind;
    xfer->addr = (char *)(is_send ? (uintptr_t)r->in : (uintptr_t)r->out);
    xfer->bytes = (is_send ? r->in_count : r->out_count) * pki_dtype_bytes(r->dtype);
    xfer->ready = xfer->bytes;
    if (task->kind == PKI_MEM_HOST)
        xfer->chunk = pki_tuning.p2p.host_put_bytes;
    pki_xfer_enter(xfer, PKI_XFER_SAY);
    task->xfer = xfer;
    return PK_OK;
}

pk_result_t pki_task_enroll(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    pk_result_t result = PK_OK;

    if (task->request.what == PKI_DO_COLL)
        pki_task_number(task);
    else
        result = make_xfer(task);
    if (pki_task_is_switched(task))
        e->colls.number += PKI_SWITCHED_NUMBERS - 1; /* for what is within it */
    if (result != PK_OK)
        return result;
    pki_list_push(&e->tasks.all, &task->node);
    if (task->request.stream.kind != PK_STREAM_KIND_BLOCKING)
        atomic_fetch_add(&e->service.async_tasks, 1);
    return PK_OK;
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
    task->result = result;
    if (result != PK_OK && task->request.what == PKI_DO_COLL)
        pki_engine_coll_failed(e, task->number);
    pki_list_remove(&task->node);
    e->handlers->ended(task);
    e->stats.operations++;
    if (kind == PK_STREAM_KIND_BLOCKING) {
        atomic_store_explicit(&task->ended, true, memory_order_release); /* its caller frees it */
        return;
    }
    atomic_fetch_sub(&e->service.async_tasks, 1);
    pki_task_set_cpu_driven(task);
    pki_list_push(&e->tasks.ended, &task->node);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives recorded into CUDA graphs: the steps of the plan in the caller's own stream, in an order that lets all ranks'
 * streams come to the end (coll/order.h). Gate slots and scratch memory are those that all captured collectives have in turn
 * (mem/graphs.c).
 */
#include <stdlib.h>
#include <string.h>

#include "engine/stream/capture.h"
#include "engine/stream/stream.h"
#include "util/dtype.h"

/* A long collective's kernels are not made to be replayed: the algorithm without one does instead, on all ranks alike. */
static pk_result_t make_task(struct pki_engine *e, struct capture_part *part)
{
    pk_result_t result;

    if (part->request.algorithm == &pki_switchml_algorithm) {
        part->request.algorithm = part->request.instead;
        part->request.instead = NULL;
    }
    result = pki_task_make(e, &part->request, &part->task);
    if (result != PK_OK || !pki_task_is_fused(part->task) || pki_fused_is_replayed(e, &part->request))
        return result;
    pki_task_free(part->task);
    part->task = NULL;
    part->request.algorithm = pki_algorithm_find(part->request.algorithm->coll, "direct");
    if (part->request.algorithm == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "this collective has no algorithm that can be captured");
    return pki_task_make(e, &part->request, &part->task);
}

static pk_result_t check_buffers(struct pki_engine *e, const struct pki_task *task)
{
    const struct pki_request *r = &task->request;
    size_t size = pki_dtype_bytes(r->dtype);
    pk_result_t result = pki_capture_buffer(e, r->in, r->in_count * size);

    if (result == PK_OK)
        result = pki_capture_buffer(e, r->out, r->out_count * size);
    for (int i = 0; i < e->config.size && result == PK_OK; i++)
        if (i != e->config.rank && e->peers[i].path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] == NULL)
            result = pki_fail(PK_ERR_UNSUPPORTED, NULL, "only collectives between GPUs that reach one another can be captured");
    return result;
}

static pk_result_t take_scratch(struct pki_engine *e, struct capture_part *part)
{
    size_t bytes = pki_scratch_bytes(part->task);
    pk_result_t result = bytes == 0 ? PK_OK : pki_graph_scratch_take(e, bytes, &part->scratch);

    if (result != PK_OK)
        return result;
    if (bytes > 0)
        part->task->run.scratch = e->mem.graph_scratch[part->scratch].ptr;
    pki_scaled_place(part->task);
    return PK_OK;
}

static bool is_receive(const struct pki_step *step)
{
    return step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE;
}

static struct pki_ref target_of(const struct pki_step *step)
{
    return step->kind == PKI_STEP_RECV_REDUCE ? step->landing : step->dst;
}

static pk_result_t check_targets(struct pki_engine *e, const struct pki_task *task)
{
    pk_result_t result = PK_OK;

    for (uint32_t i = 0; i < task->plan->nsteps && result == PK_OK; i++) {
        const struct pki_step *step = &task->plan->steps[i];
        size_t bytes;
        const char *at;

        if (!is_receive(step))
            continue;
        at = pki_plan_block(task, target_of(step), &bytes);
        result = pki_capture_target(e, &e->peers[step->peer], at, task->run.steps[i].bytes);
    }
    return result;
}

pk_result_t pki_capture_plan_check(struct pki_engine *e, struct capture_part *part)
{
    pk_result_t result = make_task(e, part);

    if (result != PK_OK)
        return result;
    result = check_buffers(e, part->task);
    if (result == PK_OK && pki_bounce_copies(e, part->request.algorithm->coll, part->task->plan))
        result = pki_fail(PK_ERR_NEEDS_SM, NULL, "%s copies a block inside the gpu, which in a graph runs as a kernel",
                          pki_task_name(part->task));
    part->task->kind = PKI_MEM_DEVICE; /* also of a barrier, which has no memory */
    if (result == PK_OK && pki_task_is_fused(part->task))
        result = pki_capture_fused_check(e);
    else if (result == PK_OK)
        result = pki_plan_order(part->request.algorithm, part->task->plan, &part->moments, &part->nmoments);
    if (result == PK_OK)
        result = take_scratch(e, part);
    if (result == PK_OK)
        result = check_targets(e, part->task);
    if (result == PK_OK && e->mem.graph_turn == NULL)
        result = e->gpu->ops->replay_lock_open(e->gpu, &e->mem.graph_turn);
    return result;
}

/* The part's own use ends with the call. */
static void keep_scratch(struct pki_engine *e, const struct capture_part *part)
{
    if (part->scratch < 0 || (part->graph->scratch >> part->scratch & 1) != 0)
        return;
    part->graph->scratch |= 1u << part->scratch;
    e->mem.graph_scratch[part->scratch].users++;
}

static struct captured *new_transfer(struct pki_engine *e, const struct capture_part *part, uint32_t i)
{
    const struct pki_task *task = part->task;
    const struct pki_step *step = &task->plan->steps[i];
    bool is_send = step->kind == PKI_STEP_SEND;
    struct pki_ref ref = is_send ? step->src : target_of(step);
    struct captured *c = pki_captured_new(e, part->graph, step->peer, is_send, pki_task_name(task));

    if (c == NULL)
        return NULL;
    c->flags |= PKI_MSG_FLAG_COLL;
    c->index = (uint16_t)step->pair_index;
    c->sig = task->sig;
    c->op = task->number;
    c->addr = pki_plan_block(task, ref, &c->bytes);
    c->bytes = task->run.steps[i].bytes;
    return c;
}

pk_result_t pki_capture_plan_enroll(struct pki_engine *e, struct capture_part *part)
{
    struct pki_task *task = part->task;
    const struct pki_plan *plan = task->plan;

    keep_scratch(e, part);
    part->xfers = calloc((size_t)plan->nsteps + 2 * (size_t)e->config.size, sizeof *part->xfers);
    if (part->xfers == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %u captured steps", plan->nsteps);
    task->number = ++e->colls.captured;
    if (pki_task_is_fused(task))
        return pki_capture_fused_enroll(e, part);
    part->nxfers = plan->nsteps;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        if (plan->steps[i].kind != PKI_STEP_SEND && !is_receive(&plan->steps[i]))
            continue;
        part->xfers[i] = new_transfer(e, part, i);
        if (part->xfers[i] == NULL)
            return PK_ERR_MEMORY;
    }
    return PK_OK;
}

static void record_scaling(struct pki_task *task, struct capture_recorder *r)
{
    if (!task->request.scaled)
        return;
    pki_record_flush(r);
    if (r->result == PK_OK)
        r->result = pki_scaled_queue(task, r->queue, &r->stats->captured_kernels);
}

static void record_work(struct capture_part *part, uint32_t i, struct capture_recorder *r)
{
    size_t bytes = part->task->run.steps[i].bytes;

    pki_record_flush(r);
    if (bytes == 0 || r->result != PK_OK)
        return;
    r->result = pki_plan_work(part->task, i, 0, bytes, r->queue);
    r->stats->captured_kernels++;
}

/* In one stream collectives follow one another as it is. */
static void begin_turn(struct pki_engine *e, const struct capture_part *part, struct capture_recorder *r)
{
    const struct pki_graph *g = part->graph;

    pki_record_flush(r);
    if (r->result == PK_OK && (g->turn == NULL || g->replay_lock_stream != part->queue.handle))
        r->result = e->gpu->ops->replay_lock(&part->queue, e->mem.graph_turn, g->turn);
}

static void end_turn(struct pki_engine *e, struct capture_part *part, struct capture_recorder *r)
{
    pki_record_flush(r);
    if (r->result == PK_OK)
        r->result = e->gpu->ops->replay_unlock(&part->queue, e->mem.graph_turn, &part->graph->turn);
    part->graph->replay_lock_stream = part->queue.handle;
}

static void record_moments(struct capture_part *part, struct capture_recorder *r)
{
    for (uint32_t m = 0; m < part->nmoments && r->result == PK_OK; m++) {
        uint32_t i = part->moments[m].step;

        switch (part->moments[m].kind) {
        case PKI_MOMENT_OPEN:
            pki_record_open(r, part->xfers[i]);
            break;
        case PKI_MOMENT_SEND:
            pki_record_send(r, part->xfers[i]);
            break;
        case PKI_MOMENT_DONE:
            pki_record_done(r, part->xfers[i]);
            break;
        case PKI_MOMENT_FREE: /* it has been moved here */
            break;
        case PKI_MOMENT_WORK:
            record_work(part, i, r);
            break;
        }
    }
}

void pki_capture_plan_record(struct pki_engine *e, struct capture_part *part, struct capture_recorder *r)
{
    begin_turn(e, part, r);
    record_scaling(part->task, r);
    if (pki_task_is_fused(part->task))
        pki_capture_fused_record(e, part, r);
    else
        record_moments(part, r);
    end_turn(e, part, r);
}

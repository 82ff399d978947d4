/* SPDX-License-Identifier: Apache-2.0 */
/* What a fused kernel is told of its collective: buffers, and who sends to whom. */
#include <string.h>

#include "engine/fused/fused.h"

uint32_t pki_fused_ranks(const struct pki_engine *e, bool own)
{
    uint32_t all = (1u << e->config.size) - 1;

    return own ? all : all & ~(1u << e->config.rank);
}

/* Who sends to whom: of the collectives without a root, all to all. */
static void fill_ranks(const struct pki_task *task, struct pki_fused_args *args)
{
    const struct pki_request *r = &task->request;
    const struct pki_shape *shape = pki_coll_shape(r->algorithm->coll);
    bool is_root = shape->rooted && r->root == task->engine->config.rank;
    bool from_root = shape->in_at_root, copies_own = !shape->reduces && !r->in_place;
    uint32_t root = shape->rooted ? 1u << r->root : 0;

    if (!shape->rooted) {
        args->send = pki_fused_ranks(task->engine, false);
        args->recv = pki_fused_ranks(task->engine, copies_own); /* in place this rank's block is where it belongs */
    } else if (is_root && from_root) {
        args->send = pki_fused_ranks(task->engine, false);
        args->recv = copies_own ? root : 0;
    } else if (is_root) {
        args->recv = pki_fused_ranks(task->engine, copies_own);
    } else if (from_root) {
        args->recv = root;
    } else {
        args->send = root;
    }
}

void pki_fused_fill(const struct pki_task *task, struct pki_fused_args *args)
{
    const struct pki_request *r = &task->request;
    const struct pki_shape *shape = pki_coll_shape(r->algorithm->coll);
    int rank = task->engine->config.rank;

    args->in = (uint64_t)(uintptr_t)r->in;
    args->out = (uint64_t)(uintptr_t)r->out;
    args->bytes = pki_fused_bytes(r);
    if (shape->in_many && pki_shape_has_in(shape, rank, r->root))
        args->in_stride = args->bytes;
    if (shape->out_many && pki_shape_has_out(shape, rank, r->root))
        args->out_stride = args->bytes;
    fill_ranks(task, args);
    args->results = shape->in_many ? 1u << rank : shape->rooted ? 1u << r->root : pki_fused_ranks(task->engine, true);
    args->reach = task->fused.reach.all;
    memcpy(args->in_there, task->fused.reach.in, sizeof args->in_there);
    memcpy(args->out_there, task->fused.reach.out, sizeof args->out_there);
    args->divisor = r->op == PK_AVG ? (uint32_t)task->engine->config.size : 0;
    args->op = r->op == PK_AVG ? PKI_KERNEL_SUM : (uint32_t)r->op;
}

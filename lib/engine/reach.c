/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the other ranks have this rank's buffers mapped: kernels of fused collectives tell one another, and then go from memory to memory. Nobody
 * waits for it: a buffer that is new to a peer is described to it, with a message to map it, and until the answer has come
 * operations go by way of the inboxes. A mapping that has been told of stands until its owner says that the memory is gone, and the
 * owner does not while an operation is unfinished that may use it.
 */
#include "engine/internal.h"

static bool is_aligned(const void *buffer)
{
    return (uintptr_t)buffer % 16 == 0;
}

static bool may_reach(struct pki_engine *e, const void *buffer, size_t bytes)
{
    struct pki_mem mem;

    return is_aligned(buffer) && e->gpu->ops->classify(e->gpu, buffer, bytes, &mem) == PK_OK && mem.kind == PKI_MEM_DEVICE && mem.shareable;
}

/* Who else needs it: each rank in `ranks`. */
static bool find(struct pki_task *task, const void *buffer, size_t bytes, uint32_t ranks, uint64_t *there, uint32_t *region)
{
    struct pki_engine *e = task->engine;
    bool all = true;

    if (!may_reach(e, buffer, bytes))
        return false;
    for (int p = 0; p < e->config.size; p++) {
        if ((ranks >> p & 1) == 0)
            continue;
        there[p] = pki_region_there(e, &e->peers[p], buffer, bytes, region);
        all = all && there[p] != 0;
    }
    return all;
}

/* Nothing of it may be forgotten while the operation lasts. */
void pki_reach_find(struct pki_task *task)
{
    const struct pki_request *r = &task->request;
    const struct pki_shape *shape = pki_coll_shape(r->algorithm->coll);
    struct pki_engine *e = task->engine;
    struct pki_reach *reach = &task->reach;
    uint32_t others = ((1u << e->config.size) - 1) & ~(1u << e->config.rank);
    size_t bytes = pki_fused_bytes(r), in_bytes = shape->in_many ? bytes * (size_t)e->config.size : bytes;
    /* In reduce_scatter a rank writes its own OUT alone; in reduce all write the root's. */
    bool shares_out = !shape->in_many && pki_shape_has_out(shape, e->config.rank, r->root);
    uint32_t in = 0, out = 0;

    if (!find(task, r->in, in_bytes, others, reach->in, &in))
        return;
    if (shares_out && !find(task, r->out, bytes, others, reach->out, &out))
        return;
    if (!shares_out && pki_shape_has_out(shape, e->config.rank, r->root) && !is_aligned(r->out))
        return;
    reach->all = true;
    reach->regions[0] = in;
    reach->regions[1] = out;
    for (int i = 0; i < 2; i++)
        pki_region_hold(e, reach->regions[i]);
}

void pki_reach_drop(struct pki_task *task)
{
    for (int i = 0; i < 2; i++)
        pki_region_drop(task->engine, task->reach.regions[i]);
    task->reach = (struct pki_reach){ .all = false };
}

void pki_reach_message(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg)
{
    struct pki_msg answer = { .kind = PKI_MSG_MAPPED, .region = msg->region };
    pk_result_t result;

    if (msg->kind == PKI_MSG_MAPPED) {
        pki_region_mapped(e, peer->rank, msg->region, msg->offset);
        return;
    }
    result = pki_region_map(e, peer, msg->region, 0, 0, &answer.offset);
    if (result == PK_IN_PROGRESS)
        return; /* the peer asks again */
    if (result != PK_OK)
        answer.offset = PKI_REGION_NOWHERE;
    (void)pki_lane_send(peer, &answer, NULL, e); /* and if there is no room */
}

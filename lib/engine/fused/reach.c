/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the other ranks have this rank's buffers mapped: kernels of fused collectives tell one another, and then go from memory
 * to memory. Nobody waits for it: a buffer that is new to a peer is described to it, with a message to map it, and until the
 * answer has come operations go by way of the inboxes. A mapping that has been told of stands until its owner says that the
 * memory is gone, and the owner does not while an operation is unfinished that may use it.
 */
#include "engine/fused/fused.h"

bool pki_engine_reaches_all(const struct pki_engine *e)
{
    for (int i = 0; i < e->config.size; i++)
        if (i != e->config.rank && e->peers[i].path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] == NULL)
            return false;
    return e->gpu != NULL;
}

static bool is_aligned(const void *buffer)
{
    return (uintptr_t)buffer % 16 == 0;
}

static bool may_reach(struct pki_engine *e, const void *buffer, size_t bytes)
{
    struct pki_mem mem;

    return is_aligned(buffer) && e->gpu->ops->classify(e->gpu, buffer, bytes, &mem) == PK_OK && mem.kind == PKI_MEM_DEVICE &&
           mem.shareable;
}

/* What others need: each rank in `ranks` has it mapped. What only this rank needs has to be aligned. */
static bool find(struct pki_task *task, const void *buffer, size_t bytes, uint32_t ranks, uint64_t *there, uint32_t *region)
{
    struct pki_engine *e = task->engine;
    bool all = true;

    if (ranks == 0)
        return is_aligned(buffer);
    if (!may_reach(e, buffer, bytes))
        return false;
    for (int p = 0; p < e->config.size; p++) {
        if ((ranks >> p & 1) == 0)
            continue;
        there[p] = pki_region_there(e, &e->peers[p], buffer, bytes, region);
        all = all && there[p] != 0;
    }
    task->fused.reach.asked = task->fused.reach.asked || !all;
    return all;
}

/* Who writes into this rank's OUT. Parts of reduce_scatter stay where they are formed. */
static uint32_t writers(const struct pki_task *task, const struct pki_shape *shape)
{
    int rank = task->engine->config.rank, root = task->request.root;
    uint32_t others = ((1u << task->engine->config.size) - 1) & ~(1u << rank);

    if (shape->reduces && shape->in_many)
        return 0;
    if (!shape->rooted)
        return others;
    if (shape->in_at_root)
        return rank == root ? 0 : 1u << root;
    return rank == root ? others : 0;
}

/* Of its regions nothing may be forgotten while the operation lasts. */
void pki_reach_find(struct pki_task *task)
{
    const struct pki_request *r = &task->request;
    const struct pki_shape *shape = pki_coll_shape(r->algorithm->coll);
    struct pki_engine *e = task->engine;
    struct pki_reach *reach = &task->fused.reach;
    uint32_t readers = shape->reduces ? ((1u << e->config.size) - 1) & ~(1u << e->config.rank) : 0, in = 0, out = 0;
    size_t bytes = pki_fused_bytes(r), size = (size_t)e->config.size;

    if (e->fused.host.used)
        return; /* some GPU does not reach another */
    if (shape->in_many && shape->out_many && r->in_place)
        return; /* what a rank has yet to send must not be overwritten */
    if (r->scaled)
        return; /* scratch memory comes and goes */
    if (!find(task, r->in, shape->in_many ? bytes * size : bytes, readers, reach->in, &in) ||
        !find(task, r->out, shape->out_many ? bytes * size : bytes, writers(task, shape), reach->out, &out))
        return;
    for (int p = 0; p < e->config.size && shape->out_many; p++)
        reach->out[p] += (size_t)p * bytes;
    reach->all = true;
    reach->regions[0] = in;
    reach->regions[1] = out;
    for (int i = 0; i < 2; i++)
        pki_region_hold(e, reach->regions[i]);
}

void pki_reach_drop(struct pki_task *task)
{
    for (int i = 0; i < 2; i++)
        pki_region_drop(task->engine, task->fused.reach.regions[i]);
    task->fused.reach = (struct pki_reach){ .all = false };
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
    (void)pki_ctrl_send(peer, &answer, NULL, e); /* and if there is no room */
}

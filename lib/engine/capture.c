/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives recorded into CUDA graphs. Both ends meet once, while they capture: the receiver grants its buffer and two words
 * that are theirs for the life of the communicator. Each replay passes them back and forth: start 0 -> 1 by the receiver, -> 0 by
 * the sender; done 0 -> 1 by the sender, -> 0 by the receiver. Captured operations match only captured ones, in the order of capture.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"
#include "util/dtype.h"

struct captured {
    struct pki_list node;            /* engine->captured */
    const struct pki_request *request; /* only while capturing */
    struct pki_peer *peer;
    struct pki_queue queue;
    struct pki_gate_slot *slot;
    int own_slot;                    /* receive: index in peer->gates */
    bool is_send;
    uint64_t op;
    size_t bytes;
    uint64_t remote;
    struct pki_put put;
};

bool pki_capture_wanted(struct pki_engine *e, const struct pki_request *requests, int n, pk_result_t *error)
{
    int capturing = 0;

    for (int i = 0; i < n; i++) {
        struct pki_queue queue = { e->gpu, requests[i].stream.handle };
        bool yes = false;
        uint64_t id;

        if (requests[i].stream.kind != PK_STREAM_KIND_CUDA || e->gpu == NULL)
            continue;
        *error = e->gpu->ops->capturing(&queue, &yes, &id);
        if (*error != PK_OK)
            return false;
        capturing += yes;
    }
    if (capturing > 0 && capturing < n)
        *error = pki_fail(PK_ERR_UNSUPPORTED, NULL, "a group mixes captured streams with others");
    return capturing > 0;
}

static pk_result_t check(struct pki_engine *e, const struct pki_request *r)
{
    const void *buf = r->what == PKI_DO_SEND ? r->in : r->out;
    size_t bytes = r->count * pki_dtype_bytes(r->dtype);
    struct pki_mem mem;
    pk_result_t result;

    if (r->what == PKI_DO_COLL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "collectives cannot be captured in this version");
    if (r->peer == e->config.rank || e->peers[r->peer].way[PKI_MEM_DEVICE][PKI_MEM_DEVICE] == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "only transfers between GPUs can be captured");
    if (bytes == 0)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "a captured transfer needs at least one byte");
    if (!pki_region_registered(e, buf, bytes))
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "capture of %zu bytes at %p, which are not registered (pk_register)", bytes, buf);
    result = e->gpu->ops->classify(e->gpu, buf, bytes, &mem);
    if (result == PK_OK && mem.kind != PKI_MEM_DEVICE)
        result = pki_fail(PK_ERR_UNSUPPORTED, NULL, "only device memory can be captured");
    return result;
}

/* Let others at the engine for a moment; an error when it is time to give up. */
static pk_result_t pause_for(struct pki_engine *e, const struct captured *c, uint64_t deadline_ns)
{
    struct pki_where where = { .rank = e->config.rank, .peer = c->peer->rank, .op = c->is_send ? "send" : "recv",
                               .op_number = c->op };

    pki_engine_unlock(e);
    sched_yield();
    pki_engine_lock(e);
    (void)pki_engine_progress(e);
    if (atomic_load(&e->failed) != PK_OK)
        return pki_engine_status(e);
    if (pki_now_ns() < deadline_ns)
        return PK_OK;
    (void)pki_fail(PK_ERR_TIMEOUT, &where, "captured, and the peer did not capture its part");
    pki_engine_poison(e, PK_ERR_TIMEOUT, true);
    return PK_ERR_TIMEOUT;
}

static uint64_t deadline(const struct pki_engine *e)
{
    return pki_deadline_ns(e->config.timeout_ms);
}

static pk_result_t grant(struct pki_engine *e, struct captured *c)
{
    struct pki_msg msg = { .kind = PKI_MSG_GRANT, .flags = PKI_MSG_FLAG_CAPTURED | PKI_MSG_FLAG_DEVICE, .op = c->op,
                           .bytes = c->bytes };
    uint64_t until = deadline(e);
    pk_result_t result;

    c->own_slot = pki_slots_take(&c->peer->gates);
    if (c->own_slot < 0)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "more than %d captured and pending receives from one rank", PKI_GATE_SLOTS);
    c->slot = &c->peer->lane->gates_mine[c->own_slot];
    atomic_store(&c->slot->start, 0);
    atomic_store(&c->slot->done, 0);
    msg.gate_slot = (uint16_t)c->own_slot;
    for (;;) {
        result = pki_region_tell(e, c->peer, c->request->out, c->bytes, &msg.region, &msg.offset);
        if (result == PK_OK)
            result = pki_lane_send(c->peer, &msg, NULL, e);
        if (result != PK_IN_PROGRESS)
            return result;
        result = pause_for(e, c, until);
        if (result != PK_OK)
            return result;
    }
}

static pk_result_t await_grant(struct pki_engine *e, struct captured *c)
{
    struct pki_xfer key = { .peer = c->peer, .is_send = true, .flags = PKI_MSG_FLAG_CAPTURED, .op = c->op };
    uint64_t until = deadline(e);
    struct pki_arrival *arrival;
    struct pki_msg msg;
    pk_result_t result;

    while ((arrival = pki_lane_take(&key)) == NULL) {
        result = pause_for(e, c, until);
        if (result != PK_OK)
            return result;
    }
    msg = arrival->msg;
    free(arrival);
    if (msg.bytes != c->bytes) {
        struct pki_where where = { .rank = e->config.rank, .peer = c->peer->rank, .op = "send", .op_number = c->op };

        (void)pki_fail(PK_ERR_MISMATCH, &where, "captured: rank %d sends %zu bytes, rank %d receives %llu", e->config.rank, c->bytes,
                       c->peer->rank, (unsigned long long)msg.bytes);
        pki_engine_poison(e, PK_ERR_MISMATCH, true);
        return PK_ERR_MISMATCH;
    }
    c->slot = &c->peer->lane->gates_theirs[msg.gate_slot % PKI_GATE_SLOTS];
    result = pki_region_map(e, c->peer, msg.region, msg.offset, c->bytes, &c->remote);
    c->remote += msg.offset;
    return result;
}

static pk_result_t wait_how(struct pki_engine *e, enum pki_wait_how *how)
{
    struct pki_device_info info;

    e->gpu->ops->info(e->gpu, &info);
    *how = info.connections <= PKI_FEW_QUEUES ? PKI_WAIT_KERNEL : PKI_WAIT_VALUE;
    if (*how == PKI_WAIT_KERNEL && e->config.sm_policy == PK_SM_NONE)
        return pki_fail(PK_ERR_NEEDS_SM, NULL, "capture with CUDA_DEVICE_MAX_CONNECTIONS=%d: a waiting graph would stop every kernel of "
                        "the process; set it to 8 or more, or allow kernels", info.connections);
    return PK_OK;
}

static pk_result_t record_recv_begin(struct captured *c, enum pki_wait_how how)
{
    struct pki_word_op op = { PKI_WORD_WRITE, { &c->slot->start, 1 } };

    return c->queue.device->ops->words(&c->queue, &op, 1, how);
}

static pk_result_t record_recv_end(struct captured *c, enum pki_wait_how how)
{
    struct pki_word_op ops[2] = { { PKI_WORD_WAIT_EQ, { &c->slot->done, 1 } }, { PKI_WORD_WRITE, { &c->slot->done, 0 } } };

    return c->queue.device->ops->words(&c->queue, ops, 2, how);
}

static pk_result_t record_send(struct captured *c, enum pki_wait_how how)
{
    struct pki_word_op ops[2] = { { PKI_WORD_WAIT_EQ, { &c->slot->start, 1 } }, { PKI_WORD_WRITE, { &c->slot->start, 0 } } };
    struct pki_ep *way = c->peer->way[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
    pk_result_t result = c->queue.device->ops->words(&c->queue, ops, 2, how);

    c->put = (struct pki_put){ .ep = way, .src = c->request->in, .remote = c->remote, .bytes = c->bytes,
                               .done_remote = { &c->slot->done, 1 }, .queue = &c->queue };
    pki_list_init(&c->put.node);
    return result != PK_OK ? result : way->iface->transport->put(&c->put);
}

static pk_result_t enroll(struct pki_engine *e, const struct pki_request *r, struct captured **out)
{
    struct captured *c = calloc(1, sizeof *c);

    if (c == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a captured operation");
    c->request = r;
    c->peer = &e->peers[r->peer];
    c->queue = (struct pki_queue){ e->gpu, r->stream.handle };
    c->is_send = r->what == PKI_DO_SEND;
    c->own_slot = -1;
    c->op = c->is_send ? ++c->peer->sends_begun[1] : ++c->peer->recvs_begun[1];
    c->bytes = r->count * pki_dtype_bytes(r->dtype);
    pki_list_push(&e->captured, &c->node);
    *out = c;
    return PK_OK;
}

/* Grants of all receives before anything waits, so that a group of ranks in one thread meets itself. */
static pk_result_t meet(struct pki_engine *e, struct captured **all, int n)
{
    pk_result_t result = PK_OK;

    for (int i = 0; i < n && result == PK_OK; i++)
        if (!all[i]->is_send)
            result = grant(e, all[i]);
    for (int i = 0; i < n && result == PK_OK; i++)
        if (all[i]->is_send)
            result = await_grant(e, all[i]);
    return result;
}

static pk_result_t record(struct captured **all, int n, enum pki_wait_how how)
{
    pk_result_t result = PK_OK;

    for (int i = 0; i < n && result == PK_OK; i++)
        if (!all[i]->is_send)
            result = record_recv_begin(all[i], how);
    for (int i = 0; i < n && result == PK_OK; i++)
        if (all[i]->is_send)
            result = record_send(all[i], how);
    for (int i = 0; i < n && result == PK_OK; i++)
        if (!all[i]->is_send)
            result = record_recv_end(all[i], how);
    return result;
}

pk_result_t pki_capture_run(struct pki_engine *e, const struct pki_request *requests, int n)
{
    struct captured **all = calloc((size_t)n, sizeof *all);
    enum pki_wait_how how = PKI_WAIT_VALUE;
    pk_result_t result = all == NULL ? pki_fail(PK_ERR_MEMORY, NULL, "no memory for a captured group") : wait_how(e, &how);

    for (int i = 0; i < n && result == PK_OK; i++)
        result = check(e, &requests[i]);
    for (int i = 0; i < n && result == PK_OK; i++)
        result = enroll(e, &requests[i], &all[i]);
    if (result != PK_OK)
        goto out;
    result = meet(e, all, n);
    if (result == PK_OK)
        result = record(all, n, how);
    if (result != PK_OK) /* numbers and slots are used up: the peer would wait for what never comes */
        pki_engine_poison(e, result, true);
out:
    for (int i = 0; all != NULL && i < n && all[i] != NULL; i++)
        all[i]->request = NULL;
    free(all);
    return result;
}

void pki_capture_release(struct pki_engine *e)
{
    for (struct pki_list *n = e->captured.next; n != &e->captured; n = n->next) {
        struct captured *c = pki_container_of(n, struct captured, node);

        if (c->slot != NULL)
            atomic_store(c->is_send ? &c->slot->start : &c->slot->done, 1);
    }
}

void pki_capture_close(struct pki_engine *e)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&e->captured)) != NULL)
        free(pki_container_of(node, struct captured, node));
}

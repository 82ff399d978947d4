/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations recorded into CUDA graphs. Both ends of every transfer meet once, while they capture: the receiver grants its buffer
 * and two words: a message's are its own as long as the graph, collectives have theirs in turn (mem/graphs.c). Memory that a peer
 * is to write is described to it then, as for any other transfer, and stays so: the program has registered nothing. Each replay
 * passes the words back and forth: start 0 -> 1 by the receiver, -> 0 by the sender; done 0 -> 1 by the sender, -> 0 by the
 * receiver; so both are 0 when the receiver is through. Captured operations match only captured ones, in the order of capture.
 *
 * Three steps, so that nothing has happened when an operation is refused, and so that one thread can capture for several ranks:
 * all are checked; all receives are granted; then all grants are waited for and everything is recorded.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "engine/stream/capture.h"
#include "engine/stream/stream.h"
#include "util/dtype.h"

bool pki_capture_wanted(struct pki_engine *e, const struct pki_request *requests, int n, pk_result_t *error)
{
    int capturing = 0;

    for (int i = 0; i < n; i++) {
        struct pki_queue queue = { .device = e->gpu, .handle = requests[i].stream.handle };
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

/* ---- checks ---- */

pk_result_t pki_capture_buffer(struct pki_engine *e, const void *ptr, size_t bytes)
{
    struct pki_mem mem;
    pk_result_t result;

    if (bytes == 0)
        return PK_OK;
    result = e->gpu->ops->classify(e->gpu, ptr, bytes, &mem);
    if (result == PK_OK && (mem.kind != PKI_MEM_DEVICE || mem.ordinal != e->limits.ordinal))
        result = pki_fail(PK_ERR_UNSUPPORTED, NULL,
                          "capture of %zu bytes at %p, which are not memory of device %d: only that can be captured", bytes, ptr,
                          e->limits.ordinal);
    return result;
}

pk_result_t pki_capture_target(struct pki_engine *e, struct pki_peer *peer, const void *ptr, size_t bytes)
{
    uint32_t id;
    uint64_t offset;
    pk_result_t result = bytes == 0 ? PK_OK : pki_region_tell(e, peer, ptr, bytes, &id, &offset);

    return result == PK_IN_PROGRESS ? PK_OK : result; /* the socket is full: the grant says it again */
}

static pk_result_t check_transfer(struct pki_engine *e, const struct pki_request *r)
{
    const void *buf = r->what == PKI_DO_SEND ? r->in : r->out;
    size_t bytes = r->count * pki_dtype_bytes(r->dtype);
    pk_result_t result;

    if (r->peer != e->config.rank && e->peers[r->peer].path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "only transfers between GPUs that reach one another can be captured");
    result = pki_capture_buffer(e, buf, bytes);
    if (result == PK_OK && r->what == PKI_DO_RECV && r->peer != e->config.rank)
        result = pki_capture_target(e, &e->peers[r->peer], buf, bytes);
    return result;
}

/* The next part from `i` on that is a send to this rank itself, or a receive. */
static struct capture_part *next_to_self(struct pki_engine *e, struct pki_capture *capture, int *i, bool send)
{
    while (*i < capture->n) {
        struct capture_part *part = &capture->parts[(*i)++];

        if (part->request.what == (send ? PKI_DO_SEND : PKI_DO_RECV) && part->request.peer == e->config.rank)
            return part;
    }
    return NULL;
}

static pk_result_t pair_up(struct pki_engine *e, const struct capture_part *send, struct capture_part *recv)
{
    size_t sent, received;

    if (send == NULL || recv == NULL || send->queue.handle != recv->queue.handle)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL,
                        "capture of a send to this rank itself, or a receive from it: the other half has to be in "
                        "the same group and stream");
    sent = send->request.count * pki_dtype_bytes(send->request.dtype);
    received = recv->request.count * pki_dtype_bytes(recv->request.dtype);
    if (sent != received)
        return pki_fail(PK_ERR_MISMATCH, NULL, "captured: this rank sends itself %zu bytes, and receives %zu", sent, received);
    if (sent > 0 && e->config.sm_policy == PK_SM_NONE)
        return pki_fail(PK_ERR_NEEDS_SM, NULL, "capture of a send to this rank itself: a copy inside the gpu runs as a kernel");
    recv->own = send->request.in;
    return PK_OK;
}

/* What this rank sends itself, in their order. */
static pk_result_t pair_up_own(struct pki_engine *e, struct pki_capture *capture)
{
    int sends = 0, recvs = 0;
    pk_result_t result = PK_OK;

    while (result == PK_OK) {
        const struct capture_part *send = next_to_self(e, capture, &sends, true);
        struct capture_part *recv = next_to_self(e, capture, &recvs, false);

        if (send == NULL && recv == NULL)
            break;
        result = pair_up(e, send, recv);
    }
    return result;
}

static pk_result_t wait_how(struct pki_engine *e, enum pki_wait_how *how)
{
    struct pki_device_info info;

    e->gpu->ops->info(e->gpu, &info);
    *how = info.connections <= PKI_FEW_QUEUES ? PKI_WAIT_KERNEL : PKI_WAIT_VALUE;
    if (*how == PKI_WAIT_KERNEL && e->config.sm_policy == PK_SM_NONE)
        return pki_fail(PK_ERR_NEEDS_SM, NULL,
                        "capture with CUDA_DEVICE_MAX_CONNECTIONS=%d: a waiting graph would stop every kernel of "
                        "the process; set it to 8 or more, or allow kernels",
                        info.connections);
    return PK_OK;
}

void pki_capture_drop(struct pki_engine *e, struct pki_capture *capture)
{
    for (int i = 0; i < capture->n; i++) {
        struct capture_part *part = &capture->parts[i];

        if (part->task != NULL) {
            part->task->run.scratch = NULL;
            pki_task_free(part->task);
        }
        if (part->scratch >= 0)
            pki_graph_scratch_give(e, part->scratch);
        if (part->graph != NULL)
            part->graph->calls--;
        free(part->moments);
        free(part->xfers);
    }
    free(capture);
}

pk_result_t pki_capture_check(struct pki_engine *e, const struct pki_request *requests, int n, struct pki_capture **out)
{
    struct pki_capture *capture = calloc(1, sizeof *capture + (size_t)n * sizeof capture->parts[0]);
    pk_result_t result;

    if (capture == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a captured group");
    capture->n = n;
    for (int i = 0; i < n; i++)
        capture->parts[i].scratch = -1;
    result = wait_how(e, &capture->how);
    for (int i = 0; i < n && result == PK_OK; i++) {
        struct capture_part *part = &capture->parts[i];

        if (requests[i].timeout_ms != 0)
            result = pki_fail(PK_ERR_UNSUPPORTED, NULL, "captured with a deadline of its own (PK_WITHIN): replays have none");
        part->request = requests[i];
        part->queue = (struct pki_queue){ .device = e->gpu, .handle = requests[i].stream.handle };
        if (result == PK_OK)
            result = part->request.what == PKI_DO_COLL ? pki_capture_plan_check(e, part) : check_transfer(e, &part->request);
    }
    if (result == PK_OK)
        result = pair_up_own(e, capture);
    for (int i = 0; i < n && result == PK_OK; i++)
        result = pki_graph_enter(e, &capture->parts[i].queue, &capture->parts[i].graph);
    if (result != PK_OK) {
        pki_capture_drop(e, capture);
        return result;
    }
    *out = capture;
    return PK_OK;
}

/* ---- meeting ---- */

/* Let others at the engine for a moment; an error when it is time to give up. */
static pk_result_t pause_for(struct pki_engine *e, const struct captured *c, uint64_t deadline_ns)
{
    struct pki_where where = { .rank = e->config.rank, .peer = c->peer->rank, .op = c->name, .op_number = c->op };

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

struct captured *pki_captured_new(struct pki_engine *e, struct pki_graph *graph, int peer, bool is_send, const char *name)
{
    struct captured *c = calloc(1, sizeof *c);

    if (c == NULL) {
        (void)pki_fail(PK_ERR_MEMORY, NULL, "no memory for a captured operation");
        return NULL;
    }
    c->peer = &e->peers[peer];
    c->own_slot = -1;
    c->is_send = is_send;
    c->name = name;
    c->flags = PKI_MSG_FLAG_CAPTURED;
    pki_list_push(&graph->captured, &c->node);
    return c;
}

static pk_result_t enroll_transfer(struct pki_engine *e, struct capture_part *part)
{
    const struct pki_request *r = &part->request;
    bool is_send = r->what == PKI_DO_SEND;
    struct captured *c;

    if (r->peer == e->config.rank)
        return PK_OK;
    part->xfers = calloc(1, sizeof(struct captured *));
    if (part->xfers == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a captured operation");
    c = part->xfers[0] = pki_captured_new(e, part->graph, r->peer, is_send, is_send ? "send" : "recv");
    if (c == NULL)
        return PK_ERR_MEMORY;
    part->nxfers = 1;
    c->op = is_send ? ++c->peer->sends_begun[1] : ++c->peer->recvs_begun[1];
    c->addr = (char *)(is_send ? (uintptr_t)r->in : (uintptr_t)r->out);
    c->bytes = r->count * pki_dtype_bytes(r->dtype);
    return PK_OK;
}

static pk_result_t grant(struct pki_engine *e, struct captured *c)
{
    struct pki_msg msg = { .kind = PKI_MSG_CTS,
                           .flags = c->flags | PKI_MSG_FLAG_DEVICE,
                           .index = c->index,
                           .sig = c->sig,
                           .op = c->op,
                           .bytes = c->bytes };
    uint64_t until = deadline(e);
    pk_result_t result = pki_graph_slot(c);

    if (result != PK_OK)
        return result;
    msg.signal_slot = (uint16_t)(c->slot - c->peer->ctrl->signals_mine);
    for (;;) {
        result = c->bytes == 0 ? PK_OK : pki_region_tell(e, c->peer, c->addr, c->bytes, &msg.region, &msg.offset);
        if (result == PK_OK)
            result = pki_ctrl_send(c->peer, &msg, NULL, e);
        if (result == PK_OK && c->bytes > 0)
            pki_region_hold(e, c->region = msg.region);
        if (result != PK_IN_PROGRESS)
            return result;
        result = pause_for(e, c, until);
        if (result != PK_OK)
            return result;
    }
}

static pk_result_t disagree(struct pki_engine *e, const struct captured *c, const struct pki_msg *msg)
{
    struct pki_where where = { .rank = e->config.rank, .peer = c->peer->rank, .op = c->name, .op_number = c->op };

    if (msg->sig != c->sig)
        (void)pki_fail(PK_ERR_MISMATCH, &where, "captured: ranks %d and %d disagree on operation, type, count, reduction or root",
                       e->config.rank, c->peer->rank);
    else
        (void)pki_fail(PK_ERR_MISMATCH, &where, "captured: rank %d sends %zu bytes, rank %d receives %llu", e->config.rank,
                       c->bytes, c->peer->rank, (unsigned long long)msg->bytes);
    pki_engine_poison(e, PK_ERR_MISMATCH, true);
    return PK_ERR_MISMATCH;
}

static pk_result_t map_target(struct pki_engine *e, struct captured *c, const struct pki_msg *msg, uint64_t until)
{
    pk_result_t result;

    while ((result = pki_region_map(e, c->peer, msg->region, msg->offset, c->bytes, &c->remote)) == PK_IN_PROGRESS) {
        if (pki_streams_hold()) {
            e->gpu->ops->drop_stale_mappings(e->gpu); /* a replay that waits for a peer needs nothing of this thread */
            pki_streams_release();
        }
        result = pause_for(e, c, until);
        if (result != PK_OK)
            return result;
    }
    if (result == PK_OK && c->peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE]->same_process &&
        pki_retained_take((void *)(uintptr_t)c->remote))
        c->held = (void *)(uintptr_t)c->remote;
    c->remote += msg->offset;
    return result;
}

static pk_result_t await_cts(struct pki_engine *e, struct captured *c)
{
    struct pki_xfer key = { .peer = c->peer, .is_send = true, .id = { .flags = c->flags, .index = c->index, .op = c->op } };
    uint64_t until = deadline(e);
    struct pki_unexpected *unexpected;
    struct pki_msg msg;
    pk_result_t result;

    while ((unexpected = pki_ctrl_take(&key)) == NULL) {
        result = pause_for(e, c, until);
        if (result != PK_OK)
            return result;
    }
    msg = unexpected->msg;
    free(unexpected);
    if (msg.bytes != c->bytes || msg.sig != c->sig)
        return disagree(e, c, &msg);
    c->slot = &c->peer->ctrl->signals_theirs[msg.signal_slot % PKI_SIGNAL_SLOTS];
    pki_watchdog_note(c->peer, true, msg.signal_slot % PKI_SIGNAL_SLOTS, 1);
    result = c->bytes == 0 ? PK_OK : map_target(e, c, &msg, until);
    if (result == PK_OK)
        atomic_fetch_add(&c->slot->claim, 1); /* the receiver may destroy its graph now */
    return result;
}

pk_result_t pki_capture_post(struct pki_engine *e, struct pki_capture *capture)
{
    pk_result_t result = PK_OK;

    for (int i = 0; i < capture->n && result == PK_OK; i++) {
        struct capture_part *part = &capture->parts[i];

        result = part->task != NULL ? pki_capture_plan_enroll(e, part) : enroll_transfer(e, part);
        for (uint32_t k = 0; k < part->nxfers && result == PK_OK; k++)
            if (part->xfers[k] != NULL && !part->xfers[k]->is_send)
                result = grant(e, part->xfers[k]);
    }
    if (result != PK_OK) /* numbers and slots are used up: the peer would wait for what never comes */
        pki_engine_poison(e, result, true);
    return result;
}

/* ---- recording ---- */

void pki_record_flush(struct capture_recorder *r)
{
    bool waits = false;

    if (r->result == PK_OK && r->n > 0)
        r->result = r->queue->device->ops->signals(r->queue, r->ops, r->n, r->how);
    for (int i = 0; i < r->n; i++)
        waits = waits || r->ops[i].kind != PKI_SIGNAL_WRITE;
    r->stats->captured_words += (uint64_t)r->n;
    r->stats->captured_kernels += waits && r->how == PKI_WAIT_KERNEL;
    r->n = 0;
}

static void add(struct capture_recorder *r, enum pki_signal_kind kind, _Atomic uint32_t *word, uint32_t value)
{
    if (r->n == (int)(sizeof r->ops / sizeof r->ops[0]))
        pki_record_flush(r);
    r->ops[r->n++] = (struct pki_signal_op){ kind, { word, value } };
}

void pki_record_open(struct capture_recorder *r, struct captured *c)
{
    add(r, PKI_SIGNAL_WRITE, &c->slot->start, 1);
}

void pki_record_done(struct capture_recorder *r, struct captured *c)
{
    add(r, PKI_SIGNAL_WAIT_EQ, &c->slot->done, 1);
    add(r, PKI_SIGNAL_WRITE, &c->slot->done, 0);
}

void pki_record_send(struct capture_recorder *r, struct captured *c)
{
    struct pki_ep *path = c->peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
    struct pki_put put = { .ep = path,
                           .src = c->addr,
                           .remote = c->remote,
                           .bytes = c->bytes,
                           .done_remote = { &c->slot->done, 1 },
                           .queue = r->queue };

    add(r, PKI_SIGNAL_WAIT_EQ, &c->slot->start, 1);
    add(r, PKI_SIGNAL_WRITE, &c->slot->start, 0);
    if (c->bytes == 0) {
        add(r, PKI_SIGNAL_WRITE, &c->slot->done, 1);
        return;
    }
    pki_record_flush(r);
    pki_list_init(&put.event.node);
    if (r->result == PK_OK)
        r->result = path->iface->transport->put(&put); /* it is in the queue when this returns */
    r->stats->captured_copies++;
    r->stats->captured_words++; /* behind it */
}

enum pass { PASS_OPEN, PASS_SEND, PASS_COLLECTIVE, PASS_DONE, PASSES };

static void record_own(const struct capture_part *part, struct capture_recorder *r)
{
    const struct pki_request *request = &part->request;
    size_t bytes = request->count * pki_dtype_bytes(request->dtype);

    if (request->what == PKI_DO_SEND || bytes == 0 || r->result != PK_OK)
        return;
    r->result = part->queue.device->ops->copy(&part->queue, request->out, part->own, bytes);
    r->stats->captured_kernels++; /* which a copy inside the GPU is */
}

static void record_message(const struct capture_part *part, enum pass pass, struct capture_recorder *r)
{
    struct captured *c = part->xfers != NULL ? part->xfers[0] : NULL;

    if (c == NULL && pass == PASS_SEND)
        record_own(part, r);
    else if (c != NULL && pass == PASS_OPEN && !c->is_send)
        pki_record_open(r, c);
    else if (c != NULL && pass == PASS_SEND && c->is_send)
        pki_record_send(r, c);
    else if (c != NULL && pass == PASS_DONE && !c->is_send)
        pki_record_done(r, c);
}

static void record_part(struct pki_engine *e, struct capture_part *part, enum pass pass, struct capture_recorder *r)
{
    r->queue = &part->queue;
    if (pass == PASS_COLLECTIVE) {
        r->stats->captured_operations++;
        r->stats->captured_steps += part->task != NULL ? part->task->plan->nsteps : 1;
    }
    if (part->task == NULL)
        record_message(part, pass, r);
    else if (pass == PASS_COLLECTIVE)
        pki_capture_plan_record(e, part, r);
    pki_record_flush(r);
}

pk_result_t pki_capture_record(struct pki_engine *e, struct pki_capture *capture)
{
    struct capture_recorder recorder = { .how = capture->how, .stats = &e->stats };
    pk_result_t result = PK_OK;

    for (int i = 0; i < capture->n && result == PK_OK; i++)
        for (uint32_t k = 0; k < capture->parts[i].nxfers && result == PK_OK; k++)
            if (capture->parts[i].xfers[k] != NULL && capture->parts[i].xfers[k]->is_send)
                result = await_cts(e, capture->parts[i].xfers[k]);
    for (int pass = 0; pass < PASSES && result == PK_OK; pass++)
        for (int i = 0; i < capture->n; i++)
            record_part(e, &capture->parts[i], (enum pass)pass, &recorder);
    if (result == PK_OK)
        result = recorder.result;
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that no transport moves from buffer to buffer: through slots of pinned host memory, a piece at a time, several pieces in flight.
 *
 * A sender whose bytes cannot leave its memory as they are copies each piece into a slot of its own and puts it from there: GPU
 * memory to a peer's host memory, host memory to a peer's GPU that this GPU reaches. A receiver into GPU memory that the peer does not
 * reach grants STAGED: the sender then asks for one slot of the receiver a piece (ASK, SLOT), puts the piece there and says so (FIN), and
 * the receiver's GPU fetches it.
 *
 * No slot is held for a peer that may not come. A piece exists only of bytes that are ready, takes the sender's slot before it asks for the
 * receiver's, and whoever holds both goes on by itself; so every slot comes back, in whatever order transfers were posted.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/internal.h"

/* ---- slots ---- */

static pk_result_t pool_open(struct pki_engine *e, struct pki_stage_pool *pool)
{
    size_t bytes = ((size_t)PKI_STAGE_SLOTS + 1) * PKI_STAGE_BYTES;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pk_result_t result;

    if (memory == MAP_FAILED)
        return pki_fail_errno(PK_ERR_MEMORY, NULL, "mmap of %zu bytes of slots", bytes);
    result = e->gpu->ops->host_register(e->gpu, memory, bytes);
    if (result != PK_OK)
        goto err_unmap;
    result = e->gpu->ops->queue_open(e->gpu, &pool->queue);
    if (result != PK_OK)
        goto err_unregister;
    pool->memory = memory;
    for (pool->nfree = 0; pool->nfree < PKI_STAGE_SLOTS; pool->nfree++)
        pool->free[pool->nfree] = (uint8_t)(PKI_STAGE_SLOTS - 1 - pool->nfree);
    return PK_OK;

err_unregister:
    e->gpu->ops->host_unregister(e->gpu, memory);
err_unmap:
    munmap(memory, bytes);
    return result;
}

static void pool_close(struct pki_engine *e, struct pki_stage_pool *pool)
{
    if (pool->memory == NULL)
        return;
    e->gpu->ops->queue_close(&pool->queue);
    e->gpu->ops->host_unregister(e->gpu, pool->memory);
    munmap(pool->memory, ((size_t)PKI_STAGE_SLOTS + 1) * PKI_STAGE_BYTES);
    pool->memory = NULL;
}

/* -1: none is free now, or the engine has failed. */
static int slot_take(struct pki_engine *e, struct pki_stage_pool *pool)
{
    pk_result_t result = pool->memory != NULL ? PK_OK : pool_open(e, pool);

    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    return result != PK_OK || pool->nfree == 0 ? -1 : pool->free[--pool->nfree];
}

static void slot_give(struct pki_stage_pool *pool, int slot)
{
    if (slot >= 0)
        pool->free[pool->nfree++] = (uint8_t)slot;
}

static char *slot_at(const struct pki_stage_pool *pool, int slot)
{
    return pool->memory + (size_t)slot * PKI_STAGE_BYTES;
}

struct pki_queue *pki_stage_queue(struct pki_engine *e, bool up)
{
    struct pki_stage_pool *pool = up ? &e->in : &e->out;
    pk_result_t result = pool->memory != NULL ? PK_OK : pool_open(e, pool);

    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    return result == PK_OK ? &pool->queue : NULL;
}

bool pki_stage_copies(const struct pki_engine *e, enum pki_coll coll, const struct pki_plan *plan)
{
    return e->config.sm_policy == PK_SM_NONE && (coll == PKI_COLL_ALLTOALL || coll == PKI_COLL_ALLTOALLV) &&
           plan->scratch_blocks == 0;
}

/* Through the slot behind the others, which the queue's order alone guards. */
pk_result_t pki_stage_copy(struct pki_engine *e, char *dst, const char *src, size_t bytes, struct pki_queue **queue)
{
    struct pki_queue *q = pki_stage_queue(e, false);
    pk_result_t result = q != NULL ? PK_OK : (pk_result_t)atomic_load(&e->failed);

    for (size_t done = 0; done < bytes && result == PK_OK; done += PKI_STAGE_BYTES) {
        size_t len = bytes - done < PKI_STAGE_BYTES ? bytes - done : PKI_STAGE_BYTES;
        char *slot = slot_at(&e->out, PKI_STAGE_SLOTS);

        result = e->gpu->ops->copy(q, slot, src + done, len);
        if (result == PK_OK)
            result = e->gpu->ops->copy(q, dst + done, slot, len);
        e->stats.copies += 2;
    }
    *queue = q;
    return result;
}

bool pki_stage_idle(struct pki_engine *e)
{
    return (e->out.memory == NULL || e->gpu->ops->idle(&e->out.queue)) && (e->in.memory == NULL || e->gpu->ops->idle(&e->in.queue));
}

void pki_stage_close(struct pki_engine *e)
{
    struct pki_list *lists[2] = { &e->stages, &e->spare_stages };

    pool_close(e, &e->out);
    pool_close(e, &e->in);
    for (int i = 0; i < 2; i++) {
        struct pki_list *node;

        while ((node = pki_list_pop(lists[i])) != NULL)
            free(pki_container_of(node, struct pki_stage, node));
    }
}

/* ---- pieces ---- */

static bool stage_open(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    struct pki_list *node;

    if (xfer->stage != NULL)
        return true;
    node = pki_list_pop(&e->spare_stages);
    xfer->stage = node != NULL ? pki_container_of(node, struct pki_stage, node) : calloc(1, sizeof *xfer->stage);
    if (xfer->stage == NULL) {
        pki_engine_poison(e, pki_fail(PK_ERR_MEMORY, NULL, "no memory to stage a transfer"), true);
        return false;
    }
    xfer->stage->head = xfer->stage->tail = 0;
    pki_list_init(&xfer->stage->node);
    pki_list_push(&e->stages, &xfer->stage->node);
    return true;
}

/* Of a transfer that failed the copies may still be under way: its pieces stay as they are until the engine is closed. */
void pki_stage_leave(struct pki_xfer *xfer)
{
    struct pki_stage *stage = xfer->stage;

    free(xfer->kept);
    xfer->kept = NULL;
    xfer->stage = NULL;
    if (stage == NULL || stage->head != stage->tail)
        return;
    pki_list_remove(&stage->node);
    pki_list_push(&xfer->engine->spare_stages, &stage->node);
}

static struct pki_piece *piece_at(struct pki_stage *stage, unsigned index)
{
    return &stage->pieces[index % (2 * PKI_STAGE_PIECES)];
}

/* Let the GPU copy, and a word say when it has. False: no word is free, or the engine has failed. */
static bool copy_start(struct pki_engine *e, struct pki_stage_pool *pool, struct pki_piece *piece, void *dst, const void *src)
{
    struct pki_word_op ended = { .kind = PKI_WORD_WRITE };
    pk_result_t result;

    piece->word = pki_words_take(e, &ended.gate);
    if (piece->word < 0)
        return false;
    result = e->gpu->ops->copy(&pool->queue, dst, src, piece->len);
    if (result == PK_OK)
        result = e->gpu->ops->words(&pool->queue, &ended, 1, PKI_WAIT_VALUE);
    if (result != PK_OK) {
        pki_engine_poison(e, result, true);
        return false;
    }
    e->stats.copies++;
    piece->copied = ended.gate;
    piece->copying = true;
    return true;
}

static bool copy_ended(struct pki_engine *e, struct pki_piece *piece)
{
    if (!piece->copying || !pki_gate_is_open(&piece->copied))
        return false;
    pki_words_give(e, piece->word);
    piece->copying = false;
    return true;
}

/* ---- the sender's side ---- */

/* The next piece of what is ready; false: there is none, or no slot or word for it. */
static bool piece_begin(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    struct pki_stage *stage = xfer->stage;
    struct pki_piece *piece = piece_at(stage, stage->head);
    size_t left = xfer->ready - xfer->issued;
    const char *src = xfer->addr + xfer->issued;

    if (left == 0 || stage->head - stage->tail == PKI_STAGE_PIECES)
        return false;
    *piece = (struct pki_piece){ .offset = xfer->issued, .len = left < PKI_STAGE_BYTES ? left : PKI_STAGE_BYTES, .slot = -1,
                                 .src = src, .placed = !xfer->staged, .remote = xfer->remote + xfer->issued };
    if (xfer->bounce) {
        piece->slot = slot_take(e, &e->out);
        if (piece->slot < 0)
            return false;
        piece->src = slot_at(&e->out, piece->slot);
    }
    if (xfer->bounce && xfer->kind == PKI_MEM_DEVICE) {
        if (!copy_start(e, &e->out, piece, slot_at(&e->out, piece->slot), src)) {
            slot_give(&e->out, piece->slot);
            return false;
        }
    } else {
        if (xfer->bounce)
            memcpy(slot_at(&e->out, piece->slot), src, piece->len);
        piece->filled = true;
    }
    xfer->issued += piece->len;
    stage->head++;
    return true;
}

static void piece_ask(struct pki_xfer *xfer, struct pki_piece *piece)
{
    struct pki_msg msg = { .kind = PKI_MSG_ASK, .flags = xfer->flags, .index = xfer->index, .sig = xfer->sig, .op = xfer->op,
                           .bytes = xfer->bytes, .offset = piece->offset, .gate_value = (uint32_t)piece->len };

    piece->asked = pki_lane_send(xfer->peer, &msg, NULL, xfer->engine) == PK_OK;
}

void pki_stage_placed(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->task);
    struct pki_stage *stage = xfer->stage;

    for (unsigned i = stage != NULL ? stage->tail : 0; stage != NULL && i != stage->head; i++) {
        struct pki_piece *piece = piece_at(stage, i);

        if (piece->placed || !piece->asked)
            continue;
        piece->placed = true;
        piece->remote = msg->offset;
        return;
    }
    pki_engine_poison(xfer->engine, pki_fail(PK_ERR_INTERNAL, &where, "gave a slot that was not asked for"), true);
}

/* Where nothing can be put the piece goes as DATA messages; they come in order and tell of themselves. */
static void piece_tell(struct pki_xfer *xfer, struct pki_piece *piece)
{
    size_t max = xfer->way->iface->msg_payload_max;

    while (piece->moved < piece->len) {
        size_t len = piece->len - piece->moved < max ? piece->len - piece->moved : max;
        struct pki_msg msg = { .kind = PKI_MSG_DATA, .flags = xfer->flags, .index = xfer->index, .sig = xfer->sig, .op = xfer->op,
                               .bytes = xfer->bytes, .offset = piece->offset + piece->moved, .payload = (uint16_t)len };

        if (pki_lane_send(xfer->peer, &msg, piece->src + piece->moved, xfer->engine) != PK_OK)
            return;
        piece->moved += len;
    }
    piece->ended = true;
}

static void piece_put(struct pki_xfer *xfer, struct pki_piece *piece)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->task);
    const struct pki_transport *transport = xfer->way->iface->transport;
    pk_result_t result;

    piece->put = (struct pki_put){ .ep = xfer->way, .src = piece->src, .remote = piece->remote, .bytes = piece->len, .owner = xfer };
    piece->put.about = (struct pki_msg){ .kind = PKI_MSG_FIN, .flags = xfer->flags, .index = xfer->index, .sig = xfer->sig,
                                         .op = xfer->op, .bytes = xfer->bytes };
    if (xfer->staged)
        piece->put.about.flags |= PKI_MSG_FLAG_STAGED;
    pki_list_init(&piece->put.node);
    result = transport->put(&piece->put);
    if (result == PK_IN_PROGRESS)
        return;
    if (result != PK_OK) {
        pki_engine_blame(xfer->engine, result, &where, transport->name, xfer->done, xfer->bytes);
        return;
    }
    piece->moving = true;
    xfer->engine->puts_out++;
}

void pki_stage_put_done(struct pki_xfer *xfer, struct pki_put *put)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->task);

    if (put->result != PK_OK)
        pki_engine_blame(xfer->engine, put->result, &where, put->ep->iface->transport->name, xfer->done, xfer->bytes);
    else
        pki_container_of(put, struct pki_piece, put)->ended = true;
}

/* False: not yet, and no later piece may overtake it. */
static bool piece_send(struct pki_xfer *xfer, struct pki_piece *piece)
{
    piece->filled |= copy_ended(xfer->engine, piece);
    if (xfer->staged && !piece->asked)
        piece_ask(xfer, piece);
    if (xfer->staged && !piece->asked)
        return false;
    if (!piece->filled || !piece->placed || piece->moving || piece->ended)
        return xfer->way->can_put || piece->ended;
    if (xfer->way->can_put)
        piece_put(xfer, piece);
    else
        piece_tell(xfer, piece);
    return piece->moving || piece->ended;
}

void pki_stage_send(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    size_t before = xfer->done;
    bool go_on = true;

    if (!stage_open(xfer))
        return;
    while (piece_begin(xfer))
        ;
    for (unsigned i = xfer->stage->tail; i != xfer->stage->head && go_on && atomic_load(&e->failed) == PK_OK; i++)
        go_on = piece_send(xfer, piece_at(xfer->stage, i));
    while (xfer->stage->tail != xfer->stage->head && piece_at(xfer->stage, xfer->stage->tail)->ended) {
        struct pki_piece *piece = piece_at(xfer->stage, xfer->stage->tail++);

        slot_give(&e->out, piece->slot);
        xfer->done += piece->len;
    }
    if (!xfer->way->can_put)
        xfer->told = xfer->done;
    if (xfer->finish.word != NULL && xfer->done == xfer->bytes)
        pki_gate_open(&xfer->finish);
    if (xfer->done > before && xfer->done < xfer->bytes)
        pki_xfer_progressed(xfer);
    pki_xfer_activate(xfer);
}

/* The bytes of a low-latency send that the GPU cannot read where they are; false: no slot is free. */
bool pki_stage_low_latency(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;

    if (xfer->slot < 0)
        xfer->slot = slot_take(e, &e->out);
    if (xfer->slot < 0)
        return false;
    memcpy(slot_at(&e->out, xfer->slot), xfer->addr, xfer->bytes);
    return true;
}

char *pki_stage_low_latency_source(const struct pki_xfer *xfer)
{
    return slot_at(&xfer->engine->out, xfer->slot);
}

void pki_stage_give(struct pki_xfer *xfer)
{
    slot_give(xfer->is_send ? &xfer->engine->out : &xfer->engine->in, xfer->slot);
    xfer->slot = -1;
}

/* ---- the receiver's side ---- */

static void broken(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    struct pki_where where = pki_engine_where(xfer->engine, xfer->peer->rank, xfer->task);

    pki_engine_poison(xfer->engine, pki_fail(PK_ERR_INTERNAL, &where, "staged message of kind %u does not fit (offset %llu of %zu)",
                                             (unsigned)msg->kind, (unsigned long long)msg->offset, xfer->bytes), true);
}

void pki_stage_asked(struct pki_xfer *xfer, const struct pki_msg *msg)
{
    struct pki_stage *stage;

    if (!stage_open(xfer))
        return;
    stage = xfer->stage;
    if (stage->head - stage->tail == 2 * PKI_STAGE_PIECES || msg->offset != xfer->issued || msg->gate_value == 0 ||
        msg->gate_value > PKI_STAGE_BYTES || msg->gate_value > xfer->bytes - xfer->issued) {
        broken(xfer, msg);
        return;
    }
    *piece_at(stage, stage->head++) = (struct pki_piece){ .offset = xfer->issued, .len = msg->gate_value, .slot = -1 };
    xfer->issued += msg->gate_value;
    pki_stage_recv(xfer);
}

/* Bytes have come into slots: with FIN all up to its offset, with DATA the payload. */
void pki_stage_landed(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload)
{
    struct pki_stage *stage = xfer->stage;
    uint64_t end = msg->kind == PKI_MSG_DATA ? msg->offset + msg->payload : msg->offset;

    for (unsigned i = stage->tail; i != stage->head; i++) {
        struct pki_piece *piece = piece_at(stage, i);

        if (!piece->placed || piece->filled)
            continue;
        if (msg->kind == PKI_MSG_DATA) {
            if (msg->offset != piece->offset + piece->moved || msg->payload > piece->len - piece->moved)
                break;
            memcpy(slot_at(&xfer->engine->in, piece->slot) + piece->moved, payload, msg->payload);
            piece->moved += msg->payload;
        }
        piece->filled = end >= piece->offset + piece->len;
        if (end <= piece->offset + piece->len) {
            pki_stage_recv(xfer);
            return;
        }
    }
    broken(xfer, msg);
}

static void piece_place(struct pki_xfer *xfer, struct pki_piece *piece)
{
    struct pki_engine *e = xfer->engine;
    struct pki_msg msg = { .kind = PKI_MSG_SLOT, .flags = xfer->flags, .index = xfer->index, .sig = xfer->sig, .op = xfer->op,
                           .bytes = xfer->bytes, .gate_value = (uint32_t)piece->len };

    if (piece->slot < 0)
        piece->slot = slot_take(e, &e->in);
    if (piece->slot < 0)
        return;
    msg.offset = (uint64_t)(uintptr_t)slot_at(&e->in, piece->slot);
    piece->placed = pki_lane_send(xfer->peer, &msg, NULL, e) == PK_OK;
}

static void advance_to(struct pki_xfer *xfer, size_t done)
{
    if (done == xfer->done)
        return;
    xfer->done = done;
    if (done == xfer->bytes)
        xfer->state = PKI_XFER_DONE;
    pki_xfer_progressed(xfer);
}

void pki_stage_recv(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    struct pki_stage *stage = xfer->stage;
    size_t done = xfer->done;
    bool in_order = true;

    for (unsigned i = stage->tail; i != stage->head && in_order && atomic_load(&e->failed) == PK_OK; i++) {
        struct pki_piece *piece = piece_at(stage, i);

        if (!piece->placed && i - stage->tail < PKI_STAGE_PIECES)
            piece_place(xfer, piece);
        in_order = piece->placed; /* the sender takes slots in the order in which it asked */
        if (piece->filled && !piece->copying && !piece->ended)
            (void)copy_start(e, &e->in, piece, xfer->addr + piece->offset, slot_at(&e->in, piece->slot));
        piece->ended |= copy_ended(e, piece);
    }
    while (stage->tail != stage->head && piece_at(stage, stage->tail)->ended) {
        struct pki_piece *piece = piece_at(stage, stage->tail++);

        slot_give(&e->in, piece->slot);
        done += piece->len;
    }
    if (done < xfer->bytes)
        pki_xfer_activate(xfer);
    if (atomic_load(&e->failed) == PK_OK)
        advance_to(xfer, done);
}

/* ---- a message that came in the lane, for GPU memory ---- */

static bool buffer_is_free(const struct pki_xfer *xfer)
{
    return xfer->ll || (xfer->start.word != NULL ? pki_gate_is_open(&xfer->start) : xfer->opened);
}

/* Into the slot that the kernel in the receiving stream already polls. */
static pk_result_t fill_low_latency(struct pki_xfer *xfer, const void *data)
{
    struct pki_engine *e = xfer->engine;
    struct pki_ll_op op = { .send = true, .bytes = (uint32_t)xfer->bytes, .flag = xfer->gate_value };

    xfer->slot = slot_take(e, &e->in);
    if (xfer->slot < 0)
        return PK_IN_PROGRESS;
    memcpy(slot_at(&e->in, xfer->slot), data, xfer->bytes);
    op.user = slot_at(&e->in, xfer->slot);
    op.slot = pki_ll_slot(e, xfer->peer->rank, xfer->gate_slot);
    e->stats.kernels++;
    return e->gpu->ops->ll(&e->in.queue, &op, 1, e->abort_word);
}

/* Small enough for the driver to take the bytes within the call, wherever they lie. */
static pk_result_t copy_up(struct pki_xfer *xfer, const void *data)
{
    struct pki_engine *e = xfer->engine;
    struct pki_word_op ended = { .kind = PKI_WORD_WRITE };
    pk_result_t result = e->in.memory != NULL ? PK_OK : pool_open(e, &e->in);

    if (result == PK_OK && xfer->ll)
        return fill_low_latency(xfer, data);
    if (result == PK_OK && xfer->finish.word == NULL) {
        xfer->own_word = pki_words_take(e, &xfer->finish);
        if (xfer->own_word < 0)
            return PK_IN_PROGRESS;
    }
    ended.gate = xfer->finish;
    if (result == PK_OK)
        result = e->gpu->ops->copy(&e->in.queue, xfer->addr, data, xfer->bytes);
    if (result == PK_OK)
        result = e->gpu->ops->words(&e->in.queue, &ended, 1, PKI_WAIT_VALUE);
    e->stats.copies++;
    return result;
}

static void keep(struct pki_xfer *xfer, const void *payload)
{
    xfer->kept = malloc(xfer->bytes);
    if (xfer->kept != NULL)
        memcpy(xfer->kept, payload, xfer->bytes);
    else
        pki_engine_poison(xfer->engine, pki_fail(PK_ERR_MEMORY, NULL, "no memory to keep %zu bytes", xfer->bytes), true);
}

void pki_stage_eager(struct pki_xfer *xfer, const void *payload)
{
    pk_result_t result = buffer_is_free(xfer) ? copy_up(xfer, payload) : PK_IN_PROGRESS;

    if (result == PK_IN_PROGRESS)
        keep(xfer, payload);
    else if (result != PK_OK)
        pki_engine_poison(xfer->engine, result, true);
    xfer->state = PKI_XFER_WAIT;
    pki_xfer_activate(xfer);
}

void pki_stage_kept(struct pki_xfer *xfer)
{
    pk_result_t result = buffer_is_free(xfer) ? copy_up(xfer, xfer->kept) : PK_IN_PROGRESS;

    pki_xfer_activate(xfer);
    if (result == PK_IN_PROGRESS)
        return;
    if (result != PK_OK)
        pki_engine_poison(xfer->engine, result, true);
    free(xfer->kept);
    xfer->kept = NULL;
}

/* The word is this rank's own: the sender knows of none. */
void pki_stage_watch(struct pki_xfer *xfer)
{
    if (!pki_gate_is_open(&xfer->finish)) {
        pki_xfer_activate(xfer);
        return;
    }
    pki_words_give(xfer->engine, xfer->own_word);
    xfer->own_word = -1;
    advance_to(xfer, xfer->bytes);
}

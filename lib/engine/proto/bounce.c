/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that no transport moves from buffer to buffer: through slots of pinned host memory, a piece at a time, several
 * pieces in flight. Here the slots, and copies between them and GPU memory; bounce_send.c and bounce_recv.c are the two sides.
 *
 * A sender whose bytes cannot leave its memory as they are copies each piece into a slot of its own and puts it from there:
 * GPU memory to a peer's host memory, host memory to a peer's GPU that this GPU reaches. A receiver into GPU memory that the
 * peer does not reach grants BOUNCE: the sender then asks for one slot of the receiver a piece (BOUNCE_REQ, BOUNCE_CREDIT),
 * puts the piece there and says so (FIN), and the receiver's GPU fetches it.
 *
 * Where the receiver's slots are mapped here too (fused/host.c), the GPU of the sender fills them itself: no slot of the
 * sender, no put.
 *
 * No slot is held for a peer that may not come. A piece exists only of bytes that are ready, takes the sender's slot before it
 * asks for the receiver's, and whoever holds both goes on by itself; so every slot comes back, in whatever order transfers
 * were posted.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "engine/proto/bounce.h"
#include "engine/proto/proto.h"

/* ---- slots ---- */

pk_result_t pki_bounce_pool_open(struct pki_engine *e, struct pki_bounce_pool *pool)
{
    const size_t bytes = PKI_BOUNCE_POOL_BYTES;
    char *shared = pool == &e->proto.in ? e->fused.host.slots.at : NULL;
    void *memory = shared != NULL ? shared : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pk_result_t result;

    if (memory == MAP_FAILED)
        return pki_fail_errno(PK_ERR_MEMORY, NULL, "mmap of %zu bytes of bounce buffers", bytes);
    result = e->gpu->ops->host_register(e->gpu, memory, bytes);
    if (result != PK_OK) {
        if (shared == NULL)
            munmap(memory, bytes);
        return result;
    }
    pool->memory = memory;
    for (pool->nfree = 0; pool->nfree < PKI_BOUNCE_BUFFERS; pool->nfree++)
        pool->free[pool->nfree] = (uint8_t)(PKI_BOUNCE_BUFFERS - 1 - pool->nfree);
    return PK_OK;
}

static void pool_close(struct pki_engine *e, struct pki_bounce_pool *pool)
{
    if (pool->memory == NULL)
        return;
    e->gpu->ops->host_unregister(e->gpu, pool->memory);
    if (pool->memory != e->fused.host.slots.at)
        munmap(pool->memory, PKI_BOUNCE_POOL_BYTES);
    pool->memory = NULL;
}

int pki_bounce_buffer_take(struct pki_engine *e, struct pki_bounce_pool *pool)
{
    pk_result_t result = pool->memory != NULL ? PK_OK : pki_bounce_pool_open(e, pool);

    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    return result != PK_OK || pool->nfree == 0 ? -1 : pool->free[--pool->nfree];
}

void pki_bounce_buffer_give(struct pki_bounce_pool *pool, int slot)
{
    if (slot >= 0)
        pool->free[pool->nfree++] = (uint8_t)slot;
}

struct pki_queue *pki_bounce_queue(struct pki_engine *e, bool up)
{
    struct pki_bounce_pool *pool = up ? &e->proto.in : &e->proto.out;
    pk_result_t result = pool->memory != NULL ? PK_OK : pki_bounce_pool_open(e, pool);

    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    return result == PK_OK ? &pool->queue : NULL;
}

struct pki_queue *pki_queue_for(const struct pki_task *task, enum pki_lane lane)
{
    struct pki_engine_proto *proto = &task->engine->proto;

    if (task->cuda.how == PKI_WAIT_SERVE)
        return &proto->lanes[lane];
    if (lane == PKI_LANE_WORK)
        return &proto->work;
    return lane == PKI_LANE_IN ? &proto->in.queue : &proto->out.queue;
}

bool pki_bounce_copies(const struct pki_engine *e, enum pki_coll coll, const struct pki_plan *plan)
{
    return e->config.sm_policy == PK_SM_NONE && (coll == PKI_COLL_ALLTOALL || coll == PKI_COLL_ALLTOALLV) &&
           plan->scratch_blocks == 0;
}

pk_result_t pki_bounce_copy(struct pki_engine *e, const struct pki_queue *q, int slot_index, char *dst, const char *src,
                            size_t bytes)
{
    pk_result_t result = PK_OK;

    for (size_t done = 0; done < bytes && result == PK_OK; done += PKI_BOUNCE_BYTES) {
        size_t len = bytes - done < PKI_BOUNCE_BYTES ? bytes - done : PKI_BOUNCE_BYTES;
        char *slot = pki_bounce_buffer_at(&e->proto.out, slot_index);

        result = e->gpu->ops->copy(q, slot, src + done, len);
        if (result == PK_OK)
            result = e->gpu->ops->copy(q, dst + done, slot, len);
        e->stats.copies += 2;
    }
    return result;
}

static bool lanes_are_idle(const struct pki_engine *e)
{
    bool idle = true;

    for (int i = 0; i < PKI_LANES && e->proto.lanes[i].device != NULL; i++)
        idle = idle && e->proto.lanes[i].device->ops->idle(&e->proto.lanes[i]);
    return idle;
}

bool pki_bounce_idle(struct pki_engine *e)
{
    return lanes_are_idle(e) && (e->proto.out.memory == NULL || e->gpu->ops->idle(&e->proto.out.queue)) &&
           (e->proto.in.memory == NULL || e->gpu->ops->idle(&e->proto.in.queue));
}

void pki_bounce_close(struct pki_engine *e)
{
    struct pki_list *lists[2] = { &e->proto.bounce_states, &e->proto.spare_bounces };

    pool_close(e, &e->proto.out);
    pool_close(e, &e->proto.in);
    for (int i = 0; i < 2; i++) {
        struct pki_list *node;

        while ((node = pki_list_pop(lists[i])) != NULL)
            free(pki_container_of(node, struct pki_bounce, node));
    }
}

bool pki_bounce_fills_slots_of(struct pki_engine *e, const struct pki_peer *peer)
{
    struct pki_fused_mapping *slots = peer->rank < PKI_FUSED_RANKS ? &e->fused.host.far[peer->rank].here : NULL;

    if (slots == NULL || slots->at == NULL)
        return false;
    if (!slots->is_registered) {
        slots->is_registered = e->gpu->ops->host_register(e->gpu, slots->at, slots->bytes) == PK_OK;
        if (!slots->is_registered) { /* which the log says */
            munmap(slots->at, slots->bytes);
            slots->at = NULL;
        }
    }
    return slots->is_registered;
}

char *pki_bounce_slot_of(const struct pki_engine *e, const struct pki_peer *peer, uint64_t remote)
{
    const struct pki_far_slots *far = &e->fused.host.far[peer->rank];

    return remote - far->there <= far->here.bytes - PKI_BOUNCE_BYTES ? far->here.at + (remote - far->there) : NULL;
}

/* ---- pieces ---- */

bool pki_bounce_reaches(const struct pki_xfer *xfer, const struct pki_ep *path)
{
    const struct pki_mem mem = { .kind = PKI_MEM_DEVICE, .base = (uintptr_t)xfer->addr, .bytes = xfer->bytes };

    return path != NULL && path->can_put && path->iface->transport->reg(path->iface, &mem, NULL) == PK_OK;
}

bool pki_bounce_open(struct pki_xfer *xfer)
{
    struct pki_engine *e = xfer->engine;
    struct pki_list *node;

    if (xfer->bounce.state != NULL)
        return true;
    node = pki_list_pop(&e->proto.spare_bounces);
    xfer->bounce.state = node != NULL ? pki_container_of(node, struct pki_bounce, node) : calloc(1, sizeof *xfer->bounce.state);
    if (xfer->bounce.state == NULL) {
        pki_engine_poison(e, pki_fail(PK_ERR_MEMORY, NULL, "no memory for the bounce buffers of a transfer"), true);
        return false;
    }
    xfer->bounce.state->head = xfer->bounce.state->tail = 0;
    pki_list_init(&xfer->bounce.state->node);
    pki_list_push(&e->proto.bounce_states, &xfer->bounce.state->node);
    return true;
}

/* Of a transfer that failed the copies may still be under way: its pieces stay as they are until the engine is closed. */
void pki_bounce_leave(struct pki_xfer *xfer)
{
    struct pki_bounce *bounce_state = xfer->bounce.state;

    free(xfer->bounce.kept);
    xfer->bounce.kept = NULL;
    xfer->bounce.state = NULL;
    if (bounce_state == NULL || bounce_state->head != bounce_state->tail)
        return;
    pki_list_remove(&bounce_state->node);
    pki_list_push(&xfer->engine->proto.spare_bounces, &bounce_state->node);
}

bool pki_bounce_copy_start(struct pki_engine *e, struct pki_queue *queue, struct pki_piece *piece, void *dst, const void *src)
{
    struct pki_signal_op ended = { .kind = PKI_SIGNAL_WRITE };
    pk_result_t result;

    if (!pki_may_copy(queue, piece->len))
        return false;
    piece->word = pki_signals_take(e, &ended.signal);
    if (piece->word < 0)
        return false;
    result = queue->device->ops->copy(queue, dst, src, piece->len);
    if (result == PK_OK)
        result = queue->device->ops->signals(queue, &ended, 1, PKI_WAIT_VALUE);
    if (result != PK_OK) {
        pki_engine_poison(e, result, true);
        return false;
    }
    e->stats.copies++;
    piece->copied = ended.signal;
    piece->state = piece->state == PKI_BOUNCE_FILLED ? PKI_BOUNCE_UNPACKING : PKI_BOUNCE_PACKING;
    return true;
}

bool pki_bounce_unpack(struct pki_engine *e, struct pki_queue *queue, struct pki_piece *const *pieces, int n, char *dst)
{
    struct pki_unpack_fragment fragments[PKI_BOUNCE_PIECES];
    struct pki_signal_op ended[PKI_BOUNCE_PIECES];
    pk_result_t result;
    int words = 0;

    if (!queue->device->ops->clear(queue, true))
        return false;
    for (; words < n; words++) {
        struct pki_piece *piece = pieces[words];

        ended[words].kind = PKI_SIGNAL_WRITE;
        piece->word = pki_signals_take(e, &ended[words].signal);
        if (piece->word < 0)
            break;
        fragments[words] = (struct pki_unpack_fragment){ .src_offset = (uint64_t)piece->slot * PKI_BOUNCE_BYTES,
                                                         .bytes = piece->len,
                                                         .dst_offset = piece->offset };
    }
    if (words == 0)
        return false;
    result = queue->device->ops->unpack(queue, dst, e->proto.in.memory, fragments, words);
    if (result == PK_OK)
        result = queue->device->ops->signals(queue, ended, words, PKI_WAIT_VALUE);
    if (result != PK_OK) {
        pki_engine_poison(e, result, true);
        return false;
    }
    e->stats.kernels++;
    for (int i = 0; i < words; i++) {
        pieces[i]->copied = ended[i].signal;
        pieces[i]->state = PKI_BOUNCE_UNPACKING;
    }
    return true;
}

void pki_bounce_look_at_copy(struct pki_engine *e, struct pki_piece *piece)
{
    const bool packs = piece->state == PKI_BOUNCE_PACKING;

    if ((!packs && piece->state != PKI_BOUNCE_UNPACKING) || !pki_signal_is_open(&piece->copied))
        return;
    pki_signals_give(e, piece->word);
    piece->state = packs ? PKI_BOUNCE_FILLED : PKI_BOUNCE_ENDED;
}

int pki_bounce_unpack_ctas(const struct pki_engine *e, const struct pki_peer *peer)
{
    if (!pki_bounce_unpacks(e) || !pki_bounce_receives(e, peer))
        return 0;
    return e->gpu->max_ctas > 0 && e->gpu->max_ctas < pki_tuning.gpu.unpack_ctas ? e->gpu->max_ctas : pki_tuning.gpu.unpack_ctas;
}

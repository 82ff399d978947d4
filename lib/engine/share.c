/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long transfer of host memory that both ends move at once: the sender puts pieces, the receiver gets others, and who comes takes
 * the next one, by a word that both see. So two cores copy where both have time, and one does it all where the other is late.
 *
 * The receiver lends a slot of its gates in the grant; the sender that has all bytes at hand answers with OFFER, where they lie.
 * Who ends the last piece tells the other: FIN from the sender, TAKEN from the receiver.
 */
#include "engine/internal.h"
#include "util/tsan.h"

#define PAGE ((size_t)4096)
#define PIECE_MAX ((size_t)256 << 10)
#define EVEN_PIECE_MAX ((size_t)4 << 20)
#define PULL_PIECE ((size_t)64 << 10)
#define FETCH_PIECE ((size_t)128 << 10) /* stays in a second-level cache, and the kernel's call is short against it */
#define FETCH_MIN ((size_t)128 << 10)
#define FETCH_MIN_QUICK ((size_t)64 << 10)
#define NEAR_MAX ((size_t)32 << 20)     /* from there on nothing of it is in a cache */
#define CROWDED_EVEN_MAX ((size_t)4 << 20) /* exchanged among more ranks than near cores */
#define NEAR_CACHE ((size_t)1 << 20)    /* a second-level cache */
#define FAR_EVEN_MIN ((size_t)8 << 20)  /* two ranks that both send and receive so much: what streaming stores write leaves their caches alone */

bool pki_share_is_even(const struct pki_xfer *xfer)
{
    return xfer->task->plan != NULL && !pki_coll_shape(xfer->task->request.algorithm->coll)->rooted;
}

/* Halves at first: a call of the kernel costs microseconds, and smaller pieces gain nothing (measured). Both ends compute the same. */
static size_t piece_bytes(const struct pki_xfer *xfer)
{
    size_t half = (xfer->bytes / 2 + PAGE - 1) / PAGE * PAGE;

    if (pki_share_is_even(xfer))
        return xfer->bytes < EVEN_PIECE_MAX ? xfer->bytes : EVEN_PIECE_MAX;
    return half < PIECE_MAX ? half : PIECE_MAX;
}

/* Another process's, which only the kernel reaches. */
static bool is_foreign(const struct pki_xfer *xfer)
{
    return !xfer->way->same_process && !xfer->remote_mapped;
}

/* Where a broadcast writes the other rank has written before if the root changed, and its second-level cache still has those lines: they are waited for
 * one after another, which takes longer than two copies through the lane. */
static bool changes_hands(const struct pki_xfer *xfer)
{
    return xfer->task->plan != NULL && xfer->task->request.algorithm->coll == PKI_COLL_BROADCAST && xfer->bytes < NEAR_CACHE;
}

bool pki_share_is_near(const struct pki_xfer *xfer)
{
    return xfer->engine->spin && xfer->way->is_near && !xfer->way->same_process && (!xfer->remote_mapped || changes_hands(xfer));
}

/* Of one copy by the kernel. */
static size_t share_min(const struct pki_xfer *xfer)
{
    return xfer->peer->lane->is_quick ? PKI_SHARE_MIN_QUICK : PKI_SHARE_MIN;
}

static bool is_exchanged(const struct pki_xfer *xfer)
{
    return pki_share_is_even(xfer) && !xfer->combines;
}

/* More ranks than cores. The kernel's calls take longer where several look into one another's memory, and each piece waits for its turn at a core: in
 * a collective longer blocks are faster through the lane then (docs/design/0006). */
static size_t pays_crowded(const struct pki_xfer *xfer)
{
    if (xfer->task->plan == NULL || !is_foreign(xfer))
        return share_min(xfer);
    if (xfer->peer->lane->is_quick)
        return PKI_SHARE_MIN;
    return xfer->way->is_near && is_exchanged(xfer) ? CROWDED_EVEN_MAX : PKI_SHARE_MIN_CROWDED;
}

/* The kernel's copy costs microseconds to begin with, and more a page than two copies through a cache that both cores have; where both ranks have
 * much to copy for themselves more than two, wherever they are. */
bool pki_share_pays(const struct pki_xfer *xfer)
{
    if (!xfer->engine->spin)
        return xfer->bytes >= pays_crowded(xfer);
    if (pki_share_is_near(xfer))
        return !is_exchanged(xfer) && xfer->bytes >= NEAR_MAX;
    if (is_foreign(xfer) && is_exchanged(xfer) && xfer->engine->config.local_ranks == 2 && !xfer->peer->lane->is_quick)
        return xfer->bytes >= PKI_SHARE_MIN && xfer->bytes < FAR_EVEN_MIN;
    return xfer->bytes >= share_min(xfer);
}

static uint32_t pieces_of(const struct pki_xfer *xfer)
{
    return (uint32_t)((xfer->bytes - 1) / piece_bytes(xfer) + 1);
}

static struct pki_gate_slot *slot_of(const struct pki_xfer *xfer)
{
    struct pki_gate_slot *slots = xfer->is_send ? xfer->peer->lane->gates_theirs : xfer->peer->lane->gates_mine;

    return &slots[xfer->gate_slot];
}

/* Do other steps go on with its bytes, in order? */
static bool waited_for(const struct pki_task *task, uint32_t step)
{
    return task->plan != NULL && task->dependents_first[step] < task->dependents_first[step + 1];
}

void pki_share_lend(struct pki_xfer *xfer)
{
    struct pki_peer *peer = xfer->peer;
    const struct pki_ep *way = peer->way[PKI_MEM_HOST][PKI_MEM_HOST];
    struct pki_gate_slot *slot;

    if (xfer->bytes < share_min(xfer) || xfer->bytes / PIECE_MAX >= UINT32_MAX || way == NULL || way != peer->lane ||
        peer->lane->gates_mine == NULL || xfer->gate_slot >= 0)
        return;
    if (waited_for(xfer->task, xfer->step))
        return;
    xfer->gate_slot = pki_slots_take(&peer->gates);
    if (xfer->gate_slot < 0)
        return;
    xfer->gate_value = ++peer->gates.value[xfer->gate_slot];
    slot = slot_of(xfer);
    atomic_store_explicit(&slot->moved, 0, memory_order_relaxed);
    /* The number keeps a sender that comes late from taking a piece of a later transfer. */
    atomic_store_explicit(&slot->claim, (uint64_t)xfer->gate_value << 32, memory_order_release);
}

static bool claim(struct pki_xfer *xfer, uint32_t *piece)
{
    _Atomic uint64_t *word = &slot_of(xfer)->claim;
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    uint32_t pieces = pieces_of(xfer);

    if (!xfer->remote_mapped && (xfer->is_send ? !xfer->way->can_put && xfer->region != 0 : !xfer->way->can_get))
        return false; /* the other end can, or does as refused() says */
    while ((uint32_t)(seen >> 32) == xfer->gate_value && (uint32_t)seen < pieces)
        if (atomic_compare_exchange_weak_explicit(word, &seen, seen + 1, memory_order_relaxed, memory_order_relaxed)) {
            *piece = (uint32_t)seen;
            return true;
        }
    return false;
}

/* This end has moved the last piece: the other does not know yet. */
static void end(struct pki_xfer *xfer)
{
    struct pki_msg msg = { .kind = xfer->is_send ? PKI_MSG_FIN : PKI_MSG_TAKEN, .flags = xfer->flags, .index = xfer->index,
                           .sig = xfer->sig, .op = xfer->op, .offset = xfer->bytes, .bytes = xfer->bytes };

    if (pki_lane_send(xfer->peer, &msg, NULL, xfer->engine) != PK_OK)
        pki_xfer_activate(xfer); /* again when there is room */
    else
        pki_share_ended(xfer);
}

void pki_share_ended(struct pki_xfer *xfer)
{
    if (!xfer->is_send && xfer->gate_slot >= 0)
        pki_slots_give(&xfer->peer->gates, xfer->gate_slot);
    xfer->done = xfer->told = xfer->bytes;
    xfer->state = PKI_XFER_DONE;
    pki_xfer_progressed(xfer);
}

void pki_share_piece_done(struct pki_xfer *xfer)
{
    uintptr_t target = xfer->is_send ? (uintptr_t)xfer->remote : (uintptr_t)xfer->addr;
    uint32_t moved;

    xfer->piece_out = false;
    if (!xfer->shared) /* it has gone over to DATA meanwhile */
        return;
    pki_tsan_release(target);
    /* Acquire and release: who counts the last one tells of all pieces. */
    moved = atomic_fetch_add_explicit(&slot_of(xfer)->moved, 1, memory_order_acq_rel) + 1;
    pki_tsan_acquire(target);
    xfer->all_moved = moved == pieces_of(xfer);
    pki_xfer_activate(xfer);
}

/* From here on all of it is DATA. What puts and gets have moved, and still move, are the same bytes. */
static void send_as_data(struct pki_xfer *xfer, size_t from)
{
    xfer->shared = xfer->pulls = xfer->fetch = false;
    xfer->gate_slot = -1;
    xfer->in_lane = true;
    xfer->issued = xfer->done = xfer->told = from;
    pki_xfer_activate(xfer);
}

void pki_share_asked(struct pki_xfer *xfer, const struct pki_msg *grant)
{
    if ((xfer->shared || xfer->pulls) && grant->offset <= xfer->bytes) /* else it has gone over by itself */
        send_as_data(xfer, grant->offset);
}

void pki_share_ask(struct pki_xfer *xfer)
{
    struct pki_msg msg = { .kind = PKI_MSG_GRANT, .flags = xfer->flags, .index = xfer->index, .sig = xfer->sig, .op = xfer->op,
                           .bytes = xfer->bytes, .offset = xfer->done, .extra = PKI_GRANT_DATA };

    xfer->shared = xfer->pulls = xfer->remote_mapped = false;
    xfer->asks = pki_lane_send(xfer->peer, &msg, NULL, xfer->engine) != PK_OK;
    if (xfer->asks)
        pki_xfer_activate(xfer);
}

/* Behind the last DATA the transfer is no more, so that a piece which this end has got meanwhile is not waited for. */
void pki_share_left(struct pki_xfer *xfer)
{
    xfer->shared = xfer->asks = false;
    if (!xfer->piece_out || pki_list_empty(&xfer->puts[0].node))
        return;
    pki_list_remove(&xfer->puts[0].node);
    xfer->engine->puts_out--;
    xfer->piece_out = false;
}

/* The piece was this end's alone to move, so that the other end has not ended, nor will it. */
static void refused(struct pki_xfer *xfer)
{
    if (xfer->is_send)
        send_as_data(xfer, 0);
    else
        pki_share_ask(xfer);
}

/* What the transport said of it. */
static void piece_started(struct pki_xfer *xfer, pk_result_t result)
{
    if (pki_put_refused(xfer, result)) {
        refused(xfer);
        return;
    }
    if (result != PK_OK) {
        pki_put_failed(xfer, result == PK_IN_PROGRESS ? PK_ERR_INTERNAL : result);
        return;
    }
    xfer->piece_out = true;
    xfer->engine->puts_out++;
    pki_engine_look_soon(xfer->engine);
}

static void move_piece(struct pki_xfer *xfer, uint32_t piece)
{
    struct pki_put *put = &xfer->puts[0];
    size_t size = piece_bytes(xfer), at = piece * size;
    size_t len = xfer->bytes - at < size ? xfer->bytes - at : size;
    const struct pki_transport *transport = xfer->way->iface->transport;

    *put = (struct pki_put){ .ep = xfer->way, .src = xfer->addr + at, .remote = xfer->remote + at, .bytes = len,
                             .mapped = xfer->remote_mapped, .owner = xfer };
    pki_list_init(&put->node);
    piece_started(xfer, xfer->is_send ? transport->put(put) : transport->get(put));
}

/* Without a piece to take it waits for the other end's message. */
void pki_share_advance(struct pki_xfer *xfer)
{
    uint32_t piece;

    if (xfer->piece_out) /* looked at twice in a round */
        return;
    if (xfer->all_moved)
        end(xfer);
    else if (claim(xfer, &piece))
        move_piece(xfer, piece);
}

/* Where this end would take the only piece at once, it need not be offered. */
static bool goes_in_one_put(const struct pki_xfer *xfer)
{
    return pki_share_is_even(xfer) && xfer->bytes <= xfer->chunk && (xfer->way->can_put || xfer->remote_mapped);
}

/* May the whole of it be offered: is it ready, with nothing moved yet, and is there a way for one end at least? */
static bool may_offer(const struct pki_xfer *xfer, const struct pki_msg *offer)
{
    bool can_move = xfer->way->can_put || xfer->remote_mapped || offer->region != 0;

    if (xfer->combines) /* the receiver combines it: it can read what it has mapped, or get it */
        return offer->region != 0 || xfer->fetch;
    return xfer->gate_slot >= 0 && can_move;
}

/* Sender, granted. PK_OK: offered. PK_IN_PROGRESS: no room now. PK_ERR_UNSUPPORTED: it goes otherwise. */
pk_result_t pki_share_offer(struct pki_xfer *xfer)
{
    struct pki_msg msg = { .kind = PKI_MSG_OFFER, .flags = xfer->flags, .index = xfer->index, .sig = xfer->sig, .op = xfer->op,
                           .bytes = xfer->bytes, .offset = (uint64_t)(uintptr_t)xfer->addr };
    pk_result_t result;

    if (xfer->kind != PKI_MEM_HOST || xfer->bounce || xfer->ll || xfer->staged || xfer->issued > 0 || xfer->ready < xfer->bytes || xfer->bytes < share_min(xfer) ||
        xfer->in_lane != xfer->combines || (xfer->gate_slot < 0 && !xfer->combines))
        return PK_ERR_UNSUPPORTED;
    if (changes_hands(xfer) && pki_share_is_near(xfer)) /* whatever memory it is */
        return PK_ERR_UNSUPPORTED;
    result = pki_shared_tell(xfer, &msg);
    if (result != PK_OK && result != PK_ERR_UNSUPPORTED)
        return PK_IN_PROGRESS;
    if (!may_offer(xfer, &msg) || (msg.region == 0 && (!pki_share_pays(xfer) || (!xfer->combines && goes_in_one_put(xfer)))))
        return PK_ERR_UNSUPPORTED;
    result = pki_lane_send(xfer->peer, &msg, NULL, xfer->engine);
    if (result != PK_OK)
        return PK_IN_PROGRESS;
    xfer->shared = !xfer->combines;
    xfer->pulls = xfer->combines;
    return PK_OK;
}

/* One copy by the kernel and one pass over it in the cache: where both ends are busy, less than two copies through the lane. */
bool pki_share_may_fetch(const struct pki_xfer *xfer)
{
    bool quick = xfer->peer->lane->is_quick;

    return xfer->combines && xfer->bytes >= (quick ? FETCH_MIN_QUICK : FETCH_MIN) && xfer->peer->lane->can_get && (quick || pki_share_is_even(xfer));
}

/* The sender has failed, and its caller uses the memory for something else, perhaps since before it was read. */
static bool is_taken_back(const struct pki_xfer *xfer)
{
    atomic_thread_fence(memory_order_acquire); /* reads of the memory before this one; the other end sets it, and then lets its callers go */
    return xfer->remote_mapped && xfer->way->revoked != NULL && atomic_load_explicit(xfer->way->revoked, memory_order_relaxed) != 0;
}

static void pull_from(struct pki_xfer *xfer, const void *from, size_t len)
{
    pk_result_t result = pki_plan_reduce_from(xfer->task, xfer->step, xfer->done, from, len);

    if (result != PK_OK) {
        pki_engine_poison(xfer->engine, result, true);
        return;
    }
    if (is_taken_back(xfer)) /* the news of the failure come by their own way */
        return;
    xfer->done += len;
    if (xfer->done == xfer->bytes) {
        xfer->all_moved = true;
        end(xfer);
        return;
    }
    pki_xfer_activate(xfer);
    pki_xfer_progressed(xfer);
}

void pki_share_fetched(struct pki_xfer *xfer, const struct pki_put *get)
{
    xfer->piece_out = false;
    pull_from(xfer, get->src, get->bytes);
}

/* At the beginning of the landing block, which so stays in the cache, unless the result may lie in that block. */
static char *landing_of(const struct pki_xfer *xfer)
{
    bool apart = xfer->task->plan->steps[xfer->step].dst.buffer != PKI_BUF_SCRATCH;

    return apart ? xfer->addr : xfer->addr + xfer->done;
}

static void fetch_piece(struct pki_xfer *xfer, size_t len)
{
    struct pki_put *get = &xfer->puts[0];

    *get = (struct pki_put){ .ep = xfer->way, .src = landing_of(xfer), .remote = xfer->remote + xfer->done, .bytes = len, .owner = xfer };
    pki_list_init(&get->node);
    piece_started(xfer, xfer->way->iface->transport->get(get));
}

/* Receive that combines: from the sender's memory, a piece a round of progress. */
void pki_share_pull(struct pki_xfer *xfer)
{
    size_t left = xfer->bytes - xfer->done, most = xfer->remote_mapped ? PULL_PIECE : FETCH_PIECE;
    size_t len = left < most ? left : most;

    if (xfer->piece_out) /* looked at twice in a round */
        return;
    if (xfer->all_moved)
        end(xfer);
    else if (xfer->remote_mapped)
        pull_from(xfer, (const void *)(uintptr_t)(xfer->remote + xfer->done), len); /* NOLINT: mapped */
    else
        fetch_piece(xfer, len);
}

/* The sender may do the rest, end, and free its memory before this is read: only a piece in hand keeps it there. */
void pki_share_offered(struct pki_xfer *xfer, const struct pki_msg *offer)
{
    uint32_t piece = 0;
    pk_result_t result = PK_OK;

    xfer->way = xfer->peer->way[PKI_MEM_HOST][PKI_MEM_HOST];
    xfer->remote = offer->offset;
    xfer->remote_mapped = offer->region != 0;
    xfer->pulls = xfer->combines;
    xfer->shared = !xfer->pulls;
    if (xfer->shared && !claim(xfer, &piece))
        return;
    if (offer->region != 0)
        result = pki_region_map_host(xfer->engine, xfer->peer, offer, true, &xfer->remote);
    if (result != PK_OK)
        pki_engine_poison(xfer->engine, result, true);
    else if (xfer->pulls)
        pki_xfer_activate(xfer);
    else
        move_piece(xfer, piece);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long transfer of host memory that both ends move at once: the sender puts pieces, the receiver gets others, and who comes
 * takes the next one, by a word that both see. So two cores copy where both have time, and one does it all where the other is
 * late.
 *
 * The receiver lends a slot of its signals in the grant; the sender that has all bytes at hand answers with OFFER, where they
 * lie. Who ends the last piece tells the other: FIN from the sender, ATS from the receiver.
 */
#include "engine/proto/proto.h"
#include "util/tsan.h"

#define PAGE ((size_t)4096)

bool pki_coop_is_even(const struct pki_xfer *xfer)
{
    return xfer->user.task->plan != NULL && !pki_coll_shape(xfer->user.task->request.algorithm->coll)->rooted;
}

/* Halves at first: a call of the kernel costs microseconds, and smaller pieces gain nothing (measured). Both ends compute the
 * same. */
static size_t piece_bytes(const struct pki_xfer *xfer)
{
    const struct pki_tuning_pair *most = &xfer->engine->config.agreed->pair;
    size_t half = ((xfer->bytes + 1) / 2 + PAGE - 1) / PAGE * PAGE;

    if (pki_coop_is_even(xfer))
        return xfer->bytes < most->coop_even_bytes ? xfer->bytes : most->coop_even_bytes;
    return half < most->coop_bytes ? half : most->coop_bytes;
}

/* Another process's, which only the kernel reaches. */
static bool is_foreign(const struct pki_xfer *xfer)
{
    return !xfer->path->same_process && !xfer->there.mapped;
}

/* Where a broadcast writes the other rank has written before if the root changed, and its second-level cache still has those
 * lines: they are waited for one after another, which takes longer than two copies through the control channel. */
static bool changes_hands(const struct pki_xfer *xfer)
{
    return xfer->user.task->plan != NULL && xfer->user.task->request.algorithm->coll == PKI_COLL_BROADCAST &&
           xfer->bytes < pki_tuning.p2p.near_cache_bytes;
}

static bool is_one_copy_fast(const struct pki_xfer *xfer)
{
    return xfer->peer->ctrl->copies == PKI_COPIES_ONE_FAST;
}

static bool is_two_copies_fast(const struct pki_xfer *xfer)
{
    return xfer->path->copies == PKI_COPIES_TWO_FAST;
}

bool pki_coop_is_near(const struct pki_xfer *xfer)
{
    return !xfer->engine->config.shares_cpu && is_two_copies_fast(xfer) && !xfer->path->same_process &&
           (!xfer->there.mapped || changes_hands(xfer));
}

/* Of one copy by the kernel. */
static size_t coop_min(const struct pki_xfer *xfer)
{
    return is_one_copy_fast(xfer) ? xfer->engine->config.agreed->pair.coop_fast_bytes : pki_tuning.p2p.coop_bytes;
}

static bool is_exchanged(const struct pki_xfer *xfer)
{
    return pki_coop_is_even(xfer) && !xfer->coop.combines;
}

/* More ranks than cores. The kernel's calls take longer where several look into one another's memory, and each piece waits for
 * its turn at a core: in a collective longer blocks are faster through the control channel then (docs/design/0006). */
static size_t pays_crowded(const struct pki_xfer *xfer)
{
    if (xfer->user.task->plan == NULL || !is_foreign(xfer))
        return coop_min(xfer);
    if (is_one_copy_fast(xfer))
        return pki_tuning.p2p.coop_bytes;
    return is_two_copies_fast(xfer) && is_exchanged(xfer) ? pki_tuning.p2p.coop_crowded_even_bytes
                                                          : pki_tuning.p2p.coop_crowded_bytes;
}

/* The kernel's copy costs microseconds to begin with, and more a page than two copies through a cache that both cores have; where
 * both ranks have much to copy for themselves more than two, wherever they are. */
bool pki_coop_pays(const struct pki_xfer *xfer)
{
    if (xfer->engine->config.shares_cpu)
        return xfer->bytes >= pays_crowded(xfer);
    if (pki_coop_is_near(xfer))
        return !is_exchanged(xfer) && xfer->bytes >= pki_tuning.p2p.coop_near_bytes;
    if (is_foreign(xfer) && is_exchanged(xfer) && xfer->engine->config.local_ranks == 2 && !is_one_copy_fast(xfer))
        return xfer->bytes >= pki_tuning.p2p.coop_bytes && xfer->bytes < pki_tuning.p2p.coop_far_even_bytes;
    return xfer->bytes >= coop_min(xfer);
}

static uint32_t pieces_of(const struct pki_xfer *xfer)
{
    return (uint32_t)((xfer->bytes - 1) / piece_bytes(xfer) + 1);
}

static struct pki_signal_slot *slot_of(const struct pki_xfer *xfer)
{
    struct pki_signal_slot *slots = xfer->is_send ? xfer->peer->ctrl->signals_theirs : xfer->peer->ctrl->signals_mine;

    return &slots[xfer->signals.slot];
}

/* Do other steps go on with its bytes, in order? */
static bool waited_for(const struct pki_task *task, uint32_t step)
{
    return task->plan != NULL && task->run.entry->dependents_first[step] < task->run.entry->dependents_first[step + 1];
}

void pki_coop_reserve(struct pki_xfer *xfer)
{
    struct pki_peer *peer = xfer->peer;
    const struct pki_ep *path = peer->path[PKI_MEM_HOST][PKI_MEM_HOST];
    struct pki_signal_slot *slot;

    if (xfer->bytes < coop_min(xfer) || xfer->bytes / PAGE >= UINT32_MAX || path == NULL || path != peer->ctrl ||
        peer->ctrl->signals_mine == NULL || xfer->signals.slot >= 0)
        return;
    if (waited_for(xfer->user.task, xfer->user.step))
        return;
    xfer->signals.slot = pki_slots_take(&peer->signals);
    if (xfer->signals.slot < 0)
        return;
    xfer->signals.value = ++peer->signals.value[xfer->signals.slot];
    slot = slot_of(xfer);
    atomic_store_explicit(&slot->moved, 0, memory_order_relaxed);
    /* The number keeps a sender that comes late from taking a piece of a later transfer. */
    atomic_store_explicit(&slot->claim, (uint64_t)xfer->signals.value << 32, memory_order_release);
}

static bool claim(struct pki_xfer *xfer, uint32_t *piece)
{
    _Atomic uint64_t *word = &slot_of(xfer)->claim;
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    uint32_t pieces = pieces_of(xfer);

    if (!xfer->there.mapped && (xfer->is_send ? !xfer->path->can_put && xfer->there.region != 0 : !xfer->path->can_get))
        return false; /* the other end can, or does as refused() says */
    while ((uint32_t)(seen >> 32) == xfer->signals.value && (uint32_t)seen < pieces)
        if (atomic_compare_exchange_weak_explicit(word, &seen, seen + 1, memory_order_relaxed, memory_order_relaxed)) {
            *piece = (uint32_t)seen;
            return true;
        }
    return false;
}

static void both_know(struct pki_xfer *xfer)
{
    if (!xfer->is_send && xfer->signals.slot >= 0)
        pki_slots_give(&xfer->peer->signals, xfer->signals.slot);
    xfer->done = xfer->reported = xfer->bytes;
    pki_xfer_enter(xfer, PKI_XFER_DONE);
}

/* This end has moved the last piece: the other does not know yet. False: it will be told when there is room. */
static bool tell_of_end(struct pki_xfer *xfer)
{
    struct pki_msg msg = pki_xfer_message(xfer, xfer->is_send ? PKI_MSG_FIN : PKI_MSG_ATS);

    msg.offset = xfer->bytes;
    if (pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine) != PK_OK) {
        pki_xfer_activate(xfer);
        return false;
    }
    both_know(xfer);
    return true;
}

static void end(struct pki_xfer *xfer)
{
    if (tell_of_end(xfer))
        pki_xfer_progressed(xfer);
}

void pki_coop_ended(struct pki_xfer *xfer)
{
    both_know(xfer);
    pki_xfer_progressed(xfer);
}

void pki_coop_piece_done(struct pki_xfer *xfer)
{
    uintptr_t target = xfer->is_send ? (uintptr_t)xfer->there.remote : (uintptr_t)xfer->addr;
    uint32_t moved;

    xfer->coop.piece = PKI_PIECE_NONE;
    if (xfer->state != PKI_XFER_COOP) /* it has gone over to DATA meanwhile */
        return;
    pki_tsan_release(target);
    /* Acquire and release: who counts the last one tells of all pieces. */
    moved = atomic_fetch_add_explicit(&slot_of(xfer)->moved, 1, memory_order_acq_rel) + 1;
    pki_tsan_acquire(target);
    if (moved == pieces_of(xfer))
        xfer->coop.piece = PKI_PIECE_LAST;
    pki_xfer_activate(xfer);
}

/* From here on all of it is DATA. What puts and gets have moved, and still move, are the same bytes. */
static void send_as_data(struct pki_xfer *xfer, size_t from)
{
    pki_xfer_enter(xfer, PKI_XFER_DATA);
    xfer->coop.may_get = false;
    xfer->signals.slot = -1;
    xfer->issued = xfer->done = xfer->reported = from;
    pki_xfer_activate(xfer);
}

void pki_coop_data_asked(struct pki_xfer *xfer, const struct pki_msg *grant)
{
    const bool offered = xfer->state == PKI_XFER_COOP || xfer->state == PKI_XFER_GET; /* else it has gone over by itself */

    if (offered && grant->offset <= xfer->bytes)
        send_as_data(xfer, grant->offset);
}

void pki_coop_ask_for_data(struct pki_xfer *xfer)
{
    struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_CTS);

    msg.offset = xfer->done;
    msg.extra = PKI_CTS_DATA;
    xfer->there.mapped = false;
    pki_xfer_enter(xfer, pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine) == PK_OK ? PKI_XFER_WAIT : PKI_XFER_ASK);
    if (xfer->state == PKI_XFER_ASK)
        pki_xfer_activate(xfer);
}

/* Behind the last DATA the transfer is no more, so that a piece which this end has got meanwhile is not waited for. */
void pki_coop_left(struct pki_xfer *xfer)
{
    pki_xfer_enter(xfer, PKI_XFER_WAIT);
    if (xfer->coop.piece != PKI_PIECE_OUT || pki_list_empty(&xfer->moves.puts.few[0].event.node))
        return;
    pki_list_remove(&xfer->moves.puts.few[0].event.node);
    xfer->engine->proto.puts_out--;
    xfer->coop.piece = PKI_PIECE_NONE;
}

/* The piece was this end's alone to move, so that the other end has not ended, nor will it. */
static void refused(struct pki_xfer *xfer)
{
    if (xfer->is_send)
        send_as_data(xfer, 0);
    else
        pki_coop_ask_for_data(xfer);
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
    xfer->coop.piece = PKI_PIECE_OUT;
    xfer->engine->proto.puts_out++;
    pki_engine_check_soon(xfer->engine);
}

static void move_piece(struct pki_xfer *xfer, uint32_t piece)
{
    struct pki_put *put = &xfer->moves.puts.few[0];
    size_t size = piece_bytes(xfer), at = piece * size;
    size_t len = xfer->bytes - at < size ? xfer->bytes - at : size;

    *put = (struct pki_put){ .ep = xfer->path,
                             .src = xfer->addr + at,
                             .remote = xfer->there.remote + at,
                             .bytes = len,
                             .mapped = xfer->there.mapped,
                             .is_get = !xfer->is_send,
                             .owner = xfer };
    pki_list_init(&put->event.node);
    piece_started(xfer, xfer->path->iface->transport->put(put));
}

/* Without a piece to take it waits for the other end's message. */
void pki_coop_advance(struct pki_xfer *xfer)
{
    uint32_t piece;

    if (xfer->coop.piece == PKI_PIECE_OUT) /* looked at twice in a round */
        return;
    if (xfer->coop.piece == PKI_PIECE_LAST)
        end(xfer);
    else if (claim(xfer, &piece))
        move_piece(xfer, piece);
}

/* Where this end would take the only piece at once, it need not be offered. */
static bool goes_in_one_put(const struct pki_xfer *xfer)
{
    return pki_coop_is_even(xfer) && xfer->bytes <= xfer->chunk && (xfer->path->can_put || xfer->there.mapped);
}

/* May the whole of it be offered: is it ready, with nothing moved yet, and is there a way for one end at least? */
static bool may_offer(const struct pki_xfer *xfer, const struct pki_msg *offer)
{
    bool can_move = xfer->path->can_put || xfer->there.mapped || offer->region != 0;

    if (xfer->coop.combines) /* the receiver combines it: it can read what it has mapped, or get it */
        return offer->region != 0 || xfer->coop.may_get;
    return xfer->signals.slot >= 0 && can_move;
}

/* Sender, granted. PK_OK: offered. PK_IN_PROGRESS: no room now. PK_ERR_UNSUPPORTED: it goes otherwise. */
pk_result_t pki_coop_offer(struct pki_xfer *xfer)
{
    struct pki_msg msg = pki_xfer_message(xfer, PKI_MSG_OFFER);
    pk_result_t result;

    msg.offset = (uint64_t)(uintptr_t)xfer->addr;
    if (xfer->kind != PKI_MEM_HOST || xfer->bounce.slots != PKI_SLOTS_NONE || xfer->signals.ll || xfer->issued > 0 ||
        xfer->ready < xfer->bytes || xfer->bytes < coop_min(xfer) || (xfer->state == PKI_XFER_DATA) != xfer->coop.combines ||
        (xfer->signals.slot < 0 && !xfer->coop.combines))
        return PK_ERR_UNSUPPORTED;
    if (changes_hands(xfer) && pki_coop_is_near(xfer)) /* whatever memory it is */
        return PK_ERR_UNSUPPORTED;
    result = pki_shm_alloc_describe(xfer, &msg);
    if (result != PK_OK && result != PK_ERR_UNSUPPORTED)
        return PK_IN_PROGRESS;
    if (!may_offer(xfer, &msg) || (msg.region == 0 && (!pki_coop_pays(xfer) || (!xfer->coop.combines && goes_in_one_put(xfer)))))
        return PK_ERR_UNSUPPORTED;
    result = pki_ctrl_send(xfer->peer, &msg, NULL, xfer->engine);
    if (result != PK_OK)
        return PK_IN_PROGRESS;
    pki_xfer_enter(xfer, xfer->coop.combines ? PKI_XFER_GET : PKI_XFER_COOP);
    return PK_OK;
}

/* One copy by the kernel and one pass over it in the cache: where both ends are busy, less than two copies through the control
 * channel. */
bool pki_coop_may_get(const struct pki_xfer *xfer)
{
    bool fast = is_one_copy_fast(xfer);
    size_t least = fast ? pki_tuning.p2p.get_fast_bytes : pki_tuning.p2p.get_bytes;

    return xfer->coop.combines && xfer->bytes >= least && xfer->peer->ctrl->can_get && (fast || pki_coop_is_even(xfer));
}

/* The sender has failed, and its caller uses the memory for something else, perhaps since before it was read. */
static bool is_taken_back(const struct pki_xfer *xfer)
{
    /* reads of the memory before this one; the other end sets it, and then lets its callers go */
    atomic_thread_fence(memory_order_acquire);
    return xfer->there.mapped && xfer->path->revoked != NULL &&
           atomic_load_explicit(xfer->path->revoked, memory_order_relaxed) != 0;
}

/* True: the transfer has progressed. */
static bool get_from(struct pki_xfer *xfer, const void *from, size_t len)
{
    pk_result_t result = xfer->user.calls->combine(xfer->user.task, xfer->user.step, xfer->done, from, len);

    if (result != PK_OK) {
        pki_engine_poison(xfer->engine, result, true);
        return false;
    }
    if (is_taken_back(xfer)) /* the news of the failure come by their own way */
        return false;
    xfer->done += len;
    if (xfer->done == xfer->bytes) {
        xfer->coop.piece = PKI_PIECE_LAST;
        return tell_of_end(xfer);
    }
    pki_xfer_activate(xfer);
    return true;
}

bool pki_coop_get_ended(struct pki_put *get)
{
    struct pki_xfer *xfer = get->owner;

    xfer->engine->proto.puts_out--;
    if (atomic_load(&xfer->engine->failed) != PK_OK)
        return false;
    if (get->result != PK_OK) {
        pki_put_failed(xfer, get->result);
        return false;
    }
    if (xfer->state == PKI_XFER_GET) {
        xfer->coop.piece = PKI_PIECE_NONE;
        return get_from(xfer, get->src, get->bytes);
    }
    pki_coop_piece_done(xfer);
    return false;
}

/* At the beginning of the landing block, which so stays in the cache, unless the result may lie in that block. */
static char *landing_of(const struct pki_xfer *xfer)
{
    bool apart = xfer->user.task->plan->steps[xfer->user.step].dst.buffer != PKI_BUF_SCRATCH;

    return apart ? xfer->addr : xfer->addr + xfer->done;
}

static void get_piece(struct pki_xfer *xfer, size_t len)
{
    struct pki_put *get = &xfer->moves.puts.few[0];

    *get = (struct pki_put){ .ep = xfer->path,
                             .src = landing_of(xfer),
                             .remote = xfer->there.remote + xfer->done,
                             .bytes = len,
                             .is_get = true,
                             .owner = xfer };
    pki_list_init(&get->event.node);
    piece_started(xfer, xfer->path->iface->transport->put(get));
}

/* Receive that combines: from the sender's memory, a piece a round of progress. */
void pki_coop_get(struct pki_xfer *xfer)
{
    size_t left = xfer->bytes - xfer->done;
    size_t most = xfer->there.mapped ? pki_tuning.p2p.get_piece_mapped_bytes : pki_tuning.p2p.get_piece_bytes;
    size_t len = left < most ? left : most;

    if (xfer->coop.piece == PKI_PIECE_OUT) /* looked at twice in a round */
        return;
    if (xfer->coop.piece == PKI_PIECE_LAST)
        end(xfer);
    else if (!xfer->there.mapped)
        get_piece(xfer, len);
    else if (get_from(xfer, (const void *)(uintptr_t)(xfer->there.remote + xfer->done), len)) /* NOLINT: mapped */
        pki_xfer_progressed(xfer);
}

/* The sender may do the rest, end, and free its memory before this is read: only a piece in hand keeps it there. */
void pki_coop_offered(struct pki_xfer *xfer, const struct pki_msg *offer)
{
    uint32_t piece = 0;
    pk_result_t result = PK_OK;

    xfer->path = xfer->peer->path[PKI_MEM_HOST][PKI_MEM_HOST];
    xfer->there.remote = offer->offset;
    xfer->there.mapped = offer->region != 0;
    pki_xfer_enter(xfer, xfer->coop.combines ? PKI_XFER_GET : PKI_XFER_COOP);
    if (!xfer->coop.combines && !claim(xfer, &piece))
        return;
    if (offer->region != 0)
        result = pki_region_map_host(xfer->engine, xfer->peer, offer, true, &xfer->there.remote);
    if (result != PK_OK)
        pki_engine_poison(xfer->engine, result, true);
    else if (xfer->coop.combines)
        pki_xfer_activate(xfer);
    else
        move_piece(xfer, piece);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Messages through an inbox. */
#include <string.h>

#include "transport/shm/shm.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/copy.h"
#include "util/futex.h"
#include "util/tsan.h"

#define CELL_MASK (PKI_SHM_CELLS - 1)
#define DATA_MASK (PKI_SHM_DATA_BYTES - 1)

/* The reader tells its progress by quarters, so that the line of the header is not fought over. The writer never stands still for
 * it: with a quarter untold there is room for a cell, and for the longest payload with the most that is skipped before it. */
#define TELL_CELLS (PKI_SHM_CELLS / PKI_SHM_TELL_SHARE)
#define TELL_DATA (PKI_SHM_DATA_USED_MIN / PKI_SHM_TELL_SHARE)

_Static_assert(PKI_SHM_DATA_USED_MIN - TELL_DATA >= 2 * PKI_SHM_PAYLOAD_MAX, "room with a quarter untold");

static uint32_t round_data(uint32_t bytes)
{
    return (bytes + PKI_SHM_DATA_ALIGN - 1) & ~(PKI_SHM_DATA_ALIGN - 1);
}

static pk_result_t broken(struct pki_ep *ep, const char *what, uint32_t number, uint64_t value)
{
    pki_ep_enter(ep, PKI_EP_DEAD);
    return pki_ep_fail(ep, PK_ERR_PEER, 0, "over shm: %s at message %u (%#llx)", what, number, (unsigned long long)value);
}

void pki_shm_rx_init(struct pki_shm_rx *rx, struct pki_shm_inbox *mine)
{
    *rx = (struct pki_shm_rx){
        .cells = mine->cells, .data = mine->data, .taken = &mine->header.taken, .probe = &mine->header.probe
    };
}

void pki_shm_tx_init(struct pki_shm_tx *tx, struct pki_shm_inbox *theirs, uint32_t data_used, uintptr_t owner_inbox)
{
    *tx = (struct pki_shm_tx){
        .cells = theirs->cells, .data = theirs->data, .data_used = data_used, .taken = &theirs->header.taken
    };
    tx->wake_word = &theirs->header.wake_word;
    tx->probe = &theirs->header.probe;
    tx->owner_cells = owner_inbox == 0 ? 0 : owner_inbox + offsetof(struct pki_shm_inbox, cells);
}

/* Of message `number` with so long a payload, behind the data area. */
static uint32_t slot_at(uint32_t number, uint32_t bytes)
{
    uint32_t slot = bytes > PKI_SHM_SLOT_BYTES ? PKI_SHM_SLOTS : number % PKI_SHM_SLOTS;

    return PKI_SHM_DATA_BYTES + slot * PKI_SHM_SLOT_BYTES;
}

/* ---- Writing ---- */

static bool inbox_is_empty(const struct pki_shm_rx *rx)
{
    return (uint32_t)atomic_load_explicit(&rx->cells[rx->next & CELL_MASK].word[0], memory_order_relaxed) != rx->next + 1;
}

/* What the peer has read since. It can only have read what was written. */
static pk_result_t refresh(struct pki_ep *ep, struct pki_shm_tx *tx)
{
    /* Acquire: the reader's release in tell(); its reading of the cells and data freed here came before. */
    uint64_t taken = atomic_load_explicit(tx->taken, memory_order_acquire);
    uint32_t next = (uint32_t)taken, data = (uint32_t)(taken >> 32);

    if (next - tx->taken_next > tx->next - tx->taken_next || data - tx->taken_data > tx->data_next - tx->taken_data)
        return broken(ep, "peer claims to have read what was not sent", tx->next, taken);
    tx->taken_next = next;
    tx->taken_data = data;
    /* With nothing unread all that is still to come says as much at least. An unread message may say less, and of less only
     * the lower bits are told: they would be taken for more. */
    if (tx->next - next < tx->next - tx->heard && inbox_is_empty(&pki_shm_ep_of(ep)->rx))
        tx->heard = next;
    return PK_OK;
}

static bool has_room(const struct pki_shm_tx *tx, uint32_t data_end)
{
    return tx->next - tx->taken_next < PKI_SHM_CELLS && data_end - tx->taken_data <= PKI_SHM_DATA_BYTES;
}

/* How much of the data area the message may lie in. */
static uint32_t used_by(const struct pki_shm_tx *tx, const struct pki_msg *msg)
{
    bool keeps = msg->kind == PKI_MSG_DATA && msg->bytes >= PKI_SHM_PART_FROM && msg->bytes < PKI_SHM_PART_BELOW;

    return keeps && tx->data_used > PKI_SHM_PART ? PKI_SHM_PART : tx->data_used;
}

/* Where the next payload in the data area goes. */
static uint32_t data_position(const struct pki_shm_tx *tx, const struct pki_msg *msg)
{
    uint32_t at = tx->data_next & DATA_MASK;

    return at + round_data(msg->payload) <= used_by(tx, msg) ? tx->data_next : tx->data_next + (PKI_SHM_DATA_BYTES - at);
}

/* The first word from its fields by arithmetic: loaded in one piece it would wait for the stores that made them. */
static uint64_t first_word(const struct pki_msg *msg)
{
    return (uint64_t)msg->kind | (uint64_t)msg->flags << 8 | (uint64_t)msg->index << 16 | (uint64_t)msg->sig << 32;
}

static void set_first_word(struct pki_msg *msg, uint64_t word)
{
    msg->kind = (uint8_t)word;
    msg->flags = (uint8_t)(word >> 8);
    msg->index = (uint16_t)(word >> 16);
    msg->sig = (uint32_t)(word >> 32);
}

static void write_words(struct pki_shm_cell *cell, const struct pki_msg *msg, bool is_long)
{
    const unsigned char *rest = (const unsigned char *)&msg->offset;

    atomic_store_explicit(&cell->word[1], first_word(msg), memory_order_relaxed);
    atomic_store_explicit(&cell->word[2], msg->op, memory_order_relaxed);
    for (unsigned i = 0; is_long && i < 4; i++) {
        uint64_t word;

        memcpy(&word, rest + i * sizeof word, sizeof word);
        atomic_store_explicit(&cell->word[3 + i], word, memory_order_relaxed);
    }
}

/* The owner sleeps. Of several messages the first one wakes it. */
static __attribute__((noinline, cold)) void ring(_Atomic uint32_t *wake_word)
{
    if (atomic_exchange_explicit(wake_word, 0, memory_order_relaxed) != 0)
        pki_futex_wake(wake_word);
}

/* The last store: with it the message is there. */
static void stamp(struct pki_shm_tx *tx, struct pki_shm_cell *cell, uint32_t shape)
{
    uint32_t number = tx->next++;

    if (tx->owner_cells != 0)
        pki_tsan_release(tx->owner_cells + (number & CELL_MASK) * sizeof *cell);
    /* Release: the reader's acquire in peek(); the rest of the cell and the payload are written before, and what `taken` of
     * the other direction counts was read before. */
    atomic_store_explicit(&cell->word[0], (uint64_t)shape << 32 | (uint32_t)(number + 1), memory_order_release);
    if (atomic_load_explicit(tx->wake_word, memory_order_relaxed) != 0)
        ring(tx->wake_word);
}

static pk_result_t refused(struct pki_ep *ep, uint32_t bytes)
{
    if (ep->state == PKI_EP_DEAD)
        return PK_ERR_PEER; /* recorded when it died */
    return pki_ep_fail(ep, PK_ERR_INTERNAL, 0, "over shm: a message of %u bytes, more than %u", bytes, PKI_SHM_PAYLOAD_MAX);
}

static bool streams(const struct pki_shm_tx *tx, const struct pki_msg *msg)
{
    if (tx->far < 0 && (tx->data_used > PKI_SHM_NEAR_CACHE || (tx->crowded && (msg->flags & PKI_MSG_FLAG_COLL) != 0)))
        return false;
    return msg->payload >= (tx->far > 0 ? PKI_SHM_STREAM_FAR : tx->far < 0 ? PKI_SHM_STREAM_NEAR : PKI_SHM_STREAM);
}

/* Has the message been taken that was in the next one's slot? Streaming stores want lines that have not been used for long. */
static bool may_use_slot(const struct pki_shm_tx *tx, const struct pki_msg *msg)
{
    uint32_t unreported = tx->next - tx->heard, bytes = msg->payload;

    return bytes <= PKI_SHM_BIG_SLOT_BYTES && unreported < (bytes > PKI_SHM_SLOT_BYTES ? 1 : PKI_SHM_SLOTS) && !streams(tx, msg);
}

/* Beside this message a line is written for the reader to time. Short ones cannot afford it often. */
static bool is_probe(uint32_t number, bool is_long)
{
    uint32_t every = is_long ? PKI_SHM_PROBE_EVERY_LONG : PKI_SHM_PROBE_EVERY;

    return number % every == every - 1;
}

/* Where a payload goes. */
struct target {
    uint32_t shape; /* bits of it */
    uint32_t position, data_end;
};

static pk_result_t find_room(struct pki_ep *ep, const struct pki_msg *msg, bool inside, struct target *target)
{
    struct pki_shm_tx *tx = &pki_shm_ep_of(ep)->tx;
    uint32_t bytes = msg->payload;
    struct target t = { .data_end = tx->data_next };
    pk_result_t result = PK_OK;

    if (!inside && may_use_slot(tx, msg)) {
        t.shape = PKI_SHM_SHAPE_SLOT;
    } else if (!inside) {
        t.shape = PKI_SHM_SHAPE_OUTSIDE;
        t.position = data_position(tx, msg);
        t.data_end = t.position + round_data(bytes);
    }
    if (!has_room(tx, t.data_end)) {
        result = refresh(ep, tx);
        if (result == PK_OK && !has_room(tx, t.data_end))
            result = PK_IN_PROGRESS;
    }
    *target = t;
    return result;
}

static void copy_payload(struct pki_shm_tx *tx, const struct target *target, const struct pki_msg *msg, const void *payload)
{
    unsigned char *to = tx->data + (target->position & DATA_MASK);
    uint32_t bytes = msg->payload;

    if (target->shape == PKI_SHM_SHAPE_SLOT)
        pki_copy(tx->data + slot_at(tx->next, bytes), payload, bytes);
    else if (streams(tx, msg))
        pki_copy_out(to, payload, bytes);
    else
        pki_copy(to, payload, bytes);
    tx->data_next = target->data_end;
}

/* The words of the cell are written first, so that its line is on its way while the payload is copied. */
static void write_message(struct pki_shm_ep *shm, const struct pki_msg *msg, const void *payload, const struct target *target)
{
    struct pki_shm_tx *tx = &shm->tx;
    struct pki_shm_cell *cell = &tx->cells[tx->next & CELL_MASK];
    bool is_long = msg->kind != PKI_MSG_EAGER;
    uint32_t shape =
        msg->payload | (is_long ? PKI_SHM_SHAPE_LONG : 0) | target->shape | shm->rx.next << PKI_SHM_SHAPE_TAKEN_SHIFT;

    write_words(cell, msg, is_long);
    if (is_probe(tx->next, is_long))
        atomic_store_explicit(tx->probe, tx->next, memory_order_relaxed);
    if (target->shape != 0)
        copy_payload(tx, target, msg, payload);
    if (target->shape == 0)
        pki_copy_short(cell->byte + (is_long ? PKI_SHM_INLINE_LONG_AT : PKI_SHM_INLINE_SHORT_AT), payload, msg->payload);
    else
        atomic_store_explicit(&cell->word[7], target->position, memory_order_relaxed);
    stamp(tx, cell, shape);
}

pk_result_t pki_shm_send(struct pki_ep *ep, const struct pki_msg *msg, const void *payload)
{
    uint32_t bytes = msg->payload, at = msg->kind != PKI_MSG_EAGER ? PKI_SHM_INLINE_LONG_AT : PKI_SHM_INLINE_SHORT_AT;
    struct target target;
    pk_result_t result;

    if (ep->state == PKI_EP_DEAD || bytes > PKI_SHM_PAYLOAD_MAX)
        return refused(ep, bytes);
    result = find_room(ep, msg, bytes <= sizeof(struct pki_shm_cell) - at, &target);
    if (result == PK_OK)
        write_message(pki_shm_ep_of(ep), msg, payload, &target);
    return result;
}

/* ---- Reading ---- */

/* The payload's place. `number`: the message's. */
static bool place_parse(const struct pki_shm_cell *cell, uint32_t shape, uint32_t number, struct pki_shm_place *place)
{
    uint32_t bytes = shape & PKI_SHM_SHAPE_LENGTH;
    uint32_t at = (shape & PKI_SHM_SHAPE_LONG) != 0 ? PKI_SHM_INLINE_LONG_AT : PKI_SHM_INLINE_SHORT_AT;
    uint64_t position;

    if ((shape & (PKI_SHM_SHAPE_OUTSIDE | PKI_SHM_SHAPE_SLOT)) == 0) {
        *place = (struct pki_shm_place){ .offset = at };
        return bytes <= sizeof *cell - at;
    }
    if ((shape & PKI_SHM_SHAPE_OUTSIDE) == 0) {
        *place = (struct pki_shm_place){ .outside = true, .offset = slot_at(number, bytes) };
        return bytes <= PKI_SHM_BIG_SLOT_BYTES;
    }
    position = atomic_load_explicit(&cell->word[7], memory_order_relaxed);
    *place = (struct pki_shm_place){ .outside = true, .offset = (uint32_t)position & DATA_MASK };
    place->end = (uint32_t)position + round_data(bytes);
    return (shape & PKI_SHM_SHAPE_SLOT) == 0 && bytes <= PKI_SHM_PAYLOAD_MAX && position <= UINT32_MAX &&
           position % PKI_SHM_DATA_ALIGN == 0 && place->offset + round_data(bytes) <= PKI_SHM_DATA_BYTES;
}

bool pki_shm_cell_parse(const struct pki_shm_cell *cell, uint64_t head, struct pki_msg *msg, struct pki_shm_place *place)
{
    uint32_t shape = (uint32_t)(head >> 32);
    unsigned char *rest = (unsigned char *)&msg->offset;

    if (!place_parse(cell, shape, (uint32_t)head - 1, place))
        return false;
    set_first_word(msg, atomic_load_explicit(&cell->word[1], memory_order_relaxed));
    msg->op = atomic_load_explicit(&cell->word[2], memory_order_relaxed);
    memset(rest, 0, sizeof *msg - offsetof(struct pki_msg, offset));
    for (unsigned i = 0; (shape & PKI_SHM_SHAPE_LONG) != 0 && i < 4; i++) {
        uint64_t word = atomic_load_explicit(&cell->word[3 + i], memory_order_relaxed);

        memcpy(rest + i * sizeof word, &word, sizeof word);
    }
    msg->payload = (shape & PKI_SHM_SHAPE_LENGTH);
    return (msg->kind != PKI_MSG_EAGER) == ((shape & PKI_SHM_SHAPE_LONG) != 0);
}

static void tell(struct pki_shm_rx *rx)
{
    /* Release: the writer's acquire in refresh(); what was read from the cells and data is read before. */
    atomic_store_explicit(rx->taken, (uint64_t)rx->data_end << 32 | rx->next, memory_order_release);
    rx->reported_next = rx->next;
    rx->reported_data = rx->data_end;
}

/* The payload's lines come together with the cell's then, not after it. In line: gcc drops calls of functions that only
 * prefetch. */
static inline __attribute__((always_inline)) void expect(const struct pki_shm_ep *shm)
{
    uint32_t bytes = shm->base.expected, most = (shm->tx.far > 0 ? PKI_SHM_FAR_LINES : PKI_SHM_NEAR_LINES) * 64;
    const unsigned char *slot = shm->rx.data + slot_at(shm->rx.next, bytes);

    if (bytes <= sizeof(struct pki_shm_cell) - PKI_SHM_INLINE_SHORT_AT || bytes > most)
        return;
    for (uint32_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(slot + i);
}

/* How many of this rank's messages the peer has taken, modulo what fits: after a longer silence it is too few, never too many. */
static void hear(struct pki_shm_tx *tx, uint32_t shape)
{
    uint32_t more = ((shape >> PKI_SHM_SHAPE_TAKEN_SHIFT) - tx->heard) & PKI_SHM_TAKEN_MASK;

    if (more <= tx->next - tx->heard)
        tx->heard += more;
}

bool pki_shm_peek(struct pki_ep *ep, struct pki_msg *msg, const void **payload)
{
    struct pki_shm_ep *shm = pki_shm_ep_of(ep);
    struct pki_shm_rx *rx = &shm->rx;
    const struct pki_shm_cell *cell = &rx->cells[rx->next & CELL_MASK];
    struct pki_shm_place place;
    uint64_t head;

    expect(shm);
    /* Acquire: the writer's release in stamp(). */
    head = atomic_load_explicit(&cell->word[0], memory_order_acquire);
    if ((uint32_t)head != rx->next + 1 || ep->state == PKI_EP_DEAD)
        return false;
    if (!pki_shm_cell_parse(cell, head, msg, &place)) {
        broken(ep, "cell is damaged", rx->next, head);
        return false;
    }
    hear(&shm->tx, (uint32_t)(head >> 32));
    pki_tsan_acquire((uintptr_t)cell);
    *payload = place.outside ? rx->data + place.offset : cell->byte + place.offset;
    if (place.outside && place.offset < PKI_SHM_DATA_BYTES)
        rx->data_end = place.end;
    return true;
}

/*
 * Near or far? A line that the other core wrote a moment ago takes as long to read as that core is away, wherever in its caches
 * it is by then: virtual cores move between the two within minutes. Several in turn must say so. Beside a message without a
 * payload only near ones are told: it may be about a long transfer that goes elsewhere, which has driven the line out of all
 * caches.
 */
static __attribute__((noinline, cold)) void time_probe(struct pki_shm_ep *shm, bool has_payload)
{
    struct pki_shm_tx *tx = &shm->tx;
    const int sure = pki_tuning.shm.far_sure;
    uint64_t begin = pki_now_ns(), took;
    uint32_t value = atomic_load_explicit(shm->rx.probe, memory_order_acquire);
    bool is_near;

    took = pki_now_ns() - begin;
    /* The same as before: the writer is far ahead, and the line has been in this core's cache since then. */
    if (value != shm->rx.probed && (has_payload || took < pki_tuning.shm.far_ns))
        tx->far = took >= pki_tuning.shm.far_ns ? tx->far + (tx->far < sure) : tx->far - (tx->far > -sure);
    shm->rx.probed = value;
    is_near = pki_tuning.shm.near_flips != 0 ? shm->base.copies == PKI_COPIES_VARY
                                             : tx->far < 0 && (tx->crowded || tx->data_used > PKI_SHM_NEAR_CACHE);
    if (shm->base.copies != PKI_COPIES_ONE_FAST)
        shm->base.copies = is_near ? PKI_COPIES_TWO_FAST : PKI_COPIES_VARY;
}

void pki_shm_pop(struct pki_ep *ep)
{
    struct pki_shm_rx *rx = &pki_shm_ep_of(ep)->rx;
    const struct pki_shm_cell *cell = &rx->cells[rx->next & CELL_MASK];

    if (is_probe(rx->next, true)) {
        uint32_t shape = (uint32_t)(atomic_load_explicit(&cell->word[0], memory_order_relaxed) >> 32);

        if (is_probe(rx->next, (shape & PKI_SHM_SHAPE_LONG) != 0))
            time_probe(pki_shm_ep_of(ep), (shape & PKI_SHM_SHAPE_LENGTH) != 0);
    }
    rx->next++;
    if (rx->next - rx->reported_next >= TELL_CELLS || rx->data_end - rx->reported_data >= TELL_DATA)
        tell(rx);
}

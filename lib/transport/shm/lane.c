/* SPDX-License-Identifier: Apache-2.0 */
/* Messages through an inbox. */
#include <string.h>

#include "transport/shm/shm.h"
#include "util/copy.h"
#include "util/futex.h"
#include "util/tsan.h"

#define CELL_MASK (PKI_SHM_CELLS - 1)
#define DATA_MASK (PKI_SHM_DATA_BYTES - 1)

/* The reader tells its progress by quarters, so that the line of the header is not fought over. The writer never stands still for
 * it: with a quarter untold there is room for a cell, and for the longest payload with the most that is skipped before it. */
#define TELL_CELLS (PKI_SHM_CELLS / 4)
#define TELL_DATA (PKI_SHM_DATA_BYTES / 4)

_Static_assert(PKI_SHM_DATA_BYTES - TELL_DATA >= 2 * PKI_SHM_PAYLOAD_MAX, "room with a quarter untold");

static uint32_t round_data(uint32_t bytes)
{
    return (bytes + PKI_SHM_DATA_ALIGN - 1) & ~(PKI_SHM_DATA_ALIGN - 1);
}

static pk_result_t broken(struct pki_ep *ep, const char *what, uint32_t number, uint64_t value)
{
    struct pki_where where = pki_shm_where(ep);

    ep->dead = true;
    return pki_fail(PK_ERR_PEER, &where, "over shm: %s at message %u (%#llx)", what, number, (unsigned long long)value);
}

void pki_shm_rx_init(struct pki_shm_rx *rx, struct pki_shm_inbox *mine)
{
    *rx = (struct pki_shm_rx){ .cells = mine->cells, .data = mine->data, .taken = &mine->header.taken };
}

void pki_shm_tx_init(struct pki_shm_tx *tx, struct pki_shm_inbox *theirs, uintptr_t owner_inbox)
{
    *tx = (struct pki_shm_tx){ .cells = theirs->cells, .data = theirs->data, .taken = &theirs->header.taken };
    tx->bell = &theirs->header.bell;
    tx->owner_cells = owner_inbox == 0 ? 0 : owner_inbox + offsetof(struct pki_shm_inbox, cells);
}

/* ---- Writing ---- */

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
    return PK_OK;
}

static bool has_room(const struct pki_shm_tx *tx, uint32_t data_end)
{
    return tx->next - tx->taken_next < PKI_SHM_CELLS && data_end - tx->taken_data <= PKI_SHM_DATA_BYTES;
}

/* Where the next payload in the data area goes. */
static uint32_t data_position(const struct pki_shm_tx *tx, uint32_t bytes)
{
    uint32_t left = PKI_SHM_DATA_BYTES - (tx->data_next & DATA_MASK);

    return round_data(bytes) <= left ? tx->data_next : tx->data_next + left;
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
static __attribute__((noinline, cold)) void ring(_Atomic uint32_t *bell)
{
    if (atomic_exchange_explicit(bell, 0, memory_order_relaxed) != 0)
        pki_futex_wake(bell);
}

/* The last store: with it the message is there. */
static void stamp(struct pki_shm_tx *tx, struct pki_shm_cell *cell, uint32_t shape)
{
    uint32_t number = tx->next++;

    if (tx->owner_cells != 0)
        pki_tsan_release(tx->owner_cells + (number & CELL_MASK) * sizeof *cell);
    /* Release: the reader's acquire in peek(); the rest of the cell and the payload are written before. */
    atomic_store_explicit(&cell->word[0], (uint64_t)shape << 32 | (uint32_t)(number + 1), memory_order_release);
    if (atomic_load_explicit(tx->bell, memory_order_relaxed) != 0)
        ring(tx->bell);
}

static pk_result_t refused(struct pki_ep *ep, uint32_t bytes)
{
    struct pki_where where = pki_shm_where(ep);

    if (ep->dead)
        return PK_ERR_PEER; /* recorded when it died */
    return pki_fail(PK_ERR_INTERNAL, &where, "over shm: a message of %u bytes, more than %u", bytes, PKI_SHM_PAYLOAD_MAX);
}

pk_result_t pki_shm_msg(struct pki_ep *ep, const struct pki_msg *msg, const void *payload)
{
    struct pki_shm_tx *tx = &pki_shm_ep_of(ep)->tx;
    struct pki_shm_cell *cell = &tx->cells[tx->next & CELL_MASK];
    bool is_long = msg->kind != PKI_MSG_EAGER;
    uint32_t bytes = msg->payload;
    uint32_t at = is_long ? PKI_SHM_INLINE_LONG_AT : PKI_SHM_INLINE_SHORT_AT;
    bool outside = bytes > sizeof *cell - at;
    uint32_t position = outside ? data_position(tx, bytes) : tx->data_next;
    uint32_t data_end = outside ? position + round_data(bytes) : tx->data_next;

    if (ep->dead || bytes > PKI_SHM_PAYLOAD_MAX)
        return refused(ep, bytes);
    if (!has_room(tx, data_end)) {
        pk_result_t result = refresh(ep, tx);

        if (result != PK_OK || !has_room(tx, data_end))
            return result != PK_OK ? result : PK_IN_PROGRESS;
    }
    write_words(cell, msg, is_long);
    if (outside) {
        pki_copy_out(tx->data + (position & DATA_MASK), payload, bytes);
        atomic_store_explicit(&cell->word[7], position, memory_order_relaxed);
        tx->data_next = data_end;
    } else {
        pki_copy_short(cell->byte + at, payload, bytes);
    }
    stamp(tx, cell, bytes | (is_long ? PKI_SHM_SHAPE_LONG : 0) | (outside ? PKI_SHM_SHAPE_OUTSIDE : 0));
    return PK_OK;
}

/* ---- Reading ---- */

/* The payload's place. */
static bool place_parse(const struct pki_shm_cell *cell, uint32_t shape, struct pki_shm_place *place)
{
    uint32_t bytes = shape & PKI_SHM_SHAPE_LENGTH;
    uint32_t at = (shape & PKI_SHM_SHAPE_LONG) != 0 ? PKI_SHM_INLINE_LONG_AT : PKI_SHM_INLINE_SHORT_AT;
    uint64_t position;

    if ((shape & PKI_SHM_SHAPE_OUTSIDE) == 0) {
        *place = (struct pki_shm_place){ .offset = at };
        return bytes <= sizeof *cell - at;
    }
    position = atomic_load_explicit(&cell->word[7], memory_order_relaxed);
    *place = (struct pki_shm_place){ .outside = true, .offset = (uint32_t)position & DATA_MASK };
    place->end = (uint32_t)position + round_data(bytes);
    return bytes <= PKI_SHM_PAYLOAD_MAX && position <= UINT32_MAX && position % PKI_SHM_DATA_ALIGN == 0 &&
           place->offset + round_data(bytes) <= PKI_SHM_DATA_BYTES;
}

bool pki_shm_cell_parse(const struct pki_shm_cell *cell, uint64_t head, struct pki_msg *msg, struct pki_shm_place *place)
{
    uint32_t shape = (uint32_t)(head >> 32);
    unsigned char *rest = (unsigned char *)&msg->offset;

    if ((shape & ~(PKI_SHM_SHAPE_LENGTH | PKI_SHM_SHAPE_LONG | PKI_SHM_SHAPE_OUTSIDE)) != 0 || !place_parse(cell, shape, place))
        return false;
    set_first_word(msg, atomic_load_explicit(&cell->word[1], memory_order_relaxed));
    msg->op = atomic_load_explicit(&cell->word[2], memory_order_relaxed);
    memset(rest, 0, sizeof *msg - offsetof(struct pki_msg, offset));
    for (unsigned i = 0; (shape & PKI_SHM_SHAPE_LONG) != 0 && i < 4; i++) {
        uint64_t word = atomic_load_explicit(&cell->word[3 + i], memory_order_relaxed);

        memcpy(rest + i * sizeof word, &word, sizeof word);
    }
    msg->payload = (uint16_t)(shape & PKI_SHM_SHAPE_LENGTH);
    return (msg->kind != PKI_MSG_EAGER) == ((shape & PKI_SHM_SHAPE_LONG) != 0);
}

static void tell(struct pki_shm_rx *rx)
{
    /* Release: the writer's acquire in refresh(); what was read from the cells and data is read before. */
    atomic_store_explicit(rx->taken, (uint64_t)rx->data_end << 32 | rx->next, memory_order_release);
    rx->told_next = rx->next;
    rx->told_data = rx->data_end;
}

bool pki_shm_peek(struct pki_ep *ep, struct pki_msg *msg, const void **payload)
{
    struct pki_shm_rx *rx = &pki_shm_ep_of(ep)->rx;
    const struct pki_shm_cell *cell = &rx->cells[rx->next & CELL_MASK];
    /* Acquire: the writer's release in stamp(). */
    uint64_t head = atomic_load_explicit(&cell->word[0], memory_order_acquire);
    struct pki_shm_place place;

    if ((uint32_t)head != rx->next + 1 || ep->dead)
        return false;
    if (!pki_shm_cell_parse(cell, head, msg, &place)) {
        broken(ep, "cell is damaged", rx->next, head);
        return false;
    }
    pki_tsan_acquire((uintptr_t)cell);
    *payload = place.outside ? rx->data + place.offset : cell->byte + place.offset;
    if (place.outside)
        rx->data_end = place.end;
    return true;
}

void pki_shm_pop(struct pki_ep *ep)
{
    struct pki_shm_rx *rx = &pki_shm_ep_of(ep)->rx;

    rx->next++;
    if (rx->next - rx->told_next >= TELL_CELLS || rx->data_end - rx->told_data >= TELL_DATA)
        tell(rx);
}

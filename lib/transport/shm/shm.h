/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory between two ranks of one machine.
 *
 * Each rank makes one inbox a peer, a sealed memfd, and passes its descriptor; the peer writes messages into it. Bulk data goes
 * by one copy into the peer's own memory (cma.c) where the kernel allows that.
 *
 * An inbox:   header page | signals, PKI_EP_SHARED_BYTES | ring of cells | data | slots
 *
 * A message takes one cell, a cache line whose first word carries the number of the message: the reader polls the word it will
 * read anyway, so a small message costs the transfer of one line. Payload that does not fit in the cell lies in the data area,
 * in one piece, at a position that counts bytes from the beginning of time; where a piece would cross the end of the area the
 * writer skips to the start. The reader says how far it has read, cells and data, in one word of the header.
 *
 * Between ranks that answer each other a payload of up to 4 KiB lies in one of two slots instead, message n's in slot n mod 2:
 * lines that both cores had a moment ago cost half of what those cost that come round once in 256 KiB. The writer must know that
 * the message before in that slot has been read: every message says how many of the other direction have been taken. For up to 8
 * KiB there is one slot more, used when all before have been read: two of that size would not stay in a first-level cache.
 *
 * The peer may be broken. What it can write is checked before it is used: nothing it writes makes this process touch memory
 * outside the inbox, and the seals keep it from shrinking what is mapped here.
 */
#ifndef PKI_SHM_H
#define PKI_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"
#include "tuning/tuning.h"
#include "util/log.h"

#define PKI_SHM_LAYOUT 7u /* version of everything below */
#define PKI_SHM_PAGE 4096u
#define PKI_SHM_DATA_ALIGN 64u
#define PKI_SHM_SLOTS_BYTES (PKI_SHM_SLOTS * PKI_SHM_SLOT_BYTES + PKI_SHM_BIG_SLOT_BYTES)

#define PKI_SHM_SIGNALS_AT PKI_SHM_PAGE
#define PKI_SHM_CELLS_AT (PKI_SHM_SIGNALS_AT + PKI_EP_SHARED_BYTES)
#define PKI_SHM_DATA_AT (PKI_SHM_CELLS_AT + PKI_SHM_CELLS * sizeof(struct pki_shm_cell))
#define PKI_SHM_INBOX_BYTES (PKI_SHM_DATA_AT + PKI_SHM_DATA_BYTES + PKI_SHM_SLOTS_BYTES)

/*
 * word[0]: lower half the stamp, number of the message + 1 (so that a new inbox, all zeros, holds none); upper half the shape.
 * word[1..2]: the first 16 bytes of struct pki_msg. LONG: word[3..6] the other 32. OUTSIDE: word[7] is the position of the
 * payload in the data area. BOUNCE_CREDIT: the payload is in the message's slot. Else it begins at word[3], or at word[7] when
 * LONG.
 */
struct pki_shm_cell {
    union {
        _Atomic uint64_t word[8];
        unsigned char byte[64];
    };
};

#define PKI_SHM_SHAPE_LENGTH 0xffffu /* of the payload */
#define PKI_SHM_SHAPE_LONG 0x10000u
#define PKI_SHM_SHAPE_OUTSIDE 0x20000u
#define PKI_SHM_SHAPE_SLOT 0x40000u
#define PKI_SHM_SHAPE_TAKEN_SHIFT 19u /* and up: the lower bits of how many messages of the other direction have been taken */
#define PKI_SHM_TAKEN_MASK (UINT32_MAX >> PKI_SHM_SHAPE_TAKEN_SHIFT)

#define PKI_SHM_INLINE_SHORT_AT 24u
#define PKI_SHM_INLINE_LONG_AT 56u

/* taken: how far the owner of the inbox has read: cells in the lower half, position in the data area in the upper. wake word: the
 * owner sleeps, or is about to; who writes a message clears it and wakes the owner there. revoked: the owner's memory is no
 * longer the peer's to read or write; at_work: the peer is at it. The owner sets one and looks at the other, the peer the other
 * way round. probe: written now and then for the owner to time how long it takes to read; the value is of no account. */
struct pki_shm_header {
    _Atomic uint64_t taken;
    _Atomic uint32_t wake_word;
    unsigned char pad[PKI_SHM_DATA_ALIGN - sizeof(uint64_t) - sizeof(uint32_t)];
    _Atomic uint32_t revoked, at_work;
    unsigned char apart[PKI_SHM_DATA_ALIGN - 2 * sizeof(uint32_t)];
    _Atomic uint32_t probe;
    unsigned char pad_to_page[PKI_SHM_PAGE - 2 * PKI_SHM_DATA_ALIGN - sizeof(uint32_t)];
};

_Static_assert(sizeof(struct pki_shm_header) == PKI_SHM_PAGE, "a page");

struct pki_shm_inbox {
    struct pki_shm_header header;
    struct pki_signal_slot signals[PKI_PAIR_SLOTS];
    struct pki_shm_cell cells[PKI_SHM_CELLS];
    unsigned char data[PKI_SHM_DATA_BYTES];
    unsigned char slots[PKI_SHM_SLOTS_BYTES]; /* offsets of payloads go on here: behind `data` */
};

_Static_assert(sizeof(struct pki_shm_inbox) == PKI_SHM_INBOX_BYTES, "no holes in an inbox");
_Static_assert(PKI_SHM_INBOX_BYTES % PKI_SHM_PAGE == 0, "whole pages");
_Static_assert((PKI_SHM_CELLS & (PKI_SHM_CELLS - 1)) == 0, "numbers of messages wrap at 2^32");
_Static_assert((PKI_SHM_DATA_BYTES & (PKI_SHM_DATA_BYTES - 1)) == 0, "positions wrap at 2^32");
_Static_assert(PKI_SHM_PAYLOAD_MAX <= PKI_SHM_SHAPE_LENGTH, "length fits");
_Static_assert(PKI_SHM_CELLS <= PKI_SHM_TAKEN_MASK, "what a message tells of the other direction is seldom too few");
_Static_assert(sizeof(struct pki_msg) == 48, "cells are cut for this message");

#define PKI_SHM_NONCE_BYTES 32u

/* What travels in struct pki_blob, beside the descriptor of the inbox. */
struct pki_shm_hello {
    uint32_t layout;
    uint32_t cells;
    uint32_t data_bytes;
    uint32_t signal_slots;
    uint64_t inbox_bytes;
    uint64_t inbox_address; /* in the owner's process */
    uint64_t nonce_address; /* in the owner's process, of private memory that holds: */
    uint8_t nonce[PKI_SHM_NONCE_BYTES];
    uint32_t fast_copy; /* 0 or 1: the kernel copies fast, as measured */
    uint32_t reserved;  /* 0 */
};

struct pki_shm_iface {
    struct pki_iface base;
    struct pki_list eps;     /* that are connected */
    struct pki_list refused; /* puts and gets whose peer has failed: its engine says why, and they end with this rank's */
    uint32_t data_used;      /* of a peer's data area */
    bool crowded;            /* this rank has no CPU of its own */
    bool said_refused;       /* the kernel has refused to copy since init, and a line has warned of it */
};

/* Reader of the own inbox. */
struct pki_shm_rx {
    const struct pki_shm_cell *cells;
    const unsigned char *data;
    _Atomic uint64_t *taken;
    const _Atomic uint32_t *probe;
    uint32_t probed;        /* what it said when it was read last */
    uint32_t next;          /* number of the next message */
    uint32_t data_end;      /* position behind the last payload seen */
    uint32_t reported_next; /* what `taken` says */
    uint32_t reported_data;
};

/* Writer of the peer's inbox. */
struct pki_shm_tx {
    struct pki_shm_cell *cells;
    unsigned char *data;
    const _Atomic uint64_t *taken;
    _Atomic uint32_t *wake_word;
    _Atomic uint32_t *probe;
    uint32_t next;
    uint32_t data_next;
    uint32_t data_used;  /* of the data area, from its beginning on: no more pages of it are touched */
    uint32_t taken_next; /* what `taken` said when last read */
    uint32_t taken_data;
    uint32_t heard;        /* how many the peer has taken, as its messages said; never too many */
    int32_t far;           /* above 0: the cores share no cache, as the time that reading took says */
    bool crowded;          /* this rank has no CPU of its own */
    uintptr_t owner_cells; /* where the owner has the cells mapped, in the same process; else 0 */
};

struct pki_shm_ep {
    struct pki_ep base;
    struct pki_list node; /* iface->eps */
    struct pki_shm_rx rx;
    struct pki_shm_tx tx;
    struct pki_shm_inbox *mine, *theirs;
    int inbox_fd;
    uint8_t nonce[PKI_SHM_NONCE_BYTES]; /* the peer reads it here to learn that it can */
};

static inline struct pki_shm_ep *pki_shm_ep_of(struct pki_ep *ep)
{
    return (struct pki_shm_ep *)(void *)ep;
}

static inline struct pki_where pki_shm_where(const struct pki_ep *ep)
{
    return (struct pki_where){ .rank = ep->rank, .peer = ep->peer };
}

/* ctrl.c: slots of the table, and what they stand on */
void pki_shm_rx_init(struct pki_shm_rx *rx, struct pki_shm_inbox *mine);
void pki_shm_tx_init(struct pki_shm_tx *tx, struct pki_shm_inbox *theirs, uint32_t data_used, uintptr_t owner_inbox);
pk_result_t pki_shm_send(struct pki_ep *ep, const struct pki_msg *msg, const void *payload);
bool pki_shm_peek(struct pki_ep *ep, struct pki_msg *msg, const void **payload);
void pki_shm_pop(struct pki_ep *ep);

/* Read a cell whose first word was `head`. False: no writer of this layout makes such a cell. *payload is the offset of
 * msg->payload bytes, in the data area or the slots behind it if `outside`, else in the cell; both are in bounds. Pure; reads
 * each word once at most, for the peer may change them meanwhile. */
struct pki_shm_place {
    bool outside;
    uint32_t offset;
    uint32_t end; /* outside and not in a slot: position behind it */
};
bool pki_shm_cell_parse(const struct pki_shm_cell *cell, uint64_t head, struct pki_msg *msg, struct pki_shm_place *place);

/* hello.c: can this build talk to a rank that says so? A text why not, or NULL and *hello. Pure. */
const char *pki_shm_hello_parse(const struct pki_blob *blob, struct pki_shm_hello *hello);

/* cma.c */
bool pki_shm_cma_works(const struct pki_ep *ep, const struct pki_shm_hello *theirs);
/* Does this processor do it so fast that two copies by msg take longer? Measured once. */
bool pki_shm_cma_is_fast(void);
pk_result_t pki_shm_put(struct pki_put *put);

#endif

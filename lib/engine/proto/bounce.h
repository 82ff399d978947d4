/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of transfers through bounce buffers share: slots, and the pieces of a transfer that go through them. Locked. */
#ifndef PKI_ENGINE_BOUNCE_H
#define PKI_ENGINE_BOUNCE_H

#include "engine/proto/proto.h"

enum pki_piece_state {
    PKI_BOUNCE_EMPTY,     /* Nothing, or not all of it, is where the next one takes it from. */
    PKI_BOUNCE_PACKING,   /* Send: the GPU copies it into its slot. */
    PKI_BOUNCE_FILLED,    /* Send: it may be put. Receive: all of it has come. */
    PKI_BOUNCE_MOVING,    /* Send: the transport puts it. */
    PKI_BOUNCE_UNPACKING, /* Receive: the GPU copies it out of its slot. */
    PKI_BOUNCE_ENDED      /* Nothing more is to be done for it. */
};

/* Part of a transfer on its way through slots (bounce.c). */
struct pki_piece {
    size_t offset, len;
    int slot; /* of this rank; -1: none */
    int word;
    struct pki_signal copied; /* the GPU's copy into or out of the slot has ended */
    const char *src;          /* send: what is put */
    uint64_t remote;          /* send: where to */
    size_t moved;             /* bytes gone or come as DATA messages */
    bool asked;               /* send: BOUNCE_REQ is out */
    bool far;                 /* send: the GPU copies it into the receiver's slot itself */
    bool placed;              /* send: `remote` is known. receive: BOUNCE_CREDIT is out */
    enum pki_piece_state state;
    struct pki_put put;   /* send */
    struct pki_recv recv; /* receive: of the slot */
};

struct pki_bounce {
    struct pki_list node;                           /* engine->proto.bounce_states or spare_bounces */
    struct pki_piece pieces[2 * PKI_BOUNCE_PIECES]; /* receive: half may be in slots, the other half asked for */
    unsigned head, tail;
};

/* Slots. */
pk_result_t pki_bounce_pool_open(struct pki_engine *engine, struct pki_bounce_pool *pool);
/* -1: none is free now, or the engine has failed */
int pki_bounce_buffer_take(struct pki_engine *engine, struct pki_bounce_pool *pool);
void pki_bounce_buffer_give(struct pki_bounce_pool *pool, int slot);
static inline char *pki_bounce_buffer_at(const struct pki_bounce_pool *pool, int slot)
{
    return pool->memory + (size_t)slot * PKI_BOUNCE_BYTES;
}

/* Pieces. False: no memory, and the engine has failed. */
bool pki_bounce_open(struct pki_xfer *xfer);
static inline struct pki_piece *pki_bounce_piece(struct pki_bounce *bounce_state, unsigned index)
{
    return &bounce_state->pieces[index % (2 * PKI_BOUNCE_PIECES)];
}
/* Do the devices of this way read and write the transfer's GPU memory themselves? */
bool pki_bounce_reaches(const struct pki_xfer *xfer, const struct pki_ep *path);
/* Let the GPU copy, and a word say when it has, which look_at_copy sees. False: no word is free, or the engine has failed. */
bool pki_bounce_copy_start(struct pki_engine *engine, struct pki_queue *queue, struct pki_piece *piece, void *dst,
                           const void *src);
/* The same for n pieces of one transfer that have come into slots of this rank, by one kernel. */
bool pki_bounce_unpack(struct pki_engine *engine, struct pki_queue *queue, struct pki_piece *const *pieces, int n, char *dst);
void pki_bounce_look_at_copy(struct pki_engine *engine, struct pki_piece *piece);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of staged transfers share: slots, and the pieces of a transfer that go through them. Locked. */
#ifndef PKI_ENGINE_STAGE_H
#define PKI_ENGINE_STAGE_H

#include "engine/internal.h"

#define PKI_STAGE_PIECES 8               /* of one transfer in flight */
#define PKI_STAGE_SHARE 8u               /* a short transfer is cut into so many, so that its copies and the wire overlap, */
#define PKI_STAGE_PIECE_MIN (1u << 20)   /* but not into shorter ones: each costs three messages and two copies */

/* Part of a transfer on its way through slots (stage.c). */
struct pki_piece {
    size_t offset, len;
    int slot;                /* of this rank; -1: none */
    int word;
    struct pki_gate copied;  /* the GPU's copy into or out of the slot has ended */
    const char *src;         /* send: what is put */
    uint64_t remote;         /* send: where to */
    size_t moved;            /* bytes gone or come as DATA messages */
    bool asked;              /* send: ASK is out */
    bool placed;             /* send: `remote` is known. receive: SLOT is out */
    bool copying, filled;    /* filled: send: may be put. receive: has come */
    bool moving, ended;
    struct pki_put put;
};

struct pki_stage {
    struct pki_list node;    /* engine->stages or spare_stages */
    struct pki_piece pieces[2 * PKI_STAGE_PIECES]; /* receive: so many may be in slots, and as many more asked for */
    unsigned head, tail;
};

/* Slots. */
pk_result_t pki_stage_pool_open(struct pki_engine *engine, struct pki_stage_pool *pool);
int pki_stage_slot_take(struct pki_engine *engine, struct pki_stage_pool *pool); /* -1: none is free now, or the engine has failed */
void pki_stage_slot_give(struct pki_stage_pool *pool, int slot);
static inline char *pki_stage_slot_at(const struct pki_stage_pool *pool, int slot)
{
    return pool->memory + (size_t)slot * PKI_STAGE_BYTES;
}

/* Pieces. False: no memory, and the engine has failed. */
bool pki_stage_open(struct pki_xfer *xfer);
static inline struct pki_piece *pki_stage_piece(struct pki_stage *stage, unsigned index)
{
    return &stage->pieces[index % (2 * PKI_STAGE_PIECES)];
}
/* Do the devices of this way read and write the transfer's GPU memory themselves? */
bool pki_stage_reaches(const struct pki_xfer *xfer, const struct pki_ep *way);
/* Let the GPU copy, and a word say when it has. False: no word is free, or the engine has failed. */
bool pki_stage_copy_start(struct pki_engine *engine, struct pki_stage_pool *pool, struct pki_piece *piece, void *dst, const void *src);
/* The same for n pieces of one transfer that have come into slots of this rank, by one kernel. */
bool pki_stage_unpack(struct pki_engine *engine, struct pki_piece *const *pieces, int n, char *dst);
bool pki_stage_copy_ended(struct pki_engine *engine, struct pki_piece *piece);

#endif

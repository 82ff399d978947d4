/* SPDX-License-Identifier: Apache-2.0 */
/* Stretches of blocks, and the steps that bring them. */
#ifndef PKI_PIECES_H
#define PKI_PIECES_H

#include "coll/plan.h"

struct pki_piece {
    uint32_t first, blocks;
    uint32_t step; /* that brings it */
};

/* A block, and two stretches each time the number of ranks doubles. */
#define PKI_PIECES_MAX 34

struct pki_pieces {
    struct pki_piece piece[PKI_PIECES_MAX];
    int n;
};

/* Blocks first, first + 1, ... counted round the ring of `size`, as one or two stretches. Returns how many. */
int pki_pieces_cut(int first, int blocks, int size, struct pki_piece parts[2]);

void pki_pieces_add(struct pki_pieces *pieces, uint32_t first, uint32_t blocks, uint32_t step);
/* The step appended last waits for all pieces that have a block of this stretch. */
void pki_pieces_await(struct pki_plan *plan, const struct pki_pieces *pieces, uint32_t first, uint32_t blocks);

#endif

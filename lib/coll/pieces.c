/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/pieces.h"

#include <assert.h>

int pki_pieces_cut(int first, int blocks, int size, struct pki_piece parts[2])
{
    int before_end = blocks < size - first ? blocks : size - first;

    parts[0] = (struct pki_piece){ .first = (uint32_t)first, .blocks = (uint32_t)before_end };
    parts[1] = (struct pki_piece){ .blocks = (uint32_t)(blocks - before_end) };
    return blocks > before_end ? 2 : 1;
}

void pki_pieces_add(struct pki_pieces *pieces, uint32_t first, uint32_t blocks, uint32_t step)
{
    assert(pieces->n < PKI_PIECES_MAX);
    pieces->piece[pieces->n++] = (struct pki_piece){ first, blocks, step };
}

void pki_pieces_await(struct pki_plan *plan, const struct pki_pieces *pieces, uint32_t first, uint32_t blocks)
{
    for (int i = 0; i < pieces->n; i++) {
        const struct pki_piece *p = &pieces->piece[i];

        if (p->first >= first + blocks || first >= p->first + p->blocks)
            continue;
        if (p->first >= first) /* chunk c of the stretch ends no later than chunk c of the piece */
            pki_plan_after(plan, p->step);
        else
            pki_plan_after_whole(plan, p->step);
    }
}

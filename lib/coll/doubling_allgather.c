/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/pieces.h"
#include "coll/ring.h"

/* Send the blocks from the own one on, as far as the receiver lacks them; receive as many behind them. */
static void exchange(struct pki_plan *plan, int rank, int size, int have, struct pki_pieces *pieces)
{
    int lacking = have < size - have ? have : size - have;
    int to = pki_before(rank, have, size), from = pki_after(rank, have, size);
    struct pki_piece parts[2];
    int n = pki_pieces_cut(rank, lacking, size, parts);

    for (int i = 0; i < n; i++) {
        pki_plan_send(plan, to, have == 1 ? pki_in(0) : pki_stretch(pki_out(parts[i].first), parts[i].blocks));
        if (have > 1)
            pki_pieces_await(plan, pieces, parts[i].first, parts[i].blocks);
    }
    n = pki_pieces_cut(from, lacking, size, parts);
    for (int i = 0; i < n; i++) {
        uint32_t received = pki_plan_recv(plan, from, pki_stretch(pki_out(parts[i].first), parts[i].blocks));

        pki_pieces_add(pieces, parts[i].first, parts[i].blocks, received);
    }
}

/*
 * Each round doubles the blocks that a rank has, its own and those that follow it: log n rounds for any n, n - 1 blocks in all. A
 * round is one message, or two where the stretch of blocks goes round the end.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct pki_pieces pieces = { .n = 0 };

    if (!in_place)
        pki_pieces_add(&pieces, (uint32_t)rank, 1, pki_plan_copy(plan, pki_out(rank), pki_in(0)));
    for (int have = 1; have < size; have *= 2)
        exchange(plan, rank, size, have, &pieces);
}

const struct pki_algorithm pki_doubling_allgather = { .name = "doubling", .coll = PKI_COLL_ALLGATHER, .build = build };

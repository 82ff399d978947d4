/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"
#include "coll/staggered.h"
#include "coll/sum.h"

uint32_t pki_staggered_collect(struct pki_plan *plan, uint32_t piece, struct pki_ref dst, uint32_t *sent)
{
    uint32_t pieces = pki_staggered_pieces(plan->size), size = (uint32_t)plan->size;

    return pki_sum_of_all(plan, &(const struct pki_sum_parts){ .rank = plan->rank,
                                                               .size = plan->size,
                                                               .first = piece,
                                                               .stride = pieces,
                                                               .scratch = piece * size,
                                                               .running = piece * size + size - 1,
                                                               .dst = dst,
                                                               .sent = sent == NULL ? NULL : sent + piece * size });
}

/*
 * As `direct`, in pieces one after another and in rounds: links carry the second piece while the first is summed up. n - 1 sends
 * of one block each, in as many pieces.
 */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    uint32_t pieces = pki_staggered_pieces(size);

    (void)rank;
    pki_plan_cut_finely(plan, (uint32_t)size, 1, pieces);
    plan->ordered = true;
    for (uint32_t piece = 0; piece < pieces && size > 1; piece++)
        pki_staggered_collect(plan, piece, pki_out(piece), NULL);
    if (size == 1 && !in_place)
        pki_plan_copy(plan, pki_stretch(pki_out(0), pieces), pki_stretch(pki_in(0), pieces));
}

const struct pki_algorithm pki_staggered_reduce_scatter = { .name = "staggered",
                                                            .coll = PKI_COLL_REDUCE_SCATTER,
                                                            .build = build };

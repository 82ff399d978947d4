/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of operations with more elements than 32 bits count: they lie side by side, and none is lost. */
#include <criterion/criterion.h>

#include "coll/plan.h"

static size_t end_of(const struct pki_layout *layout, const struct pki_plan *plan, struct pki_ref ref, size_t begin)
{
    size_t first, count;

    pki_layout_block(layout, plan, ref, &first, &count);
    cr_assert(first == begin, "%s: block %u begins at %zu, not %zu", plan->algorithm, ref.index, first, begin);
    return first + count;
}

static void check(const struct pki_algorithm *algorithm, int size, size_t count)
{
    const struct pki_shape *shape = pki_coll_shape(algorithm->coll);
    struct pki_layout layout = { .in_total = shape->in_many ? count * (size_t)size : count,
                                 .out_total = shape->out_many ? count * (size_t)size : count };

    for (int rank = 0; rank < size; rank++) {
        struct pki_plan *plan;
        size_t in = 0, out = 0, blocks = (size_t)size;

        cr_assert(pki_plan_make(algorithm, NULL, rank, size, size / 2, rank % 2 == 0, &plan) == PK_OK);
        for (uint32_t b = 0; b < plan->in_blocks; b++)
            in = end_of(&layout, plan, pki_in(b), in);
        for (uint32_t b = 0; b < plan->out_blocks; b++)
            out = end_of(&layout, plan, pki_out(b), out);
        cr_assert(in == layout.in_total && out == layout.out_total, "%s: %zu and %zu elements", algorithm->name, in, out);
        if (plan->in_blocks > blocks)
            blocks = plan->in_blocks;
        cr_assert(plan->scratch_blocks == 0 || pki_layout_scratch(&layout, plan) + PKI_PIECE_GRAIN > count / blocks);
        pki_plan_free(plan);
    }
}

Test(plan, more_than_32_bits)
{
    static const size_t counts[] = { UINT32_MAX, (size_t)UINT32_MAX + 2, ((size_t)5 << 40) + 3 };

    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++)
        for (int size = 1; size <= 9; size++)
            for (int i = 0; i < 3; i++)
                check(*a, size, counts[i]);
}

Test(plan, long_blocks_of_their_own)
{
    static const size_t counts[] = { (size_t)1 << 33, 0, ((size_t)3 << 32) + 1 };
    static const size_t offsets[] = { (size_t)1 << 40, 7, 0 };
    const struct pki_algorithm *algorithm = pki_algorithm_find(PKI_COLL_ALLTOALLV, "direct");
    struct pki_layout layout = { .in_counts = counts, .in_offsets = offsets, .out_counts = counts, .out_offsets = offsets };
    struct pki_plan *plan;

    cr_assert(pki_plan_make(algorithm, NULL, 1, 3, 0, true, &plan) == PK_OK);
    for (uint32_t b = 0; b < 3; b++)
        cr_assert(end_of(&layout, plan, pki_in(b), offsets[b]) == offsets[b] + counts[b]);
    cr_assert(pki_layout_scratch(&layout, plan) == counts[2]);
    pki_plan_free(plan);
}

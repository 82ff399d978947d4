/* SPDX-License-Identifier: Apache-2.0 */
/* Where the blocks of an operation lie. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "coll/plan.h"
#include "util/log.h"

struct buffer {
    size_t total;
    const size_t *counts, *offsets;
    uint32_t blocks, pieces;
};

static struct buffer buffer_of(const struct pki_layout *layout, const struct pki_plan *plan, uint8_t which)
{
    if (which == PKI_BUF_IN)
        return (struct buffer){ layout->in_total, layout->in_counts, layout->in_offsets, plan->in_blocks, plan->pieces };
    return (struct buffer){ layout->out_total, layout->out_counts, layout->out_offsets, plan->out_blocks, plan->pieces };
}

static void range_of(const struct buffer *b, uint32_t index, size_t *first, size_t *count)
{
    size_t begin, length;

    if (b->blocks == 1) { /* without a division */
        *first = 0;
        *count = b->total;
        return;
    }
    if (b->pieces <= 1) {
        pki_block_range(b->total, b->blocks, index, first, count);
        return;
    }
    pki_block_range(b->total, b->blocks / b->pieces, index / b->pieces, &begin, &length);
    pki_piece_range(length, b->pieces, index % b->pieces, first, count);
    *first += begin;
}

static void one_block(const struct buffer *b, uint32_t index, size_t *first, size_t *count)
{
    if (b->counts == NULL) {
        range_of(b, index, first, count);
        return;
    }
    *first = b->offsets[index];
    *count = b->counts[index];
}

void pki_layout_block(const struct pki_layout *layout, const struct pki_plan *plan, struct pki_ref ref, size_t *first,
                      size_t *count)
{
    bool scratch = ref.buffer == PKI_BUF_SCRATCH;
    struct buffer b = buffer_of(layout, plan, scratch ? ref.like_buffer : ref.buffer);
    uint32_t index = scratch ? ref.like : ref.index;
    size_t begin, base = 0, last, length;

    assert(b.counts == NULL || (ref.more == 0 && (!scratch || ref.base == ref.like)));
    one_block(&b, index, &begin, count);
    if (scratch)
        one_block(&b, ref.base, &base, &length);
    *first = begin - base;
    if (ref.more > 0) {
        one_block(&b, index + ref.more, &last, &length);
        *count = last + length - begin;
    }
}

static void make_longer(const struct pki_layout *layout, const struct pki_plan *plan, struct pki_ref ref, size_t *longest)
{
    size_t first, count;

    if (ref.buffer != PKI_BUF_SCRATCH)
        return;
    pki_layout_block(layout, plan, ref, &first, &count);
    if (first + count > *longest)
        *longest = first + count;
}

size_t pki_layout_scratch(const struct pki_layout *layout, const struct pki_plan *plan)
{
    size_t longest = 0;

    for (uint32_t i = 0; plan->scratch_blocks > 0 && i < plan->nsteps; i++) {
        make_longer(layout, plan, plan->steps[i].dst, &longest);
        make_longer(layout, plan, plan->steps[i].src, &longest);
        make_longer(layout, plan, plan->steps[i].landing, &longest);
    }
    for (uint32_t i = 0; i < plan->noperands; i++)
        make_longer(layout, plan, plan->operands[i], &longest);
    return longest;
}

static const size_t *keep(size_t *memory, size_t place, const size_t *table, size_t blocks)
{
    return table == NULL ? NULL : memcpy(memory + place * blocks, table, blocks * sizeof *table);
}

pk_result_t pki_layout_own(struct pki_layout *layout, size_t blocks, size_t **memory)
{
    size_t *m;

    if (layout->in_counts == NULL && layout->out_counts == NULL) {
        *memory = NULL;
        return PK_OK;
    }
    m = malloc(4 * blocks * sizeof *m);
    if (m == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the lengths of %zu blocks", blocks);
    layout->in_counts = keep(m, 0, layout->in_counts, blocks);
    layout->in_offsets = keep(m, 1, layout->in_offsets, blocks);
    layout->out_counts = keep(m, 2, layout->out_counts, blocks);
    layout->out_offsets = keep(m, 3, layout->out_offsets, blocks);
    *memory = m;
    return PK_OK;
}

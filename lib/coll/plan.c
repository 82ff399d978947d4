/* SPDX-License-Identifier: Apache-2.0 */
/* Building plans: arrays that grow, and the numbering of transfers per pair. */
#include "coll/plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "util/log.h"

/* Make room for `more` elements behind the first `used`. The old array stays valid when there is no memory. */
static bool grow(void **array, uint32_t *cap, uint32_t used, uint32_t more, size_t element_bytes)
{
    uint64_t need = (uint64_t)used + more;
    uint64_t new_cap = *cap == 0 ? 16 : *cap;
    void *bigger;

    if (need <= *cap)
        return true;
    while (new_cap < need)
        new_cap *= 2;
    if (new_cap > UINT32_MAX)
        return false;
    bigger = realloc(*array, (size_t)new_cap * element_bytes);
    if (bigger == NULL)
        return false;
    *array = bigger;
    *cap = (uint32_t)new_cap;
    return true;
}

struct pki_ref pki_in(uint32_t index)
{
    return (struct pki_ref){ .buffer = PKI_BUF_IN, .index = (uint16_t)index };
}

struct pki_ref pki_out(uint32_t index)
{
    return (struct pki_ref){ .buffer = PKI_BUF_OUT, .index = (uint16_t)index };
}

struct pki_ref pki_stretch(struct pki_ref first, uint32_t blocks)
{
    assert(first.buffer != PKI_BUF_SCRATCH && blocks > 0);
    first.more = (uint16_t)(blocks - 1);
    return first;
}

struct pki_ref pki_scratch(uint32_t index, struct pki_ref like)
{
    return pki_scratch_at(index, like.index, like);
}

struct pki_ref pki_scratch_at(uint32_t index, uint32_t base, struct pki_ref like)
{
    assert(like.buffer != PKI_BUF_SCRATCH && base <= like.index);
    return (struct pki_ref){ .buffer = PKI_BUF_SCRATCH,
                             .like_buffer = like.buffer,
                             .index = (uint16_t)index,
                             .like = like.index,
                             .more = like.more,
                             .base = (uint16_t)base };
}

void pki_plan_cut(struct pki_plan *plan, uint32_t in_blocks, uint32_t out_blocks)
{
    assert(plan->nsteps == 0);
    plan->in_blocks = in_blocks;
    plan->out_blocks = out_blocks;
    plan->pieces = 1;
}

void pki_plan_cut_finely(struct pki_plan *plan, uint32_t in_blocks, uint32_t out_blocks, uint32_t pieces)
{
    pki_plan_cut(plan, in_blocks * pieces, out_blocks * pieces);
    plan->pieces = pieces;
}

static void count_scratch(struct pki_plan *plan, struct pki_ref ref)
{
    if (ref.buffer == PKI_BUF_SCRATCH && ref.index >= plan->scratch_blocks)
        plan->scratch_blocks = ref.index + 1u;
}

/* Once memory has run out nothing is appended any more; the index returned is then of no use, and of no harm. */
static uint32_t append(struct pki_plan *plan, struct pki_step step)
{
    if (plan->failed || !grow((void **)&plan->steps, &plan->steps_cap, plan->nsteps, 1, sizeof *plan->steps)) {
        plan->failed = true;
        return 0;
    }
    count_scratch(plan, step.dst);
    count_scratch(plan, step.src);
    count_scratch(plan, step.landing);
    step.first_dep = plan->ndeps;
    plan->steps[plan->nsteps] = step;
    return plan->nsteps++;
}

uint32_t pki_plan_send(struct pki_plan *plan, int peer, struct pki_ref src)
{
    return append(plan, (struct pki_step){ .kind = PKI_STEP_SEND, .peer = peer, .src = src });
}

uint32_t pki_plan_recv(struct pki_plan *plan, int peer, struct pki_ref dst)
{
    return append(plan, (struct pki_step){ .kind = PKI_STEP_RECV, .peer = peer, .dst = dst });
}

uint32_t pki_plan_recv_reduce(struct pki_plan *plan, int peer, struct pki_ref dst, struct pki_ref src, struct pki_ref landing)
{
    return append(plan,
                  (struct pki_step){ .kind = PKI_STEP_RECV_REDUCE, .peer = peer, .dst = dst, .src = src, .landing = landing });
}

uint32_t pki_plan_copy(struct pki_plan *plan, struct pki_ref dst, struct pki_ref src)
{
    return append(plan, (struct pki_step){ .kind = PKI_STEP_COPY, .peer = -1, .dst = dst, .src = src });
}

uint32_t pki_plan_fused(struct pki_plan *plan)
{
    return append(plan, (struct pki_step){ .kind = PKI_STEP_FUSED,
                                           .peer = -1,
                                           .dst = pki_stretch(pki_out(0), plan->out_blocks),
                                           .src = pki_stretch(pki_in(0), plan->in_blocks) });
}

uint32_t pki_plan_switch(struct pki_plan *plan)
{
    return append(plan, (struct pki_step){ .kind = PKI_STEP_SWITCH, .peer = -1, .dst = pki_out(0), .src = pki_in(0) });
}

uint32_t pki_plan_reduce(struct pki_plan *plan, struct pki_ref dst, const struct pki_ref *operands, uint32_t n)
{
    if (plan->failed || !grow((void **)&plan->operands, &plan->operands_cap, plan->noperands, n, sizeof *plan->operands)) {
        plan->failed = true;
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        count_scratch(plan, operands[i]);
        plan->operands[plan->noperands + i] = operands[i];
    }
    plan->noperands += n;
    return append(plan,
                  (struct pki_step){
                      .kind = PKI_STEP_REDUCE, .peer = -1, .dst = dst, .first_operand = plan->noperands - n, .operands = n });
}

void pki_plan_after(struct pki_plan *plan, uint32_t dep)
{
    if (plan->failed)
        return;
    assert(plan->nsteps > 0 && dep < plan->nsteps - 1);
    if (!grow((void **)&plan->deps, &plan->deps_cap, plan->ndeps, 1, sizeof *plan->deps)) {
        plan->failed = true;
        return;
    }
    plan->deps[plan->ndeps++] = dep;
    plan->steps[plan->nsteps - 1].deps++;
}

void pki_plan_after_whole(struct pki_plan *plan, uint32_t dep)
{
    pki_plan_after(plan, dep);
    if (!plan->failed)
        plan->steps[plan->nsteps - 1].whole = true;
}

void pki_plan_final(struct pki_plan *plan, uint32_t step)
{
    if (plan->failed)
        return;
    assert(plan->steps[step].kind == PKI_STEP_REDUCE || plan->steps[step].kind == PKI_STEP_RECV_REDUCE);
    plan->steps[step].final = true;
}

/* Give every transfer its place among those to, or from, the same peer: afterwards, in one pass, so that no builder searches. */
static pk_result_t number_transfers(struct pki_plan *plan)
{
    uint32_t *sent = calloc((size_t)plan->size * 2, sizeof *sent);
    uint32_t *received;

    if (sent == NULL)
        return PK_ERR_MEMORY; /* the caller says so */
    received = sent + plan->size;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        struct pki_step *step = &plan->steps[i];

        if (step->kind == PKI_STEP_SEND)
            step->pair_index = sent[step->peer]++;
        else if (step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE)
            step->pair_index = received[step->peer]++;
    }
    free(sent);
    return PK_OK;
}

/* A block a rank where ranks have parts of their own, else one for the whole buffer. */
static void cut_by_name(struct pki_plan *plan, enum pki_coll coll)
{
    const struct pki_shape *shape = pki_coll_shape(coll);
    bool parts = coll == PKI_COLL_ALLREDUCE;

    pki_plan_cut(plan, shape->in_many || parts ? (uint32_t)plan->size : 1, shape->out_many || parts ? (uint32_t)plan->size : 1);
}

pk_result_t pki_plan_make(const struct pki_algorithm *algorithm, const struct pki_hosts *hosts, int rank, int size, int root,
                          bool in_place, struct pki_plan **plan)
{
    struct pki_plan *p;

    assert(size > 0 && rank >= 0 && rank < size && root >= 0 && root < size);
    if (size > UINT16_MAX)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "%s: %d ranks are more than a plan can name", algorithm->name, size);
    p = calloc(1, sizeof *p);
    if (p == NULL)
        goto no_memory;
    p->rank = rank;
    p->size = size;
    p->hosts = hosts;
    p->algorithm = algorithm->name;
    cut_by_name(p, algorithm->coll);
    if (algorithm->build_rooted != NULL) {
        p->root = root;
        algorithm->build_rooted(p, rank, size, root, in_place);
    } else {
        algorithm->build(p, rank, size, in_place);
    }
    if (p->failed || number_transfers(p) != PK_OK)
        goto no_memory;
    *plan = p;
    return PK_OK;

no_memory:
    pki_plan_free(p);
    return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the plan of a %s algorithm for %d ranks", algorithm->name, size);
}

void pki_plan_free(struct pki_plan *plan)
{
    if (plan == NULL)
        return;
    free(plan->steps);
    free(plan->deps);
    free(plan->operands);
    free(plan);
}

void pki_block_range(size_t total, uint32_t blocks, uint32_t index, size_t *first, size_t *count)
{
    size_t each = total / blocks;
    size_t longer = total % blocks;

    *first = each * index + (index < longer ? index : longer);
    *count = each + (index < longer ? 1 : 0);
}

void pki_piece_range(size_t total, uint32_t pieces, uint32_t index, size_t *first, size_t *count)
{
    size_t grains = total / PKI_PIECE_GRAIN;

    if (grains < pieces) {
        pki_block_range(total, pieces, index, first, count);
        return;
    }
    pki_block_range(grains, pieces, index, first, count);
    *first *= PKI_PIECE_GRAIN;
    *count *= PKI_PIECE_GRAIN;
    if (index == pieces - 1)
        *count = total - *first;
}

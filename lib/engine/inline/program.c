/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of short collectives: made once for a plan, a count and a type. */
#include <stdlib.h>
#include <string.h>

#include "engine/inline/inline.h"
#include "engine/inline/program.h"
#include "util/dtype.h"

static bool place_of(const struct pki_program *program, const struct pki_plan *plan, struct pki_ref ref, struct pki_place *place,
                     size_t *bytes)
{
    size_t size = pki_dtype_bytes(program->made_for.dtype), first, count;

    pki_layout_block(&program->made_for.layout, plan, ref, &first, &count);
    *bytes = count * size;
    first *= size;
    if (ref.buffer == PKI_BUF_SCRATCH)
        first += (size_t)ref.index * program->stride;
    *place = (struct pki_place){ ref.buffer, (uint32_t)first };
    return *bytes <= PKI_INLINE_BYTES && first <= UINT32_MAX;
}

static bool add_operands(struct pki_program *program, const struct pki_plan *plan, const struct pki_step *from, uint32_t *used,
                         struct pki_program_step *step)
{
    size_t bytes;

    if (*used + from->operands > PKI_PROGRAM_OPERANDS || from->operands > PKI_REDUCE_SOURCES)
        return false;
    step->first_operand = (uint16_t)*used;
    step->operands = (uint16_t)from->operands;
    for (uint32_t k = 0; k < from->operands; k++)
        if (!place_of(program, plan, plan->operands[from->first_operand + k], &program->operands[(*used)++], &bytes))
            return false;
    return true;
}

static bool add_step(const struct pki_engine *e, struct pki_program *program, const struct pki_plan *plan, uint32_t i,
                     uint32_t *used)
{
    const struct pki_step *from = &plan->steps[i];
    struct pki_program_step *step = &program->steps[i];
    bool fits = true;
    size_t bytes, other;

    *step = (struct pki_program_step){ .kind = from->kind, .index = (uint16_t)from->pair_index, .peer = from->peer };
    step->op = program->made_for.op;
    if (step->op == PK_AVG)
        step->op = from->final ? PKI_SUM_DIVIDED(plan->size) : PK_SUM;
    if (from->kind == PKI_STEP_SEND) {
        fits = place_of(program, plan, from->src, &step->src, &bytes);
    } else {
        fits = place_of(program, plan, from->dst, &step->dst, &bytes);
        if (from->kind == PKI_STEP_COPY || from->kind == PKI_STEP_RECV_REDUCE)
            fits = fits && place_of(program, plan, from->src, &step->src, &other);
        if (from->kind == PKI_STEP_RECV_REDUCE)
            fits = fits && place_of(program, plan, from->landing, &step->landing, &other);
        if (from->kind == PKI_STEP_REDUCE)
            fits = fits && add_operands(program, plan, from, used, step);
    }
    if (from->kind != PKI_STEP_COPY && from->kind != PKI_STEP_REDUCE)
        fits = fits && bytes <= e->peers[from->peer].eager.coll;
    step->bytes = (uint32_t)bytes;
    step->count = (uint32_t)(bytes / pki_dtype_bytes(program->made_for.dtype));
    for (uint32_t d = 0; d < from->deps; d++)
        step->deps |= 1ull << plan->deps[from->first_dep + d];
    return fits && from->kind != PKI_STEP_FUSED && from->peer != plan->rank;
}

static bool same_place(struct pki_place a, struct pki_place b)
{
    return a.buffer == b.buffer && a.offset == b.offset;
}

/* `scratch` is a place in scratch memory. */
static bool same_block(const struct pki_program *program, struct pki_place a, struct pki_place scratch)
{
    return a.buffer == PKI_BUF_SCRATCH && a.offset / program->stride == scratch.offset / program->stride;
}

/* Is it the only message of this peer, and into scratch memory? Then nobody looks at the control channel behind it. */
static bool may_stay(const struct pki_program *program, const struct pki_program_step *step)
{
    unsigned of_peer = 0;

    if (step->kind != PKI_STEP_RECV || step->dst.buffer != PKI_BUF_SCRATCH)
        return false;
    for (uint32_t i = 0; i < program->n; i++)
        of_peer += program->steps[i].peer == step->peer &&
                   (program->steps[i].kind == PKI_STEP_RECV || program->steps[i].kind == PKI_STEP_RECV_REDUCE);
    return of_peer == 1;
}

/* How many operands of reductions are what this step receives; *last: the last of them. Any other use counts as two. */
static unsigned readers_of(const struct pki_program *program, const struct pki_program_step *recv, uint32_t operands,
                           uint32_t *last)
{
    unsigned readers = 0;

    for (uint32_t i = 0; i < program->n; i++) {
        const struct pki_program_step *other = &program->steps[i];

        if (other != recv && (same_block(program, other->src, recv->dst) || same_block(program, other->dst, recv->dst) ||
                              same_block(program, other->landing, recv->dst)))
            readers += 2;
    }
    for (uint32_t k = 0; k < operands; k++)
        if (same_block(program, program->operands[k], recv->dst)) {
            readers += same_place(program->operands[k], recv->dst) ? 1 : 2;
            *last = k;
        }
    return readers;
}

/* A block that is received only to be summed up need not be copied to scratch memory before. */
static void leave_in_ctrl(struct pki_program *program, uint32_t operands)
{
    uint32_t operand = 0;

    memset(program->received_by, 0, sizeof program->received_by);
    for (uint32_t i = 0; i < program->n; i++) {
        if (!may_stay(program, &program->steps[i]) || readers_of(program, &program->steps[i], operands, &operand) != 1)
            continue;
        program->steps[i].by_ctrl = true;
        program->received_by[operand] = (uint8_t)(i + 1);
    }
}

static void find_kinds(struct pki_program *program)
{
    uint64_t needed = 0;

    program->deferred = 0;
    program->reduces = false;
    for (uint32_t i = 0; i < program->n; i++) {
        needed |= program->steps[i].deps;
        program->reduces |= program->steps[i].kind == PKI_STEP_REDUCE || program->steps[i].kind == PKI_STEP_RECV_REDUCE;
    }
    for (uint32_t i = 0; i < program->n; i++)
        if (program->steps[i].kind == PKI_STEP_COPY && (needed >> i & 1) == 0)
            program->deferred |= 1ull << i;
}

static bool compile(struct pki_engine *e, struct pki_program *program, const struct pki_plan *plan, const struct pki_request *r)
{
    size_t stride;
    uint32_t used = 0;

    program->made_for = *r;
    program->sig = pki_task_fingerprint(r, e->config.size);
    program->n = plan->nsteps;
    stride = pki_plan_scratch_stride(plan, r);
    if (plan->nsteps > PKI_PROGRAM_STEPS || stride * plan->scratch_blocks > PKI_INLINE_BYTES)
        return false;
    program->stride = (uint32_t)stride;
    program->scratch_bytes = stride * plan->scratch_blocks;
    if (pki_coll_shape(r->algorithm->coll)->reduces && !e->host->ops->reduces(e->host, r->dtype, r->op))
        return false;
    for (uint32_t i = 0; i < plan->nsteps; i++)
        if (!add_step(e, program, plan, i, &used))
            return false;
    leave_in_ctrl(program, used);
    find_kinds(program);
    return true;
}

static bool made_for(const struct pki_program *program, const struct pki_request *r)
{
    const struct pki_request *was = &program->made_for;

    return was->layout.in_total == r->layout.in_total && was->layout.out_total == r->layout.out_total && was->count == r->count &&
           was->dtype == r->dtype && was->op == r->op && was->root == r->root;
}

const struct pki_program *pki_program_of(struct pki_engine *e, struct pki_plan_entry *entry, const struct pki_request *r)
{
    if (entry->program == NULL) {
        entry->program = calloc(1, sizeof *entry->program);
        if (entry->program == NULL)
            return NULL; /* the ordinary way needs less */
        entry->program->fits = compile(e, entry->program, entry->plan, r);
    } else if (!made_for(entry->program, r)) {
        entry->program->fits = compile(e, entry->program, entry->plan, r);
    }
    return entry->program->fits ? entry->program : NULL;
}

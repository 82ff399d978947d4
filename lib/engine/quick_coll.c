/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short blocking collectives of host memory: the same plan steps, one after another on the caller's thread, without a task, an
 * allocation or a clock. What a plan comes to for one count and type is kept beside it as a program: offsets instead of blocks.
 * Every transfer is one EAGER message. When a peer is late, what is left of the plan becomes an ordinary operation.
 */
#include <sched.h>
#include <stdlib.h>

#include "engine/internal.h"
#include "util/copy.h"
#include "util/dtype.h"

#define STEPS_MAX 64u /* bits of a word */
#define OPERANDS_MAX 128u
#define LOOKS_A_TURN 64 /* at all lanes with the lock held: others want it too, an abort for instance */
#define TURNS 64        /* after which an ordinary operation is no slower, and looks after everything else as well */

struct place {
    uint32_t buffer, offset; /* enum pki_buffer, bytes */
};

struct step {
    uint8_t kind;
    uint16_t index;
    uint16_t first_operand, operands;
    int32_t peer;
    uint32_t bytes, count;
    pk_op_t op;
    struct place dst, src, landing;
    uint64_t deps;
};

struct pki_program {
    struct pki_request made_for;
    bool fits;
    uint32_t sig, n;
    uint32_t stride; /* of scratch */
    struct step steps[STEPS_MAX];
    struct place operands[OPERANDS_MAX];
};

/* ---- making a program ---- */

static bool place_of(const struct pki_program *program, const struct pki_plan *plan, struct pki_ref ref, struct place *place,
                     size_t *bytes)
{
    size_t size = pki_dtype_bytes(program->made_for.dtype), first, count;

    pki_layout_block(&program->made_for.layout, plan, ref, &first, &count);
    *bytes = count * size;
    first *= size;
    if (ref.buffer == PKI_BUF_SCRATCH)
        first += (size_t)ref.index * program->stride;
    *place = (struct place){ ref.buffer, (uint32_t)first };
    return *bytes <= PKI_EAGER_MAX_SHM && first <= UINT32_MAX;
}

static bool add_operands(struct pki_program *program, const struct pki_plan *plan, const struct pki_step *from, uint32_t *used,
                         struct step *step)
{
    size_t bytes;

    if (*used + from->operands > OPERANDS_MAX || from->operands > PKI_REDUCE_MAX)
        return false;
    step->first_operand = (uint16_t)*used;
    step->operands = (uint16_t)from->operands;
    for (uint32_t k = 0; k < from->operands; k++)
        if (!place_of(program, plan, plan->operands[from->first_operand + k], &program->operands[(*used)++], &bytes))
            return false;
    return true;
}

static bool add_step(const struct pki_engine *e, struct pki_program *program, const struct pki_plan *plan, uint32_t i, uint32_t *used)
{
    const struct pki_step *from = &plan->steps[i];
    struct step *step = &program->steps[i];
    bool fits = true;
    size_t bytes, other;

    *step = (struct step){ .kind = from->kind, .index = (uint16_t)from->pair_index, .peer = from->peer };
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
        fits = fits && bytes <= e->peers[from->peer].eager_max;
    step->bytes = (uint32_t)bytes;
    step->count = (uint32_t)(bytes / pki_dtype_bytes(program->made_for.dtype));
    for (uint32_t d = 0; d < from->deps; d++)
        step->deps |= 1ull << plan->deps[from->first_dep + d];
    return fits && from->kind != PKI_STEP_FUSED && from->peer != plan->rank;
}

static bool compile(struct pki_engine *e, struct pki_program *program, const struct pki_plan *plan, const struct pki_request *r)
{
    size_t stride;
    uint32_t used = 0;

    program->made_for = *r;
    program->sig = pki_task_fingerprint(r, e->config.size);
    program->n = plan->nsteps;
    stride = pki_plan_scratch_stride(plan, r);
    if (plan->nsteps > STEPS_MAX || stride * plan->scratch_blocks > PKI_QUICK_SCRATCH)
        return false;
    program->stride = (uint32_t)stride;
    if (pki_coll_shape(r->algorithm->coll)->reduces && !e->host->ops->reduces(e->host, r->dtype, r->op))
        return false;
    for (uint32_t i = 0; i < plan->nsteps; i++)
        if (!add_step(e, program, plan, i, &used))
            return false;
    return true;
}

static bool made_for(const struct pki_program *program, const struct pki_request *r)
{
    const struct pki_request *was = &program->made_for;

    return was->layout.in_total == r->layout.in_total && was->layout.out_total == r->layout.out_total && was->count == r->count &&
           was->dtype == r->dtype && was->op == r->op && was->root == r->root;
}

/* NULL: not this way. */
static const struct pki_program *program_of(struct pki_engine *e, struct pki_plan_entry *entry, const struct pki_request *r)
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

/* ---- running it ---- */

struct run {
    struct pki_engine *e;
    const struct pki_program *program;
    const struct pki_request *request;
    uintptr_t base[3]; /* by enum pki_buffer */
    uint64_t number;
    uint64_t done; /* a bit a step */
    pk_result_t result;
};

static char *at(const struct run *run, struct place place)
{
    return (char *)(run->base[place.buffer] + place.offset);
}

static bool send_step(struct run *run, const struct step *step)
{
    struct pki_engine *e = run->e;
    struct pki_peer *peer = &e->peers[step->peer];
    struct pki_msg msg;

    if (peer->eager_out + step->bytes + sizeof msg > PKI_EAGER_CREDIT) {
        (void)pki_lane_poll(e, peer); /* for CREDIT */
        return false;
    }
    msg.kind = PKI_MSG_EAGER;
    msg.flags = PKI_MSG_FLAG_COLL;
    msg.index = step->index;
    msg.sig = run->program->sig;
    msg.op = run->number;
    msg.payload = (uint16_t)step->bytes; /* EAGER carries no more of it */
    if (peer->lane->iface->transport->msg(peer->lane, &msg, at(run, step->src)) != PK_OK)
        return false;
    peer->eager_out += step->bytes + sizeof msg;
    e->stats.messages++;
    e->stats.bytes_sent += step->bytes;
    return true;
}

static bool is_it(const struct run *run, const struct step *step, const struct pki_msg *msg)
{
    return msg->kind == PKI_MSG_EAGER && msg->flags == PKI_MSG_FLAG_COLL && msg->op == run->number && msg->index == step->index &&
           msg->sig == run->program->sig && msg->payload == step->bytes;
}

/* What came while an earlier operation was looked after the ordinary way. */
static bool take_arrival(struct run *run, const struct step *step, void *to)
{
    struct pki_peer *peer = &run->e->peers[step->peer];

    for (struct pki_list *n = peer->arrivals.next; n != &peer->arrivals; n = n->next) {
        struct pki_arrival *arrival = pki_container_of(n, struct pki_arrival, node);

        if (!is_it(run, step, &arrival->msg))
            continue;
        pki_copy_short(to, arrival->payload, step->bytes);
        pki_list_remove(n);
        free(arrival);
        return true;
    }
    return false;
}

static bool take_message(struct run *run, const struct step *step, void *to)
{
    struct pki_peer *peer = &run->e->peers[step->peer];
    const struct pki_transport *transport = peer->lane->iface->transport;
    struct pki_msg msg;
    const void *payload;

    if (!pki_list_empty(&peer->arrivals) && take_arrival(run, step, to))
        return true;
    if (!transport->peek(peer->lane, &msg, &payload))
        return false;
    if (!is_it(run, step, &msg)) {
        (void)pki_lane_poll(run->e, peer); /* keeps what nobody waits for */
        return take_arrival(run, step, to);
    }
    pki_copy_short(to, payload, step->bytes);
    transport->pop(peer->lane);
    return true;
}

static bool recv_step(struct run *run, const struct step *step, void *to)
{
    struct pki_peer *peer = &run->e->peers[step->peer];

    if (!take_message(run, step, to))
        return false;
    if (run->number > peer->coll_heard)
        peer->coll_heard = run->number;
    pki_lane_consumed(run->e, peer, step->bytes);
    run->e->stats.bytes_received += step->bytes;
    return true;
}

static void reduce_step(struct run *run, const struct step *step, const void *const *srcs, int n)
{
    const struct pki_request *r = run->request;

    run->result = pki_reduce_host(at(run, step->dst), srcs, n, step->count, r->dtype, step->op);
}

/* False: not yet. */
static bool try_step(struct run *run, const struct step *step)
{
    const void *srcs[PKI_REDUCE_MAX];

    switch ((enum pki_step_kind)step->kind) {
    case PKI_STEP_SEND:
        return send_step(run, step);
    case PKI_STEP_RECV:
        return recv_step(run, step, at(run, step->dst));
    case PKI_STEP_RECV_REDUCE:
        if (!recv_step(run, step, at(run, step->landing)))
            return false;
        srcs[0] = at(run, step->src);
        srcs[1] = at(run, step->landing);
        reduce_step(run, step, srcs, 2);
        return true;
    case PKI_STEP_COPY:
        pki_copy_short(at(run, step->dst), at(run, step->src), step->bytes);
        return true;
    case PKI_STEP_REDUCE:
        for (int k = 0; k < step->operands; k++)
            srcs[k] = at(run, run->program->operands[step->first_operand + k]);
        reduce_step(run, step, srcs, step->operands);
        return true;
    case PKI_STEP_FUSED:
        break;
    }
    return false;
}

/* Try every step whose turn has come. True: all are done. */
static bool look_at_all(struct run *run)
{
    uint64_t all = run->program->n == STEPS_MAX ? UINT64_MAX : (1ull << run->program->n) - 1;

    for (uint64_t left = all & ~run->done; left != 0; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left);
        const struct step *step = &run->program->steps[i];

        if ((step->deps & ~run->done) == 0 && try_step(run, step))
            run->done |= 1ull << i;
    }
    return run->done == all;
}

/* Locked on entry and return; let go in between, so that an abort gets through. */
static bool run_for_a_while(struct run *run)
{
    struct pki_engine *e = run->e;

    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < (e->spin ? LOOKS_A_TURN : 1); i++)
            if (look_at_all(run))
                return true;
        pki_engine_unlock(e);
        if (!e->spin)
            sched_yield();
        pki_engine_lock(e);
        if (run->result != PK_OK || atomic_load_explicit(&e->failed, memory_order_relaxed) != PK_OK)
            return false;
    }
    return false;
}

static bool may_be_quick(const struct pki_engine *e, const struct pki_request *r)
{
    return r->stream.kind == PK_STREAM_KIND_BLOCKING && e->gpu == NULL && r->layout.in_counts == NULL &&
           r->layout.out_counts == NULL && r->in_count * pki_dtype_bytes(r->dtype) <= PKI_QUICK_SCRATCH &&
           r->out_count * pki_dtype_bytes(r->dtype) <= PKI_QUICK_SCRATCH && e->config.size > 1;
}

static bool scratch_is_there(struct pki_engine *e)
{
    if (e->quick_scratch == NULL)
        e->quick_scratch = aligned_alloc(4096, PKI_QUICK_SCRATCH);
    return e->quick_scratch != NULL;
}

static enum pki_quick run_program(struct pki_engine *e, const struct pki_program *program, const struct pki_request *r,
                                  struct pki_list *blocking)
{
    struct run run = { .e = e, .program = program, .request = r, .number = ++e->coll_number };
    bool ended;

    e->seen[run.number % PKI_SEEN_MAX] = (struct pki_coll_seen){ run.number, program->sig, r->count };
    run.base[PKI_BUF_IN] = (uintptr_t)r->in;
    run.base[PKI_BUF_OUT] = (uintptr_t)r->out;
    run.base[PKI_BUF_SCRATCH] = (uintptr_t)e->quick_scratch;
    ended = run_for_a_while(&run);
    e->stats.steps += (uint64_t)__builtin_popcountll(run.done);
    if (run.result == PK_OK && ended) {
        e->stats.operations++;
        return PKI_QUICK_DONE;
    }
    if (run.result == PK_OK && atomic_load_explicit(&e->failed, memory_order_relaxed) == PK_OK)
        run.result = pki_task_resume(e, r, run.number, run.done, blocking);
    if (run.result != PK_OK)
        pki_engine_poison(e, run.result, true);
    return PKI_QUICK_BEGUN;
}

/* Nothing else may be under way: while this runs nobody looks after it. */
enum pki_quick pki_quick_coll(struct pki_engine *e, const struct pki_request *r, struct pki_list *blocking)
{
    enum pki_quick how = PKI_QUICK_NOT;
    struct pki_plan_entry *entry;
    const struct pki_program *program;

    if (!may_be_quick(e, r))
        return PKI_QUICK_NOT;
    pki_engine_lock(e);
    if (!pki_list_empty(&e->tasks) || atomic_load_explicit(&e->failed, memory_order_relaxed) != PK_OK || !scratch_is_there(e) ||
        pki_plan_take(e, r, &entry) != PK_OK)
        goto out;
    program = program_of(e, entry, r);
    if (program != NULL)
        how = run_program(e, program, r, blocking);
    pki_plan_give(e, entry);
out:
    pki_engine_unlock(e);
    return how;
}

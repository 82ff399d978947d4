/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks at once, by a random schedule: every moment some step of some rank takes one small part of its work. Sources are
 * read and targets are filled with rubbish as early and as late as the contract in plan_model.h lets an engine do it. Some ranks
 * come only when the others can do nothing without them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan_model.h"

enum phase {
    IDLE,    /* the chunk has not started */
    STARTED, /* it may touch its memory from now on */
    BEGUN,   /* send: source read; receive: rubbish lies where the data will come; copy and reduce: sources read */
    ARRIVED  /* receive: data in the target or landing; copy and reduce: result written */
};

struct state {
    int rank;
    uint32_t step, chunks;
    uint32_t chunk;    /* the current one; == chunks: the step is complete */
    uint32_t readable; /* send: chunks whose data the peer may take */
    enum phase phase;
    bool slow;   /* gets its turn rarely */
    bool eager;  /* send: does not wait for the receiver */
    bool direct; /* receive-reduce: does not use the landing */
    int partner;
    uint32_t *data; /* what was read, as long as the block */
};

struct member {
    uint32_t *memory;
    uint32_t *expected; /* what memory but scratch has to be in the end */
    uint32_t left;      /* steps not complete */
    bool here;
};

struct run {
    struct plan_world *world;
    uint64_t random;
    struct member *ranks;
    struct state **states; /* [rank][step] */
    struct state **live;   /* those not complete */
    uint32_t nlive;
    char *text;
    size_t text_bytes;
    bool failed;
};

static void fail(struct run *run, const struct state *s, const char *what)
{
    if (!run->failed)
        snprintf(run->text, run->text_bytes, "rank %d step %u chunk %u: %s", s->rank, s->step, s->chunk, what);
    run->failed = true;
}

static const struct pki_step *step_of(const struct run *run, const struct state *s)
{
    return &run->world->plans[s->rank]->steps[s->step];
}

static struct plan_span span_of(const struct run *run, const struct state *s, struct pki_ref ref)
{
    return plan_chunk(run->world, s->rank, ref, s->chunk);
}

static uint32_t *data_of(const struct run *run, const struct state *s)
{
    return s->data + s->chunk * run->world->c.chunk;
}

static bool may_start(const struct run *run, const struct state *s)
{
    const struct pki_plan *plan = run->world->plans[s->rank];
    const struct pki_step *step = step_of(run, s);

    if (!run->ranks[s->rank].here)
        return false;
    for (uint32_t i = 0; i < step->deps; i++) {
        const struct state *dep = &run->states[s->rank][plan->deps[step->first_dep + i]];

        if (dep->chunk < plan_needed(step, s->chunk, s->chunks, dep->chunks))
            return false;
    }
    return true;
}

/* Sums; or, where the order of operands has to show, something neither commutative nor associative. */
static uint32_t combine(const struct run *run, uint32_t a, uint32_t b)
{
    return run->world->no_sum ? (a ^ (a >> 15)) * 0x2c1b3c6du + (b ^ (b >> 12)) * 0x297a2d39u + 1 : a + b;
}

static void end_chunk(struct state *s)
{
    s->phase = IDLE;
    s->chunk++;
}

static bool advance_send(struct run *run, struct state *s)
{
    struct plan_span src = span_of(run, s, step_of(run, s)->src);
    const uint32_t *from = run->ranks[s->rank].memory + src.first;
    const struct state *peer = &run->states[step_of(run, s)->peer][s->partner];

    if (s->phase == STARTED) {
        if (!s->eager && !(peer->chunk > s->chunk || (peer->chunk == s->chunk && peer->phase != IDLE)))
            return false;
        memcpy(data_of(run, s), from, src.count * sizeof *from);
        s->readable = s->chunk + 1;
        s->phase = BEGUN;
        return true;
    }
    if (!s->eager && peer->chunk <= s->chunk)
        return false;
    if (memcmp(data_of(run, s), from, src.count * sizeof *from) != 0)
        fail(run, s, "the source changed before the send ended");
    end_chunk(s);
    return true;
}

static void rubbish(struct run *run, int rank, struct plan_span span)
{
    for (size_t i = 0; i < span.count; i++)
        run->ranks[rank].memory[span.first + i] = (uint32_t)plan_random(&run->random);
}

/* Stands for the division of an average: wrong unless it is done once, to the whole sum. */
static uint32_t finished(const struct pki_step *step, uint32_t value)
{
    return step->final ? 3 * value + 1 : value;
}

static bool advance_recv(struct run *run, struct state *s)
{
    const struct pki_step *step = step_of(run, s);
    bool reduces = step->kind == PKI_STEP_RECV_REDUCE;
    struct plan_span target = span_of(run, s, reduces ? step->landing : step->dst);
    uint32_t *memory = run->ranks[s->rank].memory;
    const struct state *peer = &run->states[step->peer][s->partner];
    const uint32_t *data = peer->data + s->chunk * run->world->c.chunk;

    if (s->phase == STARTED) {
        if (!s->direct)
            rubbish(run, s->rank, target);
        s->phase = BEGUN;
        return true;
    }
    if (s->phase == BEGUN) {
        if (peer->readable <= s->chunk)
            return false;
        if (!s->direct)
            memcpy(memory + target.first, data, target.count * sizeof *memory);
        s->phase = ARRIVED;
        return true;
    }
    if (!s->direct && memcmp(memory + target.first, data, target.count * sizeof *memory) != 0)
        fail(run, s, "the target changed before the receive ended");
    if (reduces) {
        struct plan_span src = span_of(run, s, step->src), dst = span_of(run, s, step->dst);

        for (size_t i = 0; i < dst.count; i++)
            memory[dst.first + i] =
                finished(step, combine(run, memory[src.first + i], s->direct ? data[i] : memory[target.first + i]));
    }
    end_chunk(s);
    return true;
}

static bool advance_local(struct run *run, struct state *s)
{
    const struct pki_plan *plan = run->world->plans[s->rank];
    const struct pki_step *step = step_of(run, s);
    uint32_t *memory = run->ranks[s->rank].memory;
    struct plan_span dst = span_of(run, s, step->dst);
    uint32_t *data = data_of(run, s);

    if (s->phase == STARTED) {
        uint32_t n = step->kind == PKI_STEP_COPY ? 1 : step->operands;

        for (uint32_t k = 0; k < n; k++) {
            struct pki_ref ref = step->kind == PKI_STEP_COPY ? step->src : plan->operands[step->first_operand + k];
            struct plan_span src = span_of(run, s, ref);

            for (size_t i = 0; i < dst.count; i++)
                data[i] = k == 0 ? memory[src.first + i] : combine(run, data[i], memory[src.first + i]);
        }
        for (size_t i = 0; i < dst.count; i++)
            data[i] = finished(step, data[i]);
        s->phase = BEGUN;
    } else if (s->phase == BEGUN) {
        memcpy(memory + dst.first, data, dst.count * sizeof *data);
        s->phase = ARRIVED;
    } else {
        end_chunk(s);
    }
    return true;
}

/* One small part of a step's work. False when it can do nothing now. */
static bool advance(struct run *run, struct state *s)
{
    if (s->phase == IDLE) {
        if (!may_start(run, s))
            return false;
        s->phase = STARTED;
        return true;
    }
    switch (step_of(run, s)->kind) {
    case PKI_STEP_SEND:
        return advance_send(run, s);
    case PKI_STEP_RECV:
    case PKI_STEP_RECV_REDUCE:
        return advance_recv(run, s);
    default:
        return advance_local(run, s);
    }
}

/* No rank leaves a barrier before all have come. */
static void check_barrier(struct run *run, const struct state *s)
{
    if (run->world->algorithm->coll != PKI_COLL_BARRIER || run->ranks[s->rank].left > 0)
        return;
    for (int rank = 0; rank < run->world->c.size; rank++)
        if (!run->ranks[rank].here)
            fail(run, s, "the rank has left the barrier before all have come");
}

static bool advance_and_retire(struct run *run, uint32_t index)
{
    struct state *s = run->live[index];
    bool moved = advance(run, s);

    if (s->chunk == s->chunks) {
        run->live[index] = run->live[--run->nlive];
        run->ranks[s->rank].left--;
        check_barrier(run, s);
    }
    return moved;
}

/* Give every step its turn once. True when one of them moved. */
static bool advance_any(struct run *run)
{
    for (uint32_t index = 0; index < run->nlive; index++)
        if (advance_and_retire(run, index))
            return true;
    return false;
}

static bool let_one_in(struct run *run)
{
    int first = (int)(plan_random(&run->random) % (uint64_t)run->world->c.size);

    for (int i = 0; i < run->world->c.size; i++) {
        struct member *m = &run->ranks[(first + i) % run->world->c.size];

        if (!m->here) {
            m->here = true;
            return true;
        }
    }
    return false;
}

static void schedule(struct run *run)
{
    uint32_t idle = 0;

    while (run->nlive > 0 && !run->failed) {
        uint64_t draw = plan_random(&run->random);
        uint32_t index = (uint32_t)(draw % run->nlive);

        if (run->live[index]->slow && draw >> 60 != 0)
            continue;
        idle = advance_and_retire(run, index) ? 0 : idle + 1;
        if (idle < run->nlive / 2 + 8 || run->nlive == 0)
            continue;
        if (!advance_any(run) && !let_one_in(run))
            fail(run, run->live[0], "deadlock");
        idle = 0;
    }
}

static void open_state(struct run *run, int rank, uint32_t step)
{
    struct state *s = &run->states[rank][step];
    const struct pki_step *p = &run->world->plans[rank]->steps[step];
    struct plan_span block = plan_block(run->world, rank, p->kind == PKI_STEP_SEND ? p->src : p->dst);
    uint64_t draw = plan_random(&run->random);

    *s = (struct state){ .rank = rank,
                         .step = step,
                         .chunks = plan_step_chunks(run->world, rank, step),
                         .slow = draw % 4 == 0,
                         .eager = draw >> 8 & 1,
                         .direct = p->kind == PKI_STEP_RECV_REDUCE && (draw >> 9 & 3) == 0,
                         .partner = -1 };
    s->data = malloc((block.count + 1) * sizeof *s->data);
    run->live[run->nlive++] = s;
    if (plan_step_sends(p) || plan_step_receives(p)) {
        s->partner = run->world->partners[rank][step];
        if (s->partner < 0) {
            fail(run, s, "no step of the peer meets this transfer");
        } else {
            const struct pki_step *q = &run->world->plans[p->peer]->steps[s->partner];

            if (plan_block(run->world, p->peer, q->kind == PKI_STEP_SEND ? q->src : q->dst).count != block.count)
                fail(run, s, "the transfer's ends differ in length");
        }
    }
}

static void open_rank(struct run *run, int rank)
{
    const struct plan_world *world = run->world;
    struct member *m = &run->ranks[rank];
    struct plan_span all = { 0, plan_memory_size(world, rank) };
    uint64_t schedule = run->random;

    m->memory = malloc((all.count + 1) * sizeof *m->memory);
    if (world->inputs != 0)
        run->random = world->inputs + (uint64_t)rank;
    rubbish(run, rank, all);
    if (world->inputs != 0)
        run->random = schedule;
    m->left = world->plans[rank]->nsteps;
    m->here = plan_random(&run->random) % 4 != 0;
    run->states[rank] = calloc(m->left + 1u, sizeof **run->states);
    for (uint32_t step = 0; step < m->left; step++)
        open_state(run, rank, step);
}

static void open_run(struct run *run)
{
    const struct plan_world *world = run->world;
    size_t total = 0, size = (size_t)world->c.size;

    run->ranks = calloc(size, sizeof *run->ranks);
    run->states = calloc(size, sizeof *run->states);
    for (int rank = 0; rank < world->c.size; rank++)
        total += world->plans[rank]->nsteps;
    run->live = calloc(total + 1, sizeof *run->live);
    for (int rank = 0; rank < world->c.size; rank++)
        open_rank(run, rank);
}

static void close_run(struct run *run)
{
    for (int rank = 0; rank < run->world->c.size; rank++) {
        for (uint32_t step = 0; step < run->world->plans[rank]->nsteps; step++)
            free(run->states[rank][step].data);
        free(run->states[rank]);
        free(run->ranks[rank].memory);
        free(run->ranks[rank].expected);
    }
    free(run->states);
    free(run->ranks);
    free(run->live);
}

/* Put into `target` what block `block` of IN is on rank `from`; or on all ranks together, if from is -1. */
static void expect(const struct run *run, uint32_t *target, struct plan_span to, int from, int block)
{
    int size = run->world->c.size;

    for (int rank = from < 0 ? 0 : from; rank < (from < 0 ? size : from + 1); rank++) {
        const uint32_t *source = run->ranks[rank].memory + plan_user_block(run->world, rank, PKI_BUF_IN, block).first;

        for (size_t i = 0; i < to.count; i++)
            target[to.first + i] = (from < 0 && rank > 0 ? target[to.first + i] : 0) + source[i];
    }
    for (size_t i = 0; from < 0 && size > 1 && i < to.count; i++)
        target[to.first + i] = 3 * target[to.first + i] + 1;
}

/* What the memory of a rank has to be in the end: as it was, but for OUT. From the inputs of all ranks, before the run. */
static void expect_rank(struct run *run, int rank)
{
    const struct plan_world *world = run->world;
    size_t count = plan_user_size(world, rank);
    uint32_t *e = malloc((count + 1) * sizeof *e);
    struct plan_span own = plan_user_block(world, rank, PKI_BUF_OUT, rank);

    memcpy(e, run->ranks[rank].memory, count * sizeof *e);
    run->ranks[rank].expected = e;
    if (!plan_has_out(world->algorithm, rank, world->c.root))
        return;
    switch (world->algorithm->coll) {
    case PKI_COLL_ALLREDUCE:
    case PKI_COLL_REDUCE:
    case PKI_COLL_REDUCE_SCATTER:
        expect(run, e, own, -1, rank);
        return;
    case PKI_COLL_BROADCAST:
    case PKI_COLL_SCATTER:
    case PKI_COLL_SCATTERV:
        expect(run, e, own, world->c.root, rank);
        return;
    case PKI_COLL_BARRIER:
        return;
    default: /* gathers and alltoalls: a block from every rank */
        for (int p = 0; p < world->c.size; p++)
            expect(run, e, plan_user_block(world, rank, PKI_BUF_OUT, p), p, rank);
        return;
    }
}

static void check_rank(struct run *run, int rank)
{
    const struct member *m = &run->ranks[rank];
    size_t count = plan_user_size(run->world, rank);

    for (size_t i = 0; i < count; i++) {
        if (m->memory[i] == m->expected[i])
            continue;
        snprintf(run->text, run->text_bytes, "rank %d: element %zu is wrong in the end", rank, i);
        run->failed = true;
        return;
    }
}

/* Without sums: all ranks have the same. */
static void check_agreement(struct run *run)
{
    struct plan_world *world = run->world;
    struct plan_span first = world->out[0];

    for (int rank = 1; rank < world->c.size && world->algorithm->coll == PKI_COLL_ALLREDUCE; rank++) {
        const uint32_t *own = run->ranks[rank].memory + world->out[rank].first;

        if (memcmp(own, run->ranks[0].memory + first.first, first.count * sizeof *own) != 0) {
            snprintf(run->text, run->text_bytes, "rank %d has not what rank 0 has", rank);
            run->failed = true;
        }
    }
    first = world->out[world->c.root];
    world->digest = first.count;
    for (size_t i = 0; i < first.count; i++) {
        world->digest ^= run->ranks[world->c.root].memory[first.first + i];
        world->digest = world->digest * 0x9e3779b97f4a7c15u + 1;
    }
}

bool plan_run(struct plan_world *world, uint64_t seed, char *text, size_t text_bytes)
{
    struct run run = { .world = world, .random = seed, .text = text, .text_bytes = text_bytes };

    open_run(&run);
    for (int rank = 0; rank < world->c.size && !run.failed; rank++)
        expect_rank(&run, rank);
    if (!run.failed)
        schedule(&run);
    for (int rank = 0; rank < world->c.size && !run.failed && !world->no_sum; rank++)
        check_rank(&run, rank);
    if (!run.failed && world->no_sum)
        check_agreement(&run);
    close_run(&run);
    return !run.failed;
}

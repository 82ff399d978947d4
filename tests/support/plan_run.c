/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks at once, by a random schedule: every moment some step of some rank takes one small part of its work. Sources are
 * read and targets are filled with rubbish as early and as late as the contract in plan_model.h lets an engine do it.
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

struct run {
    const struct plan_world *world;
    uint64_t random;
    uint32_t **memory;     /* [rank] */
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
    return s->data + s->chunk * run->world->chunk;
}

static bool may_start(const struct run *run, const struct state *s)
{
    const struct pki_plan *plan = run->world->plans[s->rank];
    const struct pki_step *step = step_of(run, s);

    for (uint32_t i = 0; i < step->deps; i++) {
        const struct state *dep = &run->states[s->rank][plan->deps[step->first_dep + i]];

        if (dep->chunk < plan_needed(s->chunk, s->chunks, dep->chunks))
            return false;
    }
    return true;
}

static void end_chunk(struct state *s)
{
    s->phase = IDLE;
    s->chunk++;
}

static bool advance_send(struct run *run, struct state *s)
{
    struct plan_span src = span_of(run, s, step_of(run, s)->src);
    const uint32_t *from = run->memory[s->rank] + src.first;
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
        run->memory[rank][span.first + i] = (uint32_t)plan_random(&run->random);
}

static bool advance_recv(struct run *run, struct state *s)
{
    const struct pki_step *step = step_of(run, s);
    bool reduces = step->kind == PKI_STEP_RECV_REDUCE;
    struct plan_span target = span_of(run, s, reduces ? step->landing : step->dst);
    uint32_t *memory = run->memory[s->rank];
    const struct state *peer = &run->states[step->peer][s->partner];
    const uint32_t *data = peer->data + s->chunk * run->world->chunk;

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
            memory[dst.first + i] = memory[src.first + i] + (s->direct ? data[i] : memory[target.first + i]);
    }
    end_chunk(s);
    return true;
}

static bool advance_local(struct run *run, struct state *s)
{
    const struct pki_plan *plan = run->world->plans[s->rank];
    const struct pki_step *step = step_of(run, s);
    uint32_t *memory = run->memory[s->rank];
    struct plan_span dst = span_of(run, s, step->dst);
    uint32_t *data = data_of(run, s);

    if (s->phase == STARTED) {
        uint32_t n = step->kind == PKI_STEP_COPY ? 1 : step->operands;

        memset(data, 0, dst.count * sizeof *data);
        for (uint32_t k = 0; k < n; k++) {
            struct pki_ref ref = step->kind == PKI_STEP_COPY ? step->src : plan->operands[step->first_operand + k];
            struct plan_span src = span_of(run, s, ref);

            for (size_t i = 0; i < dst.count; i++)
                data[i] += memory[src.first + i];
        }
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

static bool advance_and_retire(struct run *run, uint32_t index)
{
    struct state *s = run->live[index];
    bool moved = advance(run, s);

    if (s->chunk == s->chunks)
        run->live[index] = run->live[--run->nlive];
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

static void schedule(struct run *run)
{
    uint32_t idle = 0;

    while (run->nlive > 0 && !run->failed) {
        uint64_t draw = plan_random(&run->random);
        uint32_t index = (uint32_t)(draw % run->nlive);

        if (run->live[index]->slow && draw >> 60 != 0)
            continue;
        idle = advance_and_retire(run, index) ? 0 : idle + 1;
        if (idle < 2 * run->nlive + 16 || run->nlive == 0)
            continue;
        if (!advance_any(run))
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
        s->partner = plan_partner(run->world, rank, p);
        if (s->partner < 0) {
            fail(run, s, "no step of the peer meets this transfer");
        } else {
            const struct pki_step *q = &run->world->plans[p->peer]->steps[s->partner];

            if (plan_block(run->world, p->peer, q->kind == PKI_STEP_SEND ? q->src : q->dst).count != block.count)
                fail(run, s, "the transfer's ends differ in length");
        }
    }
}

static void open_run(struct run *run)
{
    const struct plan_world *world = run->world;
    size_t total = 0;

    run->memory = calloc((size_t)world->size, sizeof *run->memory);
    run->states = calloc((size_t)world->size, sizeof *run->states);
    for (int rank = 0; rank < world->size; rank++)
        total += world->plans[rank]->nsteps;
    run->live = calloc(total + 1, sizeof *run->live);
    for (int rank = 0; rank < world->size; rank++) {
        struct plan_span all = { 0, plan_memory_size(world, rank) };

        run->memory[rank] = malloc((all.count + 1) * sizeof **run->memory);
        rubbish(run, rank, all);
        run->states[rank] = calloc(world->plans[rank]->nsteps + 1u, sizeof **run->states);
        for (uint32_t step = 0; step < world->plans[rank]->nsteps; step++)
            open_state(run, rank, step);
    }
}

static void close_run(struct run *run)
{
    for (int rank = 0; rank < run->world->size; rank++) {
        for (uint32_t step = 0; step < run->world->plans[rank]->nsteps; step++)
            free(run->states[rank][step].data);
        free(run->states[rank]);
        free(run->memory[rank]);
    }
    free(run->states);
    free(run->memory);
    free(run->live);
}

/* All of a buffer is the same as its first block made as long as the whole. */
static struct plan_span whole(const struct plan_world *world, int rank, uint8_t buffer)
{
    uint32_t blocks = buffer == PKI_BUF_IN ? world->plans[rank]->in_blocks : world->plans[rank]->out_blocks;
    struct plan_span span = plan_block(world, rank, (struct pki_ref){ .buffer = buffer });

    for (uint32_t i = 1; i < blocks; i++)
        span.count += plan_block(world, rank, (struct pki_ref){ .buffer = buffer, .index = (uint16_t)i }).count;
    return span;
}

/* The expected content of every OUT, from the inputs; malloc'ed. */
static uint32_t *expected_out(const struct run *run)
{
    const struct plan_world *world = run->world;
    size_t out_count = whole(world, 0, PKI_BUF_OUT).count;
    uint32_t *out = calloc(out_count + 1, sizeof *out);

    for (int rank = 0; rank < world->size; rank++) {
        struct plan_span in = whole(world, rank, PKI_BUF_IN);
        uint32_t *target = world->algorithm->coll == PKI_COLL_ALLGATHER ? out + (size_t)rank * world->count : out;

        for (size_t i = 0; i < in.count; i++)
            target[i] += run->memory[rank][in.first + i];
    }
    return out;
}

static void check_out(struct run *run, const uint32_t *expected)
{
    for (int rank = 0; rank < run->world->size && !run->failed; rank++) {
        struct plan_span out = whole(run->world, rank, PKI_BUF_OUT);

        for (size_t i = 0; i < out.count && !run->failed; i++) {
            if (run->memory[rank][out.first + i] == expected[i])
                continue;
            snprintf(run->text, run->text_bytes, "rank %d: element %zu of the result is wrong", rank, i);
            run->failed = true;
        }
    }
}

bool plan_run(const struct plan_world *world, uint64_t seed, char *text, size_t text_bytes)
{
    struct run run = { .world = world, .random = seed, .text = text, .text_bytes = text_bytes };
    uint32_t *expected;

    open_run(&run);
    expected = expected_out(&run);
    if (!run.failed)
        schedule(&run);
    check_out(&run, expected);
    free(expected);
    close_run(&run);
    return !run.failed;
}

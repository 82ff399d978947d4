/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual time. A chunk of a step starts when the plan lets it (plan.h) and takes its turn at what it needs: a port to send, a port to
 * receive, a rank's core. Each of these serves one after another in the order of asking, which is the order of time.
 *
 * Operations that follow one another are rounds: a rank begins the next when its own steps of this one have ended, as in a loop. Steps
 * are numbered through all rounds. Roots take turns in them.
 */
#include "run.h"

/* Step `s` of the round that `of` is in, and back. */
static uint32_t in_round_of(const struct sim_run *run, uint32_t of, uint32_t s)
{
    return run->rounds == 1 ? s : of - of % run->world->nsteps + s;
}

static void ends_of(const struct sim_run *run, uint32_t send, uint32_t rank[2])
{
    const struct sim_step *step = sim_step_of(run, send);

    rank[0] = step->rank;
    rank[1] = sim_world_of(run, send)->steps[step->partner].rank;
}

static double chunk_of(const struct sim_run *run, const struct sim_state *s, uint32_t chunk)
{
    double rest = s->bytes - (double)chunk * run->chunk_bytes;

    return rest < run->chunk_bytes ? rest : run->chunk_bytes;
}

static bool is_eager(const struct sim_run *run, const struct sim_state *s)
{
    return s->bytes <= run->machine->eager_bytes && s->chunks == 1;
}

/* A piece of the chunk for a core that has come to it; none is left: nothing. */
static void take_piece(struct sim_run *run, struct sim_task *task)
{
    struct sim_state *send = &run->states[task->step];
    uint32_t rank[2];

    if (send->taken == send->pieces) {
        task->what = SIM_NOTHING;
        return;
    }
    ends_of(run, task->step, rank);
    task->us = sim_copy_us(&run->ports, rank, task->rank == rank[1], chunk_of(run, send, send->done) / send->pieces, send->bytes);
    send->taken++;
}

/* Let this rank's core do what comes next, if it is free. */
static void dispatch(struct sim_run *run, uint32_t rank)
{
    double delay_us;
    uint32_t id = sim_cores_next(&run->cores, rank, &delay_us);

    if (id == UINT32_MAX)
        return;
    if (run->cores.tasks[id].what == SIM_PIECE)
        take_piece(run, &run->cores.tasks[id]);
    sim_push(run, run->now + delay_us + run->cores.tasks[id].us, id, SIM_RAN);
}

/* The rank's core does something, from `from` on or when it can, for `us`; then comes `what`. */
static void compute(struct sim_run *run, uint32_t rank, double from, double us, uint32_t step, enum sim_what what)
{
    uint32_t id;

    if (!run->queued) {
        sim_push(run, sim_compute(&run->ports, rank, from, us), step, what);
        return;
    }
    id = sim_cores_task(&run->cores, (struct sim_task){ .rank = rank, .us = us, .step = step, .what = (int)what });
    if (id == UINT32_MAX) {
        run->no_memory = true;
    } else if (from > run->now) {
        sim_push(run, from, id, SIM_READY);
    } else {
        sim_cores_ready(&run->cores, id);
        dispatch(run, rank);
    }
}

/* The step that gets what send `s` sends combines it. */
static bool is_combined(const struct sim_run *run, uint32_t s)
{
    return sim_world_of(run, s)->steps[sim_step_of(run, s)->partner].plan->kind == PKI_STEP_RECV_REDUCE;
}

/* The part of a chunk that the receiver can look at only when all of it has been sent: a message of the lane. */
static double last_of(const struct sim_run *run, uint32_t send, double bytes)
{
    double message = run->machine->lane_message_bytes;
    uint32_t rank[2];

    ends_of(run, send, rank);
    return run->machine->copied_by_cpu && sim_ports_are_near(&run->ports, rank) &&
                   sim_is_in_lane(&run->ports, run->states[send].bytes) && message > 0 && bytes > message
               ? message
               : bytes;
}

/* By cores: the sender's part, and the receiver's when it has been told; or pieces by whoever comes. */
static void copy_chunk(struct sim_run *run, uint32_t s, const uint32_t rank[2], double start)
{
    struct sim_state *send = &run->states[s];
    double bytes = chunk_of(run, send, send->done);
    bool combined = is_combined(run, s); /* the receiver gets it */

    if (!sim_is_shared(&run->ports, send->bytes)) {
        compute(run, rank[0], start, sim_copy_us(&run->ports, rank, false, last_of(run, s, bytes), send->bytes), s, SIM_FIRST);
        return;
    }
    send->pieces = combined || (run->ports.even && run->ports.crowd < 2) ? 1 : 2;
    send->taken = send->ended = 0;
    if (!combined)
        compute(run, rank[0], start, 0, s, SIM_PIECE);
    compute(run, rank[1], start, 0, s, SIM_PIECE);
}

/* By ports. */
static void leave(struct sim_run *run, uint32_t s)
{
    struct sim_state *send = &run->states[s];
    uint32_t rank[2];
    double left, head;

    ends_of(run, s, rank);
    left = sim_leave(&run->ports, rank, chunk_of(run, send, send->left++), send->bytes, run->now, &head);
    sim_push(run, left, s, SIM_DONE);
    sim_push(run, head > run->now ? head : run->now, s, SIM_HEAD);
}

static void arrive(struct sim_run *run, uint32_t s)
{
    struct sim_state *send = &run->states[s];
    uint32_t rank[2];
    double there;

    ends_of(run, s, rank);
    there = sim_arrive(&run->ports, rank, chunk_of(run, send, send->come++), send->bytes, run->now);
    compute(run, rank[1], there, (sim_ports_are_near(&run->ports, rank) ? &run->machine->intra : &run->machine->inter)->recv_us,
            in_round_of(run, s, sim_step_of(run, s)->partner), SIM_HERE);
}

/* The current chunk of send `s` goes. */
static void transfer(struct sim_run *run, uint32_t s, double start)
{
    struct sim_state *send = &run->states[s];
    const struct sim_link *link;
    uint32_t rank[2];
    bool near;

    ends_of(run, s, rank);
    near = sim_ports_are_near(&run->ports, rank);
    link = near ? &run->machine->intra : &run->machine->inter;
    send->waits = false;
    if (!is_eager(run, send) && send->started == 1)
        start += link->handshake_us;
    if (near && run->machine->copied_by_cpu) {
        copy_chunk(run, s, rank, start);
        return;
    }
    if (start > run->now)
        sim_push(run, start, s, SIM_LEAVE);
    else
        leave(run, s);
}

static void work(struct sim_run *run, uint32_t s, const struct sim_work *kind, double bytes, enum sim_what what)
{
    uint32_t rank = sim_step_of(run, s)->rank;

    compute(run, rank, run->now, sim_work_us(&run->ports, rank, kind, bytes), s, what);
}

static void start_chunk(struct sim_run *run, uint32_t s)
{
    const struct sim_step *step = sim_step_of(run, s);
    struct sim_state *state = &run->states[s];
    double bytes = chunk_of(run, state, state->started++);
    uint32_t partner;

    switch (step->plan->kind) {
    case PKI_STEP_SEND:
        if (is_eager(run, state) || run->states[in_round_of(run, s, step->partner)].started >= state->started)
            transfer(run, s, run->now);
        else
            state->waits = true;
        break;
    case PKI_STEP_RECV:
    case PKI_STEP_RECV_REDUCE:
        partner = in_round_of(run, s, step->partner);
        if (state->arrived >= 0) {
            sim_push(run, state->arrived > run->now ? state->arrived : run->now, s, SIM_DONE);
            state->arrived = -1;
        } else if (run->states[partner].waits) {
            transfer(run, partner, run->now);
        }
        break;
    case PKI_STEP_COPY:
        work(run, s, &run->machine->copy, 2 * bytes, SIM_DONE);
        break;
    default:
        work(run, s, &run->machine->reduce, (step->plan->operands + 1.0) * bytes, SIM_DONE);
        break;
    }
}

/* What a dependency must have done before the next chunk of `s` may start. */
static bool satisfied(const struct sim_run *run, const struct sim_step *step, const struct sim_state *state, uint32_t dep)
{
    const struct sim_state *d = &run->states[dep];

    if (d->done == d->chunks)
        return true;
    if (step->plan->whole || state->started + 1 == state->chunks)
        return false;
    return d->done > state->started;
}

/* Receives are granted as far ahead as the plan lets them; everything else goes chunk by chunk. */
static void try_start(struct sim_run *run, uint32_t s)
{
    const struct sim_step *step = sim_step_of(run, s);
    struct sim_state *state = &run->states[s];
    const struct sim_world *world = sim_world_of(run, s);
    const uint32_t *deps = world->plans[step->rank]->deps + step->plan->first_dep;
    uint32_t first = in_round_of(run, s, world->first[step->rank]);

    while (state->started < state->chunks && (state->started == state->done || sim_is_recv(step))) {
        for (; state->dep < step->plan->deps; state->dep++)
            if (!satisfied(run, step, state, first + deps[state->dep]))
                return;
        state->dep = 0;
        start_chunk(run, s);
    }
}

static void call(struct sim_run *run, uint32_t round, uint32_t rank)
{
    if (round == run->rounds)
        return;
    run->called[round * (uint32_t)run->world->size + rank] = run->now;
    compute(run, rank, run->now, run->machine->operation_us, round * (uint32_t)run->world->size + rank, SIM_BEGIN);
}

static void returned(struct sim_run *run, uint32_t round, uint32_t rank)
{
    uint32_t which = round * (uint32_t)run->world->size + rank;

    run->took[which] = run->now - run->called[which];
    call(run, round + 1, rank);
}

/* A rank has called the operation, and the call has come to its first step. */
static void begin(struct sim_run *run, uint32_t which)
{
    uint32_t rank = which % (uint32_t)run->world->size, round = which / (uint32_t)run->world->size;
    uint32_t base = round * run->world->nsteps;
    const struct sim_world *world = sim_world_of(run, base);

    for (uint32_t s = world->first[rank]; s < world->first[rank + 1]; s++)
        try_start(run, base + s);
    if (world->first[rank] == world->first[rank + 1]) /* it has no part in it */
        returned(run, round, rank);
}

static void step_ended(struct sim_run *run, uint32_t s, uint32_t rank)
{
    uint32_t round = run->rounds == 1 ? 0 : s / run->world->nsteps;

    run->end = run->now;
    if (--run->left[round * (uint32_t)run->world->size + rank] == 0)
        returned(run, round, rank);
}

/* Of the receive's current chunk: what was not combined while the rest came. */
static double combined_late(const struct sim_run *run, uint32_t s)
{
    const struct sim_state *state = &run->states[s];

    return last_of(run, in_round_of(run, s, sim_step_of(run, s)->partner), chunk_of(run, state, state->done));
}

static void chunk_done(struct sim_run *run, uint32_t s, bool reduced)
{
    const struct sim_step *step = sim_step_of(run, s);
    struct sim_state *state = &run->states[s];

    if (step->plan->kind == PKI_STEP_RECV_REDUCE && !reduced) {
        compute(run, step->rank, run->now, sim_combine_us(&run->ports, step->rank, combined_late(run, s)), s, SIM_REDUCED);
        return;
    }
    if (run->data != NULL && !sim_data_do(run->data, step, state->done))
        run->no_memory = true;
    state->done++;
    run->result->chunks++;
    if (state->done == state->chunks)
        step_ended(run, s, step->rank);
    try_start(run, s);
    for (uint32_t w = 0; w < step->waiters; w++)
        try_start(run, in_round_of(run, s, sim_world_of(run, s)->waiters[step->first_waiter + w]));
}

static void chunk_here(struct sim_run *run, uint32_t s)
{
    if (run->states[s].started > run->states[s].done)
        chunk_done(run, s, false);
    else
        run->states[s].arrived = run->now;
}

/* The sender's core has put a chunk into the lane, or into the other's memory; the receiver's comes next. */
static void chunk_sent(struct sim_run *run, uint32_t s)
{
    struct sim_state *send = &run->states[s];
    uint32_t rank[2];
    double bytes =
        is_combined(run, s) && sim_is_in_lane(&run->ports, send->bytes) ? 0 : last_of(run, s, chunk_of(run, send, send->done));

    ends_of(run, s, rank);
    compute(run, rank[1], run->now + run->machine->intra.latency_us, sim_copy_us(&run->ports, rank, true, bytes, send->bytes),
            in_round_of(run, s, sim_step_of(run, s)->partner), SIM_HERE);
    chunk_done(run, s, false);
}

/* The receiver's core can begin with what is there, while the sender's goes on. */
static void first_sent(struct sim_run *run, uint32_t s)
{
    struct sim_state *send = &run->states[s];
    double bytes = chunk_of(run, send, send->done), rest = bytes - last_of(run, s, bytes);
    double each, us;
    uint32_t rank[2];

    if (!(rest > 0)) {
        chunk_sent(run, s);
        return;
    }
    ends_of(run, s, rank);
    each = sim_copy_us(&run->ports, rank, true, 0, send->bytes);
    us = is_combined(run, s) ? sim_combine_us(&run->ports, rank[1], rest)
                             : sim_copy_us(&run->ports, rank, true, rest, send->bytes) - each;
    compute(run, rank[1], run->now + run->machine->intra.latency_us, us, s, SIM_NOTHING);
    each = sim_copy_us(&run->ports, rank, false, 0, send->bytes);
    compute(run, rank[0], run->now, sim_copy_us(&run->ports, rank, false, rest, send->bytes) - each, s, SIM_SENT);
}

static void piece_moved(struct sim_run *run, uint32_t s, uint32_t rank)
{
    struct sim_state *send = &run->states[s];

    if (++send->ended < send->pieces) {
        if (run->ports.crowd < 2) /* else each end moves its half: who has no core now is not done for by the other */
            compute(run, rank, run->now, 0, s, SIM_PIECE);
        return;
    }
    sim_push(run, run->now + run->machine->intra.latency_us, in_round_of(run, s, sim_step_of(run, s)->partner), SIM_HERE);
    chunk_done(run, s, false);
}

static void follow(struct sim_run *run, uint32_t step, enum sim_what what, uint32_t rank)
{
    switch (what) {
    case SIM_BEGIN:
        begin(run, step);
        return;
    case SIM_DONE:
    case SIM_REDUCED:
        chunk_done(run, step, what == SIM_REDUCED);
        return;
    case SIM_LEAVE:
        leave(run, step);
        return;
    case SIM_HEAD:
        arrive(run, step);
        return;
    case SIM_FIRST:
        first_sent(run, step);
        return;
    case SIM_SENT:
        chunk_sent(run, step);
        return;
    case SIM_HERE:
        chunk_here(run, step);
        return;
    case SIM_PIECE:
        piece_moved(run, step, rank);
        return;
    case SIM_NOTHING:
    case SIM_READY:
    case SIM_RAN:
    case SIM_PACKET:
    case SIM_FREE:
    case SIM_TIMER:
        return;
    }
}

void sim_run_events(struct sim_run *run)
{
    for (uint32_t rank = 0; rank < (uint32_t)run->world->size; rank++)
        call(run, 0, rank);
    while (run->events > 0 && !run->no_memory && !sim_is_late(run)) {
        struct sim_event e = sim_pop(run);

        run->now = e.time;
        if (e.what == SIM_READY) {
            sim_cores_ready(&run->cores, e.step);
            dispatch(run, run->cores.tasks[e.step].rank);
        } else if (e.what == SIM_RAN) {
            struct sim_task task = sim_cores_end(&run->cores, e.step);

            follow(run, task.step, (enum sim_what)task.what, task.rank);
            dispatch(run, task.rank);
        } else {
            follow(run, e.step, e.what, 0);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual time. A chunk of a step starts when the plan lets it (plan.h) and takes its turn at what it needs: a port to send, a port to
 * receive, a rank's core. Each of these serves one after another in the order of asking, which is the order of time.
 */
#include "sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data.h"

struct state {
    uint32_t chunks, started, done;
    uint32_t dep;   /* those before it have done what the next chunk needs */
    double arrived; /* receive: when the eager chunk that waits for it came; negative: none */
    double bytes;   /* of the block */
    bool waits;     /* send: the current chunk waits for the receiver */
};

struct event {
    double time;
    uint64_t order; /* events of one time go as they came: results do not depend on the heap */
    uint32_t step;
    bool reduced; /* of a RECV_REDUCE: the second half */
};

struct run {
    const struct sim_machine *machine;
    const struct sim_world *world;
    const int *members;
    double chunk_bytes;
    struct sim_data *data; /* or NULL */
    struct state *states;
    struct event *heap;
    size_t events, heap_cap;
    uint64_t order;
    double *tx, *rx, *cpu, *nic_tx, *nic_rx, *shared; /* when each is free */
    double now, end;
    double limit_us; /* 0: none */
    struct sim_result *result;
    bool no_memory;
};

static bool before(const struct event *a, const struct event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void push_half(struct run *run, double time, uint32_t step, bool reduced)
{
    size_t at = run->events;

    if (run->events == run->heap_cap) {
        size_t cap = run->heap_cap * 2;
        struct event *bigger = realloc(run->heap, cap * sizeof *bigger);

        if (bigger == NULL) {
            run->no_memory = true;
            return;
        }
        run->heap = bigger;
        run->heap_cap = cap;
    }
    run->events++;
    for (struct event e = { time, run->order++, step, reduced };; at = (at - 1) / 2) {
        if (at == 0 || !before(&e, &run->heap[(at - 1) / 2])) {
            run->heap[at] = e;
            return;
        }
        run->heap[at] = run->heap[(at - 1) / 2];
    }
}

static void push(struct run *run, double time, uint32_t step)
{
    push_half(run, time, step, false);
}

static struct event pop(struct run *run)
{
    struct event first = run->heap[0], last = run->heap[--run->events];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;

        if (child + 1 < run->events && before(&run->heap[child + 1], &run->heap[child]))
            child++;
        if (child >= run->events || !before(&run->heap[child], &last))
            break;
        run->heap[at] = run->heap[child];
        at = child;
    }
    run->heap[at] = last;
    return first;
}

static int member(const struct run *run, uint32_t rank)
{
    return run->members == NULL ? (int)rank : run->members[rank];
}

static int node_of(const struct run *run, int place)
{
    return place / run->machine->ranks_per_node;
}

static double *core_of(const struct run *run, int place)
{
    int cores = run->machine->cores_per_node, local = place % run->machine->ranks_per_node;

    if (cores == 0 || cores >= run->machine->ranks_per_node)
        return &run->cpu[place];
    return &run->cpu[node_of(run, place) * run->machine->ranks_per_node + local % cores];
}

static int nic_of(const struct run *run, int place)
{
    int local = place % run->machine->ranks_per_node, nics = run->machine->nics_per_node;

    return node_of(run, place) * nics + local * nics / run->machine->ranks_per_node;
}

/* One that serves in turn: from `from` on, for `us`. Returns when that ends. */
static double serve(double *free_at, double from, double us)
{
    double start = from > *free_at ? from : *free_at;

    *free_at = start + us;
    return *free_at;
}

static double chunk_of(const struct run *run, const struct state *s, uint32_t chunk)
{
    double rest = s->bytes - (double)chunk * run->chunk_bytes;

    return rest < run->chunk_bytes ? rest : run->chunk_bytes;
}

static double bytes_us(double bytes, double gbps)
{
    return gbps > 0 ? bytes / (gbps * 1e3) : 0;
}

/* Ports and the way between two ranks. Returns when the last byte is there; *left when it has left. */
static double travel(struct run *run, int from, int to, double bytes, double start, double *left)
{
    bool near = node_of(run, from) == node_of(run, to);
    const struct sim_link *link = near ? &run->machine->intra : &run->machine->inter;
    double *tx = near ? &run->tx[from] : &run->nic_tx[nic_of(run, from)];
    double *rx = near ? &run->rx[to] : &run->nic_rx[nic_of(run, to)];
    double us = bytes_us(bytes, link->gbps), head, there;

    *(near ? &run->result->intra_bytes : &run->result->inter_bytes) += bytes;
    if (near && run->machine->copied_by_cpu) { /* the receiver's core does it, when it comes to it */
        *left = serve(core_of(run, from), start, link->send_us);
        there = serve(core_of(run, to), *left + link->latency_us, link->recv_us + us);
    } else {
        *left = serve(tx, start, link->send_us + us);
        head = *left - us + link->latency_us;
        there = serve(rx, head, us);
        there = serve(core_of(run, to), there, link->recv_us);
    }
    if (near && link->shared_gbps > 0) {
        double shared = serve(&run->shared[node_of(run, from)], start, bytes_us(bytes, link->shared_gbps));

        there = shared > there ? shared : there;
    }
    return there;
}

static bool is_eager(const struct run *run, const struct state *s)
{
    return s->bytes <= run->machine->eager_bytes && s->chunks == 1;
}

/* The current chunk of send `s` goes; if the receiver is there it gets it, else it will find it. */
static void transfer(struct run *run, uint32_t s, double start)
{
    struct state *send = &run->states[s], *recv;
    const struct sim_step *step = &run->world->steps[s], *target = &run->world->steps[step->partner];
    uint32_t chunk = send->started - 1;
    double left, there;
    int from = member(run, step->rank), to = member(run, target->rank);
    const struct sim_machine *m = run->machine;

    recv = &run->states[step->partner];
    send->waits = false;
    if (!is_eager(run, send) && chunk == 0)
        start += node_of(run, from) == node_of(run, to) ? m->intra.handshake_us : m->inter.handshake_us;
    there = travel(run, from, to, chunk_of(run, send, chunk), start, &left);
    push(run, left, s);
    if (recv->started > chunk)
        push(run, there, step->partner);
    else
        recv->arrived = there;
}

static double work(struct run *run, uint32_t rank, const struct sim_work *kind, double bytes)
{
    return serve(core_of(run, member(run, rank)), run->now, kind->step_us + bytes_us(bytes, kind->gbps));
}

static void start_chunk(struct run *run, uint32_t s)
{
    const struct sim_step *step = &run->world->steps[s];
    struct state *state = &run->states[s];
    double bytes = chunk_of(run, state, state->started++);

    switch (step->plan->kind) {
    case PKI_STEP_SEND:
        if (is_eager(run, state) || run->states[step->partner].started >= state->started)
            transfer(run, s, run->now);
        else
            state->waits = true;
        break;
    case PKI_STEP_RECV:
    case PKI_STEP_RECV_REDUCE:
        if (state->arrived >= 0) {
            push(run, state->arrived > run->now ? state->arrived : run->now, s);
            state->arrived = -1;
        } else if (run->states[step->partner].waits) {
            transfer(run, step->partner, run->now);
        }
        break;
    case PKI_STEP_COPY:
        push(run, work(run, step->rank, &run->machine->copy, 2 * bytes), s);
        break;
    default:
        push(run, work(run, step->rank, &run->machine->reduce, (step->plan->operands + 1.0) * bytes), s);
        break;
    }
}

/* What a dependency must have done before the next chunk of `s` may start. */
static bool satisfied(const struct run *run, uint32_t s, uint32_t dep)
{
    const struct state *state = &run->states[s], *d = &run->states[dep];

    if (d->done == d->chunks)
        return true;
    if (run->world->steps[s].plan->whole || state->started + 1 == state->chunks)
        return false;
    return d->done > state->started;
}

/* Receives are granted as far ahead as the plan lets them; everything else goes chunk by chunk. */
static void try_start(struct run *run, uint32_t s)
{
    const struct sim_step *step = &run->world->steps[s];
    struct state *state = &run->states[s];
    const uint32_t *deps = run->world->plans[step->rank]->deps + step->plan->first_dep;

    while (state->started < state->chunks && (state->started == state->done || sim_is_recv(step))) {
        for (; state->dep < step->plan->deps; state->dep++)
            if (!satisfied(run, s, run->world->first[step->rank] + deps[state->dep]))
                return;
        state->dep = 0;
        start_chunk(run, s);
    }
}

static void chunk_done(struct run *run, uint32_t s, bool reduced)
{
    const struct sim_step *step = &run->world->steps[s];
    struct state *state = &run->states[s];

    if (step->plan->kind == PKI_STEP_RECV_REDUCE && !reduced) {
        push_half(run, work(run, step->rank, &run->machine->reduce, 3 * chunk_of(run, state, state->done)), s, true);
        return;
    }
    if (run->data != NULL && !sim_data_do(run->data, step, state->done))
        run->no_memory = true;
    state->done++;
    run->result->chunks++;
    run->end = run->now;
    try_start(run, s);
    for (uint32_t w = 0; w < step->waiters; w++)
        try_start(run, run->world->waiters[step->first_waiter + w]);
}

static void open_states(struct run *run, const struct pki_layout *layout, double element_bytes)
{
    const struct sim_world *world = run->world;

    for (uint32_t s = 0; s < world->nsteps; s++) {
        const struct sim_step *step = &world->steps[s];
        size_t first, count;

        pki_layout_block(layout, world->plans[step->rank], sim_is_send(step) ? step->plan->src : step->plan->dst, &first, &count);
        run->states[s] = (struct state){ .arrived = -1, .bytes = (double)count * element_bytes };
        run->states[s].chunks = (uint32_t)ceil(run->states[s].bytes / run->chunk_bytes);
        if (run->states[s].chunks == 0)
            run->states[s].chunks = 1;
    }
}

static bool all_done(const struct run *run)
{
    for (uint32_t s = 0; s < run->world->nsteps; s++)
        if (run->states[s].done < run->states[s].chunks) {
            fprintf(stderr, "%s: step %u of rank %u never ended\n", run->world->algorithm->name,
                    s - run->world->first[run->world->steps[s].rank], run->world->steps[s].rank);
            return false;
        }
    return true;
}

static bool late(const struct run *run)
{
    return run->limit_us > 0 && run->now > run->limit_us;
}

static bool execute(struct run *run, const struct pki_layout *layout, double element_bytes)
{
    const struct sim_machine *m = run->machine;
    size_t places = (size_t)sim_machine_ranks(m), nics = (size_t)m->nodes * (size_t)(m->nics_per_node + 1);
    double *free_at = calloc(3 * places + 2 * nics + (size_t)m->nodes, sizeof *free_at);
    bool good = false;

    run->heap_cap = run->world->nsteps + 16u;
    run->heap = malloc(run->heap_cap * sizeof *run->heap);
    run->states = calloc(run->world->nsteps + 1u, sizeof *run->states);
    if (free_at == NULL || run->heap == NULL || run->states == NULL)
        goto out;
    run->tx = free_at;
    run->rx = run->tx + places;
    run->cpu = run->rx + places;
    run->nic_tx = run->cpu + places;
    run->nic_rx = run->nic_tx + nics;
    run->shared = run->nic_rx + nics;
    open_states(run, layout, element_bytes);
    run->now = m->operation_us;
    for (uint32_t s = 0; s < run->world->nsteps; s++)
        try_start(run, s);
    while (run->events > 0 && !run->no_memory && !late(run)) {
        struct event e = pop(run);

        run->now = e.time;
        chunk_done(run, e.step, e.reduced);
    }
    good = !run->no_memory && (late(run) || all_done(run));
    run->result->us = run->world->nsteps == 0 ? m->operation_us : late(run) ? run->now : run->end;

out:
    if (run->no_memory || free_at == NULL || run->heap == NULL || run->states == NULL)
        fprintf(stderr, "no memory for %u steps\n", run->world->nsteps);
    free(free_at);
    free(run->heap);
    free(run->states);
    return good;
}

static struct pki_layout layout_of(const struct sim_world *world, size_t count)
{
    const struct pki_shape *shape = pki_coll_shape(world->algorithm->coll);
    size_t size = (size_t)world->size;

    return (struct pki_layout){ .in_total = shape->in_many ? count * size : count,
                                .out_total = shape->out_many ? count * size : count };
}

/* Elements of the simulated time are as long as keeps counts whole: 4 bytes, as f32. */
bool sim_run(const struct sim_machine *machine, const struct sim_world *world, const int *members, double bytes, double limit_us,
             struct sim_result *result)
{
    struct pki_layout layout = layout_of(world, (size_t)(bytes / 4));
    struct run run = { .machine = machine,
                       .world = world,
                       .members = members,
                       .chunk_bytes = machine->chunk_bytes,
                       .limit_us = limit_us,
                       .result = result };

    *result = (struct sim_result){ 0 };
    return execute(&run, &layout, 4);
}

bool sim_check(const struct sim_machine *machine, const struct sim_world *world, size_t count, size_t chunk)
{
    struct pki_layout layout = layout_of(world, count);
    struct sim_result result = { 0 };
    struct sim_data data;
    struct run run = { .machine = machine, .world = world, .chunk_bytes = 4.0 * (double)chunk, .data = &data, .result = &result };
    bool good;

    if (!sim_data_make(&data, world, &layout, chunk))
        return false;
    good = execute(&run, &layout, 4) && sim_data_right(&data);
    sim_data_free(&data);
    return good;
}

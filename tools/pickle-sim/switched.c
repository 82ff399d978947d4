/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks and the aggregator are processes with an inbox each. A process that has something to do waits for a core, takes all
 * that lies in its inbox, and what it then sends leaves when it is through with that, as the programs do it. A core goes to the
 * process that has waited longest when the one that has it finds its inbox empty. A switch is an aggregator whose packets cost
 * it nothing.
 */
#include "switched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "run.h"
#include "switchml/aggregator.h"
#include "switchml/worker.h"

#define JOBS 5 /* the first is not counted */
#define NONE UINT32_MAX
#define TICK_US 0.002 /* a timer is not looked at before it has run out, in whole ns */

struct packet {
    struct pki_switchml_packet header;
    uint32_t value; /* in network byte order: one for all */
    uint32_t from, to;
    uint32_t next; /* in an inbox, or free */
};

struct process {
    uint32_t first, last; /* inbox */
    uint32_t out, out_last;
    bool running, waiting;
    double link_out, link_in; /* when the link is free: of a rank, or the aggregator's own */
    uint32_t job;             /* of a rank: those that have ended */
};

struct net {
    const struct sim_machine *machine;
    const struct sim_switched *what;
    struct sim_run events; /* of which only the heap is used */
    uint32_t units, nprocesses;
    uint64_t random;
    int cores;                 /* free ones of those that are shared */
    struct process *processes; /* [ranks + 1]: the last is the aggregator */
    struct pki_switchml_worker *workers;
    struct pki_switchml_aggregator aggregator;
    struct packet *packets;
    uint32_t npackets, free;
    uint32_t *queue, queued; /* processes that wait for a core */
    double *ended;           /* [JOBS]: when the last rank was through */
    bool wrong, no_memory;
    struct sim_switched_result *result;
};

static uint32_t expected(const struct net *n, uint32_t job, uint32_t id)
{
    const uint32_t ranks = (uint32_t)n->what->ranks;

    return ranks * (job * 7919 + id) + ranks * (ranks - 1) / 2;
}

/* ---- packets ---- */

static bool is_lost(struct net *n)
{
    n->random = n->random * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(n->random >> 33) / 2147483648.0 < n->what->loss;
}

static void put(struct net *n, uint32_t *first, uint32_t *last, uint32_t packet)
{
    n->packets[packet].next = NONE;
    if (*first == NONE)
        *first = packet;
    else
        n->packets[*last].next = packet;
    *last = packet;
}

static uint32_t take(struct net *n, uint32_t *first)
{
    const uint32_t packet = *first;

    *first = n->packets[packet].next;
    return packet;
}

static void discard(struct net *n, uint32_t packet)
{
    n->packets[packet].next = n->free;
    n->free = packet;
}

static uint32_t new_packet(struct net *n)
{
    struct packet *more;

    if (n->free != NONE)
        return take(n, &n->free);
    more = realloc(n->packets, 2 * (size_t)n->npackets * sizeof *more);
    if (more == NULL) {
        n->no_memory = true;
        return NONE;
    }
    n->packets = more;
    for (uint32_t i = n->npackets; i < 2 * n->npackets; i++)
        discard(n, i);
    n->npackets *= 2;
    return take(n, &n->free);
}

/* `from` will send it when it is through with what it does. */
static void send_later(struct net *n, uint32_t from, uint32_t to, const struct pki_switchml_packet *header, uint32_t value)
{
    uint32_t p = is_lost(n) ? NONE : new_packet(n);

    if (p == NONE)
        return;
    n->packets[p] = (struct packet){ .header = *header, .value = value, .from = from, .to = to };
    put(n, &n->processes[from].out, &n->processes[from].out_last, p);
}

static void send_packet(struct net *n, uint32_t rank, uint32_t id)
{
    struct pki_switchml_worker *w = &n->workers[rank];
    const struct pki_switchml_packet header = { .id = id, .index = pki_switchml_worker_index(w, id), .job = w->job };

    n->result->packets++;
    send_later(n, rank, (uint32_t)n->what->ranks, &header, __builtin_bswap32(n->processes[rank].job * 7919 + id + rank));
}

/* ---- what processes do ---- */

static void begin_job(struct net *n, uint32_t rank, double now)
{
    const uint32_t ahead = n->units < n->workers[rank].window ? n->units : n->workers[rank].window;

    pki_switchml_worker_begin(&n->workers[rank], n->units + (n->what->floats ? ahead : 0), ahead, (uint64_t)(1000 * now));
    for (uint32_t id = 0; id < ahead; id++)
        send_packet(n, rank, id);
}

static void take_reply(struct net *n, uint32_t rank, const struct packet *p, double now)
{
    struct pki_switchml_worker *w = &n->workers[rank];
    struct process *process = &n->processes[rank];
    uint32_t next[2];

    if (process->job == JOBS || !pki_switchml_worker_reply(w, &p->header, (uint64_t)(1000 * now), next))
        return;
    n->wrong |= __builtin_bswap32(p->value) != expected(n, process->job, p->header.id);
    for (int i = 0; i < 2; i++)
        if (next[i] != PKI_SWITCHML_NONE)
            send_packet(n, rank, next[i]);
    if (!pki_switchml_worker_done(w))
        return;
    if (n->ended[process->job] < now)
        n->ended[process->job] = now;
    if (++process->job < JOBS)
        begin_job(n, rank, now);
}

static void send_again(struct net *n, uint32_t rank, bool timers, double now)
{
    struct pki_switchml_worker *w = &n->workers[rank];
    const uint64_t ns = (uint64_t)(1000 * now);
    uint32_t id;

    while (n->processes[rank].job < JOBS &&
           (id = timers ? pki_switchml_worker_late(w, ns) : pki_switchml_worker_overtaken(w, ns)) != PKI_SWITCHML_NONE) {
        send_packet(n, rank, id);
        n->result->again++;
    }
}

static void aggregate(struct net *n, struct packet *p)
{
    const uint32_t self = (uint32_t)n->what->ranks;
    const uint32_t *sums;
    enum pki_switchml_verdict verdict = pki_switchml_aggregate(&n->aggregator, p->from, &p->header, &p->value, &sums);

    if (verdict == PKI_SWITCHML_TO_ONE)
        send_later(n, self, p->from, &p->header, __builtin_bswap32(*sums));
    for (uint32_t r = 0; r < self && verdict == PKI_SWITCHML_TO_ALL; r++)
        send_later(n, self, r, &p->header, __builtin_bswap32(*sums));
}

static double packet_bytes(const struct net *n)
{
    return (double)pki_switchml_packet_bytes(n->what->values);
}

/* On its core, of one packet in or out. */
static double cost(const struct net *n, uint32_t process)
{
    const struct sim_aggregator *a = &n->machine->aggregator;
    const bool rank = process < (uint32_t)n->what->ranks;
    const double us = rank ? a->rank_us : a->packet_us, gbps = rank ? a->rank_gbps : a->packet_gbps;

    return us + (gbps > 0 ? packet_bytes(n) / gbps / 1e3 : 0);
}

static void run_process(struct net *n, uint32_t i, double now)
{
    const struct sim_aggregator *a = &n->machine->aggregator;
    struct process *process = &n->processes[i];
    const bool rank = i < (uint32_t)n->what->ranks, timers = process->first == NONE;
    uint32_t packets = 0;
    struct packet copy;

    process->running = true;
    while (process->first != NONE && !n->no_memory) {
        uint32_t p = take(n, &process->first);

        packets++;
        copy = n->packets[p]; /* what is sent may move them */
        discard(n, p);
        if (rank)
            take_reply(n, i, &copy, now);
        else
            aggregate(n, &copy);
    }
    if (rank)
        send_again(n, i, timers, now);
    for (uint32_t p = process->out; p != NONE; p = n->packets[p].next)
        packets++;
    sim_push(&n->events, now + packets * cost(n, i) + (rank || a->shares_cores ? n->machine->switch_us : 0), i, SIM_FREE);
}

/* ---- cores and links ---- */

static bool shares(const struct net *n, uint32_t i)
{
    return n->machine->cores_per_node > 0 && (i < (uint32_t)n->what->ranks || n->machine->aggregator.shares_cores);
}

static void wants_core(struct net *n, uint32_t i, double now)
{
    struct process *process = &n->processes[i];

    if (process->running || process->waiting)
        return;
    if (!shares(n, i) || n->cores > 0) {
        n->cores -= shares(n, i);
        run_process(n, i, now);
        return;
    }
    process->waiting = true;
    n->queue[n->queued++] = i;
}

static void give_core(struct net *n, double now)
{
    uint32_t i;

    n->cores++;
    if (n->queued == 0)
        return;
    i = n->queue[0];
    n->queued--;
    for (uint32_t k = 0; k < n->queued; k++)
        n->queue[k] = n->queue[k + 1];
    n->processes[i].waiting = false;
    n->cores--;
    run_process(n, i, now);
}

/* Links serve one packet after another. Returns when this one is through. */
static double through(const struct net *n, double *link, double gbps, double now)
{
    *link = *link > now ? *link : now;
    *link += gbps > 0 ? packet_bytes(n) / gbps / 1e3 : 0;
    return *link;
}

/* What has been sent goes by the link of its rank, and by the aggregator's. */
static void leave(struct net *n, uint32_t i, double now)
{
    const struct sim_aggregator *a = &n->machine->aggregator;
    struct process *self = &n->processes[n->what->ranks];

    while (n->processes[i].out != NONE) {
        const uint32_t p = take(n, &n->processes[i].out);
        double there;

        if (&n->processes[i] == self)
            there = through(n, &n->processes[n->packets[p].to].link_in, a->gbps, through(n, &self->link_out, a->port_gbps, now));
        else
            there = through(n, &self->link_in, a->port_gbps, through(n, &n->processes[i].link_out, a->gbps, now));
        sim_push(&n->events, there + a->latency_us, p, SIM_PACKET);
    }
}

static void end_turn(struct net *n, uint32_t i, double now)
{
    struct process *process = &n->processes[i];
    uint64_t due = UINT64_MAX;

    leave(n, i, now);
    process->running = false;
    if (process->first != NONE) {
        run_process(n, i, now);
        return;
    }
    if (i < (uint32_t)n->what->ranks && process->job < JOBS)
        due = pki_switchml_worker_due(&n->workers[i]);
    if (due != UINT64_MAX)
        sim_push(&n->events, fmax((double)due / 1000, now) + TICK_US, i, SIM_TIMER);
    if (shares(n, i))
        give_core(n, now);
}

static void arrive(struct net *n, uint32_t p, double now)
{
    const uint32_t to = n->packets[p].to;

    if (is_lost(n)) {
        discard(n, p);
        return;
    }
    put(n, &n->processes[to].first, &n->processes[to].last, p);
    wants_core(n, to, now);
}

static void ring(struct net *n, uint32_t rank, double now)
{
    if (n->processes[rank].job < JOBS && (double)pki_switchml_worker_due(&n->workers[rank]) / 1000 < now)
        wants_core(n, rank, now);
}

/* ---- the whole ---- */

static bool open_net(struct net *n)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 10000000, .least_ns = 1000000, .threshold = 100, .increment = 100 };
    const uint32_t ranks = (uint32_t)n->what->ranks;
    bool good;

    n->processes = calloc(ranks + 1, sizeof *n->processes);
    n->workers = calloc(ranks, sizeof *n->workers);
    n->queue = calloc(ranks + 1, sizeof *n->queue);
    n->ended = calloc(JOBS, sizeof *n->ended);
    n->npackets = 1024;
    n->free = NONE;
    n->packets = calloc(n->npackets, sizeof *n->packets);
    n->events.heap_cap = 1024;
    n->events.heap = malloc(n->events.heap_cap * sizeof *n->events.heap);
    good = n->processes != NULL && n->workers != NULL && n->queue != NULL && n->ended != NULL && n->packets != NULL &&
           n->events.heap != NULL && pki_switchml_aggregator_init(&n->aggregator, ranks, n->what->window, 1) == PK_OK;
    for (uint32_t i = 0; i < n->npackets && good; i++)
        discard(n, i);
    for (uint32_t i = 0; i <= ranks && good; i++)
        n->processes[i].first = n->processes[i].out = NONE;
    for (uint32_t i = 0; i < ranks && good; i++)
        good = pki_switchml_worker_init(&n->workers[i], 0, n->what->window, &timing) == PK_OK;
    n->cores = n->machine->cores_per_node;
    n->random = 1;
    return good;
}

static void close_net(struct net *n)
{
    for (int i = 0; n->workers != NULL && i < n->what->ranks; i++)
        pki_switchml_worker_close(&n->workers[i]);
    pki_switchml_aggregator_close(&n->aggregator);
    free(n->processes);
    free(n->workers);
    free(n->queue);
    free(n->ended);
    free(n->packets);
    free(n->events.heap);
}

static void all_events(struct net *n)
{
    for (uint32_t i = 0; i < (uint32_t)n->what->ranks; i++)
        begin_job(n, i, 0);
    for (uint32_t i = 0; i < (uint32_t)n->what->ranks; i++)
        wants_core(n, i, 0);
    while (n->events.events > 0 && !n->no_memory && !n->events.no_memory) {
        const struct sim_event e = sim_pop(&n->events);

        if (e.what == SIM_PACKET)
            arrive(n, e.step, e.time);
        else if (e.what == SIM_FREE)
            end_turn(n, e.step, e.time);
        else
            ring(n, e.step, e.time);
    }
}

bool sim_switched_run(const struct sim_machine *machine, const struct sim_switched *what, double bytes,
                      struct sim_switched_result *result)
{
    struct net n = { .machine = machine, .what = what, .result = result };
    bool good = open_net(&n);

    *result = (struct sim_switched_result){ 0 };
    n.units = (uint32_t)ceil(bytes / 4 / what->values);
    if (good)
        all_events(&n);
    if (!good || n.no_memory || n.events.no_memory) {
        fprintf(stderr, "no memory for %u packets\n", n.units);
        good = false;
    }
    for (int i = 0; good && i < what->ranks; i++)
        n.wrong |= n.processes[i].job != JOBS;
    if (n.wrong)
        fprintf(stderr, "an allreduce by an aggregator is wrong, or does not end\n");
    if (good)
        result->us = machine->operation_us + (n.ended[JOBS - 1] - n.ended[0]) / (JOBS - 1);
    close_net(&n);
    return good && !n.wrong;
}

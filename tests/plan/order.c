/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every algorithm as queues do it, one thing after the other on each rank: all ranks come to the end, whichever of them are in place, and
 * nothing happens before what it depends on.
 */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "coll/hosts.h"
#include "coll/order.h"

#define RANKS_FEW 9 /* up to here every number of them */
#define RANKS_MAX 40

struct queue {
    struct pki_plan *plan;
    struct pki_moment *moments;
    uint32_t n, at;
    bool *opened, *sent, *moved, *ended; /* by step; moved: by the receiver */
    int *partners;                       /* by step: the peer's, -1: none */
};

static void make(struct queue *q, const struct pki_algorithm *algorithm, const struct pki_hosts *hosts, int rank, int size,
                 int root, bool in_place)
{
    *q = (struct queue){ .plan = NULL };
    cr_assert_eq(pki_plan_make(algorithm, hosts, rank, size, root, in_place, &q->plan), PK_OK);
    cr_assert_eq(pki_plan_order(algorithm, q->plan, &q->moments, &q->n), PK_OK);
    q->opened = calloc(q->plan->nsteps + 1, 1);
    q->moved = calloc(q->plan->nsteps + 1, 1);
    q->sent = calloc(q->plan->nsteps + 1, 1);
    q->ended = calloc(q->plan->nsteps + 1, 1);
    q->partners = calloc(q->plan->nsteps + 1, sizeof *q->partners);
}

static void drop(struct queue *q)
{
    pki_plan_free(q->plan);
    free(q->moments);
    free(q->opened);
    free(q->moved);
    free(q->sent);
    free(q->ended);
    free(q->partners);
}

static int find_partner(const struct queue *queues, int rank, uint32_t step)
{
    const struct pki_step *mine = &queues[rank].plan->steps[step];
    const struct pki_plan *theirs = queues[mine->peer].plan;

    for (uint32_t i = 0; i < theirs->nsteps; i++) {
        const struct pki_step *s = &theirs->steps[i];
        bool is_send = s->kind == PKI_STEP_SEND, is_recv = s->kind == PKI_STEP_RECV || s->kind == PKI_STEP_RECV_REDUCE;

        if (s->peer == rank && s->pair_index == mine->pair_index && (mine->kind == PKI_STEP_SEND ? is_recv : is_send))
            return (int)i;
    }
    return -1;
}

static void find_partners(struct queue *queues, int rank)
{
    struct queue *q = &queues[rank];

    for (uint32_t i = 0; i < q->plan->nsteps; i++) {
        enum pki_step_kind kind = q->plan->steps[i].kind;
        bool transfers = kind == PKI_STEP_SEND || kind == PKI_STEP_RECV || kind == PKI_STEP_RECV_REDUCE;

        q->partners[i] = transfers ? find_partner(queues, rank, i) : -1;
    }
}

static void expect_deps(const struct queue *q, uint32_t step)
{
    const struct pki_step *s = &q->plan->steps[step];

    for (uint32_t d = 0; d < s->deps; d++)
        cr_assert(q->ended[q->plan->deps[s->first_dep + d]], "step %u comes before step %u, on which it depends", step,
                  q->plan->deps[s->first_dep + d]);
}

/* Of each pair one rank may have called first, as `firsts` decides: the other one moves all that goes between them. */
static bool is_pulled(int from, int to, uint32_t firsts)
{
    int low = from < to ? from : to, high = from < to ? to : from;
    unsigned who = (firsts >> ((unsigned)(5 * low + 3 * high) % 31) & 3) % 3; /* 0: they have met */

    return who != 0 && (who == 1) == (from < to);
}

/* Do the next moment of a rank, if what it waits for has happened. */
static bool advance(struct queue *queues, int rank, uint32_t firsts)
{
    struct queue *q = &queues[rank];
    const struct pki_moment *m = &q->moments[q->at];
    const struct pki_step *step;
    int other;

    if (q->at == q->n)
        return false;
    step = &q->plan->steps[m->step];
    if (m->kind != PKI_MOMENT_DONE && m->kind != PKI_MOMENT_FREE)
        expect_deps(q, m->step);
    switch (m->kind) {
    case PKI_MOMENT_OPEN:
        q->opened[m->step] = true;
        break;
    case PKI_MOMENT_SEND:
        other = q->partners[m->step];
        cr_assert(other >= 0);
        if (!is_pulled(rank, step->peer, firsts) && !queues[step->peer].opened[other])
            return false;
        q->sent[m->step] = true;
        break;
    case PKI_MOMENT_FREE:
        other = q->partners[m->step];
        cr_assert(q->sent[m->step]);
        if (is_pulled(rank, step->peer, firsts) && !queues[step->peer].moved[other])
            return false;
        q->ended[m->step] = true;
        break;
    case PKI_MOMENT_DONE:
        other = q->partners[m->step];
        cr_assert(other >= 0 && q->opened[m->step]);
        if (!queues[step->peer].sent[other])
            return false;
        q->moved[m->step] = true;
        q->ended[m->step] = step->kind == PKI_STEP_RECV;
        break;
    case PKI_MOMENT_WORK:
        q->ended[m->step] = true;
        break;
    }
    q->at++;
    return true;
}

static void run(const struct pki_algorithm *algorithm, const struct pki_hosts *hosts, int size, int root, uint32_t places,
                uint32_t firsts)
{
    struct queue queues[RANKS_MAX];
    bool moved = true;

    for (int r = 0; r < size; r++)
        make(&queues[r], algorithm, hosts, r, size, root, (places >> r % 32 & 1) != 0);
    for (int r = 0; r < size; r++)
        find_partners(queues, r);
    while (moved) {
        moved = false;
        for (int r = 0; r < size; r++)
            while (advance(queues, r, firsts))
                moved = true;
    }
    for (int r = 0; r < size; r++) {
        cr_assert_eq(queues[r].at, queues[r].n, "%d, %s of %d ranks, places %x, firsts %x: rank %d stands at %u of %u",
                     (int)algorithm->coll, algorithm->name, size, places, firsts, r, queues[r].at, queues[r].n);
        for (uint32_t i = 0; i < queues[r].plan->nsteps; i++)
            cr_assert(queues[r].ended[i]);
        drop(&queues[r]);
    }
}

static void run_all(const struct pki_algorithm *algorithm, const struct pki_hosts *hosts, int size, int root)
{
    static const uint32_t places[] = { 0, UINT32_MAX, 0x155, 0x0aa, 0x1, 0x1e, 0x99 };

    static const uint32_t firsts[] = { UINT32_MAX, 0x55555555, 0xaaaaaaaa, 0x1b2d4e87, 0x93c6a5d1 };

    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        run(algorithm, hosts, size, root, places[p], 0);
        run(algorithm, hosts, size, root, places[p], firsts[p % (sizeof firsts / sizeof firsts[0])]);
    }
}

static void run_few(const struct pki_hosts *hosts, int size)
{
    for (int a = 0; pki_algorithms[a] != NULL; a++)
        for (int root = 0; root < (pki_algorithms[a]->build_rooted != NULL ? size : 1); root++)
            run_all(pki_algorithms[a], hosts, size, root);
}

Test(order, no_queue_stands)
{
    for (int size = 1; size <= RANKS_FEW; size++)
        run_few(NULL, size);
}

Test(order, no_queue_stands_across_hosts)
{
    static const int maps[][RANKS_FEW] = { { 0, 0, 0, 1, 1, 1, 2, 2, 2 },
                                           { 0, 1, 2, 0, 1, 2, 0, 1, 0 },
                                           { 0, 1, 2, 3, 4, 5, 6, 7, 8 } };

    for (int m = 0; m < 3; m++)
        for (int size = 2 + m % 2; size <= RANKS_FEW; size += m == 0 ? 1 : 2) {
            struct pki_hosts *hosts;

            cr_assert_eq(pki_hosts_make(maps[m], size, &hosts), PK_OK);
            run_few(hosts, size);
            pki_hosts_free(hosts);
        }
}

/* Each rank works out the order from the plans of all, so this takes the time of size * size plans. */
Test(order, no_queue_stands_among_many_ranks)
{
    for (int a = 0; pki_algorithms[a] != NULL; a++) {
        run_all(pki_algorithms[a], NULL, 17, pki_algorithms[a]->build_rooted != NULL ? 5 : 0);
        run(pki_algorithms[a], NULL, RANKS_MAX, pki_algorithms[a]->build_rooted != NULL ? 21 : 0, 0x2d, 0x1b2d4e87);
    }
}

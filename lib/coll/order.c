/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every transfer gets two levels from the plans of all ranks: `open`, when its receiver's target is free at the latest, and
 * `send`, above what the sender waits for. A send is one level above its receive's opening and above all that it depends on;
 * what depends on a receive or on a send is one level above that send. Local work adds none. In a plan in rounds a send is above
 * the one before it, and a receive opens when the one before it, from another rank, has come. Whether a rank is in place may
 * change what its steps wait for, and peers do not know: so both of its plans count. A queue that goes by levels, on one level
 * sends first, then arrivals, then what sends leave free, then the rest in the plan's order, waits only for what stands earlier
 * in an order that all ranks share.
 */
#include "coll/order.h"

#include <stdlib.h>

#include "util/log.h"

struct world {
    int size;
    struct pki_plan **plans; /* [2 * size]: of each rank apart and in place */
    uint32_t *first;         /* [size * size + 1]: transfers from a to b are first[a * size + b] and on */
    uint32_t *open, *send;   /* levels of each transfer */
    uint32_t *ends;          /* scratch: when each step of a plan has ended */
};

static void world_free(struct world *w)
{
    for (int i = 0; w->plans != NULL && i < 2 * w->size; i++)
        pki_plan_free(w->plans[i]);
    free(w->plans);
    free(w->first);
    free(w->open);
    free(w->send);
    free(w->ends);
}

static pk_result_t make_plans(struct world *w, const struct pki_algorithm *algorithm, const struct pki_plan *mine)
{
    pk_result_t result = PK_OK;

    for (int i = 0; i < 2 * w->size && result == PK_OK; i++)
        result = pki_plan_make(algorithm, mine->hosts, i / 2, w->size, mine->root, i % 2 != 0, &w->plans[i]);
    return result;
}

static uint32_t number_transfers(struct world *w)
{
    uint32_t n = 0;

    for (int a = 0; a < w->size; a++)
        for (int b = 0; b < w->size; b++) {
            w->first[a * w->size + b] = n;
            for (uint32_t i = 0; i < w->plans[2 * a]->nsteps; i++)
                n += w->plans[2 * a]->steps[i].kind == PKI_STEP_SEND && w->plans[2 * a]->steps[i].peer == b;
        }
    return w->first[w->size * w->size] = n;
}

static uint32_t transfer_of(const struct world *w, const struct pki_plan *plan, const struct pki_step *step)
{
    int from = step->kind == PKI_STEP_SEND ? plan->rank : step->peer;
    int to = step->kind == PKI_STEP_SEND ? step->peer : plan->rank;

    return w->first[from * w->size + to] + step->pair_index;
}

static bool is_transfer(const struct pki_step *step)
{
    return step->kind == PKI_STEP_SEND || step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE;
}

/* The level at which all that step i depends on has ended. */
static uint32_t base_of(const struct world *w, const struct pki_plan *plan, uint32_t i)
{
    const struct pki_step *step = &plan->steps[i];
    uint32_t base = 0;

    for (uint32_t d = 0; d < step->deps; d++) {
        uint32_t end = w->ends[plan->deps[step->first_dep + d]];

        base = end > base ? end : base;
    }
    return base;
}

static bool raise_to(uint32_t *level, uint32_t least)
{
    if (*level >= least)
        return false;
    *level = least;
    return true;
}

/* Where a plan in rounds has come to. */
struct rounds {
    uint32_t sent, came; /* levels at which the last send and receive have ended */
    int from;            /* whom that was from */
};

/* Raise the levels of the plan's transfers to what its dependencies ask for. True: some were raised. */
static bool relax(struct world *w, const struct pki_plan *plan)
{
    bool raised = false;
    struct rounds rounds = { .from = -1 };

    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct pki_step *step = &plan->steps[i];
        uint32_t base = base_of(w, plan, i), t;

        w->ends[i] = base;
        if (!is_transfer(step))
            continue;
        t = transfer_of(w, plan, step);
        if (step->kind == PKI_STEP_SEND) {
            if (plan->ordered && rounds.sent > base)
                base = rounds.sent;
            raised |= raise_to(&w->send[t], (base > w->open[t] ? base : w->open[t]) + 1);
            w->ends[i] = rounds.sent = w->send[t] + 1;
        } else {
            if (plan->ordered && rounds.from != step->peer && rounds.came > base)
                base = rounds.came;
            raised |= raise_to(&w->open[t], base);
            w->ends[i] = rounds.came = (base > w->send[t] ? base : w->send[t]) + 1;
            rounds.from = step->peer;
        }
    }
    return raised;
}

static uint32_t longest_plan(const struct world *w, const struct pki_plan *plan)
{
    uint32_t most = plan->nsteps;

    for (int i = 0; i < 2 * w->size; i++)
        most = w->plans[i]->nsteps > most ? w->plans[i]->nsteps : most;
    return most;
}

static pk_result_t set_levels(struct world *w, uint32_t transfers)
{
    bool raised = true;

    for (uint32_t round = 0; raised; round++) {
        if (round > 2 * transfers + 2)
            return pki_fail(PK_ERR_INTERNAL, NULL, "%s: steps of %d ranks wait for one another", w->plans[0]->algorithm, w->size);
        raised = false;
        for (int i = 0; i < 2 * w->size; i++)
            raised |= relax(w, w->plans[i]);
    }
    return PK_OK;
}

static uint32_t list_moments(struct world *w, const struct pki_plan *plan, struct pki_moment *out)
{
    uint32_t n = 0;

    (void)relax(w, plan); /* ends[] are this plan's now */
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct pki_step *step = &plan->steps[i];

        if (step->kind == PKI_STEP_SEND) {
            out[n++] = (struct pki_moment){ PKI_MOMENT_SEND, i, w->ends[i] - 1 };
            out[n++] = (struct pki_moment){ PKI_MOMENT_FREE, i, w->ends[i] };
            continue;
        }
        if (is_transfer(step)) {
            out[n++] = (struct pki_moment){ PKI_MOMENT_OPEN, i, w->open[transfer_of(w, plan, step)] };
            out[n++] = (struct pki_moment){ PKI_MOMENT_DONE, i, w->ends[i] };
        }
        if (step->kind != PKI_STEP_RECV)
            out[n++] = (struct pki_moment){ PKI_MOMENT_WORK, i, w->ends[i] };
    }
    return n;
}

static int rank_of(const struct pki_moment *m)
{
    return m->kind < PKI_MOMENT_OPEN ? (int)m->kind : (int)PKI_MOMENT_OPEN;
}

static int compare(const void *left, const void *right)
{
    const struct pki_moment *a = left, *b = right;

    if (a->level != b->level)
        return a->level < b->level ? -1 : 1;
    if (rank_of(a) != rank_of(b))
        return rank_of(a) - rank_of(b);
    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    return (int)a->kind - (int)b->kind;
}

static pk_result_t no_memory(const struct pki_plan *plan)
{
    return pki_fail(PK_ERR_MEMORY, NULL, "no memory to put %u steps of %d ranks in order", plan->nsteps, plan->size);
}

pk_result_t pki_plan_order(const struct pki_algorithm *algorithm, const struct pki_plan *plan, struct pki_moment **moments,
                           uint32_t *n)
{
    size_t size = (size_t)plan->size;
    struct world w = { .size = plan->size,
                       .plans = calloc(2 * size, sizeof *w.plans),
                       .first = calloc(size * size + 1, sizeof *w.first) };
    struct pki_moment *list = calloc(3 * (size_t)plan->nsteps + 1, sizeof *list);
    pk_result_t result;
    uint32_t transfers;

    if (list == NULL || w.plans == NULL || w.first == NULL) {
        result = no_memory(plan);
        goto out;
    }
    result = make_plans(&w, algorithm, plan);
    if (result != PK_OK)
        goto out;
    transfers = number_transfers(&w);
    w.open = calloc((size_t)transfers + 1, sizeof *w.open);
    w.send = calloc((size_t)transfers + 1, sizeof *w.send);
    w.ends = calloc((size_t)longest_plan(&w, plan) + 1, sizeof *w.ends);
    result = w.open == NULL || w.send == NULL || w.ends == NULL ? no_memory(plan) : set_levels(&w, transfers);
    if (result != PK_OK)
        goto out;
    *n = list_moments(&w, plan, list);
    qsort(list, *n, sizeof *list, compare);
    *moments = list;
    list = NULL;
out:
    free(list);
    world_free(&w);
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pki_serve on one CPU thread: units are taken as a GPU's CTAs take them, for the threads of other launches take some of the same orders. Written from
 * kernels.h alone.
 */
#include "fc_kernels.h"

struct server {
    const struct fc_launch *launch;
    const struct pki_serve_args *args;
    struct pki_serve_board *board;
    struct pki_serve_state *states;
    const void *abort_word;
    const void *words[PKI_WAIT_WORDS_MAX];
};

static _Atomic uint64_t *next_of(struct server *s, uint32_t lane)
{
    return (_Atomic uint64_t *)(void *)&s->states[lane].next;
}

static uint32_t heads_of(const struct server *s, uint32_t lane)
{
    return fc_load32(&s->board->heads[lane]);
}

static bool server_open(const struct fc_launch *l, struct server *s)
{
    *s = (struct server){ .launch = l, .args = l->params[0] };
    s->board = fc_ptr(l, s->args->board, sizeof *s->board);
    s->states = fc_ptr(l, s->args->states, PKI_SERVE_LANES * sizeof *s->states);
    s->abort_word = s->args->abort_flag != 0 ? fc_ptr(l, s->args->abort_flag, 4) : NULL;
    if (s->board == NULL || s->states == NULL || (s->abort_word == NULL && s->args->abort_flag != 0))
        return false;
    for (uint32_t i = 0; i < s->args->wait.n && i < PKI_WAIT_WORDS_MAX; i++) {
        s->words[i] = fc_ptr(l, s->args->wait.words[i].address, 4);
        if (s->words[i] == NULL)
            return false;
    }
    return true;
}

/* What the word tells of ended under the lock. (The two sides see the word at two addresses, of which thread sanitizer knows nothing.) */
static void meet(void)
{
    fc_lock();
    fc_unlock();
}

static void copy_unit(const struct server *s, const struct pki_reduce_args *unit)
{
    const void *src = fc_ptr(s->launch, unit->srcs[0], unit->count);
    void *dst = fc_ptr(s->launch, unit->dst, unit->count);

    if (src != NULL && dst != NULL)
        fc_bytes_copy(dst, src, unit->count);
}

static void do_unit(const struct server *s, const struct pki_order *order, uint32_t number)
{
    struct pki_reduce_args unit = order->work;
    uint64_t first = number * order->unit, left = order->work.count - first;
    void *params[1];
    struct fc_launch part = { .ctx = s->launch->ctx, .params = params, .grid = s->launch->grid, .block = s->launch->block };

    unit.count = left < order->unit ? left : order->unit;
    unit.dst += first * order->width;
    for (uint32_t i = 0; i < PKI_REDUCE_SOURCES; i++)
        unit.srcs[i] += first * order->width;
    if (order->kind == PKI_ORDER_COPY) {
        copy_unit(s, &unit);
    } else if (order->kind == PKI_ORDER_REDUCE) {
        params[0] = &unit;
        fc_run_reduce(&part, (pk_dtype_t)order->type);
    } else if (order->kind == PKI_ORDER_SCALE) {
        struct pki_scale_args args = { .dst = unit.dst,
                                       .src = unit.srcs[0],
                                       .factor = order->factor,
                                       .value = order->value,
                                       .count = unit.count,
                                       .type = order->type };

        params[0] = &args;
        fc_run_scale(&part);
    } else if (order->kind != PKI_ORDER_WORDS) {
        fc_fault("pki_serve: an order of an unknown kind", order->kind, 1);
    }
}

static void end_unit(struct server *s, uint32_t lane, uint32_t number, const struct pki_order *order)
{
    _Atomic uint32_t *finished = (_Atomic uint32_t *)&s->states[lane].finished;

    meet();
    if (atomic_fetch_add(finished, 1) + 1 != order->units)
        return;
    atomic_store(finished, 0);
    for (uint32_t i = 0; i < order->ndone && i < PKI_ORDER_DONE; i++) {
        void *word = fc_ptr(s->launch, order->done[i], 4);

        if (word != NULL)
            fc_store32(word, order->done_value[i]);
    }
    fc_store32(&s->board->ended[lane], number + 1);
    atomic_store(next_of(s, lane), (uint64_t)(number + 1) << 32);
}

/* A unit of the lane's order, if there is one left. */
static bool serve_lane(struct server *s, uint32_t lane)
{
    uint64_t now = atomic_load(next_of(s, lane));
    uint32_t number = (uint32_t)(now >> 32);
    struct pki_order order;

    if (heads_of(s, lane) == number)
        return false;
    meet();
    order = s->board->orders[lane][number % PKI_SERVE_ORDERS];
    if ((uint32_t)now >= order.units || !atomic_compare_exchange_strong(next_of(s, lane), &now, now + 1))
        return false;
    do_unit(s, &order, (uint32_t)now);
    end_unit(s, lane, number, &order);
    return true;
}

static bool is_empty(struct server *s)
{
    bool empty = true;

    for (uint32_t lane = 0; lane < PKI_SERVE_LANES; lane++)
        empty = empty && (uint32_t)(atomic_load(next_of(s, lane)) >> 32) == heads_of(s, lane);
    return empty;
}

static bool leaves(struct server *s)
{
    bool shut = false;

    for (uint32_t i = 0; i < s->args->wait.n && i < PKI_WAIT_WORDS_MAX; i++) {
        const struct pki_wait_word *w = &s->args->wait.words[i];

        shut = shut ||
               !fc_word_open(fc_load32(s->words[i]), w->value, w->equal ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ, 4);
    }
    if (s->abort_word != NULL && fc_load32(s->abort_word) != 0)
        return is_empty(s);
    return !shut;
}

void fc_run_serve(const struct fc_launch *l)
{
    struct server s;
    unsigned round = 0;

    if (!server_open(l, &s) || (s.abort_word != NULL && fc_load32(s.abort_word) != 0))
        return;
    for (;;) {
        bool any = false;

        for (uint32_t lane = 0; lane < PKI_SERVE_LANES; lane++)
            any = serve_lane(&s, lane) || any;
        if (any) {
            round = 0;
            continue;
        }
        if (leaves(&s))
            return;
        fc_relax(&round);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduces whose sums an aggregator makes: one step, which is polled. They go one after the other, in the order of their
 * numbers, for that order is the same on all ranks. What is left when the packets have come is done by the algorithm that there
 * would be without an aggregator, as operations within the operation, each under a number of its own:
 *
 * - Floats that no scale fits, all ranks know alike which: their units are summed so.
 * - With PK_SWITCHML_FALLBACK an allreduce ends only when all ranks have told one another that they have all sums. Where
 *   one has not, for the aggregator is lost, they find out who has the sums of which units. A unit that nobody has is still
 *   in every rank's buffer, and one that somebody has is given by that rank, the others adding zeros. Then the whole buffer
 *   is summed. From the next allreduce on none uses the aggregator.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/plan/plan.h"
#include "switchml/switchml.h"
#include "util/dtype.h"

#define SILENT_NS PKI_NS_PER_S /* no packet for so long: the aggregator stands still */

void pki_engine_set_aggregator(struct pki_engine *e, struct pki_switchml *switchml, bool fallback)
{
    e->plans.aggregator.switchml = switchml;
    e->plans.aggregator.fallback = fallback;
}

bool pki_engine_lost_aggregator(const struct pki_engine *e)
{
    return atomic_load_explicit(&e->plans.aggregator.lost, memory_order_relaxed) != 0;
}

bool pki_switched_is_busy(const struct pki_engine *e)
{
    return atomic_load_explicit(&e->plans.aggregator.running, memory_order_relaxed) > 0;
}

int pki_switched_fd(const struct pki_engine *e)
{
    return pki_switched_is_busy(e) ? pki_switchml_fd(e->plans.aggregator.switchml) : -1;
}

const char *pki_switched_name(const struct pki_engine *e)
{
    return pki_switchml_name(e->plans.aggregator.switchml);
}

bool pki_switched_waits(const struct pki_task *task)
{
    return task->switched.begun && task->switched.part == PKI_SWITCHED_PACKETS;
}

bool pki_switched_is_turn(const struct pki_task *task)
{
    const struct pki_engine *e = task->engine;

    for (const struct pki_list *n = e->tasks.all.next; n != &e->tasks.all; n = n->next) {
        const struct pki_task *other = pki_container_of(n, struct pki_task, node);

        if (pki_task_is_switched(other) && other->number < task->number)
            return false;
    }
    return true;
}

static pk_result_t fail(struct pki_task *task, pk_result_t result)
{
    struct pki_where where = pki_engine_where(task->engine, -1, task);
    const pk_error_info_t *last = pki_error_get();

    (void)pki_fail_again(result, last->sys_errno, &where, "%s", last->text);
    pki_engine_poison(task->engine, result, true);
    return result;
}

/* ---- operations within the operation ---- */

/* By the ordinary algorithm. In host memory: the plan of such an allreduce runs there. */
static struct pki_request request_within(const struct pki_task *task, const void *in, void *out, size_t count, pk_dtype_t dtype,
                                         pk_op_t op)
{
    struct pki_request r = task->request;

    r.algorithm = r.instead;
    r.instead = NULL;
    r.in = in;
    r.out = out;
    r.in_count = r.out_count = r.count = count;
    r.layout = (struct pki_layout){ .in_total = count, .out_total = count };
    r.dtype = dtype;
    r.op = op;
    r.in_place = in == out;
    r.classified = true;
    r.scaled = false; /* they have been multiplied */
    r.kinds[0] = r.kinds[1] = PKI_MEM_HOST;
    r.stream = PK_BLOCKING; /* this task waits for it */
    return r;
}

static pk_result_t begin_within(struct pki_task *task, enum pki_switched_part part, const struct pki_request *r)
{
    struct pki_engine *e = task->engine;
    struct pki_task *rest;
    pk_result_t result = pki_task_make(e, r, &rest);

    if (result != PK_OK)
        return result;
    rest->number = ++task->switched.number;
    rest->deadline_ns = task->deadline_ns;
    e->colls.seen[rest->number % PKI_SEEN_MAX] = (struct pki_coll_seen){ rest->number, rest->sig, r->count };
    task->switched.part = part;
    task->switched.rest = rest;
    pki_list_push(&e->tasks.all, &rest->node);
    (void)pki_task_start(rest);
    return PK_OK;
}

static pk_result_t take_memory(struct pki_task *task, size_t count)
{
    task->switched.memory = malloc(4 * count);
    if (task->switched.memory == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %zu numbers of an allreduce by an aggregator", count);
    return PK_OK;
}

static void end_within(struct pki_task *task)
{
    if (task->switched.rest != NULL)
        pki_task_free(task->switched.rest);
    free(task->switched.memory);
    task->switched.rest = NULL;
    task->switched.memory = NULL;
}

static pk_result_t begin_agree(struct pki_task *task, bool complete)
{
    int32_t *word = &task->switched.complete;
    struct pki_request r = request_within(task, word, word, 1, PK_INT32, PK_MIN);

    *word = complete;
    return begin_within(task, PKI_SWITCHED_AGREE, &r);
}

static pk_result_t begin_unfit(struct pki_task *task)
{
    struct pki_switchml *s = task->engine->plans.aggregator.switchml;
    const size_t count = pki_switchml_unfit(s) * pki_switchml_unit(s);
    pk_result_t result = take_memory(task, count);
    struct pki_request r;

    if (result != PK_OK)
        return result;
    pki_switchml_gather(s, task->switched.memory);
    r = request_within(task, task->switched.memory, task->switched.memory, count, PK_F32, PK_SUM);
    return begin_within(task, PKI_SWITCHED_UNFIT, &r);
}

static pk_result_t begin_owners(struct pki_task *task)
{
    struct pki_switchml *s = task->engine->plans.aggregator.switchml;
    const size_t count = pki_switchml_units(s);
    pk_result_t result = take_memory(task, count);
    struct pki_request r;

    if (result != PK_OK)
        return result;
    pki_switchml_owners(s, task->engine->config.rank, task->switched.memory);
    r = request_within(task, task->switched.memory, task->switched.memory, count, PK_INT32, PK_MIN);
    return begin_within(task, PKI_SWITCHED_OWNERS, &r);
}

static pk_result_t begin_all(struct pki_task *task, const void *in)
{
    const struct pki_request *own = &task->request;
    struct pki_request r = request_within(task, in, own->out, own->in_count, own->dtype, PK_SUM);

    return begin_within(task, PKI_SWITCHED_ALL, &r);
}

/* ---- without the aggregator ---- */

static void tell(struct pki_engine *e)
{
    const struct pki_msg msg = { .kind = PKI_MSG_UNSWITCHED, .op = e->plans.aggregator.lost };

    for (int i = 0; i < e->config.size && e->plans.aggregator.untold != 0; i++)
        if ((e->plans.aggregator.untold >> i & 1) != 0 && pki_ctrl_send(&e->peers[i], &msg, NULL, e) == PK_OK)
            e->plans.aggregator.untold &= ~(1u << i);
}

static void give_up(struct pki_task *task, const char *why)
{
    struct pki_engine *e = task->engine;
    struct pki_where where = pki_engine_where(e, -1, task);

    pki_log(PKI_LOG_WARN, &where, "%s; PK_SWITCHML_FALLBACK: this and later allreduces go without it", why);
    e->plans.aggregator.lost = task->number;
    e->plans.aggregator.untold = (uint32_t)((1ull << e->config.size) - 1) & ~(1u << e->config.rank);
    tell(e);
}

/* Of a rank that is in the allreduce which comes next here, or in the same one: those before it all ranks have ended. */
void pki_switched_message(struct pki_engine *e, const struct pki_msg *msg)
{
    if (e->plans.aggregator.switchml != NULL && e->plans.aggregator.lost == 0)
        e->plans.aggregator.lost = msg->op;
}

static bool is_lost(const struct pki_task *task)
{
    return task->engine->plans.aggregator.lost != 0 && task->number >= task->engine->plans.aggregator.lost;
}

bool pki_switched_gives_up(struct pki_task *task, uint64_t now, uint64_t span)
{
    const struct pki_engine *e = task->engine;
    /* One call's shorter deadline is over before an aggregator is given up for all calls. */
    const uint64_t usual = e->config.timeout_ms == 0 ? UINT64_MAX : e->config.timeout_ms * PKI_NS_PER_MS;
    const uint64_t most = usual > span ? usual : span, silence = most / 8 < SILENT_NS ? most / 8 : SILENT_NS;
    const bool late = most == span && now >= task->deadline_ns - span / 4;
    char why[320];

    if (!e->plans.aggregator.fallback || !pki_switched_waits(task) || is_lost(task) ||
        (pki_switchml_idle_ns(e->plans.aggregator.switchml, now) < silence && !late))
        return false;
    snprintf(why, sizeof why, "no rank is missing, and after %llu ms %.200s has not sent all sums",
             (unsigned long long)((now - task->begun_ns) / PKI_NS_PER_MS), pki_switched_name(e));
    give_up(task, why);
    return true;
}

/* All ranks know now, whether they have heard the others or not. */
static pk_result_t sum_without(struct pki_task *task)
{
    struct pki_aggregator *a = &task->engine->plans.aggregator;

    a->lost = task->number;
    pki_switchml_leave(a->switchml);
    return begin_owners(task);
}

/* ---- going on ---- */

static pk_result_t begin(struct pki_task *task)
{
    const struct pki_request *r = &task->request;
    struct pki_engine *e = task->engine;

    atomic_fetch_add_explicit(&e->plans.aggregator.running, 1, memory_order_relaxed);
    task->switched.begun = true;
    task->switched.number = task->number;
    if (is_lost(task) && task->number > e->plans.aggregator.lost && r->in_count > 0)
        return begin_all(task, r->in);
    return pki_switchml_begin(e->plans.aggregator.switchml, r->in, r->out, r->in_count, r->dtype, task->number, task->sig);
}

static void look(struct pki_task *task)
{
    task->run.more_work = true; /* so it is polled */
}

/* Threads of the session may be at the buffers. */
static void stop(struct pki_task *task)
{
    if (task->switched.begun)
        pki_switchml_stop(task->engine->plans.aggregator.switchml);
}

static void drop(struct pki_task *task)
{
    stop(task);
    end_within(task);
    if (task->switched.begun)
        atomic_fetch_sub_explicit(&task->engine->plans.aggregator.running, 1, memory_order_relaxed);
    task->switched.begun = false;
    task->switched.part = PKI_SWITCHED_PACKETS;
}

/* Behind the packets, or behind AGREE. *ended: there is nothing left to do. */
static pk_result_t after_sums(struct pki_task *task, bool *ended)
{
    *ended = pki_switchml_unfit(task->engine->plans.aggregator.switchml) == 0;
    return *ended ? PK_OK : begin_unfit(task);
}

static pk_result_t poll_packets(struct pki_task *task, bool *moved, bool *ended)
{
    struct pki_aggregator *a = &task->engine->plans.aggregator;
    bool done = false;
    pk_result_t result;

    if (is_lost(task) && pki_switchml_units(a->switchml) > 0)
        return begin_agree(task, false);
    result = pki_switchml_poll(a->switchml, moved, &done);
    if (result == PK_ERR_PEER && a->fallback) {
        give_up(task, pki_error_get()->text);
        *moved = true;
        return begin_agree(task, false);
    }
    if (result != PK_OK || !done)
        return result;
    *moved = true;
    return a->fallback && pki_switchml_units(a->switchml) > 0 ? begin_agree(task, true) : after_sums(task, ended);
}

/* An operation within this one has ended. */
static pk_result_t after_part(struct pki_task *task, bool *ended)
{
    struct pki_switchml *s = task->engine->plans.aggregator.switchml;
    const enum pki_switched_part part = task->switched.part;

    if (part == PKI_SWITCHED_UNFIT)
        pki_switchml_scatter(s, task->switched.memory);
    else if (part == PKI_SWITCHED_OWNERS)
        pki_switchml_contribute(s, task->engine->config.rank, task->switched.memory);
    end_within(task);
    if (part == PKI_SWITCHED_AGREE)
        return task->switched.complete != 0 ? after_sums(task, ended) : sum_without(task);
    if (part == PKI_SWITCHED_OWNERS)
        return begin_all(task, task->request.out);
    *ended = true;
    return PK_OK;
}

static bool poll_session(struct pki_task *task, bool *ended)
{
    struct pki_task *rest = task->switched.rest;
    bool moved = false;
    pk_result_t result = PK_OK;

    *ended = false;
    task->run.more_work = true;
    if (!task->started || task->run.steps[0].progress == PKI_STEP_COMPLETE)
        return false;
    if (task->engine->plans.aggregator.untold != 0)
        tell(task->engine);
    if (!task->switched.begun) {
        moved = true;
        result = begin(task);
    } else if (rest == NULL) {
        result = poll_packets(task, &moved, ended);
    } else if (atomic_load_explicit(&rest->ended, memory_order_acquire)) {
        moved = true;
        if (rest->result == PK_OK)
            result = after_part(task, ended);
    }
    if (result != PK_OK)
        (void)fail(task, result);
    if (*ended)
        drop(task);
    return moved;
}

static bool waits_for(const struct pki_task *task, int peer)
{
    return pki_switched_waits(task) && peer != task->engine->config.rank;
}

static bool awaits(const struct pki_task *task, uint64_t number)
{
    const uint64_t last = task->switched.begun ? task->switched.number : task->number;

    return number > last && number < task->number + PKI_SWITCHED_NUMBERS;
}

const struct pki_executor pki_switched_executor = {
    .look = look, .poll = poll_session, .waits_for = waits_for, .stop = stop, .drop = drop, .awaits = awaits
};

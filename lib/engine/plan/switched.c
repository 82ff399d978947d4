/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduces whose sums an aggregator makes: one step, which is polled. They go one after the other, in the order of their
 * numbers, for that order is the same on all ranks. What the aggregator cannot sum, packets of floats that no scale fits, all
 * ranks know alike at the end: these packets' elements are summed by the algorithm that there would be without it, as an
 * operation within the operation, under the same number.
 */
#include <stdlib.h>

#include "engine/plan/plan.h"
#include "switchml/switchml.h"
#include "util/dtype.h"

void pki_engine_set_aggregator(struct pki_engine *e, struct pki_switchml *switchml)
{
    e->switchml = switchml;
}

bool pki_switched_is_busy(const struct pki_engine *e)
{
    return e->switchml != NULL && e->switched > 0;
}

int pki_switched_fd(const struct pki_engine *e)
{
    return pki_switched_is_busy(e) ? pki_switchml_fd(e->switchml) : -1;
}

const char *pki_switched_name(const struct pki_engine *e)
{
    return pki_switchml_name(e->switchml);
}

/* None that was called before it is left. */
static bool is_turn(const struct pki_task *task)
{
    const struct pki_engine *e = task->engine;

    for (const struct pki_list *n = e->tasks.next; n != &e->tasks; n = n->next) {
        const struct pki_task *other = pki_container_of(n, struct pki_task, node);

        if (pki_task_is_switched(other) && other->number < task->number)
            return false;
    }
    return true;
}

static void fail(struct pki_task *task, pk_result_t result)
{
    struct pki_where where = pki_engine_where(task->engine, -1, task);
    const pk_error_info_t *last = pki_error_get();

    (void)pki_fail_again(result, last->sys_errno, &where, "%s", last->text);
    pki_engine_poison(task->engine, result, true);
}

static bool begin(struct pki_task *task)
{
    const struct pki_request *r = &task->request;
    pk_result_t result;

    if (!is_turn(task))
        return false;
    result = pki_switchml_begin(task->engine->switchml, r->in, r->out, r->in_count, r->dtype, task->sig);
    if (result != PK_OK) {
        fail(task, result);
        return false;
    }
    task->engine->switched++;
    task->switched.begun = true;
    return true;
}

static void look(struct pki_task *task)
{
    task->more_work = true; /* so it is polled */
    if (!task->switched.begun)
        (void)begin(task);
}

/* ---- what does not fit ---- */

static struct pki_request of_units(const struct pki_task *task, size_t count)
{
    struct pki_request r = task->request;

    r.algorithm = r.instead;
    r.instead = NULL;
    r.in = r.out = task->switched.units;
    r.in_count = r.out_count = r.count = count;
    r.layout = (struct pki_layout){ .in_total = count, .out_total = count };
    r.in_place = r.classified = true;
    r.scaled = false; /* they have been multiplied */
    r.kinds[0] = r.kinds[1] = PKI_MEM_HOST;
    r.stream = PK_BLOCKING; /* this task waits for it */
    return r;
}

static pk_result_t begin_rest(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    const size_t count = pki_switchml_unfit(e->switchml) * pki_switchml_unit(e->switchml);
    struct pki_request r;
    struct pki_task *rest;
    pk_result_t result;

    task->switched.units = malloc(count * sizeof *task->switched.units);
    if (task->switched.units == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %zu elements that do not fit packets", count);
    pki_switchml_gather(e->switchml, task->switched.units);
    r = of_units(task, count);
    result = pki_task_make(e, &r, &rest);
    if (result != PK_OK)
        return result;
    rest->number = task->number;
    rest->sig = task->sig;
    rest->deadline_ns = task->deadline_ns;
    task->switched.rest = rest;
    pki_list_push(&e->tasks, &rest->node);
    (void)pki_task_start(rest);
    return PK_OK;
}

static void drop(struct pki_task *task)
{
    if (task->switched.rest != NULL)
        pki_task_free(task->switched.rest);
    free(task->switched.units);
    task->switched.rest = NULL;
    task->switched.units = NULL;
    if (task->switched.begun)
        task->engine->switched--;
    task->switched.begun = false;
}

/* True: it has ended. */
static bool end_rest(struct pki_task *task)
{
    struct pki_task *rest = task->switched.rest;

    if (!atomic_load_explicit(&rest->ended, memory_order_acquire))
        return false;
    if (rest->result == PK_OK)
        pki_switchml_scatter(task->engine->switchml, task->switched.units);
    drop(task);
    return true;
}

/* ---- going on ---- */

static bool poll_session(struct pki_task *task, bool *ended)
{
    struct pki_engine *e = task->engine;
    bool moved, done;
    pk_result_t result;

    *ended = false;
    task->more_work = true;
    if (!task->started || task->steps[0].complete || (!task->switched.begun && !begin(task)))
        return false;
    if (task->switched.rest != NULL) {
        *ended = end_rest(task);
        return *ended;
    }
    result = pki_switchml_poll(e->switchml, &moved, &done);
    if (result == PK_OK && done && pki_switchml_unfit(e->switchml) > 0)
        result = begin_rest(task);
    else if (result == PK_OK && done)
        *ended = true;
    if (result != PK_OK)
        fail(task, result);
    else if (*ended)
        drop(task);
    return moved || done;
}

static bool waits_for(const struct pki_task *task, int peer)
{
    return task->switched.begun && peer != task->engine->config.rank;
}

const struct pki_executor pki_switched_executor = { .look = look, .poll = poll_session, .waits_for = waits_for, .drop = drop };

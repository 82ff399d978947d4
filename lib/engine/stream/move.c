/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/proto/offer.h"
#include "engine/stream/branch.h"
#include "engine/stream/collective.h"
#include "engine/stream/move.h"
#include "engine/stream/rule.h"
#include "engine/stream/self.h"
#include "engine/stream/stream.h"

#include <stdlib.h>

static void failed(struct pki_engine *e, pk_result_t result)
{
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
}

struct messages {
    struct pki_task **tasks;
    struct pki_rule_part *parts;
    enum pki_rule_place *places;
    int n;
};

/* Receives of one group from one peer in one stream are free at the same moment (join.c). */
static bool follows(const struct messages *m, const struct pki_xfer *xfer)
{
    const struct pki_xfer *before = m->n > 0 ? m->tasks[m->n - 1]->xfer : NULL;

    return xfer->signals.joined && before != NULL && before->is_send && before->peer == xfer->peer &&
           before->id.op + 1 == xfer->id.op;
}

static void add(struct messages *m, struct pki_task *task)
{
    struct pki_xfer *xfer = task->xfer;
    struct pki_rule_part part = { .follows = follows(m, xfer) };

    part.by_kernel = xfer->bytes <= PKI_LL_MAX_BYTES || pki_move_in_process(xfer) || pki_waiting_has_few_queues(task->engine);
    part.seen = pki_signal_is_open(&xfer->signals.start) || (part.follows && m->parts[m->n - 1].seen);
    m->tasks[m->n] = task;
    m->parts[m->n++] = part;
}

static void copy(struct messages *m, int i)
{
    struct pki_task *task = m->tasks[i];
    bool past = m->parts[i].follows && m->places[i - 1] == m->places[i];

    if (!past) {
        pki_stream_before_wait(task);
        pki_stream_wait(task, task->xfer->signals.start);
    }
    if (pki_move_by_kernel(task->engine))
        (void)pki_move_take_channel(task); /* the stream's, until this one has ended too */
    failed(task->engine, pki_stream_put(task, task->xfer, past));
}

static void copy_all(struct messages *m, enum pki_rule_place place)
{
    for (int i = 0; i < m->n; i++)
        if (m->places[i] == place)
            copy(m, i);
}

static void move_by_kernel(struct messages *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->places[i] == PKI_RULE_BESIDE)
            pki_move_row_add(m->tasks[i], m->tasks[i]->xfer);
}

/* The last one in the stream itself. For want of branches some stand behind one another there. */
static void move_by_branches(struct messages *m)
{
    int last = m->n - 1;

    while (last >= 0 && m->places[last] != PKI_RULE_BESIDE)
        last--;
    for (int i = 0; i <= last; i++)
        if (m->places[i] == PKI_RULE_BESIDE && (i == last || !pki_branch_put(m->tasks[i])))
            m->places[i] = PKI_RULE_COPY;
}

static bool any_copy(const struct messages *m)
{
    for (int i = 0; i < m->n; i++)
        if (!m->parts[i].by_kernel)
            return true;
    return false;
}

static void move(struct pki_engine *e, struct messages *m)
{
    bool kernels = pki_move_by_kernel(e);
    /* without kernels the wait has one */
    struct pki_rule_channels channels = { .held = !kernels || (any_copy(m) && pki_move_take_channel(m->tasks[0])) };

    pki_rule(m->parts, m->n, kernels, &channels, m->places);
    copy_all(m, PKI_RULE_COPY_FIRST);
    if (kernels)
        move_by_kernel(m);
    else
        move_by_branches(m);
    copy_all(m, PKI_RULE_COPY);
}

static bool is_direct_message(const struct pki_task *task)
{
    return pki_task_in_cuda_stream(task) && pki_task_is_direct(task) && task->xfer != NULL;
}

static bool is_moved_here(const struct pki_task *task)
{
    return is_direct_message(task) && !task->xfer->signals.ll && pki_offer_moves(task->xfer) &&
           task->xfer->state != PKI_XFER_STREAM;
}

static void move_messages(struct pki_engine *e, struct pki_list *made, struct messages *m)
{
    for (struct pki_list *n = made->next; n != made; n = n->next) {
        const struct pki_task *first = pki_container_of(n, struct pki_task, waiting);

        if (!is_moved_here(first))
            continue;
        m->n = 0;
        for (struct pki_list *k = n; k != made; k = k->next) {
            struct pki_task *task = pki_container_of(k, struct pki_task, waiting);

            if (is_moved_here(task) && task->cuda.queue.handle == first->cuda.queue.handle)
                add(m, task);
        }
        move(e, m);
        if (pki_move_row_is_open(e)) /* before the next stream's */
            pki_stream_wait_for_all(m->tasks[0], made);
    }
}

static void copy_to_self(struct pki_list *made)
{
    for (struct pki_list *n = made->next; n != made; n = n->next)
        if (pki_container_of(n, struct pki_task, waiting)->cuda.other_end != NULL)
            pki_stream_self_put(pki_container_of(n, struct pki_task, waiting));
}

/* Sends by low-latency kernels wait for nothing, and go first. */
static void send_ll(struct pki_list *made)
{
    for (struct pki_list *n = made->next; n != made; n = n->next) {
        struct pki_task *task = pki_container_of(n, struct pki_task, waiting);
        struct pki_ll_op op;

        if (!is_direct_message(task) || !task->xfer->signals.ll || !task->xfer->is_send)
            continue;
        op = pki_ll_send_op(task->xfer);
        pki_ll_row_add(task, &op);
        pki_xfer_enter(task->xfer, PKI_XFER_STREAM);
        pki_xfer_activate(task->xfer);
    }
}

/* In the order of the calls, which is that of all ranks. */
static void move_collectives(struct pki_list *made)
{
    for (struct pki_list *n = made->next; n != made; n = n->next) {
        struct pki_task *task = pki_container_of(n, struct pki_task, waiting);

        if (!pki_task_in_cuda_stream(task) || task->plan == NULL || !(pki_task_is_direct(task) || task->mode == PKI_TASK_BARRIER))
            continue;
        pki_ll_row_launch(task->engine);
        if (task->mode == PKI_TASK_BARRIER)
            pki_stream_barrier_put(task);
        else if (pki_task_is_fused(task))
            pki_stream_launch(task);
        else
            pki_stream_plan_move(task);
    }
}

void pki_stream_move_all(struct pki_engine *e, struct pki_list *made)
{
    struct pki_task *tasks[PKI_MOVES_A_CALL];
    struct pki_rule_part parts[PKI_MOVES_A_CALL];
    enum pki_rule_place places_of[PKI_MOVES_A_CALL];
    struct messages m = { .tasks = tasks, .parts = parts, .places = places_of };
    size_t count = 0;
    void *memory = NULL;

    for (struct pki_list *n = made->next; n != made; n = n->next)
        count += is_moved_here(pki_container_of(n, struct pki_task, waiting));
    send_ll(made);
    copy_to_self(made);
    if (count > PKI_MOVES_A_CALL) {
        memory = malloc(count * (sizeof *m.tasks + sizeof *m.parts + sizeof *m.places));
        m.tasks = memory;
        m.places = (enum pki_rule_place *)(void *)(m.tasks + count);
        m.parts = (struct pki_rule_part *)(void *)(m.places + count);
    }
    if (count > 0)
        pki_ll_row_launch(e);
    if (m.tasks == NULL)
        failed(e, pki_fail(PK_ERR_MEMORY, NULL, "no memory for a group of %zu messages", count));
    else if (count > 0)
        move_messages(e, made, &m);
    move_collectives(made);
    free(memory);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's lock, its progress, and its end in failure. */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/stream/collective.h"
#include "engine/stream/offer.h"
#include "util/hot.h"

#define CHECK_EVERY_NS (2 * PKI_NS_PER_MS) /* how often peers' sockets and deadlines are looked at while something waits */
#define DEVICE_DRIVEN_TRANSFERS 8 /* unfinished ones of those that kernels see to, looked at in a round: they end one behind another */

/* By who has the lock. */
static inline void count_turn(struct pki_engine *e)
{
    atomic_store_explicit(&e->turns, atomic_load_explicit(&e->turns, memory_order_relaxed) + 1, memory_order_relaxed);
}

PKI_HOT void pki_engine_lock(struct pki_engine *e)
{
    unsigned spins = 0;

    while (atomic_flag_test_and_set_explicit(&e->lock, memory_order_acquire)) {
        if (++spins % 64 == 0)
            sched_yield();
        else
            pki_cpu_pause();
    }
    count_turn(e);
}

bool pki_engine_trylock(struct pki_engine *e)
{
    if (atomic_flag_test_and_set_explicit(&e->lock, memory_order_acquire))
        return false;
    count_turn(e);
    return true;
}

PKI_HOT void pki_engine_unlock(struct pki_engine *e)
{
    count_turn(e);
    atomic_flag_clear_explicit(&e->lock, memory_order_release);
}

struct pki_where pki_engine_where(const struct pki_engine *e, int peer, const struct pki_task *task)
{
    struct pki_where where = { .rank = e->config.rank, .peer = peer };

    if (task != NULL) {
        where.op = task->name;
        where.op_number = task->number;
    }
    return where;
}

struct pki_task *pki_engine_first_task(const struct pki_engine *e)
{
    return pki_list_empty(&e->tasks) ? NULL : pki_container_of(e->tasks.next, struct pki_task, node);
}

/* ---- failure ---- */

/* The first one counts. */
static bool record(struct pki_engine *e, pk_result_t code)
{
    if (atomic_exchange(&e->claimed, true))
        return false;
    e->error = *pki_error_get();
    e->error.code = code;
    e->error.rank = e->config.rank;
    return true;
}

void pki_engine_poison(struct pki_engine *e, pk_result_t code, bool tell)
{
    if (!record(e, code))
        return;
    atomic_store(&e->failed, code);
    if (tell)
        pki_side_tell_all(e);
}

void pki_engine_poison_unlocked(struct pki_engine *e, pk_result_t code)
{
    if (!record(e, code))
        return;
    atomic_store(&e->failure_unsent, true);
    atomic_store(&e->failed, code);
}

/* Peers that have not heard of the failure. */
static void send_unsent(struct pki_engine *e)
{
    if (atomic_exchange(&e->failure_unsent, false))
        pki_side_tell_all(e);
    else if (atomic_load(&e->unreported) > 0)
        pki_side_tell_again(e);
}

static void peer_release(struct pki_peer *peer)
{
    struct pki_list *lists[2] = { &peer->sends, &peer->recvs };

    for (int i = 0; i < 2; i++)
        for (struct pki_list *n = lists[i]->next; n != lists[i]; n = n->next) {
            struct pki_xfer *xfer = pki_container_of(n, struct pki_xfer, match);

            /* Only what this rank's own streams wait for: the other signal would tell the peer of bytes that never came, or of a
             * buffer that is not free. */
            const struct pki_signal signal = pki_offer_moves(xfer) ? xfer->start : pki_offer_finish(xfer);

            if (xfer->is_send && xfer->cell != NULL)
                pki_offer_abort(xfer->cell);
            if (signal.word != NULL)
                pki_signal_open(&signal);
        }
}

/* Every stream and thread that waits is let go, every task ends, and before that what transports do with its memory. Runs once, where nothing
 * else is half done. */
void pki_engine_collapse(struct pki_engine *e)
{
    struct pki_list *node;

    if (e->collapsed || atomic_load(&e->failed) == PK_OK)
        return;
    e->collapsed = true;
    for (int i = 0; i < e->nifaces; i++)
        e->ifaces[i]->transport->revoke(e->ifaces[i]);
    if (e->abort_word != NULL)
        atomic_store(e->abort_word, 1);
    for (int i = 0; i < e->config.size; i++)
        if (e->peers[i].ctrl != NULL)
            peer_release(&e->peers[i]);
    if (e->gpu != NULL)
        pki_stream_barrier_release(e);
    pki_graphs_release(e);
    while ((node = e->tasks.next) != &e->tasks)
        pki_task_end(pki_container_of(node, struct pki_task, node), (pk_result_t)atomic_load(&e->failed));
}

/* Of a poisoned communicator every call ends here, and no operation makes progress any more. */
static void tell_rest(struct pki_engine *e)
{
    if ((atomic_load(&e->unreported) == 0 && !atomic_load(&e->failure_unsent)) || !pki_engine_trylock(e))
        return;
    send_unsent(e);
    pki_engine_unlock(e);
}

pk_result_t pki_engine_status(struct pki_engine *e)
{
    pk_result_t code = (pk_result_t)atomic_load(&e->failed); /* pairs with the store in poison: the record is complete */

    if (code != PK_OK) {
        tell_rest(e);
        pki_error_set(&e->error);
    }
    return code;
}

/* ---- progress ---- */

void pki_engine_free_ended(struct pki_engine *e)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&e->spent_xfers)) != NULL)
        pki_list_push(&e->free_xfers, node);
    while ((node = pki_list_pop(&e->ended)) != NULL)
        pki_task_free(pki_container_of(node, struct pki_task, node));
}

static bool progress_puts(struct pki_engine *e)
{
    bool moved = false;

    for (int i = 0; i < e->nifaces; i++) {
        struct pki_list *node;

        if (!e->ifaces[i]->carries)
            continue;
        (void)e->ifaces[i]->transport->progress(e->ifaces[i]);
        while ((node = pki_list_pop(&e->ifaces[i]->done)) != NULL) {
            pki_send_put_done(pki_container_of(node, struct pki_put, node));
            moved = true;
        }
    }
    return moved;
}

/* All of `from` to an empty list. */
static void move_list(struct pki_list *from, struct pki_list *to)
{
    pki_list_init(to);
    if (pki_list_empty(from))
        return;
    *to = *from;
    to->next->prev = to;
    to->prev->next = to;
    pki_list_init(from);
}

/* Each active transfer leaves the list before it is looked at, and comes back by itself if it must be looked at again. */
static void progress_active(struct pki_engine *e)
{
    int device_driven = atomic_load(&e->device_driven_tasks);
    int left = device_driven > 0 && device_driven == atomic_load(&e->async_tasks) ? DEVICE_DRIVEN_TRANSFERS : INT_MAX;
    struct pki_list batch, *node;

    if (pki_list_empty(&e->active))
        return;
    move_list(&e->active, &batch);
    while (left > 0 && (node = pki_list_pop(&batch)) != NULL) {
        struct pki_xfer *xfer = pki_container_of(node, struct pki_xfer, active);

        pki_xfer_advance(xfer);
        left -= !pki_list_empty(&xfer->active); /* those that have ended are spent, and still there */
    }
    while ((node = pki_list_pop(&e->active)) != NULL) /* behind those that have not been looked at */
        pki_list_push(&batch, node);
    move_list(&batch, &e->active);
}

static bool task_moves(struct pki_task *task)
{
    if (task->started)
        return task->plan != NULL &&
               (task->kind == PKI_MEM_DEVICE || task->mixed.active || (task->more_work && task->engine->work_left > 0)) &&
               pki_plan_poll(task);
    if (task->mode == PKI_TASK_STREAM || !atomic_load_explicit(&task->may_start, memory_order_acquire) ||
        !pki_signal_is_open(&task->ready) || (task->after_stream && !task->queue.device->ops->idle(&task->queue)))
        return false;
    if (task->more_work && task->engine->work_left == 0)
        return false;
    return pki_task_start(task) || task->more_work;
}

/* A task that moves may end, and end others: start over from the front then. */
static bool progress_tasks(struct pki_engine *e)
{
    struct pki_list *node = e->tasks.next;
    bool moved = false;

    while (node != &e->tasks && atomic_load(&e->failed) == PK_OK) {
        if (task_moves(pki_container_of(node, struct pki_task, node))) {
            moved = true;
            node = e->tasks.next;
        } else {
            node = node->next;
        }
    }
    return moved;
}

/* A connection beside the control channel has died, and the process at its other end with it: a control channel over RDMA hears of that only much later. */
static void check_endpoints(struct pki_engine *e, const struct pki_peer *peer)
{
    for (int i = 0; i < peer->neps; i++)
        if (peer->eps[i]->dead && !peer->gone) {
            struct pki_where where = pki_engine_where(e, peer->rank, pki_engine_first_task(e));

            pki_engine_attribute_failure(e, PK_ERR_PEER, &where, peer->eps[i], 0, 0);
            return;
        }
}

/* Broken connections between hosts are made again, and what was sent goes on: a peer may wait for it while this rank waits for nothing. */
static void recover(struct pki_engine *e)
{
    for (int i = 0; i < e->nifaces; i++)
        if (e->ifaces[i]->carries && e->ifaces[i]->transport->between_hosts)
            (void)e->ifaces[i]->transport->progress(e->ifaces[i]);
}

/* Between hosts bad news are messages of the control channel. */
static void hear_distant(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
        if (e->peers[i].ctrl != NULL && e->peers[i].side_fd < 0)
            (void)pki_ctrl_poll(e, &e->peers[i]);
}

static void check_peers(struct pki_engine *e)
{
    for (int i = 0; i < e->nifaces; i++)
        if (!e->ifaces[i]->carries) /* it stands by */
            (void)e->ifaces[i]->transport->progress(e->ifaces[i]);
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++) {
        if (e->peers[i].side_fd >= 0)
            pki_side_poll(e, &e->peers[i]);
        else {
            e->peers[i].gone |= e->peers[i].ctrl != NULL && e->peers[i].ctrl->left; /* its news of that may have found no room */
            pki_note_carry(&e->peers[i]);
            check_endpoints(e, &e->peers[i]);
        }
    }
}

/* Behind check_peers: who left may have left because of another, who or whose messenger is polled after it. And behind a round of progress: what has
 * ended may not have been looked at before. */
static void check_left(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
        if (e->peers[i].gone)
            pki_side_check_left(e, &e->peers[i]);
}

/* What the endpoint failed with, and in which operation. Without a cause it is this rank's own trouble, which this thread has just recorded. */
static void record_cause(pk_result_t code, const struct pki_where *where, const struct pki_ep *ep, size_t done, size_t bytes)
{
    const struct pki_cause *cause = ep != NULL && ep->cause.text[0] != '\0' ? &ep->cause : NULL;
    const pk_error_info_t *last = pki_error_get();

    if (cause != NULL && bytes > 0)
        (void)pki_fail_again(code, cause->sys_errno, where, "%s (%zu of %zu bytes done)", cause->text, done, bytes);
    else if (cause != NULL)
        (void)pki_fail_again(code, cause->sys_errno, where, "%s", cause->text);
    else if (code == PK_ERR_PEER || last->code != code)
        (void)pki_fail(code, where, "%s failed, %zu of %zu bytes done", ep != NULL ? ep->iface->transport->name : "a move", done, bytes);
    else
        (void)pki_fail_again(code, last->sys_errno, where, "%s", last->text);
}

void pki_engine_attribute_failure(struct pki_engine *e, pk_result_t code, const struct pki_where *where, const struct pki_ep *ep, size_t done,
                      size_t bytes)
{
    if (code == PK_ERR_PEER)
        for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
            if (e->peers[i].side_fd >= 0)
                pki_side_poll(e, &e->peers[i]);
    if (atomic_load(&e->failed) != PK_OK)
        return;
    record_cause(code, where, ep, done, bytes);
    pki_engine_poison(e, code, true);
}

void pki_engine_look_around(struct pki_engine *e)
{
    if (!pki_engine_trylock(e)) /* whoever has the lock looks around too */
        return;
    if (atomic_load(&e->failed) == PK_OK) {
        recover(e);
        hear_distant(e);
        check_peers(e);
    }
    pki_engine_collapse(e);
    pki_engine_free_ended(e);
    pki_engine_unlock(e);
}

static void check_now_and_then(struct pki_engine *e)
{
    unsigned round = atomic_load_explicit(&e->idle_rounds, memory_order_relaxed) + 1;
    uint64_t now;

    atomic_store_explicit(&e->idle_rounds, round, memory_order_relaxed);
    if (round % 64 != 0)
        return;
    now = pki_now_ns();
    if (now - e->checked_ns < CHECK_EVERY_NS)
        return;
    e->checked_ns = now;
    pki_graphs_reap(e);
    check_peers(e);
    check_left(e);
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
        if (e->peers[i].ctrl != NULL)
            pki_send_overdue_rts(&e->peers[i], now);
    if (atomic_load(&e->failed) == PK_OK)
        pki_stragglers_check(e, now);
}

bool pki_engine_progress(struct pki_engine *e)
{
    bool moved = false;

    e->work_left = PKI_HOST_WORK;
    if (atomic_load(&e->failed) == PK_OK) {
        for (int i = 0; i < e->config.size; i++)
            if (e->peers[i].ctrl != NULL)
                moved |= pki_ctrl_poll(e, &e->peers[i]);
        moved |= progress_puts(e);
        progress_active(e);
        moved |= progress_tasks(e);
        if (!moved || atomic_load_explicit(&e->idle_rounds, memory_order_relaxed) % 64 == 63)
            check_now_and_then(e);
    }
    pki_engine_collapse(e);
    if (atomic_load(&e->failed) != PK_OK) {
        pki_graphs_release(e); /* a graph's next wait comes after the last one was let go */
        send_unsent(e);
    }
    pki_engine_free_ended(e);
    return moved;
}

/* Copies that are on their way end by themselves: nothing in the library's queues waits. Until then buffers are in use. */
void pki_engine_drain(struct pki_engine *e)
{
    uint64_t until = pki_now_ns() + PKI_DRAIN_NS;

    while (pki_now_ns() < until) {
        bool idle = e->puts_out == 0;

        if (atomic_load(&e->failed) != PK_OK)
            pki_graphs_release(e);
        if (atomic_load(&e->failed) != PK_OK)
            send_unsent(e);
        idle = idle && atomic_load(&e->unreported) == 0;
        (void)progress_puts(e);
        if (e->queues_open)
            idle = idle && e->gpu->ops->idle(&e->work) && e->gpu->ops->idle(&e->deferred) && pki_bounce_idle(e);
        if (idle)
            return;
    }
}

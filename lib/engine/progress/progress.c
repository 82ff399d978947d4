/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's progress: messages, transfers and tasks, and occasionally peers and deadlines; and who waits for it. */
#include <limits.h>

#include "engine/mem/graphs.h"
#include "engine/progress/progress.h"

void pki_engine_free_ended(struct pki_engine *e)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&e->proto.spent_xfers)) != NULL)
        pki_list_push(&e->proto.free_xfers, node);
    while ((node = pki_list_pop(&e->tasks.ended)) != NULL)
        pki_task_free(pki_container_of(node, struct pki_task, node));
}

/* Receives get what they pull by puts the other way. */
static void put_ended(struct pki_put *put)
{
    struct pki_xfer *xfer = put->owner;

    if (xfer->is_send)
        pki_send_put_done(put);
    else if (pki_coop_get_ended(put))
        pki_xfer_progressed(xfer);
}

static void take_event(struct pki_engine *e, struct pki_event *event)
{
    if (event->kind == PKI_EVENT_PUT)
        put_ended(pki_container_of(event, struct pki_put, event));
    else if (atomic_load(&e->failed) != PK_OK)
        return;
    else if (event->kind == PKI_EVENT_RECEIVED)
        pki_recv_received(pki_container_of(event, struct pki_recv, event));
    else
        pki_ctrl_unexpected_put(e, pki_container_of(event, struct pki_unexpected_put, event));
}

static bool take_events(struct pki_engine *e, struct pki_iface *iface)
{
    struct pki_list *node;
    bool any = false;

    while ((node = pki_list_pop(&iface->events)) != NULL) {
        take_event(e, pki_container_of(node, struct pki_event, node));
        any = true;
    }
    return any;
}

void pki_engine_take_events(struct pki_engine *e)
{
    for (int i = 0; i < e->ifaces.n; i++)
        (void)take_events(e, e->ifaces.at[i]);
}

static bool progress_transports(struct pki_engine *e)
{
    bool moved = false;

    for (int i = 0; i < e->ifaces.n; i++) {
        if (!e->ifaces.at[i]->carries)
            continue;
        (void)e->ifaces.at[i]->transport->progress(e->ifaces.at[i]);
        moved |= take_events(e, e->ifaces.at[i]);
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
    int device_driven = atomic_load(&e->service.device_driven_tasks);
    int left = device_driven > 0 && device_driven == atomic_load(&e->service.async_tasks)
                   ? pki_tuning.wait.device_driven_transfers
                   : INT_MAX;
    struct pki_list batch, *node;

    if (pki_list_empty(&e->proto.active))
        return;
    move_list(&e->proto.active, &batch);
    while (left > 0 && (node = pki_list_pop(&batch)) != NULL) {
        struct pki_xfer *xfer = pki_container_of(node, struct pki_xfer, active);

        pki_xfer_advance(xfer);
        left -= !pki_list_empty(&xfer->active); /* those that have ended are spent, and still there */
    }
    while ((node = pki_list_pop(&e->proto.active)) != NULL) /* behind those that have not been looked at */
        pki_list_push(&batch, node);
    move_list(&batch, &e->proto.active);
}

static bool task_moves(struct pki_task *task)
{
    if (task->started)
        return task->plan != NULL &&
               (task->kind == PKI_MEM_DEVICE || pki_task_is_mixed(task) ||
                (task->run.more_work && task->engine->rounds.work_left > 0)) &&
               pki_plan_poll(task);
    if (pki_task_is_direct(task) || !atomic_load_explicit(&task->host.may_start, memory_order_acquire) ||
        !pki_signal_is_open(&task->cuda.ready) ||
        (task->mode == PKI_TASK_AFTER_STREAM && !task->cuda.queue.device->ops->idle(&task->cuda.queue)))
        return false;
    if (task->run.more_work && task->engine->rounds.work_left == 0)
        return false;
    return pki_task_start(task) || task->run.more_work;
}

/* A task that moves may end, and end others: start over from the front then. */
static bool progress_tasks(struct pki_engine *e)
{
    struct pki_list *node = e->tasks.all.next;
    bool moved = false;

    while (node != &e->tasks.all && atomic_load(&e->failed) == PK_OK) {
        if (task_moves(pki_container_of(node, struct pki_task, node))) {
            moved = true;
            node = e->tasks.all.next;
        } else {
            node = node->next;
        }
    }
    return moved;
}

/* A connection beside the control channel may have died: a control channel over RDMA hears of that only much later. */
static void check_endpoints(struct pki_engine *e, const struct pki_peer *peer)
{
    const struct pki_ep *dead = peer->gone ? NULL : pki_side_dead_ep(peer);
    struct pki_where where;

    if (dead == NULL)
        return;
    where = pki_engine_where(e, peer->rank, pki_engine_first_task(e));
    pki_engine_attribute_failure(e, PK_ERR_PEER, &where, dead, 0, 0);
}

/* Broken connections between hosts are made again, and what was sent goes on: a peer may wait for it while this rank waits for
 * nothing. */
static void recover(struct pki_engine *e)
{
    for (int i = 0; i < e->ifaces.n; i++)
        if (e->ifaces.at[i]->carries && e->ifaces.at[i]->transport->between_hosts)
            (void)e->ifaces.at[i]->transport->progress(e->ifaces.at[i]);
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
    for (int i = 0; i < e->ifaces.n; i++)
        if (!e->ifaces.at[i]->carries) /* it stands by */
            (void)e->ifaces.at[i]->transport->progress(e->ifaces.at[i]);
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++) {
        if (e->peers[i].side_fd >= 0)
            pki_side_poll(e, &e->peers[i]);
        else {
            /* its news of that may have found no room */
            e->peers[i].gone |= e->peers[i].ctrl != NULL && e->peers[i].ctrl->state == PKI_EP_LEFT;
            pki_note_carry(&e->peers[i]);
            check_endpoints(e, &e->peers[i]);
        }
    }
}

/* Behind check_peers: who left may have left because of another, who or whose messenger is polled after it. And behind a round of
 * progress: what has ended may not have been looked at before. */
static void check_left(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
        if (e->peers[i].gone && e->peers[i].ctrl != NULL) /* else it is a hole */
            pki_engine_check_left(e, &e->peers[i]);
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
    unsigned round = atomic_load_explicit(&e->rounds.idle, memory_order_relaxed) + 1;
    uint64_t now;

    atomic_store_explicit(&e->rounds.idle, round, memory_order_relaxed);
    if (round % PKI_CHECK_ROUNDS != 0)
        return;
    now = pki_now_ns();
    if (now - e->rounds.checked_ns < pki_tuning.wait.check_every_ns)
        return;
    e->rounds.checked_ns = now;
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

    e->rounds.work_left = pki_tuning.cpu.work_bytes;
    if (atomic_load(&e->failed) == PK_OK) {
        for (int i = 0; i < e->config.size; i++)
            if (e->peers[i].ctrl != NULL)
                moved |= pki_ctrl_poll(e, &e->peers[i]);
        moved |= progress_transports(e);
        progress_active(e);
        moved |= progress_tasks(e);
        if (!moved || atomic_load_explicit(&e->rounds.idle, memory_order_relaxed) % PKI_CHECK_ROUNDS == PKI_CHECK_ROUNDS - 1)
            check_now_and_then(e);
    }
    pki_engine_collapse(e);
    if (atomic_load(&e->failed) != PK_OK) {
        pki_graphs_release(e); /* a graph's next wait comes after the last one was let go */
        pki_failure_tell_rest(e);
    }
    pki_engine_free_ended(e);
    return moved;
}

/* ---- waiting ---- */

/* Progress until `done` is set. */
void pki_engine_wait(struct pki_engine *e, const atomic_bool *done)
{
    unsigned idle = 0;

    while (!atomic_load_explicit(done, memory_order_acquire)) {
        bool moved = false;

        if (pki_engine_trylock(e)) {
            moved = pki_engine_progress(e);
            pki_engine_unlock(e);
        }
        idle = moved ? 0 : idle + 1;
        if (!moved)
            pki_engine_backoff(e, idle);
    }
}

void pki_engine_wait_all(struct pki_engine *e)
{
    unsigned idle = 0;

    for (;;) {
        bool empty, moved;

        pki_engine_lock(e);
        moved = pki_engine_progress(e);
        empty = pki_list_empty(&e->tasks.all);
        pki_engine_unlock(e);
        if (empty)
            return;
        idle = moved ? 0 : idle + 1;
        pki_engine_backoff(e, idle);
    }
}

/* Copies that are on their way end by themselves, and so do orders: the kernels that serve do what there is before they leave.
 * Until then buffers are in use. An order that no kernel came for is never done. */
void pki_engine_drain(struct pki_engine *e)
{
    uint64_t until = pki_now_ns() + PKI_DRAIN_NS;

    while (pki_now_ns() < until) {
        bool idle = e->proto.puts_out == 0;

        if (atomic_load(&e->failed) != PK_OK)
            pki_graphs_release(e);
        if (atomic_load(&e->failed) != PK_OK)
            pki_failure_tell_rest(e);
        idle = idle && atomic_load(&e->failure.unreported) == 0;
        (void)progress_transports(e);
        if (e->proto.queues_open)
            idle = idle && e->gpu->ops->idle(&e->proto.work) && e->gpu->ops->idle(&e->proto.deferred) && pki_bounce_idle(e);
        if (idle)
            return;
    }
}

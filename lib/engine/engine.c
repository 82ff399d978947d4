/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's life, its lock, its progress and its end in failure. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/internal.h"

#define CHECK_EVERY_NS (2 * PKI_NS_PER_MS) /* how often peers' sockets and deadlines are looked at while something waits */
#define WARN_AFTER_NS (5 * PKI_NS_PER_S)

void pki_engine_lock(struct pki_engine *e)
{
    unsigned spins = 0;

    while (atomic_flag_test_and_set_explicit(&e->lock, memory_order_acquire)) {
        if (++spins % 64 == 0)
            sched_yield();
        else
            pki_cpu_pause();
    }
}

bool pki_engine_trylock(struct pki_engine *e)
{
    return !atomic_flag_test_and_set_explicit(&e->lock, memory_order_acquire);
}

void pki_engine_unlock(struct pki_engine *e)
{
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

static void peer_init(struct pki_peer *peer, int rank)
{
    peer->rank = rank;
    peer->side_fd = -1;
    peer->patience_ns = 20000;
    pki_list_init(&peer->sends);
    pki_list_init(&peer->recvs);
    pki_list_init(&peer->arrivals);
    pki_slots_init(&peer->gates, PKI_GATE_SLOTS);
    pki_slots_init(&peer->lls, PKI_LL_SLOTS);
}

static pk_result_t queues_open(struct pki_engine *e)
{
    pk_result_t result;

    if (e->gpu == NULL)
        return PK_OK;
    result = e->gpu->ops->queue_open(e->gpu, &e->work);
    if (result != PK_OK)
        return result;
    result = e->gpu->ops->queue_open(e->gpu, &e->late);
    if (result != PK_OK) {
        e->gpu->ops->queue_close(&e->work);
        return result;
    }
    e->queues_open = true;
    return PK_OK;
}

static void lists_init(struct pki_engine *e)
{
    pki_list_init(&e->tasks);
    pki_list_init(&e->active);
    pki_list_init(&e->registrations);
    pki_list_init(&e->captured);
    pki_list_init(&e->free_xfers);
    pki_list_init(&e->spent_xfers);
    pki_list_init(&e->ended);
    pki_list_init(&e->slabs);
    pki_list_init(&e->in_service);
}

pk_result_t pki_engine_open(const struct pki_engine_config *config, struct pki_engine **engine)
{
    struct pki_engine *e = calloc(1, sizeof *e);
    pk_result_t result = PK_ERR_MEMORY;

    if (e == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for an engine");
    atomic_flag_clear(&e->lock);
    e->config = *config;
    e->gpu = config->device;
    if (e->gpu != NULL && config->sm_policy == PK_SM_BOUNDED)
        e->gpu->max_ctas = config->max_sms;
    e->spin = config->local_ranks <= sysconf(_SC_NPROCESSORS_ONLN);
    lists_init(e);
    e->peers = calloc((size_t)config->size, sizeof *e->peers);
    if (e->peers == NULL)
        goto err_free;
    for (int i = 0; i < config->size; i++)
        peer_init(&e->peers[i], i);
    result = pki_device_host.open(0, &e->host);
    if (result != PK_OK)
        goto err_peers;
    result = pki_words_open(e);
    if (result != PK_OK)
        goto err_host;
    result = queues_open(e);
    if (result != PK_OK)
        goto err_words;
    *engine = e;
    return PK_OK;

err_words:
    pki_words_close(e);
err_host:
    e->host->ops->close(e->host);
err_peers:
    free(e->peers);
err_free:
    free(e);
    return result;
}

pk_result_t pki_engine_iface(struct pki_engine *e, const struct pki_transport *transport, struct pki_iface **out)
{
    struct pki_iface_config config = { .rank = e->config.rank, .size = e->config.size, .device = e->gpu };
    struct pki_iface *iface;
    pk_result_t result;

    if (e->nifaces == PKI_IFACES_MAX)
        return pki_fail(PK_ERR_INTERNAL, NULL, "more than %d transports", PKI_IFACES_MAX);
    iface = calloc(1, transport->iface_bytes);
    if (iface == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for transport %s", transport->name);
    iface->transport = transport;
    pki_list_init(&iface->done);
    result = transport->open(&config, iface);
    if (result != PK_OK) {
        free(iface);
        return result;
    }
    e->ifaces[e->nifaces++] = iface;
    *out = iface;
    return PK_OK;
}

pk_result_t pki_engine_ep_open(struct pki_engine *e, struct pki_iface *iface, int peer, bool same_process, int64_t pid,
                               struct pki_blob *mine, struct pki_ep **out)
{
    struct pki_ep *ep = e->peers[peer].neps == PKI_IFACES_MAX ? NULL : calloc(1, iface->transport->ep_bytes);
    pk_result_t result;

    if (ep == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for an endpoint of %s", iface->transport->name);
    ep->iface = iface;
    ep->rank = e->config.rank;
    ep->peer = peer;
    ep->same_process = same_process;
    ep->peer_pid = pid;
    mine->fd = -1;
    mine->len = 0;
    result = iface->transport->ep_init(ep, mine);
    if (result != PK_OK) {
        iface->transport->ep_close(ep);
        free(ep);
        return result;
    }
    e->peers[peer].eps[e->peers[peer].neps++] = ep;
    *out = ep;
    return PK_OK;
}

void pki_engine_set_lane(struct pki_engine *e, int peer, struct pki_ep *lane, int side_fd)
{
    e->peers[peer].lane = lane;
    e->peers[peer].side_fd = side_fd;
    if (e->gpu != NULL && lane->gates_mine != NULL) {
        /* A failure is found again, with a text, when the first gate is used. */
        (void)e->gpu->ops->host_register(e->gpu, lane->gates_mine, PKI_EP_SHARED_BYTES);
        (void)e->gpu->ops->host_register(e->gpu, lane->gates_theirs, PKI_EP_SHARED_BYTES);
    }
}

void pki_engine_set_way(struct pki_engine *e, int peer, enum pki_mem_kind source, enum pki_mem_kind target, struct pki_ep *ep)
{
    e->peers[peer].way[source][target] = ep;
}

void pki_engine_start(struct pki_engine *e)
{
    e->checked_ns = pki_now_ns();
    pki_service_attach(e);
}

/* ---- failure ---- */

void pki_engine_poison(struct pki_engine *e, pk_result_t code, bool tell)
{
    if (atomic_load(&e->failed) != PK_OK)
        return;
    e->error = *pki_error_get();
    e->error.code = code;
    e->error.rank = e->config.rank;
    atomic_store(&e->failed, code);
    if (tell)
        pki_side_tell_all(e, true);
}

static void peer_release(struct pki_peer *peer)
{
    struct pki_list *lists[2] = { &peer->sends, &peer->recvs };

    for (int i = 0; i < 2; i++)
        for (struct pki_list *n = lists[i]->next; n != lists[i]; n = n->next) {
            struct pki_xfer *xfer = pki_container_of(n, struct pki_xfer, match);

            if (xfer->start.word != NULL)
                pki_gate_open(&xfer->start);
            if (xfer->finish.word != NULL)
                pki_gate_open(&xfer->finish);
        }
}

/* Every stream and thread that waits is let go, every task ends. Runs once, where nothing else is half done. */
static void collapse(struct pki_engine *e)
{
    struct pki_list *node;

    if (e->collapsed || atomic_load(&e->failed) == PK_OK)
        return;
    e->collapsed = true;
    if (e->abort_word != NULL)
        atomic_store(e->abort_word, 1);
    for (int i = 0; i < e->config.size; i++)
        if (e->peers[i].lane != NULL)
            peer_release(&e->peers[i]);
    pki_capture_release(e);
    while ((node = e->tasks.next) != &e->tasks)
        pki_task_end(pki_container_of(node, struct pki_task, node), (pk_result_t)atomic_load(&e->failed));
}

pk_result_t pki_engine_status(struct pki_engine *e)
{
    pk_result_t code = (pk_result_t)atomic_load(&e->failed); /* pairs with the store in poison: the record is complete */

    if (code != PK_OK)
        pki_error_set(&e->error);
    return code;
}

void pki_engine_abort(struct pki_engine *e)
{
    pki_engine_lock(e);
    if (atomic_load(&e->failed) == PK_OK) {
        struct pki_where where = pki_engine_where(e, -1, NULL);

        (void)pki_fail(PK_ERR_ABORTED, &where, "aborted by this rank");
        pki_engine_poison(e, PK_ERR_ABORTED, true);
    }
    collapse(e);
    pki_engine_unlock(e);
}

/* ---- progress ---- */

static void free_ended(struct pki_engine *e)
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

        (void)e->ifaces[i]->transport->progress(e->ifaces[i]);
        while ((node = pki_list_pop(&e->ifaces[i]->done)) != NULL) {
            pki_send_put_done(pki_container_of(node, struct pki_put, node));
            moved = true;
        }
    }
    return moved;
}

/* Each active transfer leaves the list before it is looked at, and comes back by itself if it must be looked at again. */
static void progress_active(struct pki_engine *e)
{
    struct pki_list batch, *node;

    if (pki_list_empty(&e->active))
        return;
    batch = e->active;
    batch.next->prev = &batch;
    batch.prev->next = &batch;
    pki_list_init(&e->active);
    while ((node = pki_list_pop(&batch)) != NULL)
        pki_xfer_advance(pki_container_of(node, struct pki_xfer, active));
}

static bool task_moves(struct pki_task *task)
{
    if (task->started)
        return task->plan != NULL && task->kind == PKI_MEM_DEVICE && pki_plan_poll(task);
    if (task->mode == PKI_TASK_STREAM || !atomic_load_explicit(&task->may_start, memory_order_acquire) ||
        !pki_gate_is_open(&task->ready) || (task->after_stream && !task->queue.device->ops->idle(&task->queue)))
        return false;
    return pki_task_start(task);
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

static bool waits_for(const struct pki_task *task, const struct pki_peer *peer)
{
    const struct pki_list *lists[2] = { &peer->sends, &peer->recvs };

    for (int k = 0; k < 2; k++)
        for (const struct pki_list *n = lists[k]->next; n != lists[k]; n = n->next)
            if (pki_container_of(n, struct pki_xfer, match)->task == task)
                return true;
    return false;
}

/* Ranks that a task waits for. In a collective first those that have not come to it: others only wait for them in turn. */
static void name_missing(struct pki_engine *e, const struct pki_task *task, char *text, size_t len)
{
    size_t used = 0;

    text[0] = '\0';
    for (int absent = task->plan != NULL; absent >= 0 && used == 0; absent--)
        for (int i = 0; i < e->config.size && used + 16 < len; i++)
            if (waits_for(task, &e->peers[i]) && (!absent || e->peers[i].coll_heard < task->number))
                used += (size_t)snprintf(text + used, len - used, "%s%d", used > 0 ? ", " : "", i);
}

static int first_missing(const char *text)
{
    return text[0] == '\0' ? -1 : atoi(text);
}

int pki_engine_missing(struct pki_engine *e)
{
    char text[160];

    if (pki_list_empty(&e->tasks))
        return -1;
    name_missing(e, pki_engine_first_task(e), text, sizeof text);
    return first_missing(text);
}

static void check_deadlines(struct pki_engine *e, uint64_t now)
{
    char missing[160];

    for (struct pki_list *node = e->tasks.next; node != &e->tasks; node = node->next) {
        struct pki_task *task = pki_container_of(node, struct pki_task, node);
        uint64_t waited_ms = (now - task->begun_ns) / PKI_NS_PER_MS;
        struct pki_where where;

        if (now < task->deadline_ns && (task->warned || now - task->begun_ns < WARN_AFTER_NS))
            continue;
        name_missing(e, task, missing, sizeof missing);
        where = pki_engine_where(e, first_missing(missing), task);
        if (now < task->deadline_ns) {
            task->warned = true;
            pki_log(PKI_LOG_WARN, &where, "has waited %llu ms for rank %s", (unsigned long long)waited_ms,
                    missing[0] != '\0' ? missing : "(none: its own stream has not come to it)");
            continue;
        }
        (void)pki_fail(PK_ERR_TIMEOUT, &where, "no end after %llu ms; waiting for rank %s", (unsigned long long)waited_ms,
                       missing[0] != '\0' ? missing : "(none: its own stream has not come to it)");
        pki_engine_poison(e, PK_ERR_TIMEOUT, true);
        return;
    }
}

static void check_peers(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
        if (e->peers[i].side_fd >= 0)
            pki_side_poll(e, &e->peers[i]);
    /* Only now: who left may have left because of another, who or whose messenger is polled after it. */
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
        if (e->peers[i].gone)
            pki_side_check_left(e, &e->peers[i]);
}

void pki_engine_blame(struct pki_engine *e, pk_result_t code, const struct pki_where *where, const char *what, size_t bytes, size_t done)
{
    if (code == PK_ERR_PEER)
        for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
            if (e->peers[i].side_fd >= 0)
                pki_side_poll(e, &e->peers[i]);
    if (atomic_load(&e->failed) != PK_OK)
        return;
    (void)pki_fail(code, where, "%s of %zu bytes failed after %zu", what, bytes, done);
    pki_engine_poison(e, code, true);
}

static void check_now_and_then(struct pki_engine *e)
{
    uint64_t now;

    if (++e->idle_rounds % 64 != 0)
        return;
    now = pki_now_ns();
    if (now - e->checked_ns < CHECK_EVERY_NS)
        return;
    e->checked_ns = now;
    check_peers(e);
    if (atomic_load(&e->failed) == PK_OK)
        check_deadlines(e, now);
}

bool pki_engine_progress(struct pki_engine *e)
{
    bool moved = false;

    if (atomic_load(&e->failed) == PK_OK) {
        for (int i = 0; i < e->config.size; i++)
            if (e->peers[i].lane != NULL)
                moved |= pki_lane_poll(e, &e->peers[i]);
        moved |= progress_puts(e);
        progress_active(e);
        moved |= progress_tasks(e);
        if (!moved)
            check_now_and_then(e);
    }
    collapse(e);
    free_ended(e);
    return moved;
}

/* ---- end ---- */

static void backoff(struct pki_engine *e, unsigned idle)
{
    if (e->spin && idle < 4000)
        pki_cpu_pause();
    else if (idle < 40000)
        sched_yield();
    else
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    if (idle >= 40000)
        e->idle_rounds |= 63; /* a sleeper looks around at every waking */
}

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
            backoff(e, idle);
    }
}

static void wait_for_tasks(struct pki_engine *e)
{
    unsigned idle = 0;

    for (;;) {
        bool empty, moved;

        pki_engine_lock(e);
        moved = pki_engine_progress(e);
        empty = pki_list_empty(&e->tasks);
        pki_engine_unlock(e);
        if (empty)
            return;
        idle = moved ? 0 : idle + 1;
        backoff(e, idle);
    }
}

static void peer_close(struct pki_engine *e, struct pki_peer *peer)
{
    struct pki_list *node;

    if (e->gpu != NULL && peer->lane != NULL && peer->lane->gates_mine != NULL) {
        e->gpu->ops->host_unregister(e->gpu, peer->lane->gates_mine);
        e->gpu->ops->host_unregister(e->gpu, peer->lane->gates_theirs);
    }
    pki_ll_unimport(e, peer);
    while (peer->neps > 0) {
        struct pki_ep *ep = peer->eps[--peer->neps];

        ep->iface->transport->ep_close(ep);
        free(ep);
    }
    while ((node = pki_list_pop(&peer->arrivals)) != NULL)
        free(pki_container_of(node, struct pki_arrival, node));
    if (peer->side_fd >= 0)
        close(peer->side_fd);
    free(peer->told);
}

static void plans_free(struct pki_engine *e)
{
    for (int i = 0; i < e->nplans; i++) {
        pki_plan_free(e->plans[i].plan);
        free(e->plans[i].dependents);
        free(e->plans[i].dependents_first);
    }
}

static void memory_free(struct pki_engine *e)
{
    struct pki_list *node;

    for (int i = 0; i < PKI_SCRATCH_MAX; i++) {
        struct pki_device *device = e->scratch[i].kind == PKI_MEM_DEVICE ? e->gpu : e->host;

        if (e->scratch[i].ptr != NULL)
            device->ops->free(device, e->scratch[i].ptr);
    }
    if (e->ll_memory != NULL)
        e->gpu->ops->free(e->gpu, e->ll_memory);
    while ((node = pki_list_pop(&e->registrations)) != NULL)
        free(pki_container_of(node, struct pki_registration, node));
    while ((node = pki_list_pop(&e->slabs)) != NULL)
        free(node);
}

pk_result_t pki_engine_close(struct pki_engine *e)
{
    pk_result_t result;

    wait_for_tasks(e);
    pki_service_detach(e);
    result = pki_engine_status(e);
    pki_side_tell_all(e, result != PK_OK);
    if (e->queues_open) {
        e->gpu->ops->queue_close(&e->late);
        e->gpu->ops->queue_close(&e->work);
    }
    pki_capture_close(e);
    pki_region_close_all(e);
    for (int i = 0; i < e->config.size; i++)
        peer_close(e, &e->peers[i]);
    for (int i = e->nifaces - 1; i >= 0; i--) {
        e->ifaces[i]->transport->close(e->ifaces[i]);
        free(e->ifaces[i]);
    }
    plans_free(e);
    memory_free(e);
    pki_words_close(e);
    e->host->ops->close(e->host);
    free(e->peers);
    free(e);
    return result;
}

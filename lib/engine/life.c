/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's life: made, connected, closed. */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/life.h"
#include "engine/mem/graphs.h"
#include "engine/stream/serve.h"
#include "engine/survive.h"
#include "util/fork.h"

static void peer_init(const struct pki_engine *e, struct pki_peer *peer, int rank)
{
    peer->rank = rank;
    peer->side_fd = -1;
    peer->shutdown = PKI_SHUTDOWN_NONE;
    peer->eager.max = peer->eager.coll = e->config.agreed->pair.eager_bytes;
    pki_list_init(&peer->sends);
    pki_list_init(&peer->recvs);
    pki_list_init(&peer->unexpected_queue);
    pki_slots_init(&peer->signals, PKI_SIGNAL_SLOTS);
}

#define OWN_QUEUES 4

static void list_queues(struct pki_engine *e, struct pki_queue *queues[OWN_QUEUES])
{
    queues[0] = &e->proto.work;
    queues[1] = &e->proto.deferred;
    queues[2] = &e->proto.out.queue;
    queues[3] = &e->proto.in.queue;
}

/* Those that are open. What is still in them runs to its end: none of it waits (the queue of fused collectives is fused.c's). */
static void queues_close(struct pki_engine *e)
{
    struct pki_queue *queues[OWN_QUEUES];

    list_queues(e, queues);
    for (int i = 0; i < OWN_QUEUES; i++)
        if (queues[i]->device != NULL)
            e->gpu->ops->queue_close(queues[i]);
    for (int i = 0; i < PKI_BRANCHES; i++)
        if (e->stream.branches[i].queue.device != NULL)
            e->gpu->ops->queue_close(&e->stream.branches[i].queue);
}

/* All at once: to make a stream in the middle of an operation may wait for that operation. */
static pk_result_t queues_open(struct pki_engine *e)
{
    struct pki_queue *queues[OWN_QUEUES];
    pk_result_t result = PK_OK;

    if (e->gpu == NULL)
        return PK_OK;
    list_queues(e, queues);
    for (int i = 0; i < OWN_QUEUES && result == PK_OK; i++)
        result = e->gpu->ops->queue_open(e->gpu, queues[i]);
    e->proto.queues_open = result == PK_OK;
    if (result != PK_OK)
        queues_close(e);
    return result;
}

static void lists_init(struct pki_engine *e)
{
    pki_list_init(&e->tasks.all);
    pki_list_init(&e->proto.active);
    pki_list_init(&e->mem.registrations);
    pki_list_init(&e->mem.mappings.retired);
    pki_list_init(&e->plans.unfreed);
    pki_list_init(&e->mem.graphs);
    pki_list_init(&e->mem.graph_holds);
    pki_list_init(&e->proto.free_xfers);
    pki_list_init(&e->proto.spent_xfers);
    pki_list_init(&e->tasks.ended);
    pki_list_init(&e->tasks.spare);
    pki_list_init(&e->proto.slabs);
    pki_list_init(&e->plans.all);
    pki_list_init(&e->proto.bounce_states);
    pki_list_init(&e->proto.spare_bounces);
    pki_list_init(&e->service.node);
}

static void look_at_gpu(struct pki_engine *e)
{
    struct pki_device_info info;

    e->gpu->ops->info(e->gpu, &info);
    e->limits.ordinal = info.ordinal;
    e->limits.connections = info.connections;
    e->limits.channels = info.copy_connections;
    e->gpu->waiting = pki_waiting_streams(e->limits.ordinal);
    e->limits.places = info.sms > 2 * pki_tuning.gpu.spare_sms ? info.sms - pki_tuning.gpu.spare_sms : info.sms / 2;
}

/* With its peers; nothing is open. NULL: no memory, recorded. */
static struct pki_engine *engine_new(const struct pki_engine_config *config)
{
    struct pki_engine *e = calloc(1, sizeof *e);
    struct pki_peer *peers = calloc((size_t)config->size, sizeof *peers);

    if (e == NULL || peers == NULL) {
        (void)pki_fail(PK_ERR_MEMORY, NULL, "no memory for an engine of %d ranks", config->size);
        free(peers);
        free(e);
        return NULL;
    }
    e->handlers = &pki_handlers;
    atomic_flag_clear(&e->lock.flag);
    e->config = *config;
    if (config->agreed == NULL)
        e->config.agreed = &pki_agreed;
    e->gpu = config->device;
    if (e->gpu != NULL)
        look_at_gpu(e);
    if (e->gpu != NULL && config->sm_policy == PK_SM_BOUNDED)
        e->gpu->max_ctas = config->max_sms;
    lists_init(e);
    pki_list_init(&e->fused.waiting);
    e->peers = peers;
    for (int i = 0; i < config->size; i++)
        peer_init(e, &peers[i], i);
    return e;
}

pk_result_t pki_engine_open(const struct pki_engine_config *config, struct pki_engine **engine)
{
    struct pki_engine *e = engine_new(config);
    pk_result_t result;

    if (e == NULL)
        return PK_ERR_MEMORY;
    result = pki_device_host.open(0, &e->host);
    if (result != PK_OK)
        goto err_free;
    result = pki_signals_open(e);
    if (result != PK_OK)
        goto err_host;
    result = queues_open(e);
    if (result != PK_OK)
        goto err_signals;
    *engine = e;
    return PK_OK;

err_signals:
    pki_signals_close(e);
err_host:
    e->host->ops->close(e->host);
err_free:
    free(e->peers);
    free(e);
    return result;
}

pk_result_t pki_engine_iface(struct pki_engine *e, const struct pki_transport *transport, struct pki_iface **out)
{
    struct pki_iface_config config = { .rank = e->config.rank,
                                       .size = e->config.size,
                                       .local_ranks = e->config.local_ranks,
                                       .shares_cpu = e->config.shares_cpu,
                                       .cpus = e->config.cpus,
                                       .device = e->gpu,
                                       .net = e->config.net };
    struct pki_iface *iface;
    pk_result_t result;

    if (e->ifaces.n == PKI_IFACES_MAX)
        return pki_fail(PK_ERR_INTERNAL, NULL, "more than %d transports", PKI_IFACES_MAX);
    iface = calloc(1, transport->iface_bytes);
    if (iface == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for transport %s", transport->name);
    iface->transport = transport;
    iface->fd = -1;
    pki_list_init(&iface->events);
    result = transport->open(&config, iface);
    if (result != PK_OK) {
        free(iface);
        return result;
    }
    e->ifaces.at[e->ifaces.n++] = iface;
    e->ifaces.call_kernel = e->ifaces.call_kernel || transport->between_hosts;
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

void pki_engine_ep_drop(struct pki_engine *e, int peer, struct pki_ep *ep)
{
    struct pki_peer *p = &e->peers[peer];

    for (int i = 0; i < p->neps; i++)
        if (p->eps[i] == ep) {
            p->eps[i] = p->eps[--p->neps];
            break;
        }
    ep->can_put = false; /* nobody at the other end: no shutdown message */
    ep->iface->transport->ep_close(ep);
    free(ep);
}

static size_t lesser(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void set_eager_put(struct pki_engine *e, struct pki_peer *peer)
{
    const struct pki_iface *iface = peer->ctrl->iface;
    size_t others = e->config.size > 1 ? (size_t)e->config.size - 1 : 1;

    peer->eager_put.credit = lesser(iface->caps.eager_put_credit, pki_tuning.p2p.eager_put_all_bytes / others);
    /* While the other half is not given back, one can still go. */
    peer->eager_put.max = lesser(iface->caps.eager_put_max, peer->eager_put.credit / PKI_CREDIT_SHARE);
}

void pki_engine_set_ctrl(struct pki_engine *e, int peer, struct pki_ep *ctrl, int side_fd)
{
    const struct pki_tuning_pair *pair = &e->config.agreed->pair;

    e->peers[peer].ctrl = ctrl;
    ctrl->iface->carries = true;
    if (ctrl->iface->caps.eager_max > 0)
        e->peers[peer].eager.max = ctrl->iface->caps.eager_max;
    else if (ctrl->signals_mine != NULL && ctrl->iface->caps.msg_payload_max >= pair->eager_shm_bytes &&
             e->config.gpus == PKI_GPUS_NONE)
        e->peers[peer].eager.max = pair->eager_shm_bytes;
    e->peers[peer].eager.coll = e->peers[peer].eager.max;
    if (ctrl->copies == PKI_COPIES_ONE_FAST && e->config.gpus == PKI_GPUS_NONE) {
        e->peers[peer].eager.max = pair->eager_bytes;
        e->peers[peer].eager.coll = pair->coop_fast_bytes;
    }
    if (ctrl->eager_coll > 0 && e->config.gpus == PKI_GPUS_NONE)
        e->peers[peer].eager.coll = ctrl->eager_coll;
    if (e->config.gpus == PKI_GPUS_NONE) /* else the receiver may grant GPU memory, which bytes reach through slots */
        set_eager_put(e, &e->peers[peer]);
    e->peers[peer].side_fd = side_fd;
    if (e->gpu != NULL && ctrl->signals_mine != NULL) {
        /* A failure is found again, with a text, when the first signal is used. */
        (void)e->gpu->ops->host_register(e->gpu, ctrl->signals_mine, PKI_EP_SHARED_BYTES);
        (void)e->gpu->ops->host_register(e->gpu, ctrl->signals_theirs, PKI_EP_SHARED_BYTES);
        /* without it the watchdog leaves these alone */
        e->peers[peer].let_go = calloc(2 * PKI_PAIR_SLOTS, sizeof *e->peers[peer].let_go);
    }
}

void pki_engine_set_hole(struct pki_engine *e, int peer)
{
    e->peers[peer].gone = true;
}

void pki_engine_set_path(struct pki_engine *e, int peer, enum pki_mem_kind source, enum pki_mem_kind target, struct pki_ep *ep)
{
    /* A path through slots bears the name of the transport that carries them, which is no way from buffer to buffer. */
    e->peers[peer].path[source][target] = ep != NULL && ep->iface->transport->reaches[source][target] ? ep : NULL;
    if (e->peers[peer].path[source][target] != NULL)
        ep->iface->carries = true;
}

void pki_engine_start(struct pki_engine *e)
{
    pki_exit_matters();
    e->rounds.checked_ns = pki_now_ns();
    pki_note_open(e);
    pki_serve_open(e);
    pki_service_attach(e);
    if (e->service.needs_background)
        (void)pki_service_wake(); /* without the thread, which the log says, they are recovered while somebody waits here */
}

void pki_engine_give_up(struct pki_engine *e, pk_result_t code)
{
    pki_engine_lock(e);
    pki_engine_poison(e, code, true);
    pki_engine_unlock(e);
}

/* Waits for all work of the GPU, and so for replays that are under way: before anything that they use is unmapped. */
static void signals_unregister(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size; i++) {
        struct pki_ep *ctrl = e->peers[i].ctrl;

        if (e->gpu == NULL || ctrl == NULL || ctrl->signals_mine == NULL)
            continue;
        e->gpu->ops->host_unregister(e->gpu, ctrl->signals_mine);
        e->gpu->ops->host_unregister(e->gpu, ctrl->signals_theirs);
    }
}

static void peer_close(struct pki_peer *peer, bool is_dead)
{
    struct pki_list *node;

    pki_ll_unimport(peer);
    while (peer->neps > 0) {
        struct pki_ep *ep = peer->eps[--peer->neps];

        ep->can_put = ep->can_put && !is_dead; /* else it says a shutdown message, and waits until that is out */
        ep->iface->transport->ep_close(ep);
        free(ep);
    }
    while ((node = pki_list_pop(&peer->unexpected_queue)) != NULL)
        free(pki_container_of(node, struct pki_unexpected, node));
    pki_fork_let_go(peer->side_fd);
    if (peer->side_fd >= 0)
        close(peer->side_fd);
    free(peer->regions.reported);
    free(peer->graph_slots.at);
    free((void *)peer->let_go);
}

static void memory_free(struct pki_engine *e)
{
    struct pki_list *node;

    for (int i = 0; i < PKI_SCRATCH_MAX; i++) {
        struct pki_device *device = e->plans.scratch[i].kind == PKI_MEM_DEVICE ? e->gpu : e->host;

        if (e->plans.scratch[i].ptr != NULL)
            device->ops->free(device, e->plans.scratch[i].ptr);
    }
    free(e->inlined.scratch);
    pki_scratch_close(e);
    pki_graphs_free(e);
    pki_fused_close(e);
    pki_ll_close(e); /* behind all that waits for the kernels of this rank, which write into what it gives up */
    while ((node = pki_list_pop(&e->mem.registrations)) != NULL)
        free(pki_container_of(node, struct pki_registration, node));
    pki_xfers_release(e);
}

pk_result_t pki_engine_close(struct pki_engine *e)
{
    pk_result_t result;

    pki_engine_wait_all(e);
    pki_graphs_wait(e); /* they use memory that is given back here */
    pki_service_detach(e);
    while (atomic_load(&e->service.drivers) > 0) /* they have nothing to wait for any more */
        sched_yield();
    pki_engine_drain(e);
    result = pki_engine_status(e);
    if (result == PK_OK)
        pki_side_send_shutdown(e, PKI_SHUTDOWN_DESTROYED);
    else if (!e->shutdown_sent)
        pki_side_tell_all(e);
    pki_engine_leave_peers(e);
    queues_close(e);
    signals_unregister(e);
    pki_graphs_close(e);
    pki_bounce_close(e);
    pki_shm_alloc_close_all(e);
    pki_region_close_all(e);
    for (int i = 0; i < e->config.size; i++)
        peer_close(&e->peers[i], pki_survive_is_dead(e, i));
    for (int i = e->ifaces.n - 1; i >= 0; i--) {
        e->ifaces.at[i]->transport->close(e->ifaces.at[i]);
        free(e->ifaces.at[i]);
    }
    pki_serve_close(e); /* behind the transports, which look for the ends of what kernels were ordered to copy */
    pki_survive_close(e);
    pki_plans_close(e);
    pki_tasks_close(e);
    memory_free(e);
    pki_signals_close(e);
    e->host->ops->close(e->host);
    free(e->peers);
    free(e);
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: interfaces and endpoints made and closed. */
#include "transport/tcp/conn/reach.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "util/auth.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/fd.h"
#include "util/netif.h"

/* Threads only where each rank has CPUs to spare: they spin for a while, and so do the rank's own. */
static int default_threads(const struct pki_iface_config *config)
{
    if (config->cpus >= pki_tuning.tcp.cpus_for_8_threads)
        return 8;
    return config->cpus >= pki_tuning.tcp.cpus_for_4_threads ? 4 : 0;
}

/* PK_SOCKETS: their number, or number/threads. By default within a machine one for each network interface. */
static pk_result_t read_sockets(struct pki_tcp_iface *iface, const struct pki_iface_config *config)
{
    const char *text = pki_env_get("PK_SOCKETS");
    int given = iface->one_machine ? (int)iface->own.near : pki_tuning.tcp.sockets, helpers = default_threads(config), all = 0;

    if (helpers > given)
        given = helpers;
    if (text != NULL && (sscanf(text, "%2d%n/%1d%n", &given, &all, &helpers, &all) < 1 || text[all] != '\0' || given < 1 ||
                         given > (int)PKI_TCP_SOCKETS_MAX || helpers < 0 || helpers > PKI_TCP_THREADS_MAX))
        return pki_fail(PK_ERR_ARG, NULL,
                        "PK_SOCKETS=%.40s: not a number of connections from 1 to %u, nor one and a number of threads from 0 to "
                        "%d (4/2)",
                        text, PKI_TCP_SOCKETS_MAX, PKI_TCP_THREADS_MAX);
    iface->params.sockets = (uint32_t)given;
    iface->threads.max = helpers;
    return PK_OK;
}

static int64_t default_chunk(const struct pki_tcp_iface *iface, const struct pki_iface_config *config)
{
    bool shares = iface->params.sockets > 1 || iface->threads.max > 0 || config->device != NULL;

    return iface->one_machine && !shares ? pki_tuning.tcp.chunk_alone_bytes : pki_tuning.tcp.chunk_bytes;
}

static pk_result_t read_params(struct pki_tcp_iface *iface, const struct pki_iface_config *config)
{
    int64_t window, chunk;
    pk_result_t result = read_sockets(iface, config);

    if (result == PK_OK)
        result = pki_env_int("PK_WINDOW", 1, PKI_TCP_WINDOW_MAX, pki_tuning.tcp.window, &window);
    if (result == PK_OK)
        result = pki_env_int("PK_CHUNK_BYTES", PKI_TCP_CHUNK_MIN, PKI_TCP_CHUNK_MAX, default_chunk(iface, config), &chunk);
    if (result == PK_OK)
        result = pki_transport_retry_ns(&iface->params.retry_ns);
    if (result != PK_OK)
        return result;
    iface->params.window = (uint32_t)window;
    iface->params.chunk_bytes = (uint32_t)chunk;
    return PK_OK;
}

static void tcp_probe(const struct pki_iface_config *config, struct pki_probe *probe)
{
    char text[PKI_NETIF_TEXT];

    *probe = (struct pki_probe){ .usable = config->net != NULL };
    if (config->net == NULL) {
        snprintf(probe->reason, sizeof probe->reason, "this rank has no connection to another one");
        return;
    }
    pki_netif_format(&config->net->local, text);
    *strrchr(text, ':') = '\0';
    snprintf(probe->reason, sizeof probe->reason, "address %s", text);
}

/* ---- Interface ---- */

static void tcp_close(struct pki_iface *base)
{
    struct pki_tcp_iface *iface = pki_tcp_iface_of(base);

    pki_tcp_threads_close(&iface->threads);
    pki_tcp_unproven_close(iface);
    for (uint32_t i = 0; i < iface->accepting.listeners; i++)
        pki_tcp_source_remove(&iface->accepting.listener[i]);
    if (iface->epoll_fd >= 0)
        close(iface->epoll_fd);
    free(iface->eps);
    iface->eps = NULL;
    pki_auth_wipe(iface->key, sizeof iface->key);
}

static pk_result_t listen_and_watch(struct pki_tcp_iface *iface, const struct pki_tcp_choice *choice)
{
    iface->eps = calloc((size_t)iface->size, sizeof *iface->eps);
    iface->epoll_fd = pki_fd_keep(epoll_create1(EPOLL_CLOEXEC));
    if (iface->eps == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "over tcp: no memory for %d ranks", iface->size);
    if (iface->epoll_fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "over tcp: epoll_create");
    return pki_tcp_listen(iface, choice);
}

static pk_result_t tcp_open(const struct pki_iface_config *config, struct pki_iface *base)
{
    struct pki_tcp_iface *iface = pki_tcp_iface_of(base);
    struct pki_tcp_choice choice;
    pk_result_t result;

    if (config->net == NULL)
        return PK_ERR_UNSUPPORTED;
    iface->rank = config->rank;
    iface->size = config->size;
    iface->one_machine = config->net->one_machine || (pki_netif_is_loopback(&config->net->local) && !config->net->outside);
    iface->net = config->net;
    memcpy(iface->key, config->net->key, sizeof iface->key);
    iface->epoll_fd = base->fd = -1;
    pki_list_init(&iface->ready);
    pki_list_init(&iface->threads.jobs);
    for (int i = 0; i < PKI_TCP_UNPROVEN_MAX; i++)
        iface->accepting.unproven[i].source.fd = -1;
    result = pki_tcp_choose_nics(config, &choice);
    iface->own.near = choice.near;
    if (result == PK_OK)
        result = read_params(iface, config);
    if (result == PK_OK)
        result = listen_and_watch(iface, &choice);
    if (result != PK_OK) {
        tcp_close(base);
        return result;
    }
    pki_tcp_scopes_find(iface);
    base->caps.msg_payload_max = PKI_TCP_PAYLOAD_MAX;
    base->caps.eager_max = pki_tuning.tcp.eager_bytes < PKI_TCP_EAGER_MAX ? pki_tuning.tcp.eager_bytes : PKI_TCP_EAGER_MAX;
    base->caps.eager_credits = true;
    base->caps.eager_put_max = PKI_TCP_EAGER_PUT_MAX;
    base->caps.eager_put_credit = PKI_TCP_EAGER_PUT_CREDIT;
    base->caps.deep = true;
    return PK_OK;
}

/* ---- Endpoints ---- */

static pk_result_t tcp_ep_init(struct pki_ep *base, struct pki_blob *mine)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_iface *iface = pki_tcp_iface_of(base->iface);
    struct pki_tcp_peer_info peer_info = { .sockets = iface->params.sockets,
                                           .window = iface->params.window,
                                           .chunk_bytes = iface->params.chunk_bytes,
                                           .addresses = iface->own.count,
                                           .near = iface->own.near };
    const struct pki_net *net = iface->net;

    ep->iface = iface;
    ep->connects = base->rank > base->peer;
    base->eager_coll = PKI_TCP_EAGER_MAX;
    pki_list_init(&ep->grants.list);
    pki_list_init(&ep->unexpected.list);
    memcpy(peer_info.address, iface->own.address, sizeof peer_info.address);
    if (iface->own.how == PKI_TCP_ALL && base->peer < net->nmet && net->met[base->peer].ss_family != AF_UNSPEC)
        pki_tcp_put_met_first(&peer_info, &net->met[base->peer]);
    pki_tcp_put_peer_info(mine, &peer_info);
    return PK_OK;
}

static uint32_t lower(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static pk_result_t make_links(struct pki_tcp_ep *ep)
{
    ep->links = calloc(1 + ep->params.sockets, sizeof *ep->links);
    if (ep->links == NULL) {
        struct pki_where where = pki_tcp_where(ep);

        return pki_fail(PK_ERR_MEMORY, &where, "over tcp: no memory for %u connections", 1 + ep->params.sockets);
    }
    ep->nlinks = 1 + ep->params.sockets;
    for (uint32_t i = 0; i < ep->nlinks; i++) {
        struct pki_tcp_link *link = &ep->links[i];

        link->source.kind = PKI_TCP_LINK;
        link->source.fd = -1;
        pki_list_init(&link->ready);
        link->ep = ep;
        link->index = i;
        link->state = PKI_TCP_WAITING;
        link->attempt.broken_ns = pki_now_ns();
    }
    pki_tcp_ctrl_use(&ep->links[0]);
    for (uint32_t i = 1; i < ep->nlinks; i++)
        pki_tcp_data_use(&ep->links[i]);
    return PK_OK;
}

static pk_result_t take_peer_info(struct pki_tcp_ep *ep, const struct pki_blob *theirs)
{
    struct pki_where where = pki_tcp_where(ep);
    uint32_t version = pki_tcp_peer_info_version(theirs);

    if (pki_tcp_get_peer_info(theirs, &ep->theirs))
        return PK_OK;
    if (version == 0 || version == PKI_TCP_VERSION)
        return pki_fail(PK_ERR_PEER, &where, "over tcp: its description makes no sense");
    return pki_fail(PK_ERR_MISMATCH, &where,
                    "over tcp: it speaks version %u, this rank version %u: all ranks need the same version of the library",
                    version, PKI_TCP_VERSION);
}

/* What stands when it fails, ep_close takes away. */
static pk_result_t tcp_ep_connect(struct pki_ep *base, struct pki_blob *theirs)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_where where = pki_tcp_where(ep);
    const struct pki_tcp_params *mine = &ep->iface->params;
    pk_result_t result;

    result = take_peer_info(ep, theirs);
    if (result != PK_OK)
        return result;
    pki_tcp_targets_fill(ep);
    ep->params = (struct pki_tcp_params){ .sockets = lower(mine->sockets, ep->theirs.sockets),
                                          .window = lower(mine->window, ep->theirs.window),
                                          .chunk_bytes = lower(mine->chunk_bytes, ep->theirs.chunk_bytes) };
    if (!pki_tcp_ctrl_open(&ep->ctrl) || !pki_tcp_puts_open(ep) || !pki_tcp_grants_open(ep))
        return pki_fail(PK_ERR_MEMORY, &where, "over tcp: no memory for an endpoint");
    result = make_links(ep);
    if (result != PK_OK)
        return result;
    ep->iface->eps[base->peer] = ep;
    ep->iface->neps++;
    pki_tcp_trouble(ep->iface);
    pki_ep_enter(base, PKI_EP_CONNECTING);
    base->can_put = true;
    base->report = ep->targets.report;
    pki_tcp_report(ep);
    return PK_OK;
}

static void tcp_ep_close(struct pki_ep *base)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);

    if (ep->links != NULL) {
        if (base->can_put && base->state != PKI_EP_DEAD && !ep->left)
            pki_tcp_ctrl_close(ep);
        for (uint32_t i = 1; i < ep->nlinks; i++)
            pki_tcp_recall(&ep->links[i]);
        for (uint32_t i = 0; i < ep->nlinks; i++) {
            pki_list_remove(&ep->links[i].ready);
            pki_tcp_source_remove(&ep->links[i].source);
        }
        ep->iface->eps[base->peer] = NULL;
        ep->iface->neps--;
    }
    pki_tcp_grants_close(ep);
    pki_tcp_unexpected_close(ep);
    free(ep->links);
    ep->links = NULL;
    pki_tcp_puts_close(ep);
    free(ep->retransmit.ring);
    ep->retransmit = (struct pki_tcp_retransmit){ 0 };
    pki_tcp_ctrl_free(&ep->ctrl);
    base->can_put = false;
    pki_ep_enter(base, PKI_EP_DEAD);
}

static void tcp_recv_cancel(struct pki_iface *base)
{
    struct pki_tcp_iface *iface = pki_tcp_iface_of(base);

    iface->revoked = true;
    for (int i = 0; i < iface->size; i++)
        if (iface->eps[i] != NULL)
            pki_tcp_data_give_up(iface->eps[i]);
}

const struct pki_transport pki_transport_tcp = {
    .name = "tcp",
    .link = "socket",
    .between_hosts = true,
    .posts = true,
    .iface_bytes = sizeof(struct pki_tcp_iface),
    .ep_bytes = sizeof(struct pki_tcp_ep),
    .reaches = { [PKI_MEM_HOST] = { [PKI_MEM_HOST] = true } },
    .probe = tcp_probe,
    .open = tcp_open,
    .close = tcp_close,
    .ep_init = tcp_ep_init,
    .ep_connect = tcp_ep_connect,
    .ep_close = tcp_ep_close,
    .send = pki_tcp_send,
    .peek = pki_tcp_peek,
    .pop = pki_tcp_pop,
    .put = pki_tcp_put,
    .recv_post = pki_tcp_recv_post,
    .recv_cancel = tcp_recv_cancel,
    .progress = pki_tcp_progress,
};

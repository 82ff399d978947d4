/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing the way between every pair of ranks and connecting its endpoints. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/socket.h"
#include "util/text.h"

/* The endpoints to one peer while they are being connected, by transport. */
struct link {
    struct pki_ep *eps[PKI_TRANSPORTS_MAX];
    struct pki_blob theirs[PKI_TRANSPORTS_MAX];
};

struct wire_blob { /* what travels over the unix socket, one a transport, with at most one descriptor */
    uint32_t transport, len;
    uint8_t bytes[sizeof((struct pki_blob *)0)->bytes];
};

/* Both can use it, and it is made for this pair: some join the ranks of a host, others those of different hosts. */
static bool both_can(const struct pk_comm *comm, int peer, int t)
{
    return comm->peer_infos[comm->rank].probes[t].usable && comm->peer_infos[peer].probes[t].usable &&
           pki_transports()[t]->between_hosts != comm->local[peer];
}

static bool has_peer_for(const struct pk_comm *comm, int t)
{
    for (int i = 0; i < comm->size; i++)
        if (i != comm->rank && both_can(comm, i, t))
            return true;
    return false;
}

static pk_result_t open_ifaces(struct pk_comm *comm)
{
    const struct pki_transport *const *transports = pki_transports();

    for (int t = 0; t < PKI_TRANSPORTS_MAX && transports[t] != NULL; t++) {
        pk_result_t result;

        if (!comm->peer_infos[comm->rank].probes[t].usable || (transports[t]->between_hosts && !has_peer_for(comm, t)))
            continue;
        result = pki_engine_iface(comm->engine, transports[t], &comm->ifaces[t]);
        if (result != PK_OK)
            return result;
    }
    return PK_OK;
}

static pk_result_t offer(struct pk_comm *comm, int peer, struct link *link)
{
    bool same_process = pki_same_process(comm, peer, comm->rank);
    const struct pki_wait wait = pki_comm_setup_timeout(comm);
    struct pki_where where = { .rank = comm->rank, .peer = peer, .op = "init" };

    for (int t = 0; t < PKI_TRANSPORTS_MAX; t++) {
        struct wire_blob wire = { .transport = (uint32_t)t };
        struct pki_blob mine;
        pk_result_t result;

        if (comm->ifaces[t] == NULL || !both_can(comm, peer, t))
            continue;
        result = pki_engine_ep_open(comm->engine, comm->ifaces[t], peer, same_process, comm->peer_infos[peer].pid, &mine,
                                    &link->eps[t]);
        if (result != PK_OK)
            return result;
        wire.len = mine.len;
        memcpy(wire.bytes, mine.bytes, sizeof wire.bytes);
        result = pki_fd_send_wait(comm->side_fds[peer], &wire, sizeof wire, &mine.fd, mine.fd >= 0 ? 1 : 0, &wait, &where);
        if (result != PK_OK)
            return result;
    }
    return PK_OK;
}

static pk_result_t accept_offers(struct pk_comm *comm, int peer, struct link *link)
{
    const struct pki_wait wait = pki_comm_setup_timeout(comm);
    struct pki_where where = { .rank = comm->rank, .peer = peer, .op = "init" };

    for (int t = 0; t < PKI_TRANSPORTS_MAX; t++) {
        struct wire_blob wire;
        int fd = -1;
        struct pki_frame_in in = { .data = &wire, .capacity = sizeof wire, .fds = &fd, .fd_capacity = 1 };
        pk_result_t result;

        if (link->eps[t] == NULL)
            continue;
        result = pki_fd_recv_wait(comm->side_fds[peer], &in, &wait, &where);
        if (result != PK_OK)
            return result;
        if (in.bytes != sizeof wire || wire.transport != (uint32_t)t || wire.len > sizeof wire.bytes) {
            if (in.fd_count > 0)
                close(fd);
            return pki_fail(PK_ERR_INTERNAL, &where, "offer of transport %u instead of %d", wire.transport, t);
        }
        link->theirs[t].len = wire.len;
        memcpy(link->theirs[t].bytes, wire.bytes, sizeof wire.bytes);
        link->theirs[t].fd = in.fd_count > 0 ? fd : -1;
        result = link->eps[t]->iface->transport->ep_connect(link->eps[t], &link->theirs[t]);
        if (result != PK_OK)
            return result;
    }
    return PK_OK;
}

/* ---- Ranks on other hosts: offers travel through the bootstrap, and connections are made side by side ---- */

static bool one_host(const struct pk_comm *comm)
{
    for (int i = 0; i < comm->size; i++)
        if (!comm->local[i] && !pki_is_hole(comm, i))
            return false;
    return true;
}

/* A later transport of the list joins this pair too: it can do without this one, whatever is wrong with it. */
static bool has_another(const struct pk_comm *comm, int peer, int t)
{
    for (int other = t + 1; other < PKI_TRANSPORTS_MAX; other++)
        if (comm->ifaces[other] != NULL && both_can(comm, peer, other))
            return true;
    return false;
}

static void do_without(struct pk_comm *comm, int peer, int t, struct link *link)
{
    struct pki_where where = { .rank = comm->rank, .peer = peer, .op = "init" };

    if (link->eps[t] != NULL)
        pki_engine_ep_drop(comm->engine, peer, link->eps[t]);
    link->eps[t] = NULL;
    pki_log(PKI_LOG_WARN, &where, "%s does not join these two ranks: another transport does", comm->ifaces[t]->transport->name);
}

/* offers[PKI_TRANSPORTS_MAX][size], to each rank; one of length 0 where the transport refused. */
static pk_result_t make_offers(struct pk_comm *comm, struct link *links, struct wire_blob *offers)
{
    for (int i = 0; i < comm->size; i++)
        for (int t = 0; t < PKI_TRANSPORTS_MAX; t++) {
            struct wire_blob *offer = &offers[t * comm->size + i];
            struct pki_blob mine;
            pk_result_t result;

            if (i == comm->rank || comm->local[i] || comm->ifaces[t] == NULL || !both_can(comm, i, t))
                continue;
            result = pki_engine_ep_open(comm->engine, comm->ifaces[t], i, false, 0, &mine, &links[i].eps[t]);
            if (result != PK_OK && has_another(comm, i, t)) {
                do_without(comm, i, t, &links[i]);
                continue;
            }
            if (result != PK_OK)
                return result;
            offer->transport = (uint32_t)t;
            offer->len = mine.len;
            memcpy(offer->bytes, mine.bytes, sizeof offer->bytes);
        }
    return PK_OK;
}

/* All ranks know alike what any of them can use. */
static bool anyone_can(const struct pk_comm *comm, int t)
{
    const struct pki_transport *transport = pki_transports()[t];

    for (int i = 0; i < comm->size && transport != NULL && transport->between_hosts; i++)
        if (comm->peer_infos[i].probes[t].usable)
            return true;
    return false;
}

static pk_result_t exchange_offers(struct pk_comm *comm, const struct wire_blob *mine, struct wire_blob *theirs)
{
    pk_result_t result = PK_OK;

    for (int t = 0; t < PKI_TRANSPORTS_MAX && pki_transports()[t] != NULL && result == PK_OK; t++)
        if (anyone_can(comm, t))
            result = pki_comm_alltoall(comm, mine + t * comm->size, sizeof *mine, theirs + t * comm->size);
    return result;
}

static pk_result_t take_offers(struct pk_comm *comm, struct link *links, const struct wire_blob *offers)
{
    for (int i = 0; i < comm->size; i++)
        for (int t = 0; t < PKI_TRANSPORTS_MAX; t++) {
            const struct wire_blob *offer = &offers[t * comm->size + i];
            struct pki_where where = { .rank = comm->rank, .peer = i, .op = "init" };
            struct pki_blob *theirs = &links[i].theirs[t];
            pk_result_t result;

            if (comm->local[i] || links[i].eps[t] == NULL)
                continue;
            if (offer->len == 0 && has_another(comm, i, t)) {
                do_without(comm, i, t, &links[i]);
                continue;
            }
            if (offer->transport != (uint32_t)t || offer->len > sizeof theirs->bytes)
                return pki_fail(PK_ERR_INTERNAL, &where, "offer of transport %u instead of %d", offer->transport, t);
            theirs->len = offer->len;
            theirs->fd = -1;
            memcpy(theirs->bytes, offer->bytes, sizeof theirs->bytes);
            result = links[i].eps[t]->iface->transport->ep_connect(links[i].eps[t], theirs);
            if (result != PK_OK && has_another(comm, i, t))
                do_without(comm, i, t, &links[i]);
            else if (result != PK_OK)
                return result;
        }
    return PK_OK;
}

/* What one of two ranks does without, the other does without too. */
static pk_result_t agree(struct pk_comm *comm, struct link *links)
{
    const size_t size = (size_t)comm->size;
    uint8_t *stand = calloc(2 * size, 1), *theirs; /* bit t: transport t joins us */
    pk_result_t result;

    if (stand == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the connections of %d ranks", comm->size);
    theirs = stand + size;
    for (size_t i = 0; i < size; i++)
        for (int t = 0; t < PKI_TRANSPORTS_MAX; t++)
            stand[i] |= (uint8_t)((links[i].eps[t] != NULL) << t);
    result = pki_comm_alltoall(comm, stand, 1, theirs);
    for (int i = 0; i < comm->size && result == PK_OK; i++)
        for (int t = 0; t < PKI_TRANSPORTS_MAX; t++)
            if (!comm->local[i] && links[i].eps[t] != NULL && (theirs[i] >> t & 1) == 0)
                do_without(comm, i, t, &links[i]);
    free(stand);
    return result;
}

/* The first endpoint that is still being connected or has died meanwhile; NULL: all stand. */
static const struct pki_ep *unfinished(const struct pk_comm *comm, const struct link *links)
{
    for (int i = 0; i < comm->size; i++)
        for (int t = 0; t < PKI_TRANSPORTS_MAX; t++) {
            const struct pki_ep *ep = links[i].eps[t];

            if (!comm->local[i] && ep != NULL && (ep->state == PKI_EP_CONNECTING || ep->state == PKI_EP_DEAD))
                return ep;
        }
    return NULL;
}

/* With what the transport knows of why. */
static pk_result_t not_connected(const struct pki_ep *ep)
{
    struct pki_where where = { .rank = ep->rank, .peer = ep->peer, .op = "init" };

    errno = ep->cause.sys_errno;
    return pki_fail_errno(PK_ERR_TIMEOUT, &where, "no connection over %s before the deadline: %s%s", ep->iface->transport->name,
                          ep->report != NULL ? ep->report : "", errno != 0 ? "; last" : "");
}

/* Another rank's deadline has passed, and it names no third one: this rank knows what became of its own attempts to connect. */
static pk_result_t told(const struct pki_ep *ep, pk_result_t result)
{
    return result == PK_ERR_TIMEOUT && pki_error_get()->peer < 0 && ep->cause.sys_errno != 0 ? not_connected(ep) : result;
}

static pk_result_t finish_remote(struct pk_comm *comm, const struct link *links)
{
    const struct pki_ep *ep;
    unsigned rounds = 0;

    while ((ep = unfinished(comm, links)) != NULL) {
        struct pki_where where = { .rank = comm->rank, .peer = ep->peer, .op = "init" };
        const bool looks = ++rounds % PKI_CONNECT_LOOK_ROUNDS == 0;
        pk_result_t result = looks ? pki_bootstrap_poll(comm->bootstrap) : PK_OK;

        if (result != PK_OK)
            return told(ep, result);
        if (ep->state == PKI_EP_DEAD)
            return PK_ERR_PEER; /* recorded when it died */
        if (looks && pki_is_called_off(&comm->cancel))
            return pki_fail(PK_ERR_ABORTED, &where, "aborted");
        if (pki_now_ns() >= comm->deadline_ns)
            return not_connected(ep);
        for (int t = 0; t < PKI_TRANSPORTS_MAX; t++)
            if (comm->ifaces[t] != NULL)
                (void)comm->ifaces[t]->transport->progress(comm->ifaces[t]);
        if (rounds > pki_tuning.start.connect_rounds)
            usleep(pki_tuning.start.connect_us);
    }
    return PK_OK;
}

static pk_result_t connect_remote(struct pk_comm *comm, struct link *links)
{
    size_t n = (size_t)comm->size * PKI_TRANSPORTS_MAX;
    struct wire_blob *mine = calloc(2 * n, sizeof *mine);
    pk_result_t result;

    if (mine == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the offers of %d ranks", comm->size);
    result = make_offers(comm, links, mine);
    if (result == PK_OK)
        result = exchange_offers(comm, mine, mine + n);
    if (result == PK_OK)
        result = take_offers(comm, links, mine + n);
    if (result == PK_OK)
        result = agree(comm, links);
    if (result == PK_OK)
        result = finish_remote(comm, links);
    free(mine);
    return result;
}

static enum pki_nearness nearness(const struct pk_comm *comm, int peer)
{
    if (peer == comm->rank)
        return PKI_NEAR_SELF;
    if (!comm->local[peer])
        return PKI_NEAR_NOT;
    return pki_same_process(comm, peer, comm->rank) ? PKI_NEAR_PROCESS : PKI_NEAR_HOST;
}

static enum pki_joint joint(const struct link *link, int transport)
{
    if (link == NULL || link->eps[transport] == NULL)
        return PKI_JOINT_NONE;
    return link->eps[transport]->can_put ? PKI_JOINT_PUTS : PKI_JOINT_STANDS;
}

static void fill_facts(const struct pk_comm *comm, int peer, const struct link *link, struct pki_pair *pair,
                       char apart[PKI_APART_TEXT])
{
    const struct pki_transport *const *transports = pki_transports();
    const struct pki_peer_info *a = &comm->peer_infos[comm->rank], *b = &comm->peer_infos[peer];

    memset(pair, 0, sizeof *pair);
    pair->near = nearness(comm, peer);
    if (pair->near == PKI_NEAR_NOT) {
        pki_say_apart(a, b, apart);
        pair->apart = apart;
    }
    pair->has_gpu[0] = a->has_gpu != 0;
    pair->has_gpu[1] = b->has_gpu != 0;
    pair->same_gpu = pki_same_gpu(a, b);
    pair->distance = (enum pki_distance)comm->gpu_distances[peer];
    pair->p2p_level = (enum pki_distance)comm->settings.p2p_level;
    for (int t = 0; t < PKI_TRANSPORTS_MAX && transports[t] != NULL; t++) {
        pair->transports[t] = transports[t];
        pair->probes[t][0] = a->probes[t];
        pair->probes[t][1] = b->probes[t];
        pair->joints[t] = joint(link, t);
        pair->ntransports = t + 1;
    }
}

static struct pki_ep *ep_named(const struct link *link, const char *name)
{
    for (int t = 0; t < PKI_TRANSPORTS_MAX; t++)
        if (name != NULL && link->eps[t] != NULL && strcmp(link->eps[t]->iface->transport->name, name) == 0)
            return link->eps[t];
    return NULL;
}

static void choose_paths(struct pk_comm *comm, int peer, const struct link *link)
{
    struct pki_pair pair;
    char apart[PKI_APART_TEXT];

    fill_facts(comm, peer, link, &pair, apart);
    for (int source = 0; source < 2; source++)
        for (int target = 0; target < 2; target++) {
            struct pki_path *path = &comm->paths[peer].way[source][target];

            pki_select(&pair, (enum pki_mem_kind)source, (enum pki_mem_kind)target, path);
            if (link != NULL)
                pki_engine_set_path(comm->engine, peer, (enum pki_mem_kind)source, (enum pki_mem_kind)target,
                                    ep_named(link, path->transport));
        }
}

/* The control channel is the first transport that carries messages. */
static pk_result_t set_ctrl(struct pk_comm *comm, int peer, const struct link *link)
{
    struct pki_where where = { .rank = comm->rank, .peer = peer, .op = "init" };

    for (int t = 0; t < PKI_TRANSPORTS_MAX; t++)
        if (link->eps[t] != NULL && comm->ifaces[t]->caps.msg_payload_max > 0) {
            pki_engine_set_ctrl(comm->engine, peer, link->eps[t], comm->side_fds[peer]);
            comm->side_fds[peer] = -1;
            return PK_OK;
        }
    return pki_fail(PK_ERR_UNSUPPORTED, &where, "no transport carries messages to it: %s", comm->paths[peer].way[0][0].reason);
}

/* Pair by pair, all ranks in the same order: no rank has more than one descriptor under way to a peer that is not about to
 * take it. The kernel bounds how many a user may have in flight, and those who all send first would wait for one another. */
static pk_result_t connect_local(struct pk_comm *comm, struct link *links)
{
    pk_result_t result = PK_OK;

    for (int turn = 0; turn < comm->size && result == PK_OK; turn++) {
        int peer = (turn - comm->rank + comm->size) % comm->size;

        if (peer == comm->rank || !comm->local[peer])
            continue;
        result = offer(comm, peer, &links[peer]);
        if (result == PK_OK)
            result = accept_offers(comm, peer, &links[peer]);
    }
    return result;
}

static pk_result_t connect_all(struct pk_comm *comm, struct link *links)
{
    pk_result_t result = open_ifaces(comm), news;

    if (result == PK_OK && !one_host(comm))
        result = connect_remote(comm, links);
    if (result == PK_OK)
        result = connect_local(comm, links);
    if (result != PK_ERR_PEER)
        return result;
    news = pki_bootstrap_news(comm->bootstrap);
    return news != PK_OK ? news : result;
}

/* Peer access counts when data has come out right. */
static pk_result_t verify(struct pk_comm *comm, const struct link *links)
{
    struct pki_ep **eps = calloc((unsigned)comm->size, sizeof(struct pki_ep *));
    pk_result_t result;

    if (eps == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d ranks", comm->size);
    for (int i = 0; i < comm->size; i++) {
        const struct pki_path *path = &comm->paths[i].way[PKI_MEM_DEVICE][PKI_MEM_DEVICE];
        struct pki_ep *ep = i == comm->rank ? NULL : ep_named(&links[i], path->transport);
        bool one_gpu =
            memcmp(comm->peer_infos[i].gpu_uuid, comm->peer_infos[comm->rank].gpu_uuid, sizeof comm->peer_infos[i].gpu_uuid) == 0;

        if (ep != NULL && ep->iface->transport->reaches[PKI_MEM_DEVICE][PKI_MEM_DEVICE] && !one_gpu)
            eps[i] = ep;
    }
    result = pki_comm_verify(comm, eps);
    for (int i = 0; i < comm->size && result == PK_OK; i++)
        if (eps[i] != NULL && !eps[i]->can_put)
            choose_paths(comm, i, &links[i]);
    free(eps);
    return result;
}

pk_result_t pki_comm_connect(struct pk_comm *comm)
{
    struct link *links = calloc((size_t)comm->size, sizeof *links);
    pk_result_t result;

    if (links == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d links", comm->size);
    result = pki_comm_locate(comm);
    if (result == PK_OK)
        result = connect_all(comm, links);
    for (int i = 0; i < comm->size && result == PK_OK; i++) {
        choose_paths(comm, i, i == comm->rank ? NULL : &links[i]);
        if (pki_is_hole(comm, i))
            pki_engine_set_hole(comm->engine, i);
        else if (i != comm->rank)
            result = set_ctrl(comm, i, &links[i]);
    }
    if (result == PK_OK)
        result = verify(comm, links);
    free(links); /* the engine owns the endpoints */
    return result;
}

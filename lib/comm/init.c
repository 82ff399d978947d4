/* SPDX-License-Identifier: Apache-2.0 */
/* Bringing a communicator up: device, ranks, peer infos, paths, endpoints. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "coll/hosts.h"
#include "comm/comm.h"
#include "switchml/switchml.h"
#include "util/clock.h"
#include "util/netif.h"

static void probe(struct pk_comm *comm, struct pki_peer_info *peer_info)
{
    struct pki_iface_config config = {
        .rank = comm->rank, .size = comm->size, .device = comm->device, .net = comm->has_net ? &comm->net : NULL
    };
    const struct pki_transport *const *transports = pki_transports();

    for (int i = 0; i < PKI_TRANSPORTS_MAX && transports[i] != NULL; i++)
        transports[i]->probe(&config, &peer_info->probes[i]);
}

static void fill_peer_info(struct pk_comm *comm, struct pki_peer_info *peer_info)
{
    memset(peer_info, 0, sizeof *peer_info);
    peer_info->pid = getpid();
    peer_info->process = pki_process_number();
    pki_token_show(&comm->token);
    memcpy(peer_info->token, comm->token.bytes, sizeof peer_info->token);
    peer_info->settings = comm->settings;
    peer_info->cpus = comm->cpus;
    if (comm->device != NULL) {
        struct pki_device_info info;

        comm->device->ops->info(comm->device, &info);
        peer_info->has_gpu = 1;
        peer_info->kernels = comm->config.sm_policy != PK_SM_NONE && info.connections > PKI_FEW_QUEUES;
        peer_info->fused_ctas = comm->config.sm_policy == PK_SM_NONE      ? 0
                                : comm->config.sm_policy == PK_SM_BOUNDED ? comm->config.max_sms
                                                                          : PKI_FUSED_CTAS;
        memcpy(peer_info->gpu_uuid, info.uuid, sizeof peer_info->gpu_uuid);
        memcpy(peer_info->gpu_pci, info.pci_bus_id, sizeof peer_info->gpu_pci);
    }
    probe(comm, peer_info);
    pki_peer_info_fill_host(peer_info, comm->size > 1);
    peer_info->outside = comm->has_net && !pki_netif_is_loopback(&comm->net.local);
}

/* What transports between hosts prove themselves with, and where. */
static pk_result_t find_net(struct pk_comm *comm)
{
    _Static_assert(PKI_NET_KEY_BYTES == PKI_BOOTSTRAP_KEY_BYTES, "one is the other");
    comm->has_net = pki_bootstrap_local_address(comm->bootstrap, &comm->net.local);
    if (!comm->has_net)
        return PK_OK;
    comm->met = calloc((size_t)comm->size, sizeof *comm->met);
    if (comm->met == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the addresses of %d ranks", comm->size);
    comm->net.nmet = pki_seats_addresses(comm, comm->met);
    comm->net.met = comm->met;
    return pki_bootstrap_derive(comm->bootstrap, "pickle between hosts", comm->net.key);
}

/* Loopback joins the ranks only where all have met over it, and no two are known to be on different machines: a tunnel may end
 * there. All ranks find the same, also one that does not know its own machine. */
static bool is_outside(const struct pk_comm *comm)
{
    const struct pki_peer_info *known = NULL;

    for (int i = 0; i < comm->size; i++) {
        const struct pki_peer_info *peer_info = &comm->peer_infos[i];

        if (peer_info->outside != 0 || (known != NULL && pki_other_machine(peer_info, known)))
            return true;
        if (known == NULL && peer_info->host.machine_known)
            known = peer_info;
    }
    return false;
}

/* This rank has met others over loopback alone, and some are elsewhere: its address is another one for them. */
static void look_outside(struct pk_comm *comm)
{
    struct pki_netif first;
    int count = 0;

    comm->net.outside = is_outside(comm);
    if (!comm->net.outside || !pki_netif_is_loopback(&comm->net.local) || !pki_netif_is_known() ||
        pki_netif_addresses(false, &first, 1, &count) != PK_OK || count == 0)
        return;
    comm->net.local = first.address;
    probe(comm, &comm->peer_infos[comm->rank]);
}

static pk_result_t find_hosts(struct pk_comm *comm)
{
    int *first = malloc((size_t)comm->size * sizeof *first); /* the first rank of each rank's host */
    pk_result_t result;

    if (first == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the hosts of %d ranks", comm->size);
    for (int i = 0; i < comm->size; i++)
        for (first[i] = 0; !pki_share_host(&comm->peer_infos[first[i]], &comm->peer_infos[i]);)
            first[i]++;
    result = pki_hosts_make(first, comm->size, &comm->hosts);
    free(first);
    return result;
}

static pk_result_t prepare_choice(struct pk_comm *comm)
{
    struct pki_chooser *c = &comm->chooser;
    pk_result_t result = find_hosts(comm);

    if (result != PK_OK)
        return result;
    c->settings = comm->settings;
    c->size = comm->size;
    c->hosts = comm->hosts->n;
    c->gpus = c->relayed = false;
    c->one_machine = true;
    for (int i = 0; i < comm->size; i++) {
        c->gpus = c->gpus || comm->peer_infos[i].has_gpu;
        c->one_machine =
            c->one_machine && (pki_is_hole(comm, i) || pki_same_machine(&comm->peer_infos[i], &comm->peer_infos[comm->rank]));
    }
    return pki_chooser_init(c);
}

#define INIT_DESCRIPTORS 3 /* of each rank, while it meets the others */
#define OWN_DESCRIPTORS 4  /* of a process that does nothing else */

/* By what they say, which is enough for a count: a rank that has failed already is found no more. */
static bool claims_this_process(const struct pki_peer_info *peer_info, const struct pki_peer_info *mine)
{
    return peer_info->pid == mine->pid && peer_info->process == mine->process && pki_same_machine(peer_info, mine);
}

/* Each rank keeps a socket to every other one of its host, and both ends are this process's where that is a rank of it. Those
 * who wait for descriptors in vain would wait until the deadline. */
static pk_result_t check_descriptors(const struct pk_comm *comm)
{
    struct pki_where where = { .rank = comm->rank, .peer = -1, .op = "init" };
    struct rlimit limit;
    unsigned long long needed, here = 0, local = 0;

    for (int i = 0; i < comm->size; i++) {
        here += claims_this_process(&comm->peer_infos[i], &comm->peer_infos[comm->rank]);
        local += comm->local[i];
    }
    needed = here * (local - 1) + here * INIT_DESCRIPTORS + OWN_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || needed <= limit.rlim_cur)
        return PK_OK;
    errno = EMFILE;
    return pki_fail_errno(PK_ERR_SYSTEM, &where,
                          "%llu ranks in this process, of %llu on this host, need %llu descriptors, for sockets to one another, "
                          "and ulimit -n allows %llu",
                          here, local, needed, (unsigned long long)limit.rlim_cur);
}

static pk_result_t exchange_peer_infos(struct pk_comm *comm)
{
    struct pki_peer_info mine;
    pk_result_t result;

    comm->peer_infos = calloc((size_t)comm->size, sizeof *comm->peer_infos);
    comm->paths = calloc((size_t)comm->size, sizeof *comm->paths);
    comm->local = calloc((size_t)comm->size, sizeof *comm->local);
    comm->homes = calloc((size_t)comm->size, sizeof *comm->homes);
    comm->side_fds = malloc((size_t)comm->size * sizeof *comm->side_fds);
    if (comm->peer_infos == NULL || comm->paths == NULL || comm->local == NULL || comm->homes == NULL || comm->side_fds == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d ranks", comm->size);
    for (int i = 0; i < comm->size; i++)
        comm->side_fds[i] = -1;
    result = find_net(comm);
    if (result != PK_OK)
        return result;
    fill_peer_info(comm, &mine);
    result = pki_comm_gather(comm, &mine, sizeof mine, comm->peer_infos);
    if (result != PK_OK)
        return result;
    comm->settings = comm->peer_infos[pki_seats_first(comm)].settings;
    pki_homes_find(comm);
    if (comm->has_net)
        look_outside(comm);
    result = prepare_choice(comm);
    if (result != PK_OK)
        return result;
    for (int i = 0; i < comm->size; i++)
        comm->local[i] = pki_share_host(&comm->peer_infos[i], &comm->peer_infos[comm->rank]);
    pki_warn_apart(comm);
    result = check_descriptors(comm);
    if (result != PK_OK)
        return result;
    return pki_seats_connect_local(comm);
}

static pk_result_t open_engine(struct pk_comm *comm)
{
    struct pki_engine_config config = { .rank = comm->rank,
                                        .agreed = &comm->settings.agreed,
                                        .size = comm->size,
                                        .hosts = comm->hosts,
                                        .device = comm->device,
                                        .timeout_ms = comm->config.timeout_ms,
                                        .sm_policy = comm->config.sm_policy,
                                        .max_sms = comm->config.max_sms,
                                        .unpack_kernel = comm->unpack_kernel,
                                        .net = comm->has_net ? &comm->net : NULL,
                                        .fused = comm->device != NULL && comm->size <= PKI_FUSED_RANKS,
                                        .fused_ctas = PKI_FUSED_CTAS,
                                        .fused_always = comm->chooser.fused };
    struct pki_cpu_share share;
    bool any_gpu = false, all_kernels = comm->device != NULL;
    pk_result_t result = pki_comm_cpus(comm, comm->rank, &share);

    if (result != PK_OK)
        return result;
    config.shares_cpu = !share.own;
    config.cpus = share.cpus;
    for (int i = 0; i < comm->size; i++) {
        if (pki_is_hole(comm, i)) { /* no collective runs */
            config.fused = false;
            continue;
        }
        config.local_ranks += pki_same_machine(&comm->peer_infos[i], &comm->peer_infos[comm->rank]);
        any_gpu = any_gpu || comm->peer_infos[i].has_gpu;
        all_kernels = all_kernels && comm->peer_infos[i].kernels && comm->peer_infos[i].has_gpu;
        config.fused = config.fused && comm->local[i] && comm->peer_infos[i].fused_ctas > 0;
        if (comm->peer_infos[i].fused_ctas < config.fused_ctas)
            config.fused_ctas = comm->peer_infos[i].fused_ctas;
    }
    config.gpus = all_kernels ? PKI_GPUS_KERNELS : any_gpu ? PKI_GPUS_SOME : PKI_GPUS_NONE;
    comm->net.one_machine = comm->chooser.one_machine;
    return pki_engine_open(&config, &comm->engine);
}

/* Low-latency slots of all ranks with a GPU, without which small messages take the other way; and which ranks are in one
 * process. */
static pk_result_t share_ll(struct pk_comm *comm)
{
    struct slots {
        struct pki_export exported;
        uint64_t offset;
        int32_t valid, home;
    } mine, *all;
    pk_result_t result;

    memset(&mine, 0, sizeof mine);
    mine.home = comm->homes[comm->rank];
    if (comm->device != NULL) /* an error is final only for the slots */
        mine.valid = pki_engine_ll_export(comm->engine, &mine.exported, &mine.offset) == PK_OK && mine.exported.pieces == 0;
    all = calloc((size_t)comm->size, sizeof *all);
    if (all == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d ranks", comm->size);
    result = pki_comm_gather(comm, &mine, sizeof mine, all);
    for (int i = 0; i < comm->size && result == PK_OK; i++)
        if (!pki_is_hole(comm, i))
            pki_homes_hear(comm, i, all[i].home);
    for (int i = 0; i < comm->size && result == PK_OK && comm->device != NULL; i++)
        if (i != comm->rank && all[i].valid)
            result = pki_engine_ll_import(comm->engine, i, &all[i].exported, all[i].offset);
    free(all);
    return result;
}

/* Of this communicator that use this rank's GPU. */
static int processes_on_gpu(const struct pk_comm *comm)
{
    const struct pki_peer_info *peer_infos = comm->peer_infos, *mine = &peer_infos[comm->rank];
    int n = 1;

    for (int i = 0; i < comm->size; i++) {
        bool another = pki_same_gpu(&peer_infos[i], mine) && !pki_same_process(comm, i, comm->rank);

        for (int k = 0; k < i && another; k++)
            another = !pki_same_gpu(&peer_infos[k], mine) || !pki_same_process(comm, k, i);
        n += another;
    }
    return n;
}

/* To all others: over PCIe what goes to another GPU and back takes the same link as what goes through the host. */
static bool has_nvlinks(const struct pk_comm *comm)
{
    for (int i = 0; i < comm->size; i++)
        if (i != comm->rank && comm->gpu_distances[i] != PKI_DIST_NVL)
            return false;
    return pki_engine_reaches_all(comm->engine);
}

/* What all ranks can do or none does. Fused collectives: all launch the same grid, as large as the one with the least room
 * can. Detours are for those who may not copy by a kernel, and need the help of the other ranks. */
static pk_result_t agree_on_paths(struct pk_comm *comm)
{
    struct offer {
        int32_t fused_ctas, nvlinks, joined;
    } mine, *all = calloc((size_t)comm->size, sizeof *all);
    int least;
    bool nvlinks = comm->size > 1, forbidden = false, joined = true;
    pk_result_t result;

    if (all == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d ranks", comm->size);
    mine.fused_ctas = least = pki_engine_fused_offer(comm->engine, processes_on_gpu(comm));
    mine.nvlinks = has_nvlinks(comm);
    result = pki_aggregate_join(comm, &joined);
    mine.joined = joined;
    if (result == PK_OK)
        result = pki_comm_gather(comm, &mine, sizeof mine, all);
    for (int i = 0; i < comm->size && result == PK_OK; i++) {
        least = all[i].fused_ctas < least ? all[i].fused_ctas : least;
        nvlinks = nvlinks && all[i].nvlinks != 0;
        joined = joined && all[i].joined != 0;
        forbidden = forbidden || (comm->peer_infos[i].has_gpu && comm->peer_infos[i].fused_ctas == 0);
    }
    if (result == PK_OK)
        pki_engine_fused_start(comm->engine, least);
    pki_aggregate_agree(comm, result == PK_OK && joined);
    comm->chooser.relayed = result == PK_OK && nvlinks && forbidden;
    free(all);
    return result;
}

static pk_result_t start_together(struct pk_comm *comm)
{
    pk_result_t result = pki_bootstrap_barrier(comm->bootstrap, comm->deadline_ns);

    if (result == PK_OK)
        pki_engine_start(comm->engine);
    else
        pki_engine_give_up(comm->engine, result);
    return result;
}

pk_result_t pki_comm_bring_up(struct pk_comm *comm)
{
    pk_result_t result = pki_comm_meet(comm);

    if (result == PK_OK)
        result = exchange_peer_infos(comm);
    if (result == PK_OK)
        result = open_engine(comm);
    if (result == PK_OK)
        result = pki_comm_connect(comm);
    if (result == PK_OK)
        result = pki_comm_place_inboxes(comm);
    if (result == PK_OK)
        result = share_ll(comm);
    if (result == PK_OK)
        result = agree_on_paths(comm);
    if (result == PK_OK)
        result = pki_split_prepare(comm);
    if (result == PK_OK)
        result = start_together(comm);
    if (result == PK_OK)
        pki_comm_say_protocols(comm);
    if (result != PK_OK && comm->bootstrap != NULL)
        pki_bootstrap_tell(comm->bootstrap, result, -1, pki_error_get()->text);
    pki_bootstrap_close(comm->bootstrap);
    comm->bootstrap = NULL;
    if (result != PK_OK) {
        pk_error_info_t kept = *pki_error_get();

        if (comm->engine != NULL)
            (void)pki_engine_close(comm->engine);
        comm->engine = NULL;
        pki_comm_tear_down(comm);
        pki_error_set(&kept);
    }
    return result;
}

void pki_comm_tear_down(struct pk_comm *comm)
{
    pki_token_hide(&comm->token);
    pki_switchml_close(comm->switchml);
    comm->switchml = NULL;
    for (int i = 0; comm->side_fds != NULL && i < comm->size; i++)
        if (comm->side_fds[i] >= 0) {
            pki_fork_let_go(comm->side_fds[i]);
            close(comm->side_fds[i]);
        }
    free(comm->side_fds);
    free(comm->local);
    free(comm->homes);
    pki_hosts_free(comm->hosts);
    free(comm->paths);
    free(comm->gpu_distances);
    free(comm->peer_infos);
    free(comm->met);
    if (comm->device != NULL)
        comm->device->ops->close(comm->device);
    comm->side_fds = NULL;
    comm->local = NULL;
    comm->homes = NULL;
    comm->hosts = NULL;
    comm->paths = NULL;
    comm->gpu_distances = NULL;
    comm->peer_infos = NULL;
    comm->met = NULL;
    comm->device = NULL;
}

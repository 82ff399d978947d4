/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which addresses the others are told. Of the interfaces that PK_IFNAME names those nearest carry this rank's connections, the
 * others are in reserve; each connection is made between two of them. Without PK_IFNAME it is all that this process has, of which
 * one is enough.
 */
#include <string.h>
#include <unistd.h>

#include "topology/topology.h"
#include "transport/tcp/conn/reach.h"
#include "util/env.h"
#include "util/fd.h"
#include "util/netif.h"

#define NAMED_MAX 16
#define PAIRS (PKI_TCP_NICS * PKI_TCP_ADDRESSES)
#define RAIL_ATTEMPTS 16 /* in one network, before what may be routed */

/* Those nearest to the GPU, or to the CPUs where there is none; all where nothing is known. */
static int mark_near(const struct pki_iface_config *config, const struct pki_netif *netifs, int n, bool *near)
{
    char bus_ids[NAMED_MAX][PKI_NETIF_BUS_ID];
    struct pki_device_info info = { 0 };
    struct pki_topology *topology;
    int count;

    for (int i = 0; i < n; i++) {
        near[i] = true;
        pki_netif_bus_id(netifs[i].name, bus_ids[i]);
    }
    if (n < 2 || pki_topology_load(NULL, true, &topology) != PK_OK)
        return n;
    if (config->device != NULL)
        config->device->ops->info(config->device, &info);
    count = pki_topology_mark_near(topology, config->device != NULL ? info.pci_bus_id : NULL, bus_ids, n, near);
    pki_topology_free(topology);
    return count;
}

static bool is_same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    struct sockaddr_storage x = *a, y = *b;

    pki_netif_set_port(&x, 0);
    pki_netif_set_port(&y, 0);
    return memcmp(&x, &y, sizeof x) == 0;
}

/* Not one of IPv6 of which the kernel does not know yet that nobody else has it. */
static bool can_be_bound(const struct sockaddr_storage *address)
{
    int fd = pki_fd_keep(socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    bool bound = fd >= 0 && bind(fd, (const struct sockaddr *)address, pki_netif_bytes(address)) == 0;

    if (fd >= 0)
        close(fd);
    return bound;
}

/* The first address of each. */
static pk_result_t find_named(struct pki_netif named[NAMED_MAX], int *n)
{
    struct pki_netif all[PKI_NETIF_MAX];
    int count;
    pk_result_t result = pki_netif_addresses(false, all, PKI_NETIF_MAX, &count);

    for (int i = 0; i < count && result == PK_OK && *n < NAMED_MAX; i++) {
        int same = 0;

        while (same < *n && strcmp(named[same].name, all[i].name) != 0)
            same++;
        if (same == *n && can_be_bound(&all[i].address))
            named[(*n)++] = all[i];
    }
    if (result == PK_OK && *n == 0)
        return pki_fail(PK_ERR_ARG, NULL, "PK_IFNAME=%.64s: none of the addresses there can be used (yet)",
                        pki_env_get("PK_IFNAME"));
    return result;
}

static pk_result_t choose_named(const struct pki_iface_config *config, struct pki_tcp_choice *out)
{
    struct pki_netif named[NAMED_MAX];
    bool is_near[NAMED_MAX];
    int n = 0, nnear;
    pk_result_t result = find_named(named, &n);

    if (result != PK_OK)
        return result;
    nnear = mark_near(config, named, n, is_near);
    for (int reserve = 0; reserve < 2; reserve++)
        for (int i = 0; i < n && out->count < PKI_TCP_NICS; i++)
            if (is_near[i] == (reserve == 0))
                out->nics[out->count++] = named[i];
    out->near = (uint32_t)nnear < out->count ? (uint32_t)nnear : out->count;
    return PK_OK;
}

static bool has_family(const struct pki_tcp_choice *choice, sa_family_t family)
{
    for (uint32_t i = 0; i < choice->count; i++)
        if (choice->nics[i].address.ss_family == family)
            return true;
    return false;
}

/* Where there is no room the last place is for another family than all before it: a peer may have that one alone. */
static void add_choice(struct pki_tcp_choice *choice, const struct pki_netif *nic)
{
    if (choice->count < PKI_TCP_ADDRESSES)
        choice->nics[choice->count++] = *nic;
    else if (!has_family(choice, nic->address.ss_family))
        choice->nics[PKI_TCP_ADDRESSES - 1] = *nic;
}

/* First that by which others have been met; in a sandbox that is all there is. */
static pk_result_t choose_all(const struct pki_iface_config *config, struct pki_tcp_choice *out)
{
    struct pki_netif all[PKI_NETIF_MAX];
    int count = 0;
    pk_result_t result = pki_netif_is_known() ? pki_netif_addresses(false, all, PKI_NETIF_MAX, &count) : PK_OK;

    if (result != PK_OK)
        return result;
    if (!pki_netif_is_loopback(&config->net->local) || count == 0)
        out->nics[out->count++] = (struct pki_netif){ .address = config->net->local };
    for (int i = 0; i < count; i++)
        if (out->count == 0 || !is_same(&all[i].address, &out->nics[0].address))
            add_choice(out, &all[i]);
    out->near = 1;
    return PK_OK;
}

/* Who met over loopback is on one machine, and perhaps without a secret: nobody else is let near. */
pk_result_t pki_tcp_choose_nics(const struct pki_iface_config *config, struct pki_tcp_choice *out)
{
    const struct pki_net *net = config->net;

    *out = (struct pki_tcp_choice){ .how = PKI_TCP_LOOPBACK, .count = 1, .near = 1, .nics = { { .address = net->local } } };
    if (!net->outside && pki_netif_is_loopback(&net->local))
        return PK_OK;
    out->count = out->near = 0;
    out->how = pki_env_get("PK_IFNAME") != NULL ? PKI_TCP_NAMED : PKI_TCP_ALL;
    return out->how == PKI_TCP_NAMED ? choose_named(config, out) : choose_all(config, out);
}

void pki_tcp_put_met_first(struct pki_tcp_peer_info *peer_info, const struct sockaddr_storage *met)
{
    struct sockaddr_storage first = *met;
    uint16_t port = 0;
    uint32_t at = 0;

    for (uint32_t i = 0; i < peer_info->addresses && port == 0; i++)
        if (peer_info->address[i].ss_family == first.ss_family)
            port = pki_netif_port(&peer_info->address[i]);
    if (port == 0 || pki_netif_is_loopback(&first))
        return;
    pki_netif_set_port(&first, port);
    while (at < peer_info->addresses && !is_same(&peer_info->address[at], &first))
        at++;
    if (at == PKI_TCP_ADDRESSES)
        at--;
    else if (at == peer_info->addresses)
        peer_info->addresses++;
    memmove(&peer_info->address[1], &peer_info->address[0], at * sizeof peer_info->address[0]);
    peer_info->address[0] = first;
}

/* Pairs of interfaces, own and theirs, of one family; `rail`: only those of one network; `most`: how many of the two may be
 * reserve. */
static int list_pairs(const struct pki_tcp_nics *mine, const struct pki_tcp_nics *theirs, bool rail, uint32_t most,
                      struct pki_tcp_nic_pair out[PAIRS])
{
    int n = 0;

    for (uint32_t i = 0; i < mine->count; i++)
        for (uint32_t k = 0; k < theirs->count; k++) {
            uint32_t j = (i + k) % theirs->count; /* neighbours in the list have different ones of both */

            if (mine->address[i].ss_family == theirs->address[j].ss_family &&
                (uint32_t)(i >= mine->near) + (uint32_t)(j >= theirs->near) <= most &&
                (!rail || pki_netif_is_neighbour(&mine->address[i], mine->prefix[i], &theirs->address[j])))
                out[n++] = (struct pki_tcp_nic_pair){ i, j };
        }
    return n;
}

/* One of `n` pairs, so that as many different interfaces as there are follow one another. */
static struct pki_tcp_nic_pair nth(const struct pki_tcp_nic_pair *pairs, int n, uint32_t turn)
{
    struct pki_tcp_nic_pair order[PAIRS];
    int used = 0;

    for (uint32_t round = 0; used < n; round++)
        for (int i = 0, seen = 0; i < n; i++) { /* the round-th pair of each own interface */
            seen = i > 0 && pairs[i].mine == pairs[i - 1].mine ? seen + 1 : 0;
            if ((uint32_t)seen == round)
                order[used++] = pairs[i];
        }
    return order[turn % (uint32_t)n];
}

struct pki_tcp_nic_pair pki_tcp_choose_pair(const struct pki_tcp_nics *mine, const struct pki_tcp_nics *theirs, uint32_t turn,
                                            uint32_t attempt)
{
    struct pki_tcp_nic_pair pairs[PAIRS];
    int n = 0;

    /* The nearest of one network; when attempts fail any of one network; then whatever may be routed. */
    for (uint32_t most = attempt == 0 ? 0 : 2; most <= 2 && n == 0 && attempt < RAIL_ATTEMPTS; most++)
        n = list_pairs(mine, theirs, true, most, pairs);
    for (uint32_t most = attempt == 0 ? 0 : 2; most <= 2 && n == 0; most++)
        n = list_pairs(mine, theirs, false, most, pairs);
    return n == 0 ? (struct pki_tcp_nic_pair){ 0, turn % theirs->count } : nth(pairs, n, turn + attempt);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the interfaces that PK_IFNAME names carry this rank's connections: the nearest, the others in reserve; and between which two. */
#include <string.h>

#include "topology/topology.h"
#include "transport/tcp/tcp.h"
#include "util/netif.h"

#define NAMED_MAX 16
#define PAIRS (PKI_TCP_ADDRESSES * PKI_TCP_ADDRESSES)

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

pk_result_t pki_tcp_choose_nics(const struct pki_iface_config *config, struct pki_netif out[PKI_TCP_ADDRESSES], uint32_t *count,
                                uint32_t *near)
{
    struct pki_netif named[NAMED_MAX];
    bool is_near[NAMED_MAX];
    int n = 0, kept = 0, nnear;
    pk_result_t result = PK_OK;

    /* Who met over loopback is on one machine, and perhaps without a secret: nobody else is let near. */
    if (!pki_netif_is_loopback(&config->net->local))
        result = pki_netif_named(named, NAMED_MAX, &n);
    if (result != PK_OK)
        return result;
    if (n == 0)
        named[n++] = (struct pki_netif){ .address = config->net->local };
    nnear = mark_near(config, named, n, is_near);
    for (int reserve = 0; reserve < 2; reserve++)
        for (int i = 0; i < n && kept < (int)PKI_TCP_ADDRESSES; i++)
            if (is_near[i] == (reserve == 0))
                out[kept++] = named[i];
    *count = (uint32_t)kept;
    *near = (uint32_t)(nnear < kept ? nnear : kept);
    return PK_OK;
}

/* Pairs of interfaces, own and theirs, of one family; `rail`: only those of one network; `most`: how many of the two may be reserve. */
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
    for (uint32_t most = attempt == 0 ? 0 : 2; most <= 2 && n == 0 && attempt < PAIRS; most++)
        n = list_pairs(mine, theirs, true, most, pairs);
    for (uint32_t most = attempt == 0 ? 0 : 2; most <= 2 && n == 0; most++)
        n = list_pairs(mine, theirs, false, most, pairs);
    return n == 0 ? (struct pki_tcp_nic_pair){ 0, turn % theirs->count } : nth(pairs, n, turn + attempt);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The address of a port. */
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "util/env.h"

static bool starts_with(const union ibv_gid *gid, const uint8_t *prefix, size_t bytes)
{
    return memcmp(gid->raw, prefix, bytes) == 0;
}

int pki_rdma_gid_order(const struct ibv_gid_entry *entry)
{
    static const uint8_t none[16], ipv4[12] = { [10] = 0xff, [11] = 0xff }, link_local[2] = { 0xfe, 0x80 };

    if (entry->gid_type != IBV_GID_TYPE_ROCE_V2 || starts_with(&entry->gid, none, sizeof none))
        return -1;
    if (starts_with(&entry->gid, ipv4, sizeof ipv4))
        return 0;
    return starts_with(&entry->gid, link_local, sizeof link_local) ? 2 : 1;
}

static bool read_entry(const struct pki_rdma_rail *rail, int index, struct ibv_gid_entry *entry)
{
    memset(entry, 0, sizeof *entry);
    return pki_verbs(NULL)->query_gid_ex(rail->context, rail->port, (uint32_t)index, entry, 0, sizeof *entry) == 0;
}

static void take(struct pki_rdma_rail *rail, int index, const struct ibv_gid_entry *entry)
{
    char name[IF_NAMESIZE] = "";

    rail->gid_index = index;
    rail->gid = entry->gid;
    if (entry->ndev_ifindex != 0 && if_indextoname(entry->ndev_ifindex, name) != NULL)
        (void)snprintf(rail->interface, sizeof rail->interface, "%s", name);
}

pk_result_t pki_rdma_choose_gid(struct pki_rdma_rail *rail, int entries)
{
    struct ibv_gid_entry entry, best_entry = { 0 };
    int best = -1, best_order = 3;
    int64_t wanted;
    pk_result_t result = pki_env_int("PK_GID_INDEX", 0, 65535, -1, &wanted);

    if (result != PK_OK)
        return result;
    if (wanted < 0 && !rail->ethernet)
        wanted = 0;
    for (int i = 0; i < entries; i++) {
        int order;

        if (!read_entry(rail, i, &entry) || (wanted >= 0 && i != wanted))
            continue;
        order = wanted >= 0 ? 0 : pki_rdma_gid_order(&entry);
        if (order >= 0 && order < best_order) {
            best = i;
            best_order = order;
            best_entry = entry;
        }
    }
    if (best < 0) {
        pki_log(PKI_LOG_INFO, NULL, "rdma: port %d of %s has no %s", rail->port, rail->name,
                wanted >= 0 ? "entry PK_GID_INDEX in its table of addresses" : "RoCE v2 address");
        return PK_ERR_UNSUPPORTED;
    }
    take(rail, best, &best_entry);
    return PK_OK;
}

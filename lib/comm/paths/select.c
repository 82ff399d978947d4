/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/paths/select.h"

#include <stdio.h>
#include <string.h>

static void refuse(struct pki_path *path, const char *reason)
{
    *path = (struct pki_path){ .transport = NULL };
    (void)snprintf(path->reason, sizeof path->reason, "%s", reason);
}

/* What rules a way out whatever transports there are; NULL: nothing does. */
static const char *impossible(const struct pki_pair *pair, enum pki_mem_kind source, enum pki_mem_kind target)
{
    if (source == PKI_MEM_DEVICE && !pair->has_gpu[0])
        return "this rank has no GPU";
    if (target == PKI_MEM_DEVICE && !pair->has_gpu[1])
        return "the peer has no GPU";
    return NULL;
}

/* PK_P2P_LEVEL rules out GPUs that are known to be farther apart. */
static bool too_far(const struct pki_pair *pair)
{
    return !pair->same_gpu && pair->p2p_level != PKI_DIST_UNKNOWN && pair->distance > pair->p2p_level;
}

/* Can this transport carry it? If not and it was made for such memory, say why, unless an earlier one has. */
static bool carries(const struct pki_pair *pair, int t, enum pki_mem_kind source, enum pki_mem_kind target, struct pki_path *path)
{
    const struct pki_probe *probe = pair->probes[t];
    char reason[sizeof path->reason];

    if (!pair->transports[t]->reaches[source][target] || pair->transports[t]->between_hosts == (pair->near >= PKI_NEAR_HOST))
        return false;
    if (!probe[0].usable || !probe[1].usable)
        (void)snprintf(reason, sizeof reason, "%s does not work %s: %.95s", pair->transports[t]->name,
                       probe[0].usable ? "on the peer" : "on this rank", probe[probe[0].usable ? 1 : 0].reason);
    else if (pair->joints[t] == PKI_JOINT_NONE)
        (void)snprintf(reason, sizeof reason, "%s works on both ranks, but did not connect them", pair->transports[t]->name);
    else if (source == PKI_MEM_DEVICE && pair->joints[t] != PKI_JOINT_PUTS)
        (void)snprintf(reason, sizeof reason, "%s: one GPU cannot reach the other's memory (%s apart)", pair->transports[t]->name,
                       pki_distance_name(pair->distance));
    else
        return true;
    if (path->reason[0] == '\0')
        (void)snprintf(path->reason, sizeof path->reason, "%s", reason);
    return false;
}

static void describe_host(const struct pki_pair *pair, int t, struct pki_path *path)
{
    if (pair->near == PKI_NEAR_NOT) {
        (void)snprintf(path->device, sizeof path->device, "%s", pair->transports[t]->link);
        (void)snprintf(path->reason, sizeof path->reason, "%s; over %s, this rank: %.95s",
                       pair->apart != NULL ? pair->apart : "ranks on different hosts", pair->transports[t]->name,
                       pair->probes[t][0].reason);
    } else if (pair->joints[t] == PKI_JOINT_PUTS) {
        (void)snprintf(path->device, sizeof path->device, "cma");
        (void)snprintf(path->reason, sizeof path->reason, "ranks %s, one copy from buffer to buffer (%.95s)",
                       pair->near >= PKI_NEAR_PROCESS ? "in one process" : "on one host", pair->probes[t][0].reason);
    } else {
        (void)snprintf(path->device, sizeof path->device, "ring");
        (void)snprintf(path->reason, sizeof path->reason,
                       "ranks on one host, two copies through shared memory, as a direct one is not possible (%.95s)",
                       pair->probes[t][0].reason);
    }
}

/* What a probe expects holds for NVLink. Over PCIe nothing was measured, and inside one GPU a kernel copies. */
static void describe_device(const struct pki_pair *pair, struct pki_path *path)
{
    if (pair->same_gpu) {
        (void)snprintf(path->device, sizeof path->device, "local copy");
        (void)snprintf(path->reason, sizeof path->reason,
                       "both ranks use one GPU: a copy inside it, which the hardware does by a kernel");
        path->gbps = 0;
        return;
    }
    (void)snprintf(path->device, sizeof path->device, "copy engine");
    if (pair->distance <= PKI_DIST_NVL) {
        (void)snprintf(path->reason, sizeof path->reason, "two GPUs of one host%s, one copy from buffer to buffer",
                       pair->distance == PKI_DIST_NVL ? " joined by NVLink" : "");
        return;
    }
    (void)snprintf(path->reason, sizeof path->reason,
                   "two GPUs of one host that meet over PCIe (%s), one copy from buffer to buffer",
                   pki_distance_name(pair->distance));
    path->gbps = 0;
}

/* The first transport, in order of preference, that carries it. */
static void first_that_carries(const struct pki_pair *pair, enum pki_mem_kind source, enum pki_mem_kind target,
                               struct pki_path *path)
{
    *path = (struct pki_path){ .transport = NULL };
    for (int t = 0; t < pair->ntransports; t++) {
        const struct pki_probe *probe = pair->probes[t];

        if (!carries(pair, t, source, target, path))
            continue;
        path->transport = pair->transports[t]->name;
        path->gbps = probe[0].gbps < probe[1].gbps ? probe[0].gbps : probe[1].gbps;
        if (source == PKI_MEM_DEVICE)
            describe_device(pair, path);
        else
            describe_host(pair, t, path);
        return;
    }
    if (path->reason[0] == '\0')
        (void)snprintf(path->reason, sizeof path->reason, "no transport of this build moves %s memory between %s",
                       source == PKI_MEM_DEVICE ? "device" : "host", pair->near >= PKI_NEAR_HOST ? "ranks" : "hosts");
}

/* No transport reaches from buffer to buffer: pieces go through slots of pinned memory, by whatever joins the hosts' memories. */
static void through_host(const struct pki_pair *pair, enum pki_mem_kind source, enum pki_mem_kind target, struct pki_path *path)
{
    struct pki_path host;

    if (source == PKI_MEM_HOST && target == PKI_MEM_HOST)
        return;
    first_that_carries(pair, PKI_MEM_HOST, PKI_MEM_HOST, &host);
    if (host.transport == NULL)
        return;
    path->transport = host.transport;
    path->gbps = 0;
    (void)snprintf(path->device, sizeof path->device, "host memory");
    if (source == target)
        (void)snprintf(host.reason, sizeof host.reason, "through pinned memory of the host: %.150s", path->reason);
    else
        (void)snprintf(host.reason, sizeof host.reason, "%s memory here, %s memory there: in pieces through pinned memory",
                       source == PKI_MEM_HOST ? "host" : "device", target == PKI_MEM_HOST ? "host" : "device");
    memcpy(path->reason, host.reason, sizeof path->reason);
}

void pki_select(const struct pki_pair *pair, enum pki_mem_kind source, enum pki_mem_kind target, struct pki_path *path)
{
    const char *reason = impossible(pair, source, target);

    if (reason != NULL) {
        refuse(path, reason);
    } else if (pair->near == PKI_NEAR_SELF) {
        *path = (struct pki_path){ .transport = "self", .device = "copy", .reason = "source and target are the same rank" };
    } else if (source == PKI_MEM_DEVICE && too_far(pair)) {
        refuse(path, "");
        (void)snprintf(path->reason, sizeof path->reason, "the GPUs are %s apart and PK_P2P_LEVEL allows no more than %s",
                       pki_distance_name(pair->distance), pki_distance_name(pair->p2p_level));
    } else {
        first_that_carries(pair, source, target, path);
    }
    if (reason == NULL && path->transport == NULL)
        through_host(pair, source, target, path);
}

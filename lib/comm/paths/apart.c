/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks share memory, as those of one host do, and why others do not. All ranks see the same peer infos, so all answer
 * alike; a pair that shares none is joined by what joins hosts.
 */
#include <stdio.h>

#include "comm/comm.h"

void pki_peer_info_fill_host(struct pki_peer_info *peer_info, bool has_peers)
{
    const struct pki_transport *const *transports = pki_transports();
    char why[sizeof peer_info->alone] = "";

    pki_bootstrap_host(peer_info->process, &peer_info->host);
    peer_info->user = pki_bootstrap_user();
    if (peer_info->host.by == PKI_HOST_UNKNOWN) {
        memcpy(peer_info->alone, peer_info->host.why, sizeof peer_info->alone);
        return;
    }
    for (int t = 0; t < PKI_TRANSPORTS_MAX && transports[t] != NULL; t++) {
        if (transports[t]->between_hosts || !transports[t]->reaches[PKI_MEM_HOST][PKI_MEM_HOST])
            continue;
        if (!peer_info->probes[t].usable)
            (void)snprintf(why, sizeof why, "%.95s", peer_info->probes[t].reason);
        else if (!has_peers || pki_bootstrap_unix_works(why, sizeof why))
            return;
    }
    memcpy(peer_info->alone, why, sizeof peer_info->alone);
}

static bool same_host_id(const struct pki_peer_info *a, const struct pki_peer_info *b)
{
    return memcmp(a->host.host_id, b->host.host_id, sizeof a->host.host_id) == 0;
}

bool pki_same_machine(const struct pki_peer_info *a, const struct pki_peer_info *b)
{
    return memcmp(a->host.machine_id, b->host.machine_id, sizeof a->host.machine_id) == 0;
}

bool pki_other_machine(const struct pki_peer_info *a, const struct pki_peer_info *b)
{
    return a->host.machine_known && b->host.machine_known && !pki_same_machine(a, b);
}

bool pki_share_host(const struct pki_peer_info *a, const struct pki_peer_info *b)
{
    return a == b || (same_host_id(a, b) && a->alone[0] == '\0' && b->alone[0] == '\0' && a->user == b->user);
}

/* Of two ranks whose host ids differ. */
static void say_hosts(const struct pki_peer_info *mine, const struct pki_peer_info *theirs, char out[PKI_APART_TEXT])
{
    const char *how = "";

    if (mine->host.by == PKI_HOST_BY_NAME || theirs->host.by == PKI_HOST_BY_NAME)
        how = " by PK_HOST_ID";
    else if (!pki_same_machine(mine, theirs))
        how = "";
    else if (mine->host.by == PKI_HOST_BY_DIRECTORY || theirs->host.by == PKI_HOST_BY_DIRECTORY)
        how = " of one machine: their PK_RUN_DIR is not one directory";
    else
        how = " of one machine: network namespaces without a common PK_RUN_DIR";
    (void)snprintf(out, PKI_APART_TEXT, "ranks on different hosts%s", how);
}

void pki_say_apart(const struct pki_peer_info *mine, const struct pki_peer_info *theirs, char out[PKI_APART_TEXT])
{
    if (mine->host.by == PKI_HOST_UNKNOWN)
        (void)snprintf(out, PKI_APART_TEXT, "this rank cannot tell its machine: %s", mine->alone);
    else if (theirs->host.by == PKI_HOST_UNKNOWN)
        (void)snprintf(out, PKI_APART_TEXT, "the peer cannot tell its machine: %s", theirs->alone);
    else if (!same_host_id(mine, theirs))
        say_hosts(mine, theirs, out);
    else if (mine->alone[0] != '\0')
        (void)snprintf(out, PKI_APART_TEXT, "shm does not work here: %s", mine->alone);
    else if (theirs->alone[0] != '\0')
        (void)snprintf(out, PKI_APART_TEXT, "shm does not work on the peer: %s", theirs->alone);
    else
        (void)snprintf(out, PKI_APART_TEXT, "the peer runs as another user (uid %u, this rank uid %u)", theirs->user, mine->user);
}

/* What keeps this rank from sharing memory with that one, though they may be on one machine and nobody has told them
 * otherwise. */
static bool is_unexpected(const struct pki_peer_info *mine, const struct pki_peer_info *theirs)
{
    return mine->host.by == PKI_HOST_UNKNOWN || (same_host_id(mine, theirs) && !pki_share_host(mine, theirs));
}

/* One line a process says why it is slow; the paths (pk_comm_path) say it of every peer. */
void pki_warn_apart(const struct pk_comm *comm)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const struct pki_peer_info *mine = &comm->peer_infos[comm->rank];
    struct pki_where where = { .rank = comm->rank, .peer = -1, .op = "init" };
    char why[PKI_APART_TEXT];

    for (int i = 0; i < comm->size; i++) {
        if (i == comm->rank || pki_is_hole(comm, i) || !is_unexpected(mine, &comm->peer_infos[i]) ||
            atomic_flag_test_and_set(&said))
            continue;
        where.peer = i;
        pki_say_apart(mine, &comm->peer_infos[i], why);
        pki_log(PKI_LOG_WARN, &where, "%s; these two ranks share no memory and use a transport between hosts%s", why,
                mine->host.by == PKI_HOST_UNKNOWN ? " (PK_HOST_ID can tell which ranks share a machine)" : "");
        return;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far apart the GPUs of this host are. Each rank asks the driver about those it sees; the first rank with a GPU collects the
 * answers, looks at PCIe for what the driver does not call NVLink (once a host, for it takes 20 ms), and tells the others.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "util/socket.h"

/* The ranks of this host that have a GPU, ascending; and the distances between them, enum pki_distance [n * n]. */
struct party {
    int n, me;
    int *ranks;
    uint8_t *distances;
};

static uint8_t *row(const struct party *party, int member)
{
    return &party->distances[(size_t)member * (size_t)party->n];
}

static const struct pki_peer_info *peer_info(const struct pk_comm *comm, const struct party *party, int member)
{
    return &comm->peer_infos[party->ranks[member]];
}

/* Does anything have to be found out? All members see the same peer infos, so all answer alike. */
static bool gather(const struct pk_comm *comm, struct party *party)
{
    bool different = false;

    for (int i = 0; i < comm->size; i++) {
        if (!comm->local[i] || !comm->peer_infos[i].has_gpu)
            continue;
        if (i == comm->rank)
            party->me = party->n;
        party->ranks[party->n++] = i;
        different = different || !pki_same_gpu(&comm->peer_infos[i], peer_info(comm, party, 0));
    }
    return different && party->me >= 0 && party->n <= PKI_FRAME_MAX;
}

static void ask_driver(const struct pk_comm *comm, const struct party *party, uint8_t *mine)
{
    const struct pki_peer_info *own = &comm->peer_infos[comm->rank];

    for (int i = 0; i < party->n; i++) {
        const struct pki_peer_info *other = peer_info(comm, party, i);

        if (pki_same_gpu(own, other))
            mine[i] = PKI_DIST_SELF;
        else if (pki_device_cuda_link(own->gpu_pci, other->gpu_pci) == PKI_LINK_NVLINK)
            mine[i] = PKI_DIST_NVL;
        else
            mine[i] = PKI_DIST_UNKNOWN;
    }
}

static pk_result_t send_row(struct pk_comm *comm, const struct party *party, int to, const uint8_t *values)
{
    const struct pki_wait wait = pki_comm_setup_timeout(comm);
    struct pki_where where = { .rank = comm->rank, .peer = party->ranks[to], .op = "init" };

    return pki_fd_send_wait(comm->side_fds[party->ranks[to]], values, (size_t)party->n, NULL, 0, &wait, &where);
}

static pk_result_t receive_row(struct pk_comm *comm, const struct party *party, int from, uint8_t *values)
{
    const struct pki_wait wait = pki_comm_setup_timeout(comm);
    struct pki_where where = { .rank = comm->rank, .peer = party->ranks[from], .op = "init" };
    struct pki_frame_in in = { .data = values, .capacity = (size_t)party->n };
    pk_result_t result = pki_fd_recv_wait(comm->side_fds[party->ranks[from]], &in, &wait, &where);

    if (result == PK_OK && in.bytes != (size_t)party->n)
        return pki_fail(PK_ERR_INTERNAL, &where, "%zu distances of GPUs instead of %d", in.bytes, party->n);
    return result;
}

/* One rank may see what the other does not. False: a pair is left of which nothing is known. */
static bool merge(const struct party *party)
{
    bool complete = true;

    for (int a = 0; a < party->n; a++) {
        for (int b = 0; b < a; b++) {
            uint8_t *there = &row(party, a)[b], *back = &row(party, b)[a];

            *there = *back = *there > *back ? *there : *back;
            complete = complete && *there != PKI_DIST_UNKNOWN;
        }
    }
    return complete;
}

/* Not knowing is no error: paths are then chosen as if there were no limit. */
static void look_at_pcie(const struct pk_comm *comm, const struct party *party)
{
    struct pki_where where = { .rank = comm->rank, .peer = -1, .op = "init" };
    struct pki_topology *topology;

    if (pki_topology_load(NULL, true, &topology) != PK_OK) {
        pki_log(PKI_LOG_INFO, &where, "the distances between the GPUs of this host are unknown");
        return;
    }
    for (int a = 0; a < party->n; a++)
        for (int b = 0; b < party->n; b++)
            if (row(party, a)[b] == PKI_DIST_UNKNOWN)
                row(party, a)[b] = (uint8_t)pki_topology_distance(topology, peer_info(comm, party, a)->gpu_pci,
                                                                  peer_info(comm, party, b)->gpu_pci);
    pki_topology_free(topology);
}

static pk_result_t lead(struct pk_comm *comm, const struct party *party)
{
    pk_result_t result = PK_OK;

    ask_driver(comm, party, row(party, 0));
    for (int i = 1; i < party->n && result == PK_OK; i++)
        result = receive_row(comm, party, i, row(party, i));
    if (result != PK_OK)
        return result;
    if (!merge(party))
        look_at_pcie(comm, party);
    for (int i = 1; i < party->n && result == PK_OK; i++)
        result = send_row(comm, party, i, row(party, i));
    return result;
}

static pk_result_t follow(struct pk_comm *comm, const struct party *party)
{
    uint8_t *mine = row(party, party->me);
    pk_result_t result;

    ask_driver(comm, party, mine);
    result = send_row(comm, party, 0, mine);
    return result == PK_OK ? receive_row(comm, party, 0, mine) : result;
}

static pk_result_t find_out(struct pk_comm *comm, struct party *party)
{
    pk_result_t result;

    party->distances = calloc((size_t)party->n * (size_t)party->n, 1);
    if (party->distances == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for distances between %d GPUs", party->n);
    result = party->me == 0 ? lead(comm, party) : follow(comm, party);
    for (int i = 0; i < party->n && result == PK_OK; i++)
        comm->gpu_distances[party->ranks[i]] = row(party, party->me)[i];
    free(party->distances);
    return result;
}

pk_result_t pki_comm_locate(struct pk_comm *comm)
{
    struct party party = { .me = -1 };
    pk_result_t result = PK_OK;

    comm->gpu_distances = calloc((size_t)comm->size, 1);
    party.ranks = malloc((size_t)comm->size * sizeof *party.ranks);
    if (comm->gpu_distances == NULL || party.ranks == NULL) {
        free(party.ranks);
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d ranks", comm->size);
    }
    if (gather(comm, &party))
        result = find_out(comm, &party);
    else if (party.me >= 0)
        for (int i = 0; i < party.n; i++)
            comm->gpu_distances[party.ranks[i]] = PKI_DIST_SELF;
    free(party.ranks);
    return result;
}

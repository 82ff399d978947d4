/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of ranks. Ranks meet one behind the other, from 0 on, for the bootstrap knows no gaps. Their numbers in the
 * communicator may be others: a communicator that keeps the numbers of one that has lost ranks has holes, and a rank that joins
 * may take one.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

int pki_seats_count(const struct pk_comm *comm)
{
    return comm->seats.ranks != NULL ? comm->seats.n : comm->size;
}

int pki_seats_own(const struct pk_comm *comm)
{
    int at = 0;

    if (comm->seats.ranks == NULL)
        return comm->rank;
    while (comm->seats.ranks[at] != comm->rank)
        at++;
    return at;
}

int pki_seats_first(const struct pk_comm *comm)
{
    return comm->seats.ranks != NULL ? comm->seats.ranks[0] : 0;
}

void pki_seats_simplify(struct pki_seats *seats, int size)
{
    bool plain = seats->n == size;

    for (int k = 0; k < seats->n && plain; k++)
        plain = seats->ranks[k] == k;
    if (!plain)
        return;
    free(seats->ranks);
    seats->ranks = NULL;
}

int pki_next_member(const struct pk_comm *comm, int from)
{
    while (from < comm->size && pki_is_hole(comm, from))
        from++;
    return from;
}

int pki_first_hole(const struct pk_comm *comm)
{
    int rank = 0;

    while (!pki_is_hole(comm, rank))
        rank++;
    return rank;
}

/* ---- exchanges ---- */

static void unpack(const struct pk_comm *comm, const unsigned char *packed, size_t bytes, void *all)
{
    memset(all, 0, (size_t)comm->size * bytes);
    for (int k = 0; k < comm->seats.n; k++)
        memcpy((char *)all + (size_t)comm->seats.ranks[k] * bytes, packed + (size_t)k * bytes, bytes);
}

pk_result_t pki_comm_gather(struct pk_comm *comm, const void *mine, size_t bytes, void *all)
{
    const struct pki_seats *seats = &comm->seats;
    unsigned char *packed;
    pk_result_t result;

    if (seats->ranks == NULL)
        return pki_bootstrap_allgather(comm->bootstrap, mine, bytes, all, comm->deadline_ns);
    packed = malloc((size_t)seats->n * bytes);
    if (packed == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to gather %zu bytes of %d ranks", bytes, seats->n);
    result = pki_bootstrap_allgather(comm->bootstrap, mine, bytes, packed, comm->deadline_ns);
    if (result == PK_OK)
        unpack(comm, packed, bytes, all);
    free(packed);
    return result;
}

pk_result_t pki_comm_alltoall(struct pk_comm *comm, const void *mine, size_t bytes, void *theirs)
{
    const struct pki_seats *seats = &comm->seats;
    const size_t total = (size_t)seats->n * bytes;
    unsigned char *packed;
    pk_result_t result;

    if (seats->ranks == NULL)
        return pki_bootstrap_alltoall(comm->bootstrap, mine, bytes, theirs, comm->deadline_ns);
    packed = malloc(2 * total);
    if (packed == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to tell %zu bytes to each of %d ranks", bytes, seats->n);
    for (int k = 0; k < seats->n; k++)
        memcpy(packed + (size_t)k * bytes, (const char *)mine + (size_t)seats->ranks[k] * bytes, bytes);
    result = pki_bootstrap_alltoall(comm->bootstrap, packed, bytes, packed + total, comm->deadline_ns);
    if (result == PK_OK)
        unpack(comm, packed + total, bytes, theirs);
    free(packed);
    return result;
}

pk_result_t pki_seats_connect_local(struct pk_comm *comm)
{
    const struct pki_seats *seats = &comm->seats;
    pk_result_t result = PK_ERR_MEMORY;
    bool *local;
    int *fds;

    if (seats->ranks == NULL)
        return pki_bootstrap_connect_local(comm->bootstrap, comm->local, comm->side_fds, comm->deadline_ns);
    local = calloc((size_t)seats->n, sizeof *local);
    fds = calloc((size_t)seats->n, sizeof *fds);
    if (local == NULL || fds == NULL) {
        (void)pki_fail(PK_ERR_MEMORY, NULL, "no memory to connect %d ranks", seats->n);
        goto out;
    }
    for (int k = 0; k < seats->n; k++)
        local[k] = comm->local[seats->ranks[k]];
    result = pki_bootstrap_connect_local(comm->bootstrap, local, fds, comm->deadline_ns);
    for (int k = 0; k < seats->n && result == PK_OK; k++)
        comm->side_fds[seats->ranks[k]] = fds[k];
out:
    free(local);
    free(fds);
    return result;
}

int pki_seats_addresses(const struct pk_comm *comm, struct sockaddr_storage *met)
{
    const struct pki_seats *seats = &comm->seats;
    struct sockaddr_storage *packed;
    int n;

    if (seats->ranks == NULL)
        return pki_bootstrap_local_addresses(comm->bootstrap, met);
    packed = calloc((size_t)seats->n, sizeof *packed);
    n = packed != NULL ? pki_bootstrap_local_addresses(comm->bootstrap, packed) : 0;
    for (int k = 0; k < n; k++)
        met[seats->ranks[k]] = packed[k];
    free(packed);
    return n > 0 ? comm->size : 0; /* the rest is 0: they have not met */
}

/* ---- ranks that join ---- */

/* What each says: the number that it has, or wants. */
struct seat {
    int32_t size; /* of the communicator; 0: it joins, and hears that */
    int32_t rank; /* -1: whichever is free */
};

static pk_result_t take(struct pk_comm *comm, bool *taken, int rank)
{
    const struct pki_where where = { .rank = -1, .peer = rank, .op = "join" };

    if (rank >= comm->size)
        return pki_fail(PK_ERR_MISMATCH, &where, "a rank that joins wants to be rank %d of %d", rank, comm->size);
    if (taken[rank])
        return pki_fail(PK_ERR_MISMATCH, &where, "two ranks want to be rank %d of %d", rank, comm->size);
    taken[rank] = true;
    return PK_OK;
}

/* Who has a number or wants one, then all others. */
static pk_result_t assign(struct pk_comm *comm, const struct seat *all, bool *taken)
{
    struct pki_seats *seats = &comm->seats;
    pk_result_t result = PK_OK;
    int next = 0;

    for (int k = 0; k < seats->n && result == PK_OK; k++) {
        seats->ranks[k] = all[k].rank;
        if (all[k].rank >= 0)
            result = take(comm, taken, all[k].rank);
    }
    for (int k = 0; k < seats->n && result == PK_OK; k++) {
        if (seats->ranks[k] >= 0)
            continue;
        while (taken[next])
            next++;
        seats->ranks[k] = next++;
    }
    return result;
}

/* The first one that meets is none that joins: its size is right. */
static pk_result_t hear(struct pk_comm *comm, int own, const struct seat *all)
{
    bool *taken;
    pk_result_t result;

    if (all[0].size < comm->seats.n || all[0].size > PKI_RANKS_MAX)
        return pki_fail(PK_ERR_INTERNAL, NULL, "a communicator of %d ranks has size %d", comm->seats.n, (int)all[0].size);
    comm->size = all[0].size;
    taken = calloc((size_t)comm->size, sizeof *taken);
    result = taken != NULL ? assign(comm, all, taken) : pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d ranks", comm->size);
    free(taken);
    if (result == PK_OK)
        comm->rank = comm->seats.ranks[own];
    return result;
}

pk_result_t pki_seats_settle(struct pk_comm *comm, bool joins)
{
    const int n = joins ? comm->size : comm->seats.n, own = joins ? comm->rank : pki_seats_own(comm);
    const struct seat mine = { .size = joins ? 0 : comm->size, .rank = joins ? comm->seats.wish : comm->rank };
    struct seat *all = calloc((size_t)n, sizeof *all);
    int *ranks = calloc((size_t)n, sizeof *ranks);
    pk_result_t result;

    free(comm->seats.ranks);
    comm->seats.ranks = ranks;
    comm->seats.n = n;
    if (all == NULL || ranks == NULL)
        result = pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d ranks", n);
    else
        result = pki_bootstrap_allgather(comm->bootstrap, &mine, sizeof mine, all, comm->deadline_ns);
    if (result == PK_OK)
        result = hear(comm, own, all);
    if (result == PK_OK)
        pki_seats_simplify(&comm->seats, comm->size);
    free(all);
    return result;
}

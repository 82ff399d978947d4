/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator that takes ranks in: a new one of the parent's ranks and of those that join. Rank 0 (where that is a hole: the
 * first rank behind it) has made an id and listened since, and ranks that join wait there. The secret of the id is made of the
 * parent's and of a random number. Rank 0 tells the others that number and its addresses alone.
 */
#include "comm/bootstrap/internal.h"

#include <stdlib.h>
#include <string.h>

#include "comm/split.h"
#include "util/auth.h"
#include "util/bytes.h"

/* secret->job is set. */
static pk_result_t make_secret(const struct pk_comm *parent, struct pki_secret *secret)
{
    struct pki_secret made;
    pk_result_t result = pki_split_secret(parent, "pickle grow", pki_get_u64(secret->job), 0, &made);

    if (result == PK_OK)
        memcpy(secret->key, made.key, sizeof secret->key);
    pki_auth_wipe(&made, sizeof made);
    return result;
}

pk_result_t pki_grow_id(const struct pk_comm *parent, pk_unique_id_t *id)
{
    struct pki_id made = { .listened = true, .grows = true };
    pk_result_t result = pki_auth_random(made.secret.job, sizeof made.secret.job);

    if (result == PK_OK)
        result = make_secret(parent, &made.secret);
    if (result == PK_OK)
        result = pki_id_addresses(false, &parent->offspring.address, &made);
    if (result == PK_OK)
        result = pki_listener_make(&made, id);
    pki_auth_wipe(&made.secret, sizeof made.secret);
    return result;
}

/* Whom ranks that join look for. */
static int leader(const struct pk_comm *parent)
{
    return pki_next_member(parent, 0);
}

/* The leader: *where is the id without its secret. */
static pk_result_t read_id(const struct pk_comm *parent, const pk_unique_id_t *id, pk_unique_id_t *where)
{
    struct pki_secret secret;
    struct pki_id theirs;
    pk_result_t result = PK_OK;
    bool own = pki_wire_get_id(id, &theirs) && theirs.grows;

    secret = theirs.secret;
    if (own)
        result = make_secret(parent, &secret);
    own = own && pki_auth_equal(secret.key, theirs.secret.key, sizeof secret.key);
    pki_auth_wipe(&secret, sizeof secret);
    pki_auth_wipe(theirs.secret.key, sizeof theirs.secret.key);
    if (result == PK_OK && !own)
        return pki_fail(PK_ERR_ARG, &(struct pki_where){ .rank = parent->rank, .peer = -1, .op = "grow" },
                        "pk_comm_get_unique_id of this communicator did not make the id");
    pki_wire_put_id(where, &theirs);
    return result;
}

pk_result_t pki_grow_begin(struct pk_comm *parent, int count, const pk_unique_id_t *id, struct pki_split **split)
{
    pk_unique_id_t where = { { 0 } };
    struct pki_split *s;
    pk_result_t result = parent->rank == leader(parent) ? read_id(parent, id, &where) : PK_OK;

    if (result == PK_OK)
        result = pki_split_new(parent, PKI_SPLIT_GROWS, &s);
    if (result != PK_OK)
        return result;
    s->mine.color = count;
    s->mine.where = where;
    s->listens = parent->rank == leader(parent);
    if (s->listens)
        s->id = *id;
    result = pki_split_start(s);
    if (result != PK_OK)
        pki_split_release(s);
    else
        *split = s;
    return result;
}

/* The parent's ranks come first, and the others behind them: which numbers these get shows when they have met. */
static pk_result_t take_seats(const struct pk_comm *parent, int joiners, struct pk_comm *comm)
{
    int n = 0;

    comm->rank = parent->rank;
    comm->seats.n = pki_seats_count(parent) + joiners;
    comm->size = comm->seats.n > parent->size ? comm->seats.n : parent->size;
    comm->seats.ranks = calloc((size_t)comm->seats.n, sizeof *comm->seats.ranks);
    if (comm->seats.ranks == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d ranks", comm->seats.n);
    for (int r = pki_next_member(parent, 0); r < parent->size; r = pki_next_member(parent, r + 1))
        comm->seats.ranks[n++] = r;
    return PK_OK;
}

static pk_result_t check_counts(const struct pki_split *s)
{
    struct pki_where where = { .rank = s->parent->rank, .op = "grow" };

    for (int r = 0; r < s->parent->size; r++) {
        where.peer = r;
        if (s->all[r].color != s->mine.color)
            return pki_fail(PK_ERR_MISMATCH, &where, "rank %d takes %d ranks in, rank %d takes %d", where.rank,
                            (int)s->mine.color, r, (int)s->all[r].color);
    }
    return PK_OK;
}

pk_result_t pki_grow_place(const struct pki_split *s, struct pk_comm *comm)
{
    const struct pki_where where = { .rank = s->parent->rank, .peer = leader(s->parent), .op = "grow" };
    struct pki_id theirs;
    pk_result_t result = check_counts(s);

    if (result != PK_OK)
        return result;
    if (!pki_wire_get_id(&s->all[where.peer].where, &theirs) || theirs.address_count == 0)
        return pki_fail(PK_ERR_INTERNAL, &where, "rank %d has sent no address", where.peer);
    result = make_secret(s->parent, &theirs.secret);
    if (result == PK_OK)
        result = take_seats(s->parent, s->mine.color, comm);
    if (result == PK_OK)
        pki_wire_put_id(&comm->id, &theirs);
    pki_auth_wipe(&theirs.secret, sizeof theirs.secret);
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator that takes ranks in: a new one of the parent's ranks and of those that join. Rank 0 has made an id and listened
 * since, and ranks that join wait there. The secret of the id is made of the parent's and of a random number. Rank 0 tells the
 * others that number and its addresses alone.
 */
#include "comm/bootstrap/internal.h"

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
        result = pki_id_addresses(false, &parent->address, &made);
    if (result == PK_OK)
        result = pki_listener_make(&made, id);
    pki_auth_wipe(&made.secret, sizeof made.secret);
    return result;
}

/* Rank 0: *where is the id without its secret. */
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
        return pki_fail(PK_ERR_ARG, &(struct pki_where){ .rank = 0, .peer = -1, .op = "grow" },
                        "pk_comm_get_unique_id of this communicator did not make the id");
    pki_wire_put_id(where, &theirs);
    return result;
}

pk_result_t pki_grow_begin(struct pk_comm *parent, int count, const pk_unique_id_t *id, struct pki_split **split)
{
    pk_unique_id_t where = { { 0 } };
    struct pki_split *s;
    pk_result_t result = parent->rank == 0 ? read_id(parent, id, &where) : PK_OK;

    if (result == PK_OK)
        result = pki_split_new(parent, PKI_SPLIT_GROWS, &s);
    if (result != PK_OK)
        return result;
    s->mine.color = count;
    s->mine.where = where;
    s->listens = parent->rank == 0;
    if (s->listens)
        s->id = *id;
    result = pki_split_start(s);
    if (result != PK_OK)
        pki_split_release(s);
    else
        *split = s;
    return result;
}

pk_result_t pki_grow_place(const struct pki_split *s, struct pk_comm *comm)
{
    struct pki_where where = { .rank = s->parent->rank, .peer = 0, .op = "grow" };
    struct pki_id theirs;
    pk_result_t result;

    for (int r = 0; r < s->parent->size; r++) {
        where.peer = r;
        if (s->all[r].color != s->mine.color)
            return pki_fail(PK_ERR_MISMATCH, &where, "rank %d takes %d ranks in, rank %d takes %d", where.rank,
                            (int)s->mine.color, r, (int)s->all[r].color);
    }
    where.peer = 0;
    if (!pki_wire_get_id(&s->all[0].where, &theirs) || theirs.address_count == 0)
        return pki_fail(PK_ERR_INTERNAL, &where, "rank 0 has sent no address");
    result = make_secret(s->parent, &theirs.secret);
    if (result == PK_OK) {
        pki_wire_put_id(&comm->id, &theirs);
        comm->size = s->parent->size + s->mine.color;
        comm->rank = s->parent->rank;
    }
    pki_auth_wipe(&theirs.secret, sizeof theirs.secret);
    return result;
}

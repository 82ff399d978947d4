/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator of the ranks that live. They agree on who that is and on where the first of them listens, meet there, and
 * agree on whether all have come through. While they meet each watches the others by the old communicator: a rank that dies
 * then would be waited for.
 */
#include "comm/bootstrap/internal.h"

#include <stdlib.h>
#include <string.h>

#include "coll/agree.h"
#include "comm/comm.h"
#include "tuning/tuning.h"
#include "util/auth.h"
#include "util/bytes.h"
#include "util/clock.h"

/* What ranks say in an agreement; all that return know alike whether all have said so. */
#define WELL 1u /* this rank could do its part */
#define MORE 2u /* for this rank there is time for another round */

struct shrink {
    struct pk_comm *parent;
    int flags;
    pk_comm_config_t config;
    const int *exclude;
    int nexclude;
    struct pki_agreement agreement; /* the first of a round */
    uint64_t *dead;                 /* by it */
    pk_unique_id_t id;              /* where this rank listens */
    bool listens;
    uint64_t deadline_ns; /* of rounds; 0: the first agreement has not ended */
    bool more;            /* another round may follow, says the last agreement */
};

/* Of the communicator on which the agreement with this number is. */
static pk_result_t make_secret(const struct shrink *s, uint64_t agreement, struct pki_secret *secret)
{
    return pki_split_secret(s->parent, "pickle shrink", agreement, 0, secret);
}

static pk_result_t begin_to_listen(struct shrink *s)
{
    struct pki_id made = { .listened = true };
    pk_result_t result = make_secret(s, pki_engine_agreements(s->parent->engine) + 1, &made.secret);

    if (result == PK_OK)
        result = pki_split_listen(s->parent, &made, &s->id);
    s->listens = result == PK_OK;
    pki_auth_wipe(&made.secret, sizeof made.secret);
    if (result == PK_OK)
        pki_wire_put_id((pk_unique_id_t *)(void *)s->agreement.id, &made);
    return result;
}

static void stop_listening(struct shrink *s)
{
    if (s->listens)
        (void)pki_listener_drop(&s->id);
    s->listens = false;
}

pk_result_t pki_check_calls(const struct pk_comm *comm, uint32_t calls, const char *op)
{
    const struct pki_where where = { .rank = comm->rank, .peer = -1, .op = op };

    if ((calls & (calls - 1)) == 0)
        return PK_OK;
    if ((calls & PKI_CALLS_AGREE) == 0)
        return pki_fail(PK_ERR_MISMATCH, &where, "ranks have called pk_comm_shrink with different flags");
    return pki_fail(PK_ERR_MISMATCH, &where, "some ranks have called pk_comm_agree, others pk_comm_shrink");
}

static uint64_t say(const struct shrink *s, pk_result_t own)
{
    return (own == PK_OK ? WELL : 0) | (s->deadline_ns == 0 || pki_now_ns() < s->deadline_ns ? MORE : 0);
}

static uint32_t call_of(const struct shrink *s)
{
    if ((s->flags & PK_SHRINK_KEEP_RANKS) != 0)
        return PKI_CALLS_KEEP;
    return (s->flags & PK_SHRINK_REPLACE) != 0 ? PKI_CALLS_REPLACE : PKI_CALLS_SHRINK;
}

/* No rank goes by its own clock: one that gave up alone would be waited for. */
static pk_result_t agree(struct shrink *s, struct pki_agreement *a)
{
    const uint64_t timeout_ms = s->config.timeout_ms != 0 ? s->config.timeout_ms : s->parent->config.timeout_ms;
    pk_result_t result = pki_engine_agree(s->parent->engine, a);

    if (s->deadline_ns == 0)
        s->deadline_ns = pki_deadline_ns(timeout_ms);
    s->more = result == PK_OK && (a->all & MORE) != 0;
    return result;
}

/* Who lives, and where to meet. Only the first that lives listens, if it knows that it is the first. */
static pk_result_t agree_on_ranks(struct shrink *s, bool *met)
{
    struct pki_agreement *a = &s->agreement;
    pk_result_t result, listened = PK_OK;

    *a = (struct pki_agreement){ .calls = call_of(s), .exclude = s->exclude, .nexclude = s->nexclude };
    if (pki_engine_is_first(s->parent->engine, s->exclude, s->nexclude))
        listened = begin_to_listen(s);
    a->all = say(s, listened); /* the others are told */
    result = agree(s, a);
    if (result == PK_OK)
        result = pki_check_calls(s->parent, a->calls, "shrink");
    if (result != PK_OK || listened != PK_OK)
        return result != PK_OK ? result : listened;
    if ((a->all & WELL) == 0)
        return pki_fail(PK_ERR_SYSTEM, &(struct pki_where){ .rank = s->parent->rank, .peer = -1, .op = "shrink" },
                        "the first of the ranks that live could not listen");
    memcpy(s->dead, a->dead, pki_agree_words(s->parent->size) * sizeof *s->dead);
    *met = !pki_all_zero(a->id, sizeof a->id);
    return PK_OK;
}

/* The ranks behind the last number take those of the dead, in order. */
static void replace(const struct shrink *s, struct pki_seats *seats)
{
    int dead = 0;

    for (int k = 0; k < seats->n; k++) {
        if (seats->ranks[k] < seats->n)
            continue;
        while (!pki_agree_has(s->dead, dead))
            dead++;
        seats->ranks[k] = dead++;
    }
}

/* The living in the order of their numbers, and the numbers that they get. The first of them listens. */
static pk_result_t take_seats(const struct shrink *s, int *size, int *rank, bool *first, struct pki_seats *seats)
{
    int own = 0;

    seats->n = 0;
    seats->ranks = calloc((size_t)s->parent->size, sizeof *seats->ranks);
    if (seats->ranks == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to shrink %d ranks", s->parent->size);
    for (int r = 0; r < s->parent->size; r++) {
        if (pki_agree_has(s->dead, r))
            continue;
        if (r == s->parent->rank)
            own = seats->n;
        seats->ranks[seats->n++] = r;
    }
    *size = (s->flags & PK_SHRINK_KEEP_RANKS) != 0 ? s->parent->size : seats->n;
    if ((s->flags & PK_SHRINK_REPLACE) != 0)
        replace(s, seats);
    for (int k = 0; k < seats->n && (s->flags & (PK_SHRINK_KEEP_RANKS | PK_SHRINK_REPLACE)) == 0; k++)
        seats->ranks[k] = k;
    *rank = seats->ranks[own];
    *first = own == 0;
    pki_seats_simplify(seats, *size);
    return PK_OK;
}

/* The id: the first one's address, and the secret that was not sent. */
static pk_result_t find_meeting(const struct shrink *s, pk_unique_id_t *id)
{
    struct pki_id theirs;
    pk_result_t result;

    if (!pki_wire_get_id((const pk_unique_id_t *)(const void *)s->agreement.id, &theirs) || theirs.address_count == 0)
        return pki_fail(PK_ERR_INTERNAL, NULL, "the first rank that lives has sent no address");
    result = make_secret(s, pki_engine_agreements(s->parent->engine), &theirs.secret);
    if (result == PK_OK)
        pki_wire_put_id(id, &theirs);
    pki_auth_wipe(&theirs.secret, sizeof theirs.secret);
    return result;
}

/* Until the new communicator is made, or a rank of it has died: then its init is called off. */
static pk_result_t watch(struct shrink *s, struct pk_comm *made)
{
    while (pki_comm_outcome(made) == PK_IN_PROGRESS)
        if (pki_engine_lost_more(s->parent->engine, s->dead, pki_tuning.wait.shrink_ms))
            atomic_store(&made->cancel.state, PKI_CALLED_OFF);
    pki_comm_join(made);
    return pki_comm_state(made);
}

static pk_result_t meet(struct shrink *s, struct pk_comm **made)
{
    pk_comm_config_t config = s->config;
    struct pki_seats seats = { .ranks = NULL };
    pk_unique_id_t id;
    bool first = false;
    int size = 0, rank = 0;
    pk_result_t result = find_meeting(s, &id);

    config.nonblocking = 1;
    if (result == PK_OK)
        result = take_seats(s, &size, &rank, &first, &seats);
    if (result == PK_OK && !first)
        stop_listening(s);
    if (result == PK_OK)
        result = pki_comm_create_seated(made, size, rank, &seats, &id, &config);
    pki_auth_wipe(&id, sizeof id);
    if (result == PK_OK || result == PK_IN_PROGRESS)
        s->listens = false; /* the bootstrap has taken it */
    return result == PK_IN_PROGRESS ? watch(s, *made) : result;
}

/* Have all come through, and does nobody lack? *again: somebody has died. */
static pk_result_t agree_on_end(struct shrink *s, pk_result_t own, bool *again)
{
    const struct pki_where where = { .rank = s->parent->rank, .peer = -1, .op = "shrink" };
    const pk_error_info_t kept = *pki_error_get();
    struct pki_agreement a = { .all = say(s, own), .calls = call_of(s) };
    pk_result_t result = agree(s, &a);

    if (result != PK_OK)
        return result;
    *again = memcmp(a.dead, s->dead, pki_agree_words(s->parent->size) * sizeof *s->dead) != 0;
    if (*again || (a.all & WELL) != 0)
        return PK_OK;
    pki_error_set(&kept);
    return own != PK_OK ? own : pki_fail(PK_ERR_ABORTED, &where, "another rank could not take part");
}

/* *made is NULL where it must be tried again. */
static pk_result_t try_once(struct shrink *s, struct pk_comm **made)
{
    bool met = false, again = true;
    pk_result_t result = agree_on_ranks(s, &met), own;

    *made = NULL;
    if (result != PK_OK || !met) {
        stop_listening(s);
        return result;
    }
    own = meet(s, made);
    stop_listening(s);
    result = agree_on_end(s, own, &again);
    if ((result != PK_OK || again) && *made != NULL) {
        const pk_error_info_t kept = *pki_error_get();

        (void)pki_comm_destroy(*made);
        *made = NULL;
        pki_error_set(&kept);
    }
    return result;
}

static pk_result_t run(struct shrink *s, struct pk_comm **out)
{
    const struct pki_where where = { .rank = s->parent->rank, .peer = -1, .op = "shrink" };
    struct pk_comm *made = NULL;
    pk_result_t result;

    do
        result = try_once(s, &made);
    while (result == PK_OK && made == NULL && s->more);
    if (result == PK_OK && made == NULL)
        return pki_fail(PK_ERR_TIMEOUT, &where, "no communicator of the ranks that live before the deadline of one of them");
    if (result == PK_OK) {
        made->config.nonblocking = s->config.nonblocking;
        *out = made;
    }
    return result;
}

pk_result_t pki_comm_shrink(struct pk_comm *parent, int flags, const int *exclude, int nexclude, struct pk_comm **out,
                            const pk_comm_config_t *config)
{
    struct shrink s = { .parent = parent, .flags = flags, .exclude = exclude, .nexclude = nexclude };
    pk_result_t result = PK_OK;

    if (config == NULL)
        pki_config_like(parent, &s.config);
    else
        result = pki_config_copy(config, &s.config);
    if (result != PK_OK)
        return result;
    s.dead = calloc(pki_agree_words(parent->size), sizeof *s.dead);
    if (s.dead == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to shrink %d ranks", parent->size);
    result = run(&s, out);
    pki_auth_wipe(&s.id, sizeof s.id);
    free(s.dead);
    return result;
}

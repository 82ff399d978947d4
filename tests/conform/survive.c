/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that go on after a failure: revoke, agree, shrink, grow. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS 60000
#define SOON_MS 6000 /* a rank that does not come; nobody who comes is as late */

static void meet(struct rank *r)
{
    char token = 0, tokens[RANKS_MAX];

    share(r, &token, tokens, 1);
}

/* The sum of ones, which is the size. */
static void use(struct rank *r, pk_comm_t *comm, int size)
{
    int32_t one = 1, sum = 0;
    int n = 0;

    expect(r, pk_comm_size(comm, &n), PK_OK, "pk_comm_size");
    expect(r, pk_allreduce(&one, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING), PK_OK, "pk_allreduce");
    if (r->ok && (n != size || sum != size))
        fail(r, "a communicator of %d ranks adds up to %d, not %d", n, (int)sum, size);
}

/* All give all bits but that of their number: those of ranks that took part are gone. */
static void agree(struct rank *r, pk_comm_t *comm, int dead, uint64_t last_due)
{
    const int shift = r->rank % 64;
    uint64_t all = 0, last = UINT64_MAX, due = UINT64_MAX;
    int failed[RANKS_MAX], count = -1;

    if (!expect(r, pk_comm_agree(comm, ~(1ull << shift), &all, failed, &count, &last), PK_OK, "pk_comm_agree"))
        return;
    for (int i = 0; i < r->size; i++)
        due &= i == dead ? UINT64_MAX : ~(1ull << i % 64);
    if (all != due)
        fail(r, "agreed on %#llx, not %#llx", (unsigned long long)all, (unsigned long long)due);
    if (count != (dead >= 0) || (dead >= 0 && failed[0] != dead))
        fail(r, "%d ranks are dead, rank %d the first; it should be rank %d", count, failed[0], dead);
    if (last != last_due)
        fail(r, "collective %llu is the last complete one, not %llu", (unsigned long long)last, (unsigned long long)last_due);
}

static void shrink(struct rank *r, pk_comm_t *comm, const int *exclude, int n, int size)
{
    pk_comm_t *smaller = NULL;

    if (!expect(r, pk_comm_shrink(comm, PK_SHRINK_DEFAULT, exclude, n, &smaller, NULL), PK_OK, "pk_comm_shrink"))
        return;
    use(r, smaller, size);
    expect(r, pk_comm_destroy(smaller), PK_OK, "pk_comm_destroy");
}

/* Of a communicator that has not failed. */
static void in_good_order(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS);

    if (comm == NULL)
        return;
    agree(r, comm, -1, 0);
    use(r, comm, r->size);
    use(r, comm, r->size);
    agree(r, comm, -1, 2);
    shrink(r, comm, NULL, 0, r->size);
    use(r, comm, r->size);
    agree(r, comm, -1, 3);
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

/* One rank revokes while the others wait for it. */
static void revoked(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS);
    int32_t one = 1, sum;

    if (comm == NULL)
        return;
    use(r, comm, r->size);
    meet(r);
    if (r->rank == 0) {
        usleep(20000); /* most of the others wait by then */
        expect(r, pk_comm_revoke(comm), PK_OK, "pk_comm_revoke");
    } else {
        expect(r, pk_allreduce(&one, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING), PK_ERR_REVOKED,
               "an operation that is revoked");
    }
    expect(r, pk_comm_async_error(comm), PK_ERR_REVOKED, "pk_comm_async_error");
    expect(r, pk_comm_revoke(comm), PK_OK, "pk_comm_revoke again");
    agree(r, comm, -1, 1);
    shrink(r, comm, NULL, 0, r->size);
    expect(r, pk_barrier(comm, PK_BLOCKING), PK_ERR_REVOKED, "an operation afterwards");
    expect(r, pk_comm_destroy(comm), PK_ERR_REVOKED, "pk_comm_destroy");
}

/* A rank gives up: the others go on. */
static void without(struct rank *r, int left)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS);
    int32_t one = 1, sum;

    if (comm == NULL)
        return;
    use(r, comm, r->size);
    if (r->rank == left) {
        expect(r, pk_comm_abort(comm), PK_OK, "pk_comm_abort");
        expect(r, pk_comm_agree(comm, 0, NULL, NULL, NULL, NULL), PK_ERR_ABORTED, "pk_comm_agree behind pk_comm_abort");
        expect(r, pk_comm_destroy(comm), PK_ERR_ABORTED, "pk_comm_destroy");
        return;
    }
    if (pk_allreduce(&one, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING) == PK_OK)
        fail(r, "an operation with a rank that has left");
    expect(r, pk_comm_revoke(comm), PK_OK, "pk_comm_revoke");
    agree(r, comm, left, 1);
    shrink(r, comm, NULL, 0, r->size - 1);
    (void)pk_comm_destroy(comm);
}

static void without_first(struct rank *r)
{
    without(r, 0);
}

static void without_last(struct rank *r)
{
    without(r, r->size - 1);
}

/* All but rank 0, which lives and then is told so. */
static void exclude(struct rank *r)
{
    const int first = 0;
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *none = NULL;
    pk_error_info_t info = { .struct_size = sizeof info };

    if (comm == NULL)
        return;
    if (r->rank > 0)
        shrink(r, comm, &first, 1, r->size - 1);
    meet(r);
    if (r->rank == 0) {
        expect(r, pk_comm_shrink(comm, 0, NULL, 0, &none, NULL), PK_ERR_PEER, "pk_comm_shrink of a rank that is excluded");
        pk_last_error(&info);
        if (info.peer < 1 || strstr(info.text, "counts as dead") == NULL)
            fail(r, "peer %d: %.200s", info.peer, info.text);
    } else {
        agree(r, comm, 0, 0);
    }
    meet(r);
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

/* A rank that does not come to the agreement counts as dead, and is told so when it comes. */
static void late(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, SOON_MS);
    const int last = r->size - 1;

    if (comm == NULL)
        return;
    if (r->rank != last)
        agree(r, comm, last, 0);
    meet(r);
    if (r->rank == last)
        expect(r, pk_comm_agree(comm, 0, NULL, NULL, NULL, NULL), PK_ERR_PEER, "pk_comm_agree of a rank that is late");
    meet(r);
    (void)pk_comm_destroy(comm);
}

/* Nobody knows yet that rank 0 does not come: none of the others listens in the first round. */
static void late_first(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, SOON_MS), *none = NULL;

    if (comm == NULL)
        return;
    if (r->rank > 0)
        shrink(r, comm, NULL, 0, r->size - 1);
    meet(r);
    if (r->rank == 0)
        expect(r, pk_comm_shrink(comm, 0, NULL, 0, &none, NULL), PK_ERR_PEER, "pk_comm_shrink of a rank that is late");
    meet(r);
    (void)pk_comm_destroy(comm);
}

/* The ranks of the upper half join those of the lower one. */
static void grow(struct rank *r)
{
    const int old = (r->size + 1) / 2;
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *half = NULL, *grown = NULL;
    pk_unique_id_t id = { { 0 } }, ids[RANKS_MAX];
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    int rank = -1;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = TIMEOUT_MS;
    if (comm == NULL || !expect(r, pk_comm_split(comm, r->rank < old ? 0 : -1, 0, &half, NULL), PK_OK, "pk_comm_split"))
        return;
    if (r->rank == 0)
        expect(r, pk_comm_get_unique_id(half, &id), PK_OK, "pk_comm_get_unique_id");
    share(r, &id, ids, sizeof id);
    if (r->rank < old)
        expect(r, pk_comm_grow(half, r->size - old, &id, &grown, &config), PK_OK, "pk_comm_grow");
    else
        expect(r, pk_comm_join(&grown, -1, &ids[0], &config), PK_OK, "pk_comm_join");
    if (grown != NULL) {
        use(r, grown, r->size);
        expect(r, pk_comm_rank(grown, &rank), PK_OK, "pk_comm_rank");
        if (r->rank < old ? rank != r->rank : rank < old || rank >= r->size)
            fail(r, "rank %d of %d, of which %d are old, has number %d", r->rank, r->size, old, rank);
        expect(r, pk_comm_destroy(grown), PK_OK, "pk_comm_destroy");
    }
    if (half != NULL)
        use(r, half, old);
    if (half != NULL)
        expect(r, pk_comm_destroy(half), PK_OK, "pk_comm_destroy");
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

/* One place, for which all ranks of the upper half come. */
static void grow_by_one(struct rank *r)
{
    const int old = (r->size + 1) / 2;
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *half = NULL, *grown = NULL;
    pk_unique_id_t id = { { 0 } }, ids[RANKS_MAX];
    pk_result_t result, results[RANKS_MAX];
    int joined = 0;

    if (comm == NULL || !expect(r, pk_comm_split(comm, r->rank < old ? 0 : -1, 0, &half, NULL), PK_OK, "pk_comm_split"))
        return;
    if (r->rank == 0)
        expect(r, pk_comm_get_unique_id(half, &id), PK_OK, "pk_comm_get_unique_id");
    share(r, &id, ids, sizeof id);
    result = r->rank < old ? pk_comm_grow(half, 1, &id, &grown, NULL) : pk_comm_join(&grown, -1, &ids[0], NULL);
    if (result == PK_OK)
        use(r, grown, old + 1);
    share(r, &result, results, sizeof result);
    for (int i = 0; i < r->size; i++) {
        joined += i >= old && results[i] == PK_OK;
        if (results[i] != PK_OK && (i < old || results[i] != PK_ERR_PEER))
            fail(r, "rank %d of %d, of which %d are old, got %d", i, r->size, old, (int)results[i]);
    }
    if (joined != 1)
        fail(r, "%d ranks have joined, not 1", joined);
    (void)pk_comm_destroy(grown);
    (void)pk_comm_destroy(half);
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

/* Nobody joins; then ranks that do not call alike. The communicator works as before. */
static void grow_in_vain(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *none = NULL;
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_unique_id_t id;

    if (comm == NULL)
        return;
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 500;
    if (r->rank == 0)
        expect(r, pk_comm_get_unique_id(comm, &id), PK_OK, "pk_comm_get_unique_id");
    else
        expect(r, pk_comm_get_unique_id(comm, &id), PK_ERR_ARG, "pk_comm_get_unique_id of another rank");
    expect(r, pk_comm_grow(comm, 2, &id, &none, &config), PK_ERR_TIMEOUT, "pk_comm_grow where nobody joins");
    pk_last_error(&info);
    if (r->rank == 0 && info.peer != r->size)
        fail(r, "peer %d: %.200s", info.peer, info.text);
    use(r, comm, r->size);
    if (r->rank == 0)
        expect(r, pk_comm_get_unique_id(comm, &id), PK_OK, "pk_comm_get_unique_id");
    expect(r, pk_comm_grow(comm, r->rank == 0 ? 1 : 2, &id, &none, &config), PK_ERR_MISMATCH, "pk_comm_grow with other counts");
    if (r->rank == 0)
        expect(r, pk_comm_get_unique_id(comm, &id), PK_OK, "pk_comm_get_unique_id");
    expect(r, r->rank == 0 ? pk_comm_grow(comm, 1, &id, &none, &config) : pk_comm_split(comm, 0, 0, &none, NULL), PK_ERR_MISMATCH,
           "pk_comm_grow where others split");
    use(r, comm, r->size);
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

/* Ids that are of something else. */
static void foreign_ids(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *other = throwaway(r, TIMEOUT_MS), *none = NULL;
    pk_unique_id_t id;

    if (comm == NULL || other == NULL)
        return;
    expect(r, pk_get_unique_id(&id), PK_OK, "pk_get_unique_id");
    expect(r, pk_comm_join(&none, -1, &id, NULL), PK_ERR_ARG, "pk_comm_join with an id of pk_get_unique_id");
    if (r->rank == 0)
        expect(r, pk_comm_grow(comm, 1, &id, &none, NULL), PK_ERR_ARG, "pk_comm_grow with an id of pk_get_unique_id");
    expect(r, pk_unique_id_release(&id), PK_OK, "pk_unique_id_release");
    if (r->rank == 0) {
        expect(r, pk_comm_get_unique_id(other, &id), PK_OK, "pk_comm_get_unique_id");
        expect(r, pk_comm_grow(comm, 1, &id, &none, NULL), PK_ERR_ARG, "pk_comm_grow with an id of another communicator");
        expect(r, pk_comm_init_rank(&none, 1, 0, &id, NULL), PK_ERR_ARG, "pk_comm_init_rank with an id for ranks that join");
        expect(r, pk_unique_id_release(&id), PK_OK, "pk_unique_id_release");
        expect(r, pk_comm_join(&none, -1, &id, NULL), PK_ERR_PEER, "pk_comm_join with an id that was given back");
    }
    use(r, comm, r->size);
    expect(r, pk_comm_destroy(other), PK_OK, "pk_comm_destroy");
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

static void different_calls(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *none = NULL;

    if (comm == NULL)
        return;
    if (r->rank == 0)
        expect(r, pk_comm_agree(comm, 0, NULL, NULL, NULL, NULL), PK_ERR_MISMATCH, "pk_comm_agree where others shrink");
    else
        expect(r, pk_comm_shrink(comm, 0, NULL, 0, &none, NULL), PK_ERR_MISMATCH, "pk_comm_shrink where another agrees");
    agree(r, comm, -1, 0);
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

void run_survival(struct rank *rank)
{
    static const struct special cases[] = {
        { "survive: in good order", in_good_order },
        { "survive: revoke", revoked },
        { "survive: ids of something else", foreign_ids },
    };
    static const struct special between[] = {
        /* more than one rank */
        { "survive: without the first", without_first },
        { "survive: without the last", without_last },
        { "survive: exclude", exclude },
        { "survive: a rank that does not come", late },
        { "survive: the first does not come to shrink", late_first },
        { "survive: grow", grow },
        { "survive: grow by one", grow_by_one },
        { "survive: grow in vain", grow_in_vain },
        { "survive: different calls", different_calls },
    };

    run_special(rank, cases, sizeof cases / sizeof cases[0]);
    if (rank->size > 1)
        run_special(rank, between, sizeof between / sizeof between[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of ranks where some have gone: holes, ranks that take the place of others, ranks that want a number. */
#include "conform.h"

#include <string.h>

#define TIMEOUT_MS 60000

static void meet(struct rank *r)
{
    char token = 0, tokens[RANKS_MAX];

    share(r, &token, tokens, 1);
}

static pk_error_info_t last_error(void)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    return info;
}

static void be(struct rank *r, pk_comm_t *comm, int rank, int size)
{
    int n = -1, me = -1;

    expect(r, pk_comm_rank(comm, &me), PK_OK, "pk_comm_rank");
    expect(r, pk_comm_size(comm, &n), PK_OK, "pk_comm_size");
    if (r->ok && (me != rank || n != size))
        fail(r, "rank %d of %d, not %d of %d", me, n, rank, size);
}

/* The blocks of all ranks, in the order of their numbers: `was` is what each gives. Also a root that is not 0. */
static void use(struct rank *r, pk_comm_t *comm, int rank, int size, const int *wanted)
{
    int all[RANKS_MAX], root = r->rank;

    be(r, comm, rank, size);
    expect(r, pk_allgather(&r->rank, all, 1, PK_INT32, comm, PK_BLOCKING), PK_OK, "pk_allgather");
    for (int i = 0; i < size && r->ok; i++)
        if (all[i] != wanted[i])
            fail(r, "number %d belongs to rank %d, not %d", i, all[i], wanted[i]);
    expect(r, pk_broadcast(&r->rank, &root, 1, PK_INT32, size - 1, comm, PK_BLOCKING), PK_OK, "pk_broadcast");
    if (r->ok && root != wanted[size - 1])
        fail(r, "rank %d broadcasts as the last, not %d", root, wanted[size - 1]);
}

/* A communicator that `left` leaves, before the others go on by `flags`; NULL there. */
static pk_comm_t *shrink(struct rank *r, pk_comm_t *comm, int left, int flags)
{
    pk_comm_t *made = NULL;

    if (r->rank == left) {
        expect(r, pk_comm_abort(comm), PK_OK, "pk_comm_abort");
        return NULL;
    }
    expect(r, pk_comm_shrink(comm, flags | PK_SHRINK_REVOKE, NULL, 0, &made, NULL), PK_OK, "pk_comm_shrink");
    return made;
}

/* ---- PK_SHRINK_KEEP_RANKS ---- */

/* Each sends its number to the next one that lives. */
static void pass_on(struct rank *r, pk_comm_t *comm, int hole)
{
    int next = (r->rank + 1) % r->size, last = (r->rank + r->size - 1) % r->size, got = -1;

    next = next == hole ? (next + 1) % r->size : next;
    last = last == hole ? (last + r->size - 1) % r->size : last;
    pk_group_start();
    expect(r, pk_send(&r->rank, 1, PK_INT32, next, comm, PK_BLOCKING), PK_OK, "pk_send");
    expect(r, pk_recv(&got, 1, PK_INT32, last, comm, PK_BLOCKING), PK_OK, "pk_recv");
    expect(r, pk_group_end(), PK_OK, "pk_group_end");
    if (r->ok && got != last)
        fail(r, "rank %d sent %d", last, got);
}

static void expect_hole(struct rank *r, pk_result_t got, int hole, const char *what)
{
    expect(r, got, PK_ERR_PEER, what);
    if (r->ok && (last_error().peer != hole || strstr(last_error().text, "nobody is rank") == NULL))
        fail(r, "%s: peer %d: %.200s", what, last_error().peer, last_error().text);
}

static void refuse(struct rank *r, pk_comm_t *comm, int hole)
{
    pk_explanation_t why = { .struct_size = sizeof why };
    pk_path_t path = { .struct_size = sizeof path };
    pk_stream_t stream;
    int x[RANKS_MAX] = { 0 };

    expect(r, pk_stream_create(&stream), PK_OK, "pk_stream_create");
    expect_hole(r, pk_send(x, 1, PK_INT32, hole, comm, PK_BLOCKING), hole, "pk_send to a hole");
    expect_hole(r, pk_recv(x, 1, PK_INT32, hole, comm, stream), hole, "pk_recv from a hole");
    expect_hole(r, pk_allreduce(x, x, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING), hole, "pk_allreduce");
    expect_hole(r, pk_barrier(comm, stream), hole, "pk_barrier");
    expect_hole(r, pk_broadcast(x, x, 1, PK_INT32, r->rank, comm, PK_BLOCKING), hole, "pk_broadcast");
    expect_hole(r, pk_comm_path(comm, hole, PK_MEM_HOST, PK_MEM_HOST, &path), hole, "pk_comm_path");
    expect_hole(r, pk_explain(comm, PK_OP_SEND, 1, PK_INT32, PK_MEM_HOST, 0, hole, &why), hole, "pk_explain of a send");
    expect_hole(r, pk_explain(comm, PK_OP_ALLREDUCE, 1, PK_INT32, PK_MEM_HOST, 0, 0, &why), hole, "pk_explain of a collective");
    expect(r, pk_comm_async_error(comm), PK_OK, "pk_comm_async_error behind what was refused");
    expect(r, pk_stream_destroy(stream), PK_OK, "pk_stream_destroy");
}

static void agree(struct rank *r, pk_comm_t *comm, int hole)
{
    int failed[RANKS_MAX], count = -1;

    expect(r, pk_comm_agree(comm, 0, NULL, failed, &count, NULL), PK_OK, "pk_comm_agree");
    if (r->ok && (count != 1 || failed[0] != hole))
        fail(r, "%d ranks are dead, rank %d the first; it should be rank %d", count, failed[0], hole);
}

/* Those that live, by communicators without holes. */
static void close_holes(struct rank *r, pk_comm_t *kept, int hole, const int *living)
{
    const int rank = r->rank - (r->rank > hole);
    pk_comm_t *split = NULL, *smaller = NULL;

    expect(r, pk_comm_split(kept, 3, 0, &split, NULL), PK_OK, "pk_comm_split");
    if (split != NULL)
        use(r, split, rank, r->size - 1, living);
    (void)pk_comm_destroy(split);
    expect(r, pk_comm_shrink(kept, 0, NULL, 0, &smaller, NULL), PK_OK, "pk_comm_shrink without the flag");
    if (smaller != NULL)
        use(r, smaller, rank, r->size - 1, living);
    (void)pk_comm_destroy(smaller);
}

/* The rank that has left comes back, as the number that it had. */
static void fill_hole(struct rank *r, pk_comm_t *kept, int hole, bool by_name)
{
    const int leader = hole == 0;
    pk_unique_id_t id = { { 0 } }, ids[RANKS_MAX];
    pk_comm_t *grown = NULL;
    int all[RANKS_MAX];

    if (r->rank == leader)
        expect(r, pk_comm_get_unique_id(kept, &id), PK_OK, "pk_comm_get_unique_id");
    else if (r->rank != hole)
        expect(r, pk_comm_get_unique_id(kept, &id), PK_ERR_ARG, "pk_comm_get_unique_id of another rank");
    share(r, &id, ids, sizeof id);
    if (r->rank != hole)
        expect(r, pk_comm_grow(kept, 1, &id, &grown, NULL), PK_OK, "pk_comm_grow");
    else
        expect(r, pk_comm_join(&grown, by_name ? hole : -1, &ids[leader], NULL), PK_OK, "pk_comm_join");
    for (int i = 0; i < r->size; i++)
        all[i] = i;
    if (grown != NULL)
        use(r, grown, r->rank, r->size, all);
    (void)pk_comm_destroy(grown);
}

static void keep(struct rank *r, int hole)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *kept;
    int living[RANKS_MAX];

    if (comm == NULL)
        return;
    kept = shrink(r, comm, hole, PK_SHRINK_KEEP_RANKS);
    for (int i = 0; i < r->size - 1; i++)
        living[i] = i + (i >= hole);
    if (kept != NULL) {
        be(r, kept, r->rank, r->size);
        pass_on(r, kept, hole);
        refuse(r, kept, hole);
        agree(r, kept, hole);
        close_holes(r, kept, hole, living);
        pass_on(r, kept, hole);
    }
    fill_hole(r, kept, hole, hole > 0);
    meet(r);
    if (kept != NULL)
        expect(r, pk_comm_destroy(kept), PK_OK, "pk_comm_destroy");
    (void)pk_comm_destroy(comm);
}

static void keep_first(struct rank *r)
{
    keep(r, 0);
}

static void keep_second(struct rank *r)
{
    keep(r, 1);
}

/* ---- PK_SHRINK_REPLACE ---- */

/* The last rank takes the place of the one that leaves. */
static void replace(struct rank *r, int left)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *made;
    int wanted[RANKS_MAX];

    if (comm == NULL)
        return;
    made = shrink(r, comm, left, PK_SHRINK_REPLACE);
    for (int i = 0; i < r->size - 1; i++)
        wanted[i] = i == left ? r->size - 1 : i;
    if (made != NULL) {
        use(r, made, r->rank == r->size - 1 ? left : r->rank, r->size - 1, wanted);
        expect(r, pk_comm_destroy(made), PK_OK, "pk_comm_destroy");
    }
    meet(r);
    (void)pk_comm_destroy(comm);
}

static void replace_first(struct rank *r)
{
    replace(r, 0);
}

static void replace_last_but_one(struct rank *r)
{
    replace(r, r->size - 2);
}

static void different_flags(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *none = NULL;
    const int flags = r->rank == 0 ? PK_SHRINK_KEEP_RANKS : PK_SHRINK_REPLACE;

    if (comm == NULL)
        return;
    expect(r, pk_comm_shrink(comm, PK_SHRINK_KEEP_RANKS | PK_SHRINK_REPLACE, NULL, 0, &none, NULL), PK_ERR_ARG,
           "pk_comm_shrink with both flags");
    expect(r, pk_comm_shrink(comm, flags, NULL, 0, &none, NULL), PK_ERR_MISMATCH, "pk_comm_shrink with other flags");
    if (strstr(last_error().text, "different flags") == NULL)
        fail(r, "%.200s", last_error().text);
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

/* ---- pk_comm_join with a number ---- */

/* Rank 0 alone is old. The others want the numbers that `wish` says of each. */
static pk_result_t join_alone(struct rank *r, int wish, pk_comm_t **grown)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS), *one = NULL;
    pk_unique_id_t id = { { 0 } }, ids[RANKS_MAX];
    pk_result_t result = PK_ERR_INTERNAL;

    if (comm == NULL || !expect(r, pk_comm_split(comm, r->rank == 0 ? 0 : -1, 0, &one, NULL), PK_OK, "pk_comm_split"))
        return result;
    if (r->rank == 0)
        expect(r, pk_comm_get_unique_id(one, &id), PK_OK, "pk_comm_get_unique_id");
    share(r, &id, ids, sizeof id);
    result = r->rank == 0 ? pk_comm_grow(one, r->size - 1, &id, grown, NULL) : pk_comm_join(grown, wish, &ids[0], NULL);
    meet(r);
    (void)pk_comm_destroy(one);
    (void)pk_comm_destroy(comm);
    return result;
}

/* Backwards: the last one becomes rank 1. */
static void wishes(struct rank *r)
{
    pk_comm_t *grown = NULL;
    int wanted[RANKS_MAX] = { 0 };

    for (int i = 1; i < r->size; i++)
        wanted[i] = r->size - i;
    expect(r, join_alone(r, r->size - r->rank, &grown), PK_OK, "pk_comm_join with a number");
    if (grown != NULL)
        use(r, grown, wanted[r->rank], r->size, wanted);
    (void)pk_comm_destroy(grown);
}

static void wish_again(struct rank *r)
{
    pk_comm_t *grown = NULL;

    expect(r, join_alone(r, 0, &grown), PK_ERR_MISMATCH, "pk_comm_join with the number of an old rank");
    if (strstr(last_error().text, "two ranks want to be rank 0") == NULL)
        fail(r, "%.200s", last_error().text);
    expect(r, join_alone(r, r->size, &grown), PK_ERR_MISMATCH, "pk_comm_join with a number that there is not");
    expect(r, pk_comm_join(&grown, -2, &(pk_unique_id_t){ { 0 } }, NULL), PK_ERR_ARG, "pk_comm_join with a negative number");
}

void run_seats(struct rank *rank)
{
    static const struct special cases[] = {
        /* more than one rank */
        { "seats: rank 0 is a hole", keep_first },
        { "seats: rank 1 is a hole", keep_second },
        { "seats: the last one for the first", replace_first },
        { "seats: the last one for the last but one", replace_last_but_one },
        { "seats: different flags", different_flags },
        { "seats: ranks that join want numbers", wishes },
        { "seats: ranks that join want others' numbers", wish_again },
    };

    if (rank->size > 1)
        run_special(rank, cases, sizeof cases / sizeof cases[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives: what goes where, worked out from what the headers say, for each as a few facts. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

#define GAP 3 /* elements between blocks of v-forms, sometimes */

enum in_place { IN_IS_OUT, IN_IS_PART, OUT_IS_PART };

static const struct coll {
    bool in_many, out_many;       /* a block for each rank */
    bool in_at_root, out_at_root; /* others have none */
    bool reduces, v;
    enum in_place place;
} colls[OPS] = {
    [OP_BROADCAST] = { .in_at_root = true },
    [OP_REDUCE] = { .out_at_root = true, .reduces = true },
    [OP_ALLREDUCE] = { .reduces = true },
    [OP_REDUCE_SCATTER] = { .in_many = true, .reduces = true, .place = OUT_IS_PART },
    [OP_ALLGATHER] = { .out_many = true, .place = IN_IS_PART },
    [OP_ALLGATHERV] = { .out_many = true, .v = true, .place = IN_IS_PART },
    [OP_ALLTOALL] = { .in_many = true, .out_many = true },
    [OP_ALLTOALLV] = { .in_many = true, .out_many = true, .v = true },
    [OP_GATHER] = { .out_many = true, .out_at_root = true, .place = IN_IS_PART },
    [OP_GATHERV] = { .out_many = true, .out_at_root = true, .v = true, .place = IN_IS_PART },
    [OP_SCATTER] = { .in_many = true, .in_at_root = true, .place = OUT_IS_PART },
    [OP_SCATTERV] = { .in_many = true, .in_at_root = true, .v = true, .place = OUT_IS_PART },
};

/* The blocks of one buffer, in elements. */
struct table {
    size_t counts[RANKS_MAX], offsets[RANKS_MAX];
    int blocks;
    size_t total;
    bool packed; /* say so by no offsets */
};

static const struct coll *coll_of(const struct work *w)
{
    return &colls[w->item->op];
}

static int root_of(const struct work *w)
{
    int size = w->rank->size;

    return w->item->root == ROOT_FIRST ? 0 : w->item->root == ROOT_LAST ? size - 1 : size / 2;
}

static bool has_in(const struct work *w)
{
    return !coll_of(w)->in_at_root || w->rank->rank == root_of(w);
}

static bool has_out(const struct work *w)
{
    return !coll_of(w)->out_at_root || w->rank->rank == root_of(w);
}

static bool in_place(const struct work *w)
{
    return w->item->in_place && has_in(w) && has_out(w);
}

/* Elements that go from one rank to another. */
static size_t length(const struct work *w, int from, int to)
{
    size_t count = w->item->count;
    int low = from, high = to, k;

    if (!coll_of(w)->v)
        return count;
    if (w->item->op == OP_SCATTERV)
        low = 0;
    else if (w->item->op != OP_ALLTOALLV)
        high = 0;
    else if (w->item->in_place && from > to) { /* what goes has the room of what comes */
        low = to;
        high = from;
    }
    k = (int)((unsigned)(low * 5 + high * 3) + w->item->number) % 8;
    if (k == 0)
        return 0;
    return count < 16 ? count - (count > 0 && k % 2 == 0) : count - count / 16 * (size_t)k;
}

static void fill_table(const struct work *w, bool in, struct table *t)
{
    bool many = in ? coll_of(w)->in_many : coll_of(w)->out_many;
    int layout = coll_of(w)->v ? (int)(w->item->number / 8 % 3) : 0, rank = w->rank->rank;
    size_t at = 0;

    t->blocks = many ? w->rank->size : 1;
    t->packed = layout == 0;
    for (int i = 0; i < t->blocks; i++) {
        int p = layout == 2 ? t->blocks - 1 - i : i;
        int peer = many ? p : rank;

        t->counts[p] = in ? length(w, rank, peer) : length(w, peer, rank);
        t->offsets[p] = at;
        at += t->counts[p] + (layout == 2 ? GAP : 0);
    }
    t->total = at;
}

static size_t total_bytes(const struct work *w, bool in)
{
    struct table t;

    fill_table(w, in, &t);
    return t.total * pk_dtype_size(w->item->dtype);
}

static size_t source_bytes(const struct work *w)
{
    return total_bytes(w, true);
}

/* In place the longer of the two holds both. */
static size_t result_bytes(const struct work *w)
{
    size_t in = total_bytes(w, true), out = total_bytes(w, false);

    return w->item->in_place && in > out ? in : out;
}

/* Where the operation finds its data. */
static char *sendbuf(const struct work *w, char *source, char *result)
{
    struct table out;

    if (!in_place(w) || coll_of(w)->place == OUT_IS_PART)
        return in_place(w) ? result : source;
    fill_table(w, false, &out);
    return coll_of(w)->place == IN_IS_OUT ? result : result + out.offsets[w->rank->rank] * pk_dtype_size(w->item->dtype);
}

static char *recvbuf(const struct work *w, char *result)
{
    struct table in;

    if (!in_place(w) || coll_of(w)->place != OUT_IS_PART)
        return result;
    fill_table(w, true, &in);
    return result + in.offsets[w->rank->rank] * pk_dtype_size(w->item->dtype);
}

/* The data of block `to` on rank `from`. */
static unsigned tag_of(const struct work *w, int to)
{
    return coll_of(w)->in_many ? (unsigned)to + 1 : 0;
}

static void make_block(const struct work *w, char *at, size_t count, int from, int to)
{
    uint64_t key = work_key(w, from, tag_of(w, to));

    if (coll_of(w)->reduces)
        data_numbers(at, count, w->item->dtype, w->item->reduction, key);
    else
        data_fill(at, count * pk_dtype_size(w->item->dtype), key);
}

static void fill(const struct work *w, char *source, char *result)
{
    char *to = sendbuf(w, source, result);
    struct table in;

    if (!has_in(w))
        return;
    fill_table(w, true, &in);
    for (int p = 0; p < in.blocks; p++)
        make_block(w, to + in.offsets[p] * pk_dtype_size(w->item->dtype), in.counts[p], w->rank->rank, p);
}

/* ---- the calls ---- */

static pk_result_t post_v(const struct work *w, char *in, char *out)
{
    const struct item *i = w->item;
    pk_comm_t *comm = w->rank->comm;
    pk_stream_t stream = work_stream(w);
    struct table from, to;
    const size_t *in_offsets, *out_offsets;

    fill_table(w, true, &from);
    fill_table(w, false, &to);
    in_offsets = from.packed ? NULL : from.offsets;
    out_offsets = to.packed ? NULL : to.offsets;
    switch (i->op) {
    case OP_ALLGATHERV:
        return pk_allgatherv(in, from.counts[0], out, to.counts, out_offsets, i->dtype, comm, stream);
    case OP_GATHERV:
        if (!has_out(w))
            return pk_gatherv(in, from.counts[0], NULL, NULL, NULL, i->dtype, root_of(w), comm, stream);
        return pk_gatherv(in, from.counts[0], out, to.counts, out_offsets, i->dtype, root_of(w), comm, stream);
    case OP_SCATTERV:
        if (!has_in(w))
            return pk_scatterv(NULL, NULL, NULL, out, to.counts[0], i->dtype, root_of(w), comm, stream);
        return pk_scatterv(in, from.counts, in_offsets, out, to.counts[0], i->dtype, root_of(w), comm, stream);
    default:
        return pk_alltoallv(in, from.counts, in_offsets, out, to.counts, out_offsets, i->dtype, comm, stream);
    }
}

static pk_result_t post_reduction(const struct work *w, const char *in, char *out, pk_op_t reduction)
{
    const struct item *i = w->item;
    pk_comm_t *comm = w->rank->comm;
    pk_stream_t stream = work_stream(w);

    switch (i->op) {
    case OP_REDUCE:
        return pk_reduce(in, out, i->count, i->dtype, reduction, root_of(w), comm, stream);
    case OP_ALLREDUCE:
        return pk_allreduce(in, out, i->count, i->dtype, reduction, comm, stream);
    default:
        return pk_reduce_scatter(in, out, i->count, i->dtype, reduction, comm, stream);
    }
}

/* The reduction is gone when the operation may not have begun, and the scalar where the host has it. */
static pk_result_t post_premul(const struct work *w, const char *in, char *out)
{
    uint64_t scalar = 0;
    bool on_gpu = w->factor.place == PLACE_DEVICE;
    pk_op_t reduction;
    pk_result_t result;

    memcpy(&scalar, buffer_view(&w->factor), w->factor.bytes);
    result = pk_op_create_premul(w->rank->comm, w->item->dtype, on_gpu ? (void *)w->factor.data : &scalar, on_gpu, &reduction);
    if (result != PK_OK)
        return result;
    memset(&scalar, 0, sizeof scalar);
    result = post_reduction(w, in, out, reduction);
    expect(w->rank, pk_op_destroy(w->rank->comm, reduction), PK_OK, "pk_op_destroy");
    return result;
}

static pk_result_t post(const struct work *w, char *source, char *result)
{
    const struct item *i = w->item;
    char *in = sendbuf(w, source, result), *out = recvbuf(w, result);
    pk_comm_t *comm = w->rank->comm;
    pk_stream_t stream = work_stream(w);

    if (coll_of(w)->v)
        return post_v(w, in, out);
    /* What a rank does not have may be anything. */
    if (i->number % 2 == 0 && !has_in(w))
        in = NULL;
    if (i->number % 2 == 0 && !has_out(w))
        out = NULL;
    switch (i->op) {
    case OP_BROADCAST:
        return pk_broadcast(in, out, i->count, i->dtype, root_of(w), comm, stream);
    case OP_REDUCE:
    case OP_ALLREDUCE:
    case OP_REDUCE_SCATTER:
        return i->reduction == REDUCTION_PREMUL ? post_premul(w, in, out) : post_reduction(w, in, out, i->reduction);
    case OP_ALLGATHER:
        return pk_allgather(in, out, i->count, i->dtype, comm, stream);
    case OP_ALLTOALL:
        return pk_alltoall(in, out, i->count, i->dtype, comm, stream);
    case OP_GATHER:
        return pk_gather(in, out, i->count, i->dtype, root_of(w), comm, stream);
    default:
        return pk_scatter(in, out, i->count, i->dtype, root_of(w), comm, stream);
    }
}

/* ---- what must be there ---- */

static void verify_sum(const struct work *w, const char *got, size_t count)
{
    uint64_t keys[RANKS_MAX];
    size_t where;

    for (int r = 0; r < w->rank->size; r++)
        keys[r] = work_key(w, r, tag_of(w, w->rank->rank));
    if (!data_is_reduced(got, count, w->item->dtype, w->item->reduction, keys, w->rank->size, &where))
        fail(w->rank, "round %u: the result is wrong at byte %zu", w->round, where);
}

static void verify_block(const struct work *w, const char *got, size_t count, int p)
{
    int from = coll_of(w)->out_many ? p : root_of(w);

    if (coll_of(w)->reduces)
        verify_sum(w, got, count);
    else
        work_verify(w, got, count * pk_dtype_size(w->item->dtype), from, tag_of(w, w->rank->rank));
}

static void verify_untouched(const struct work *w, const char *from, size_t bytes, const char *what)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)from[i] != POISON) {
            fail(w->rank, "round %u: %s was written at byte %zu", w->round, what, i);
            return;
        }
}

/* In place: the blocks of the send buffer that are not the result. */
static void verify_others(const struct work *w, const char *result)
{
    size_t width = pk_dtype_size(w->item->dtype);
    struct table in;
    char *was;

    fill_table(w, true, &in);
    was = malloc(in.total * width + 1);
    if (was == NULL)
        abort();
    for (int p = 0; p < in.blocks; p++) {
        if (p == w->rank->rank)
            continue;
        make_block(w, was, in.counts[p], w->rank->rank, p);
        if (memcmp(was, result + in.offsets[p] * width, in.counts[p] * width) != 0)
            fail(w->rank, "round %u: block %d of the send buffer was written", w->round, p);
    }
    free(was);
}

static void verify(const struct work *w, const char *source, const char *result)
{
    size_t width = pk_dtype_size(w->item->dtype), behind;
    const char *got = recvbuf(w, (char *)(uintptr_t)result);
    struct table out;

    (void)source;
    if (!has_out(w)) {
        verify_untouched(w, result, result_bytes(w), "the receive buffer of a rank that is not the root");
        return;
    }
    fill_table(w, false, &out);
    for (int p = 0; p < out.blocks && w->rank->ok; p++) {
        verify_block(w, got + out.offsets[p] * width, out.counts[p], p);
        behind = coll_of(w)->v && !in_place(w) && out.total > 0 && w->item->number / 8 % 3 == 2 ? GAP : 0;
        verify_untouched(w, got + (out.offsets[p] + out.counts[p]) * width, behind * width, "the gap behind a block");
    }
    if (in_place(w) && coll_of(w)->place == OUT_IS_PART)
        verify_others(w, result);
    if (coll_of(w)->reduces && w->round > 0 && memcmp(result, buffer_view(&w->results[0]), result_bytes(w)) != 0)
        fail(w->rank, "round %u: other bits than in round 0 from the same data", w->round);
}

/* ---- barrier: no data, but an order ---- */

static size_t nothing(const struct work *w)
{
    (void)w;
    return 0;
}

static void fill_nothing(const struct work *w, char *source, char *result)
{
    (void)w;
    (void)source;
    (void)result;
}

static pk_result_t post_barrier(const struct work *w, char *source, char *result)
{
    (void)source;
    (void)result;
    return pk_barrier(w->rank->comm, work_stream(w));
}

static void verify_nothing(const struct work *w, const char *source, const char *result)
{
    (void)w;
    (void)source;
    (void)result;
}

const struct kind barrier_kind = { nothing, nothing, fill_nothing, post_barrier, verify_nothing };
const struct kind coll_kind = { source_bytes, result_bytes, fill, post, verify };

bool is_reduction(enum op op)
{
    return colls[op].reduces;
}

bool is_many(enum op op)
{
    return colls[op].in_many || colls[op].out_many;
}

/* Do all ranks end with the same bytes in the same places? */
bool is_same_everywhere(enum op op)
{
    return op == OP_BROADCAST || op == OP_ALLREDUCE || op == OP_ALLGATHER || op == OP_ALLGATHERV;
}

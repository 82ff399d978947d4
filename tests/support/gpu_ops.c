/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACES 31 /* of the data in the buffer, by turns */
#define APART 64  /* elements between two of them */
#define BOTH 2    /* a part that is the sum of both ranks' data */
#define BOTH_SEND (-1)
#define EACH_TO_ALL (-2)

static const struct op {
    const char *name;
    pk_op_kind_t kind;
    int root;           /* or the sender; BOTH_SEND; EACH_TO_ALL: to itself, too */
    bool in_place;      /* at the root, where there is one */
    size_t parts[2][2]; /* of uneven ones, quarters of the longest: [from][to], or [from][0] */
} table[] = {
    { "send from rank 0", PK_OP_SEND, 0, false, { { 0 } } },
    { "send from rank 1", PK_OP_SEND, 1, false, { { 0 } } },
    { "exchange", PK_OP_SEND, BOTH_SEND, false, { { 0 } } },
    { "messages of each to all", PK_OP_SEND, EACH_TO_ALL, false, { { 0 } } },
    { "allgather", PK_OP_ALLGATHER, 0, false, { { 0 } } },
    { "allgather in place", PK_OP_ALLGATHER, 0, true, { { 0 } } },
    { "alltoall", PK_OP_ALLTOALL, 0, false, { { 0 } } },
    { "broadcast from rank 0", PK_OP_BROADCAST, 0, true, { { 0 } } },
    { "broadcast from rank 1", PK_OP_BROADCAST, 1, false, { { 0 } } },
    { "gather to rank 0", PK_OP_GATHER, 0, false, { { 0 } } },
    { "gather to rank 1 in place", PK_OP_GATHER, 1, true, { { 0 } } },
    { "scatter from rank 0 in place", PK_OP_SCATTER, 0, true, { { 0 } } },
    { "scatter from rank 1", PK_OP_SCATTER, 1, false, { { 0 } } },
    { "reduce to rank 0", PK_OP_REDUCE, 0, false, { { 0 } } },
    { "reduce to rank 1", PK_OP_REDUCE, 1, false, { { 0 } } },
    { "allreduce", PK_OP_ALLREDUCE, 0, false, { { 0 } } },
    { "reduce_scatter", PK_OP_REDUCE_SCATTER, 0, false, { { 0 } } },
    { "barrier", PK_OP_BARRIER, 0, false, { { 0 } } },
    { "allgatherv", PK_OP_ALLGATHERV, 0, false, { { 4 }, { 1 } } },
    { "allgatherv in place, nothing of rank 0", PK_OP_ALLGATHERV, 0, true, { { 0 }, { 4 } } },
    { "alltoallv, nothing from rank 0 to 1", PK_OP_ALLTOALLV, 0, false, { { 1, 0 }, { 4, 3 } } },
    { "alltoallv, nothing from rank 1 to 0", PK_OP_ALLTOALLV, 0, false, { { 3, 4 }, { 0, 1 } } },
};

int gpu_ops_count(void)
{
    return sizeof table / sizeof table[0];
}

const char *gpu_ops_name(int op)
{
    return table[op].name;
}

bool gpu_ops_has_lengths(int op)
{
    return table[op].kind != PK_OP_BARRIER;
}

bool gpu_ops_sums(int op)
{
    return table[op].kind == PK_OP_REDUCE || table[op].kind == PK_OP_ALLREDUCE || table[op].kind == PK_OP_REDUCE_SCATTER;
}

/* ---- memory ---- */

static size_t all_elements(const struct gpu_ops *ops)
{
    return 2 * ops->most + (PLACES - 1) * APART;
}

static float *host_floats(size_t n)
{
    float *floats = malloc(n * sizeof *floats);

    if (floats == NULL) {
        perror("memory for the data of operations");
        exit(2);
    }
    return floats;
}

void gpu_ops_open(struct gpu_ops *ops, struct gpu_rank *self, size_t most)
{
    size_t n;

    *ops = (struct gpu_ops){ .self = self, .most = most };
    n = all_elements(ops);
    ops->in = gpu_alloc(n * sizeof(float));
    ops->out = gpu_alloc(2 * most * sizeof(float));
    ops->host = host_floats(n);
    for (uint32_t r = 0; r < 2; r++) {
        ops->given[r] = host_floats(n);
        for (size_t i = 0; i < n; i++)
            ops->given[r][i] = (float)(((uint32_t)i * 2654435761u + r * 40503u) >> 12);
    }
    gpu_copy(ops->in, ops->given[self->rank], n * sizeof(float));
}

void gpu_ops_close(struct gpu_ops *ops)
{
    gpu_free(ops->in);
    gpu_free(ops->out);
    free(ops->host);
    free(ops->given[0]);
    free(ops->given[1]);
}

/* ---- before, and the call ---- */

static size_t part_of(const struct op *o, int from, int to, size_t n)
{
    return o->parts[from][to] * n / 4;
}

/* Where this rank's own block is in `out` in place. */
static size_t own_at(const struct gpu_ops *ops, const struct op *o, size_t n)
{
    if (o->kind == PK_OP_ALLGATHERV)
        return ops->self->rank == 0 ? 0 : part_of(o, 0, 0, n);
    return (size_t)ops->self->rank * n;
}

static bool is_in_place(const struct gpu_ops *ops, const struct op *o)
{
    bool rooted = o->kind == PK_OP_BROADCAST || o->kind == PK_OP_GATHER || o->kind == PK_OP_SCATTER;

    return o->in_place && (!rooted || ops->self->rank == o->root);
}

pk_result_t gpu_ops_explain(const struct gpu_ops *ops, int op, size_t n)
{
    const struct op *o = &table[op];
    pk_explanation_t explanation = { .struct_size = sizeof explanation };
    int peer = o->kind != PK_OP_SEND ? o->root : o->root == EACH_TO_ALL ? ops->self->rank : 1 - ops->self->rank;

    return pk_explain(ops->self->comm, o->kind, n, PK_F32, PK_MEM_DEVICE, is_in_place(ops, o), peer, &explanation);
}

void gpu_ops_prepare(struct gpu_ops *ops, int op, size_t n, int turn)
{
    const struct op *o = &table[op];
    const float *in;

    ops->shift = (size_t)(turn % PLACES) * APART;
    in = ops->in + ops->shift;
    gpu_fill(ops->out, 0x5a, 2 * n * sizeof(float));
    if (!is_in_place(ops, o) || o->kind == PK_OP_SCATTER)
        return;
    if (o->kind == PK_OP_BROADCAST)
        gpu_copy(ops->out, in, n * sizeof(float));
    else if (o->kind != PK_OP_ALLGATHERV)
        gpu_copy(ops->out + own_at(ops, o, n), in, n * sizeof(float));
    else if (part_of(o, ops->self->rank, 0, n) > 0)
        gpu_copy(ops->out + own_at(ops, o, n), in, part_of(o, ops->self->rank, 0, n) * sizeof(float));
}

static pk_result_t call_send(struct gpu_ops *ops, const struct op *o, size_t n)
{
    struct gpu_rank *self = ops->self;
    pk_result_t result = o->root < 0 ? pk_group_start() : PK_OK;

    if (result == PK_OK && (o->root < 0 || o->root == self->rank))
        result = pk_send(ops->in + ops->shift, n, PK_F32, 1 - self->rank, self->comm, self->in_stream);
    if (result == PK_OK && (o->root < 0 || o->root != self->rank))
        result = pk_recv(ops->out, n, PK_F32, 1 - self->rank, self->comm, self->in_stream);
    return result == PK_OK && o->root < 0 ? pk_group_end() : result;
}

/* As an alltoall is written with messages. */
static pk_result_t call_each_to_all(struct gpu_ops *ops, size_t n)
{
    struct gpu_rank *self = ops->self;
    pk_result_t result = pk_group_start();

    for (int r = 0; r < 2 && result == PK_OK; r++) {
        result = pk_send(ops->in + ops->shift + (size_t)r * n, n, PK_F32, r, self->comm, self->in_stream);
        if (result == PK_OK)
            result = pk_recv(ops->out + (size_t)r * n, n, PK_F32, r, self->comm, self->in_stream);
    }
    return result == PK_OK ? pk_group_end() : result;
}

static pk_result_t call_uneven(struct gpu_ops *ops, const struct op *o, size_t n)
{
    const struct gpu_rank *self = ops->self;
    const int me = self->rank;
    const size_t all[2] = { part_of(o, 0, 0, n), part_of(o, 1, 0, n) };
    const size_t sends[2] = { part_of(o, me, 0, n), part_of(o, me, 1, n) };
    const size_t receives[2] = { part_of(o, 0, me, n), part_of(o, 1, me, n) };
    const float *in = is_in_place(ops, o) ? ops->out + own_at(ops, o, n) : ops->in + ops->shift;

    if (o->kind == PK_OP_ALLGATHERV)
        return pk_allgatherv(in, all[me], ops->out, all, NULL, PK_F32, self->comm, self->in_stream);
    return pk_alltoallv(in, sends, NULL, ops->out, receives, NULL, PK_F32, self->comm, self->in_stream);
}

pk_result_t gpu_ops_call(struct gpu_ops *ops, int op, size_t n)
{
    const struct op *o = &table[op];
    const bool in_place = is_in_place(ops, o);
    const size_t own = (size_t)ops->self->rank * n;
    float *in = ops->in + ops->shift, *out = ops->out;
    pk_comm_t *comm = ops->self->comm;
    pk_stream_t stream = ops->self->in_stream;

    switch (o->kind) {
    case PK_OP_SEND:
        return o->root == EACH_TO_ALL ? call_each_to_all(ops, n) : call_send(ops, o, n);
    case PK_OP_ALLGATHER:
        return pk_allgather(in_place ? out + own : in, out, n, PK_F32, comm, stream);
    case PK_OP_ALLTOALL:
        return pk_alltoall(in, out, n, PK_F32, comm, stream);
    case PK_OP_BROADCAST:
        return pk_broadcast(in_place ? out : in, out, n, PK_F32, o->root, comm, stream);
    case PK_OP_GATHER:
        return pk_gather(in_place ? out + own : in, out, n, PK_F32, o->root, comm, stream);
    case PK_OP_SCATTER:
        return pk_scatter(in, in_place ? in + own : out, n, PK_F32, o->root, comm, stream);
    case PK_OP_REDUCE:
        return pk_reduce(in, out, n, PK_F32, PK_SUM, o->root, comm, stream);
    case PK_OP_ALLREDUCE:
        return pk_allreduce(in, out, n, PK_F32, PK_SUM, comm, stream);
    case PK_OP_REDUCE_SCATTER:
        return pk_reduce_scatter(in, out, n, PK_F32, PK_SUM, comm, stream);
    case PK_OP_BARRIER:
        return pk_barrier(comm, stream);
    default:
        return call_uneven(ops, o, n);
    }
}

/* ---- what is right ---- */

struct part {
    size_t at, n; /* of `out` */
    int from;     /* rank, or BOTH */
    size_t begin; /* of its data */
};

static int both_blocks(struct part *parts, size_t n, size_t begin)
{
    parts[0] = (struct part){ 0, n, 0, begin };
    parts[1] = (struct part){ n, n, 1, begin };
    return 2;
}

static int uneven_blocks(const struct op *o, int me, size_t n, struct part *parts)
{
    const int to = o->kind == PK_OP_ALLGATHERV ? 0 : me;
    size_t at = 0;

    for (int from = 0; from < 2; from++) {
        size_t length = part_of(o, from, to, n);

        parts[from] = (struct part){ at, length, from, to == 0 ? 0 : part_of(o, from, 0, n) };
        at += length;
    }
    return 2;
}

static int parts_of(const struct op *o, int me, size_t n, struct part *parts)
{
    const size_t own = (size_t)me * n;

    parts[0] = (struct part){ 0, n, o->root, 0 };
    switch (o->kind) {
    case PK_OP_SEND:
        parts[0].from = 1 - me;
        return o->root == EACH_TO_ALL ? both_blocks(parts, n, own) : me != o->root;
    case PK_OP_ALLGATHER:
        return both_blocks(parts, n, 0);
    case PK_OP_ALLTOALL:
        return both_blocks(parts, n, own);
    case PK_OP_GATHER:
        return me == o->root ? both_blocks(parts, n, 0) : 0;
    case PK_OP_BROADCAST:
        return 1;
    case PK_OP_SCATTER:
        parts[0].begin = own;
        return !(me == o->root && o->in_place);
    case PK_OP_REDUCE:
    case PK_OP_ALLREDUCE:
    case PK_OP_REDUCE_SCATTER:
        parts[0].from = BOTH;
        parts[0].begin = o->kind == PK_OP_REDUCE_SCATTER ? own : 0;
        return o->kind != PK_OP_REDUCE || me == o->root;
    case PK_OP_BARRIER:
        return 0;
    default:
        return uneven_blocks(o, me, n, parts);
    }
}

static bool part_is_right(const struct gpu_ops *ops, const struct part *part)
{
    const float *one = ops->given[part->from == BOTH ? 0 : part->from] + ops->shift + part->begin;
    const float *other = ops->given[1] + ops->shift + part->begin;
    bool right = true;

    if (part->n == 0)
        return true;
    gpu_copy(ops->host, ops->out + part->at, part->n * sizeof(float));
    if (part->from != BOTH)
        return memcmp(ops->host, one, part->n * sizeof(float)) == 0;
    for (size_t i = 0; i < part->n; i++)
        right &= ops->host[i] == one[i] + other[i];
    return right;
}

bool gpu_ops_right(const struct gpu_ops *ops, int op, size_t n)
{
    struct part parts[2];
    int count = parts_of(&table[op], ops->self->rank, n, parts);
    bool right = true;

    for (int i = 0; i < count; i++)
        right &= part_is_right(ops, &parts[i]);
    return right;
}

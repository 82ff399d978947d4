/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives: checked and described. What each is, is in the table of shapes; here are the arguments. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "util/dtype.h"
#include "util/noinline.h"

struct args {
    const void *sendbuf;
    void *recvbuf;
    size_t count; /* of the buffer that is one block */
    pk_dtype_t dtype;
    pk_op_t op;
    int root;
    const size_t *sendcounts, *sendoffsets, *recvcounts, *recvoffsets; /* v-forms */
};

struct call {
    pk_comm_t *comm;
    const struct pki_shape *shape;
    const struct args *args;
    struct pki_where where;
    struct pki_request request;
    uint64_t timeout_ms; /* PK_WITHIN's */
    bool has_in, has_out;
    size_t *memory; /* counts and offsets of v-forms */
};

/* ---- v-forms: where the blocks of a buffer lie ---- */

/* Checked copies of counts and offsets (NULL: one block behind the other). *end: where the last one ends. */
static pk_result_t take_blocks(const struct call *c, const size_t *counts, const size_t *offsets, const char *name, size_t *to,
                               size_t *end)
{
    size_t size = (size_t)c->comm->size, packed = 0, last = 0;

    if (counts == NULL)
        return pki_fail(PK_ERR_ARG, &c->where, "%scounts is null", name);
    memcpy(to, counts, size * sizeof *to);
    for (size_t i = 0; i < size; i++) {
        size_t first = offsets != NULL ? offsets[i] : packed;

        if (pki_check_count(to[i], 1, c->args->dtype, &c->where) != PK_OK ||
            pki_check_count(first, 1, c->args->dtype, &c->where) != PK_OK ||
            pki_check_count(first + to[i], 1, c->args->dtype, &c->where) != PK_OK)
            return PK_ERR_ARG;
        to[size + i] = first;
        packed = first + to[i];
        if (to[i] > 0 && packed > last)
            last = packed;
    }
    *end = last;
    return PK_OK;
}

/* What a rank sends to itself is as long as what it receives from itself. */
static pk_result_t check_own_block(const struct call *c)
{
    const struct pki_layout *l = &c->request.layout;
    int rank = c->comm->rank;
    size_t sent = l->in_counts != NULL ? l->in_counts[rank] : l->in_total;
    size_t received = l->out_counts != NULL ? l->out_counts[rank] : l->out_total;

    if (c->has_in && c->has_out && sent != received)
        return pki_fail(PK_ERR_ARG, &c->where, "this rank sends %zu elements to itself and receives %zu", sent, received);
    return PK_OK;
}

static pk_result_t lay_out_blocks(struct call *c)
{
    size_t size = (size_t)c->comm->size;
    const struct args *a = c->args;
    struct pki_request *r = &c->request;
    pk_result_t result = PK_OK;

    c->memory = calloc(4 * size, sizeof *c->memory);
    if (c->memory == NULL)
        return pki_fail(PK_ERR_MEMORY, &c->where, "no memory for the lengths of %zu blocks", size);
    if (c->shape->in_many && c->has_in) {
        result = take_blocks(c, a->sendcounts, a->sendoffsets, "send", c->memory, &r->in_count);
        r->layout.in_counts = c->memory;
        r->layout.in_offsets = c->memory + size;
    }
    if (result == PK_OK && c->shape->out_many && c->has_out) {
        result = take_blocks(c, a->recvcounts, a->recvoffsets, "recv", c->memory + 2 * size, &r->out_count);
        r->layout.out_counts = c->memory + 2 * size;
        r->layout.out_offsets = c->memory + 3 * size;
    }
    return result == PK_OK ? check_own_block(c) : result;
}

/* ---- buffers ---- */

static pk_result_t lay_out(struct call *c)
{
    size_t size = (size_t)c->comm->size, count = c->args->count;
    struct pki_request *r = &c->request;
    bool many = c->shape->in_many || c->shape->out_many;
    pk_result_t result = pki_check_count(count, many && !c->shape->counts ? size : 1, c->args->dtype, &c->where);

    if (result != PK_OK)
        return result;
    r->layout.in_total = !c->shape->in_many ? count : c->shape->counts ? 0 : count * size;
    r->layout.out_total = !c->shape->out_many ? count : c->shape->counts ? 0 : count * size;
    r->in_count = c->has_in ? r->layout.in_total : 0;
    r->out_count = c->has_out ? r->layout.out_total : 0;
    return c->shape->counts ? lay_out_blocks(c) : PK_OK;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

/* Where this rank's block begins in a buffer that has one for each rank. */
static uintptr_t own_block(const struct call *c, const void *buffer, size_t total, const size_t *offsets)
{
    size_t rank = (size_t)c->comm->rank;
    size_t first = offsets != NULL ? offsets[rank] : total / (size_t)c->comm->size * rank;

    return (uintptr_t)buffer + first * pki_dtype_bytes(c->args->dtype);
}

static bool is_in_place(const struct call *c)
{
    const struct pki_request *r = &c->request;

    if (!c->has_in || !c->has_out)
        return false;
    switch (c->shape->place) {
    case PKI_PLACE_IN_PART:
        return (uintptr_t)r->in == own_block(c, r->out, r->layout.out_total, r->layout.out_offsets);
    case PKI_PLACE_OUT_PART:
        return (uintptr_t)r->out == own_block(c, r->in, r->layout.in_total, r->layout.in_offsets);
    case PKI_PLACE_SAME:
        return r->in == r->out;
    }
    return false;
}

static pk_result_t check_buffers(const struct call *c)
{
    const struct pki_request *r = &c->request;
    pk_result_t result = PK_OK;

    if (c->has_in)
        result = pki_check_buffer(r->in, r->in_count, r->dtype, "sendbuf", &c->where);
    if (result == PK_OK && c->has_out)
        result = pki_check_buffer(r->out, r->out_count, r->dtype, "recvbuf", &c->where);
    return result;
}

/* In place as the operation says, or apart. */
static pk_result_t check_places(struct call *c)
{
    struct pki_request *r = &c->request;
    size_t width = pki_dtype_bytes(r->dtype);

    r->in_place = is_in_place(c);
    if (!r->in_place && overlap(r->in, r->in_count * width, r->out, r->out_count * width))
        return pki_fail(PK_ERR_ARG, &c->where, "sendbuf and recvbuf overlap other than in place");
    if (r->in_place && r->layout.in_counts != NULL && r->layout.out_counts != NULL &&
        memcmp(c->memory, c->memory + 2 * c->comm->size, 2 * (size_t)c->comm->size * sizeof *c->memory) != 0)
        return pki_fail(PK_ERR_ARG, &c->where, "in place, but counts or offsets of sendbuf and recvbuf differ");
    if (r->scaled) /* the operands are elsewhere */
        r->in_place = false;
    return PK_OK;
}

/* ---- the rest ---- */

/* A sum of elements that are multiplied first. From here on it is the request's. */
static pk_result_t take_made_op(struct call *c)
{
    const struct pki_made_op *op = pki_op_find(&c->comm->made_ops, c->args->op);

    if (op == NULL)
        return pki_fail(PK_ERR_ARG, &c->where, "op is %llu: neither a predefined one nor one of this communicator's (destroyed?)",
                        (unsigned long long)c->args->op);
    if (op->dtype != c->args->dtype)
        return pki_fail(PK_ERR_ARG, &c->where, "op %llu was made for %s, dtype is %s", (unsigned long long)op->handle,
                        pk_dtype_name(op->dtype), pk_dtype_name(c->args->dtype));
    c->request.op = PK_SUM;
    c->request.scaled = true;
    c->request.factor = op->factor;
    return PK_OK;
}

static pk_result_t describe(struct call *c, pk_stream_t stream)
{
    const struct args *a = c->args;
    pk_result_t result;

    if (c->shape->rooted && (a->root < 0 || a->root >= c->comm->size))
        return pki_fail(PK_ERR_ARG, &c->where, "root %d of %d ranks", a->root, c->comm->size);
    c->has_in = pki_shape_has_in(c->shape, c->comm->rank, a->root);
    c->has_out = pki_shape_has_out(c->shape, c->comm->rank, a->root);
    c->request = (struct pki_request){ .what = PKI_DO_COLL,
                                       .root = c->shape->rooted ? a->root : 0,
                                       .in = c->has_in ? a->sendbuf : NULL,
                                       .out = c->has_out ? a->recvbuf : NULL,
                                       .count = c->shape->counts ? 0 : a->count,
                                       .dtype = a->dtype,
                                       .op = a->op,
                                       .stream = stream,
                                       .timeout_ms = c->timeout_ms };
    result = a->op < PK_OP_COUNT ? PK_OK : take_made_op(c);
    if (result == PK_OK)
        result = lay_out(c);
    if (result == PK_OK)
        result = check_buffers(c);
    return result == PK_OK ? check_places(c) : result;
}

static pk_result_t choose(struct call *c, enum pki_coll coll)
{
    struct pki_choice choice = { 0 };
    enum pki_mem_kind kind;
    pk_result_t result = pki_engine_classify(c->comm->engine, &c->request, &kind);

    if (result == PK_OK)
        result = pki_comm_choose(c->comm, coll, c->request.count * pki_dtype_bytes(c->request.dtype), c->request.dtype,
                                 c->request.op, kind, &choice);
    c->request.algorithm = choice.algorithm;
    c->request.instead = choice.instead;
    return result;
}

/* ---- the same call again ---- */

/* Several, for roots that take turns. */
static struct pki_call_memo *memo_of(pk_comm_t *comm, int root)
{
    return &comm->memos[(unsigned)root % PKI_CALL_MEMOS];
}

/* Not where something depends on what memory the buffers are. */
static void remember(const struct call *c, enum pki_coll coll)
{
    const struct pki_request *r = &c->request;
    const struct pki_layout *l = &r->layout;
    size_t width = pki_dtype_bytes(r->dtype);
    enum pki_in_place place = c->shape->place;

    if (r->stream.kind != PK_STREAM_KIND_BLOCKING || r->timeout_ms != 0 || r->classified || r->scaled || c->memory != NULL)
        return;
    *memo_of(c->comm, c->args->root) = (struct pki_call_memo){
        .coll = coll,
        .root = c->args->root,
        .has_in = c->has_in,
        .has_out = c->has_out,
        .in_bytes = r->in_count * width,
        .out_bytes = r->out_count * width,
        .in_at = place == PKI_PLACE_OUT_PART ? own_block(c, NULL, l->in_total, NULL) : 0,
        .out_at = place == PKI_PLACE_IN_PART ? own_block(c, NULL, l->out_total, NULL) : 0,
        .request = *r,
    };
}

static bool place_again(struct pki_call_memo *m, const void *sendbuf, void *recvbuf)
{
    struct pki_request *r = &m->request;

    r->in = m->has_in ? sendbuf : NULL;
    r->out = m->has_out ? recvbuf : NULL;
    r->in_place = m->has_in && m->has_out && (uintptr_t)sendbuf + m->in_at == (uintptr_t)recvbuf + m->out_at;
    return (m->in_bytes == 0 || r->in != NULL) && (m->out_bytes == 0 || r->out != NULL) &&
           (r->in_place || !overlap(r->in, m->in_bytes, r->out, m->out_bytes));
}

/* Everything but the buffers was looked at the last time. False: it was not so, or something is the matter with them. */
static bool run_again(enum pki_coll coll, const struct args *a, pk_comm_t *comm, pk_stream_t stream, pk_result_t *result)
{
    struct pki_call_memo *m;

    if (comm == NULL || !pki_check_ready(comm) || stream.kind != PK_STREAM_KIND_BLOCKING || pki_in_group())
        return false;
    m = memo_of(comm, a->root);
    if (m->request.algorithm == NULL || m->coll != coll || m->request.count != a->count || m->request.dtype != a->dtype ||
        m->request.op != a->op || m->root != a->root || !place_again(m, a->sendbuf, a->recvbuf))
        return false;
    *result = pki_engine_run(comm->engine, &m->request);
    return true;
}

/* ---- all of them ---- */

static pk_result_t prepare(struct call *c, enum pki_coll coll, pk_stream_t stream)
{
    pk_result_t result = pki_check_common(c->comm, c->args->dtype, stream, &c->where);

    if (result == PK_OK)
        result = pki_check_full(c->comm, &c->where);
    if (result == PK_OK)
        result = describe(c, stream);
    if (result == PK_OK)
        result = choose(c, coll);
    if (result == PK_OK)
        remember(c, coll);
    return result;
}

static PKI_NOINLINE pk_result_t run_new(enum pki_coll coll, const struct args *args, pk_comm_t *comm, pk_stream_t stream)
{
    const struct pki_shape *shape = pki_coll_shape(coll);
    struct call c = { .comm = comm, .shape = shape, .args = args, .where = PKI_CALL(shape->name) };
    const int cancel = pki_cancel_hold();
    pk_result_t result;

    c.timeout_ms = pki_take_timeout(&stream);
    result = prepare(&c, coll, stream);

    result = result == PK_OK ? pki_submit(comm, &c.request) : pki_submit_refused(result);
    if (c.memory != NULL)
        free(c.memory); /* what runs on has its own copy */
    return pki_leave(cancel, result);
}

static pk_result_t run(enum pki_coll coll, const struct args *args, pk_comm_t *comm, pk_stream_t stream)
{
    pk_result_t result;

    return run_again(coll, args, comm, stream, &result) ? result : run_new(coll, args, comm, stream);
}

pk_result_t pk_barrier(pk_comm_t *comm, pk_stream_t stream)
{
    return run(PKI_COLL_BARRIER, &(struct args){ .dtype = PK_UINT8 }, comm, stream);
}

pk_result_t pk_broadcast(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, int root, pk_comm_t *comm,
                         pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf, .recvbuf = recvbuf, .count = count, .dtype = dtype, .root = root };

    return run(PKI_COLL_BROADCAST, &a, comm, stream);
}

pk_result_t pk_reduce(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_op_t op, int root, pk_comm_t *comm,
                      pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf, .recvbuf = recvbuf, .count = count, .dtype = dtype, .op = op, .root = root };

    return run(PKI_COLL_REDUCE, &a, comm, stream);
}

pk_result_t pk_allreduce(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_op_t op, pk_comm_t *comm,
                         pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf, .recvbuf = recvbuf, .count = count, .dtype = dtype, .op = op };

    return run(PKI_COLL_ALLREDUCE, &a, comm, stream);
}

pk_result_t pk_reduce_scatter(const void *sendbuf, void *recvbuf, size_t recvcount, pk_dtype_t dtype, pk_op_t op, pk_comm_t *comm,
                              pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf, .recvbuf = recvbuf, .count = recvcount, .dtype = dtype, .op = op };

    return run(PKI_COLL_REDUCE_SCATTER, &a, comm, stream);
}

pk_result_t pk_allgather(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_comm_t *comm, pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf, .recvbuf = recvbuf, .count = count, .dtype = dtype };

    return run(PKI_COLL_ALLGATHER, &a, comm, stream);
}

pk_result_t pk_alltoall(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_comm_t *comm, pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf, .recvbuf = recvbuf, .count = count, .dtype = dtype };

    return run(PKI_COLL_ALLTOALL, &a, comm, stream);
}

pk_result_t pk_gather(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, int root, pk_comm_t *comm,
                      pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf, .recvbuf = recvbuf, .count = count, .dtype = dtype, .root = root };

    return run(PKI_COLL_GATHER, &a, comm, stream);
}

pk_result_t pk_scatter(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, int root, pk_comm_t *comm,
                       pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf, .recvbuf = recvbuf, .count = count, .dtype = dtype, .root = root };

    return run(PKI_COLL_SCATTER, &a, comm, stream);
}

pk_result_t pk_allgatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                          const size_t *recvoffsets, pk_dtype_t dtype, pk_comm_t *comm, pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf,
                      .recvbuf = recvbuf,
                      .count = sendcount,
                      .dtype = dtype,
                      .recvcounts = recvcounts,
                      .recvoffsets = recvoffsets };

    return run(PKI_COLL_ALLGATHERV, &a, comm, stream);
}

pk_result_t pk_gatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts, const size_t *recvoffsets,
                       pk_dtype_t dtype, int root, pk_comm_t *comm, pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf,
                      .recvbuf = recvbuf,
                      .count = sendcount,
                      .dtype = dtype,
                      .root = root,
                      .recvcounts = recvcounts,
                      .recvoffsets = recvoffsets };

    return run(PKI_COLL_GATHERV, &a, comm, stream);
}

pk_result_t pk_scatterv(const void *sendbuf, const size_t *sendcounts, const size_t *sendoffsets, void *recvbuf, size_t recvcount,
                        pk_dtype_t dtype, int root, pk_comm_t *comm, pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf,
                      .recvbuf = recvbuf,
                      .count = recvcount,
                      .dtype = dtype,
                      .root = root,
                      .sendcounts = sendcounts,
                      .sendoffsets = sendoffsets };

    return run(PKI_COLL_SCATTERV, &a, comm, stream);
}

pk_result_t pk_alltoallv(const void *sendbuf, const size_t *sendcounts, const size_t *sendoffsets, void *recvbuf,
                         const size_t *recvcounts, const size_t *recvoffsets, pk_dtype_t dtype, pk_comm_t *comm,
                         pk_stream_t stream)
{
    struct args a = { .sendbuf = sendbuf,
                      .recvbuf = recvbuf,
                      .dtype = dtype,
                      .sendcounts = sendcounts,
                      .sendoffsets = sendoffsets,
                      .recvcounts = recvcounts,
                      .recvoffsets = recvoffsets };

    return run(PKI_COLL_ALLTOALLV, &a, comm, stream);
}

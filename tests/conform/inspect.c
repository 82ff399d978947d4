/* SPDX-License-Identifier: Apache-2.0 */
/* Does the library do what it says that it does? */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pk_stats_t stats_of(struct rank *r)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    expect(r, pk_comm_stats(r->comm, &stats), PK_OK, "pk_comm_stats");
    return stats;
}

static void paths(struct rank *r)
{
    for (int peer = 0; peer < r->size; peer++) {
        pk_path_t path = { .struct_size = sizeof path };

        expect(r, pk_comm_path(r->comm, peer, PK_MEM_HOST, PK_MEM_HOST, &path), PK_OK, "pk_comm_path");
        if (path.transport[0] == '\0' || path.reason[0] == '\0' || strcmp(path.transport, "none") == 0)
            fail(r, "the path to rank %d is '%s', because '%s'", peer, path.transport, path.reason);
        if ((strcmp(path.transport, "self") == 0) != (peer == r->rank))
            fail(r, "the path from %d to %d is '%s'", r->rank, peer, path.transport);
    }
}

/* In-place pointers, from a buffer that is long enough for all. */
static void place(struct rank *r, struct coll_args *a, char *one, char *other, bool in_place)
{
    size_t own = (size_t)r->rank * a->count * sizeof(float);
    bool both = coll_has_in(a->facts, r->rank, a->root) && coll_has_out(a->facts, r->rank, a->root);

    a->in = one;
    a->out = in_place && both ? one : other;
    if (in_place && both && a->facts->out_many && !a->facts->in_many)
        a->in = one + own;
    if (in_place && both && a->facts->in_many && !a->facts->out_many)
        a->out = one + own;
}

/* The steps that were announced are the steps that are counted. */
static void steps_of(struct rank *r, const struct coll_args *a, int in_place)
{
    pk_explanation_t said = { .struct_size = sizeof said };
    pk_stats_t before, after;

    expect(r, pk_explain(r->comm, a->facts->op, a->count, a->dtype, PK_MEM_HOST, in_place, a->root, &said), PK_OK, "pk_explain");
    before = stats_of(r);
    expect(r, coll_call(a), PK_OK, a->facts->name);
    after = stats_of(r);
    if (after.steps - before.steps != said.steps)
        fail(r, "%s of %zu, root %d%s: %llu steps announced, %llu counted", a->facts->name, a->count, a->root,
             in_place ? ", in place" : "", (unsigned long long)said.steps, (unsigned long long)(after.steps - before.steps));
    if (after.operations - before.operations != 1)
        fail(r, "one operation counted as %llu", (unsigned long long)(after.operations - before.operations));
    if (said.sms != 0 || said.algorithm[0] == '\0' || said.reason[0] == '\0')
        fail(r, "pk_explain on the host: '%s', %d SMs, '%s'", said.algorithm, said.sms, said.reason);
}

static void steps(struct rank *r)
{
    static const size_t counts[] = { 0, 1, 1000, 16384, 300000 };
    size_t lengths[256], most = counts[4] * sizeof(float) * (size_t)r->size;
    char *one = calloc(1, most), *other = calloc(1, most);

    if (one == NULL || other == NULL)
        abort();
    for (int k = 0; r->ok && k < COLLS * 5 * 2; k++) {
        const struct coll_facts *f = &coll_facts[k / 10];
        struct coll_args a = { .facts = f,
                               .count = counts[k / 2 % 5],
                               .dtype = PK_F32,
                               .comm = r->comm,
                               .stream = PK_BLOCKING,
                               .in_counts = lengths,
                               .out_counts = lengths };

        for (int i = 0; i < r->size; i++)
            lengths[i] = a.count;
        a.root = f->rooted ? (k / 2) % r->size : 0;
        place(r, &a, one, other, k % 2);
        steps_of(r, &a, k % 2);
    }
    free(one);
    free(other);
}

static void bytes(struct rank *r)
{
    enum { COUNT = 5000 };
    static _Thread_local float source[COUNT], result[COUNT];
    pk_stats_t before = stats_of(r);
    pk_stats_t after;

    expect(r, pk_group_start(), PK_OK, "pk_group_start");
    expect(r, pk_send(source, COUNT, PK_F32, (r->rank + 1) % r->size, r->comm, PK_BLOCKING), PK_OK, "pk_send");
    expect(r, pk_recv(result, COUNT, PK_F32, (r->rank + r->size - 1) % r->size, r->comm, PK_BLOCKING), PK_OK, "pk_recv");
    expect(r, pk_group_end(), PK_OK, "pk_group_end");
    after = stats_of(r);
    if (after.bytes_sent - before.bytes_sent != sizeof source || after.bytes_received - before.bytes_received != sizeof result)
        fail(r, "%zu bytes each way counted as %llu sent, %llu received", sizeof source,
             (unsigned long long)(after.bytes_sent - before.bytes_sent),
             (unsigned long long)(after.bytes_received - before.bytes_received));
}

static void explanations(struct rank *r)
{
    pk_explanation_t said = { .struct_size = sizeof said };
    int peer = (r->rank + 1) % r->size;

    expect(r, pk_explain(r->comm, PK_OP_SEND, 100, PK_F32, PK_MEM_HOST, 0, peer, &said), PK_OK, "pk_explain(send)");
    if (said.transports[0] == '\0')
        fail(r, "pk_explain(send) names no transport");
    expect(r, pk_explain(r->comm, PK_OP_SEND, 100, PK_F32, PK_MEM_HOST, 0, r->size, &said), PK_ERR_ARG,
           "pk_explain(peer = size)");
    expect(r, pk_explain(r->comm, (pk_op_kind_t)15, 100, PK_F32, PK_MEM_HOST, 0, peer, &said), PK_ERR_ARG, "pk_explain(op 15)");
    expect(r, pk_explain(r->comm, PK_OP_BROADCAST, 100, PK_F64, PK_MEM_HOST, 0, r->size, &said), PK_ERR_ARG,
           "pk_explain(root = size)");
}

/* A receive that nobody has sent to yet is told of, with its peer. */
static void pending(struct rank *r)
{
    int previous = (r->rank + r->size - 1) % r->size, next = (r->rank + 1) % r->size;
    float sent = (float)r->rank, got = -1;
    char text[4096], wanted[64];
    size_t needed = 0;

    if (r->size == 1) /* it cannot send to itself meanwhile, but in a group */
        return;
    expect(r, pk_recv(&got, 1, PK_F32, previous, r->comm, r->streams[END_HOST]), PK_OK, "pk_recv");
    expect(r, pk_pending_dump(r->comm, text, sizeof text, &needed), PK_OK, "pk_pending_dump");
    snprintf(wanted, sizeof wanted, "receive from rank %d, 4 bytes", previous);
    if (strstr(text, wanted) == NULL || needed != strlen(text) + 1)
        fail(r, "pk_pending_dump says nothing of it: %.200s", text);
    expect(r, pk_barrier(r->comm, PK_BLOCKING), PK_OK, "pk_barrier");
    expect(r, pk_send(&sent, 1, PK_F32, next, r->comm, PK_BLOCKING), PK_OK, "pk_send");
    expect(r, pk_stream_synchronize(r->streams[END_HOST]), PK_OK, "pk_stream_synchronize");
    if (got != (float)previous)
        fail(r, "%g came from rank %d", (double)got, previous);
}

void run_inspection(struct rank *rank)
{
    static const struct special cases[] = {
        { "inspect: paths", paths },
        { "inspect: steps announced and counted", steps },
        { "inspect: bytes counted", bytes },
        { "inspect: explanations", explanations },
        { "inspect: what is pending", pending },
    };

    run_special(rank, cases, sizeof cases / sizeof cases[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives called wrongly: by one rank, which is told, or by ranks that disagree, which are told about each other. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 64
#define LONG_MS 12000

/* ---- arguments ---- */

struct good {
    float *in, *out;
    size_t counts[RANKS_MAX];
    struct coll_args args;
};

static void good_open(struct good *g, struct rank *r, const struct coll_facts *f)
{
    size_t floats = (size_t)COUNT * (size_t)r->size;

    g->in = calloc(2 * floats, sizeof *g->in);
    if (g->in == NULL)
        abort();
    g->out = g->in + floats;
    for (int i = 0; i < r->size; i++)
        g->counts[i] = COUNT;
    g->args = (struct coll_args){ .facts = f,
                                  .in = g->in,
                                  .out = g->out,
                                  .count = COUNT,
                                  .dtype = PK_F32,
                                  .comm = r->comm,
                                  .stream = PK_BLOCKING,
                                  .in_counts = g->counts,
                                  .out_counts = g->counts };
}

static void refused(struct rank *r, const struct coll_args *args, const char *what)
{
    char text[80];

    snprintf(text, sizeof text, "pk_%s(%s)", args->facts->name, what);
    expect(r, coll_call(args), PK_ERR_ARG, text);
}

static void wrong_for_all(struct rank *r, const struct good *g)
{
    const pk_stream_t strange = PK_STREAM_VALUE(77, 0), none = PK_STREAM_VALUE(PK_STREAM_KIND_HOST, 0);
    struct coll_args bad = g->args;

    bad.comm = NULL;
    refused(r, &bad, "comm NULL");
    bad = g->args;
    bad.stream = strange;
    refused(r, &bad, "stream of kind 77");
    bad.stream = none;
    refused(r, &bad, "host stream NULL");
}

static void wrong_numbers(struct rank *r, const struct good *g)
{
    static const pk_dtype_t types[] = { (pk_dtype_t)PK_DTYPE_COUNT, (pk_dtype_t)-1, (pk_dtype_t)0x7fffffff };
    static const size_t counts[] = { SIZE_MAX, SIZE_MAX / 4, (size_t)PTRDIFF_MAX / 4 + 1 };
    const struct coll_facts *f = g->args.facts;

    for (int i = 0; i < 3; i++) {
        struct coll_args bad = g->args;

        bad.dtype = types[i];
        refused(r, &bad, "no such type");
        bad = g->args;
        bad.count = counts[i];
        if (f->op != PK_OP_ALLTOALLV)
            refused(r, &bad, "more than memory can hold");
        bad = g->args;
        bad.root = i == 0 ? -1 : i == 1 ? r->size : 0x7fffffff;
        if (f->rooted)
            refused(r, &bad, "no such root");
        bad = g->args;
        bad.reduction = i == 0 ? PK_OP_COUNT : i == 1 ? UINT64_MAX : (pk_op_t)1 << 32;
        if (f->reduces)
            refused(r, &bad, "no such reduction");
    }
}

/* A reduction that was made and destroyed, for another communicator or for another type. */
static void wrong_made_reductions(struct rank *r, const struct good *g)
{
    const float scalar = 1;
    pk_comm_t *other = throwaway(r, LONG_MS);
    struct coll_args bad = g->args;
    pk_op_t foreign;

    if (other == NULL)
        return;
    expect(r, pk_op_create_premul(other, PK_F32, &scalar, 0, &foreign), PK_OK, "pk_op_create_premul");
    expect(r, pk_op_create_premul(r->comm, PK_F32, &scalar, 0, &bad.reduction), PK_OK, "pk_op_create_premul");
    bad.dtype = PK_INT32;
    refused(r, &bad, "a reduction of another type");
    expect(r, pk_op_destroy(r->comm, bad.reduction), PK_OK, "pk_op_destroy");
    bad.dtype = PK_F32;
    refused(r, &bad, "a reduction that was destroyed");
    bad.reduction = foreign;
    refused(r, &bad, "another communicator's reduction");
    expect(r, pk_op_destroy(r->comm, foreign), PK_ERR_ARG, "destroying another communicator's reduction");
    expect(r, pk_op_destroy(other, PK_AVG), PK_ERR_ARG, "destroying a predefined reduction");
    expect(r, pk_comm_destroy(other), PK_OK, "pk_comm_destroy");
}

static void wrong_buffers(struct rank *r, const struct good *g)
{
    const struct coll_facts *f = g->args.facts;
    bool in = coll_has_in(f, r->rank, 0), out = coll_has_out(f, r->rank, 0);
    struct coll_args bad = g->args;

    bad.in = NULL;
    if (in)
        refused(r, &bad, "sendbuf NULL");
    bad = g->args;
    bad.out = NULL;
    if (out)
        refused(r, &bad, "recvbuf NULL");
    bad = g->args;
    bad.out = g->in + 1; /* nobody's place */
    if (in && out)
        refused(r, &bad, "overlapping");
}

static void wrong_blocks(struct rank *r, const struct good *g)
{
    const struct coll_facts *f = g->args.facts;
    size_t huge[RANKS_MAX], wrong[RANKS_MAX];
    struct coll_args bad = g->args;

    memcpy(wrong, g->counts, sizeof wrong);
    memcpy(huge, g->counts, sizeof huge);
    wrong[r->rank]++; /* this rank would send itself something else than it receives */
    huge[r->size - 1] = SIZE_MAX - 1;
    for (int i = 0; i < 4; i++) {
        const size_t *counts = i == 0 ? NULL : i == 1 ? wrong : i == 2 ? huge : g->counts;

        bad = g->args;
        if (f->in_many) {
            bad.in_counts = counts;
            bad.in_offsets = i == 3 ? huge : NULL;
        } else {
            bad.out_counts = counts;
            bad.out_offsets = i == 3 ? huge : NULL;
        }
        if (f->in_many ? coll_has_in(f, r->rank, 0) : coll_has_out(f, r->rank, 0))
            refused(r, &bad, "blocks");
    }
}

static void wrong_arguments(struct rank *r)
{
    for (int i = 0; i < COLLS && r->ok; i++) {
        struct good g;

        good_open(&g, r, &coll_facts[i]);
        wrong_for_all(r, &g);
        if (!coll_facts[i].no_data) {
            wrong_numbers(r, &g);
            wrong_buffers(r, &g);
        }
        if (coll_facts[i].reduces)
            wrong_made_reductions(r, &g);
        if (coll_facts[i].v)
            wrong_blocks(r, &g);
        expect(r, coll_call(&g.args), PK_OK, coll_facts[i].name); /* none of them has left a trace */
        free(g.in);
    }
}

/* ---- ranks that disagree ---- */

struct disagreement {
    const char *what;
    void (*change)(struct coll_args *args, const struct rank *r); /* on rank 0 */
    const char *words[2];                                         /* that a text about it has to have; NULL: any */
    bool (*applies)(const struct coll_facts *f);
};

static void other_type(struct coll_args *a, const struct rank *r)
{
    (void)r;
    a->dtype = PK_INT32;
}

static void other_reduction(struct coll_args *a, const struct rank *r)
{
    (void)r;
    a->reduction = PK_MAX;
}

/* The scalars may differ, but not what is done with them. */
static void made_reduction(struct coll_args *a, const struct rank *r)
{
    const float scalar = 1;

    (void)r;
    if (pk_op_create_premul(a->comm, PK_F32, &scalar, 0, &a->reduction) != PK_OK)
        abort();
}

static void other_root(struct coll_args *a, const struct rank *r)
{
    (void)r;
    a->root = 1;
}

static void other_count(struct coll_args *a, const struct rank *r)
{
    (void)r;
    a->count--;
}

static void other_operation(struct coll_args *a, const struct rank *r)
{
    (void)r;
    a->facts = a->facts->op == PK_OP_ALLTOALL ? &coll_facts[0] : &coll_facts[5];
}

/* Rank 0 sends one element less to rank 1 than that one receives. */
static void other_block(struct coll_args *a, const struct rank *r)
{
    static size_t counts[RANKS_MAX];

    for (int i = 0; i < r->size; i++)
        counts[i] = COUNT - (i == 1);
    a->in_counts = counts;
}

static bool has_data(const struct coll_facts *f)
{
    return !f->no_data;
}

static bool reduces(const struct coll_facts *f)
{
    return f->reduces;
}

static bool is_rooted(const struct coll_facts *f)
{
    return f->rooted;
}

static bool has_count(const struct coll_facts *f)
{
    return !f->no_data && !f->v;
}

static bool any(const struct coll_facts *f)
{
    (void)f;
    return true;
}

static bool is_alltoallv(const struct coll_facts *f)
{
    return f->op == PK_OP_ALLTOALLV;
}

static const struct disagreement disagreements[] = {
    { "type", other_type, { "f32", "int32" }, has_data },
    { "reduction", other_reduction, { "sum", "max" }, reduces },
    { "made reduction", made_reduction, { "reduction sum", "premul sum" }, reduces },
    { "root", other_root, { "root 0", "root 1" }, is_rooted },
    { "count", other_count, { "count", "rank" }, has_count },
    { "operation", other_operation, { NULL, "alltoall" }, any },
    { "block", other_block, { "252", "256" }, is_alltoallv },
};

static pk_error_info_t last_error(void)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    return info;
}

/* Some rank is told what the disagreement is, and none is left waiting. */
static void judge(struct rank *r, const struct coll_facts *f, const struct disagreement *d, pk_result_t outcome)
{
    pk_error_info_t info = last_error();
    int mismatched = outcome == PK_ERR_MISMATCH, all[RANKS_MAX];

    for (int i = 0; mismatched && i < 2; i++)
        if (d->words[i] != NULL && strstr(info.text, d->words[i]) == NULL)
            fail(r, "%s, other %s: '%.300s' does not say '%s'", f->name, d->what, info.text, d->words[i]);
    if (outcome == PK_ERR_TIMEOUT)
        fail(r, "%s, other %s: a timeout: '%.300s'", f->name, d->what, info.text);
    share(r, &mismatched, all, sizeof mismatched);
    for (int i = 1; i < r->size; i++)
        all[0] += all[i];
    if (all[0] == 0)
        fail(r, "%s, other %s: nobody returned PK_ERR_MISMATCH, this rank %d", f->name, d->what, (int)outcome);
}

static void disagree(struct rank *r, const struct coll_facts *f, const struct disagreement *d)
{
    pk_comm_t *comm = throwaway(r, LONG_MS);
    struct good g;
    pk_result_t outcome = PK_OK;

    if (comm == NULL)
        return;
    good_open(&g, r, f);
    g.args.comm = comm;
    if (r->rank == 0)
        d->change(&g.args, r);
    outcome = coll_call(&g.args);
    /* Who only sends, and little, may have ended before its peer saw it: then the next operation tells. */
    for (int i = 0; i < 3 && outcome == PK_OK; i++)
        outcome = pk_barrier(comm, PK_BLOCKING);
    judge(r, f, d, outcome);
    pk_comm_destroy(comm);
    free(g.in);
}

static void ranks_disagree(struct rank *r)
{
    for (int i = 0; i < COLLS; i++)
        for (size_t d = 0; d < sizeof disagreements / sizeof disagreements[0]; d++)
            if (r->size > 1 && disagreements[d].applies(&coll_facts[i]))
                disagree(r, &coll_facts[i], &disagreements[d]);
}

void run_collective_errors(struct rank *rank)
{
    static const struct special cases[] = {
        { "errors: arguments of collectives", wrong_arguments },
        { "errors: ranks that disagree", ranks_disagree },
    };

    run_special(rank, cases, sizeof cases / sizeof cases[0]);
}

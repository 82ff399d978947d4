/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long sums: of the common types, in place and not, with lengths that are no whole number of pieces or of vectors, parts of which
 * one is a piece shorter than the other, and addresses that are no whole number of vectors. Each is called twice: other ranks'
 * buffers may be mapped by the second call only. Once more by three multiprocessors.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"
#include "tuning/tuning.h"

enum operation { ALLREDUCE, REDUCE, REDUCE_SCATTER, OPERATIONS };

static const char *const names[] = { "allreduce", "reduce", "reduce_scatter" };
static const pk_dtype_t types[] = { PK_F32, PK_F16, PK_BF16 };

#define GUARD_BYTES 512
#define GUARD 0xa5

#define LONGEST ((size_t)34 << 20) /* each of two ranks sums up more than 8 MiB, half of it too */

struct bed {
    struct gpu_rank self;
    size_t max;            /* bytes of a buffer without its guard */
    char *in, *out, *host; /* of the GPU, and as long */
    unsigned done, wrong;
};

struct one {
    enum operation operation;
    pk_dtype_t type;
    pk_op_t op;
    bool in_place;
    size_t count, offset; /* elements: of all that a rank has, and in front of it */
};

/* Whole numbers below 32: sums of eight, and halves of sums of two, are exact in every type. */
static float given(size_t i, int rank)
{
    return (float)((i * 7 + i / 1021 + (size_t)rank * 13) % 32);
}

/* Of a number that is 0 or from 0.5 on, and that f16 has. */
static uint16_t half_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return value == 0 ? 0 : (uint16_t)((bits >> 13) - ((127 - 15) << 10));
}

static void put(char *to, size_t i, pk_dtype_t type, float value)
{
    uint32_t bits;
    uint16_t half;

    memcpy(&bits, &value, sizeof bits);
    half = type == PK_F16 ? half_of(value) : (uint16_t)(bits >> 16);
    if (type == PK_F32)
        memcpy(to + 4 * i, &bits, sizeof bits);
    else
        memcpy(to + 2 * i, &half, sizeof half);
}

static float sum(const struct bed *bed, const struct one *o, size_t i)
{
    float all = 0;

    for (int r = 0; r < bed->self.size; r++)
        all += given(i, r);
    return o->op == PK_AVG ? all / (float)bed->self.size : all;
}

static pk_result_t call(struct bed *bed, const struct one *o, size_t size, int root)
{
    const struct gpu_rank *self = &bed->self;
    const char *in = bed->in + o->offset * size;
    size_t block = o->count / (size_t)self->size;
    char *out = o->in_place ? bed->in + o->offset * size : bed->out + o->offset * size;

    if (o->operation == ALLREDUCE)
        return pk_allreduce(in, out, o->count, o->type, o->op, self->comm, self->in_stream);
    if (o->operation == REDUCE)
        return pk_reduce(in, self->rank == root ? out : NULL, o->count, o->type, o->op, root, self->comm, self->in_stream);
    if (o->in_place)
        out += block * (size_t)self->rank * size;
    return pk_reduce_scatter(in, out, block, o->type, o->op, self->comm, self->in_stream);
}

/* What this rank must have where its result is. */
static void check(struct bed *bed, const struct one *o, size_t size, int root)
{
    const struct gpu_rank *self = &bed->self;
    size_t block = o->count / (size_t)self->size, first = o->operation == REDUCE_SCATTER ? block * (size_t)self->rank : 0;
    size_t count = o->operation == REDUCE_SCATTER ? block : o->operation == REDUCE && self->rank != root ? 0 : o->count;
    size_t place = o->offset + (o->in_place ? first : 0), end = o->in_place ? o->offset + o->count : o->offset + count;
    char *base = o->in_place ? bed->in : bed->out, wanted[4];
    unsigned char guard[GUARD_BYTES];
    bool right = true;

    gpu_copy(bed->host, base + place * size, count * size);
    for (size_t i = 0; i < count && right; i++) {
        put(wanted, 0, o->type, sum(bed, o, first + i));
        right = memcmp(wanted, bed->host + i * size, size) == 0;
    }
    gpu_copy(guard, base + end * size, sizeof guard);
    for (size_t i = 0; i < sizeof guard && (count > 0 || o->in_place); i++)
        right = right && guard[i] == GUARD;
    bed->done++;
    if (right)
        return;
    bed->wrong++;
    report(false, "rank %d: %s of %zu %s%s%s, %zu in front: an element, or what lies behind, is wrong", self->rank,
           names[o->operation], o->count, pk_dtype_name(o->type), o->op == PK_AVG ? ", average" : "",
           o->in_place ? ", in place" : "", o->offset);
}

static void run(struct bed *bed, const struct one *o)
{
    size_t size = pk_dtype_size(o->type);

    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < o->count; i++)
            put(bed->host, i, o->type, given(i, bed->self.rank));
        gpu_copy(bed->in + o->offset * size, bed->host, o->count * size);
        gpu_fill(bed->in + (o->offset + o->count) * size, GUARD, GUARD_BYTES);
        gpu_fill(bed->out, GUARD, bed->max + GUARD_BYTES);
        must_be_ok(call(bed, o, size, turn), names[o->operation]);
        if (!stream_idle_within(bed->self.stream, 60000, NULL)) {
            gpu_show_pending(bed->self.comm);
            report(false, "rank %d: %s of %zu elements does not end", bed->self.rank, names[o->operation], o->count);
            exit(report_end());
        }
        must_be_ok(pk_comm_async_error(bed->self.comm), names[o->operation]);
        check(bed, o, size, turn);
    }
}

/* Whole vectors, elements more than that, a part of one piece less than the other's, and elements in front. */
static void all_lengths(struct bed *bed, struct one o)
{
    size_t bytes = pk_dtype_size(o.type), most = bed->max / bytes, size = (size_t)bed->self.size;
    size_t pieces = bed->max / 2 / PKI_BULK_PIECE / 2 * 2 * PKI_BULK_PIECE;
    const struct {
        size_t count, offset;
    } lengths[] = { { most / 2, 0 },   { most / 2 + 8 * 1237, 0 },
                    { most - 32, 16 }, { (pieces - 16) / bytes, 0 },
                    { most - 70, 0 },  { most / 2, 1 } };

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        o.count = lengths[i].count / size * size;
        o.offset = lengths[i].offset;
        run(bed, &o);
    }
}

static void all_sums(struct bed *bed, int operations, size_t ntypes)
{
    for (int op = 0; op < operations; op++) {
        for (size_t t = 0; t < ntypes; t++) {
            all_lengths(bed,
                        (struct one){ .operation = (enum operation)op, .type = types[t], .op = PK_SUM, .in_place = t % 2 == 1 });
            all_lengths(bed,
                        (struct one){ .operation = (enum operation)op, .type = types[t], .op = PK_AVG, .in_place = t % 2 == 0 });
        }
    }
}

static int rank_main(void)
{
    struct bed bed = { .max = LONGEST };
    bool all;
    pk_stats_t stats = { .struct_size = sizeof stats };

    gpu_rank_open(&bed.self, PK_SM_DEFAULT, 60000);
    all = !gpu_is_software() && strcmp(ranks_role(), "all") == 0;
    bed.in = gpu_alloc(bed.max + GUARD_BYTES);
    bed.out = gpu_alloc(bed.max + GUARD_BYTES);
    bed.host = malloc(bed.max + GUARD_BYTES);
    if (bed.host == NULL)
        exit(2);
    all_sums(&bed, all ? OPERATIONS : 1, all ? sizeof types / sizeof types[0] : 1);
    report(bed.wrong == 0, "rank %d: %u sums of up to %zu bytes, %u wrong", bed.self.rank, bed.done, bed.max, bed.wrong);
    must_be_ok(pk_comm_stats(bed.self.comm, &stats), "pk_comm_stats");
    report(stats.kernels_reaching > 0, "rank %d: %llu kernels had all buffers mapped", bed.self.rank,
           (unsigned long long)stats.kernels_reaching);
    gpu_rank_close(&bed.self);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "all", .size = 2, .timeout_ms = 100000 }, "long sums");
    setenv("PK_SM_POLICY", "3", 1);
    ranks_drive(&(struct ranks_turn){ .role = "few", .size = 2, .timeout_ms = 100000 }, "long sums by three multiprocessors");
    return report_end();
}

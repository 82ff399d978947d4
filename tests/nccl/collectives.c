/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation, with right values: two ranks in two processes, in two threads, and in one thread that drives both. */
#include <math.h>
#include <pthread.h>

#include "bed.h"

#define RANKS 2
#define COUNT ((size_t)501)
#define ROOM (RANKS * COUNT)

/* The ranks that a thread drives, of RANKS. */
struct driver {
    const char *how;
    int first, n;
    pkn_comm_t comm[RANKS];
    gpu_stream_t stream[RANKS];
    float *in[RANKS], *out[RANKS];
};

static float value(int rank, size_t i)
{
    return (float)(rank * 1000 + (int)(i % 97));
}

static void open_driver(struct driver *d, const pkn_id_t *id)
{
    float host[ROOM];

    MUST(ncclGroupStart());
    for (int r = d->first; r < d->first + d->n; r++) {
        gpu_use(r);
        d->stream[r] = gpu_stream_new();
        for (size_t i = 0; i < ROOM; i++)
            host[i] = value(r, i);
        d->in[r] = bed_upload(host, ROOM);
        d->out[r] = bed_upload(host, ROOM);
        MUST(ncclCommInitRank(&d->comm[r], RANKS, *id, r));
    }
    MUST(ncclGroupEnd());
}

/* ---- one operation on all driven ranks ---- */

struct operation {
    const char *name;
    pkn_result_t (*call)(struct driver *d, int rank, const float *in, float *out);
    /* Element i of what the rank has afterwards, when it was called out of place; *kept: it is what was there. */
    float (*expected)(int rank, size_t i, bool *kept);
    size_t length; /* of what it gives */
};

static void run(struct driver *d, const struct operation *o)
{
    float host[ROOM];

    for (int r = d->first; r < d->first + d->n; r++) {
        gpu_use(r);
        gpu_fill(d->out[r], 0, ROOM * sizeof(float));
    }
    MUST(ncclGroupStart());
    for (int r = d->first; r < d->first + d->n; r++)
        must_succeed(o->call(d, r, d->in[r], d->out[r]), o->name);
    MUST(ncclGroupEnd());
    for (int r = d->first; r < d->first + d->n; r++) {
        size_t wrong = 0;

        gpu_use(r);
        check(bed_idle(d->stream[r]), "%s: %s: rank %d has ended", d->how, o->name, r);
        bed_download(host, d->out[r], ROOM);
        for (size_t i = 0; i < ROOM; i++) {
            bool kept = i >= o->length;
            float expected = o->expected(r, i, &kept);

            wrong += host[i] != (kept ? 0 : expected);
        }
        check(wrong == 0, "%s: %s: rank %d: %zu elements are wrong", d->how, o->name, r, wrong);
    }
}

static pkn_result_t allreduce(struct driver *d, int r, const float *in, float *out)
{
    return ncclAllReduce(in, out, COUNT, PKN_FLOAT32, PKN_SUM, d->comm[r], d->stream[r]);
}

static float sum_at(int rank, size_t i, bool *kept)
{
    (void)rank;
    (void)kept;
    return value(0, i) + value(1, i);
}

static pkn_result_t reduce(struct driver *d, int r, const float *in, float *out)
{
    return ncclReduce(in, r == 1 ? out : NULL, COUNT, PKN_FLOAT32, PKN_SUM, 1, d->comm[r], d->stream[r]);
}

static float sum_at_1(int rank, size_t i, bool *kept)
{
    *kept = *kept || rank != 1;
    return sum_at(rank, i, kept);
}

static pkn_result_t reduce_scatter(struct driver *d, int r, const float *in, float *out)
{
    return ncclReduceScatter(in, out, COUNT, PKN_FLOAT32, PKN_SUM, d->comm[r], d->stream[r]);
}

static float part_of_sum(int rank, size_t i, bool *kept)
{
    return sum_at(rank, (size_t)rank * COUNT + i, kept);
}

static pkn_result_t broadcast(struct driver *d, int r, const float *in, float *out)
{
    return ncclBroadcast(r == 1 ? in : NULL, out, COUNT, PKN_FLOAT32, 1, d->comm[r], d->stream[r]);
}

static float of_rank_1(int rank, size_t i, bool *kept)
{
    (void)rank;
    (void)kept;
    return value(1, i);
}

static pkn_result_t bcast(struct driver *d, int r, const float *in, float *out)
{
    if (r == 1) /* in place: what is sent lies where it comes */
        gpu_copy(out, in, COUNT * sizeof *in);
    return ncclBcast(out, COUNT, PKN_FLOAT32, 1, d->comm[r], d->stream[r]);
}

static pkn_result_t allgather(struct driver *d, int r, const float *in, float *out)
{
    return ncclAllGather(in, out, COUNT, PKN_FLOAT32, d->comm[r], d->stream[r]);
}

static float of_each(int rank, size_t i, bool *kept)
{
    (void)rank;
    (void)kept;
    return value((int)(i / COUNT), i % COUNT);
}

static pkn_result_t alltoall(struct driver *d, int r, const float *in, float *out)
{
    return ncclAlltoAll(in, out, COUNT, PKN_FLOAT32, d->comm[r], d->stream[r]);
}

static float own_part_of_each(int rank, size_t i, bool *kept)
{
    (void)kept;
    return value((int)(i / COUNT), (size_t)rank * COUNT + i % COUNT);
}

static pkn_result_t gather(struct driver *d, int r, const float *in, float *out)
{
    return ncclGather(in, r == 1 ? out : NULL, COUNT, PKN_FLOAT32, 1, d->comm[r], d->stream[r]);
}

static float of_each_at_1(int rank, size_t i, bool *kept)
{
    *kept = *kept || rank != 1;
    return of_each(rank, i, kept);
}

static pkn_result_t scatter(struct driver *d, int r, const float *in, float *out)
{
    return ncclScatter(r == 0 ? in : NULL, out, COUNT, PKN_FLOAT32, 0, d->comm[r], d->stream[r]);
}

static float part_of_0(int rank, size_t i, bool *kept)
{
    (void)kept;
    return value(0, (size_t)rank * COUNT + i);
}

static pkn_result_t exchange(struct driver *d, int r, const float *in, float *out)
{
    MUST(ncclSend(in, COUNT, PKN_FLOAT32, !r, d->comm[r], d->stream[r]));
    MUST(ncclSend(in, 3, PKN_FLOAT32, r, d->comm[r], d->stream[r]));
    MUST(ncclRecv(out + COUNT, 3, PKN_FLOAT32, r, d->comm[r], d->stream[r]));
    return ncclRecv(out, COUNT, PKN_FLOAT32, !r, d->comm[r], d->stream[r]);
}

static float of_the_other(int rank, size_t i, bool *kept)
{
    (void)kept;
    return i < COUNT ? value(!rank, i) : value(rank, i - COUNT);
}

/* A collective of nothing is none: rank 0 alone calls it. */
static pkn_result_t nothing(struct driver *d, int r, const float *in, float *out)
{
    if (r == 0)
        MUST(ncclAllReduce(in, out, 0, PKN_FLOAT32, PKN_SUM, d->comm[r], d->stream[r]));
    return ncclAllReduce(in, out, COUNT, PKN_FLOAT32, PKN_SUM, d->comm[r], d->stream[r]);
}

static const struct operation operations[] = {
    { "ncclAllReduce", allreduce, sum_at, COUNT },
    { "ncclReduce", reduce, sum_at_1, COUNT },
    { "ncclReduceScatter", reduce_scatter, part_of_sum, COUNT },
    { "ncclBroadcast", broadcast, of_rank_1, COUNT },
    { "ncclBcast", bcast, of_rank_1, COUNT },
    { "ncclAllGather", allgather, of_each, ROOM },
    { "ncclAlltoAll", alltoall, own_part_of_each, ROOM },
    { "ncclGather", gather, of_each_at_1, ROOM },
    { "ncclScatter", scatter, part_of_0, COUNT },
    { "ncclSend and ncclRecv", exchange, of_the_other, COUNT + 3 },
    { "a collective of nothing", nothing, sum_at, COUNT },
};

/* ---- types and operators ---- */

enum { ONE, ONE_AND_HALF, TWO, THREE, NUMBERS };

static const struct type {
    pkn_dtype_t dtype;
    size_t bytes;
    uint64_t numbers[NUMBERS]; /* their bits; of integers one and a half is cut to one */
} types[] = {
    { PKN_INT8, 1, { 1, 1, 2, 3 } },
    { PKN_UINT8, 1, { 1, 1, 2, 3 } },
    { PKN_INT32, 4, { 1, 1, 2, 3 } },
    { PKN_UINT32, 4, { 1, 1, 2, 3 } },
    { PKN_INT64, 8, { 1, 1, 2, 3 } },
    { PKN_UINT64, 8, { 1, 1, 2, 3 } },
    { PKN_FLOAT16, 2, { 0x3c00, 0x3e00, 0x4000, 0x4200 } },
    { PKN_FLOAT32, 4, { 0x3f800000, 0x3fc00000, 0x40000000, 0x40400000 } },
    { PKN_FLOAT64, 8, { 0x3ff0000000000000, 0x3ff8000000000000, 0x4000000000000000, 0x4008000000000000 } },
    { PKN_BFLOAT16, 2, { 0x3f80, 0x3fc0, 0x4000, 0x4040 } },
    { PKN_FLOAT8E4M3, 1, { 0x38, 0x3c, 0x40, 0x44 } },
    { PKN_FLOAT8E5M2, 1, { 0x3c, 0x3e, 0x40, 0x42 } },
};

/* Of one and two on the two ranks. */
static const struct {
    pkn_op_t op;
    int result;
} reductions[] = { { PKN_SUM, THREE }, { PKN_PROD, TWO }, { PKN_MAX, TWO }, { PKN_MIN, ONE }, { PKN_AVG, ONE_AND_HALF } };

#define FEW 65

static void fill(unsigned char *host, const struct type *t, int first, int second)
{
    for (size_t i = 0; i < FEW; i++)
        memcpy(host + i * t->bytes, &t->numbers[i % 2 == 0 ? first : second], t->bytes);
}

static void reduce_type(struct driver *d, const struct type *t, size_t which)
{
    unsigned char host[FEW * 8], expected[FEW * 8];

    for (int r = d->first; r < d->first + d->n; r++) {
        gpu_use(r);
        fill(host, t, r == 0 ? ONE : TWO, r == 0 ? TWO : ONE);
        gpu_copy(d->out[r], host, FEW * t->bytes);
    }
    MUST(ncclGroupStart());
    for (int r = d->first; r < d->first + d->n; r++)
        MUST(ncclAllReduce(d->out[r], d->out[r], FEW, t->dtype, reductions[which].op, d->comm[r], d->stream[r]));
    MUST(ncclGroupEnd());
    fill(expected, t, reductions[which].result, reductions[which].result);
    for (int r = d->first; r < d->first + d->n; r++) {
        gpu_use(r);
        if (!bed_idle(d->stream[r]))
            check(false, "%s: type %d: not over", d->how, (int)t->dtype);
        gpu_copy(host, d->out[r], FEW * t->bytes);
        check(memcmp(host, expected, FEW * t->bytes) == 0, "%s: rank %d: type %d, operator %d", d->how, r, (int)t->dtype,
              (int)reductions[which].op);
    }
}

/* libpickle's minimum and maximum keep a NaN, NCCL's drop it (docs/nccl.md). */
static void nan_stays(struct driver *d, pkn_op_t op)
{
    for (int r = d->first; r < d->first + d->n; r++) {
        const float own[2] = { r == 0 ? NAN : 1, 2 };

        gpu_use(r);
        gpu_copy(d->out[r], own, sizeof own);
    }
    MUST(ncclGroupStart());
    for (int r = d->first; r < d->first + d->n; r++)
        MUST(ncclAllReduce(d->out[r], d->out[r], 2, PKN_FLOAT32, op, d->comm[r], d->stream[r]));
    MUST(ncclGroupEnd());
    for (int r = d->first; r < d->first + d->n; r++) {
        float got[2];

        gpu_use(r);
        check(bed_idle(d->stream[r]), "%s: rank %d: the extremum has ended", d->how, r);
        gpu_copy(got, d->out[r], sizeof got);
        check(isnan(got[0]) && got[1] == 2, "%s: rank %d: operator %d of a NaN", d->how, r, (int)op);
    }
}

static void drive(struct driver *d, const pkn_id_t *id)
{
    open_driver(d, id);
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
        run(d, &operations[i]);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (size_t which = 0; which < sizeof reductions / sizeof reductions[0]; which++)
            reduce_type(d, &types[t], which);
    nan_stays(d, PKN_MAX);
    nan_stays(d, PKN_MIN);
    for (int r = d->first; r < d->first + d->n; r++) {
        MUST(ncclCommFinalize(d->comm[r]));
        MUST(ncclCommDestroy(d->comm[r]));
    }
}

/* ---- who drives what ---- */

struct thread {
    struct driver driver;
    pkn_id_t id;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;

    drive(&t->driver, &t->id);
    return NULL;
}

static void in_threads(void)
{
    static struct thread threads[RANKS];
    pthread_t running[RANKS];
    pkn_id_t id;

    MUST(ncclGetUniqueId(&id));
    for (int r = 0; r < RANKS; r++) {
        threads[r] = (struct thread){ .driver = { .how = "threads", .first = r, .n = 1 }, .id = id };
        if (pthread_create(&running[r], NULL, thread_main, &threads[r]) != 0)
            exit(2);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(running[r], NULL);
}

static void in_one_thread(void)
{
    static struct driver driver = { .how = "one thread", .first = 0, .n = RANKS };
    pkn_id_t id;

    MUST(ncclGetUniqueId(&id));
    drive(&driver, &id);
}

static int rank_process(int rank)
{
    static struct driver driver = { .how = "processes", .n = 1 };
    struct bed_shared *shared = bed_shared();

    driver.first = rank;
    if (!bed_has_gpus(RANKS))
        return BED_SKIPPED;
    if (rank == 0) {
        MUST(ncclGetUniqueId(&shared->id));
        atomic_store(&shared->has_id, 1);
    }
    bed_await(&shared->has_id, 1);
    drive(&driver, &shared->id);
    return bed_end();
}

int main(void)
{
    pid_t pids[RANKS];
    int number, codes[RANKS];

    if (bed_role(&number) != NULL)
        return rank_process(number);
    if (!bed_has_gpus(RANKS))
        return BED_SKIPPED;
    for (int r = 0; r < RANKS; r++)
        pids[r] = bed_start("rank", r);
    for (int r = 0; r < RANKS; r++)
        codes[r] = bed_wait(pids[r]);
    for (int r = 0; r < RANKS; r++)
        check(codes[r] == 0, "the process of rank %d ended with %d", r, codes[r]);
    in_threads();
    in_one_thread();
    return bed_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a job whose allreduces an aggregator sums; the driver (drive.py) starts it PK_SIZE times. Every result is compared,
 * of floats to the bound that docs/switchml.md gives, and to the bit with that of the other ranks.
 *
 * SWITCHML_RANKS_THREADS says how many threads a rank has, where it is more than one.
 *
 * usage: switchml-ranks [all|short|few|endless|unfit|abort|survive|mismatch|empty|double [wait]]
 *   wait: rank 0 begins when it has read a byte
 */
#include <float.h>
#include <math.h>
#include <pickle/pickle.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pk_comm_t *comm;
static int rank, size;
static size_t threads = 1;
static unsigned wrong;

#define CHECK(what, ...) \
    do { \
        if (!(what) && wrong++ < 5) \
            fprintf(stderr, "rank %d: " __VA_ARGS__); \
    } while (0)

static uint32_t hash(uint32_t a, uint32_t b)
{
    uint32_t h = a * 2654435761u ^ (b + 0x9e3779b9u) * 2246822519u;

    h ^= h >> 15;
    h *= 2654435761u;
    return h ^ h >> 13;
}

/* Numbers of all lengths, alike within a packet as gradients are. */
static float number(int of, size_t i, int kind)
{
    float x = (float)(int32_t)hash((uint32_t)i, (uint32_t)of) / 2147483648.0f;

    if (kind == 0)
        return ldexpf(x, (int)(hash((uint32_t)(i / 300), 7) % 60) - 30);
    if (kind == 1 && i / 100 % 7 == 3) /* units that fit no packet, on one rank or on all */
        return i % 3 == 0 ? INFINITY : i % 3 == 1 && of == 0 ? NAN : x * (FLT_MAX / 64);
    if (kind == 2)
        return i % 500 < 250 ? 0.0f : x * FLT_MIN;
    return x;
}

/* The same bits everywhere: rank 0 has what the others compare with. */
static void check_alike(const void *data, size_t bytes)
{
    void *first = malloc(bytes + 1);

    memcpy(first, data, bytes);
    CHECK(pk_broadcast(first, first, bytes, PK_UINT8, 0, comm, PK_BLOCKING) == PK_OK, "broadcast\n", rank);
    CHECK(memcmp(first, data, bytes) == 0, "%zu bytes differ from rank 0's\n", rank, bytes);
    free(first);
}

/* What the sum and its bound are made of: numbers of all ranks, in the packet of element `i` or, of packets of 64 values, in some
 * beside it. */
struct expected {
    double sum, absolute, most;
};

/* Where the part of the thread that has element `i` begins and ends. The first threads have an element more than the others. */
static void part_of(size_t count, size_t i, size_t *begin, size_t *end)
{
    const size_t each = count / threads, rest = count % threads;

    *end = 0;
    for (size_t t = 0; t < threads && *end <= i; t++) {
        *begin = *end;
        *end += each + (t < rest);
    }
}

/* The largest number of all ranks among the elements from `first` to `end`. Those of one packet are asked for one after the other. */
static double largest(size_t first, size_t end, int kind)
{
    static size_t last_first, last_end;
    static int last_kind;
    static double most;

    if (first == last_first && end == last_end && kind == last_kind)
        return most;
    last_first = first;
    last_end = end;
    last_kind = kind;
    most = 0;
    for (int r = 0; r < size; r++)
        for (size_t k = first; k < end; k++) {
            double x = fabs((double)number(r, k, kind));

            most = isfinite(x) && x > most ? x : most;
        }
    return most;
}

static struct expected expect(size_t count, size_t i, int kind)
{
    const size_t unit = 256;
    struct expected e = { 0, 0, 0 };
    size_t first = 0, end;

    part_of(count, i, &first, &end);
    first += (i - first) / unit * unit;
    end = first + unit < end ? first + unit : end;
    for (int r = 0; r < size; r++) {
        e.sum += (double)number(r, i, kind);
        e.absolute += fabs((double)number(r, i, kind));
    }
    e.most = largest(first, end, kind);
    return e;
}

static void check_float(const float *out, size_t count, size_t i, int kind, const char *how)
{
    const struct expected e = expect(count, i, kind);
    const double bound =
        (double)(size * size) * 2 * e.most / 2147483648.0 + (double)size * FLT_EPSILON * e.absolute + FLT_MIN * size * size;
    bool right = fabs((double)out[i] - e.sum) <= bound;

    if (isnan(e.sum))
        right = isnan(out[i]);
    else if (isinf(e.sum))
        right = (double)out[i] == e.sum;
    CHECK(right, "%s, kind %d: float %zu of %zu is %g, not %g\n", rank, how, kind, i, count, (double)out[i], e.sum);
}

static void floats(size_t count, int kind, int in_place)
{
    float *in = calloc(count + 1, sizeof *in), *out = in_place ? in : malloc((count + 1) * sizeof *out);
    const char *how = in_place ? "in place" : "apart";

    for (size_t i = 0; i < count; i++)
        in[i] = number(rank, i, kind);
    CHECK(pk_allreduce(in, out, count, PK_F32, PK_SUM, comm, PK_BLOCKING) == PK_OK, "allreduce of %zu floats\n", rank, count);
    for (size_t i = 0; i < count && wrong == 0; i += count > 5000 ? 37 : 1)
        check_float(out, count, i, kind, how);
    if (kind != 1)
        check_alike(out, count * sizeof *out);
    free(in);
    if (!in_place)
        free(out);
}

static void integers(size_t count, int in_place)
{
    int32_t *in = calloc(count + 1, sizeof *in), *out = in_place ? in : malloc((count + 1) * sizeof *out);

    for (size_t i = 0; i < count; i++)
        in[i] = (int32_t)hash((uint32_t)i, (uint32_t)rank);
    CHECK(pk_allreduce(in, out, count, PK_INT32, PK_SUM, comm, PK_BLOCKING) == PK_OK, "allreduce of %zu integers\n", rank, count);
    for (size_t i = 0; i < count; i++) {
        uint32_t sum = 0;

        for (int r = 0; r < size; r++)
            sum += hash((uint32_t)i, (uint32_t)r);
        CHECK((uint32_t)out[i] == sum, "integer %zu of %zu is %d, not %d\n", rank, i, count, out[i], (int32_t)sum);
    }
    free(in);
    if (!in_place)
        free(out);
}

/* Operations of two host streams, which may start in any order, and a group. */
static void streams(void)
{
    enum { N = 6, COUNT = 700 };
    static int32_t data[N][COUNT];
    pk_stream_t stream[2];

    for (int s = 0; s < 2; s++)
        CHECK(pk_stream_create(&stream[s]) == PK_OK, "stream\n", rank);
    for (int k = 0; k < N; k++)
        for (int i = 0; i < COUNT; i++)
            data[k][i] = rank + k + i;
    for (int k = 0; k < N; k++)
        CHECK(pk_allreduce(data[k], data[k], COUNT, PK_INT32, PK_SUM, comm, stream[k % 2]) == PK_OK, "in a stream\n", rank);
    for (int s = 0; s < 2; s++)
        CHECK(pk_stream_synchronize(stream[s]) == PK_OK && pk_stream_destroy(stream[s]) == PK_OK, "sync\n", rank);
    for (int k = 0; k < N; k++)
        for (int i = 0; i < COUNT; i++)
            CHECK(data[k][i] == size * (size - 1) / 2 + size * (k + i), "stream: integer %d of %d\n", rank, i, k);
}

/* One after the other, whatever their order in the group's transfers. */
static void group(void)
{
    int32_t data[3][500];

    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 500; i++)
            data[k][i] = rank * 1000 + k + i;
    CHECK(pk_group_start() == PK_OK, "group\n", rank);
    for (int k = 0; k < 3; k++)
        CHECK(pk_allreduce(data[k], data[k], 500, PK_INT32, PK_SUM, comm, PK_BLOCKING) == PK_OK, "in a group\n", rank);
    CHECK(pk_group_end() == PK_OK, "group\n", rank);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 500; i++)
            CHECK(data[k][i] == size * (size - 1) / 2 * 1000 + size * (k + i), "group: integer %d of %d\n", rank, i, k);
}

/* Each half has a job of its own at the aggregator, and both are at work at the same time. */
static void halves(void)
{
    pk_comm_t *half;
    float x[300], right = 0;

    if (size < 4)
        return;
    CHECK(pk_comm_split(comm, rank % 2, rank, &half, NULL) == PK_OK, "split\n", rank);
    for (int round = 0; round < 20 && wrong == 0; round++) {
        right = 0;
        for (int r = rank % 2; r < size; r += 2)
            right += (float)(r + round);
        for (int i = 0; i < 300; i++)
            x[i] = (float)(rank + round);
        CHECK(pk_allreduce(x, x, 300, PK_F32, PK_SUM, half, PK_BLOCKING) == PK_OK, "of a half\n", rank);
        CHECK(fabsf(x[0] - right) < 1e-4f && fabsf(x[299] - right) < 1e-4f, "of a half: %g, not %g\n", rank, (double)x[0],
              (double)right);
    }
    CHECK(pk_comm_destroy(half) == PK_OK, "destroy of a half\n", rank);
}

static void all(bool quick)
{
    static const size_t counts[] = { 0, 1, 63, 64, 65, 255, 256, 257, 1000, 5001, 70001 };
    const size_t n = sizeof counts / sizeof *counts;

    for (size_t c = 0; c < n; c++)
        for (int place = 0; place < 2 && (!quick || c == 1 || c == 4 || c == 8); place++) {
            integers(counts[c], place);
            for (int kind = 0; kind < 3; kind++)
                floats(counts[c], kind, place);
        }
    streams();
    group();
    halves();
}

/* Until it fails; rank 0 says when it has begun. */
static int go_on(bool unfit)
{
    static float data[100000];
    pk_result_t result = pk_allreduce(data, data, 1000, PK_F32, PK_SUM, comm, PK_BLOCKING);

    for (int i = 0; i < 100000 && unfit; i++) /* each of them leads to an allreduce of these units within the allreduce */
        data[i] = INFINITY;
    if (rank == 0 && result == PK_OK)
        printf("begun\n");
    fflush(stdout);
    while (result == PK_OK)
        result = pk_allreduce(data, data, 100000, PK_F32, PK_SUM, comm, PK_BLOCKING);
    return 4;
}

static void nap(long ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

static void *abort_soon(void *arg)
{
    nap(20);
    CHECK(pk_comm_abort(comm) == PK_OK, "abort\n", rank);
    return arg;
}

/* The aggregator and the other ranks may go on for a while. Nothing is written into a buffer that the call has given back. */
static int aborted(void)
{
    enum { COUNT = 4 << 20 };
    static int32_t data[COUNT];
    pthread_t thread;
    size_t written = 0;

    CHECK(pk_allreduce(data, data, 1000, PK_INT32, PK_SUM, comm, PK_BLOCKING) == PK_OK, "allreduce\n", rank);
    if (rank == 0 && pthread_create(&thread, NULL, abort_soon, NULL) != 0)
        return 1;
    while (pk_allreduce(data, data, COUNT, PK_INT32, PK_SUM, comm, PK_BLOCKING) == PK_OK)
        ;
    memset(data, 0x5a, sizeof data);
    nap(500);
    for (size_t i = 0; i < COUNT; i++)
        written += data[i] != 0x5a5a5a5a;
    CHECK(written == 0, "%zu elements were written after the call\n", rank, written);
    if (rank == 0)
        pthread_join(thread, NULL);
    return wrong > 0 ? 1 : 4;
}

static bool is_lost(void)
{
    pk_explanation_t how = { .struct_size = sizeof how };
    int32_t lost, any = 0;

    CHECK(pk_explain(comm, PK_OP_ALLREDUCE, 1000, PK_F32, PK_MEM_HOST, 0, 0, &how) == PK_OK, "pk_explain\n", rank);
    lost = strcmp(how.algorithm, "switchml") != 0;
    CHECK(pk_allreduce(&lost, &any, 1, PK_INT32, PK_MAX, comm, PK_BLOCKING) == PK_OK, "allreduce of a maximum\n", rank);
    return any != 0;
}

/* Until the aggregator is lost, and some time longer: sums are right all the time. */
static int survive(void)
{
    int after = 0;

    for (int round = 0; after < 3 && wrong == 0; round++) {
        integers(300001, round % 2);
        floats(20001, round % 3, round / 3 % 2);
        streams();
        group();
        after += is_lost();
        if (rank == 0 && round == 1) {
            printf("begun\n");
            fflush(stdout);
        }
    }
    halves();
    return 0;
}

/* Ranks that do not call the same. */
static int mismatch(void)
{
    static int32_t data[700000];

    return pk_allreduce(data, data, rank == 0 ? 70000 : 700000, PK_INT32, PK_SUM, comm, PK_BLOCKING) == PK_OK ? 0 : 4;
}

/* Rank 0's first has no elements and ends at once; then its second is there when the others call their first. */
static int empty(void)
{
    static int32_t data[70000];
    pk_result_t result = PK_OK;

    for (int call = 0; call < 2 && result == PK_OK; call++) {
        const size_t count = rank == 0 && call == 0 ? 0 : 70000;

        for (size_t i = 0; i < count; i++)
            data[i] = (rank + 1) * (call + 1);
        result = pk_allreduce(data, data, count, PK_INT32, PK_SUM, comm, PK_BLOCKING);
        CHECK(result != PK_OK || count == 0 || data[0] == size * (size + 1) / 2 * (call + 1), "call %d: the sum is %d\n", rank,
              call, data[0]);
    }
    return wrong > 0 || result == PK_OK ? 1 : result == PK_ERR_MISMATCH ? 4 : 5;
}

static int another_type(void)
{
    double x = rank, sum = 0;

    if (pk_allreduce(&x, &sum, 1, PK_F64, PK_SUM, comm, PK_BLOCKING) != PK_OK)
        return 4;
    return sum == size * (size - 1) / 2.0 ? 0 : 1;
}

static int run(const char *what)
{
    if (strcmp(what, "endless") == 0 || strcmp(what, "unfit") == 0)
        return go_on(strcmp(what, "unfit") == 0);
    if (strcmp(what, "abort") == 0)
        return aborted();
    if (strcmp(what, "survive") == 0)
        return survive();
    if (strcmp(what, "mismatch") == 0)
        return mismatch();
    if (strcmp(what, "empty") == 0)
        return empty();
    if (strcmp(what, "double") == 0)
        return another_type();
    if (strcmp(what, "few") == 0) {
        integers(1000, 0);
        floats(1000, 0, 1);
        return 0;
    }
    all(strcmp(what, "short") == 0);
    return 0;
}

int main(int argc, char **argv)
{
    pk_explanation_t how = { .struct_size = sizeof how };
    int rc;

    if (getenv("SWITCHML_RANKS_THREADS") != NULL)
        threads = (size_t)atoi(getenv("SWITCHML_RANKS_THREADS"));
    if (threads < 1 || pk_comm_init(&comm, NULL) != PK_OK)
        return 3;
    pk_comm_rank(comm, &rank);
    pk_comm_size(comm, &size);
    if (pk_explain(comm, PK_OP_ALLREDUCE, 1000, PK_F32, PK_MEM_HOST, 0, 0, &how) == PK_OK && rank == 0)
        printf("algorithm %s: %s\n", how.algorithm, how.reason);
    if (rank == 0 && argc > 2)
        (void)getchar();
    rc = run(argc > 1 ? argv[1] : "all");
    if (pk_comm_destroy(comm) != PK_OK && rc == 0)
        rc = 1;
    if (rank == 0)
        printf("%d ranks, %u wrong\n", size, wrong);
    return rc != 0 ? rc : wrong > 0;
}

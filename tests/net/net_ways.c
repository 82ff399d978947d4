/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each algorithm of a collective in turn, on communicators of the same ranks: what one costs beside another, on hosts as these are. Ranks
 * come by PK_RANK, PK_SIZE and PK_ROOT (hosts.sh). Rank 0 prints the median over rounds of the slowest rank's time, in microseconds.
 *
 * usage: net.ways COLLECTIVE BYTES,... ROUNDS [ALGORITHM...]     BYTES: the collective's argument; every algorithm's results are checked
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pickle/pickle.h"

#define WAYS_MAX 10
#define ROUNDS_MAX 1000

struct way {
    const char *name;
    pk_comm_t *comm;
    double us[ROUNDS_MAX];
};

struct job {
    const char *coll;
    int rank, size;
    size_t count; /* floats: the argument */
    float *in, *out;
};

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static bool is(const struct job *job, const char *coll)
{
    return strcmp(job->coll, coll) == 0;
}

static pk_result_t run_once(const struct job *j, pk_comm_t *comm)
{
    if (is(j, "allreduce"))
        return pk_allreduce(j->in, j->out, j->count, PK_F32, PK_SUM, comm, PK_BLOCKING);
    if (is(j, "reduce"))
        return pk_reduce(j->in, j->out, j->count, PK_F32, PK_SUM, j->size - 1, comm, PK_BLOCKING);
    if (is(j, "broadcast"))
        return pk_broadcast(j->in, j->out, j->count, PK_F32, j->size - 1, comm, PK_BLOCKING);
    if (is(j, "allgather"))
        return pk_allgather(j->in, j->out, j->count, PK_F32, comm, PK_BLOCKING);
    if (is(j, "reduce_scatter"))
        return pk_reduce_scatter(j->in, j->out, j->count, PK_F32, PK_SUM, comm, PK_BLOCKING);
    if (is(j, "alltoall"))
        return pk_alltoall(j->in, j->out, j->count, PK_F32, comm, PK_BLOCKING);
    return is(j, "barrier") ? pk_barrier(comm, PK_BLOCKING) : PK_ERR_ARG;
}

/* Rank r's element i is r + i % 7: small numbers, whose sums are whole. */
static bool is_right(const struct job *j)
{
    bool sums = is(j, "allreduce") || is(j, "reduce") || is(j, "reduce_scatter");
    bool gathers = is(j, "allgather") || is(j, "alltoall");
    size_t n = j->count * (gathers ? (size_t)j->size : 1);

    if (is(j, "barrier") || (is(j, "reduce") && j->rank != j->size - 1))
        return true;
    for (size_t i = 0; i < n; i++) {
        size_t at = is(j, "reduce_scatter") || is(j, "alltoall") ? (size_t)j->rank * j->count + i % j->count : i % j->count;
        float own = (float)(at % 7), from = (float)(gathers ? (int)(i / j->count) : j->size - 1);
        float expected = sums ? (float)j->size * own + (float)(j->size * (j->size - 1) / 2) : from + own;

        if (j->out[i] != expected)
            return false;
    }
    return true;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The slowest rank's time of a round counts, and of the rounds the median. */
static bool finish(struct way *way, int rounds, double *us)
{
    pk_result_t result = pk_allreduce(way->us, way->us, (size_t)rounds, PK_F64, PK_MAX, way->comm, PK_BLOCKING);

    qsort(way->us, (size_t)rounds, sizeof *way->us, by_size);
    *us = way->us[rounds / 2];
    return result == PK_OK;
}

static bool measure(const struct job *j, struct way *ways, int n, int rounds)
{
    for (int round = -2; round < rounds; round++)
        for (int w = 0; w < n; w++) {
            double begin;

            if (pk_barrier(ways[w].comm, PK_BLOCKING) != PK_OK)
                return false;
            begin = now_us();
            if (run_once(j, ways[w].comm) != PK_OK)
                return false;
            if (round >= 0)
                ways[w].us[round] = now_us() - begin;
            if (round < 0 && !is_right(j)) {
                fprintf(stderr, "rank %d: %s %s of %zu floats is wrong\n", j->rank, j->coll, ways[w].name, j->count);
                return false;
            }
        }
    return true;
}

static bool row(struct job *j, struct way *ways, int n, size_t bytes, int rounds)
{
    size_t all;
    bool good;

    j->count = bytes / sizeof(float);
    all = j->count * (size_t)j->size + 1;
    j->in = malloc(all * sizeof *j->in);
    j->out = malloc(all * sizeof *j->out);
    good = j->in != NULL && j->out != NULL;
    for (size_t i = 0; good && i < all; i++) {
        j->in[i] = (float)(j->rank + (int)(i % 7));
        j->out[i] = -1;
    }
    good = good && measure(j, ways, n, rounds);
    if (j->rank == 0)
        printf("%-14s %10zu", j->coll, bytes);
    for (int w = 0; w < n && good; w++) {
        double us;

        good = finish(&ways[w], rounds, &us);
        if (j->rank == 0)
            printf(" %11.1f", us);
    }
    if (j->rank == 0)
        printf("\n");
    fflush(stdout);
    free(j->in);
    free(j->out);
    return good;
}

static bool open_ways(struct way *ways, int n, struct job *j, char **names)
{
    for (int w = 0; w < n; w++) {
        ways[w].name = names[w];
        if (strcmp(names[w], "chosen") == 0)
            unsetenv("PK_ALGORITHM");
        else
            setenv("PK_ALGORITHM", names[w], 1);
        if (pk_comm_init(&ways[w].comm, NULL) != PK_OK)
            return false;
    }
    return pk_comm_rank(ways[0].comm, &j->rank) == PK_OK && pk_comm_size(ways[0].comm, &j->size) == PK_OK;
}

int main(int argc, char **argv)
{
    static char *const chosen[] = { "chosen" };
    static struct way ways[WAYS_MAX];
    int n = argc - 4, rounds = argc > 3 ? atoi(argv[3]) : 0;
    struct job job = { .coll = argc > 1 ? argv[1] : "" };
    pk_error_info_t error;
    bool good;

    if (argc < 4 || n > WAYS_MAX || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: %s COLLECTIVE BYTES,... ROUNDS [ALGORITHM...]\n", argv[0]);
        return 2;
    }
    good = n > 0 ? open_ways(ways, n, &job, argv + 4) : open_ways(ways, 1, &job, (char **)chosen);
    n = n > 0 ? n : 1;
    if (good && job.rank == 0) {
        printf("%-14s %10s", "# us", "bytes");
        for (int w = 0; w < n; w++)
            printf(" %11s", ways[w].name);
        printf("\n");
    }
    for (char *at = argv[2]; good && *at != '\0';) {
        good = row(&job, ways, n, strtoul(at, &at, 10), rounds);
        at += *at == ',';
    }
    for (int w = 0; w < n && good; w++)
        good = pk_comm_destroy(ways[w].comm) == PK_OK;
    if (!good && pk_last_error(&error) != PK_OK)
        fprintf(stderr, "rank %d: %s\n", job.rank, error.text);
    return good ? 0 : 1;
}

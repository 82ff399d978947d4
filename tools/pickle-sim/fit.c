/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each of the machine's numbers in turn is made larger and smaller by factors, and the one by which the rows are met best is kept, until
 * none helps; from several starts. The rows' logarithmic errors are summed, so that microseconds and milliseconds count alike; those
 * above SATURATED hardly count more, so that a disturbed measurement does not bend all others. Numbers are pulled to where they began,
 * and a cache is never slower than what is behind it: with more freedom the fit meets its own rows better and all others worse.
 */
#include "fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define ENOUGH 5e-4 /* of the sum of errors: a smaller gain is none */
#define STARTS 3u
#define SATURATED 0.5
#define PULL 0.05
#define ONE_SHOT_BLOCK 262144
#define ONE_SHOT_BYTES 524288

struct column {
    int operation, ranks, bytes, us, algorithm;
};

static int column_of(char *header, const char *name)
{
    char *save = NULL;
    int at = 0;
    char copy[2048];

    snprintf(copy, sizeof copy, "%s", header);
    for (char *word = strtok_r(copy, ",\r\n", &save); word != NULL; word = strtok_r(NULL, ",\r\n", &save), at++)
        if (strcmp(word, name) == 0)
            return at;
    return -1;
}

/* Field `at` of a line, quotes taken off. Empty when there is none. */
static void field_of(const char *line, int at, char *out, size_t bytes)
{
    bool quoted = false;
    size_t n = 0;

    for (; *line != '\0' && *line != '\n' && *line != '\r'; line++) {
        if (*line == '"')
            quoted = !quoted;
        else if (*line == ',' && !quoted)
            at--;
        else if (at == 0 && n + 1 < bytes)
            out[n++] = *line;
    }
    out[n] = '\0';
}

/* pickle-perf counts as nccl-tests do: bytes of the larger buffer. The argument of gathers and the like is a rank's part. */
static double argument_bytes(const struct sim_row *row, double bytes)
{
    const char *parts[] = { "allgather", "reduce_scatter", "alltoall", "gather", "scatter" };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(row->operation, parts[i]) == 0)
            return bytes / row->ranks;
    return bytes;
}

static bool add_row(struct sim_rows *rows, const char *line, const struct column *c)
{
    struct sim_row row = { 0 }, *bigger;
    char number[64];

    field_of(line, c->operation, row.operation, sizeof row.operation);
    field_of(line, c->algorithm, row.algorithm, sizeof row.algorithm);
    field_of(line, c->ranks, number, sizeof number);
    row.ranks = atoi(number);
    field_of(line, c->us, number, sizeof number);
    row.us = strtod(number, NULL);
    field_of(line, c->bytes, number, sizeof number);
    row.bytes = row.ranks > 0 ? argument_bytes(&row, strtod(number, NULL)) : 0;
    if (row.ranks < 1 || !(row.us > 0) || !(row.bytes >= 4))
        return true; /* nothing to learn from it */
    bigger = realloc(rows->rows, ((size_t)rows->count + 1) * sizeof *bigger);
    if (bigger == NULL)
        return false;
    rows->rows = bigger;
    rows->rows[rows->count++] = row;
    return true;
}

bool sim_rows_read(struct sim_rows *rows, const char *path)
{
    FILE *file = fopen(path, "r");
    struct column c;
    char line[2048];
    bool good;

    if (file == NULL || fgets(line, sizeof line, file) == NULL) {
        fprintf(stderr, "%s: no measured sweep\n", path);
        if (file != NULL)
            fclose(file);
        return false;
    }
    c = (struct column){ column_of(line, "operation"), column_of(line, "ranks"), column_of(line, "bytes"),
                         column_of(line, "median_us"), column_of(line, "algorithm") };
    good = c.operation >= 0 && c.ranks >= 0 && c.bytes >= 0 && c.us >= 0 && c.algorithm >= 0;
    if (!good)
        fprintf(stderr, "%s: columns operation, ranks, bytes, median_us and algorithm are needed\n", path);
    while (good && fgets(line, sizeof line, file) != NULL)
        good = add_row(rows, line, &c);
    fclose(file);
    return good;
}

void sim_rows_free(struct sim_rows *rows)
{
    free(rows->rows);
    *rows = (struct sim_rows){ 0 };
}

void sim_rows_hold_out(struct sim_rows *rows, uint64_t ranks)
{
    int nth = 0;

    for (int i = 0; i < rows->count; i++) {
        struct sim_row *row = &rows->rows[i];

        if (i > 0 && (strcmp(row->operation, row[-1].operation) != 0 || row->ranks != row[-1].ranks))
            nth = 0;
        row->held_out = ++nth % 3 == 2 || (row->ranks < 64 && (ranks >> row->ranks & 1) != 0);
    }
}

/* A kernel that adds up what all ranks sent it: those of GPUs to this size (lib/engine/fused/rules.c). */
static bool is_one_shot(const struct sim_row *row)
{
    return strcmp(row->algorithm, "fused") == 0 && strcmp(row->operation, "allreduce") == 0 && row->bytes <= ONE_SHOT_BLOCK &&
           row->bytes * (row->ranks - 1) <= ONE_SHOT_BYTES;
}

/* A row's algorithm where the simulator knows it; else what the engine does by itself without one: direct. */
static const struct pki_algorithm *algorithm_of(const struct sim_row *row)
{
    for (unsigned coll = 0; coll < PKI_COLL_END; coll++) {
        const struct pki_shape *shape = pki_coll_shape(coll);
        const struct pki_algorithm *found;

        if (shape == NULL || strcmp(shape->name, row->operation) != 0)
            continue;
        found = pki_algorithm_find((enum pki_coll)coll, row->algorithm);
        return found != NULL ? found : pki_algorithm_find((enum pki_coll)coll, is_one_shot(row) ? "flat" : "direct");
    }
    return NULL;
}

static bool is_pingpong(const struct sim_row *row)
{
    return strcmp(row->operation, "sendrecv") == 0;
}

/* One way: a broadcast between two ranks is a send and a receive. */
static const struct pki_algorithm *plan_of(const struct sim_row *row)
{
    if (is_pingpong(row))
        return pki_algorithm_find(PKI_COLL_BROADCAST, "flat");
    return algorithm_of(row);
}

static bool same_world(const struct sim_row *a, const struct sim_row *b)
{
    return a->ranks == b->ranks && strcmp(a->operation, b->operation) == 0 && plan_of(a) == plan_of(b);
}

/* A row is simulated as it was measured: in a loop in which roots take turns, or as half a round trip. */
struct turns {
    const struct sim_row *of;
    struct sim_world *worlds;
    int count;
};

static void turns_free(struct turns *turns)
{
    for (int i = 0; i < turns->count; i++)
        sim_world_free(&turns->worlds[i]);
    free(turns->worlds);
    *turns = (struct turns){ 0 };
}

static bool turns_make(struct turns *turns, const struct sim_machine *machine, const struct sim_row *row)
{
    const struct pki_algorithm *algorithm = plan_of(row);
    int count = is_pingpong(row) || !pki_coll_shape(algorithm->coll)->rooted ? 1 : row->ranks;

    turns_free(turns);
    turns->of = row;
    turns->worlds = calloc((size_t)count, sizeof *turns->worlds);
    if (turns->worlds == NULL)
        return false;
    for (; turns->count < count; turns->count++)
        if (!sim_world_make(&turns->worlds[turns->count], machine, NULL, algorithm, row->ranks, turns->count, is_pingpong(row)))
            return false;
    return true;
}

static bool predict_row(const struct sim_machine *machine, struct turns *turns, struct sim_row *row)
{
    struct sim_result result = { 0 };
    bool good = (turns->of != NULL && same_world(turns->of, row)) || turns_make(turns, machine, row);

    if (good && is_pingpong(row))
        good = sim_run(machine, turns->worlds, NULL, row->bytes, 0, &result);
    else
        good = good && sim_run_often(machine, turns->worlds, turns->count, row->bytes, &result);
    row->predicted_us = good ? result.us : 0;
    return good;
}

static bool predict_some(const struct sim_machine *machine, struct sim_rows *rows, bool held_out_too)
{
    struct turns turns = { 0 };
    bool good = true;

    for (int i = 0; good && i < rows->count; i++) {
        struct sim_row *row = &rows->rows[i];

        row->predicted_us = 0;
        if (plan_of(row) != NULL && row->ranks <= sim_machine_ranks(machine) && (!row->held_out || held_out_too))
            good = predict_row(machine, &turns, row);
    }
    turns_free(&turns);
    return good;
}

bool sim_predict(const struct sim_machine *machine, struct sim_rows *rows)
{
    return predict_some(machine, rows, true);
}

static double saturated(double error)
{
    return error / (1 + error / SATURATED);
}

/* No cache is slower than what is behind it. */
static bool falls(const struct sim_rate *rate)
{
    return (rate->core <= 0 || rate->core >= rate->node) && (rate->node <= 0 || rate->node >= rate->memory);
}

static bool plausible(const struct sim_machine *m)
{
    return falls(&m->intra.gbps) && falls(&m->intra.lane_gbps) && falls(&m->reduce.gbps) && falls(&m->copy.gbps) &&
           m->node_cache_bytes >= m->core_cache_bytes;
}

/* How far the numbers have gone from where they began: what no row speaks of stays there. */
static double gone(struct sim_machine *machine, const struct sim_machine *from)
{
    struct sim_machine start = *from;
    double sum = 0;

    for (int i = 0; sim_machine_fitted[i] != NULL; i++) {
        double now = *sim_machine_number(machine, sim_machine_fitted[i]),
               then = *sim_machine_number(&start, sim_machine_fitted[i]);

        sum += now > 0 && then > 0 ? fabs(log(now / then)) : 0;
    }
    return sum;
}

static double distance(struct sim_machine *machine, const struct sim_machine *from, struct sim_rows *rows)
{
    double sum = PULL * gone(machine, from);

    if (!plausible(machine) || !predict_some(machine, rows, false))
        return INFINITY;
    for (int i = 0; i < rows->count; i++)
        if (!rows->rows[i].held_out && rows->rows[i].predicted_us > 0)
            sum += saturated(fabs(log(rows->rows[i].predicted_us / rows->rows[i].us)));
    return sum;
}

/* The one of these factors that helps most is kept. True: one did. */
static bool step_number(struct sim_machine *machine, const struct sim_machine *from, struct sim_rows *rows, const char *name,
                        double *best)
{
    static const double factors[] = { 6, 2.5, 1.5, 1.2, 1.07, 1.02 };
    double *number = sim_machine_number(machine, name), old = *number, kept = old, before = *best;

    if (old <= 0) /* this machine has none of it */
        return false;
    for (size_t i = 0; i < 2 * sizeof factors / sizeof *factors; i++) {
        double now;

        *number = i % 2 == 0 ? old * factors[i / 2] : old / factors[i / 2];
        now = sim_machine_allows(name, *number) ? distance(machine, from, rows) : INFINITY;
        if (now < *best) {
            *best = now;
            kept = *number;
        }
    }
    *number = kept;
    return *best < before * (1 - ENOUGH);
}

static double descend(struct sim_machine *machine, const struct sim_machine *from, struct sim_rows *rows)
{
    double best = distance(machine, from, rows);

    for (bool better = best < INFINITY; better;) {
        better = false;
        for (int i = 0; sim_machine_fitted[i] != NULL; i++)
            better |= step_number(machine, from, rows, sim_machine_fitted[i], &best);
    }
    return best;
}

/* All numbers times factors from 1/3 to 3, the same in every run. */
static void shake(struct sim_machine *machine, uint32_t seed)
{
    for (int i = 0; sim_machine_fitted[i] != NULL; i++) {
        seed = seed * 1664525u + 1013904223u;
        *sim_machine_number(machine, sim_machine_fitted[i]) *= pow(3, (seed >> 8) / 8388608.0 - 1);
    }
}

bool sim_fit(struct sim_machine *machine, struct sim_rows *rows)
{
    struct sim_machine found = *machine;
    double best = descend(&found, machine, rows);

    if (!(best < INFINITY))
        return false;
    for (uint32_t start = 1; start < STARTS; start++) {
        struct sim_machine other = start % 2 == 1 ? found : *machine;
        double now;

        shake(&other, start);
        now = descend(&other, machine, rows);
        if (now < best) {
            best = now;
            found = other;
        }
    }
    found.measured = true;
    *machine = found;
    return true;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

void sim_error(const struct sim_rows *rows, bool held_out, int ranks, double *median, double *largest, int *count)
{
    double *errors = calloc((size_t)rows->count + 1, sizeof *errors);
    int n = 0;

    for (int i = 0; errors != NULL && i < rows->count; i++)
        if (rows->rows[i].held_out == held_out && rows->rows[i].predicted_us > 0 && (ranks == 0 || rows->rows[i].ranks == ranks))
            errors[n++] = fabs(rows->rows[i].predicted_us / rows->rows[i].us - 1);
    if (n > 0)
        qsort(errors, (size_t)n, sizeof *errors, by_size);
    *median = n > 0 ? errors[n / 2] : 0;
    *largest = n > 0 ? errors[n - 1] : 0;
    *count = n;
    free(errors);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pattern search over the logarithms of the machine's numbers: each is made larger and smaller by a factor, kept when the rows are
 * met better, and the factor shrinks when nothing helps. The rows' logarithmic errors are summed, so that microseconds and
 * milliseconds count alike.
 */
#include "fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

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

void sim_rows_hold_out(struct sim_rows *rows, int ranks)
{
    int nth = 0;

    for (int i = 0; i < rows->count; i++) {
        struct sim_row *row = &rows->rows[i];

        if (i > 0 && (strcmp(row->operation, row[-1].operation) != 0 || row->ranks != row[-1].ranks))
            nth = 0;
        row->held_out = ++nth % 3 == 0 || (ranks > 0 && row->ranks == ranks);
    }
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
        return found != NULL ? found : pki_algorithm_find((enum pki_coll)coll, "direct");
    }
    return NULL;
}

/* One way: a broadcast between two ranks is a send and a receive. */
static const struct pki_algorithm *plan_of(const struct sim_row *row)
{
    if (strcmp(row->operation, "sendrecv") == 0)
        return pki_algorithm_find(PKI_COLL_BROADCAST, "flat");
    return algorithm_of(row);
}

static bool same_world(const struct sim_row *a, const struct sim_row *b)
{
    return a->ranks == b->ranks && strcmp(a->operation, b->operation) == 0 && plan_of(a) == plan_of(b);
}

static bool predict_some(const struct sim_machine *machine, struct sim_rows *rows, bool held_out_too)
{
    struct sim_world world = { 0 };
    const struct sim_row *of = NULL;
    bool good = true;

    for (int i = 0; good && i < rows->count; i++) {
        struct sim_row *row = &rows->rows[i];
        const struct pki_algorithm *algorithm = plan_of(row);
        struct sim_result result;

        row->predicted_us = 0;
        if (algorithm == NULL || row->ranks > sim_machine_ranks(machine) || (row->held_out && !held_out_too))
            continue;
        if (of == NULL || !same_world(of, row)) {
            sim_world_free(&world);
            good = sim_world_make(&world, machine, NULL, algorithm, row->ranks, 0);
            of = row;
        }
        good = good && sim_run(machine, &world, NULL, row->bytes, 0, &result);
        row->predicted_us = good ? result.us : 0;
    }
    sim_world_free(&world);
    return good;
}

bool sim_predict(const struct sim_machine *machine, struct sim_rows *rows)
{
    return predict_some(machine, rows, true);
}

static double distance(const struct sim_machine *machine, struct sim_rows *rows)
{
    double sum = 0;

    if (!predict_some(machine, rows, false))
        return INFINITY;
    for (int i = 0; i < rows->count; i++)
        if (!rows->rows[i].held_out && rows->rows[i].predicted_us > 0)
            sum += fabs(log(rows->rows[i].predicted_us / rows->rows[i].us));
    return sum;
}

/* Try one number times `factor`; keep it when that helps. */
static bool step_number(struct sim_machine *machine, struct sim_rows *rows, const char *name, double factor, double *best)
{
    double *number = sim_machine_number(machine, name), old = *number, now;

    if (old <= 0) /* this machine has none of it */
        return false;
    *number = old * factor;
    now = distance(machine, rows);
    if (now < *best * (1 - 1e-9)) {
        *best = now;
        return true;
    }
    *number = old;
    return false;
}

bool sim_fit(struct sim_machine *machine, struct sim_rows *rows)
{
    double best = distance(machine, rows);

    if (!(best < INFINITY))
        return false;
    for (double factor = 2; factor > 1.005;) {
        bool better = false;

        for (int i = 0; sim_machine_fitted[i] != NULL; i++)
            better |= step_number(machine, rows, sim_machine_fitted[i], factor, &best) ||
                      step_number(machine, rows, sim_machine_fitted[i], 1 / factor, &best);
        if (!better)
            factor = sqrt(factor);
    }
    machine->measured = true;
    return true;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

void sim_error(const struct sim_rows *rows, bool held_out, double *median, double *largest, int *count)
{
    double *errors = calloc((size_t)rows->count + 1, sizeof *errors);
    int n = 0;

    for (int i = 0; errors != NULL && i < rows->count; i++)
        if (rows->rows[i].held_out == held_out && rows->rows[i].predicted_us > 0)
            errors[n++] = fabs(rows->rows[i].predicted_us / rows->rows[i].us - 1);
    if (n > 0)
        qsort(errors, (size_t)n, sizeof *errors, by_size);
    *median = n > 0 ? errors[n / 2] : 0;
    *largest = n > 0 ? errors[n - 1] : 0;
    *count = n;
    free(errors);
}

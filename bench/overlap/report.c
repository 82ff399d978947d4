/* SPDX-License-Identifier: Apache-2.0 */
/* The table. A row is of the rank whose computing lost most; medians over the turns. */
#include "overlap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const struct table_column columns[] = {
    { "compute", "compute", "", 9, -1 },
    { "operation", "operation", "", 9, -1 },
    { "bytes", "bytes", "", 10, 0 },
    { "library", "library", "", 9, -1 },
    { "alone_ms", "compute", "alone,ms", 8, 1 },
    { "beside_ms", "", "beside", 8, 1 },
    { "ratio", "raw", "ratio", 6, 3 },
    { "ratio_per_clock", "ratio", "/clock", 6, 3 },
    { "mhz_alone", "MHz", "alone", 6, 0 },
    { "mhz_beside", "MHz", "beside", 6, 0 },
    { "watts_alone", "W", "alone", 5, 0 },
    { "watts_beside", "W", "beside", 6, 0 },
    { "rate_alone_gbps", "GB/s", "alone", 7, 1 },
    { "rate_beside_gbps", "GB/s", "beside", 7, 1 },
    { "rate_ratio", "rate", "kept", 6, 3 },
    { "lost_ms_per_gb", "lost", "ms/GB", 6, 3 },
    { "covered", "cov-", "ered", 4, -1 },
    { "longest", "longest", "/median", 7, 2 },
    { "free_ms", "one", "free,ms", 8, 2 },
    { "held_ms", "SMs", "held,ms", 8, 2 },
    { "wrong", "#wrong", "", 6, 0 },
    { "nvml_mhz_alone", "NVML", "alone", 6, 0 },
    { "nvml_mhz_beside", "MHz", "beside", 6, 0 },
    { "tflops_alone", "TFLOP/s", "alone", 7, 0 },
    { NULL, NULL, NULL, 0, 0 },
};

/* Of one rank. */
struct figures {
    double alone_us, beside_us, cycles_ratio, mhz_alone, mhz_beside, watts_alone, watts_beside, nvml_alone, nvml_beside;
    double rate_alone, rate_beside, longest;
    int covered;
};

static struct {
    const char *name;
    struct figures figures;
} reported[OVERLAP_SIDES]; /* of the case that is under way */
static int reported_count;

void overlap_report_open(struct overlap_run *run, const char *about)
{
    run->table = table_open("pickle-perf-overlap", about, columns, run->options.csv_path, run->options.json_path);
}

/* The median of one number of each turn; NAN where any is. */
static double median_of(const struct overlap_turn *turns, unsigned n, size_t offset)
{
    double values[OVERLAP_TURNS];

    for (unsigned i = 0; i < n; i++) {
        values[i] = *(const double *)(const void *)((const char *)&turns[i] + offset);
        if (isnan(values[i]))
            return NAN;
    }
    return median(values, n);
}

static double ratio_of_cycles(const struct overlap_turn *turns, unsigned n)
{
    double values[OVERLAP_TURNS];

    for (unsigned i = 0; i < n; i++)
        values[i] = turns[i].alone.cycles / turns[i].beside.cycles;
    return median(values, n);
}

#define OF(member) median_of(turns, n, offsetof(struct overlap_turn, member))

static struct figures own_figures(const struct overlap_turn *turns, unsigned n)
{
    struct figures f = { .covered = 1 };

    f.alone_us = OF(alone.us);
    f.beside_us = OF(beside.us);
    f.cycles_ratio = ratio_of_cycles(turns, n);
    f.mhz_alone = OF(alone.cycles) / f.alone_us;
    f.mhz_beside = OF(beside.cycles) / f.beside_us;
    f.watts_alone = OF(alone.watts);
    f.watts_beside = OF(beside.watts);
    f.nvml_alone = OF(alone.nvml_mhz);
    f.nvml_beside = OF(beside.nvml_mhz);
    f.rate_alone = OF(rate_alone);
    f.rate_beside = OF(rate_beside);
    f.longest = OF(longest);
    for (unsigned i = 0; i < n; i++)
        f.covered = f.covered && turns[i].covered;
    return f;
}

static struct figures worst_figures(struct overlap_run *run, struct figures own)
{
    struct figures *all = calloc((size_t)run->size, sizeof *all), worst;
    int covered = 1;

    if (all == NULL)
        abort();
    overlap_share(run, &own, all, sizeof own);
    worst = all[0];
    for (int r = 0; r < run->size; r++) {
        covered = covered && all[r].covered;
        if (all[r].alone_us / all[r].beside_us < worst.alone_us / worst.beside_us)
            worst = all[r];
    }
    worst.covered = covered;
    free(all);
    return worst;
}

void overlap_report(struct overlap_run *run, const struct overlap_work *work, const struct overlap_side *side,
                    const struct overlap_case *c, const struct overlap_turn *turns, double held_ms, double free_ms,
                    uint64_t wrong)
{
    struct figures f = worst_figures(run, own_figures(turns, run->options.turns));
    double gigabytes = f.rate_beside * f.beside_us * 1e-6;

    if (run->rank != 0)
        return;
    overlap_watch_hide();
    reported[reported_count].name = side->name;
    reported[reported_count++].figures = f;
    table_row(run->table,
              (struct table_cell[]){ TABLE_TEXT(work->name),
                                     TABLE_TEXT(overlap_operation_names[c->operation]),
                                     TABLE_NUMBER(c->bytes),
                                     TABLE_TEXT(side->name),
                                     TABLE_NUMBER(f.alone_us * 1e-3),
                                     TABLE_NUMBER(f.beside_us * 1e-3),
                                     TABLE_NUMBER(f.alone_us / f.beside_us),
                                     TABLE_NUMBER(f.cycles_ratio),
                                     TABLE_NUMBER(f.mhz_alone),
                                     TABLE_NUMBER(f.mhz_beside),
                                     TABLE_NUMBER(f.watts_alone),
                                     TABLE_NUMBER(f.watts_beside),
                                     TABLE_NUMBER(f.rate_alone),
                                     TABLE_NUMBER(f.rate_beside),
                                     TABLE_NUMBER(f.rate_beside / f.rate_alone),
                                     TABLE_NUMBER((f.beside_us - f.alone_us) * 1e-3 / gigabytes),
                                     TABLE_TEXT(f.covered ? "yes" : "NO"),
                                     TABLE_NUMBER(f.longest),
                                     TABLE_NUMBER(free_ms),
                                     TABLE_NUMBER(held_ms),
                                     TABLE_NUMBER(wrong),
                                     TABLE_NUMBER(f.nvml_alone),
                                     TABLE_NUMBER(f.nvml_beside),
                                     TABLE_NUMBER(work->flops * work->rounds / f.alone_us * 1e-6) },
              NULL);
}

/* Time lost is cycles lost and the clock's fall: their product. */
void overlap_explain(struct overlap_run *run, const struct overlap_work *work, const struct overlap_case *c)
{
    char text[512], limit[64] = "";

    if (!isnan(overlap_power_limit()))
        snprintf(limit, sizeof limit, ", of %.0f W allowed", overlap_power_limit());
    for (int i = 0; i < reported_count; i++) {
        const struct figures *f = &reported[i].figures;

        if (isnan(f->watts_beside) || isnan(f->rate_beside)) /* too little was measured for a sentence */
            continue;
        snprintf(
            text, sizeof text,
            "in words: %s of %zu bytes by %s leaves %s %.1f %% of its cycles, while the clock goes from %.0f to %.0f MHz (%.0f W alone, %.0f beside%s): "
            "together %.1f %% of its speed; the messages keep %.1f %% of theirs",
            overlap_operation_names[c->operation], c->bytes, reported[i].name, work->name, 100 * f->cycles_ratio, f->mhz_alone,
            f->mhz_beside, f->watts_alone, f->watts_beside, limit, 100 * f->alone_us / f->beside_us,
            100 * f->rate_beside / f->rate_alone);
        table_note(run->table, text);
    }
    reported_count = 0;
}

void overlap_report_absent(struct overlap_run *run, const char *work, const char *side, const struct overlap_case *c,
                           const char *why)
{
    struct table_cell cells[sizeof columns / sizeof columns[0]];

    if (run->rank != 0)
        return;
    overlap_watch_hide();
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        cells[i] = columns[i].name != NULL && columns[i].decimals < 0 ? TABLE_TEXT("-") : TABLE_NUMBER(NAN);
    cells[0] = TABLE_TEXT(work);
    cells[1] = TABLE_TEXT(c != NULL ? overlap_operation_names[c->operation] : "-");
    cells[2] = TABLE_NUMBER(c != NULL ? (double)c->bytes : NAN);
    cells[3] = TABLE_TEXT(side);
    table_row(run->table, cells, why);
}

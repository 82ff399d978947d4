/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pattern of training: steps that only compute, that only communicate, and that do both, in turns, so that what the machine does besides
 * is the same for all. What communication costs is the time by which a whole step is longer than one that computes alone.
 */
#include "jobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMPUTING, COMMUNICATING, BOTH, KINDS };

static const struct table_column columns[] = {
    { "pattern", "pattern", "", 9, -1 },
    { "library", "library", "", 9, -1 },
    { "ranks", "ranks", "", 5, 0 },
    { "tokens", "tokens", "", 6, 0 },
    { "compute_ms", "compute", "(ms)", 9, 3 },
    { "communicate_ms", "communic.", "(ms)", 9, 3 },
    { "step_ms", "step", "(ms)", 9, 3 },
    { "step_p99_ms", "p99", "(ms)", 9, 3 },
    { "share_percent", "share of", "comm. %", 8, 1 },
    { "hidden_percent", "hidden", "(%)", 7, 1 },
    { "efficiency", "efficiency", "", 10, 3 },
    { "mb_per_step", "sent", "(MB)", 9, 3 },
    { "wrong", "#wrong", "", 7, 0 },
    { "note", "note", "", 1, -1 },
    { NULL, NULL, NULL, 0, 0 },
};

static void open_table(struct jobs_run *run)
{
    const struct jobs_options *o = &run->options;
    char library[JOBS_TEXT_BYTES], about[512];
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    library_describe(run, library);
    if (run->world.rank != 0)
        return;
    snprintf(about, sizeof about,
             "%s: %s\n%s, %d ranks on %ld CPUs%s, %s memory; %u layers, hidden %u, %u tokens; %u steps of each kind\n"
             "share: of the step that is not computing; hidden: of communicating alone; efficiency: compute / step",
             o->mode->name, o->mode->what, library, run->world.size, cpus,
             !o->cuda && run->world.size > cpus ? " (more ranks than CPUs: they take turns)" : "", o->cuda ? "cuda" : "host",
             o->layers, o->hidden, o->tokens, o->steps);
    run->table = table_open("pickle-perf-jobs", about, columns, o->csv_path, o->json_path);
}

static void no_row(struct jobs_run *run, const char *reason)
{
    const struct jobs_options *o = &run->options;
    struct table_cell cells[sizeof columns / sizeof columns[0]] = { TABLE_TEXT(o->mode->name), TABLE_TEXT(library_name),
                                                                    TABLE_NUMBER(run->world.size), TABLE_NUMBER(o->tokens) };

    for (int i = 4; i <= 12; i++)
        cells[i] = TABLE_NUMBER(NAN);
    if (run->world.rank == 0)
        table_row(run->table, cells, reason);
}

static void end_step(struct jobs_run *run)
{
    if (run->options.cuda && gpu_stream_sync(run->compute_stream) != 0) {
        fprintf(stderr, "the GPU's stream has failed\n");
        exit(1);
    }
}

static double timed_step(struct jobs_run *run, unsigned parts)
{
    double begin;

    jobs_barrier(run);
    run->parts = parts;
    begin = now_us();
    run->options.mode->pattern->step(run);
    end_step(run);
    return jobs_worst(run, now_us() - begin);
}

static uint64_t checked_step(struct jobs_run *run, unsigned iteration)
{
    jobs_fill(run, iteration);
    timed_step(run, JOBS_COMMUNICATE | JOBS_COMPUTE);
    return jobs_check(run, iteration);
}

static double p99(const double *sorted, unsigned n)
{
    return sorted[(n * 99 + 99) / 100 - 1];
}

static void report(struct jobs_run *run, const double medians[KINDS], double p99_us, double sent_bytes)
{
    const struct jobs_pattern *pattern = run->options.mode->pattern;
    double alone = medians[COMPUTING], step = medians[BOTH], exposed = step - alone;
    double hidden = 100 * (1 - exposed / medians[COMMUNICATING]);
    char note[JOBS_TEXT_BYTES] = "";

    if (pattern->note != NULL)
        pattern->note(run, note);
    if (run->world.rank == 0)
        table_row(run->table,
                  (struct table_cell[]){
                      TABLE_TEXT(run->options.mode->name), TABLE_TEXT(library_name), TABLE_NUMBER(run->world.size),
                      TABLE_NUMBER(run->options.tokens), TABLE_NUMBER(alone * 1e-3), TABLE_NUMBER(medians[COMMUNICATING] * 1e-3),
                      TABLE_NUMBER(step * 1e-3), TABLE_NUMBER(p99_us * 1e-3),
                      TABLE_NUMBER(exposed > 0 ? 100 * exposed / step : 0), TABLE_NUMBER(fmin(fmax(hidden, 0), 100)),
                      TABLE_NUMBER(alone / step), TABLE_NUMBER(sent_bytes * 1e-6), TABLE_NUMBER(run->wrong), TABLE_TEXT(note) },
                  NULL);
}

static void measure(struct jobs_run *run)
{
    static const unsigned parts[KINDS] = { JOBS_COMPUTE, JOBS_COMMUNICATE, JOBS_COMPUTE | JOBS_COMMUNICATE };
    unsigned n = run->options.steps;
    double *samples = calloc((size_t)KINDS * n, sizeof *samples);
    double medians[KINDS], sent;

    if (samples == NULL)
        abort();
    run->wrong = checked_step(run, 1);
    for (unsigned i = 0; i < run->options.warmup; i++)
        timed_step(run, parts[i % KINDS]);
    for (unsigned i = 0; i < n; i++)
        for (unsigned kind = 0; kind < KINDS; kind++) {
            run->sent_bytes = 0;
            samples[kind * n + i] = timed_step(run, parts[kind]);
        }
    sent = jobs_worst(run, run->sent_bytes); /* the last step was of both */
    for (unsigned kind = 0; kind < KINDS; kind++)
        medians[kind] = median(samples + kind * n, n);
    run->wrong += checked_step(run, 2);
    run->wrong = (uint64_t)jobs_total(run, (double)run->wrong);
    report(run, medians, p99(samples + BOTH * n, n), sent);
    free(samples);
}

/* The members in the job's order: every rank tells its color. */
static void know_members(struct jobs_run *run, int color, struct jobs_group *group)
{
    int *colors = calloc((size_t)run->world.size, sizeof *colors);
    int found = 0;

    group->members = calloc((size_t)group->size, sizeof *group->members);
    if (colors == NULL || group->members == NULL)
        abort();
    library_share(run, &color, colors, sizeof color);
    for (int r = 0; r < run->world.size && found < group->size; r++)
        if (colors[r] == color)
            group->members[found++] = r;
    free(colors);
}

static void make_group(struct jobs_run *run, int color, struct jobs_group *group)
{
    library_split(run, color, group);
    know_members(run, color, group);
}

static void free_group(struct jobs_group *group)
{
    library_join(group);
    free(group->members);
}

void jobs_train(struct jobs_run *run)
{
    const struct jobs_pattern *pattern = run->options.mode->pattern;
    const char *unfit = pattern->unfit != NULL ? pattern->unfit(run) : NULL;
    int rank = run->world.rank, size = run->world.size;

    open_table(run);
    if (unfit != NULL) {
        no_row(run, unfit);
        return;
    }
    if (size % 2 == 0) {
        make_group(run, rank / 2, &run->rows);
        make_group(run, rank % 2, &run->columns);
    }
    pattern->prepare(run);
    measure(run);
    if (size % 2 == 0) {
        free_group(&run->columns);
        free_group(&run->rows);
    }
}

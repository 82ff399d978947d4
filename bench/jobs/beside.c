/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computing beside communication, on the CPU: one thread of each rank computes, another exchanges messages of a size with the
 * neighbours all the while. Alone and beside take turns. The communication begins before the computing on all ranks, and ends after it.
 */
#include "jobs.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PIECE_US 40e3 /* of computing */
#define BATCH_US 1e3  /* of communication, after which the ranks ask one another whether to stop */
#define ROUNDS_MAX 25u

static const struct table_column columns[] = {
    { "operation", "operation", "", 9, -1 },
    { "library", "library", "", 9, -1 },
    { "ranks", "ranks", "", 5, 0 },
    { "bytes", "bytes", "", 10, 0 },
    { "alone_ms", "computing", "alone (ms)", 10, 3 },
    { "beside_ms", "computing", "beside (ms)", 11, 3 },
    { "ratio", "alone /", "beside", 7, 3 },
    { "rate_alone_gbps", "rate", "alone (GB/s)", 12, 3 },
    { "rate_beside_gbps", "rate", "beside (GB/s)", 13, 3 },
    { "lost_ms_per_gb", "lost", "(ms/GB)", 9, 2 },
    { "covered", "covered", "", 7, -1 },
    { "wrong", "#wrong", "", 7, 0 },
    { NULL, NULL, NULL, 0, 0 },
};

/* What the second thread does, and tells. */
struct background {
    struct jobs_run *run;
    struct jobs_group group; /* its own */
    unsigned batch;
    atomic_int stop, running;
    atomic_ullong messages;
    double begin_us, end_us;
};

static void run_batch(struct background *b)
{
    for (unsigned i = 0; i < b->batch; i++) {
        library_now(&b->run->transfers[0]);
        atomic_fetch_add_explicit(&b->messages, 1, memory_order_relaxed);
    }
}

static void *exchange(void *argument)
{
    struct background *b = argument;

    b->begin_us = now_us();
    do {
        run_batch(b);
        atomic_store(&b->running, 1);
    } while (library_least(&b->group, atomic_load(&b->stop)) == 0);
    b->end_us = now_us();
    return NULL;
}

static double compute_us(struct jobs_run *run, double flops)
{
    double begin = now_us();

    jobs_compute(run, flops);
    return now_us() - begin;
}

/* One turn of a size. Times and rates are of the slowest rank. */
struct turn {
    double alone_us, beside_us, rate_alone, rate_beside;
    bool covered;
};

static double bytes_per_message(const struct jobs_run *run)
{
    const struct jobs_transfer *t = &run->transfers[0];
    double parts = t->kind == JOBS_ALLGATHER ? t->group->size - 1 : 1;

    return parts * (double)t->count * sizeof(float);
}

/* Bytes that leave a rank, in GB/s. */
static double communicate_alone(struct background *b)
{
    unsigned batches = (unsigned)(PIECE_US / BATCH_US / 4) + 1;
    double begin;

    jobs_barrier(b->run);
    begin = now_us();
    for (unsigned i = 0; i < batches; i++)
        run_batch(b);
    return batches * b->batch * bytes_per_message(b->run) / jobs_worst(b->run, now_us() - begin) * 1e-3;
}

static void compute_beside(struct background *b, double flops, struct turn *turn)
{
    pthread_t thread;
    unsigned long long before;
    double begin_us, end_us;

    atomic_store(&b->stop, 0);
    atomic_store(&b->running, 0);
    if (pthread_create(&thread, NULL, exchange, b) != 0)
        abort();
    while (atomic_load(&b->running) == 0)
        usleep(100);
    begin_us = now_us();
    before = atomic_load(&b->messages);
    jobs_compute(b->run, flops);
    end_us = now_us();
    turn->rate_beside = (double)(atomic_load(&b->messages) - before) * bytes_per_message(b->run) / (end_us - begin_us) * 1e-3;
    atomic_store(&b->stop, 1);
    pthread_join(thread, NULL);
    turn->beside_us = jobs_worst(b->run, end_us - begin_us);
    turn->rate_beside = -jobs_worst(b->run, -turn->rate_beside);
    turn->covered = jobs_worst(b->run, b->begin_us > begin_us || b->end_us < end_us) == 0;
}

static struct turn take_turn(struct background *b, double flops)
{
    struct turn turn;

    jobs_barrier(b->run);
    turn.alone_us = jobs_worst(b->run, compute_us(b->run, flops));
    turn.rate_alone = communicate_alone(b);
    jobs_barrier(b->run);
    compute_beside(b, flops, &turn);
    return turn;
}

/* Messages that take BATCH_US, the same number on all ranks. */
static unsigned batch_of(struct background *b)
{
    double begin, took_us;

    b->batch = 4;
    run_batch(b);
    jobs_barrier(b->run);
    begin = now_us();
    run_batch(b);
    took_us = jobs_worst(b->run, now_us() - begin) / b->batch;
    return took_us < BATCH_US ? (unsigned)(BATCH_US / took_us) + 1 : 1;
}

static void prepare(struct jobs_run *run, struct background *b, enum jobs_kind kind, size_t bytes)
{
    size_t n = (size_t)run->world.size;
    struct jobs_transfer *t;

    run->transfer_count = 0;
    t = jobs_transfer(run, kind, &b->group, bytes / sizeof(float));
    t->to = (run->world.rank + 1) % run->world.size;
    t->from = t->origin = (run->world.rank + run->world.size - 1) % run->world.size;
    t->source = jobs_alloc(run, bytes);
    t->result = jobs_alloc(run, kind == JOBS_ALLGATHER ? n * bytes : bytes);
    jobs_fill(run, 1);
    jobs_barrier(run);
    b->batch = batch_of(b);
}

static void report(struct jobs_run *run, const char *operation, size_t bytes, const struct turn *turns, unsigned n,
                   uint64_t wrong)
{
    double values[4][ROUNDS_MAX], alone, beside, rate, gigabytes;
    bool covered = true;

    for (unsigned i = 0; i < n; i++) {
        values[0][i] = turns[i].alone_us;
        values[1][i] = turns[i].beside_us;
        values[2][i] = turns[i].rate_alone;
        values[3][i] = turns[i].rate_beside;
        covered = covered && turns[i].covered;
    }
    alone = median(values[0], n);
    beside = median(values[1], n);
    rate = median(values[3], n);
    gigabytes = rate * beside * 1e-6;
    if (run->world.rank == 0)
        table_row(run->table,
                  (struct table_cell[]){ TABLE_TEXT(operation), TABLE_TEXT(library_name), TABLE_NUMBER(run->world.size),
                                         TABLE_NUMBER(bytes), TABLE_NUMBER(alone * 1e-3), TABLE_NUMBER(beside * 1e-3),
                                         TABLE_NUMBER(alone / beside), TABLE_NUMBER(median(values[2], n)), TABLE_NUMBER(rate),
                                         TABLE_NUMBER(gigabytes > 0 ? (beside - alone) * 1e-3 / gigabytes : NAN),
                                         TABLE_TEXT(covered ? "yes" : "no"), TABLE_NUMBER(wrong) },
                  NULL);
}

static void measure(struct jobs_run *run, struct background *b, enum jobs_kind kind, size_t bytes, double flops)
{
    unsigned n = run->options.steps < ROUNDS_MAX ? run->options.steps : ROUNDS_MAX;
    struct turn turns[ROUNDS_MAX];
    uint64_t wrong;

    prepare(run, b, kind, bytes);
    for (unsigned i = 0; i < n; i++)
        turns[i] = take_turn(b, flops);
    wrong = (uint64_t)jobs_total(run, (double)jobs_check(run, 1));
    run->wrong += wrong;
    report(run, kind == JOBS_ALLGATHER ? "allgather" : "sendrecv", bytes, turns, n, wrong);
    free(run->transfers[0].source);
    free(run->transfers[0].result);
}

static void open_table(struct jobs_run *run)
{
    const struct jobs_options *o = &run->options;
    char library[JOBS_TEXT_BYTES], about[640];
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    library_describe(run, library);
    if (run->world.rank != 0)
        return;
    snprintf(
        about, sizeof about,
        "beside: %s\n%s, %d ranks of two threads on %ld CPUs%s; medians of %u turns of %.0f ms\n"
        "rate: bytes that leave each rank; lost: longer computing per GB that left; covered: messages went all the time on all ranks",
        o->mode->what, library, run->world.size, cpus,
        2 * run->world.size > cpus ? " (more threads than CPUs: the messages take CPU from the computing)" : "",
        o->steps < ROUNDS_MAX ? o->steps : ROUNDS_MAX, PIECE_US * 1e-3);
    run->table = table_open("pickle-perf-jobs", about, columns, o->csv_path, o->json_path);
}

/* Why nothing can be measured, or NULL. */
static const char *unfit(const struct jobs_run *run)
{
    if (run->world.size < 2)
        return "needs 2 ranks or more";
    return run->options.cuda ? "computing on a GPU is not part of this mode" : NULL;
}

static void no_row(struct jobs_run *run, const char *reason)
{
    struct table_cell cells[sizeof columns / sizeof columns[0]] = { TABLE_TEXT("-"), TABLE_TEXT(library_name),
                                                                    TABLE_NUMBER(run->world.size) };

    for (int i = 3; i <= 11; i++)
        cells[i] = TABLE_NUMBER(NAN);
    if (run->world.rank == 0)
        table_row(run->table, cells, reason);
}

/* The fastest of a few: whatever else runs only makes it slower. */
static double flops_of_a_piece(struct jobs_run *run)
{
    const double some = 2e7;
    double least_us = INFINITY;

    for (int i = 0; i < 5; i++)
        least_us = fmin(least_us, compute_us(run, some));
    return some * PIECE_US / jobs_worst(run, least_us);
}

void jobs_beside(struct jobs_run *run)
{
    const struct jobs_options *o = &run->options;
    struct background b = { .run = run, .batch = 1 };
    double flops;

    open_table(run);
    if (unfit(run) != NULL) {
        no_row(run, unfit(run));
        return;
    }
    library_split(run, 0, &b.group);
    b.group.members = run->world.members;
    flops = flops_of_a_piece(run);
    for (int k = 0; k < 2; k++)
        for (size_t bytes = o->begin_bytes; bytes <= o->end_bytes; bytes *= o->factor)
            measure(run, &b, k == 0 ? JOBS_SENDRECV : JOBS_ALLGATHER, bytes, flops);
    library_join(&b.group);
}

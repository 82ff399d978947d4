/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computing alone, messages alone, both. Beside: the computing waits in its stream for the first messages, and messages are posted, a few
 * batches ahead of the GPU, until all ranks' computing has ended: so they cover it, and the events behind each batch prove it.
 */
#include "overlap.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define WINDOW 6u /* batches ahead */
#define BATCH_US 250.0
#define ALONE_US 150e3 /* of messages alone */
#define ASK_EVERY 4u   /* batches, after which ranks ask one another whether to end */
#define BATCHES_MAX 65536u

/* Batches of messages, and when they ended: us since `origin`. */
struct batches {
    struct overlap_run *run;
    struct overlap_side *side;
    const struct overlap_case *c;
    unsigned messages; /* of one batch */
    unsigned posted, ended;
    gpu_event_t origin, events[WINDOW];
    double *end_us;
};

static void open_batches(struct batches *b, struct overlap_run *run, struct overlap_side *side, const struct overlap_case *c)
{
    *b = (struct batches){ .run = run, .side = side, .c = c, .messages = 1 };
    b->end_us = malloc(BATCHES_MAX * sizeof *b->end_us);
    if (b->end_us == NULL)
        abort();
    b->origin = gpu_event_new();
    for (unsigned i = 0; i < WINDOW; i++)
        b->events[i] = gpu_event_new();
}

static void close_batches(struct batches *b)
{
    gpu_event_free(b->origin);
    for (unsigned i = 0; i < WINDOW; i++)
        gpu_event_free(b->events[i]);
    free(b->end_us);
}

static void begin_batches(struct batches *b)
{
    b->posted = b->ended = 0;
    overlap_share(b->run, "", NULL, 0);
    gpu_event_record(b->origin, b->run->message_stream);
}

static bool collect(struct batches *b)
{
    gpu_event_t event = b->events[b->ended % WINDOW];
    int code = gpu_event_query(event);

    if (code == GPU_NOT_READY)
        return false;
    if (code != 0)
        overlap_fail("%s: the stream failed: %s", b->side->name, gpu_error(code));
    b->end_us[b->ended++] = gpu_event_elapsed_us(b->origin, event);
    return true;
}

static void post_batch(struct batches *b)
{
    if (b->posted == BATCHES_MAX)
        overlap_fail("too many messages of %zu bytes", b->c->bytes);
    while (b->posted - b->ended == WINDOW && !collect(b))
        usleep(10);
    for (unsigned i = 0; i < b->messages; i++)
        b->side->post(b->run, b->c);
    gpu_event_record(b->events[b->posted++ % WINDOW], b->run->message_stream);
}

static void end_batches(struct batches *b)
{
    overlap_message_wait(b->run, b->side->name);
    while (b->ended < b->posted)
        collect(b);
}

/* GB/s, from the end of one batch to the end of another. */
static double rate_of(const struct batches *b, unsigned first, unsigned last)
{
    if (last <= first)
        return NAN;
    return (double)(last - first) * b->messages * overlap_leaving(b->run, b->c) / (b->end_us[last] - b->end_us[first]) * 1e-3;
}

static double run_batches(struct batches *b, unsigned n)
{
    begin_batches(b);
    for (unsigned i = 0; i < n; i++)
        post_batch(b);
    end_batches(b);
    return rate_of(b, 0, n - 1);
}

/* Messages enough for a batch, the same on all ranks; then their rate. */
static double messages_alone(struct batches *b)
{
    double us;

    run_batches(b, 4);
    us = overlap_worst(b->run, (b->end_us[3] - b->end_us[0]) / 3);
    b->messages = us < BATCH_US ? (unsigned)(BATCH_US / us) + 1 : 1;
    us *= b->messages;
    return run_batches(b, (unsigned)(ALONE_US / us) + 4);
}

/* ---- Computing: some before, then what is measured, between two stamps and two events. ---- */
struct interval {
    gpu_event_t begin, end;
    bool began, ended;
};

static void launch(struct overlap_run *run, struct overlap_work *work, struct interval *interval)
{
    unsigned before = (unsigned)(work->rounds * run->options.warm_ms / run->options.interval_ms) + 1;

    *interval = (struct interval){ .begin = gpu_event_new(), .end = gpu_event_new() };
    for (unsigned i = 0; i < before; i++)
        work->launch(work);
    overlap_stamp(run, 0);
    gpu_event_record(interval->begin, run->compute_stream);
    for (unsigned i = 0; i < work->rounds; i++)
        work->launch(work);
    gpu_event_record(interval->end, run->compute_stream);
    overlap_stamp(run, 1);
}

/* Clock and power are wanted from its begin to its end. */
static bool look(struct interval *interval)
{
    if (!interval->began && gpu_event_query(interval->begin) == 0)
        overlap_sampling(interval->began = true);
    if (interval->began && !interval->ended && gpu_event_query(interval->end) == 0) {
        overlap_sampling(false);
        interval->ended = true;
    }
    return interval->ended;
}

static void end_interval(struct overlap_run *run, struct interval *interval, struct overlap_samples *samples)
{
    int code = gpu_stream_sync(run->compute_stream);

    if (code != 0)
        overlap_fail("computing failed: %s", gpu_error(code));
    look(interval);
    *samples = overlap_samples_take();
}

static void close_interval(struct interval *interval)
{
    gpu_event_free(interval->begin);
    gpu_event_free(interval->end);
}

unsigned overlap_rounds(struct overlap_run *run, struct overlap_work *work, double ms)
{
    double begin;

    work->launch(work);
    gpu_stream_sync(run->compute_stream);
    begin = now_us();
    for (int i = 0; i < 3; i++)
        work->launch(work);
    gpu_stream_sync(run->compute_stream);
    return (unsigned)(ms * 1e3 / overlap_worst(run, (now_us() - begin) / 3)) + 1;
}

void overlap_alone(struct overlap_run *run, struct overlap_work *work, struct overlap_samples *samples)
{
    struct interval interval;

    overlap_share(run, "", NULL, 0);
    launch(run, work, &interval);
    while (!look(&interval))
        usleep(200);
    end_interval(run, &interval, samples);
    close_interval(&interval);
}

/* Did messages go all the time, and how fast? */
static void judge(const struct batches *b, const struct interval *interval, struct overlap_turn *turn)
{
    double begin = gpu_event_elapsed_us(b->origin, interval->begin), end = gpu_event_elapsed_us(b->origin, interval->end);
    double *gaps = malloc((b->ended + 1) * sizeof *gaps), longest = 0;
    unsigned first = 0, last = 0, n = 0;

    if (gaps == NULL)
        abort();
    turn->covered = b->end_us[0] <= begin && b->end_us[b->ended - 1] >= end;
    for (unsigned i = 1; i < b->ended; i++) {
        if (b->end_us[i - 1] < begin || b->end_us[i] > end)
            continue;
        first = n == 0 ? i - 1 : first;
        last = i;
        gaps[n] = b->end_us[i] - b->end_us[i - 1];
        longest = gaps[n] > longest ? gaps[n] : longest;
        n++;
    }
    turn->rate_beside = rate_of(b, first, last);
    turn->longest = n > 0 ? longest / median(gaps, n) : NAN;
    free(gaps);
}

void overlap_turn(struct overlap_run *run, struct overlap_work *work, struct overlap_side *side, const struct overlap_case *c,
                  struct overlap_turn *turn)
{
    struct interval interval;
    struct batches b;
    bool ended = false;

    open_batches(&b, run, side, c);
    overlap_step("messages alone");
    turn->rate_alone = messages_alone(&b);
    overlap_step("messages beside computing");
    begin_batches(&b);
    post_batch(&b);
    gpu_stream_wait(run->compute_stream, b.events[0]);
    launch(run, work, &interval);
    while (!ended) {
        post_batch(&b);
        look(&interval);
        ended = b.posted % ASK_EVERY == 0 && overlap_all(run, interval.ended);
    }
    end_interval(run, &interval, &turn->beside);
    end_batches(&b);
    judge(&b, &interval, turn);
    close_interval(&interval);
    close_batches(&b);
}

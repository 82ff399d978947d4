/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-compare: the same work through several libraries in one run, turn by turn, so that the machine's mood is the same for all. */
#include "driver.h"
#include "timing.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAMPLE_US 20.0 /* what is shorter is sampled in several operations */
#define PROBE_SAMPLES 5u
#define LEAST_SAMPLES 3u
#define SETTLE_ROUNDS 3 /* at most, until a guess is no shorter than */
#define SETTLED 0.8     /* so much of the one before */
#define CHUNK_MAX 1000u
#define WARMUP_US 500.0
#define WAKE_BYTES 8                          /* a time */
#define CHECKED_TWICE_BYTES ((size_t)4 << 20) /* beyond, once must do: making the data takes longer than the operation */

static const char *const op_names[COMPARE_OPS] = { "pingpong",  "allreduce", "allgather", "alltoall", "reduce_scatter",
                                                   "broadcast", "reduce",    "barrier",   "wake" };

const char *driver_op_name(enum compare_op op)
{
    return op_names[op];
}

static unsigned between(double value, unsigned least, unsigned most)
{
    if (!(value > least))
        return least;
    return value < most ? (unsigned)value : most;
}

static bool takes_part(const struct driver_world *world, enum compare_op op)
{
    return world->absent[0] == '\0' && (world->operations >> op & 1) != 0;
}

/*
 * The first operations of a world may take ten times as long as all later ones: pages are touched for the first time. A guess from these makes turns so
 * short that what every turn begins with, cold caches, comes to be its median.
 */
static bool guess(struct driver *driver, struct driver_world *world, const struct compare_order *first, double *us)
{
    static double samples[COMPARE_SAMPLES_MAX];
    struct compare_order order = *first;
    struct compare_answer answer;
    double last, now;

    if (!driver_order(driver, world, &order, &answer, samples))
        return false;
    now = median(samples, answer.samples);
    for (int round = 0; round < SETTLE_ROUNDS; round++) {
        last = now;
        order.samples = between(driver->options.turn_us / last, PROBE_SAMPLES, COMPARE_SAMPLES_MAX);
        if (!driver_order(driver, world, &order, &answer, samples))
            return false;
        now = median(samples, answer.samples);
        if (now >= SETTLED * last)
            break;
    }
    *us = now;
    return true;
}

/* Checks the data, and finds out how many operations make a sample and how many samples a turn. */
static bool prepare(struct driver *driver, struct driver_world *world, struct compare_order *order, struct driver_result *result)
{
    static double samples[COMPARE_SAMPLES_MAX];
    struct compare_order check = { .op = order->op, .check = 1, .bytes = order->bytes };
    struct compare_answer answer;
    double guess_us, sample_us;

    order->chunk = 1;
    order->warmup = 2;
    order->samples = PROBE_SAMPLES;
    if (!driver_order(driver, world, &check, &answer, samples))
        return false;
    result->wrong = answer.wrong;
    memcpy(result->note, answer.note, sizeof result->note);
    if (order->op == COMPARE_WAKE) {
        if (!driver_order(driver, world, order, &answer, samples))
            return false;
        order->samples = LEAST_SAMPLES;
        return true;
    }
    if (!guess(driver, world, order, &guess_us))
        return false;
    order->chunk = between(SAMPLE_US / guess_us + 1, 1, CHUNK_MAX);
    sample_us = guess_us * order->chunk * (order->op == COMPARE_PINGPONG ? 2 : 1);
    order->warmup = between(WARMUP_US / guess_us, 1, CHUNK_MAX);
    order->samples = between(driver->options.turn_us / sample_us, LEAST_SAMPLES, COMPARE_SAMPLES_MAX);
    return true;
}

/* Everything that the turns of one world gave. */
struct heap {
    double *samples;
    unsigned count;
};

static bool take_turn(struct driver *driver, struct driver_world *world, const struct compare_order *order, struct heap *heap,
                      double *turn_us, double *switches)
{
    struct compare_answer answer;
    double *more = realloc(heap->samples, (heap->count + COMPARE_SAMPLES_MAX) * sizeof *more);

    if (more == NULL)
        abort();
    heap->samples = more;
    if (!driver_order(driver, world, order, &answer, heap->samples + heap->count))
        return false;
    *turn_us = median(heap->samples + heap->count, answer.samples);
    heap->count += answer.samples;
    *switches += answer.switches / driver->options.rounds;
    return true;
}

static void sum_up(struct heap *heap, struct driver_result *result)
{
    unsigned n = heap->count;

    result->measured = n > 0;
    if (n > 0) {
        result->median_us = median(heap->samples, n);
        result->p99_us = heap->samples[(n * 99 + 99) / 100 - 1];
        result->min_us = heap->samples[0];
        result->samples = n;
    }
    free(heap->samples);
}

/* Again, after the same buffers have been used many times over. */
static void check_again(struct driver *driver, struct driver_world *world, const struct compare_order *order,
                        struct driver_result *result)
{
    static double samples[COMPARE_SAMPLES_MAX];
    struct compare_order check = { .op = order->op, .check = 1, .bytes = order->bytes };
    struct compare_answer answer;

    if (order->bytes <= CHECKED_TWICE_BYTES && driver_order(driver, world, &check, &answer, samples))
        result->wrong += answer.wrong;
}

static void run_size(struct driver *driver, enum compare_op op, size_t bytes)
{
    struct driver_row row = { .op = op, .bytes = bytes };
    struct compare_order orders[WORLDS_MAX];
    struct heap heaps[WORLDS_MAX] = { { NULL, 0 } };
    bool ready[WORLDS_MAX] = { false };
    int n = driver->world_count;

    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s, %zu bytes", op_names[op], bytes);
    for (int w = 0; w < n; w++) {
        orders[w] = (struct compare_order){ .op = op, .bytes = bytes };
        if (takes_part(&driver->worlds[w], op))
            ready[w] = prepare(driver, &driver->worlds[w], &orders[w], &row.results[w]);
    }
    for (unsigned round = 0; round < driver->options.rounds; round++)
        for (int turn = 0; turn < n; turn++) {
            int w = (int)((unsigned)turn + round) % n;

            ready[w] = ready[w] && take_turn(driver, &driver->worlds[w], &orders[w], &heaps[w], &row.results[w].turn_us[round],
                                             &row.results[w].switches);
        }
    for (int w = 0; w < n; w++) {
        if (ready[w])
            check_again(driver, &driver->worlds[w], &orders[w], &row.results[w]);
        sum_up(&heaps[w], &row.results[w]);
        driver->wrong += row.results[w].wrong;
    }
    driver_report(driver, &row);
}

static void run_all(struct driver *driver)
{
    const struct driver_options *o = &driver->options;

    for (int op = 0; op < COMPARE_OPS; op++) {
        if (!o->operations[op])
            continue;
        for (size_t bytes = o->begin_bytes; bytes <= o->end_bytes; bytes *= o->factor) {
            run_size(driver, (enum compare_op)op, op == COMPARE_BARRIER ? 0 : op == COMPARE_WAKE ? WAKE_BYTES : bytes);
            if (op == COMPARE_BARRIER || op == COMPARE_WAKE || bytes > SIZE_MAX / o->factor)
                break;
        }
    }
}

int main(int argc, char **argv)
{
    static struct driver driver = { .first_row = true };

    driver_parse(argc, argv, &driver.options);
    driver_start(&driver);
    driver_header(&driver);
    run_all(&driver);
    driver_footer(&driver);
    driver_stop(&driver);
    return driver.wrong > 0 || driver.died || driver.worlds[0].absent[0] != '\0';
}

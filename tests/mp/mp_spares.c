/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four processes work, and two wait as spares. Working ones are killed at any moment, rank 0 too, and then a spare: the others
 * shrink all of them with PK_SHRINK_REPLACE and split the workers off. The numbers of those that live stay, a spare has the
 * dead one's, and each sum is that of four. At last there is no spare, and PK_SHRINK_KEEP_RANKS leaves a hole.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define WORKERS 4
#define SPARES 2
#define SIZE (WORKERS + SPARES)
#define COUNT 20000
#define RECOVER_MS 60000

/* Words of the shared memory, of all and of each process. */
enum { STOP };
enum { NUMBER, ROUNDS, RIGHT }; /* 1 + its rank among all; how often it has recovered; right sums since then */

struct life {
    pk_comm_t *all, *working; /* working: NULL on a spare */
    int rank, size;           /* in all */
    float in[COUNT], out[COUNT];
};

static struct life life;

static _Atomic int64_t *own(int word)
{
    return &ranks_shared()->rank_words[ranks_rank()][word];
}

static void must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    report(false, "process %d: %s: %d, %.300s", ranks_rank(), what, (int)result, info.text);
    exit(1);
}

/* PK_OK, or what a death meanwhile makes of it. */
static pk_result_t divide(struct life *l)
{
    pk_result_t result;

    must(pk_comm_rank(l->all, &l->rank), "pk_comm_rank");
    must(pk_comm_size(l->all, &l->size), "pk_comm_size");
    result = pk_comm_split(l->all, l->rank < WORKERS ? 0 : -1, l->rank, &l->working, NULL);
    atomic_store(own(NUMBER), l->rank + 1);
    return result;
}

static pk_result_t recover(struct life *l)
{
    pk_comm_t *fewer;

    atomic_store(own(RIGHT), 0);
    (void)pk_comm_destroy(l->working);
    l->working = NULL;
    must(pk_comm_shrink(l->all, PK_SHRINK_REPLACE | PK_SHRINK_REVOKE, NULL, 0, &fewer, NULL), "pk_comm_shrink");
    (void)pk_comm_destroy(l->all);
    l->all = fewer;
    atomic_fetch_add(own(ROUNDS), 1);
    return divide(l);
}

/* *ended: all workers have been asked to stop. The first element says so, and the second adds up the workers' numbers. */
static pk_result_t work(struct life *l, bool *ended)
{
    pk_result_t result;

    l->in[0] = atomic_load(&ranks_shared()->words[STOP]) != 0;
    for (int i = 1; i < COUNT; i++)
        l->in[i] = (float)((l->rank + 1) * (i % 7));
    result = pk_allreduce(l->in, l->out, COUNT, PK_F32, PK_SUM, l->working, PK_BLOCKING);
    for (int i = 1; i < COUNT && result == PK_OK; i++)
        if (l->out[i] != (float)(WORKERS * (WORKERS + 1) / 2 * (i % 7))) {
            report(false, "process %d: a wrong sum with PK_OK", ranks_rank());
            exit(1);
        }
    if (result == PK_OK)
        atomic_fetch_add(own(RIGHT), 1);
    *ended = result == PK_OK && l->out[0] > 0;
    return result;
}

static pk_result_t idle(struct life *l, bool *ended)
{
    usleep(1000);
    *ended = atomic_load(&ranks_shared()->words[STOP]) != 0;
    return pk_comm_async_error(l->all);
}

/* One of four has died, and nobody is there for it. Then the holes are closed. */
static void keep_numbers(struct life *l)
{
    pk_comm_t *kept, *closed;
    pk_error_info_t info = { .struct_size = sizeof info };
    float sum = 0, one = 1;
    int rank, size;

    must(pk_comm_shrink(l->all, PK_SHRINK_KEEP_RANKS | PK_SHRINK_REVOKE, NULL, 0, &kept, NULL), "pk_comm_shrink");
    must(pk_comm_rank(kept, &rank), "pk_comm_rank");
    must(pk_comm_size(kept, &size), "pk_comm_size");
    report(rank == l->rank && size == WORKERS, "rank %d is rank %d of %d where one is missing", l->rank, rank, size);
    report(pk_allreduce(&one, &sum, 1, PK_F32, PK_SUM, kept, PK_BLOCKING) == PK_ERR_PEER, "rank %d: a collective with a hole",
           rank);
    pk_last_error(&info);
    report(info.peer >= 0 && info.peer < size && info.peer != rank, "rank %d: the hole is rank %d: %.200s", rank, info.peer,
           info.text);
    must(pk_comm_shrink(kept, 0, NULL, 0, &closed, NULL), "pk_comm_shrink");
    must(pk_allreduce(&one, &sum, 1, PK_F32, PK_SUM, closed, PK_BLOCKING), "pk_allreduce");
    report(sum == WORKERS - 1, "rank %d: a sum of %g without the hole", rank, (double)sum);
    (void)pk_comm_destroy(closed);
    (void)pk_comm_destroy(kept);
}

static int live(struct life *l)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_result_t step;
    bool ended = false;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = RECOVER_MS;
    must(pk_comm_init(&l->all, &config), "pk_comm_init");
    step = divide(l);
    while (!ended) {
        if (step == PK_OK)
            step = l->rank < WORKERS ? work(l, &ended) : idle(l, &ended);
        else if (l->size == WORKERS) /* and now one less */
            break;
        else
            step = recover(l);
    }
    if (step != PK_OK)
        keep_numbers(l);
    (void)pk_comm_destroy(l->working);
    (void)pk_comm_destroy(l->all);
    return report_end();
}

/* ---- The driver ---- */

/* Until four that live have recovered so often, and work. */
static bool await(const struct ranks *ranks, const bool *alive, int64_t rounds)
{
    for (int ms = 0; ms < RECOVER_MS; ms++) {
        int working = 0;

        for (int p = 0; p < SIZE; p++) {
            const _Atomic int64_t *words = ranks->shared->rank_words[p];

            working += alive[p] && atomic_load(&words[ROUNDS]) == rounds && atomic_load(&words[RIGHT]) > 0;
        }
        if (working == WORKERS)
            return true;
        usleep(1000);
    }
    return false;
}

static bool have_numbers(const struct ranks *ranks, const int *wanted)
{
    bool right = true;

    for (int p = 0; p < SIZE; p++) {
        const int got = (int)atomic_load(&ranks->shared->rank_words[p][NUMBER]) - 1;

        if (wanted[p] >= 0 && got != wanted[p])
            right = report(false, "process %d has number %d, not %d", p, got, wanted[p]);
    }
    return report(right, "the numbers are right");
}

/* The process with this number is killed; process 5 is the last spare, and then process 4 is. */
static void drive(void)
{
    static const int victims[SPARES] = { 2, 0 };
    static const int numbers[SPARES][SIZE] = { { 0, 1, -1, 3, 4, 2 }, { -1, 1, -1, 3, 0, 2 } };
    static const int start[SIZE] = { 0, 1, 2, 3, 4, 5 };
    bool alive[SIZE] = { true, true, true, true, true, true };
    struct ranks ranks;
    bool well;

    ranks_open(&ranks, SIZE);
    ranks_start_all(&ranks, "life", NULL, NULL);
    well = report(await(&ranks, alive, 0), "four work") && have_numbers(&ranks, start);
    for (int i = 0; i < SPARES && well; i++) {
        alive[victims[i]] = false;
        kill(ranks.pids[victims[i]], SIGKILL);
        well = report(await(&ranks, alive, i + 1), "process %d is killed: four work", victims[i]) &&
               have_numbers(&ranks, numbers[i]);
    }
    kill(ranks.pids[3], SIGKILL); /* there is no spare left */
    report(ranks_wait(&ranks, well ? RECOVER_MS : 1000, -1) == SPARES + 1, "all end well but those that were killed");
    ranks_close(&ranks);
}

int main(void)
{
    if (ranks_role() != NULL)
        return live(&life);
    drive();
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is aborted by another of its threads while it waits inside a collective that one rank never comes to: it is back within 100 ms,
 * and the others that wait hear of it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "turns.h"

#define SIZE 3
#define ROOT 1 /* of turns.c */
#define COUNT 200000
#define WAIT_US 60000
#define ABORT_MS 100
#define LONG_MS 60000

/* Words of the shared memory. */
enum { ABORTED_AT_NS };

/* Who sends to all is missed by all; of whoever collects, another. */
static int absent_in(const struct turn *turn)
{
    return strncmp(turn->name, "broadcast", 9) == 0 || strncmp(turn->name, "scatter", 7) == 0 ? ROOT : SIZE - 1;
}

static int aborter_in(const struct turn *turn)
{
    return absent_in(turn) == ROOT ? 0 : ROOT;
}

struct aborter {
    pk_comm_t *comm;
    pk_result_t result;
    double took_ms;
};

/* A rank that had not come so far would only leave, and nobody who waits for another would be told. */
static void await_inside(const pk_comm_t *comm)
{
    const int64_t until = monotonic_ns() + LONG_MS * (int64_t)1000000;
    char text[4096] = "\n", *operations = text; /* below the first line, which says who the rank is */

    while (monotonic_ns() < until && operations != NULL && operations[1] == '\0') {
        usleep(1000);
        operations = pk_pending_dump(comm, text, sizeof text, NULL) == PK_OK ? strchr(text, '\n') : NULL;
    }
}

static void *abort_soon(void *arg)
{
    struct aborter *a = arg;
    double begun;

    await_inside(a->comm);
    usleep(WAIT_US);
    atomic_store(&ranks_shared()->words[ABORTED_AT_NS], monotonic_ns());
    begun = monotonic_ms();
    a->result = pk_comm_abort(a->comm);
    a->took_ms = monotonic_ms() - begun;
    return NULL;
}

static void wait_inside(const struct turn *turn, pk_comm_t *comm, int rank)
{
    struct turn_loop loop;
    struct aborter aborter = { .comm = comm };
    pthread_t thread;
    bool aborts = rank == aborter_in(turn);
    pk_result_t result;
    double after_ms;

    if (!turn_open(&loop, comm, PK_BLOCKING, rank, SIZE, COUNT))
        return;
    if (aborts && pthread_create(&thread, NULL, abort_soon, &aborter) != 0)
        exit(2);
    result = turn_run(turn, &loop);
    after_ms = (double)(monotonic_ns() - atomic_load(&ranks_shared()->words[ABORTED_AT_NS])) * 1e-6;
    if (aborts) {
        pthread_join(thread, NULL);
        report(result == PK_ERR_ABORTED && after_ms < ABORT_MS * test_slack(),
               "%s: rank %d is back with %d %.1f ms after the abort", turn->name, rank, (int)result, after_ms);
        report(aborter.result == PK_OK && aborter.took_ms < ABORT_MS * test_slack(), "%s: pk_comm_abort took %.1f ms", turn->name,
               aborter.took_ms);
    } else { /* its part may have been done before */
        report(result == PK_ERR_ABORTED || result == PK_OK, "%s: rank %d got %d", turn->name, rank, (int)result);
    }
    turn_close(&loop);
}

static int rank_main(void)
{
    const struct turn *turn = turn_named(ranks_role());
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    int rank = ranks_rank();
    int64_t until = monotonic_ns() + LONG_MS * (int64_t)1000000;
    pk_result_t result;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = LONG_MS;
    if (turn == NULL || !report(pk_comm_init(&comm, &config) == PK_OK, "rank %d: init", rank))
        return 2;
    if (rank != absent_in(turn))
        wait_inside(turn, comm, rank);
    do { /* who was not inside hears of it too */
        result = pk_comm_async_error(comm);
        usleep(1000);
    } while (result == PK_OK && monotonic_ns() < until);
    report(result == PK_ERR_ABORTED, "%s: rank %d knows of the abort: %d", turn->name, rank, (int)result);
    ranks_meet();
    report(pk_comm_destroy(comm) == PK_ERR_ABORTED, "%s: rank %d: destroy", turn->name, rank);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    for (size_t i = 1; i < turns_count; i++) /* p2p is among the conformance cases */
        ranks_drive(&(struct ranks_turn){ .role = turns[i].name, .size = SIZE, .timeout_ms = 30000 }, "%s", turns[i].name);
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One of two ranks gives up in the middle of long transfers, and both use their buffers for something else as soon as their calls are back:
 * nothing is written into them any more, and what had been received with PK_OK was what had been sent. By shared memory, and by sockets
 * with and without threads of the library's. Likewise with memory from pk_mem_alloc, which the root of a reduction reads by itself: what it
 * got with PK_OK is the sum.
 * usage: mp.revoke [TURN]     for slow machines, PICKLE_TEST_MIB: of a buffer; PICKLE_TEST_ABORT_US
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define MIB 48
#define ROUNDS 10
#define LATE_ROUNDS 2 /* of them the last: the sender comes when the receiver has given up */
#define SENT 0x11
#define REUSED 0xa5
#define WHILE_US 20000 /* in which the peer, or a thread, may still be at it */
#define ABORT_US 2000  /* times the round's number, unless PICKLE_TEST_ABORT_US says otherwise: after its first transfer */

/* Words of the shared memory. */
enum { GIVEN_UP };

static size_t buffer_bytes;
static int abort_us;

struct aborter {
    pk_comm_t *comm;
    int delay_us;
    atomic_bool begun;
};

static void *abort_soon(void *arg)
{
    struct aborter *a = arg;

    while (!atomic_load(&a->begun))
        usleep(100);
    usleep((useconds_t)a->delay_us);
    (void)pk_comm_abort(a->comm);
    return NULL;
}

/* Until it fails. Returns how many bytes came wrong. */
static size_t transfer(pk_comm_t *comm, int rank, unsigned char *bytes, struct aborter *aborter, pk_result_t *result)
{
    size_t wrong = 0;

    do {
        memset(bytes, rank == 1 ? SENT : 0, buffer_bytes);
        *result = rank == 1 ? pk_send(bytes, buffer_bytes, PK_UINT8, 0, comm, PK_BLOCKING)
                            : pk_recv(bytes, buffer_bytes, PK_UINT8, 1, comm, PK_BLOCKING);
        if (rank == 0 && *result == PK_OK)
            wrong += bytes_other_than(SENT, bytes, buffer_bytes);
        atomic_store(&aborter->begun, true);
    } while (*result == PK_OK);
    memset(bytes, REUSED, buffer_bytes);
    if (rank == 0)
        atomic_fetch_add(&ranks_shared()->words[GIVEN_UP], 1);
    return wrong;
}

static void round_of(pk_comm_t *parent, int rank, unsigned char *bytes, int number)
{
    struct aborter aborter = { .delay_us = number * abort_us };
    pk_comm_t *comm = NULL;
    pk_result_t result;
    pthread_t thread;
    size_t wrong, touched;
    bool late = number >= ROUNDS - LATE_ROUNDS, aborts = rank == (late ? 0 : number % 2);

    if (!report(pk_comm_split(parent, 0, rank, &comm, NULL) == PK_OK, "rank %d: split", rank))
        exit(2);
    aborter.comm = comm;
    atomic_init(&aborter.begun, late);
    while (late && rank == 1 && atomic_load(&ranks_shared()->words[GIVEN_UP]) <= number)
        usleep(100);
    if (aborts && pthread_create(&thread, NULL, abort_soon, &aborter) != 0)
        exit(2);
    wrong = transfer(comm, rank, bytes, &aborter, &result);
    usleep(WHILE_US);
    if (aborts)
        pthread_join(thread, NULL);
    (void)pk_comm_destroy(comm);
    touched = bytes_other_than(REUSED, bytes, buffer_bytes);
    report(result == PK_ERR_ABORTED && wrong == 0 && touched == 0,
           "round %d, rank %d%s: result %d, %zu bytes came wrong, %zu were touched", number, rank, aborts ? " (aborts)" : "",
           (int)result, wrong, touched);
    ranks_meet();
}

#define FLOATS (2u << 20)
#define SUMS 12
#define SUM_US 150 /* times the round's number */

static void fill(float *at, float value)
{
    for (size_t i = 0; i < FLOATS; i++)
        at[i] = value;
}

/* Until it fails. Returns how many sums were wrong. */
static size_t reduce(pk_comm_t *comm, int rank, float *in, float *out, struct aborter *aborter, pk_result_t *result)
{
    size_t wrong = 0;

    fill(in, 1);
    do {
        *result = pk_reduce(in, out, FLOATS, PK_F32, PK_SUM, 1, comm, PK_BLOCKING);
        for (size_t i = 0; rank == 1 && *result == PK_OK && i < FLOATS; i++)
            wrong += out[i] != 2;
        atomic_store(&aborter->begun, true);
    } while (*result == PK_OK);
    fill(in, REUSED);
    return wrong;
}

/* Rank 0 gives up, rank 1 is the root. */
static void sum_round(pk_comm_t *parent, int rank, int number)
{
    struct aborter aborter = { .delay_us = number * SUM_US };
    pk_comm_t *comm = NULL;
    void *in = NULL, *out = NULL;
    pk_result_t result;
    pthread_t thread;
    size_t wrong;

    if (!report(pk_comm_split(parent, 0, rank, &comm, NULL) == PK_OK &&
                    pk_mem_alloc(comm, FLOATS * sizeof(float), &in) == PK_OK &&
                    pk_mem_alloc(comm, FLOATS * sizeof(float), &out) == PK_OK,
                "rank %d: memory", rank))
        exit(2);
    aborter.comm = comm;
    atomic_init(&aborter.begun, false);
    if (rank == 0 && pthread_create(&thread, NULL, abort_soon, &aborter) != 0)
        exit(2);
    wrong = reduce(comm, rank, in, out, &aborter, &result);
    usleep(WHILE_US / 4);
    if (rank == 0)
        pthread_join(thread, NULL);
    (void)pk_comm_destroy(comm);
    report(result == PK_ERR_ABORTED && wrong == 0, "sum %d, rank %d: result %d, %zu wrong", number, rank, (int)result, wrong);
    ranks_meet();
}

static int rank_main(void)
{
    int rank = ranks_rank();
    const char *mib = getenv("PICKLE_TEST_MIB"), *us = getenv("PICKLE_TEST_ABORT_US");
    unsigned char *bytes;
    pk_comm_t *comm = NULL;

    buffer_bytes = (mib != NULL ? strtoul(mib, NULL, 10) : MIB) << 20;
    abort_us = us != NULL ? atoi(us) : ABORT_US;
    bytes = malloc(buffer_bytes);
    if (bytes == NULL || !report(pk_comm_init(&comm, NULL) == PK_OK, "rank %d: init", rank))
        return 2;
    for (int i = 0; i < ROUNDS; i++)
        round_of(comm, rank, bytes, i);
    for (int i = 0; i < SUMS && getenv("PICKLE_TEST_HOSTS") == NULL; i++)
        sum_round(comm, rank, i);
    report(pk_comm_destroy(comm) == PK_OK, "rank %d: destroy", rank);
    free(bytes);
    return report_end();
}

static void turn(const char *name, const char *wanted)
{
    if (wanted == NULL || strcmp(name, wanted) == 0)
        ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2 }, "%s", name);
}

int main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : NULL;

    if (ranks_role() != NULL)
        return rank_main();
    setenv("PK_LOG", "error", 1);
    turn("shared memory", wanted);
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    turn("between hosts", wanted); /* sockets, where there is no RDMA device */
    setenv("PK_SOCKETS", "4/2", 1);
    setenv("PK_CHUNK_BYTES", "4194304", 1);
    turn("sockets and threads", wanted);
    return report_end();
}

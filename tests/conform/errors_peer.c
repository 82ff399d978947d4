/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when ranks disagree, stay away or give up. Each case spoils a communicator of its own. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS 1000
#define LONG_MS 12000
#define USUAL_SLACK 20
#define ABORT_AFTER_US 150000
#define FLOATS 300000

static int64_t since_ms(int64_t begin_ns)
{
    return (monotonic_ns() - begin_ns) / 1000000;
}

static pk_error_info_t last_error(void)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    return info;
}

/* The ranks meet before the communicator goes, so that an early end does not look like the failure under test. */
static void meet(struct rank *r)
{
    char token = 0;
    char tokens[256];

    share(r, &token, tokens, 1);
}

static void within(struct rank *r, int64_t took_ms, int64_t least_ms, int64_t most_ms, const char *what)
{
    if (took_ms < least_ms || took_ms > (int64_t)((double)most_ms * test_slack()))
        fail(r, "%s took %lld ms, not %lld to %lld", what, (long long)took_ms, (long long)least_ms, (long long)most_ms);
}

static void size_mismatch(struct rank *r, size_t count)
{
    pk_comm_t *comm = throwaway(r, LONG_MS);
    float *buffer = calloc(count, sizeof *buffer);
    char ours[32];
    char theirs[32];
    pk_error_info_t info;

    if (comm == NULL || buffer == NULL)
        return;
    snprintf(theirs, sizeof theirs, "%zu", count * sizeof *buffer);
    snprintf(ours, sizeof ours, "%zu", (count - 1) * sizeof *buffer);
    if (r->rank == 0) {
        pk_result_t result = pk_send(buffer, count, PK_F32, 1, comm, PK_BLOCKING);

        /* A small message may have left before its receive was known. */
        if (result != PK_ERR_MISMATCH && (result != PK_OK || count > 100000))
            fail(r, "the send of %zu elements returned %d", count, (int)result);
    } else if (r->rank == 1) {
        expect(r, pk_recv(buffer, count - 1, PK_F32, 0, comm, PK_BLOCKING), PK_ERR_MISMATCH, "a receive of another size");
        info = last_error();
        if (info.peer != 0 || strstr(info.text, ours) == NULL || strstr(info.text, theirs) == NULL)
            fail(r, "the error names peer %d and says '%.300s'", info.peer, info.text);
    }
    meet(r);
    pk_comm_destroy(comm);
    free(buffer);
}

static void mismatch_small(struct rank *r)
{
    size_mismatch(r, 100);
}

/* Between hosts it may move before its receive is known. */
static void mismatch_middle(struct rank *r)
{
    size_mismatch(r, 30000);
}

static void mismatch_large(struct rank *r)
{
    size_mismatch(r, FLOATS);
}

/* Rank 0 calls one thing, the others another. */
static void collective_mismatch(struct rank *r, bool other_operation, const char *first, const char *second)
{
    pk_comm_t *comm = throwaway(r, LONG_MS);
    float source[128] = { 0 };
    float *result = calloc(128 * (size_t)r->size, sizeof *result);
    int64_t begin = monotonic_ns();
    pk_result_t outcome;
    int mismatched;
    int all[256];

    if (comm == NULL || result == NULL)
        return;
    if (r->rank == 0 && other_operation)
        outcome = pk_allgather(source, result, 100, PK_F32, comm, PK_BLOCKING);
    else
        outcome = pk_allreduce(source, result, r->rank == 0 ? 101 : 100, PK_F32, PK_SUM, comm, PK_BLOCKING);
    within(r, since_ms(begin), 0, 3000, "noticing that the ranks disagree");
    if (outcome == PK_OK)
        fail(r, "the operation succeeded although the ranks disagreed");
    if (outcome == PK_ERR_MISMATCH && (strstr(last_error().text, first) == NULL || strstr(last_error().text, second) == NULL))
        fail(r, "the error does not name both sides: '%.300s'", last_error().text);
    mismatched = outcome == PK_ERR_MISMATCH;
    share(r, &mismatched, all, sizeof mismatched);
    for (int i = 1; i < r->size; i++)
        all[0] += all[i];
    if (all[0] == 0)
        fail(r, "no rank returned PK_ERR_MISMATCH, this one %d: '%.300s'", (int)outcome, last_error().text);
    pk_comm_destroy(comm);
    free(result);
}

static void mismatch_operation(struct rank *r)
{
    collective_mismatch(r, true, "allgather", "allreduce");
}

static void mismatch_count(struct rank *r)
{
    collective_mismatch(r, false, "count", "rank");
}

/* One whose deadline is short, and which a busy machine can make anyway: init has that deadline, too. At least a second (more where
 * PICKLE_TEST_SLACK is), else twenty times what an init takes. */
static pk_comm_t *impatient(struct rank *r, int64_t *timeout_ms)
{
    int64_t begin = monotonic_ns(), own, all[256];
    pk_comm_t *comm = throwaway(r, LONG_MS);

    *timeout_ms = test_slack() > USUAL_SLACK ? (int64_t)(TIMEOUT_MS * test_slack() / USUAL_SLACK) : TIMEOUT_MS;
    if (comm == NULL)
        return NULL;
    own = since_ms(begin);
    share(r, &own, all, sizeof own);
    pk_comm_destroy(comm);
    for (int i = 0; i < r->size; i++)
        if (20 * all[i] > *timeout_ms)
            *timeout_ms = 20 * all[i];
    return throwaway(r, (uint64_t)*timeout_ms);
}

static void timeout_receive(struct rank *r)
{
    int64_t timeout_ms, begin;
    pk_comm_t *comm = impatient(r, &timeout_ms);
    float buffer[4];

    if (comm == NULL)
        return;
    begin = monotonic_ns();
    if (r->rank == 0) {
        expect(r, pk_recv(buffer, 4, PK_F32, 1, comm, PK_BLOCKING), PK_ERR_TIMEOUT, "a receive that nobody serves");
        within(r, since_ms(begin), timeout_ms - 100, timeout_ms + 800, "the timeout");
        if (last_error().peer != 1)
            fail(r, "the error names rank %d instead of 1: '%.300s'", last_error().peer, last_error().text);
        expect(r, pk_comm_async_error(comm), PK_ERR_TIMEOUT, "pk_comm_async_error of a poisoned communicator");
        begin = monotonic_ns();
        expect(r, pk_send(buffer, 4, PK_F32, 1, comm, PK_BLOCKING), PK_ERR_TIMEOUT, "an operation on a poisoned communicator");
        within(r, since_ms(begin), 0, 100, "an operation on a poisoned communicator");
    }
    meet(r);
    if (r->rank == 0)
        expect(r, pk_comm_destroy(comm), PK_ERR_TIMEOUT, "pk_comm_destroy of a poisoned communicator");
    else
        pk_comm_destroy(comm);
}

static void timeout_stream(struct rank *r)
{
    int64_t timeout_ms, begin;
    pk_comm_t *comm = impatient(r, &timeout_ms);
    pk_stream_t stream;
    float buffer[4];

    if (comm == NULL || !expect(r, pk_stream_create(&stream), PK_OK, "pk_stream_create"))
        return;
    begin = monotonic_ns();
    if (r->rank == 0) {
        expect(r, pk_recv(buffer, 4, PK_F32, 1, comm, stream), PK_OK, "posting a receive in a host stream");
        within(r, since_ms(begin), 0, 100, "posting");
        expect(r, pk_stream_query(stream), PK_IN_PROGRESS, "pk_stream_query while a receive waits");
        expect(r, pk_stream_synchronize(stream), PK_ERR_TIMEOUT, "pk_stream_synchronize");
        within(r, since_ms(begin), timeout_ms - 100, timeout_ms + 800, "the timeout");
    }
    expect(r, pk_stream_destroy(stream), PK_OK, "pk_stream_destroy after the error was told");
    meet(r);
    pk_comm_destroy(comm);
}

static void timeout_collective(struct rank *r)
{
    int64_t timeout_ms;
    pk_comm_t *comm = impatient(r, &timeout_ms);
    int missing = r->size - 1;
    float source[10] = { 0 };
    float result[10];

    if (comm == NULL)
        return;
    meet(r); /* else one that comes late is missing too */
    if (r->rank != missing) {
        pk_result_t outcome = pk_allreduce(source, result, 10, PK_F32, PK_SUM, comm, PK_BLOCKING);

        expect(r, outcome, PK_ERR_TIMEOUT, "an allreduce without the last rank");
        if (last_error().peer != missing)
            fail(r, "the error names rank %d instead of %d: '%.300s'", last_error().peer, missing, last_error().text);
    }
    meet(r);
    pk_comm_destroy(comm);
}

struct aborter {
    pk_comm_t *comm;
    int64_t began_ns, took_ms;
    pk_result_t result;
};

static void *abort_soon(void *arg)
{
    struct aborter *a = arg;

    usleep(ABORT_AFTER_US);
    a->began_ns = monotonic_ns();
    a->result = pk_comm_abort(a->comm);
    a->took_ms = since_ms(a->began_ns);
    return NULL;
}

/* Every rank waits in `block`; rank 0 is aborted by a second thread. */
static void abort_while(struct rank *r, pk_result_t (*block)(struct rank *r, pk_comm_t *comm),
                        bool (*waits)(const struct rank *r))
{
    pk_comm_t *comm = throwaway(r, LONG_MS);
    struct aborter aborter = { .comm = comm };
    pthread_t thread;
    int64_t returned_ns, began[256];

    if (comm == NULL)
        return;
    if (r->rank == 0 && pthread_create(&thread, NULL, abort_soon, &aborter) != 0)
        abort();
    if (waits(r))
        expect(r, block(r, comm), PK_ERR_ABORTED, "the call that was aborted");
    returned_ns = monotonic_ns();
    if (r->rank == 0) {
        pthread_join(thread, NULL);
        expect(r, aborter.result, PK_OK, "pk_comm_abort");
        within(r, aborter.took_ms, 0, 100, "pk_comm_abort");
    }
    share(r, &aborter.began_ns, began, sizeof began[0]);
    if (waits(r))
        within(r, (returned_ns - began[0]) / 1000000, 0, r->rank == 0 ? 100 : 1000, "return from the aborted call");
    if (waits(r))
        expect(r, pk_comm_async_error(comm), PK_ERR_ABORTED, "pk_comm_async_error after the abort");
    pk_comm_destroy(comm);
}

static bool all_wait(const struct rank *r)
{
    (void)r;
    return true;
}

static bool all_but_last_wait(const struct rank *r)
{
    return r->rank != r->size - 1;
}

static pk_result_t block_in_receive(struct rank *r, pk_comm_t *comm)
{
    float buffer[16];

    return pk_recv(buffer, 16, PK_F32, (r->rank + 1) % r->size, comm, PK_BLOCKING);
}

static pk_result_t block_in_large_send(struct rank *r, pk_comm_t *comm)
{
    float *buffer = calloc(FLOATS, sizeof *buffer);
    pk_result_t result = pk_send(buffer, FLOATS, PK_F32, (r->rank + 1) % r->size, comm, PK_BLOCKING);

    free(buffer);
    return result;
}

static pk_result_t block_in_stream(struct rank *r, pk_comm_t *comm)
{
    float buffer[16];
    pk_stream_t stream;
    pk_result_t result = pk_stream_create(&stream);

    if (result != PK_OK)
        return result;
    pk_recv(buffer, 16, PK_F32, (r->rank + 1) % r->size, comm, stream);
    result = pk_stream_synchronize(stream);
    pk_stream_destroy(stream);
    return result;
}

static pk_result_t block_in_allreduce(struct rank *r, pk_comm_t *comm)
{
    float *buffer = calloc(FLOATS, sizeof *buffer);
    pk_result_t result = pk_allreduce(buffer, buffer, FLOATS, PK_F32, PK_SUM, comm, PK_BLOCKING);

    (void)r;
    free(buffer);
    return result;
}

static void abort_receive(struct rank *r)
{
    abort_while(r, block_in_receive, all_wait);
}

static void abort_send(struct rank *r)
{
    abort_while(r, block_in_large_send, all_wait);
}

static void abort_stream(struct rank *r)
{
    abort_while(r, block_in_stream, all_wait);
}

static void abort_collective(struct rank *r)
{
    abort_while(r, block_in_allreduce, all_but_last_wait);
}

void run_peer_errors(struct rank *rank)
{
    static const struct special cases[] = {
        { "peers: other size, small", mismatch_small },
        { "peers: other size, large", mismatch_large },
        { "peers: other size, middle", mismatch_middle },
        { "peers: other operation", mismatch_operation },
        { "peers: other count", mismatch_count },
        { "peers: timeout of a receive", timeout_receive },
        { "peers: timeout in a host stream", timeout_stream },
        { "peers: timeout of a collective", timeout_collective },
        { "peers: abort in a receive", abort_receive },
        { "peers: abort in a large send", abort_send },
        { "peers: abort in a host stream", abort_stream },
        { "peers: abort in a collective", abort_collective },
    };

    if (rank->size > 1)
        run_special(rank, cases, sizeof cases / sizeof cases[0]);
}

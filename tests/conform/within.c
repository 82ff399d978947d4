/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines of single calls (PK_WITHIN). The communicator's are minutes, or shorter than a call's. */
#include "conform.h"

#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS 120000
#define CALL_MS 300
#define LONG_MS 60000
#define SHORT_MS 6000 /* of a communicator: its init has to be through */

static void meet(struct rank *r)
{
    char token = 0, tokens[RANKS_MAX];

    share(r, &token, tokens, 1);
}

/* Not before its time, and by its own deadline, not by the communicator's. */
static void expect_timeout(struct rank *r, pk_result_t got, int64_t begin_ns, int missing, const char *what)
{
    const int64_t ms = (monotonic_ns() - begin_ns) / 1000000;
    pk_error_info_t info = { .struct_size = sizeof info };

    if (!expect(r, got, PK_ERR_TIMEOUT, what))
        return;
    pk_last_error(&info);
    if (ms < CALL_MS - 1 || ms > TIMEOUT_MS / 2)
        fail(r, "%s: ended after %d ms", what, (int)ms);
    if (info.peer != missing)
        fail(r, "%s: the error names rank %d instead of %d: %.200s", what, info.peer, missing, info.text);
}

static void receive(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS);
    const int64_t begin = monotonic_ns();
    int x;

    if (comm == NULL)
        return;
    if (r->rank == 0) {
        expect_timeout(r, pk_recv(&x, 1, PK_INT32, 1, comm, PK_WITHIN(PK_BLOCKING, CALL_MS)), begin, 1,
                       "a receive that nobody serves");
        expect(r, pk_comm_async_error(comm), PK_ERR_TIMEOUT, "pk_comm_async_error");
    }
    meet(r);
    (void)pk_comm_destroy(comm);
}

static void in_stream(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS);
    const int64_t begin = monotonic_ns();
    pk_stream_t stream;
    int x;

    if (comm == NULL || !expect(r, pk_stream_create(&stream), PK_OK, "pk_stream_create"))
        return;
    if (r->rank == 0) {
        expect(r, pk_recv(&x, 1, PK_INT32, 1, comm, PK_WITHIN(stream, CALL_MS)), PK_OK, "pk_recv in a host stream");
        expect(r, pk_stream_synchronize(PK_WITHIN(stream, CALL_MS)), PK_ERR_ARG, "pk_stream_synchronize with a deadline");
        expect_timeout(r, pk_stream_synchronize(stream), begin, 1, "a receive in a host stream");
    }
    expect(r, pk_stream_destroy(stream), PK_OK, "pk_stream_destroy");
    meet(r);
    (void)pk_comm_destroy(comm);
}

/* Of a group the operation that has a deadline ends it. */
static void in_group(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS);
    const int64_t begin = monotonic_ns();
    int x, y = 0;

    if (comm == NULL)
        return;
    if (r->rank == 0) {
        pk_group_start();
        expect(r, pk_send(&y, 1, PK_INT32, 1, comm, PK_BLOCKING), PK_OK, "pk_send");
        expect(r, pk_recv(&x, 1, PK_INT32, 1, comm, PK_WITHIN(PK_BLOCKING, CALL_MS)), PK_OK, "pk_recv");
        expect_timeout(r, pk_group_end(), begin, 1, "a group");
    }
    meet(r);
    (void)pk_comm_destroy(comm);
}

static void collective(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, TIMEOUT_MS);
    const int missing = r->size - 1;
    int one = 1, sum = 0;
    int64_t begin;

    if (comm == NULL)
        return;
    expect(r, pk_allreduce(&one, &sum, 1, PK_INT32, PK_SUM, comm, PK_WITHIN(PK_BLOCKING, LONG_MS)), PK_OK, "pk_allreduce of all");
    if (r->ok && sum != r->size)
        fail(r, "a sum of %d, not %d", sum, r->size);
    meet(r);
    begin = monotonic_ns();
    if (r->rank == 0)
        expect_timeout(r, pk_allreduce(&one, &sum, 1, PK_INT32, PK_SUM, comm, PK_WITHIN(PK_BLOCKING, CALL_MS)), begin, missing,
                       "an allreduce without the last rank");
    else if (r->rank != missing)
        expect(r, pk_allreduce(&one, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING), PK_ERR_TIMEOUT, "an allreduce beside it");
    meet(r);
    (void)pk_comm_destroy(comm);
}

/* Longer than the communicator's. */
static void longer(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, SHORT_MS);
    int x = 0;

    if (comm == NULL)
        return;
    if (r->rank == 0)
        expect(r, pk_recv(&x, 1, PK_INT32, 1, comm, PK_WITHIN(PK_BLOCKING, LONG_MS)), PK_OK, "a receive that is served late");
    if (r->rank == 1) {
        usleep((SHORT_MS + 1000) * 1000);
        x = 7;
        expect(r, pk_send(&x, 1, PK_INT32, 0, comm, PK_BLOCKING), PK_OK, "pk_send");
    }
    meet(r);
    if (r->ok && r->rank < 2 && x != 7)
        fail(r, "received %d", x);
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

void run_within(struct rank *rank)
{
    static const struct special cases[] = {
        /* more than one rank */
        { "within: a receive", receive },
        { "within: a host stream", in_stream },
        { "within: a group", in_group },
        { "within: a collective", collective },
        { "within: longer than the communicator's", longer },
    };

    if (rank->size > 1)
        run_special(rank, cases, sizeof cases / sizeof cases[0]);
}

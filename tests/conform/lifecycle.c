/* SPDX-License-Identifier: Apache-2.0 */
/* How communicators begin and end. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS 12000
#define LONG_MS 60000 /* longer than anything here waits */
#define FLOATS 20000

bool new_id(struct rank *r, pk_unique_id_t *id)
{
    pk_unique_id_t own = { { 0 } };
    pk_unique_id_t *all = calloc((size_t)r->size, sizeof *all);

    if (all == NULL)
        abort();
    if (r->rank == 0)
        expect(r, pk_get_unique_id(&own), PK_OK, "pk_get_unique_id");
    share(r, &own, all, sizeof own);
    *id = all[0];
    free(all);
    return r->ok;
}

pk_comm_t *throwaway(struct rank *r, uint64_t timeout_ms)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = timeout_ms;
    if (!new_id(r, &id) || !expect(r, pk_comm_init_rank(&comm, r->size, r->rank, &id, &config), PK_OK, "pk_comm_init_rank"))
        return NULL;
    return comm;
}

static void meet(struct rank *r)
{
    char token = 0;
    char tokens[256];

    share(r, &token, tokens, 1);
}

/* One allgather of rank numbers. */
static void use(struct rank *r, pk_comm_t *comm, int size)
{
    int32_t own = 0;
    int32_t all[256];

    expect(r, pk_comm_rank(comm, &own), PK_OK, "pk_comm_rank");
    expect(r, pk_allgather(&own, all, 1, PK_INT32, comm, PK_BLOCKING), PK_OK, "pk_allgather");
    for (int i = 0; r->ok && i < size; i++)
        if (all[i] != i)
            fail(r, "rank %d's number arrived as %d", i, all[i]);
}

static void alone(struct rank *r)
{
    float buffer[100];
    float result[100] = { 0 };
    pk_unique_id_t id;
    pk_comm_t *comm;

    for (int i = 0; i < 100; i++)
        buffer[i] = (float)i;
    expect(r, pk_get_unique_id(&id), PK_OK, "pk_get_unique_id");
    if (!r->ok || !expect(r, pk_comm_init_rank(&comm, 1, 0, &id, NULL), PK_OK, "pk_comm_init_rank(size 1, config NULL)"))
        return;
    use(r, comm, 1);
    expect(r, pk_allreduce(buffer, result, 100, PK_F32, PK_SUM, comm, PK_BLOCKING), PK_OK, "pk_allreduce of one rank");
    if (memcmp(buffer, result, sizeof buffer) != 0)
        fail(r, "the sum over one rank is something else");
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

/* Polls until the nonblocking init has ended. */
static pk_result_t poll_init(pk_comm_t *comm)
{
    int64_t deadline = monotonic_ns() + TIMEOUT_MS * (int64_t)1000000;
    pk_result_t result = PK_IN_PROGRESS;

    while (result == PK_IN_PROGRESS && monotonic_ns() < deadline) {
        result = pk_comm_async_error(comm);
        usleep(1000);
    }
    return result;
}

static void nonblocking(struct rank *r)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;
    int64_t begin;

    config.device = PK_DEVICE_HOST;
    config.nonblocking = 1;
    config.timeout_ms = TIMEOUT_MS;
    if (!new_id(r, &id))
        return;
    if (r->rank == r->size - 1)
        usleep(300000);
    begin = monotonic_ns();
    if (!expect(r, pk_comm_init_rank(&comm, r->size, r->rank, &id, &config), PK_IN_PROGRESS, "nonblocking init"))
        return;
    if (monotonic_ns() - begin > 200e6 * test_slack())
        fail(r, "nonblocking init took %lld ms", (long long)(monotonic_ns() - begin) / 1000000);
    if (expect(r, poll_init(comm), PK_OK, "the end of nonblocking init"))
        use(r, comm, r->size);
    meet(r);
    expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
}

/* The last rank never comes. The others give up, all of them or (`one`) the last of them, of whom the rest hear. */
static void abort_init_of(struct rank *r, bool one)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;
    int64_t begin;

    config.device = PK_DEVICE_HOST;
    config.nonblocking = 1;
    config.timeout_ms = LONG_MS;
    if (!new_id(r, &id))
        return;
    if (r->rank != r->size - 1)
        expect(r, pk_comm_init_rank(&comm, r->size, r->rank, &id, &config), PK_IN_PROGRESS, "nonblocking init");
    usleep(100000);
    if (comm != NULL)
        expect(r, pk_comm_async_error(comm), PK_IN_PROGRESS, "pk_comm_async_error while a rank is missing");
    meet(r); /* an abort reaches the other ranks: none before all have looked */
    if (comm == NULL)
        return;
    begin = monotonic_ns();
    if (!one || r->rank == r->size - 2)
        expect(r, pk_comm_abort(comm), PK_OK, "pk_comm_abort of an init");
    if (monotonic_ns() - begin > 100e6 * test_slack())
        fail(r, "pk_comm_abort of an init took %lld ms", (long long)(monotonic_ns() - begin) / 1000000);
    expect(r, poll_init(comm), PK_ERR_ABORTED, "pk_comm_async_error after the abort");
    pk_comm_destroy(comm);
}

static void abort_init(struct rank *r)
{
    abort_init_of(r, false);
}

/* Wherever the others are by then, nobody waits for the deadline. A rank that comes when rank 0 has left cannot hear why, and one that is
 * through may hear of it only with its first operation. */
static void abort_init_anywhere(struct rank *r)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.nonblocking = 1;
    config.timeout_ms = LONG_MS;
    for (int turn = 0; turn < 12 && r->ok; turn++) {
        pk_result_t result;
        pk_comm_t *comm = NULL;
        pk_unique_id_t id;

        if (!new_id(r, &id) ||
            !expect(r, pk_comm_init_rank(&comm, r->size, r->rank, &id, &config), PK_IN_PROGRESS, "nonblocking init"))
            return;
        usleep((useconds_t)(turn * 300));
        if (r->rank == turn % r->size)
            expect(r, pk_comm_abort(comm), PK_OK, "pk_comm_abort of an init");
        result = poll_init(comm);
        if (result != PK_ERR_ABORTED && (r->rank == turn % r->size || (result != PK_ERR_PEER && result != PK_OK)))
            fail(r, "turn %d: the init that rank %d aborted ended with %d", turn, turn % r->size, (int)result);
        meet(r);
        pk_comm_destroy(comm);
    }
}

static void abort_init_elsewhere(struct rank *r)
{
    abort_init_of(r, true);
}

/* Two communicators in opposite order, in streams of their own. */
static void opposite_order(struct rank *r)
{
    pk_comm_t *comms[2];
    pk_stream_t streams[2];
    int32_t own[2][16];
    int32_t sum[2][16];

    for (int c = 0; c < 2; c++) {
        comms[c] = throwaway(r, TIMEOUT_MS);
        expect(r, pk_stream_create(&streams[c]), PK_OK, "pk_stream_create");
        for (int i = 0; i < 16; i++)
            own[c][i] = (r->rank + 1) * (c + 1);
    }
    for (int turn = 0; r->ok && turn < 20; turn++) {
        int first = r->rank % 2;

        for (int k = 0; k < 2; k++) {
            int c = (first + k) % 2;

            expect(r, pk_allreduce(own[c], sum[c], 16, PK_INT32, PK_SUM, comms[c], streams[c]), PK_OK,
                   "pk_allreduce in a host stream");
        }
        expect(r, pk_stream_synchronize(streams[1 - first]), PK_OK, "pk_stream_synchronize");
        expect(r, pk_stream_synchronize(streams[first]), PK_OK, "pk_stream_synchronize");
        for (int c = 0; c < 2; c++)
            if (sum[c][15] != r->size * (r->size + 1) / 2 * (c + 1))
                fail(r, "turn %d: the sum of communicator %d is %d", turn, c, sum[c][15]);
    }
    meet(r);
    for (int c = 0; c < 2; c++) {
        expect(r, pk_stream_destroy(streams[c]), PK_OK, "pk_stream_destroy");
        expect(r, pk_comm_destroy(comms[c]), PK_OK, "pk_comm_destroy");
    }
}

/* What was sent arrives although the sender's communicator has gone. */
static void early_leave(struct rank *r)
{
    for (int turn = 0; r->ok && turn < 5; turn++) {
        pk_comm_t *comm = throwaway(r, TIMEOUT_MS);
        float buffer[8] = { 1, 2, 3, 4, 5, 6, 7, (float)turn };

        if (comm == NULL)
            return;
        if (r->rank == 0) {
            expect(r, pk_send(buffer, 8, PK_F32, 1, comm, PK_BLOCKING), PK_OK, "pk_send");
        } else if (r->rank == 1) {
            memset(buffer, 0, sizeof buffer);
            usleep(30000);
            expect(r, pk_recv(buffer, 8, PK_F32, 0, comm, PK_BLOCKING), PK_OK, "a receive after the sender has left");
            if (buffer[0] != 1 || buffer[7] != (float)turn)
                fail(r, "what the sender left is wrong");
        }
        expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
        meet(r);
    }
}

/* Nobody waits for the others after a collective; none of them may take an orderly end for a death. */
static void early_leave_collective(struct rank *r)
{
    float *buffer = calloc(FLOATS, sizeof *buffer);

    for (int turn = 0; r->ok && turn < 8; turn++) {
        pk_comm_t *comm = throwaway(r, TIMEOUT_MS);

        if (comm == NULL || buffer == NULL)
            break;
        for (int i = 0; i < FLOATS; i++)
            buffer[i] = 1;
        expect(r, pk_allreduce(buffer, buffer, FLOATS, PK_F32, PK_SUM, comm, PK_BLOCKING), PK_OK, "pk_allreduce");
        expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
        if (buffer[FLOATS - 1] != (float)r->size)
            fail(r, "turn %d: the sum is %g", turn, buffer[FLOATS - 1]);
    }
    free(buffer);
}

/* Rank numbers of the parent, as the group's ranks hold them in order. */
static void check_members(struct rank *r, pk_comm_t *comm, const int *members, int size)
{
    int32_t own = r->rank, all[256] = { 0 };
    int n = -1;

    expect(r, pk_comm_size(comm, &n), PK_OK, "pk_comm_size");
    if (n != size) {
        fail(r, "a group of %d ranks where %d were due", n, size);
        return;
    }
    expect(r, pk_allgather(&own, all, 1, PK_INT32, comm, PK_BLOCKING), PK_OK, "pk_allgather in a group");
    for (int i = 0; r->ok && i < size; i++)
        if (all[i] != members[i])
            fail(r, "place %d of the group is rank %d's, not rank %d's", i, all[i], members[i]);
}

/* Even and odd ranks, in reverse order; rank 1 in none where there are four. Twice, and once more out of a group. */
static void split_of(struct rank *r, int nonblocking)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *parent = throwaway(r, TIMEOUT_MS), *half = NULL, *same = NULL;
    const bool none = r->rank == 1 && r->size >= 4;
    const int color = none ? -1 : r->rank % 2;
    int members[256], size = 0;
    pk_result_t begun = nonblocking && !none ? PK_IN_PROGRESS : PK_OK;

    config.device = PK_DEVICE_HOST;
    config.nonblocking = nonblocking;
    config.timeout_ms = TIMEOUT_MS;
    for (int i = r->size - 1; i >= 0; i--)
        if (i % 2 == r->rank % 2 && (i != 1 || r->size < 4))
            members[size++] = i;
    for (int turn = 0; r->ok && turn < 2; turn++) {
        expect(r, pk_comm_split(parent, color, -r->rank, &half, nonblocking ? &config : NULL), begun, "pk_comm_split");
        if ((half == NULL) != none)
            fail(r, "newcomm is %p for color %d", (void *)half, color);
        if (half != NULL && r->ok && expect(r, poll_init(half), PK_OK, "the end of pk_comm_split")) {
            check_members(r, half, members, size);
            expect(r, pk_comm_split(half, 7, 0, &same, NULL), PK_OK, "pk_comm_split of a group");
            check_members(r, same, members, size);
            expect(r, pk_comm_destroy(same), PK_OK, "pk_comm_destroy");
        }
        expect(r, pk_comm_destroy(half), PK_OK, "pk_comm_destroy of a group");
        half = NULL;
    }
    use(r, parent, r->size);
    expect(r, pk_comm_destroy(parent), PK_OK, "pk_comm_destroy");
}

static void split(struct rank *r)
{
    split_of(r, 0);
}

static void split_nonblocking(struct rank *r)
{
    split_of(r, 1);
}

static void split_refused(struct rank *r)
{
    pk_comm_t *parent = throwaway(r, TIMEOUT_MS), *child = NULL;
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    expect(r, pk_comm_split(NULL, 0, 0, &child, NULL), PK_ERR_ARG, "pk_comm_split of null");
    expect(r, pk_comm_split(parent, 0, 0, NULL, NULL), PK_ERR_ARG, "pk_comm_split into null");
    expect(r, pk_group_start(), PK_OK, "pk_group_start");
    expect(r, pk_comm_split(parent, 0, 0, &child, NULL), PK_ERR_ARG, "pk_comm_split in a group");
    expect(r, pk_group_end(), PK_OK, "pk_group_end");
    /* Refused on one rank alone: it has not had its turn, and may try again. */
    config.device = PK_DEVICE_HOST;
    config.sm_policy = 17;
    if (r->rank == 0)
        expect(r, pk_comm_split(parent, 0, 0, &child, &config), PK_ERR_ARG, "pk_comm_split with sm_policy 17");
    expect(r, pk_comm_split(parent, 0, 0, &child, NULL), PK_OK, "pk_comm_split after that");
    use(r, child, r->size);
    expect(r, pk_comm_destroy(child), PK_OK, "pk_comm_destroy of what it made");
    child = NULL;
    use(r, parent, r->size);
    meet(r);
    expect(r, pk_comm_abort(parent), PK_OK, "pk_comm_abort");
    expect(r, pk_comm_split(parent, 0, 0, &child, NULL), PK_ERR_ABORTED, "pk_comm_split of an aborted one");
    expect(r, pk_comm_destroy(parent), PK_ERR_ABORTED, "pk_comm_destroy");
}

/* As few as before, or what is left after a while. */
static int descriptors_left(int before)
{
    int64_t deadline = monotonic_ns() + 2 * (int64_t)1000000000;
    int n = open_files();

    while (n > before && monotonic_ns() < deadline) {
        usleep(20000);
        n = open_files();
    }
    return n;
}

/* Rank 0 counts while the others, who may be threads of its process, keep still. What one communicator leaves open adds up. */
static void descriptors(struct rank *r)
{
    int after_two = 0;
    int after_all = 0;

    for (int turn = 0; turn < 8; turn++) {
        pk_comm_t *comm = throwaway(r, TIMEOUT_MS);

        if (comm == NULL)
            return;
        use(r, comm, r->size);
        expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy");
        meet(r);
        if (r->rank == 0 && turn == 1)
            after_two = open_files();
        if (r->rank == 0 && turn == 7)
            after_all = descriptors_left(after_two);
        meet(r);
    }
    if (after_all > after_two)
        fail(r, "%d descriptors are open after 8 communicators, %d after 2", after_all, after_two);
}

/* ---- finalize ---- */

static void refused_after(struct rank *r, pk_comm_t *comm, pk_stream_t stream)
{
    float x = 1;
    pk_comm_t *made = NULL;

    expect(r, pk_barrier(comm, PK_BLOCKING), PK_ERR_ARG, "pk_barrier after pk_comm_finalize");
    expect(r, pk_allreduce(&x, &x, 1, PK_F32, PK_SUM, comm, PK_BLOCKING), PK_ERR_ARG, "pk_allreduce after pk_comm_finalize");
    expect(r, pk_allreduce(&x, &x, 1, PK_F32, PK_SUM, comm, stream), PK_ERR_ARG,
           "pk_allreduce in a stream after pk_comm_finalize");
    expect(r, pk_send(&x, 1, PK_F32, (r->rank + 1) % r->size, comm, PK_BLOCKING), PK_ERR_ARG, "pk_send after pk_comm_finalize");
    expect(r, pk_recv(&x, 1, PK_F32, (r->rank + 1) % r->size, comm, stream), PK_ERR_ARG, "pk_recv after pk_comm_finalize");
    expect(r, pk_comm_split(comm, 0, 0, &made, NULL), PK_ERR_ARG, "pk_comm_split after pk_comm_finalize");
}

/* What is in a stream ends; what was sent is received by a rank that comes later; what gives memory back still does. */
static void finalize(struct rank *r)
{
    static float in[256][FLOATS], out[256][FLOATS];
    pk_comm_t *comm = throwaway(r, LONG_MS);
    pk_stream_t stream;
    void *memory = NULL;
    float token = (float)r->rank;

    if (comm == NULL)
        return;
    expect(r, pk_stream_create(&stream), PK_OK, "pk_stream_create");
    expect(r, pk_mem_alloc(comm, 100, &memory), PK_OK, "pk_mem_alloc");
    expect(r, pk_group_start(), PK_OK, "pk_group_start");
    expect(r, pk_comm_finalize(comm), PK_ERR_ARG, "pk_comm_finalize in a group");
    expect(r, pk_group_end(), PK_OK, "pk_group_end");
    use(r, comm, r->size); /* as often as the memo of a call needs */
    use(r, comm, r->size);
    for (int i = 0; i < 4; i++)
        expect(r, pk_allreduce(in[r->rank], out[r->rank], FLOATS, PK_F32, PK_SUM, comm, stream), PK_OK,
               "pk_allreduce in a stream");
    if (r->rank == 0)
        for (int i = 1; i < r->size; i++)
            expect(r, pk_send(&token, 1, PK_F32, i, comm, PK_BLOCKING), PK_OK, "pk_send");
    if (r->rank == 0)
        expect(r, pk_comm_finalize(comm), PK_OK, "pk_comm_finalize");
    meet(r);
    if (r->rank != 0) {
        expect(r, pk_comm_async_error(comm), PK_OK, "pk_comm_async_error when a rank has finalized");
        expect(r, pk_recv(&token, 1, PK_F32, 0, comm, PK_BLOCKING), PK_OK, "pk_recv from a rank that has finalized");
        expect(r, token == 0 ? PK_OK : PK_ERR_INTERNAL, PK_OK, "what has come");
        expect(r, pk_comm_finalize(comm), PK_OK, "pk_comm_finalize");
    }
    expect(r, pk_stream_query(stream), PK_OK, "pk_stream_query after pk_comm_finalize");
    refused_after(r, comm, stream);
    expect(r, pk_comm_async_error(comm), PK_OK, "pk_comm_async_error after pk_comm_finalize");
    expect(r, pk_comm_finalize(comm), PK_OK, "pk_comm_finalize again");
    expect(r, pk_mem_free(comm, memory), PK_OK, "pk_mem_free after pk_comm_finalize");
    expect(r, pk_stream_destroy(stream), PK_OK, "pk_stream_destroy");
    meet(r);
    if (r->rank == 1)
        expect(r, pk_comm_destroy(comm), PK_OK, "pk_comm_destroy after pk_comm_finalize");
    meet(r);
    if (r->rank == 1)
        return;
    expect(r, pk_comm_async_error(comm), PK_OK, "pk_comm_async_error when a rank that has finalized is gone");
    if (r->rank == 0)
        expect(r, pk_comm_abort(comm), PK_OK, "pk_comm_abort after pk_comm_finalize");
    expect(r, pk_comm_destroy(comm), r->rank == 0 ? PK_ERR_ABORTED : PK_OK, "pk_comm_destroy after pk_comm_finalize");
}

/* Of another rank's failure, who has finalized hears the reason, if anything: not that the other one has gone. */
static void destroy_finalized(struct rank *r, pk_comm_t *comm)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (pk_comm_async_error(comm) != PK_OK)
        pk_last_error(&info);
    (void)pk_comm_destroy(comm);
    if (info.text[0] != '\0' && strstr(info.text, "reports: ") == NULL)
        fail(r, "a rank that has finalized hears: %.200s", info.text);
}

/* A rank that waits for one that has finalized is told so. */
static void finalize_awaited(struct rank *r)
{
    pk_comm_t *comm = throwaway(r, LONG_MS);
    pk_error_info_t info = { .struct_size = sizeof info };
    float x;

    if (comm == NULL)
        return;
    if (r->rank == 0)
        expect(r, pk_comm_finalize(comm), PK_OK, "pk_comm_finalize");
    if (r->rank == 1) {
        expect(r, pk_recv(&x, 1, PK_F32, 0, comm, PK_BLOCKING), PK_ERR_PEER, "pk_recv of what was never sent");
        pk_last_error(&info);
        if (info.peer != 0 || strstr(info.text, "has finalized") == NULL)
            fail(r, "peer %d: %.200s", info.peer, info.text);
    }
    meet(r);
    if (r->rank != 0)
        (void)pk_comm_destroy(comm);
    meet(r);
    if (r->rank == 0)
        destroy_finalized(r, comm);
}

void run_lifecycle(struct rank *rank)
{
    static const struct special cases[] = {
        { "life: a communicator of one", alone },
        { "life: nonblocking init", nonblocking },
        { "life: two communicators in opposite order", opposite_order },
        { "life: everybody leaves after a collective", early_leave_collective },
        { "life: split", split },
        { "life: nonblocking split", split_nonblocking },
        { "life: splits that are refused", split_refused },
        { "life: descriptors", descriptors },
    };
    static const struct special between[] = {
        /* more than one rank */
        { "life: abort of an init", abort_init },
        { "life: abort of an init by one rank", abort_init_elsewhere },
        { "life: abort of an init at any moment", abort_init_anywhere },
        { "life: a sender that leaves early", early_leave },
        { "life: finalize", finalize },
        { "life: a rank that has finalized is waited for", finalize_awaited },
    };

    run_special(rank, cases, sizeof cases / sizeof cases[0]);
    if (rank->size > 1)
        run_special(rank, between, sizeof between / sizeof between[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the headers promise of collectives and a list of single cases does not show. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* No rank leaves before the last has come. All are on one machine and have one clock. */
static void barrier_order(struct rank *r)
{
    for (int turn = 0; turn < 6; turn++) {
        int64_t times[2], all[RANKS_MAX][2], last = 0, first = INT64_MAX;

        if (turn % r->size == r->rank)
            usleep(20000);
        times[0] = monotonic_ns();
        expect(r, pk_barrier(r->comm, turn % 2 == 0 ? PK_BLOCKING : r->streams[END_HOST]), PK_OK, "pk_barrier");
        expect(r, pk_stream_synchronize(r->streams[END_HOST]), PK_OK, "pk_stream_synchronize");
        times[1] = monotonic_ns();
        share(r, times, all, sizeof times);
        for (int i = 0; i < r->size; i++) {
            last = all[i][0] > last ? all[i][0] : last;
            first = all[i][1] < first ? all[i][1] : first;
        }
        if (first < last)
            fail(r, "turn %d: a rank left the barrier %lld us before another had come", turn, (long long)(last - first) / 1000);
    }
}

static float number(int rank, size_t i)
{
    return (float)(1 + (i * 2654435761u + (unsigned)rank * 40503u) % 1000003u) / 3.0f *
           ((i + (size_t)rank) % 3 == 0 ? -1.0f : 1.0f);
}

/* Ask every rank, for one host may have few ranks and another many. */
static bool on_one_host(struct rank *r)
{
    int32_t elsewhere = 0, most = 0;

    for (int peer = 0; peer < r->size; peer++) {
        pk_path_t path = { .struct_size = sizeof path };

        expect(r, pk_comm_path(r->comm, peer, PK_MEM_HOST, PK_MEM_HOST, &path), PK_OK, "pk_comm_path");
        elsewhere |= strcmp(path.transport, "self") != 0 && strcmp(path.transport, "shm") != 0;
    }
    expect(r, pk_allreduce(&elsewhere, &most, 1, PK_INT32, PK_MAX, r->comm, PK_BLOCKING), PK_OK, "pk_allreduce");
    return most == 0;
}

/* On one host sums are in rank order whatever the size, and the same from allreduce, reduce and reduce_scatter. */
static void rank_order(struct rank *r)
{
    static const size_t counts[] = { 1, 3, 100, 1000, 5000, 20000, 100000, 700000 };
    size_t most = counts[7] * (size_t)r->size;
    bool one_host = on_one_host(r);
    float *in = malloc(most * sizeof *in), *out = malloc(most * sizeof *out);

    if (in == NULL || out == NULL)
        abort();
    for (int k = 0; one_host && r->ok && r->size <= 16 && k < 8; k++) {
        size_t count = counts[k];

        for (size_t i = 0; i < count; i++)
            in[i] = number(r->rank, i);
        expect(r, pk_allreduce(in, out, count, PK_F32, PK_SUM, r->comm, PK_BLOCKING), PK_OK, "pk_allreduce");
        for (size_t i = 0; i < count; i++) {
            float sum = number(0, i);

            for (int p = 1; p < r->size; p++)
                sum += number(p, i);
            if (memcmp(&sum, &out[i], sizeof sum) != 0) {
                fail(r, "allreduce of %zu: element %zu is %a, in rank order %a", count, i, (double)out[i], (double)sum);
                break;
            }
        }
    }
    free(in);
    free(out);
}

/* Groups of everything at once, on two communicators. */
static void crowd(struct rank *r)
{
    enum { N = 40, COUNT = 300 };
    pk_comm_t *comms[2] = { r->comm, throwaway(r, 60000) };
    int32_t *in = malloc(sizeof *in * COUNT), *out = calloc(N * COUNT, sizeof *out);
    int next = (r->rank + 1) % r->size, previous = (r->rank + r->size - 1) % r->size;

    if (in == NULL || out == NULL || comms[1] == NULL)
        abort();
    for (int i = 0; i < COUNT; i++)
        in[i] = r->rank * 1000 + i;
    expect(r, pk_group_start(), PK_OK, "pk_group_start");
    for (int k = 0; k < N; k += 4) {
        pk_comm_t *comm = comms[k / 4 % 2];
        pk_stream_t stream = k / 8 % 2 == 0 ? PK_BLOCKING : r->streams[END_HOST];

        expect(r, pk_allreduce(in, out + k * COUNT, COUNT, PK_INT32, PK_SUM, comm, stream), PK_OK, "pk_allreduce");
        expect(r, pk_send(in, COUNT, PK_INT32, next, comm, stream), PK_OK, "pk_send");
        expect(r, pk_broadcast(in, out + (k + 1) * COUNT, COUNT, PK_INT32, k % r->size, comm, stream), PK_OK, "pk_broadcast");
        expect(r, pk_recv(out + (k + 2) * COUNT, COUNT, PK_INT32, previous, comm, stream), PK_OK, "pk_recv");
        expect(r, pk_barrier(comm, stream), PK_OK, "pk_barrier");
    }
    expect(r, pk_group_end(), PK_OK, "pk_group_end");
    expect(r, pk_stream_synchronize(r->streams[END_HOST]), PK_OK, "pk_stream_synchronize");
    for (int k = 0; r->ok && k < N; k += 4)
        for (int i = 0; i < COUNT; i++) {
            int sum = r->size * (r->size - 1) / 2 * 1000 + r->size * i;

            if (out[k * COUNT + i] != sum || out[(k + 1) * COUNT + i] != k % r->size * 1000 + i ||
                out[(k + 2) * COUNT + i] != previous * 1000 + i) {
                fail(r, "set %d, element %d: %d %d %d", k, i, out[k * COUNT + i], out[(k + 1) * COUNT + i],
                     out[(k + 2) * COUNT + i]);
                break;
            }
        }
    expect(r, pk_comm_destroy(comms[1]), PK_OK, "pk_comm_destroy");
    free(in);
    free(out);
}

/* Every root, in place and not, again and again: each has a plan of its own. */
static void many_plans(struct rank *r)
{
    int32_t in[8], out[8];

    for (int turn = 0; r->ok && turn < 3; turn++)
        for (int root = 0; r->ok && root < r->size; root++)
            for (int in_place = 0; in_place < 2; in_place++) {
                for (int i = 0; i < 8; i++)
                    in[i] = out[i] = r->rank + i;
                expect(r, pk_reduce(in_place ? out : in, out, 8, PK_INT32, PK_MAX, root, r->comm, PK_BLOCKING), PK_OK,
                       "pk_reduce");
                if (r->rank == root && out[7] != r->size - 1 + 7)
                    fail(r, "root %d: the maximum is %d", root, out[7]);
                expect(r, pk_broadcast(in_place ? out : in, out, 8, PK_INT32, root, r->comm, PK_BLOCKING), PK_OK, "pk_broadcast");
                if (out[7] != (in_place ? r->size - 1 : root) + 7)
                    fail(r, "root %d: the broadcast is %d", root, out[7]);
            }
}

void run_promises(struct rank *rank)
{
    static const struct special cases[] = {
        { "promises: order of a barrier", barrier_order },
        { "promises: sums in rank order", rank_order },
        { "promises: groups of everything", crowd },
        { "promises: many roots", many_plans },
    };

    run_special(rank, cases, sizeof cases / sizeof cases[0]);
}

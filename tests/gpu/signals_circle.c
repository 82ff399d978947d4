/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups against ranks without one, in every order of the calls: rank 2 sends B to rank 0 and then X to rank 1, rank 1 receives X and then sends A to
 * rank 0, and rank 0 receives A and B in one group, or sends them, the other way round. No message of a group may stand behind another's wait.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu_rank.h"

#define RANKS 3
#define LATER_US 8000 /* each rank calls so much later than the one before it */
#define LIMIT_MS 20000
#define A 1
#define B 2
#define X 3

static const int orders[][RANKS] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };

#define ORDERS (int)(sizeof orders / sizeof orders[0])

struct buffers {
    char *a, *b, *x;
    size_t bytes;
};

/* `forth`: as above; else every message goes the other way. */
static void move(const struct gpu_rank *self, bool forth, bool sends, char *buffer, size_t bytes, int peer)
{
    if (sends == forth)
        must_be_ok(pk_send(buffer, bytes, PK_UINT8, peer, self->comm, self->in_stream), "pk_send");
    else
        must_be_ok(pk_recv(buffer, bytes, PK_UINT8, peer, self->comm, self->in_stream), "pk_recv");
}

static void call(const struct gpu_rank *self, bool forth, const struct buffers *m)
{
    if (self->rank == 0) {
        must_be_ok(pk_group_start(), "pk_group_start");
        move(self, forth, false, m->a, m->bytes, 1);
        move(self, forth, false, m->b, m->bytes, 2);
        must_be_ok(pk_group_end(), "pk_group_end");
    } else if (self->rank == 1) {
        move(self, forth, false, m->x, m->bytes, 2);
        move(self, forth, true, m->a, m->bytes, 0);
    } else {
        move(self, forth, true, m->b, m->bytes, 0);
        move(self, forth, true, m->x, m->bytes, 1);
    }
}

static int place_in(const int *order, int rank)
{
    int place = 0;

    while (order[place] != rank)
        place++;
    return place;
}

/* Who sends has the pattern. */
static void fill(const struct gpu_rank *self, bool forth, const struct buffers *m, uint64_t key)
{
    const bool sends_a = self->rank == (forth ? 1 : 0), sends_b = self->rank == (forth ? 2 : 0),
               sends_x = self->rank == (forth ? 2 : 1);

    pattern_to_gpu(m->a, m->bytes, sends_a ? key + A : 0);
    pattern_to_gpu(m->b, m->bytes, sends_b ? key + B : 0);
    pattern_to_gpu(m->x, m->bytes, sends_x ? key + X : 0);
}

static bool is_right(const struct gpu_rank *self, const struct buffers *m, uint64_t key)
{
    bool right = true;

    if (self->rank < 2)
        right = pattern_wrong_on_gpu(m->a, m->bytes, key + A) == m->bytes;
    if (self->rank != 1)
        right = right && pattern_wrong_on_gpu(m->b, m->bytes, key + B) == m->bytes;
    if (self->rank > 0)
        right = right && pattern_wrong_on_gpu(m->x, m->bytes, key + X) == m->bytes;
    return right;
}

static void all_orders(struct gpu_rank *self, size_t bytes)
{
    const struct buffers m = { gpu_alloc(bytes), gpu_alloc(bytes), gpu_alloc(bytes), bytes };

    for (int i = 0; i < 2 * ORDERS; i++) {
        const bool forth = i < ORDERS;
        const uint64_t key = (uint64_t)(i + 1) * 100 + bytes;
        bool idle;

        fill(self, forth, &m, key);
        ranks_meet();
        usleep((unsigned)(LATER_US * place_in(orders[i % ORDERS], self->rank)));
        call(self, forth, &m);
        idle = stream_idle_within(self->stream, LIMIT_MS, NULL);
        report(idle && is_right(self, &m, key), "rank %d, %zu bytes, %s, rank %d calls first, then %d: %s", self->rank, bytes,
               forth ? "to rank 0" : "from rank 0", orders[i % ORDERS][0], orders[i % ORDERS][1],
               idle ? "all has come" : "stands still");
        ranks_meet();
    }
    gpu_free(m.a);
    gpu_free(m.b);
    gpu_free(m.x);
}

static int rank_main(void)
{
    struct gpu_rank self;

    gpu_rank_open(&self, ranks_role()[0] == 'd' ? PK_SM_DEFAULT : PK_SM_NONE, 30000);
    all_orders(&self, 4096);
    all_orders(&self, (size_t)1 << 20);
    all_orders(&self, (size_t)8 << 20);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    static const char *const roles[] = { "default", "none" };

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (int i = 0; i < 2; i++)
        ranks_drive(&(struct ranks_turn){ .role = roles[i], .size = RANKS, .timeout_ms = 90000 }, "circles, sm_policy %s",
                    roles[i]);
    return report_end();
}

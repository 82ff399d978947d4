/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of 33 KiB to 1 MiB between "hosts", whose steps go whole in one message up to 64 KiB and are put ahead of their grant
 * beyond, while ranks are late occasionally: what has begun without a task goes on as an ordinary operation, from whatever step.
 * Where all goes one way the sender runs out of credit, and so it does in sums behind messages that nobody has received yet. Every
 * element is checked, and no grant or early chunk may be left over: memory stays where it is.
 */
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SHORT_MOST ((size_t)64 << 10)
#define MOST ((size_t)1 << 20)
#define LONG_MOST ((size_t)512 << 10)
#define TURNS 200
#define LONG_TURNS 50
#define LATE_US 6000
#define PUNCTUAL_TURNS 4000 /* a leak of 43 bytes an operation shows */

static float in[MOST / sizeof(float)], out[MOST / sizeof(float)];

struct rank {
    pk_comm_t *comm;
    int rank, size;
    unsigned luck;
    bool punctual;
    enum { SHORT, LONG, LONGER } how_long;
    size_t most;
    int turns;
};

/* Others than the other ranks'. */
static unsigned chance(struct rank *self, unsigned of)
{
    self->luck = self->luck * 1664525u + 1013904223u;
    return (self->luck >> 16) % of;
}

static void sometimes_late(struct rank *self)
{
    if (!self->punctual && chance(self, 40) == 0)
        usleep(chance(self, LATE_US));
}

static float number(size_t i, int turn, int rank)
{
    return (float)(i % 1000 + (size_t)turn % 100 + (size_t)rank * 3);
}

static void fill(const struct rank *self, size_t count, int turn)
{
    for (size_t i = 0; i < count; i++)
        in[i] = number(i, turn, self->rank);
}

static size_t wrong_sums(const struct rank *self, size_t count, int turn)
{
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++) {
        float sum = 0;

        for (int r = 0; r < self->size; r++)
            sum += number(i, turn, r);
        wrong += out[i] != sum;
    }
    return wrong;
}

/* Each rank's part of the buffers, in turn by all-gather, all-to-all and sum. */
static pk_result_t exchange(struct rank *self, size_t count, int turn, size_t *wrong)
{
    enum { GATHER, EXCHANGE, SUM } how = turn / 6 % 3;
    size_t part = count / (size_t)self->size, mine = part * (size_t)self->rank;
    pk_result_t result;

    if (how == GATHER)
        result = pk_allgather(in, out, part, PK_F32, self->comm, PK_BLOCKING);
    else if (how == EXCHANGE)
        result = pk_alltoall(in, out, part, PK_F32, self->comm, PK_BLOCKING);
    else
        result = pk_reduce_scatter(in, out, part, PK_F32, PK_SUM, self->comm, PK_BLOCKING);
    for (size_t i = 0; i < (how == SUM ? part : part * (size_t)self->size); i++) {
        float right = number((how == GATHER ? 0 : mine) + i % part, turn, (int)(i / part));

        for (int r = 1; how == SUM && r < self->size; r++)
            right += number(mine + i, turn, r);
        *wrong += out[i] != right;
    }
    return result;
}

static bool one_turn(struct rank *self, int turn)
{
    static const size_t lengths[][6] = { { 65536, 65536, 40000, 65536, 32772, 65532 },
                                         { 524288, 65540, 131072, 40000, 262144, 524284 },
                                         { 524288, 262148, 1048576, 786428, 524284, 327684 } };
    size_t count = lengths[self->how_long][turn / 7 % 6] / sizeof(float), wrong = 0;
    int root = turn / 3 % self->size;
    pk_result_t result;

    fill(self, count, turn);
    sometimes_late(self);
    switch (turn % 6) {
    case 2: /* in place: the sum waits for the own send, what came for the sum */
        memcpy(out, in, count * sizeof *in);
        result = pk_allreduce(out, out, count, PK_F32, PK_SUM, self->comm, PK_BLOCKING);
        wrong = wrong_sums(self, count, turn);
        break;
    case 3:
        result = pk_broadcast(in, out, count, PK_F32, root, self->comm, PK_BLOCKING);
        for (size_t i = 0; i < count; i++)
            wrong += out[i] != number(i, turn, root);
        break;
    case 4:
        result = pk_reduce(in, out, count, PK_F32, PK_SUM, root, self->comm, PK_BLOCKING);
        wrong = self->rank == root ? wrong_sums(self, count, turn) : 0;
        break;
    case 5:
        if (self->how_long != SHORT) {
            result = exchange(self, count, turn, &wrong);
            break;
        }
        /* fall through */
    default:
        result = pk_allreduce(in, out, count, PK_F32, PK_SUM, self->comm, PK_BLOCKING);
        wrong = wrong_sums(self, count, turn);
    }
    if (result != PK_OK || wrong > 0)
        fprintf(stderr, "rank %d, turn %d, %zu elements: %s, %zu wrong\n", self->rank, turn, count, pk_strerror(result), wrong);
    return result == PK_OK && wrong == 0;
}

/* The others are late all the time: 8 MiB of credit last for 128 of them, or 8. */
static bool one_way(struct rank *self)
{
    size_t count = self->most / sizeof(float), wrong = 0;

    for (int turn = 0; turn < 300; turn++) {
        fill(self, count, turn);
        if (self->rank != 0 && turn % 100 == 50)
            usleep(50000);
        if (pk_broadcast(in, out, count, PK_F32, 0, self->comm, PK_BLOCKING) != PK_OK)
            return false;
        for (size_t i = 0; i < count; i++)
            wrong += out[i] != number(i, turn, 0);
    }
    return wrong == 0;
}

/* Nobody is late, so that no operation goes the ordinary way, which would clean up. */
static bool stays_small(struct rank *self)
{
    int turns = self->how_long == SHORT ? PUNCTUAL_TURNS : self->how_long == LONG ? PUNCTUAL_TURNS / 8 : PUNCTUAL_TURNS / 16;
    size_t before = 0;

    self->punctual = true;
    for (int turn = 0; turn < turns; turn++) {
        if (turn == turns / 4)
            before = mallinfo2().uordblks;
        if (pk_allreduce(in, out, self->most / sizeof(float), PK_F32, PK_SUM, self->comm, PK_BLOCKING) != PK_OK)
            return false;
    }
    if (mallinfo2().uordblks > before + self->most * 2)
        fprintf(stderr, "rank %d: %zu bytes, then %zu\n", self->rank, before, (size_t)mallinfo2().uordblks);
    return mallinfo2().uordblks <= before + self->most * 2;
}

#define UNASKED_BYTES ((size_t)256 << 10)

static pk_result_t messages(struct rank *self, int n)
{
    pk_result_t result = PK_OK;

    for (int i = 0; i < n && result == PK_OK; i++)
        result = self->rank == 0 ? pk_send(in, UNASKED_BYTES, PK_UINT8, 1, self->comm, PK_BLOCKING)
                                 : pk_recv(out, UNASKED_BYTES, PK_UINT8, 0, self->comm, PK_BLOCKING);
    return result;
}

/* Rank 0's credit, all of which a new communicator has, ends somewhere in these sums, before one half of them or the other. */
static bool runs_short(struct rank *self, int turn)
{
    static const int unasked[] = { 29, 28, 27, 30, 26 };
    size_t count = LONG_MOST / sizeof(float), wrong = 0;
    pk_result_t result = self->rank == 0 ? messages(self, unasked[turn % 5]) : PK_OK;

    for (int i = 0; i < 6 && result == PK_OK; i++) {
        fill(self, count, turn + i);
        result = pk_allreduce(in, out, count, PK_F32, PK_SUM, self->comm, PK_BLOCKING);
        wrong += wrong_sums(self, count, turn + i);
    }
    if (self->rank == 1 && result == PK_OK)
        result = messages(self, unasked[turn % 5]);
    if (result != PK_OK || wrong > 0)
        fprintf(stderr, "rank %d, turn %d: %s, %zu wrong\n", self->rank, turn, pk_strerror(result), wrong);
    return result == PK_OK && wrong == 0;
}

static atomic_bool is_over, gives_way;

/* Another thread that looks after what comes, if there are cores enough whenever the rank itself does not. */
static void *look(void *comm)
{
    while (!atomic_load(&is_over) && pk_comm_async_error(comm) == PK_OK)
        if (atomic_load(&gives_way))
            sched_yield();
    return NULL;
}

static bool runs_short_while_others_look(struct rank *self, int turn)
{
    pthread_t other;
    bool right;

    atomic_store(&is_over, false);
    atomic_store(&gives_way, turn % 3 > 0);
    if (pthread_create(&other, NULL, look, self->comm) != 0)
        return false;
    right = runs_short(self, turn);
    atomic_store(&is_over, true);
    return pthread_join(other, NULL) == 0 && right;
}

/* After each a new communicator. */
static int run_short_rank(struct rank *self)
{
    for (int turn = 0; turn < 15; turn++)
        if (!runs_short_while_others_look(self, turn) || pk_comm_destroy(self->comm) != PK_OK ||
            pk_comm_init(&self->comm, NULL) != PK_OK)
            return 1;
    return pk_comm_destroy(self->comm) == PK_OK ? 0 : 1;
}

static void sleep_a_little(int signal)
{
    (void)signal;
    nanosleep(&(struct timespec){ .tv_nsec = 1500000 }, NULL);
}

/* This process is given no core for a while, somewhere in what comes now. */
static void lose_the_core(struct rank *self)
{
    const struct itimerval soon = { .it_value = { .tv_usec = 20 + chance(self, 150) } };

    (void)signal(SIGALRM, sleep_a_little);
    (void)setitimer(ITIMER_REAL, &soon, NULL);
}

static bool broadcasts(struct rank *self, int root, int n, size_t count, int turn)
{
    for (int i = 0; i < n; i++) {
        fill(self, count, turn + i);
        memset(out, 0, sizeof out);
        if (pk_broadcast(in, out, count, PK_F32, root, self->comm, PK_BLOCKING) != PK_OK ||
            out[count - 1] != number(count - 1, turn + i, root))
            return false;
    }
    return true;
}

/* Rank 1 has rank 0's step in its control channel while it waits for word of its own, and the next ones come: they may not move it, nor lie over it. */
static bool holds(struct rank *self)
{
    static float sums[9000];
    size_t count = sizeof sums / sizeof *sums, wrong = 0;

    for (int turn = 0; turn < 100; turn++) {
        if (!broadcasts(self, 1, 1, 1, turn))
            return false;
        if (self->rank == 1)
            usleep(4000);
        if (!broadcasts(self, 0, 4, 12288, turn)) /* they leave little room in the control channel */
            return false;
        for (size_t i = 0; i < count; i++)
            sums[i] = number(i, turn, self->rank);
        if (self->rank == 1)
            lose_the_core(self);
        if (pk_allreduce(sums, sums, count, PK_F32, PK_SUM, self->comm, PK_BLOCKING) != PK_OK ||
            !broadcasts(self, 0, 3, 14000, turn))
            return false;
        for (size_t i = 0; i < count; i++)
            wrong += sums[i] != number(i, turn, 0) + number(i, turn, 1);
    }
    if (wrong > 0)
        fprintf(stderr, "rank %d: %zu sums are wrong\n", self->rank, wrong);
    return wrong == 0;
}

static int run_holding_rank(struct rank *self)
{
    return holds(self) && pk_comm_destroy(self->comm) == PK_OK ? 0 : 1;
}

static int run_rank(void)
{
    const char *role = ranks_role();
    struct rank self = { .rank = ranks_rank(),
                         .how_long = strncmp(role, "long", 4) == 0   ? LONG
                                     : strncmp(role, "ring", 4) == 0 ? LONGER
                                                                     : SHORT };
    size_t before = 0, after;

    self.most = self.how_long == SHORT ? SHORT_MOST : self.how_long == LONG ? LONG_MOST : MOST;
    self.turns = self.how_long == SHORT ? TURNS : self.how_long == LONG ? LONG_TURNS : LONG_TURNS / 2;
    if (self.how_long == LONGER)
        setenv("PK_ALGORITHM", "allreduce=ring", 1);
    if (strstr(role, ", in pieces") != NULL)
        setenv("PK_CHUNK_BYTES", "65536", 1);
    if (pk_comm_init(&self.comm, NULL) != PK_OK || pk_comm_size(self.comm, &self.size) != PK_OK)
        return 1;
    self.luck = 77u + 1000u * (unsigned)self.rank;
    if (strcmp(role, "short, and hold") == 0)
        return run_holding_rank(&self);
    if (strcmp(role, "ring, without credit") == 0)
        return run_short_rank(&self);
    for (int turn = 0; turn < self.turns; turn++) {
        if (turn == self.turns / 4)
            before = mallinfo2().uordblks;
        if (!one_turn(&self, turn))
            return 1;
    }
    after = mallinfo2().uordblks;
    if (after > before + self.most * 8)
        fprintf(stderr, "rank %d: %zu bytes after %d turns, %zu after %d\n", self.rank, before, self.turns / 4, after,
                self.turns);
    if (after > before + self.most * 8 || !one_way(&self) || !stays_small(&self))
        return 1;
    return pk_comm_destroy(self.comm) == PK_OK ? 0 : 1;
}

static void drive(int size, const char *role)
{
    ranks_drive(&(struct ranks_turn){ .role = role, .size = size, .timeout_ms = 100000 }, "%d hosts, %s", size, role);
}

int main(void)
{
    if (ranks_role() != NULL)
        return run_rank();
    setenv("PICKLE_TEST_HOSTS", "4", 1);
    setenv("PK_SOCKETS", "1/0", 1);
    drive(2, "short");
    drive(2, "short, and hold");
    drive(3, "short");
    drive(2, "long");
    drive(2, "long, in pieces");
    drive(3, "long");
    drive(2, "ring");
    drive(2, "ring, in pieces");
    drive(2, "ring, without credit");
    return report_end();
}

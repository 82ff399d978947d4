/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four ranks on two GPUs add up in CUDA streams, two of them are killed one after the other, and the others go on: their streams are released,
 * they agree, shrink, and repeat in GPU memory what is not complete. Every sum whose stream has ended without an error is right.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpu_rank.h"

#define SIZE 4
#define COUNT ((size_t)256 << 10)
#define TIMEOUT_MS 60000

enum { STOP };
enum { RIGHT_NS, LIVING, SHRINK_US };

struct life {
    struct gpu_rank self;
    uint64_t op, first_op, called; /* the next one; the first in comm; so many have been called there */
    float *in, *out, *host;
};

static bool is_right(const struct life *l, float *stop)
{
    gpu_copy(l->host, l->out, COUNT * sizeof(float));
    *stop = l->host[0];
    for (size_t i = 1; i < COUNT; i++)
        if (l->host[i] != (float)l->self.size * (float)(l->op % 7 + i % 5))
            return false;
    return true;
}

static pk_result_t add_up(struct life *l, bool *ended)
{
    pk_result_t result;
    float stop;

    for (size_t i = 1; i < COUNT; i++)
        l->host[i] = (float)(l->op % 7 + i % 5);
    l->host[0] = atomic_load(&ranks_shared()->words[STOP]) != 0;
    gpu_copy(l->in, l->host, COUNT * sizeof(float));
    result = pk_allreduce(l->in, l->out, COUNT, PK_F32, PK_SUM, l->self.comm, l->self.in_stream);
    l->called += result == PK_OK;
    (void)gpu_stream_sync(l->self.stream);
    if (result == PK_OK)
        result = pk_comm_async_error(l->self.comm);
    if (result != PK_OK)
        return result;
    if (!is_right(l, &stop)) {
        report(false, "rank %d: a wrong sum among %d ranks without an error", ranks_rank(), l->self.size);
        exit(1);
    }
    atomic_store(&ranks_shared()->rank_words[ranks_rank()][LIVING], l->self.size);
    atomic_store(&ranks_shared()->rank_words[ranks_rank()][RIGHT_NS], monotonic_ns());
    *ended = stop > 0;
    l->op++;
    return PK_OK;
}

static void go_on(struct life *l)
{
    pk_comm_t *smaller;
    uint64_t last;
    float stop;
    const int64_t begin = monotonic_ns();

    must_be_ok(pk_comm_revoke(l->self.comm), "pk_comm_revoke");
    must_be_ok(pk_comm_agree(l->self.comm, 0, NULL, NULL, NULL, &last), "pk_comm_agree");
    report(last <= l->called, "rank %d: collective %llu was agreed on, and it had called %llu", ranks_rank(),
           (unsigned long long)last, (unsigned long long)l->called);
    /* a rank that died behind the last sum was noticed before the sum was looked at */
    if (l->first_op + last > l->op)
        report(is_right(l, &stop), "rank %d: a wrong sum among %d ranks that was agreed on", ranks_rank(), l->self.size);
    must_be_ok(pk_comm_shrink(l->self.comm, 0, NULL, 0, &smaller, NULL), "pk_comm_shrink");
    atomic_store(&ranks_shared()->rank_words[ranks_rank()][SHRINK_US], (monotonic_ns() - begin) / 1000);
    (void)pk_comm_destroy(l->self.comm);
    l->self.comm = smaller;
    must_be_ok(pk_comm_rank(smaller, &l->self.rank), "pk_comm_rank");
    must_be_ok(pk_comm_size(smaller, &l->self.size), "pk_comm_size");
    l->op = l->first_op = l->first_op + last;
    l->called = 0;
}

static int rank_main(void)
{
    struct life l = { .op = 0 };
    bool ended = false;

    gpu_rank_open(&l.self, PK_SM_DEFAULT, TIMEOUT_MS);
    l.in = gpu_alloc(COUNT * sizeof(float));
    l.out = gpu_alloc(COUNT * sizeof(float));
    l.host = malloc(COUNT * sizeof(float));
    if (l.host == NULL)
        return 1;
    while (!ended)
        if (add_up(&l, &ended) != PK_OK)
            go_on(&l);
    (void)pk_comm_destroy(l.self.comm); /* another rank may be through sooner */
    gpu_stream_free(l.self.stream);
    gpu_free(l.in);
    gpu_free(l.out);
    free(l.host);
    return report_end();
}

struct victim { /* how long does the driver need to end a process? Where pidfds are not allowed (fd -1) nobody knows */
    struct pollfd ends;
    int64_t killed_ns, ended_ns;
};

static void look(struct victim *victim, int timeout_ms)
{
    if (victim->ended_ns == 0 && victim->ends.fd >= 0 && poll(&victim->ends, 1, timeout_ms) == 1)
        victim->ended_ns = monotonic_ns();
}

/* All that live have a sum of so many ranks from behind that time. Returns when the last of them had it; -1: not all. */
static int64_t await(const struct ranks *ranks, const bool *alive, int living, int64_t behind_ns, struct victim *victim)
{
    for (int ms = 0; ms < TIMEOUT_MS; ms++) {
        int64_t latest = 0;
        int n = 0;

        look(victim, 0);
        for (int r = 0; r < SIZE; r++) {
            const int64_t at = atomic_load(&ranks->shared->rank_words[r][RIGHT_NS]);

            if (!alive[r] || at <= behind_ns || atomic_load(&ranks->shared->rank_words[r][LIVING]) != living)
                continue;
            latest = at > latest ? at : latest;
            n++;
        }
        if (n == living)
            return latest;
        usleep(1000);
    }
    return -1;
}

static void drive(const int victims[2])
{
    bool alive[SIZE] = { true, true, true, true };
    struct victim killed[2] = { { .ends.fd = -1 }, { .ends.fd = -1 } };
    struct ranks ranks;
    int64_t right;
    int wrong;

    ranks_open(&ranks, SIZE);
    ranks_start_all(&ranks, "life", NULL, NULL);
    right = await(&ranks, alive, SIZE, 0, &killed[0]);
    for (int i = 0; i < 2 && right >= 0; i++) {
        usleep(30000);
        killed[i].ends = (struct pollfd){ .fd = (int)syscall(SYS_pidfd_open, ranks.pids[victims[i]], 0), .events = POLLIN };
        killed[i].killed_ns = monotonic_ns();
        kill(ranks.pids[victims[i]], SIGKILL);
        alive[victims[i]] = false;
        right = await(&ranks, alive, SIZE - 1 - i, killed[i].killed_ns, &killed[i]);
        report(right >= 0, "rank %d is killed: a right sum of the other %d on all after %.1f ms", victims[i], SIZE - 1 - i,
               (double)(right - killed[i].killed_ns) * 1e-6);
    }
    for (int i = 0; i < 2 && killed[i].ends.fd >= 0; i++) {
        look(&killed[i], TIMEOUT_MS);
        printf("rank %d: its process needed %.1f ms to end\n", victims[i],
               (double)(killed[i].ended_ns - killed[i].killed_ns) * 1e-6);
        close(killed[i].ends.fd);
    }
    atomic_store(&ranks.shared->words[STOP], 1);
    wrong = ranks_wait(&ranks, right >= 0 ? TIMEOUT_MS : 1000, -1);
    report(wrong == 2, "%d ranks did not end well, two of which were killed", wrong);
    ranks_close(&ranks);
}

int main(void)
{
    static const int late[2] = { 3, 1 }, early[2] = { 0, 1 };

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    drive(late);
    drive(early);
    return report_end();
}

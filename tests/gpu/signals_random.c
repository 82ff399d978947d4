/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations of several ranks in several CUDA streams, alone and in groups, all in one order: they end, and every byte is right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define OPS 24
#define STREAMS 3
#define MOST ((size_t)1 << 20)

static int number(const char *name, int usual)
{
    return getenv(name) != NULL ? atoi(getenv(name)) : usual;
}

static uint32_t seed;
static uint32_t roll(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

enum kind { MESSAGE, BROADCAST, ALLTOALL, ALLGATHER, SUM, BARRIER, ALLTOALLV, KINDS };
struct op {
    enum kind kind;
    int from, to;
    size_t bytes;
    int stream[16];
    int nap[16];
    bool group[16];
    bool host[16];
    size_t lens[16];
};

struct bed {
    struct gpu_rank self;
    gpu_stream_t streams[STREAMS];
    char *in[OPS], *out[OPS];
    char *hin[OPS], *hout[OPS];
};

static void make(struct op *op, int size)
{
    static const size_t lengths[] = { 8, 1000, 16384, 65536, 300000, MOST };

    op->kind = roll(2) ? MESSAGE : roll(KINDS);
    op->from = (int)roll((uint32_t)size);
    op->to = (op->from + 1 + (int)roll((uint32_t)size - 1)) % size;
    op->bytes = lengths[roll(6)] & ~(size_t)7;
    for (int r = 0; r < size; r++) {
        op->stream[r] = (int)roll(STREAMS);
        op->nap[r] = roll(6) == 0 ? (int)roll(3000) : 0;
        op->group[r] = roll(3) == 0;
        op->host[r] = number("HOST", 0) && op->kind == MESSAGE && roll(4) == 0;
        op->lens[r] = roll(3) == 0 ? 0 : (op->bytes / (roll(4) + 1)) & ~(size_t)7;
    }
}

static bool mine(const struct op *op, int rank)
{
    return op->kind != MESSAGE || op->from == rank || op->to == rank;
}

static void call(struct bed *b, const struct op *op, int i)
{
    int rank = b->self.rank, size = b->self.size;
    pk_comm_t *comm = b->self.comm;
    pk_stream_t s = PK_CUDA_STREAM(b->streams[op->stream[rank]]);
    char *in = op->host[rank] ? b->hin[i] : b->in[i], *out = op->host[rank] ? b->hout[i] : b->out[i];
    size_t so[16], ro[16], rl[16];

    switch (op->kind) {
    case MESSAGE:
        must_be_ok(op->from == rank ? pk_send(in, op->bytes, PK_UINT8, op->to, comm, s)
                                    : pk_recv(out, op->bytes, PK_UINT8, op->from, comm, s),
                   "message");
        return;
    case BROADCAST:
        must_be_ok(
            pk_broadcast(rank == op->from ? in : NULL, rank == op->from ? in : out, op->bytes, PK_UINT8, op->from, comm, s),
            "broadcast");
        return;
    case ALLTOALL:
        must_be_ok(pk_alltoall(in, out, op->bytes, PK_UINT8, comm, s), "alltoall");
        return;
    case ALLTOALLV: /* rank r sends lens[(r + peer) % size] to peer */
        for (int p = 0; p < size; p++) {
            so[p] = ro[p] = (size_t)p * op->bytes;
            rl[p] = op->lens[(rank + p) % size];
        }
        must_be_ok(pk_alltoallv(in, rl, so, out, rl, ro, PK_UINT8, comm, s), "alltoallv");
        return;
    case ALLGATHER:
        must_be_ok(pk_allgather(in, out, op->bytes, PK_UINT8, comm, s), "allgather");
        return;
    case SUM:
        must_be_ok(pk_allreduce(in, out, op->bytes, PK_UINT8, PK_SUM, comm, s), "allreduce");
        return;
    default:
        must_be_ok(pk_barrier(comm, s), "barrier");
    }
}

static unsigned char byte_of(int rank, int i, int round, size_t at)
{
    return (unsigned char)(rank * 37 + i * 11 + round * 5 + (int)(at % 251));
}

static size_t expect(const struct op *op, int rank, int size, int i, int round, size_t *from, size_t *to, size_t at,
                     unsigned char *v)
{
    (void)from;
    (void)to;
    int block = (int)(at / op->bytes);
    size_t in_block = at % op->bytes;
    switch (op->kind) {
    case MESSAGE:
        *v = byte_of(op->from, i, round, at);
        return op->to == rank && at < op->bytes;
    case BROADCAST:
        *v = byte_of(op->from, i, round, at);
        return op->from != rank && at < op->bytes;
    case ALLTOALL:
        *v = byte_of(block, i, round, (size_t)rank * op->bytes + in_block);
        return block < size;
    case ALLTOALLV:
        *v = byte_of(block, i, round, (size_t)rank * op->bytes + in_block);
        return block < size && in_block < op->lens[(rank + block) % size];
    case ALLGATHER:
        *v = byte_of(block, i, round, in_block);
        return block < size;
    case SUM:
        *v = 0;
        for (int r = 0; r < size; r++)
            *v = (unsigned char)(*v + byte_of(r, i, round, at));
        return at < op->bytes;
    default:
        return 0;
    }
}

static const char *names[] = { "message", "broadcast", "alltoall", "allgather", "sum", "barrier", "alltoallv" };

static bool round_of(struct bed *b, int round)
{
    struct op ops[OPS];
    int size = b->self.size, rank = b->self.rank;
    size_t most = MOST * (size_t)size;
    char *host = malloc(most);
    bool open = false, right = true;

    for (int i = 0; i < OPS; i++) {
        make(&ops[i], size);
        size_t n = ops[i].bytes * (size_t)size;
        for (size_t k = 0; k < n; k++)
            host[k] = (char)byte_of(rank, i, round, k);
        gpu_copy(b->in[i], host, n);
        if (ops[i].host[rank])
            memcpy(b->hin[i], host, n);
        memset(host, 0xee, n);
        gpu_copy(b->out[i], host, n);
        if (ops[i].host[rank])
            memset(b->hout[i], 0xee, n);
    }
    ranks_meet();
    for (int i = 0; i < OPS; i++) {
        if (!mine(&ops[i], rank))
            continue;
        if (open && !ops[i].group[rank]) {
            must_be_ok(pk_group_end(), "group");
            open = false;
        }
        if (ops[i].nap[rank])
            usleep((useconds_t)ops[i].nap[rank]);
        if (ops[i].group[rank] && !open) {
            pk_group_start();
            open = true;
        }
        call(b, &ops[i], i);
    }
    if (open)
        must_be_ok(pk_group_end(), "group");
    for (int s = 0; s < STREAMS; s++)
        if (!stream_idle_within(b->streams[s], number("LIMIT", 30000), NULL)) {
            report(false, "rank %d: round %d: stream %d stands still; state %s", rank, round, s,
                   pk_strerror(pk_comm_async_error(b->self.comm)));
            gpu_show_pending(b->self.comm);
            for (int i = 0; i < OPS; i++)
                printf("  rank %d op %d %s %d->%d %zu stream %d group %d host %d\n", rank, i, names[ops[i].kind], ops[i].from,
                       ops[i].to, ops[i].bytes, ops[i].stream[rank], ops[i].group[rank], ops[i].host[rank]);
            right = false;
        }
    for (int i = 0; i < OPS && right; i++) {
        size_t n = ops[i].bytes * (size_t)size;

        if (!mine(&ops[i], rank) || ops[i].kind == BARRIER)
            continue;
        if (ops[i].host[rank])
            memcpy(host, b->hout[i], n);
        else
            gpu_copy(host, b->out[i], n);
        for (size_t k = 0; k < n; k++) {
            unsigned char v = 0;
            if (expect(&ops[i], rank, size, i, round, NULL, NULL, k, &v) && (unsigned char)host[k] != v) {
                right = report(false, "rank %d: round %d op %d: %s %d->%d of %zu is wrong at %zu (%02x, not %02x)", rank, round,
                               i, names[ops[i].kind], ops[i].from, ops[i].to, ops[i].bytes, k, (unsigned char)host[k], v);
                break;
            }
        }
    }
    if (!right)
        atomic_store(&ranks_shared()->words[5], 1);
    free(host);
    ranks_meet();
    return atomic_load(&ranks_shared()->words[5]) == 0;
}

static int rank_main(void)
{
    static struct bed b;
    int rounds = number("ROUNDS", 15);

    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_rank_open(&b.self, number("NO_SM", 0) ? PK_SM_NONE : PK_SM_DEFAULT, 40000);
    for (int s = 0; s < STREAMS; s++)
        b.streams[s] = gpu_stream_new();
    for (int i = 0; i < OPS; i++) {
        b.in[i] = gpu_alloc(MOST * (size_t)b.self.size);
        b.out[i] = gpu_alloc(MOST * (size_t)b.self.size);
        b.hin[i] = malloc(MOST * (size_t)b.self.size);
        b.hout[i] = malloc(MOST * (size_t)b.self.size);
    }
    seed = (uint32_t)number("SEED", 1);
    for (int r = 0; r < rounds; r++)
        if (!round_of(&b, r))
            break;
    fflush(stdout);
    ranks_meet();
    _exit(report_end());
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "rank", .size = number("RANKS", 2), .timeout_ms = 100000 }, "random, seed %d",
                number("SEED", 1));
    return report_end();
}

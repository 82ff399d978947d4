/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives where GPUs may not reach one another (PK_P2P_LEVEL=LOC) are one kernel on each rank, through host memory: in turn one rank comes late,
 * the library's threads stand still from right behind the call on, and every stream ends with the right bytes anyway. What the library says of it
 * is true, its memory is bounded, and descriptors and mappings do not become more with communicators. A rank that is killed is an error of the others, and
 * their kernels end.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"
#include "own_threads.h"

#define DEADLINE_MS 60000
#define LATE_US 20000
#define UNTOUCHED (-1.0f)
#define PINNED_MOST ((uint64_t)64 << 20) /* of a rank, with 8 of them; fewer have less */
#define CYCLES 4
#define SETTLED 1 /* cycles after which nothing is to grow */

enum operation { BROADCAST, REDUCE, ALLREDUCE, REDUCE_SCATTER, ALLGATHER, ALLTOALL, GATHER, SCATTER, OPERATIONS };

static const struct {
    const char *name;
    pk_op_kind_t kind;
    bool in_many, out_many; /* blocks of all ranks */
    bool rooted;
} table[] = {
    [BROADCAST] = { "broadcast", PK_OP_BROADCAST, false, false, true },
    [REDUCE] = { "reduce", PK_OP_REDUCE, false, false, true },
    [ALLREDUCE] = { "allreduce", PK_OP_ALLREDUCE, false, false, false },
    [REDUCE_SCATTER] = { "reduce_scatter", PK_OP_REDUCE_SCATTER, true, false, false },
    [ALLGATHER] = { "allgather", PK_OP_ALLGATHER, false, true, false },
    [ALLTOALL] = { "alltoall", PK_OP_ALLTOALL, true, true, false },
    [GATHER] = { "gather", PK_OP_GATHER, false, true, true },
    [SCATTER] = { "scatter", PK_OP_SCATTER, true, false, true },
};

/* Elements of a block; the last one for two ranks and some operations alone. Two are no whole numbers of vectors. */
static const size_t counts[] = { 2, 1024, 33333, 262144, 300001, (20 << 20) / sizeof(float) };

#define COUNTS (int)(sizeof counts / sizeof counts[0])

struct bed {
    struct gpu_rank self;
    size_t most; /* elements of a buffer */
    float *in, *out, *host;
    unsigned turn, wrong;
};

static size_t longest(const struct bed *bed)
{
    return counts[bed->self.size == 2 ? COUNTS - 1 : COUNTS - 2];
}

static void open_bed(struct bed *bed)
{
    *bed = (struct bed){ .turn = 0 };
    gpu_rank_open(&bed->self, PK_SM_DEFAULT, DEADLINE_MS);
    bed->most = longest(bed) * (size_t)bed->self.size;
    bed->in = gpu_alloc(bed->most * sizeof(float));
    bed->out = gpu_alloc(bed->most * sizeof(float));
    bed->host = malloc(bed->most * sizeof(float));
    if (bed->host == NULL)
        exit(2);
}

static void close_bed(struct bed *bed)
{
    gpu_rank_close(&bed->self);
    gpu_free(bed->in);
    gpu_free(bed->out);
    free(bed->host);
}

/* What rank `rank` has at `i` in turn `turn`: whole numbers, exact in any order of additions, other ones each time. */
static float given(int rank, unsigned turn, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13 + turn * 5) % 61);
}

static float total(const struct bed *bed, size_t i)
{
    float sum = 0;

    for (int r = 0; r < bed->self.size; r++)
        sum += given(r, bed->turn, i);
    return sum;
}

/* What `out` of this rank holds at `i` afterwards. */
static float expected(const struct bed *bed, enum operation op, size_t n, int root, size_t i)
{
    const int rank = bed->self.rank, block = (int)(i / n);
    const size_t own = (size_t)rank * n + i % n;

    if (block >= (table[op].out_many ? bed->self.size : 1) || ((op == REDUCE || op == GATHER) && rank != root))
        return UNTOUCHED;
    switch (op) {
    case BROADCAST:
        return given(root, bed->turn, i);
    case REDUCE:
    case ALLREDUCE:
        return total(bed, i);
    case REDUCE_SCATTER:
        return total(bed, own);
    case ALLTOALL:
        return given(block, bed->turn, own);
    case SCATTER:
        return given(root, bed->turn, own);
    default:
        return given(block, bed->turn, i % n);
    }
}

static pk_result_t call(struct bed *bed, enum operation op, size_t n, int root)
{
    pk_comm_t *comm = bed->self.comm;
    pk_stream_t stream = bed->self.in_stream;

    switch (op) {
    case BROADCAST:
        return pk_broadcast(bed->in, bed->out, n, PK_F32, root, comm, stream);
    case REDUCE:
        return pk_reduce(bed->in, bed->out, n, PK_F32, PK_SUM, root, comm, stream);
    case ALLREDUCE:
        return pk_allreduce(bed->in, bed->out, n, PK_F32, PK_SUM, comm, stream);
    case REDUCE_SCATTER:
        return pk_reduce_scatter(bed->in, bed->out, n, PK_F32, PK_SUM, comm, stream);
    case ALLGATHER:
        return pk_allgather(bed->in, bed->out, n, PK_F32, comm, stream);
    case ALLTOALL:
        return pk_alltoall(bed->in, bed->out, n, PK_F32, comm, stream);
    case GATHER:
        return pk_gather(bed->in, bed->out, n, PK_F32, root, comm, stream);
    default:
        return pk_scatter(bed->in, bed->out, n, PK_F32, root, comm, stream);
    }
}

/* Blocks one behind another that are not whole vectors go by kernels up to 512 KiB. */
static bool is_tried(enum operation op, size_t n)
{
    if (n == counts[COUNTS - 1] && op != ALLREDUCE && op != REDUCE_SCATTER && op != ALLTOALL)
        return false;
    return n * sizeof(float) <= (512u << 10) || n * sizeof(float) % 16 == 0 || !(table[op].in_many || table[op].out_many);
}

static void explain(const struct bed *bed, enum operation op, size_t n, int root)
{
    pk_explanation_t e = { .struct_size = sizeof e };

    must_be_ok(pk_explain(bed->self.comm, table[op].kind, n, PK_F32, PK_MEM_DEVICE, 0, root, &e), "pk_explain");
    if (strcmp(e.algorithm, "fused") != 0 || strcmp(e.transports, "shm") != 0)
        report(false, "rank %d: %s of %zu elements is %s over %s", bed->self.rank, table[op].name, n, e.algorithm, e.transports);
}

static void prepare(struct bed *bed, size_t n)
{
    const size_t all = n * (size_t)bed->self.size;

    for (size_t i = 0; i < all; i++)
        bed->host[i] = given(bed->self.rank, bed->turn, i);
    gpu_copy(bed->in, bed->host, all * sizeof(float));
    for (size_t i = 0; i < all; i++)
        bed->host[i] = UNTOUCHED;
    gpu_copy(bed->out, bed->host, all * sizeof(float));
}

static void check(struct bed *bed, enum operation op, size_t n, int root)
{
    const size_t all = n * (size_t)bed->self.size;
    size_t at = 0;

    gpu_copy(bed->host, bed->out, all * sizeof(float));
    while (at < all && bed->host[at] == expected(bed, op, n, root, at))
        at++;
    if (at < all && bed->wrong++ < 5)
        report(false, "rank %d: %s of %zu elements: wrong at %zu: %g", bed->self.rank, table[op].name, n, at,
               (double)bed->host[at]);
}

static void one(struct bed *bed, enum operation op, size_t n)
{
    const struct gpu_rank *self = &bed->self;
    const int root = (int)(bed->turn % (unsigned)self->size), late = (int)(bed->turn / 2 % (unsigned)self->size);
    int stopped;
    bool idle;

    explain(bed, op, n, root);
    prepare(bed, n);
    ranks_meet();
    if (self->rank == late)
        usleep(LATE_US);
    must_be_ok(call(bed, op, n, root), table[op].name);
    stopped = own_threads_stop();
    idle = stream_idle_within(self->stream, DEADLINE_MS, NULL);
    own_threads_go();
    if (!idle || stopped < 0) {
        report(false, "rank %d: %s of %zu elements: %s", self->rank, table[op].name, n,
               idle ? "a thread of the library never slept" : "the stream does not end while the library's threads stand still");
        exit(1);
    }
    must_be_ok(pk_comm_async_error(self->comm), "pk_comm_async_error");
    check(bed, op, n, root);
    bed->turn++;
}

static void look_at_memory(const struct bed *bed)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    must_be_ok(pk_comm_stats(bed->self.comm, &stats), "pk_comm_stats");
    report(stats.pinned_bytes > 0 && stats.pinned_bytes * 7 <= PINNED_MOST * (uint64_t)(bed->self.size - 1),
           "rank %d of %d: %llu bytes of pinned memory", bed->self.rank, bed->self.size, (unsigned long long)stats.pinned_bytes);
}

static int operations_main(void)
{
    struct bed bed;

    open_bed(&bed);
    for (int c = 0; c < COUNTS && counts[c] <= longest(&bed); c++)
        for (int op = 0; op < OPERATIONS; op++)
            if (is_tried((enum operation)op, counts[c]))
                one(&bed, (enum operation)op, counts[c]);
    report(bed.wrong == 0, "rank %d of %d: %u collectives with the library's threads stopped, %u wrong", bed.self.rank,
           bed.self.size, bed.turn, bed.wrong);
    look_at_memory(&bed);
    close_bed(&bed);
    return report_end();
}

/* ---- what stays ---- */

static int shared_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        n += strstr(line, "pickle-mem") != NULL;
    if (maps != NULL)
        fclose(maps);
    return n;
}

static int cycles_main(void)
{
    int files = 0, maps = 0;
    bool flat = true;

    for (int i = 0; i < CYCLES; i++) {
        struct bed bed;

        open_bed(&bed);
        one(&bed, ALLREDUCE, counts[i % 4]);
        close_bed(&bed);
        if (i == SETTLED) {
            files = open_files();
            maps = shared_mappings();
        }
        if (i > SETTLED)
            flat = flat && open_files() <= files && shared_mappings() <= maps;
    }
    report(flat && maps == 0, "rank %d: %d files and %d mappings stay", ranks_rank(), files, maps);
    return report_end();
}

/* ---- a rank dies ---- */

static int dies_main(void)
{
    struct bed bed;
    pk_result_t result;

    open_bed(&bed);
    one(&bed, ALLREDUCE, counts[0]);
    ranks_meet();
    if (bed.self.rank == 1)
        (void)kill(getpid(), SIGKILL);
    result = call(&bed, ALLREDUCE, longest(&bed), 0);
    if (!stream_idle_within(bed.self.stream, DEADLINE_MS * test_slack(), NULL)) {
        report(false, "rank %d: the stream does not end when a rank has died", bed.self.rank);
        exit(1);
    }
    if (result == PK_OK)
        result = pk_comm_async_error(bed.self.comm);
    report(result == PK_ERR_PEER, "rank %d: a rank has died: %s", bed.self.rank, pk_strerror(result));
    (void)pk_comm_abort(bed.self.comm);
    (void)pk_comm_destroy(bed.self.comm);
    return report_end();
}

static void drive_dying(void)
{
    struct ranks ranks;

    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, "dies", NULL, NULL);
    report(ranks_wait(&ranks, DEADLINE_MS, 1) == 0, "rank 1 of two is killed");
    ranks_close(&ranks);
}

int main(void)
{
    const char *role = ranks_role();

    if (role != NULL)
        return strcmp(role, "cycles") == 0 ? cycles_main() : strcmp(role, "dies") == 0 ? dies_main() : operations_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    setenv("PK_P2P_LEVEL", "LOC", 1);
    for (int size = 2; size <= gpu_ranks(4); size++)
        ranks_drive(&(struct ranks_turn){ .role = "operations", .size = size, .timeout_ms = 100000 }, "%d ranks", size);
    ranks_drive(&(struct ranks_turn){ .role = "cycles", .size = 2 }, "communicators one after another");
    drive_dying();
    return report_end();
}

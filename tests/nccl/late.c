/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process with two ranks: a thread each, or one thread for both. Rank 1 calls an operation later than rank 0, which meanwhile
 * asks something of the driver. It runs over NCCL as well (LD_LIBRARY_PATH), for what ends over one has to end over the other.
 *
 * usage: nccl.late [LATE_MS]
 */
#include <pthread.h>

#include "bed.h"
#include "ptx.h"

#define USUAL_LATE_MS 20
#define WATCHDOG_S 15 /* an operation */
#define STREAMS 100
#define SPARE_BYTES ((size_t)4 << 20)
#define LENGTHS 3

enum mode { THREADS, ONE_THREAD, MODES };
enum what { ALLOCATE, SYNCHRONISE, MAKE_STREAMS, LOAD, FREE, LAUNCH, WHATS };

static const char *const mode_names[] = { "a thread a rank", "one thread" };
static const char *const what_names[] = { "allocates memory", "waits for the context", "makes streams",
                                          "loads a module",   "frees memory",          "launches a kernel for the first time" };

struct op {
    const char *name;
    void (*call)(int rank, size_t count);
    float (*expected)(int rank, size_t count, size_t i); /* NOTHING: it is not written */
    int blocks;                                          /* of the output */
};

#define NOTHING (-1.0F)

static pkn_comm_t comms[2];
static gpu_stream_t streams[2];
static float *in[2], *out[2], *host;
static unsigned late_us;

static float value(int rank, size_t i)
{
    return (float)(rank * 10 + (int)(i % 7));
}

static float total(size_t i)
{
    return value(0, i) + value(1, i);
}

/* ---- the operations ---- */

static void call_allreduce(int rank, size_t count)
{
    MUST(ncclAllReduce(in[rank], out[rank], count, PKN_FLOAT32, PKN_SUM, comms[rank], streams[rank]));
}

static float of_all(int rank, size_t count, size_t i)
{
    (void)rank;
    (void)count;
    return total(i);
}

static void call_reduce(int rank, size_t count)
{
    MUST(ncclReduce(in[rank], out[rank], count, PKN_FLOAT32, PKN_SUM, 1, comms[rank], streams[rank]));
}

static float at_rank_1(int rank, size_t count, size_t i)
{
    (void)count;
    return rank == 1 ? total(i) : NOTHING;
}

static void call_broadcast(int rank, size_t count)
{
    MUST(ncclBroadcast(in[rank], out[rank], count, PKN_FLOAT32, 0, comms[rank], streams[rank]));
}

static float of_rank_0(int rank, size_t count, size_t i)
{
    (void)rank;
    (void)count;
    return value(0, i);
}

static void call_allgather(int rank, size_t count)
{
    MUST(ncclAllGather(in[rank], out[rank], count, PKN_FLOAT32, comms[rank], streams[rank]));
}

static float of_each(int rank, size_t count, size_t i)
{
    (void)rank;
    return value((int)(i / count), i % count);
}

static void call_reduce_scatter(int rank, size_t count)
{
    MUST(ncclReduceScatter(in[rank], out[rank], count, PKN_FLOAT32, PKN_SUM, comms[rank], streams[rank]));
}

static float own_part(int rank, size_t count, size_t i)
{
    return total((size_t)rank * count + i);
}

static void call_alltoall(int rank, size_t count)
{
    MUST(ncclAlltoAll(in[rank], out[rank], count, PKN_FLOAT32, comms[rank], streams[rank]));
}

static float part_of_each(int rank, size_t count, size_t i)
{
    return value((int)(i / count), (size_t)rank * count + i % count);
}

static void call_send(int rank, size_t count)
{
    if (rank == 0)
        MUST(ncclSend(in[0], count, PKN_FLOAT32, 1, comms[0], streams[0]));
    else
        MUST(ncclRecv(out[1], count, PKN_FLOAT32, 0, comms[1], streams[1]));
}

static float sent_to_1(int rank, size_t count, size_t i)
{
    (void)count;
    return rank == 1 ? value(0, i) : NOTHING;
}

static void call_receive(int rank, size_t count)
{
    if (rank == 0)
        MUST(ncclRecv(out[0], count, PKN_FLOAT32, 1, comms[0], streams[0]));
    else
        MUST(ncclSend(in[1], count, PKN_FLOAT32, 0, comms[1], streams[1]));
}

static float sent_to_0(int rank, size_t count, size_t i)
{
    (void)count;
    return rank == 0 ? value(1, i) : NOTHING;
}

static void call_exchange(int rank, size_t count)
{
    MUST(ncclGroupStart());
    MUST(ncclSend(in[rank], count, PKN_FLOAT32, 1 - rank, comms[rank], streams[rank]));
    MUST(ncclRecv(out[rank], count, PKN_FLOAT32, 1 - rank, comms[rank], streams[rank]));
    MUST(ncclGroupEnd());
}

static float of_the_other(int rank, size_t count, size_t i)
{
    (void)count;
    return value(1 - rank, i);
}

static const struct op ops[] = {
    { "allreduce", call_allreduce, of_all, 1 },
    { "reduce", call_reduce, at_rank_1, 1 },
    { "broadcast", call_broadcast, of_rank_0, 1 },
    { "allgather", call_allgather, of_each, 2 },
    { "reduce_scatter", call_reduce_scatter, own_part, 1 },
    { "alltoall", call_alltoall, part_of_each, 2 },
    { "send", call_send, sent_to_1, 1 },
    { "receive", call_receive, sent_to_0, 1 },
    { "exchange", call_exchange, of_the_other, 1 },
};

#define OPS (int)(sizeof ops / sizeof ops[0])

/* ---- what the program asks of the driver ---- */

struct asked {
    gpu_kernel_t kernel;
    void *spare;
    uint32_t *flag;
    gpu_stream_t side, made[STREAMS];
};

static void prepare(struct asked *asked, enum what what)
{
    if (what == FREE)
        asked->spare = gpu_alloc(SPARE_BYTES);
    if (what == LAUNCH)
        asked->kernel = gpu_kernel_load(ptx_spin, PTX_SPIN);
}

static void ask(struct asked *asked, enum what what)
{
    void *params[] = { &asked->flag };

    switch (what) {
    case ALLOCATE:
        asked->spare = gpu_alloc(SPARE_BYTES);
        break;
    case MAKE_STREAMS:
        for (int i = 0; i < STREAMS; i++)
            asked->made[i] = gpu_stream_new();
        break;
    case LOAD:
        asked->kernel = gpu_kernel_load(ptx_spin, PTX_SPIN);
        break;
    case FREE:
        gpu_free(asked->spare);
        asked->spare = NULL;
        break;
    case LAUNCH:
        gpu_kernel_launch(asked->kernel, 1, 32, params, asked->side);
        break;
    default:
        (void)gpu_context_sync();
    }
}

static void clear_up(struct asked *asked)
{
    for (int i = 0; i < STREAMS; i++) {
        if (asked->made[i] != NULL)
            gpu_stream_free(asked->made[i]);
        asked->made[i] = NULL;
    }
    if (asked->spare != NULL)
        gpu_free(asked->spare);
    asked->spare = NULL;
}

/* ---- one operation ---- */

struct late_call {
    const struct op *op;
    size_t count;
};

static void *rank_1(void *arg)
{
    const struct late_call *late = arg;

    usleep(late_us);
    gpu_use(1);
    late->op->call(1, late->count);
    return NULL;
}

static bool is_right(const struct op *op, int rank, size_t count)
{
    size_t all = count * (size_t)op->blocks;

    if (op->expected(rank, count, 0) == NOTHING)
        return true;
    gpu_use(rank);
    bed_download(host, out[rank], all);
    for (size_t i = 0; i < all; i++)
        if (host[i] != op->expected(rank, count, i))
            return false;
    return true;
}

/* All that a first use makes is there afterwards. */
static void warm_up(const struct op *op, size_t count)
{
    MUST(ncclGroupStart());
    for (int r = 0; r < 2; r++)
        op->call(r, count);
    MUST(ncclGroupEnd());
    for (int r = 0; r < 2; r++)
        if (!bed_idle(streams[r]))
            exit(1);
}

static bool one(struct asked *asked, const struct op *op, size_t count, enum mode mode, enum what what)
{
    struct late_call late = { op, count };
    pthread_t thread;
    bool right = true;

    alarm(WATCHDOG_S);
    warm_up(op, count);
    for (int r = 0; r < 2; r++) {
        gpu_use(r);
        gpu_fill(out[r], 0xee, count * (size_t)op->blocks * sizeof(float));
    }
    gpu_use(0);
    prepare(asked, what);
    if (mode == THREADS && pthread_create(&thread, NULL, rank_1, &late) != 0)
        exit(1);
    op->call(0, count);
    ask(asked, what);
    if (mode == THREADS)
        pthread_join(thread, NULL);
    else
        rank_1(&late);
    for (int r = 0; r < 2; r++)
        right = bed_idle(streams[r]) && is_right(op, r, count) && right;
    gpu_use(0);
    clear_up(asked);
    alarm(0);
    return right;
}

/* ---- the process ---- */

enum { AT_OP, AT_LENGTH }; /* words */

static void open_ranks(size_t most, struct asked *asked)
{
    MUST(ncclCommInitAll(comms, 2, NULL));
    host = malloc(2 * most * sizeof *host);
    for (int r = 0; r < 2; r++) {
        gpu_use(r);
        streams[r] = gpu_stream_new();
        for (size_t i = 0; i < 2 * most; i++)
            host[i] = value(r, i);
        in[r] = bed_upload(host, 2 * most);
        out[r] = bed_upload(host, 2 * most);
    }
    gpu_use(0);
    asked->side = gpu_stream_new();
    asked->flag = gpu_host_alloc(sizeof *asked->flag);
    *asked->flag = 1;
}

static bool is_software(void)
{
    char name[64] = "";

    gpu_name(0, name, sizeof name);
    return strncmp(name, "Fake", 4) == 0;
}

/* number: the mode, the call, and how late. */
static int run_cells(int number)
{
    const size_t counts[LENGTHS] = { 1024, 1 << 18, (is_software() ? (size_t)1 : 32) << 19 };
    enum mode mode = (enum mode)(number % MODES);
    enum what what = (enum what)(number / MODES % WHATS);
    struct asked asked = { 0 };

    late_us = (unsigned)(number / MODES / WHATS) * 1000;
    open_ranks(counts[LENGTHS - 1], &asked);
    for (int op = 0; op < OPS; op++)
        for (int length = 0; length < LENGTHS; length++) {
            atomic_store(&bed_shared()->words[AT_OP], op);
            atomic_store(&bed_shared()->words[AT_LENGTH], length);
            if (!one(&asked, &ops[op], counts[length], mode, what))
                return 1;
        }
    for (int r = 0; r < 2; r++)
        MUST(ncclCommDestroy(comms[r]));
    return 0;
}

static int run(enum mode mode, enum what what, int late_ms)
{
    return bed_wait(bed_start("cells", (int)mode + MODES * ((int)what + WHATS * late_ms)));
}

/* In these the driver waits for what is on the GPU, and so the one thread for its own next call: over NCCL too. */
static bool can_end(enum mode mode, enum what what)
{
    return mode == THREADS || what == ALLOCATE || what == LAUNCH;
}

int main(int argc, char **argv)
{
    int late_ms = argc > 1 ? atoi(argv[1]) : USUAL_LATE_MS, number;

    if (!bed_has_gpus(2)) /* opens the driver, too */
        return BED_SKIPPED;
    if (bed_role(&number) != NULL)
        return run_cells(number);
    for (enum mode mode = THREADS; mode < MODES; mode++)
        for (enum what what = ALLOCATE; what < WHATS; what++) {
            int code = can_end(mode, what) ? run(mode, what, late_ms) : 0;
            const char *op = ops[atomic_load(&bed_shared()->words[AT_OP])].name;
            int length = atomic_load(&bed_shared()->words[AT_LENGTH]);

            if (can_end(mode, what))
                check(code == 0, "%s, rank 0 %s: the last was %s, length %d", mode_names[mode], what_names[what], op, length);
        }
    return bed_end();
}

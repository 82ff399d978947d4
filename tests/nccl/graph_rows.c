/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As nccl-tests does with -G 1: one thread, two GPUs; all sizes once, nothing among them; then each with one operation by itself and two in a graph,
 * which is destroyed at once; then the communicators, one after another. Operations in graphs are counted by themselves, and they come to
 * the number of the one by itself before them, which has yet to end.
 */
#include "bed.h"

#define GPUS 2
#define MOST ((size_t)1 << 20) /* bytes of all ranks */
#define FLOATS (MOST / sizeof(float))
#define ROUNDS 2
#define IN_A_GRAPH 2

static pkn_comm_t comms[GPUS];
static gpu_stream_t streams[GPUS];
static float *in[GPUS], *out[GPUS], *host;

typedef void call_t(int g, size_t count);

static void allgather(int g, size_t count)
{
    MUST(ncclAllGather(in[g], out[g], count, PKN_FLOAT32, comms[g], streams[g]));
}

static void alltoall(int g, size_t count)
{
    MUST(ncclAlltoAll(in[g], out[g], count, PKN_FLOAT32, comms[g], streams[g]));
}

static void gather(int g, size_t count)
{
    MUST(ncclGather(in[g], out[g], count, PKN_FLOAT32, 0, comms[g], streams[g]));
}

static void scatter(int g, size_t count)
{
    MUST(ncclScatter(out[g], in[g], count, PKN_FLOAT32, 0, comms[g], streams[g]));
}

static void reduce_scatter(int g, size_t count)
{
    MUST(ncclReduceScatter(out[g], in[g], count, PKN_FLOAT32, PKN_SUM, comms[g], streams[g]));
}

static void allreduce(int g, size_t count)
{
    MUST(ncclAllReduce(in[g], out[g], count, PKN_FLOAT32, PKN_SUM, comms[g], streams[g]));
}

static const struct {
    const char *name;
    call_t *call;
} ops[] = {
    { "allgather", allgather },           { "alltoall", alltoall },   { "gather", gather }, { "scatter", scatter },
    { "reduce_scatter", reduce_scatter }, { "allreduce", allreduce },
};

#define OPS (int)(sizeof ops / sizeof ops[0])

static void group(call_t *call, size_t count)
{
    MUST(ncclGroupStart());
    for (int g = 0; g < GPUS; g++)
        call(g, count);
    MUST(ncclGroupEnd());
}

static bool idle(void)
{
    bool all = true;

    for (int g = 0; g < GPUS; g++)
        all = bed_idle(streams[g]) && all;
    return all;
}

/* In a graph for each GPU, replayed once. */
static bool replayed(call_t *call, size_t count)
{
    gpu_graph_t graphs[GPUS];
    bool ended;

    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        gpu_capture_begin(streams[g]);
    }
    for (int i = 0; i < IN_A_GRAPH; i++)
        group(call, count);
    if (gpu_capture_end_all(streams, GPUS, graphs) != 0)
        return false;
    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        gpu_graph_launch(graphs[g], streams[g]);
    }
    ended = idle();
    for (int g = 0; g < GPUS; g++)
        gpu_graph_free(graphs[g]);
    return ended;
}

static bool row(call_t *call, size_t count)
{
    group(call, count);
    return replayed(call, count);
}

static void open_ranks(void)
{
    MUST(ncclCommInitAll(comms, GPUS, NULL));
    host = malloc(FLOATS * sizeof *host);
    for (size_t i = 0; i < FLOATS; i++)
        host[i] = (float)(i % 7);
    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        streams[g] = gpu_stream_new();
        in[g] = bed_upload(host, FLOATS);
        out[g] = bed_upload(host, FLOATS);
    }
}

/* Of a rank: whole 16 bytes. */
static size_t count_of(size_t bytes)
{
    return bytes / sizeof(float) / GPUS & ~(size_t)3;
}

static int one(int op)
{
    open_ranks();
    for (size_t bytes = 8; bytes <= MOST; bytes *= 2) {
        group(ops[op].call, count_of(bytes));
        if (!check(idle(), "%s of %zu bytes", ops[op].name, bytes))
            return bed_end();
    }
    for (int i = 0; i < ROUNDS; i++)
        for (size_t bytes = 8; bytes <= MOST; bytes *= 2)
            if (!check(row(ops[op].call, count_of(bytes)), "%s of %zu bytes, alone and in graphs", ops[op].name, bytes))
                return bed_end();
    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        MUST(ncclCommDestroy(comms[g]));
    }
    check(true, "%s: destroyed", ops[op].name);
    return bed_end();
}

int main(void)
{
    int op;

    if (!bed_has_gpus(GPUS))
        return BED_SKIPPED;
    if (bed_role(&op) != NULL)
        return one(op);
    for (op = 0; op < OPS; op++)
        check(bed_wait(bed_start("rows", op)) == 0, "%s", ops[op].name);
    return bed_end();
}

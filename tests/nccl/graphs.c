/* SPDX-License-Identifier: Apache-2.0 */
/* Operations in CUDA graphs, of one thread that drives two GPUs: captured in a group, replayed with changing data. The memory
 * is NCCL's and CUDA's, and nobody has registered it. */
#include "bed.h"

#define GPUS 2
#define COUNT ((size_t)3000)
#define REPLAYS 5

static pkn_comm_t comms[GPUS];
static gpu_stream_t streams[GPUS];
static float *buffers[GPUS], *results[GPUS];

static void prepare(void)
{
    MUST(ncclCommInitAll(comms, GPUS, NULL));
    for (int g = 0; g < GPUS; g++) {
        void *memory;

        gpu_use(g);
        streams[g] = gpu_stream_new();
        MUST(ncclMemAlloc(&memory, COUNT * sizeof(float)));
        buffers[g] = memory;
        results[g] = gpu_alloc(COUNT * sizeof(float));
    }
}

static bool end_capture(gpu_graph_t graphs[GPUS])
{
    return check(gpu_capture_end_all(streams, GPUS, graphs) == 0, "both captures end");
}

static bool capture(gpu_graph_t graphs[GPUS])
{
    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        gpu_capture_begin(streams[g]);
    }
    MUST(ncclGroupStart());
    for (int g = 0; g < GPUS; g++)
        MUST(ncclAllReduce(buffers[g], results[g], COUNT, PKN_FLOAT32, PKN_SUM, comms[g], streams[g]));
    MUST(ncclGroupEnd());
    return end_capture(graphs);
}

/* As torch's all_to_all does: each rank sends a part to every rank, itself among them. */
static bool capture_exchange(gpu_graph_t graphs[GPUS])
{
    const size_t part = COUNT / GPUS;

    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        gpu_capture_begin(streams[g]);
    }
    MUST(ncclGroupStart());
    for (int g = 0; g < GPUS; g++)
        for (int p = 0; p < GPUS; p++) {
            MUST(ncclSend(buffers[g] + (size_t)p * part, part, PKN_FLOAT32, p, comms[g], streams[g]));
            MUST(ncclRecv(results[g] + (size_t)p * part, part, PKN_FLOAT32, p, comms[g], streams[g]));
        }
    MUST(ncclGroupEnd());
    return end_capture(graphs);
}

/* Behind a replay of the allreduce, whose buffers hold what `turn` says. */
static void replay_exchange(gpu_graph_t graphs[GPUS], int turn)
{
    const size_t part = COUNT / GPUS;
    float host[COUNT];
    size_t wrong = 0;

    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        gpu_graph_launch(graphs[g], streams[g]);
    }
    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        check(bed_idle(streams[g]), "exchange: rank %d has ended", g);
        bed_download(host, results[g], COUNT);
        for (size_t i = 0; i < COUNT; i++)
            wrong += host[i] != (float)((int)(((size_t)g * part + i % part) % 50) + (int)(i / part) + 10 * turn);
    }
    check(wrong == 0, "exchange: %zu elements are wrong", wrong);
}

static void replay(gpu_graph_t graphs[GPUS], int turn)
{
    float host[COUNT];
    size_t wrong = 0;

    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        for (size_t i = 0; i < COUNT; i++)
            host[i] = (float)((int)(i % 50) + g + 10 * turn);
        gpu_copy(buffers[g], host, sizeof host);
    }
    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        gpu_graph_launch(graphs[g], streams[g]);
    }
    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        check(bed_idle(streams[g]), "replay %d: rank %d has ended", turn, g);
        bed_download(host, results[g], COUNT);
        for (size_t i = 0; i < COUNT; i++)
            wrong += host[i] != (float)(2 * (int)(i % 50) + 1 + 20 * turn);
    }
    check(wrong == 0, "replay %d: %zu elements are wrong", turn, wrong);
}

int main(void)
{
    gpu_graph_t graphs[GPUS], exchanges[GPUS];

    if (!bed_has_gpus(GPUS))
        return BED_SKIPPED;
    prepare();
    if (!capture(graphs) || !capture_exchange(exchanges))
        return bed_end();
    for (int turn = 0; turn < REPLAYS; turn++)
        replay(graphs, turn);
    replay_exchange(exchanges, REPLAYS - 1);
    for (int g = 0; g < GPUS; g++) {
        gpu_use(g);
        gpu_graph_free(graphs[g]);
        gpu_graph_free(exchanges[g]);
        MUST(ncclCommDestroy(comms[g]));
        MUST(ncclMemFree(buffers[g]));
        gpu_free(results[g]);
    }
    return bed_end();
}

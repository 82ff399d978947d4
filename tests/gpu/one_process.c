/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ranks in one process, by one thread, with a GPU each: the kernels of one write to the other's memory at its own address.
 * One leaves, by pk_comm_abort and by pk_comm_destroy, and the other calls a collective; or both leave while collectives are
 * in their streams, or in the middle of init; or one leaves while replays of the other wait for it. The error is one of the library's, and both contexts go on working.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu_rank.h"

#define COUNT ((size_t)64)
#define TIMEOUT_MS 20000
#define ROUNDS 10
#define QUEUED 20
#define INITS 30
#define LATER_US 900 /* each init is called off so much later than the one before */

enum way { ABORTS, DESTROYS, BOTH_LEAVE };

static const char *const names[] = { "one aborts", "one destroys", "both abort with collectives in their streams" };

static gpu_stream_t streams[2];
static float *memory[2];

static bool begin(pk_comm_t *comms[2])
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_unique_id_t id;
    bool has_begun = pk_get_unique_id(&id) == PK_OK;

    config.nonblocking = 1;
    config.timeout_ms = TIMEOUT_MS;
    for (int g = 0; g < 2 && has_begun; g++) {
        config.device = PK_DEVICE_CUDA(g);
        has_begun = pk_comm_init_rank(&comms[g], 2, g, &id, &config) == PK_IN_PROGRESS;
    }
    return has_begun;
}

static bool open_comms(pk_comm_t *comms[2])
{
    bool is_open = begin(comms);

    for (int g = 0; g < 2 && is_open; g++) {
        while (pk_comm_async_error(comms[g]) == PK_IN_PROGRESS)
            usleep(500);
        is_open = pk_comm_async_error(comms[g]) == PK_OK;
    }
    return is_open;
}

static pk_result_t add(int gpu, pk_comm_t *comm)
{
    return pk_allreduce(memory[gpu], memory[gpu], COUNT, PK_F32, PK_SUM, comm, PK_CUDA_STREAM(streams[gpu]));
}

static void leave(pk_comm_t *comm, bool aborts)
{
    if (aborts)
        (void)pk_comm_abort(comm);
    (void)pk_comm_destroy(comm);
}

/* Of rank 1, when rank 0 has left. */
static bool is_told(pk_comm_t *comm)
{
    double until = monotonic_ms() + TIMEOUT_MS * test_slack();
    pk_result_t result = add(1, comm);

    while (result == PK_OK && monotonic_ms() < until) {
        usleep(500);
        result = pk_comm_async_error(comm);
    }
    return result == PK_ERR_ABORTED || result == PK_ERR_PEER;
}

static bool context_works(int gpu)
{
    int code;

    gpu_use(gpu);
    if (!stream_idle_within(streams[gpu], TIMEOUT_MS * test_slack(), NULL))
        return false;
    code = gpu_context_sync();
    if (code != 0)
        return report(false, "GPU %d: %s", gpu, gpu_error(code));
    gpu_fill(memory[gpu], 0, COUNT * sizeof(float));
    return gpu_context_sync() == 0;
}

static bool one_round(enum way way)
{
    pk_comm_t *comms[2] = { NULL, NULL };
    bool passed = open_comms(comms);

    if (!passed)
        return report(false, "no communicators");
    for (int i = 0; i < (way == BOTH_LEAVE ? QUEUED : 1); i++)
        for (int g = 0; g < 2; g++)
            passed &= add(g, comms[g]) == PK_OK;
    if (way != BOTH_LEAVE)
        passed &= context_works(0) && context_works(1);
    leave(comms[0], way != DESTROYS);
    if (way != BOTH_LEAVE)
        passed &= is_told(comms[1]);
    passed &= way == BOTH_LEAVE || context_works(1);
    leave(comms[1], true);
    return context_works(0) && context_works(1) && passed;
}

static bool capture(pk_comm_t *comms[2], gpu_graph_t graphs[2])
{
    bool passed = true;

    for (int g = 0; g < 2; g++) {
        gpu_use(g);
        gpu_capture_begin(streams[g]);
    }
    passed = pk_group_start() == PK_OK;
    for (int g = 0; g < 2; g++)
        passed &= add(g, comms[g]) == PK_OK;
    passed &= pk_group_end() == PK_OK;
    return gpu_capture_end_all(streams, 2, graphs) == 0 && passed;
}

/* Rank 0 gives up while replays of rank 1 wait for it. */
static bool one_waits(void)
{
    pk_comm_t *comms[2] = { NULL, NULL };
    gpu_graph_t graphs[2];
    bool passed;

    if (!open_comms(comms) || !capture(comms, graphs))
        return report(false, "no graphs");
    for (int g = 0; g < 2; g++) {
        gpu_use(g);
        gpu_graph_launch(graphs[g], streams[g]);
    }
    passed = context_works(0) && context_works(1);
    for (int i = 0; i < QUEUED; i++)
        gpu_graph_launch(graphs[1], streams[1]);
    leave(comms[0], true);
    passed &= context_works(0) && context_works(1);
    gpu_graph_free(graphs[1]);
    gpu_use(0);
    gpu_graph_free(graphs[0]);
    leave(comms[1], true);
    return context_works(0) && context_works(1) && passed;
}

static bool called_off(int number)
{
    pk_comm_t *comms[2] = { NULL, NULL };

    if (!begin(comms))
        return report(false, "no communicators");
    usleep((unsigned)number * LATER_US);
    leave(comms[number % 2], true);
    leave(comms[1 - number % 2], true);
    return context_works(0) && context_works(1);
}

int main(void)
{
    bool passed = true;

    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (int g = 0; g < 2; g++) {
        gpu_use(g);
        streams[g] = gpu_stream_new();
        memory[g] = gpu_alloc(COUNT * sizeof(float));
        gpu_fill(memory[g], 0, COUNT * sizeof(float));
    }
    for (enum way way = ABORTS; way <= BOTH_LEAVE; way++) {
        for (int i = 0; i < ROUNDS && passed; i++)
            passed = one_round(way);
        report(passed, "%s", names[way]);
    }
    for (int i = 0; i < 2 * ROUNDS && passed; i++) {
        if (i == ROUNDS) /* else a kernel */
            setenv("PK_ALGORITHM", "direct", 1);
        passed = one_waits();
    }
    unsetenv("PK_ALGORITHM");
    report(passed, "replays wait for the one that leaves");
    for (int i = 0; i < INITS && passed; i++)
        passed = called_off(i);
    report(passed, "an init is called off");
    return report_end();
}

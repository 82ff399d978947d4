/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of captured operations that nobody has registered: cudaMalloc's and VMM memory in pieces, allocated before the capture
 * or in it, in each mode of capture; replayed while other memory comes and goes, so that peers close mappings and make new ones;
 * freed when the graph is gone, and allocated again, in the same place as a rule. The data is right, and what peers keep mapped
 * stays bounded.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"
#include "gpu_vmm.h"

#define BLOCK ((size_t)96 << 10)
#define AREA (6 * BLOCK) /* sent, received, summed up, gathered from two */
#define ROUNDS 20
#define REPLAYS 3
#define VISITORS 90 /* more than a peer keeps mapped when they are gone */

enum { GLOBAL, THREAD_LOCAL, RELAXED };

static int (*begin_capture)(gpu_stream_t stream, int mode);
static int (*exchange_mode)(int *mode);
static unsigned long (*software_stat)(const char *name); /* NULL: a real driver */

static void find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        exit(2);
    *(void **)&begin_capture = dlsym(library, "cuStreamBeginCapture_v2");
    *(void **)&exchange_mode = dlsym(library, "cuThreadExchangeStreamCaptureMode");
    *(void **)&software_stat = dlsym(library, "fakecuda_stat");
    if (begin_capture == NULL || exchange_mode == NULL)
        exit(2);
}

struct area {
    char *at;
    struct gpu_vmm vmm;
};

/* Also while this thread captures, as frameworks' allocators do. */
static struct area area_new(const struct gpu_rank *self, bool vmm)
{
    struct area area = { .at = NULL };
    int mode = RELAXED;

    (void)exchange_mode(&mode);
    if (vmm)
        area.vmm = gpu_vmm_alloc(self->rank % gpu_count(), AREA);
    area.at = vmm ? area.vmm.ptr : gpu_alloc(AREA);
    (void)exchange_mode(&mode);
    return area;
}

static void area_free(struct area *area)
{
    if (area->vmm.ptr != NULL)
        gpu_vmm_free(&area->vmm);
    else
        gpu_free(area->at);
}

static void operations(struct gpu_rank *self, char *at)
{
    int other = 1 - self->rank;
    float *sum = (float *)(void *)(at + 2 * BLOCK);

    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(at, BLOCK, PK_UINT8, other, self->comm, self->in_stream), "captured pk_send");
    must_be_ok(pk_recv(at + BLOCK, BLOCK, PK_UINT8, other, self->comm, self->in_stream), "captured pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
    must_be_ok(pk_allreduce(sum, sum, BLOCK / sizeof(float), PK_F32, PK_SUM, self->comm, self->in_stream),
               "captured pk_allreduce");
    must_be_ok(pk_allgather(at, at + 4 * BLOCK, BLOCK, PK_UINT8, self->comm, self->in_stream), "captured pk_allgather");
}

static float given(int rank, int key, size_t i)
{
    return (float)((i * 3 + (size_t)(rank * 17 + key)) % 64);
}

static void prepare(const struct gpu_rank *self, char *at, int key)
{
    float *host = malloc(BLOCK);

    if (host == NULL)
        exit(2);
    for (size_t i = 0; i < BLOCK / sizeof(float); i++)
        host[i] = given(self->rank, key, i);
    gpu_fill(at, 0x5a, AREA);
    gpu_copy(at + 2 * BLOCK, host, BLOCK);
    pattern_to_gpu(at, BLOCK, (uint64_t)(2 * key + self->rank));
    free(host);
}

static bool is_right(const struct gpu_rank *self, const char *at, int key)
{
    float *host = malloc(BLOCK);
    bool right = pattern_wrong_on_gpu(at + BLOCK, BLOCK, (uint64_t)(2 * key + 1 - self->rank)) == BLOCK &&
                 pattern_wrong_on_gpu(at + 4 * BLOCK, BLOCK, (uint64_t)(2 * key)) == BLOCK &&
                 pattern_wrong_on_gpu(at + 5 * BLOCK, BLOCK, (uint64_t)(2 * key + 1)) == BLOCK;

    if (host == NULL)
        exit(2);
    gpu_copy(host, at + 2 * BLOCK, BLOCK);
    for (size_t i = 0; i < BLOCK / sizeof(float); i++)
        right = right && host[i] == given(0, key, i) + given(1, key, i);
    free(host);
    return right;
}

static unsigned replay(struct gpu_rank *self, gpu_graph_t graph, char *at, int key)
{
    unsigned wrong = 0;

    for (int turn = 0; turn < REPLAYS; turn++) {
        prepare(self, at, key + turn);
        ranks_meet(); /* a peer may write as soon as this rank replays */
        gpu_graph_launch(graph, self->stream);
        if (!stream_idle_within(self->stream, 20000, NULL)) {
            report(false, "rank %d: replay %d of key %d does not end", self->rank, turn, key);
            gpu_show_pending(self->comm);
            exit(1);
        }
        wrong += !is_right(self, at, key + turn);
    }
    return wrong;
}

/* Other memory is received into and freed: the peer is told to forget it, and closes mappings occasionally. */
static void visitors(struct gpu_rank *self)
{
    char *source = gpu_alloc(BLOCK), *targets[VISITORS];

    for (int i = 0; i < VISITORS; i++) {
        targets[i] = gpu_alloc(BLOCK + (size_t)(i % 7) * 4096);
        must_be_ok(pk_group_start(), "pk_group_start");
        must_be_ok(pk_send(source, BLOCK, PK_UINT8, 1 - self->rank, self->comm, PK_BLOCKING), "pk_send");
        must_be_ok(pk_recv(targets[i], BLOCK, PK_UINT8, 1 - self->rank, self->comm, PK_BLOCKING), "pk_recv");
        must_be_ok(pk_group_end(), "pk_group_end");
    }
    for (int i = 0; i < VISITORS; i++)
        gpu_free(targets[i]);
    gpu_free(source);
}

static void round_of(struct gpu_rank *self, int number, bool vmm)
{
    int mode = number % 3, code;
    bool in_capture = number % 2 == 1;
    struct area area = { .at = NULL };
    unsigned wrong;
    gpu_graph_t graph;

    if (!in_capture)
        area = area_new(self, vmm);
    code = begin_capture(self->stream, mode);
    if (in_capture)
        area = area_new(self, vmm);
    operations(self, area.at);
    if (code == 0)
        code = gpu_capture_end(self->stream, &graph);
    if (!report(code == 0, "rank %d: round %d, capture mode %d: %s", self->rank, number, mode, gpu_error(code)))
        exit(1);
    wrong = replay(self, graph, area.at, 100 * number);
    if (number % 4 == 3) {
        visitors(self);
        wrong += replay(self, graph, area.at, 100 * number + 50);
    }
    ranks_meet();
    gpu_graph_free(graph);
    report(wrong == 0, "rank %d: round %d, %s memory, allocated %s the capture: %u replays wrong", self->rank, number,
           vmm ? "vmm" : "cudaMalloc", in_capture ? "in" : "before", wrong);
    area_free(&area);
}

static unsigned long ranges(void)
{
    return software_stat != NULL ? software_stat("ranges") : 0;
}

static int rank_main(void)
{
    struct gpu_rank self;
    unsigned long before = 0;

    find_driver();
    gpu_rank_open(&self, PK_SM_DEFAULT, 60000);
    for (int number = 0; number < ROUNDS; number++) {
        round_of(&self, number, number % 4 >= 2);
        before = number == ROUNDS / 2 ? ranges() : before;
    }
    report(ranges() < before + 150, "rank %d: %lu ranges of memory half way, %lu at the end", self.rank, before, ranges());
    report(pk_comm_async_error(self.comm) == PK_OK, "rank %d: the communicator is well", self.rank);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "graphs_memory", 120000, "memory of captured operations");
}

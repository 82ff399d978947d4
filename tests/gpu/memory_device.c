/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of pk_mem_alloc_device: with a communicator and without, in a process that has not opened the driver and in a thread
 * that captures a stream; every operation between ranks that have such memory, and between it and other memory; touched by the
 * other GPU of the process; freed by whoever has the pointer, the communicator long gone, and what was freed is the driver's
 * again. Also where the driver has no virtual memory.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

#define BYTES ((size_t)(3 << 20) + 12)
#define COUNT (BYTES / sizeof(float))
#define TURNS 20

static unsigned long driver_count(const char *what)
{
    unsigned long (*stat)(const char *name);
    void *library = gpu_is_software() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;

    if (library == NULL)
        return 0;
    *(void **)&stat = dlsym(library, "fakecuda_stat");
    return stat != NULL ? stat(what) : 0;
}

static void exchange(struct gpu_rank *self, void *mine, void *theirs, const char *what)
{
    int next = (self->rank + 1) % self->size, previous = (self->rank + self->size - 1) % self->size;

    pattern_to_gpu(mine, BYTES, (uint64_t)self->rank);
    pattern_to_gpu(theirs, BYTES, 99);
    ranks_meet();
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(mine, BYTES, PK_INT8, next, self->comm, self->in_stream), "pk_send");
    must_be_ok(pk_recv(theirs, BYTES, PK_INT8, previous, self->comm, self->in_stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
    if (!stream_idle_within(self->stream, 20000, NULL))
        exit(report(false, "rank %d: %s does not end", self->rank, what) + 1);
    report(pattern_wrong_on_gpu(theirs, BYTES, (uint64_t)previous) == BYTES, "rank %d: %s", self->rank, what);
}

static void reduce(struct gpu_rank *self, float *memory)
{
    float *host = malloc(BYTES);
    size_t wrong = 0;

    if (host == NULL)
        exit(2);
    for (size_t i = 0; i < COUNT; i++)
        host[i] = (float)(i % 100) + (float)self->rank;
    gpu_copy(memory, host, BYTES);
    ranks_meet();
    must_be_ok(pk_allreduce(memory, memory, COUNT, PK_F32, PK_SUM, self->comm, self->in_stream), "pk_allreduce");
    if (!stream_idle_within(self->stream, 20000, NULL))
        exit(report(false, "rank %d: allreduce does not end", self->rank) + 1);
    gpu_copy(host, memory, BYTES);
    for (size_t i = 0; i < COUNT; i++)
        wrong += host[i] != (float)(i % 100) * (float)self->size + (float)(self->size * (self->size - 1) / 2);
    report(wrong == 0, "rank %d: allreduce of it: %zu wrong", self->rank, wrong);
    free(host);
}

/* While this thread captures a stream, in the strictest mode. */
static void beside_capture(struct gpu_rank *self)
{
    gpu_graph_t graph;
    void *memory[TURNS];

    gpu_capture_begin(self->stream);
    for (int i = 0; i < TURNS; i++)
        must_be_ok(pk_mem_alloc_device(i % 2 == 0 ? self->comm : NULL, (size_t)i * 100000 + 1, &memory[i]),
                   "pk_mem_alloc_device");
    must_be_ok(pk_barrier(self->comm, self->in_stream), "a captured barrier");
    if (gpu_capture_end(self->stream, &graph) != 0)
        exit(report(false, "rank %d: the capture is broken", self->rank) + 1);
    for (int i = 0; i < TURNS; i++)
        must_be_ok(pk_mem_free(i % 3 == 0 ? self->comm : NULL, memory[i]), "pk_mem_free");
    gpu_graph_free(graph);
    report(true, "rank %d: %d pieces while a stream is captured", self->rank, TURNS);
}

static int rank_main(void)
{
    struct gpu_rank self;
    void *first = NULL, *second = NULL, *other = NULL;
    char *plain;

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    must_be_ok(pk_mem_alloc_device(self.comm, BYTES, &first), "pk_mem_alloc_device");
    must_be_ok(pk_mem_alloc_device(NULL, BYTES, &second), "pk_mem_alloc_device without a communicator");
    plain = gpu_alloc(BYTES);
    exchange(&self, first, second, "from one piece to another");
    exchange(&self, first, plain, "to memory of cuMemAlloc");
    exchange(&self, plain, second, "from memory of cuMemAlloc");
    reduce(&self, first);
    ranks_meet();
    must_be_ok(pk_mem_free(NULL, second), "pk_mem_free");
    must_be_ok(pk_mem_alloc_device(self.comm, BYTES, &second), "pk_mem_alloc_device again");
    exchange(&self, first, second, "to memory that was freed and allocated again");
    report(pk_mem_free(NULL, (char *)first + 4096) == PK_ERR_ARG && pk_mem_free(self.comm, plain) == PK_ERR_ARG &&
               pk_mem_free(NULL, plain) == PK_ERR_ARG,
           "rank %d: what it did not give it does not take", self.rank);
    report(pk_mem_alloc_device(self.comm, (size_t)1 << 50, &other) == PK_ERR_MEMORY && other == NULL,
           "rank %d: more than there is", self.rank);
    beside_capture(&self);
    gpu_rank_close(&self);
    gpu_fill(first, 5, BYTES);
    must_be_ok(pk_mem_free(NULL, first), "pk_mem_free after pk_comm_destroy");
    must_be_ok(pk_mem_free(NULL, second), "pk_mem_free after pk_comm_destroy");
    report(pk_mem_free(NULL, first) == PK_ERR_ARG, "rank %d: not twice", self.rank);
    gpu_free(plain);
    return report_end();
}

/* One process, which nothing but the library has opened the driver in: the first GPU's memory, and then the second one's,
 * copied between the two. */
static int alone_main(void)
{
    void *first = NULL, *second = NULL;
    unsigned long before;
    gpu_stream_t stream;

    must_be_ok(pk_mem_alloc_device(NULL, BYTES, &first), "pk_mem_alloc_device in a process without a context");
    must_be_ok(pk_mem_free(NULL, first), "pk_mem_free");
    if (gpu_count() < 2) /* it opens the driver for what follows */
        return 1;
    before = driver_count("ranges");
    must_be_ok(pk_mem_alloc_device(NULL, BYTES, &first), "pk_mem_alloc_device on the first gpu");
    gpu_use(1);
    must_be_ok(pk_mem_alloc_device(NULL, BYTES, &second), "pk_mem_alloc_device on the second gpu");
    stream = gpu_stream_new();
    pattern_to_gpu(second, BYTES, 6);
    gpu_use(0);
    pattern_to_gpu(first, BYTES, 7);
    gpu_use(1); /* its stream reads the first one's memory */
    gpu_copy_async(second, first, BYTES, stream);
    if (gpu_stream_sync(stream) != 0)
        return 1;
    gpu_stream_free(stream);
    report(pattern_wrong_on_gpu(second, BYTES, 7) == BYTES, "the second gpu copies from the first one's memory");
    must_be_ok(pk_mem_free(NULL, first), "pk_mem_free");
    must_be_ok(pk_mem_free(NULL, second), "pk_mem_free");
    report(driver_count("ranges") == before, "nothing is left of them");
    return report_end();
}

int main(void)
{
    const char *role = ranks_role();

    if (role != NULL)
        return strcmp(role, "alone") == 0 ? alone_main() : rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "alone", .size = 1 }, "without a communicator");
    ranks_drive(&(struct ranks_turn){ .role = "ranks", .size = 2 }, "two ranks");
    if (gpu_is_software()) {
        setenv("FAKECUDA_FAIL", "cuMemCreate:1:801,cuMemCreate:2:801,cuMemCreate:3:801", 1); /* not supported */
        ranks_drive(&(struct ranks_turn){ .role = "ranks", .size = 2 }, "two ranks without virtual memory");
    }
    return report_end();
}

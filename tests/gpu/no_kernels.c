/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sm_policy NONE: what works without multiprocessors works, launches no kernel from the beginning of init to the end, and what needs one is
 * refused with the reason. For every operation, at lengths for each way of doing it, the steps that were executed are those that pk_explain
 * announced; and 2,000 kernels of the program queued ahead of an operation are no trouble.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

#define N ((size_t)60000)
#define LONG ((size_t)700001) /* a rank's own block goes by way of another one */

/* Elements of a block: cells, the end of cells, from memory to memory, twice so that buffers are mapped, and plans of copies. */
static const size_t lengths[] = { 1, 1000, N, 300000, 300000, 5000000 };

#define LENGTHS (sizeof lengths / sizeof lengths[0])

static unsigned long driver_count(const char *what)
{
    unsigned long (*stat)(const char *name);
    void *library = gpu_is_software() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;

    if (library == NULL)
        return 0;
    *(void **)&stat = dlsym(library, "fakecuda_stat");
    return stat != NULL ? stat(what) : 0;
}

/* Of all that takes multiprocessors. */
static unsigned long launches(void)
{
    return driver_count("kernels") + driver_count("memsets") + driver_count("local_copies");
}

static uint64_t steps(const struct gpu_rank *self)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    must_be_ok(pk_comm_stats(self->comm, &stats), "pk_comm_stats");
    return stats.steps;
}

/* With parts of the same length; those of PK_OP_SEND and RECV are one exchange round all ranks. */
static pk_result_t call_other(struct gpu_rank *self, pk_op_kind_t op, size_t n, int in_place, float *in, float *out)
{
    size_t counts[8];
    pk_comm_t *comm = self->comm;
    pk_stream_t stream = self->in_stream;
    pk_result_t result;

    for (int i = 0; i < self->size; i++)
        counts[i] = n;
    switch (op) {
    case PK_OP_ALLGATHERV:
        return pk_allgatherv(in_place ? out + (size_t)self->rank * n : in, n, out, counts, NULL, PK_F32, comm, stream);
    case PK_OP_ALLTOALLV:
        return pk_alltoallv(in_place ? out : in, counts, NULL, out, counts, NULL, PK_F32, comm, stream);
    case PK_OP_GATHERV:
        return pk_gatherv(in_place && self->rank == 0 ? out : in, n, out, counts, NULL, PK_F32, 0, comm, stream);
    case PK_OP_SCATTERV:
        return pk_scatterv(in, counts, NULL, in_place && self->rank == 0 ? in : out, n, PK_F32, 0, comm, stream);
    case PK_OP_SEND:
        result = pk_group_start();
        if (result == PK_OK)
            result = pk_send(in, n, PK_F32, (self->rank + 1) % self->size, comm, stream);
        if (result == PK_OK)
            result = pk_recv(out, n, PK_F32, (self->rank + self->size - 1) % self->size, comm, stream);
        return result == PK_OK ? pk_group_end() : result;
    default:
        return pk_barrier(comm, stream);
    }
}

static pk_result_t call(struct gpu_rank *self, pk_op_kind_t op, size_t n, int in_place, float *in, float *out)
{
    size_t own = (size_t)self->rank * n;
    pk_comm_t *comm = self->comm;
    pk_stream_t stream = self->in_stream;

    switch (op) {
    case PK_OP_BROADCAST:
        return pk_broadcast(in_place ? out : in, out, n, PK_F32, 0, comm, stream);
    case PK_OP_REDUCE:
        return pk_reduce(in_place ? out : in, out, n, PK_F32, PK_SUM, 0, comm, stream);
    case PK_OP_ALLREDUCE:
        return pk_allreduce(in_place ? out : in, out, n, PK_F32, PK_SUM, comm, stream);
    case PK_OP_REDUCE_SCATTER:
        return pk_reduce_scatter(in, in_place ? in + own : out, n, PK_F32, PK_SUM, comm, stream);
    case PK_OP_ALLGATHER:
        return pk_allgather(in_place ? out + own : in, out, n, PK_F32, comm, stream);
    case PK_OP_ALLTOALL:
        return pk_alltoall(in_place ? out : in, out, n, PK_F32, comm, stream);
    case PK_OP_GATHER:
        return pk_gather(in_place && self->rank == 0 ? out : in, out, n, PK_F32, 0, comm, stream);
    case PK_OP_SCATTER:
        return pk_scatter(in, in_place && self->rank == 0 ? in : out, n, PK_F32, 0, comm, stream);
    default:
        return call_other(self, op, n, in_place, in, out);
    }
}

static const struct {
    pk_op_kind_t op;
    const char *name;
    bool works[2]; /* without kernels, on the root: out of place, in place */
} operations[] = {
    { PK_OP_BROADCAST, "broadcast", { false, true } },   { PK_OP_REDUCE, "reduce", { false, false } },
    { PK_OP_ALLREDUCE, "allreduce", { false, false } },  { PK_OP_REDUCE_SCATTER, "reduce_scatter", { false, false } },
    { PK_OP_ALLGATHER, "allgather", { false, true } },   { PK_OP_ALLTOALL, "alltoall", { true, false } },
    { PK_OP_GATHER, "gather", { false, true } },         { PK_OP_SCATTER, "scatter", { false, true } },
    { PK_OP_BARRIER, "barrier", { true, true } },        { PK_OP_SEND, "exchange", { true, true } },
    { PK_OP_ALLGATHERV, "allgatherv", { false, true } }, { PK_OP_ALLTOALLV, "alltoallv", { true, false } },
    { PK_OP_GATHERV, "gatherv", { false, true } },       { PK_OP_SCATTERV, "scatterv", { false, true } },
};

#define OPERATIONS (sizeof operations / sizeof operations[0])

static unsigned index_of(pk_op_kind_t op)
{
    unsigned i = 0;

    while (operations[i].op != op)
        i++;
    return i;
}

static void must_end(const struct gpu_rank *self, const char *what)
{
    if (stream_idle_within(self->stream, 20000, NULL))
        return;
    report(false, "rank %d: %s does not end", self->rank, what);
    exit(1);
}

/* Explained, done, counted. */
static void one(struct gpu_rank *self, unsigned i, size_t n, int in_place, float *in, float *out)
{
    pk_explanation_t explanation = { .struct_size = sizeof explanation };
    int peer = operations[i].op == PK_OP_SEND ? (self->rank + 1) % self->size : 0;
    pk_result_t explained = pk_explain(self->comm, operations[i].op, n, PK_F32, PK_MEM_DEVICE, in_place, peer, &explanation);
    uint64_t before = steps(self), wanted = explanation.steps * (operations[i].op == PK_OP_SEND ? 2 : 1), done;
    pk_result_t result = call(self, operations[i].op, n, in_place, in, out);

    must_end(self, operations[i].name);
    while (steps(self) - before < wanted && result == PK_OK && pk_comm_async_error(self->comm) == PK_OK)
        ; /* the stream is released before the last step is counted */
    done = steps(self) - before;
    report(result == PK_OK && explained == PK_OK && done == wanted,
           "rank %d: %s of %zu, %s: %llu steps explained as \"%s\" (%d), %llu done (%d)", self->rank, operations[i].name, n,
           in_place ? "in place" : "apart", (unsigned long long)wanted, explanation.algorithm, (int)explained,
           (unsigned long long)done, (int)result);
}

static void open_buffers(const struct gpu_rank *self, size_t n, float **in, float **out)
{
    size_t bytes = n * (size_t)self->size * sizeof(float);

    *in = gpu_alloc(bytes);
    *out = gpu_alloc(bytes);
    pattern_to_gpu(*in, bytes, 1 + (uint64_t)self->rank);
}

static int with_kernels(void)
{
    struct gpu_rank self;
    gpu_kernel_t kernel;
    uint32_t *flag;
    float *in, *out;

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    open_buffers(&self, lengths[LENGTHS - 1], &in, &out);
    for (unsigned k = 0; k < LENGTHS; k++)
        for (unsigned i = 0; i < OPERATIONS; i++)
            for (int in_place = 0; in_place < 2; in_place++)
                one(&self, i, lengths[k], in_place, in, out);
    kernel = spin_kernel();
    flag = gpu_host_alloc(sizeof *flag);
    *(volatile uint32_t *)flag = 1; /* they end at once; the launch queue is full anyway */
    for (int i = 0; i < 2000; i++)
        spin_launch(kernel, 1, 32, flag, self.stream);
    must_be_ok(call(&self, PK_OP_ALLREDUCE, N, 0, in, out), "allreduce behind 2,000 kernels");
    for (int i = 0; i < 2000; i++)
        spin_launch(kernel, 1, 32, flag, self.stream);
    must_be_ok(call(&self, PK_OP_ALLTOALL, N, 0, in, out), "alltoall behind 2,000 kernels");
    must_end(&self, "what comes behind 2,000 kernels");
    report(pk_comm_async_error(self.comm) == PK_OK, "rank %d: operations behind 2,000 kernels each", self.rank);
    gpu_rank_close(&self);
    return report_end();
}

static void refused(struct gpu_rank *self, unsigned i, int in_place, float *in, float *out)
{
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_result_t result = call(self, operations[i].op, N, in_place, in, out);

    pk_last_error(&info);
    report(result == PK_ERR_NEEDS_SM && strstr(info.text, "kernel") != NULL, "rank %d: %s, %s: refused (%d): %.120s", self->rank,
           operations[i].name, in_place ? "in place" : "apart", (int)result, info.text);
}

/* What came from each rank is its block for this one. */
static bool exchanged(const struct gpu_rank *self, const float *out, size_t n)
{
    size_t bytes = n * (size_t)self->size * sizeof(float), block = n * sizeof(float);
    char *got = malloc(bytes), *sent = malloc(bytes);
    bool right = got != NULL && sent != NULL;

    if (right)
        gpu_copy(got, out, bytes);
    for (int r = 0; r < self->size && right; r++) {
        pattern_fill(sent, bytes, 1 + (uint64_t)r);
        right = memcmp(got + (size_t)r * block, sent + (size_t)self->rank * block, block) == 0;
    }
    free(got);
    free(sent);
    return right;
}

/* Also in a graph, where a copy through the host could not be. */
static void replayed(struct gpu_rank *self, float *in, float *out)
{
    size_t bytes = LONG * (size_t)self->size * sizeof(float);
    gpu_graph_t graph;

    must_be_ok(pk_register(self->comm, in, bytes), "pk_register");
    must_be_ok(pk_register(self->comm, out, bytes), "pk_register");
    gpu_capture_begin(self->stream);
    must_be_ok(call(self, PK_OP_ALLTOALL, LONG, 0, in, out), "captured alltoall");
    must_be_ok(gpu_capture_end(self->stream, &graph) == 0 ? PK_OK : PK_ERR_INTERNAL, "the end of a capture");
    for (int turn = 0; turn < 3; turn++) {
        pattern_to_gpu(out, bytes, 99);
        ranks_meet();
        gpu_graph_launch(graph, self->stream);
        must_end(self, "a replay of alltoall");
        report(exchanged(self, out, LONG), "rank %d: replay %d of alltoall brought the right blocks", self->rank, turn);
    }
    ranks_meet();
    gpu_graph_free(graph);
}

static int without_kernels(void)
{
    struct gpu_rank self;
    unsigned long before;
    float *in, *out;
    pk_stats_t stats = { .struct_size = sizeof stats };
    static const size_t exchanges[] = { N, LONG, LONG };
    size_t bytes;

    gpu_use(ranks_rank() % gpu_count());
    before = launches();
    gpu_rank_open(&self, PK_SM_NONE, 30000);
    bytes = LONG * (size_t)self.size * sizeof(float);
    open_buffers(&self, LONG, &in, &out);
    for (unsigned i = 0; i < OPERATIONS; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            ranks_meet();
            if (operations[i].works[in_place])
                one(&self, i, N, in_place, in, out);
            else if (self.rank == 0)
                refused(&self, i, in_place, in, out);
        }
    for (unsigned k = 0; k < sizeof exchanges / sizeof exchanges[0]; k++) {
        pattern_to_gpu(out, bytes, 99);
        ranks_meet();
        one(&self, index_of(PK_OP_ALLTOALL), exchanges[k], 0, in, out);
        report(exchanged(&self, out, exchanges[k]), "rank %d: alltoall of %zu without kernels brought the right blocks",
               self.rank, exchanges[k]);
    }
    replayed(&self, in, out);
    report(pattern_wrong_on_gpu(in, bytes, 1 + (uint64_t)self.rank) == bytes, "rank %d: the send buffer is as it was", self.rank);
    must_be_ok(pk_comm_stats(self.comm, &stats), "pk_comm_stats");
    report(stats.kernels == 0 && launches() == before, "rank %d: %llu kernels counted, %lu launches seen by the driver",
           self.rank, (unsigned long long)stats.kernels, launches() - before);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return strcmp(ranks_role(), "none") == 0 ? without_kernels() : with_kernels();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "none", .size = gpu_ranks(4) }, "none");
    ranks_drive(&(struct ranks_turn){ .role = "default", .size = gpu_ranks(3) }, "default");
    return report_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of elements that each rank multiplies first (pk_op_create_premul), beyond what the conformance program draws: the scalar
 * in GPU memory is read when the stream comes to the operation, and again by each replay of a graph; memory of host and GPU
 * mixed; many operations under way at a time; what is refused. Also with one hardware queue, where GPUs do not reach one
 * another, and without kernels.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

enum operation { ALLREDUCE, REDUCE, REDUCE_SCATTER, OPERATIONS };

static const char *const names[] = { "allreduce", "reduce", "reduce_scatter" };
static const size_t lengths[] = { 1, 3, 1000, 20011, 262144, 700001 };

#define LENGTHS (sizeof lengths / sizeof lengths[0])
#define LONGEST ((size_t)700001)
#define RANKS 4
#define MANY 150
#define SCRATCHES 64 /* blocks that the library keeps */
#define ROOT 1
#define REPLAYS 5

struct bed {
    struct gpu_rank self;
    float *in, *out, *factor; /* of the GPU: LONGEST * size elements each, and one */
    float *host_in, *host_out, *staging;
    float *pinned;
    pk_op_t op; /* by `factor` */
};

static size_t all_bytes(const struct bed *bed)
{
    return LONGEST * (size_t)bed->self.size * sizeof(float);
}

static float given(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 32);
}

static float factor_of(int rank, int turn)
{
    return (float)(rank + 1) * 0.5f + (float)turn;
}

static void *host_memory(size_t bytes)
{
    void *memory = malloc(bytes);

    if (memory == NULL)
        exit(2);
    return memory;
}

static void bed_open(struct bed *bed, int sm_policy)
{
    gpu_rank_open(&bed->self, sm_policy, 30000);
    bed->in = gpu_alloc(all_bytes(bed));
    bed->out = gpu_alloc(all_bytes(bed));
    bed->factor = gpu_alloc(sizeof(float));
    bed->host_in = host_memory(all_bytes(bed));
    bed->host_out = host_memory(all_bytes(bed));
    bed->staging = host_memory(all_bytes(bed));
    bed->pinned = gpu_host_alloc(sizeof(float));
    for (size_t i = 0; i < LONGEST * (size_t)bed->self.size; i++)
        bed->host_in[i] = given(bed->self.rank, i);
    gpu_copy(bed->in, bed->host_in, all_bytes(bed));
    must_be_ok(pk_op_create_premul(bed->self.comm, PK_F32, bed->factor, 1, &bed->op), "pk_op_create_premul");
}

static void bed_close(struct bed *bed)
{
    must_be_ok(pk_op_destroy(bed->self.comm, bed->op), "pk_op_destroy");
    gpu_rank_close(&bed->self);
    gpu_free(bed->in);
    gpu_free(bed->out);
    gpu_free(bed->factor);
    gpu_host_free(bed->pinned);
    free(bed->host_in);
    free(bed->host_out);
    free(bed->staging);
}

static void set_factor(const struct bed *bed, int turn)
{
    float value = factor_of(bed->self.rank, turn);

    gpu_copy(bed->factor, &value, sizeof value);
}

static pk_result_t call(const struct bed *bed, enum operation which, size_t n, const float *in, float *out, pk_stream_t stream)
{
    if (which == REDUCE)
        return pk_reduce(in, out, n, PK_F32, bed->op, ROOT, bed->self.comm, stream);
    if (which == ALLREDUCE)
        return pk_allreduce(in, out, n, PK_F32, bed->op, bed->self.comm, stream);
    return pk_reduce_scatter(in, out, n, PK_F32, bed->op, bed->self.comm, stream);
}

/* `out` is memory of the host, or of the GPU. Numbers are small: sums are exact. */
static bool is_right(const struct bed *bed, enum operation which, size_t n, int turn, const float *out, bool on_gpu)
{
    size_t first = which == REDUCE_SCATTER ? (size_t)bed->self.rank * n : 0;
    const float *got = on_gpu ? bed->staging : out;

    if (which == REDUCE && bed->self.rank != ROOT)
        return true;
    if (on_gpu)
        gpu_copy(bed->staging, out, n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        float sum = 0;

        for (int r = 0; r < bed->self.size; r++)
            sum += given(r, first + i) * factor_of(r, turn);
        if (got[i] != sum) {
            report(false, "rank %d: %s of %zu: at %zu is %g, not %g", bed->self.rank, names[which], n, i, (double)got[i],
                   (double)sum);
            return false;
        }
    }
    return true;
}

static void must_end(const struct bed *bed, const char *what)
{
    if (stream_idle_within(bed->self.stream, 20000, NULL))
        return;
    report(false, "rank %d: %s does not end", bed->self.rank, what);
    gpu_show_pending(bed->self.comm);
    exit(1);
}

/* The scalar gets its value in the stream, after the call has returned and before the stream comes to the operation. */
static void in_order(struct bed *bed)
{
    gpu_kernel_t kernel = spin_kernel();
    uint32_t *flag = gpu_host_alloc(sizeof *flag);
    bool right = true;

    /* To allocate for the longest, and to unmap what was freed for that, waits for the GPU: before a kernel of this test waits for the CPU. */
    for (int turn = 0; turn < 3; turn++)
        for (int which = 0; which < OPERATIONS; which++)
            must_be_ok(
                call(bed, (enum operation)which, LONGEST, bed->in, bed->out, turn % 2 == 0 ? PK_BLOCKING : bed->self.in_stream),
                names[which]);
    must_end(bed, "the first");
    must_be_ok(pk_barrier(bed->self.comm, PK_BLOCKING), "pk_barrier");
    for (size_t k = 0; k < OPERATIONS * LENGTHS && right; k++) {
        enum operation which = (enum operation)(k % OPERATIONS);
        size_t n = lengths[k / OPERATIONS];

        set_factor(bed, 100);
        *bed->pinned = factor_of(bed->self.rank, (int)k);
        __atomic_store_n(flag, 0, __ATOMIC_RELEASE);
        ranks_meet();
        spin_launch(kernel, 1, 32, flag, bed->self.stream);
        gpu_copy_async(bed->factor, bed->pinned, sizeof(float), bed->self.stream);
        must_be_ok(call(bed, which, n, bed->in, bed->out, bed->self.in_stream), names[which]);
        __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
        must_end(bed, names[which]);
        right = is_right(bed, which, n, (int)k, bed->out, true);
    }
    gpu_host_free(flag);
    report(right, "rank %d: the scalar is read when the stream comes there", bed->self.rank);
}

static void captured(struct bed *bed)
{
    bool right = true;

    must_be_ok(pk_register(bed->self.comm, bed->in, all_bytes(bed)), "pk_register");
    must_be_ok(pk_register(bed->self.comm, bed->out, all_bytes(bed)), "pk_register");
    for (size_t k = 0; k < OPERATIONS * LENGTHS && right; k++) {
        enum operation which = (enum operation)(k % OPERATIONS);
        size_t n = lengths[k / OPERATIONS];
        gpu_graph_t graph;
        int code;

        gpu_capture_begin(bed->self.stream);
        must_be_ok(call(bed, which, n, bed->in, bed->out, bed->self.in_stream), names[which]);
        code = gpu_capture_end(bed->self.stream, &graph);
        if (code != 0)
            exit(report(false, "rank %d: the capture ended: %s", bed->self.rank, gpu_error(code)) + 1);
        for (int turn = 0; turn < REPLAYS; turn++) {
            set_factor(bed, turn);
            ranks_meet();
            gpu_graph_launch(graph, bed->self.stream);
            must_end(bed, names[which]);
            right = right && is_right(bed, which, n, turn, bed->out, true);
        }
        ranks_meet();
        gpu_graph_free(graph);
    }
    report(right, "rank %d: each replay reads the scalar again", bed->self.rank);
}

/* Host and GPU memory in each of three places, and each kind of stream. */
static void mixes(struct bed *bed)
{
    pk_stream_t streams[3] = { PK_BLOCKING, { 0, NULL }, bed->self.in_stream };
    bool right = true;

    must_be_ok(pk_stream_create(&streams[1]), "pk_stream_create");
    set_factor(bed, 2);
    for (size_t k = OPERATIONS; k < OPERATIONS * LENGTHS && right; k += 2)
        for (int mix = 0; mix < 12; mix++) {
            enum operation which = (enum operation)(k % OPERATIONS);
            size_t n = lengths[k / OPERATIONS];
            bool in_gpu = mix % 2 != 0, out_gpu = mix / 2 % 2 != 0;
            float *out = out_gpu ? bed->out : bed->host_out;

            must_be_ok(call(bed, which, n, in_gpu ? bed->in : bed->host_in, out, streams[mix / 4]), names[which]);
            if (mix / 4 == 1)
                must_be_ok(pk_stream_synchronize(streams[1]), "pk_stream_synchronize");
            must_end(bed, names[which]);
            right = right && is_right(bed, which, n, 2, out, out_gpu);
            ranks_meet();
        }
    must_be_ok(pk_stream_destroy(streams[1]), "pk_stream_destroy");
    report(right, "rank %d: memory of host and gpu, in each kind of stream", bed->self.rank);
}

/* More than there is scratch memory for at a time; and a communicator whose reduction is destroyed at once. */
static void many(struct bed *bed)
{
    const size_t n = 1000;
    bool right = true;

    for (int turn = 0; turn < 3; turn++) {
        pk_op_t kept = bed->op;
        float factor = factor_of(bed->self.rank, turn);

        must_be_ok(pk_op_create_premul(bed->self.comm, PK_F32, &factor, 0, &bed->op), "pk_op_create_premul");
        factor = 77;
        for (int i = 0; i < MANY; i++)
            must_be_ok(call(bed, (enum operation)(i % OPERATIONS), n, bed->in, bed->out + (size_t)(i % OPERATIONS) * n,
                            bed->self.in_stream),
                       "one of many");
        must_be_ok(pk_op_destroy(bed->self.comm, bed->op), "pk_op_destroy");
        bed->op = kept;
        must_end(bed, "many");
        for (int which = 0; which < OPERATIONS; which++)
            right = right && is_right(bed, (enum operation)which, n, turn, bed->out + (size_t)which * n, true);
        ranks_meet();
    }
    report(right, "rank %d: %d at a time", bed->self.rank, MANY);
}

/* What streams wait for until the test lets them go on. */
struct gates {
    gpu_stream_t streams[3]; /* the first is the rank's own */
    uint32_t *flags;
};

static struct gates gates_shut(const struct bed *bed)
{
    struct gates gates = { .streams = { bed->self.stream, gpu_stream_new(), gpu_stream_new() },
                           .flags = gpu_host_alloc(3 * sizeof(uint32_t)) };
    gpu_kernel_t kernel = spin_kernel();

    ranks_meet();
    for (int i = 0; i < 3; i++) {
        gates.flags[i] = 0;
        spin_launch(kernel, 1, 32, &gates.flags[i], gates.streams[i]);
    }
    return gates;
}

static void gate_open(struct gates *gates, int i)
{
    __atomic_store_n(&gates->flags[i], 1, __ATOMIC_RELEASE);
}

static void gates_end(struct bed *bed, struct gates *gates, const char *what, size_t n)
{
    bool ended = true, right = true;

    for (int i = 0; i < 3; i++) {
        gate_open(gates, i);
        ended = stream_idle_within(gates->streams[i], 20000, NULL) && ended;
    }
    if (!ended) {
        gpu_show_pending(bed->self.comm);
        exit(report(false, "rank %d: %s: does not end", bed->self.rank, what) + 1);
    }
    for (int which = 0; which < OPERATIONS; which++)
        right = right && is_right(bed, (enum operation)which, n, 4, bed->out + (size_t)which * n, true);
    ranks_meet();
    gpu_stream_free(gates->streams[1]);
    gpu_stream_free(gates->streams[2]);
    gpu_host_free(gates->flags);
    report(right, "rank %d: %s", bed->self.rank, what);
}

/* Results of the rank's own stream, which are looked at, lie apart from those of others. */
static void add_several(const struct bed *bed, size_t n, int count, const struct gates *gates, int i)
{
    pk_stream_t there = PK_CUDA_STREAM(gates->streams[i]);
    float *out = bed->out + (i == 0 ? 0 : OPERATIONS * n);

    for (int k = 0; k < count; k++)
        must_be_ok(call(bed, (enum operation)(k % OPERATIONS), n, bed->in, out + (size_t)(k % OPERATIONS) * n, there),
                   "one of several");
}

/* A call that found no scratch memory, as all was in use, stands in front of many that found some. */
static void behind_one_without(struct bed *bed)
{
    const size_t n = 1000;
    struct gates gates = gates_shut(bed);

    add_several(bed, n, SCRATCHES, &gates, 1);
    add_several(bed, n, 1, &gates, 0);
    gate_open(&gates, 1);
    (void)stream_idle_within(gates.streams[1], 20000, NULL);
    add_several(bed, n, 2 * SCRATCHES, &gates, 0);
    gates_end(bed, &gates, "behind one that found no scratch memory", n);
}

/* A group whose stream comes before that of calls in front of it, when there is scratch memory again. */
static void group_comes_first(struct bed *bed)
{
    const size_t n = 1000;
    struct gates gates = gates_shut(bed);

    add_several(bed, n, SCRATCHES, &gates, 1);
    add_several(bed, n, OPERATIONS, &gates, 0);
    must_be_ok(pk_group_start(), "pk_group_start");
    add_several(bed, n, SCRATCHES * 3 / 2, &gates, 2);
    must_be_ok(pk_group_end(), "pk_group_end");
    gate_open(&gates, 2);
    (void)stream_idle_within(gates.streams[2], 200, NULL);
    gate_open(&gates, 1);
    (void)stream_idle_within(gates.streams[1], 200, NULL);
    gates_end(bed, &gates, "a group before calls in front of it", n);
}

/* Two groups, to which the streams of two ranks come in opposite order. */
static void groups_cross(struct bed *bed)
{
    const size_t n = 1000;
    struct gates gates = gates_shut(bed);

    for (int g = 0; g < 2; g++) {
        pk_stream_t there = PK_CUDA_STREAM(gates.streams[g]);

        must_be_ok(pk_group_start(), "pk_group_start");
        for (int k = 0; k < SCRATCHES + OPERATIONS; k++)
            must_be_ok(call(bed, (enum operation)(k % OPERATIONS), n, bed->host_in,
                            bed->out + (size_t)(g * OPERATIONS + k % OPERATIONS) * n, there),
                       "one of a group");
        must_be_ok(pk_group_end(), "pk_group_end");
    }
    gate_open(&gates, bed->self.rank % 2);
    (void)stream_idle_within(gates.streams[bed->self.rank % 2], 200, NULL);
    gates_end(bed, &gates, "groups in opposite order", n);
}

static void refused(struct bed *bed)
{
    pk_comm_t *comm = bed->self.comm;
    pk_op_t op = 4711;

    report(pk_op_create_premul(comm, PK_F32, bed->host_in, 1, &op) == PK_ERR_ARG, "host memory is no scalar of the gpu");
    report(pk_op_create_premul(comm, PK_F32, (char *)bed->factor + 1, 1, &op) == PK_ERR_ARG, "nor is one that is not aligned");
    report(pk_op_create_premul(comm, PK_F32, bed->factor + ((size_t)1 << 40), 1, &op) == PK_ERR_ARG,
           "nor is what no memory is at");
    report(op == 4711, "no output was set");
}

static int rank_main(const char *role)
{
    struct bed bed = { .in = NULL };

    bed_open(&bed, PK_SM_DEFAULT);
    refused(&bed);
    if (strcmp(role, "one queue") != 0) /* there the call waits for its stream */
        in_order(&bed);
    if (strcmp(role, "kernels") == 0)
        captured(&bed);
    mixes(&bed);
    many(&bed);
    if (strcmp(role, "one queue") != 0) {
        set_factor(&bed, 4);
        behind_one_without(&bed);
        group_comes_first(&bed);
        groups_cross(&bed);
    }
    bed_close(&bed);
    return report_end();
}

/* The product needs a kernel on every rank, also where the sum would not; on the host it needs none. */
static int no_kernels_main(void)
{
    struct bed bed = { .in = NULL };
    bool right = true;

    bed_open(&bed, PK_SM_NONE);
    set_factor(&bed, 3);
    for (int which = 0; which < OPERATIONS; which++) {
        pk_result_t got = call(&bed, (enum operation)which, 1000, bed.in, bed.out, bed.self.in_stream);

        report(got == PK_ERR_NEEDS_SM, "rank %d: %s of gpu memory without kernels: %d", bed.self.rank, names[which], (int)got);
        must_be_ok(call(&bed, (enum operation)which, 1000, bed.host_in, bed.host_out, PK_BLOCKING), names[which]);
        right = right && is_right(&bed, (enum operation)which, 1000, 3, bed.host_out, false);
    }
    report(right, "rank %d: host memory without kernels", bed.self.rank);
    bed_close(&bed);
    return report_end();
}

static void drive(const char *role, int size)
{
    const struct ranks_turn turn = { .role = role, .size = size, .timeout_ms = 120000 };

    ranks_drive(&turn, "%s, %d ranks", role, size);
}

int main(void)
{
    const char *role = ranks_role();

    if (role != NULL)
        return strcmp(role, "no kernels") == 0 ? no_kernels_main() : rank_main(role);
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (int size = 2; size <= gpu_ranks(RANKS); size += 2)
        drive("kernels", size);
    drive("no kernels", 2);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    drive("one queue", 2);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    setenv("PK_P2P_LEVEL", "LOC", 1);
    drive("through the host", 2);
    return report_end();
}

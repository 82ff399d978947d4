/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective with host, pinned, device and VMM memory mixed between its two buffers and between the ranks; blocking, in host streams
 * and in CUDA streams; as it is and with PK_P2P_LEVEL=LOC. In host memory on both sides no kernel may be allowed at all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"
#include "gpu_vmm.h"

enum kind { PAGEABLE, PINNED, DEVICE, VMM, KINDS };
enum operation { BROADCAST, REDUCE, ALLREDUCE, REDUCE_SCATTER, ALLGATHER, ALLTOALL, GATHER, SCATTER, ALLGATHERV, OPERATIONS };

static const char *const operation_names[] = { "broadcast", "reduce", "allreduce", "reduce_scatter", "allgather",
                                               "alltoall",  "gather", "scatter",   "allgatherv" };
static const char *const kind_names[] = { "pageable", "pinned", "device", "vmm" };
static const size_t counts[] = { 1, 1000, 70001, 300001 }; /* through the host the last one is two pieces */

#define COUNTS (sizeof counts / sizeof counts[0])
#define MOST ((size_t)300001 * 4 * 2)
#define GAP 3 /* elements between the blocks of the v-form */
#define UNTOUCHED (-1.0f)

struct bed {
    struct gpu_rank self;
    pk_stream_t streams[3];
    float *memory[2][KINDS]; /* source, target: MOST elements */
    struct gpu_vmm vmm[2];
    float *host;
    unsigned turn, wrong;
};

static void bed_open(struct bed *bed)
{
    gpu_rank_open(&bed->self, PK_SM_DEFAULT, 30000);
    bed->streams[0] = PK_BLOCKING;
    must_be_ok(pk_stream_create(&bed->streams[1]), "pk_stream_create");
    bed->streams[2] = bed->self.in_stream;
    bed->host = malloc(MOST * sizeof(float));
    for (int i = 0; i < 2; i++) {
        bed->memory[i][PAGEABLE] = malloc(MOST * sizeof(float));
        bed->memory[i][PINNED] = gpu_host_alloc(MOST * sizeof(float));
        bed->memory[i][DEVICE] = gpu_alloc(MOST * sizeof(float));
        bed->vmm[i] = gpu_vmm_alloc(bed->self.rank % gpu_count(), MOST * sizeof(float));
        bed->memory[i][VMM] = (float *)(void *)bed->vmm[i].ptr;
        if (bed->memory[i][PAGEABLE] == NULL || bed->host == NULL)
            exit(2);
    }
}

static void bed_close(struct bed *bed)
{
    must_be_ok(pk_stream_destroy(bed->streams[1]), "pk_stream_destroy");
    gpu_rank_close(&bed->self);
    for (int i = 0; i < 2; i++)
        gpu_vmm_free(&bed->vmm[i]);
}

static void move(int kind, void *dst, const void *src, size_t bytes)
{
    if (kind == DEVICE || kind == VMM)
        gpu_copy(dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

/* What rank `rank` contributes at `i`: small whole numbers, exact in any order of additions. */
static float given(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 32);
}

static float total(int size, size_t i)
{
    float sum = 0;

    for (int r = 0; r < size; r++)
        sum += given(r, i);
    return sum;
}

/* What the receive buffer of this rank holds at `i` afterwards. */
static float wanted(const struct bed *bed, enum operation op, size_t n, int root, size_t i)
{
    int rank = bed->self.rank, size = bed->self.size, block = (int)(i / n);

    switch (op) {
    case BROADCAST:
        return i < n ? given(root, i) : UNTOUCHED;
    case REDUCE:
        return i < n && rank == root ? total(size, i) : UNTOUCHED;
    case ALLREDUCE:
        return i < n ? total(size, i) : UNTOUCHED;
    case REDUCE_SCATTER:
        return i < n ? total(size, (size_t)rank * n + i) : UNTOUCHED;
    case ALLGATHER:
        return block < size ? given(block, i % n) : UNTOUCHED;
    case GATHER:
        return block < size && rank == root ? given(block, i % n) : UNTOUCHED;
    case ALLTOALL:
        return block < size ? given(block, (size_t)rank * n + i % n) : UNTOUCHED;
    case SCATTER:
        return i < n ? given(root, (size_t)rank * n + i) : UNTOUCHED;
    case ALLGATHERV:
        block = (int)(i / (n + GAP));
        return block < size && i % (n + GAP) < n ? given(block, i % (n + GAP)) : UNTOUCHED;
    default:
        return UNTOUCHED;
    }
}

static pk_result_t gather_with_gaps(struct bed *bed, const float *in, float *out, size_t n, pk_stream_t stream)
{
    size_t lengths[RANKS_MAX], offsets[RANKS_MAX];

    for (int r = 0; r < bed->self.size; r++) {
        lengths[r] = n;
        offsets[r] = (size_t)r * (n + GAP);
    }
    return pk_allgatherv(in, n, out, lengths, offsets, PK_F32, bed->self.comm, stream);
}

static pk_result_t call(struct bed *bed, enum operation op, const float *in, float *out, size_t n, int root, pk_stream_t stream)
{
    pk_comm_t *comm = bed->self.comm;

    switch (op) {
    case BROADCAST:
        return pk_broadcast(in, out, n, PK_F32, root, comm, stream);
    case REDUCE:
        return pk_reduce(in, out, n, PK_F32, PK_SUM, root, comm, stream);
    case ALLREDUCE:
        return pk_allreduce(in, out, n, PK_F32, PK_SUM, comm, stream);
    case REDUCE_SCATTER:
        return pk_reduce_scatter(in, out, n, PK_F32, PK_SUM, comm, stream);
    case ALLGATHER:
        return pk_allgather(in, out, n, PK_F32, comm, stream);
    case ALLTOALL:
        return pk_alltoall(in, out, n, PK_F32, comm, stream);
    case GATHER:
        return pk_gather(in, out, n, PK_F32, root, comm, stream);
    case SCATTER:
        return pk_scatter(in, out, n, PK_F32, root, comm, stream);
    default:
        return gather_with_gaps(bed, in, out, n, stream);
    }
}

static void finish(struct bed *bed, int ending)
{
    if (ending == 1)
        must_be_ok(pk_stream_synchronize(bed->streams[1]), "pk_stream_synchronize");
    if (ending == 2 && !stream_idle_within(bed->self.stream, 25000, NULL)) {
        must_be_ok(pk_comm_async_error(bed->self.comm), "the stream does not end, and the communicator");
        exit(1);
    }
    must_be_ok(pk_comm_async_error(bed->self.comm), "pk_comm_async_error");
}

static void one(struct bed *bed, enum operation op, int from, int to, size_t n, int ending)
{
    struct gpu_rank *self = &bed->self;
    int source = (from + self->rank) % KINDS, target = (to + 2 * self->rank) % KINDS;
    int root = (int)(bed->turn++ % (unsigned)self->size);
    size_t elements = (n + GAP) * (size_t)(self->size + 1);
    size_t at = 0;

    for (size_t i = 0; i < elements; i++)
        bed->host[i] = given(self->rank, i);
    move(source, bed->memory[0][source], bed->host, elements * sizeof(float));
    for (size_t i = 0; i < elements; i++)
        bed->host[i] = UNTOUCHED;
    move(target, bed->memory[1][target], bed->host, elements * sizeof(float));
    must_be_ok(call(bed, op, bed->memory[0][source], bed->memory[1][target], n, root, bed->streams[ending]), operation_names[op]);
    finish(bed, ending);
    move(target, bed->host, bed->memory[1][target], elements * sizeof(float));
    while (at < elements && bed->host[at] == wanted(bed, op, n, root, at))
        at++;
    if (at < elements && bed->wrong++ < 5)
        report(false, "%s: rank %d: %s of %zu from %s to %s memory, ending %d: wrong at %zu: %g", ranks_role(), self->rank,
               operation_names[op], n, kind_names[source], kind_names[target], ending, at, (double)bed->host[at]);
}

static int rank_main(void)
{
    struct bed bed = { .turn = 0 };
    unsigned done = 0;

    bed_open(&bed);
    for (int op = 0; op < OPERATIONS; op++)
        for (int kinds = 0; kinds < KINDS * KINDS; kinds++)
            for (unsigned c = 0; c < COUNTS; c++, done++)
                one(&bed, (enum operation)op, kinds / KINDS, kinds % KINDS, counts[c], (int)(done % 3));
    report(bed.wrong == 0, "%s: rank %d: %u collectives, %u wrong", ranks_role(), bed.self.rank, done, bed.wrong);
    bed_close(&bed);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    setenv("PK_ALGORITHM", "direct", 0); /* ranks whose memory is of different kinds must not choose by it */
    ranks_drive(&(struct ranks_turn){ .role = "as it is", .size = gpu_ranks(3) }, "as it is");
    setenv("PK_P2P_LEVEL", "LOC", 1);
    ranks_drive(&(struct ranks_turn){ .role = "through the host", .size = 2 }, "through the host");
    return report_end();
}

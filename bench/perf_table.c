/* SPDX-License-Identifier: Apache-2.0 */
/* What the operations are: the table, and how its entries cut buffers into blocks. */
#include "perf.h"

#include <stdlib.h>

static double bus_one(double n)
{
    (void)n;
    return 1;
}

static double bus_parts(double n)
{
    return (n - 1) / n;
}

static double bus_allreduce(double n)
{
    return 2 * (n - 1) / n;
}

/* clang-format off */
static const struct perf_operation operations[PERF_OPS] = {
    [PERF_SENDRECV] = { .name = "sendrecv", .kind = PK_OP_SEND, .source = PERF_WHOLE, .result = PERF_WHOLE, .origin = PERF_OF_PEER,
                        .nccl = true, .bus_factor = bus_one },
    [PERF_BARRIER] = { .name = "barrier", .kind = PK_OP_BARRIER, .bus_factor = bus_one },
    [PERF_BROADCAST] = { .name = "broadcast", .kind = PK_OP_BROADCAST, .source = PERF_WHOLE, .source_at_root = true,
                         .result = PERF_WHOLE, .origin = PERF_OF_ROOT, .in_place = PERF_SAME, .nccl = true, .bus_factor = bus_one },
    [PERF_REDUCE] = { .name = "reduce", .kind = PK_OP_REDUCE, .source = PERF_WHOLE, .result = PERF_WHOLE, .result_at_root = true,
                      .origin = PERF_OF_ALL, .in_place = PERF_SAME, .nccl = true, .bus_factor = bus_one },
    [PERF_ALLREDUCE] = { .name = "allreduce", .kind = PK_OP_ALLREDUCE, .source = PERF_WHOLE, .result = PERF_WHOLE,
                         .origin = PERF_OF_ALL, .in_place = PERF_SAME, .nccl = true, .bus_factor = bus_allreduce },
    [PERF_REDUCE_SCATTER] = { .name = "reduce_scatter", .kind = PK_OP_REDUCE_SCATTER, .source = PERF_PARTS, .result = PERF_WHOLE,
                              .origin = PERF_OF_ALL, .own_part = true, .in_place = PERF_PART_OF_SEND, .nccl = true,
                              .bus_factor = bus_parts },
    [PERF_ALLGATHER] = { .name = "allgather", .kind = PK_OP_ALLGATHER, .source = PERF_WHOLE, .result = PERF_PARTS,
                         .origin = PERF_OF_BLOCK, .in_place = PERF_PART_OF_RECV, .nccl = true, .bus_factor = bus_parts },
    [PERF_ALLTOALL] = { .name = "alltoall", .kind = PK_OP_ALLTOALL, .source = PERF_PARTS, .result = PERF_PARTS,
                        .origin = PERF_OF_BLOCK, .own_part = true, .in_place = PERF_SAME, .nccl = true, .bus_factor = bus_parts },
    [PERF_GATHER] = { .name = "gather", .kind = PK_OP_GATHER, .source = PERF_WHOLE, .result = PERF_PARTS, .result_at_root = true,
                      .origin = PERF_OF_BLOCK, .in_place = PERF_PART_OF_RECV, .nccl = true, .bus_factor = bus_parts },
    [PERF_SCATTER] = { .name = "scatter", .kind = PK_OP_SCATTER, .source = PERF_PARTS, .source_at_root = true,
                       .result = PERF_WHOLE, .origin = PERF_OF_ROOT, .own_part = true, .in_place = PERF_PART_OF_SEND,
                       .nccl = true, .bus_factor = bus_parts },
    [PERF_ALLGATHERV] = { .name = "allgatherv", .kind = PK_OP_ALLGATHERV, .source = PERF_WHOLE, .result = PERF_PARTS,
                          .origin = PERF_OF_BLOCK, .uneven = true, .in_place = PERF_PART_OF_RECV, .nccl = true,
                          .bus_factor = bus_parts },
    [PERF_ALLTOALLV] = { .name = "alltoallv", .kind = PK_OP_ALLTOALLV, .source = PERF_PARTS, .result = PERF_PARTS,
                         .origin = PERF_OF_BLOCK, .own_part = true, .uneven = true, .nccl = true, .bus_factor = bus_parts },
    [PERF_GATHERV] = { .name = "gatherv", .kind = PK_OP_GATHERV, .source = PERF_WHOLE, .result = PERF_PARTS,
                       .result_at_root = true, .origin = PERF_OF_BLOCK, .uneven = true, .in_place = PERF_PART_OF_RECV,
                       .nccl = true, .bus_factor = bus_parts },
    [PERF_SCATTERV] = { .name = "scatterv", .kind = PK_OP_SCATTERV, .source = PERF_PARTS, .source_at_root = true,
                        .result = PERF_WHOLE, .origin = PERF_OF_ROOT, .own_part = true, .uneven = true,
                        .in_place = PERF_PART_OF_SEND, .nccl = true, .bus_factor = bus_parts },
    [PERF_BARECOPY] = { .name = "barecopy", .kind = -1, .source = PERF_WHOLE, .result = PERF_WHOLE, .bus_factor = bus_one },
};
/* clang-format on */

const struct perf_operation *perf_operation(enum perf_op op)
{
    return &operations[op];
}

bool perf_reduces(enum perf_op op)
{
    return operations[op].origin == PERF_OF_ALL;
}

bool perf_has_root(enum perf_op op)
{
    return operations[op].source_at_root || operations[op].result_at_root;
}

bool perf_has_parts(enum perf_op op)
{
    return operations[op].source == PERF_PARTS || operations[op].result == PERF_PARTS;
}

bool perf_in_place(const struct perf_run *run)
{
    return run->options.in_place && (!perf_has_root(run->options.op) || run->rank == run->root);
}

static int blocks(const struct perf_run *run, enum perf_shape shape, bool at_root)
{
    if (shape == PERF_NOTHING || (at_root && run->rank != run->root))
        return 0;
    return shape == PERF_PARTS ? run->size : 1;
}

int perf_source_blocks(const struct perf_run *run)
{
    const struct perf_operation *op = &operations[run->options.op];

    return blocks(run, op->source, op->source_at_root);
}

int perf_result_blocks(const struct perf_run *run)
{
    const struct perf_operation *op = &operations[run->options.op];

    if (run->options.op == PERF_SENDRECV && run->options.pattern == PERF_ONEWAY && run->rank != 1)
        return 0;
    return blocks(run, op->result, op->result_at_root);
}

static int sender_to(const struct perf_run *run)
{
    int ranks = run->options.pattern == PERF_BIDIR ? run->size : 2;

    return (run->rank + ranks - 1) % ranks;
}

struct perf_origin_block perf_origin_of(const struct perf_run *run, int i)
{
    const struct perf_operation *op = &operations[run->options.op];
    struct perf_origin_block block = { .from = -1, .index = op->own_part ? run->rank : 0 };

    switch (op->origin) {
    case PERF_OF_PEER:
        block.from = sender_to(run);
        break;
    case PERF_OF_BLOCK:
        block.from = i;
        break;
    case PERF_OF_ROOT:
        block.from = run->root;
        break;
    case PERF_OF_ALL:
        break;
    }
    return block;
}

/*
 * Elements of block `index` of `from`'s source. Uneven parts are a ramp from nearly nothing to nearly twice the average, by the rank
 * that they belong to, in alltoallv by the distance of the two ranks: so all ranks send and receive alike.
 */
static size_t length(const struct perf_run *run, const struct perf_size *size, int from, int index)
{
    const struct perf_operation *op = &operations[run->options.op];
    int n = run->size;
    int place = op->own_part ? index : from;

    if (!op->uneven)
        return size->count;
    if (run->options.op == PERF_ALLTOALLV)
        place = (index - from + n) % n;
    return size->count * 2 * (size_t)(place + 1) / (size_t)(n + 1);
}

static void sum_up(const size_t *counts, size_t *offsets, int n)
{
    offsets[0] = 0;
    for (int i = 1; i < n; i++)
        offsets[i] = offsets[i - 1] + counts[i - 1];
}

void perf_lay_out(struct perf_run *run, const struct perf_size *size)
{
    struct perf_layout *l = &run->layout;
    size_t n = (size_t)run->size;

    if (l->send_counts == NULL && (l->send_counts = calloc(4 * n, sizeof *l->send_counts)) == NULL)
        abort();
    l->send_offsets = l->send_counts + n;
    l->recv_counts = l->send_counts + 2 * n;
    l->recv_offsets = l->send_counts + 3 * n;
    for (int i = 0; i < run->size; i++) {
        struct perf_origin_block origin = perf_origin_of(run, i);

        l->send_counts[i] = length(run, size, run->rank, i);
        l->recv_counts[i] = length(run, size, origin.from, origin.index);
    }
    sum_up(l->send_counts, l->send_offsets, run->size);
    sum_up(l->recv_counts, l->recv_offsets, run->size);
}

void perf_layout_free(struct perf_run *run)
{
    free(run->layout.send_counts);
    run->layout.send_counts = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Posting the operations, and the little that the ranks tell one another besides. */
#include "perf.h"

#include <stdlib.h>

void perf_must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    fprintf(stderr, "pickle-perf: %s: %s %s\n", what, pk_strerror(result), info.text);
    exit(1);
}

void perf_share(struct perf_run *run, const void *value, void *values, size_t bytes)
{
    perf_must(pk_allgather(value, values, bytes, PK_UINT8, run->comm, PK_BLOCKING), "exchange of results");
}

bool perf_takes_part(const struct perf_run *run)
{
    const struct perf_options *o = &run->options;
    bool for_two = o->op == PERF_BARECOPY || (o->op == PERF_SENDRECV && o->pattern != PERF_BIDIR);

    return !for_two || run->rank < 2;
}

unsigned perf_window(const struct perf_run *run, const struct perf_size *size)
{
    if (run->options.window != 0)
        return run->options.window;
    if (size->message_bytes <= 64 << 10)
        return 64;
    return size->message_bytes <= 16 << 20 ? 16 : 4;
}

void perf_pass_root(struct perf_run *run)
{
    if (run->options.root < 0)
        run->root = (run->root + 1) % run->size;
}

/* One block is as long as another in every operation that can be in place and has even parts; uneven ones have offsets. */
static char *part(const struct perf_run *run, char *buffer, const size_t *offsets)
{
    return buffer + offsets[run->rank] * pk_dtype_size(run->options.dtype);
}

char *perf_source(const struct perf_run *run)
{
    enum perf_in_place in_place = perf_operation(run->options.op)->in_place;

    if (!perf_in_place(run) || in_place == PERF_PART_OF_SEND)
        return run->send_buffer;
    return in_place == PERF_SAME ? run->recv_buffer : part(run, run->recv_buffer, run->layout.recv_offsets);
}

char *perf_result(const struct perf_run *run)
{
    if (!perf_in_place(run) || perf_operation(run->options.op)->in_place != PERF_PART_OF_SEND)
        return run->recv_buffer;
    return part(run, run->send_buffer, run->layout.send_offsets);
}

static void group_start(void)
{
    perf_must(pk_group_start(), "pk_group_start");
}

static void group_end(void)
{
    perf_must(pk_group_end(), "pk_group_end");
}

static void send_to(struct perf_run *run, const void *buffer, size_t count, int peer)
{
    perf_must(pk_send(buffer, count, run->options.dtype, peer, run->comm, run->stream), "pk_send");
}

static void receive_from(struct perf_run *run, void *buffer, size_t count, int peer)
{
    perf_must(pk_recv(buffer, count, run->options.dtype, peer, run->comm, run->stream), "pk_recv");
}

static pk_result_t post_uneven(struct perf_run *run, const void *source, void *result)
{
    const struct perf_layout *l = &run->layout;
    pk_dtype_t dtype = run->options.dtype;
    size_t own = l->send_counts[0], mine = l->recv_counts[0];

    switch (run->options.op) {
    case PERF_ALLGATHERV:
        return pk_allgatherv(source, own, result, l->recv_counts, l->recv_offsets, dtype, run->comm, run->stream);
    case PERF_GATHERV:
        return pk_gatherv(source, own, result, l->recv_counts, l->recv_offsets, dtype, run->root, run->comm, run->stream);
    case PERF_SCATTERV:
        return pk_scatterv(source, l->send_counts, l->send_offsets, result, mine, dtype, run->root, run->comm, run->stream);
    default:
        return pk_alltoallv(source, l->send_counts, l->send_offsets, result, l->recv_counts, l->recv_offsets, dtype, run->comm,
                            run->stream);
    }
}

static pk_result_t post_even(struct perf_run *run, size_t n, const void *source, void *result)
{
    pk_dtype_t dtype = run->options.dtype;
    pk_op_t reduction = run->options.reduction;
    pk_comm_t *comm = run->comm;
    pk_stream_t stream = run->stream;

    switch (run->options.op) {
    case PERF_BARRIER:
        return pk_barrier(comm, stream);
    case PERF_BROADCAST:
        return pk_broadcast(source, result, n, dtype, run->root, comm, stream);
    case PERF_REDUCE:
        return pk_reduce(source, result, n, dtype, reduction, run->root, comm, stream);
    case PERF_ALLREDUCE:
        return pk_allreduce(source, result, n, dtype, reduction, comm, stream);
    case PERF_REDUCE_SCATTER:
        return pk_reduce_scatter(source, result, n, dtype, reduction, comm, stream);
    case PERF_ALLGATHER:
        return pk_allgather(source, result, n, dtype, comm, stream);
    case PERF_ALLTOALL:
        return pk_alltoall(source, result, n, dtype, comm, stream);
    case PERF_GATHER:
        return pk_gather(source, result, n, dtype, run->root, comm, stream);
    case PERF_SCATTER:
        return pk_scatter(source, result, n, dtype, run->root, comm, stream);
    default:
        return PK_ERR_INTERNAL;
    }
}

static void collective(struct perf_run *run, const struct perf_size *size, const void *source, void *result)
{
    const struct perf_operation *op = perf_operation(run->options.op);

    perf_must(op->uneven ? post_uneven(run, source, result) : post_even(run, size->count, source, result), op->name);
}

static void must_be_well(struct perf_run *run)
{
    perf_must(pk_comm_async_error(run->comm), "operation in the stream");
}

const struct perf_library perf_pickle = {
    .group_start = group_start,
    .group_end = group_end,
    .send = send_to,
    .receive = receive_from,
    .collective = collective,
    .must_be_well = must_be_well,
};

/* Who gets this rank's source block: a part its own rank, the whole the root or everybody. */
static bool goes_to(const struct perf_run *run, int block, int peer)
{
    const struct perf_operation *op = perf_operation(run->options.op);

    if (op->source == PERF_PARTS)
        return peer == block;
    return !op->result_at_root || peer == run->root;
}

void perf_exchange(struct perf_run *run, const char *source, char *result)
{
    const struct perf_layout *l = &run->layout;
    size_t width = pk_dtype_size(run->options.dtype);

    run->library->group_start();
    for (int b = 0; b < perf_source_blocks(run); b++)
        for (int peer = 0; peer < run->size; peer++)
            if (goes_to(run, b, peer))
                run->library->send(run, source + l->send_offsets[b] * width, l->send_counts[b], peer);
    for (int b = 0; b < perf_result_blocks(run); b++)
        run->library->receive(run, result + l->recv_offsets[b] * width, l->recv_counts[b], perf_origin_of(run, b).from);
    run->library->group_end();
}

static void post_bidir(struct perf_run *run, size_t count)
{
    run->library->group_start();
    run->library->send(run, run->send_buffer, count, (run->rank + 1) % run->size);
    run->library->receive(run, run->recv_buffer, count, (run->rank + run->size - 1) % run->size);
    run->library->group_end();
}

static void post_pingpong(struct perf_run *run, size_t count)
{
    if (run->rank == 0) {
        run->library->send(run, run->send_buffer, count, 1);
        run->library->receive(run, run->recv_buffer, count, 1);
    } else {
        run->library->receive(run, run->recv_buffer, count, 0);
        run->library->send(run, run->send_buffer, count, 0);
    }
}

/* A window of messages, then one element back: the time covers the arrival of the data, not only its departure. */
static void post_oneway(struct perf_run *run, const struct perf_size *size)
{
    unsigned window = perf_window(run, size);
    char *answer = run->recv_buffer + run->capacity_bytes;

    run->library->group_start();
    for (unsigned i = 0; i < window; i++) {
        if (run->rank == 0)
            run->library->send(run, run->send_buffer, size->count, 1);
        else
            run->library->receive(run, run->recv_buffer, size->count, 0);
    }
    run->library->group_end();
    if (run->rank == 0)
        run->library->receive(run, answer, 1, 1);
    else
        run->library->send(run, answer, 1, 0);
}

void perf_post(struct perf_run *run, const struct perf_size *size)
{
    const struct perf_options *o = &run->options;

    if (!perf_takes_part(run))
        return;
    if (o->op != PERF_SENDRECV)
        run->library->collective(run, size, perf_source(run), perf_result(run));
    else if (o->pattern == PERF_BIDIR)
        post_bidir(run, size->count);
    else if (o->pattern == PERF_PINGPONG)
        post_pingpong(run, size->count);
    else
        post_oneway(run, size);
    perf_pass_root(run);
}

void perf_finish(struct perf_run *run)
{
    if (run->stream.kind == PK_STREAM_KIND_HOST)
        perf_must(pk_stream_synchronize(run->stream), "pk_stream_synchronize");
    if (run->stream.kind == PK_STREAM_KIND_CUDA) {
        int code = gpu_stream_sync(run->stream.handle);

        if (code != 0) {
            fprintf(stderr, "pickle-perf: cuStreamSynchronize: %s\n", gpu_error(code));
            exit(1);
        }
        run->library->must_be_well(run);
    }
}
